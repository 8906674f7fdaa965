"""Arguments of calls: what is agreed on, what is refused before data move, and what the refusal says."""

import itertools

import pytest
import torch

import tricoll
from tricoll import calls, cost, dispatch
from tricoll.workspace import settings_for

CPU = torch.device("cpu")


def prepare(rank=0, world_size=4, **settings):
    return calls.Prepare(rank, world_size, settings_for(**settings), cost.PROFILES["host"], CPU)


REFUSED = {
    "not a tensor": (lambda p: p.broadcast([1.0], 0, None, None, "auto"), TypeError, "x is a list, not a tensor"),
    "sparse": (
        lambda p: p.broadcast(torch.eye(2).to_sparse(), 0, None, None, "auto"),
        TypeError,
        "give its dense form",
    ),
    "a dtype": (
        lambda p: p.broadcast(torch.ones(2, dtype=torch.uint16), 0, None, None, "auto"),
        TypeError,
        "supported are",
    ),
    "elsewhere": (lambda p: p.broadcast(torch.ones(2, device="meta"), 0, None, None, "auto"), ValueError, "is on meta"),
    "root": (lambda p: p.broadcast(torch.ones(2), 4, None, None, "auto"), ValueError, "root is 4; ranks are 0 to 3"),
    "negative root": (lambda p: p.reduction("reduce", torch.ones(2), "sum", None, None, "auto", -1), ValueError, "-1"),
    "itself": (lambda p: p.pair("send", torch.ones(2), 0, None), ValueError, "cannot send to or from itself"),
    "nobody": (lambda p: p.pair("recv", torch.ones(2), 7, None), ValueError, "the other rank is 7"),
    "uneven": (
        lambda p: p.reduction("reduce_scatter", torch.ones(6), "sum", None, None, "auto"),
        ValueError,
        r"\(6,\) cannot be cut into 4 equal parts",
    ),
    "a scalar": (lambda p: p.scatter(torch.tensor(1.0), 0, None, None), ValueError, "cannot be cut into 4"),
    "sizes, how many": (
        lambda p: p.all_gather(torch.ones(2), None, None, "auto", [2, 2]),
        ValueError,
        "must be 4 numbers of rows",
    ),
    "sizes, which": (
        lambda p: p.all_gather(torch.ones(2), None, None, "auto", [3, 2, 2, 2]),
        ValueError,
        r"x of rank 0 has shape \(2,\); with sizes \[3, 2, 2, 2\], it has 3 rows",
    ),
    "sizes, all": (
        lambda p: p.reduction("reduce_scatter", torch.ones(8), "sum", None, None, "auto", sizes=[3, 2, 2, 2]),
        ValueError,
        "it has 9 rows",
    ),
    "one kind of splits": (
        lambda p: p.all_to_all(torch.ones(4), None, None, [1] * 4, None),
        ValueError,
        "give both input_splits and output_splits",
    ),
    "splits": (
        lambda p: p.all_to_all(torch.ones(4), None, None, [1, 1, 1, 2], [1] * 4),
        ValueError,
        r"input_splits \[1, 1, 1, 2\] are 5 rows",
    ),
    "negative splits": (
        lambda p: p.all_to_all(torch.ones(4), None, None, [1, 1, -1, 3], [1] * 4),
        ValueError,
        "must be 4 numbers of rows",
    ),
    "out": (
        lambda p: p.all_gather(torch.ones(2), torch.ones(7), None, "auto"),
        ValueError,
        r"out has 7 elements, and the result has 8: \(8,\)",
    ),
    "overlap": (
        lambda p: p.broadcast((x := torch.ones(9))[:8], 0, x[1:], None, "auto"),
        ValueError,
        "x and out overlap",
    ),
    "splits in place": (
        lambda p: p.all_to_all(x := torch.ones(4), x, None, [1] * 4, [1] * 4),
        ValueError,
        "x and out overlap",
    ),
    "wire": (
        lambda p: p.broadcast(torch.ones(2, dtype=torch.int32), 0, None, "bf16", "auto"),
        TypeError,
        "cannot send torch.int32 as torch.bfloat16",
    ),
    "algo": (
        lambda p: p.broadcast(torch.ones(2), 0, None, None, "two_shot"),
        ValueError,
        r"for broadcast it can be one of \['auto', 'ring', 'tree', 'one_shot'\]",
    ),
    "nodes": (
        lambda p: p.reduction("all_reduce", torch.ones(2), "sum", None, None, "hierarchical"),
        ValueError,
        "needs several nodes.*TRICOLL_NODE_SIZE",
    ),
    "no switch": (
        lambda p: p.reduction("all_reduce", torch.ones(2), "sum", None, None, "multimem"),
        ValueError,
        "a switch with multicast",
    ),
    "nothing to receive in": (
        lambda p: calls.Prepare(1, 4, p.settings, p.profile, CPU).scatter(None, 0, None, None),
        ValueError,
        "rank 1 gets a part of rank 0's tensor: give out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call(prepare())


def test_a_fingerprint_tells_calls_apart():
    """Whatever ranks must agree on is in it; what is one rank's own business is not."""
    p, x = prepare(node_size=2), torch.ones(64)
    reduction = lambda *a, collective="all_reduce", **k: p.reduction(collective, *a, **k).call.fingerprint
    different = [
        reduction(x, "sum", None, None, "ring"),
        reduction(x, "avg", None, None, "ring"),
        reduction(x, tricoll.premul_sum(0.5), None, None, "ring"),
        reduction(x, tricoll.premul_sum(0.25), None, None, "ring"),
        reduction(x, "sum", None, "bf16", "ring"),
        reduction(x, "sum", torch.ones(64, dtype=torch.bfloat16), "bf16", "ring"),
        reduction(x[:63], "sum", None, None, "ring"),
        reduction(x, "sum", None, None, "two_shot"),
        reduction(x, "sum", None, None, "hierarchical"),
        reduction(x, "sum", None, None, "ring", collective="reduce_scatter"),
        reduction(x, "sum", None, None, "ring", collective="reduce"),
        reduction(x, "sum", None, None, "ring", 1, collective="reduce"),
        p.all_gather(x, None, None, "ring").call.fingerprint,
        p.broadcast(x, 0, None, None, "ring").call.fingerprint,
        p.gather(x, 0, None, None).call.fingerprint,
        p.scatter(x, 0, None, None).call.fingerprint,
        p.all_to_all(x, None, None, None, None).call.fingerprint,
        p.barrier().call.fingerprint,
    ]
    assert len(set(different)) == len(different)
    assert all(0 <= f < 2**24 for f in different)
    other = calls.Prepare(3, 4, p.settings, p.profile, CPU)
    send, recv = p.pair("send", x, 3, None).call, other.pair("recv", x.clone(), 0, None).call
    assert send.fingerprint == recv.fingerprint
    half = torch.ones(64, dtype=torch.float16)
    rooted = lambda q, out: q.reduction("reduce", x, "sum", out, "bf16", "ring", 0).call
    assert rooted(p, half).fingerprint == rooted(other, None).fingerprint and str(rooted(p, half)) == str(
        rooted(other, None)
    )
    assert (
        p.scatter(x, 0, half[:16], "bf16").call.fingerprint
        == other.scatter(None, 0, x[:16].clone(), "bf16").call.fingerprint
    )


def test_a_plan_fits_its_slots():
    """Every piece fits a slot, starts at a multiple of 16, and all together are the chunk: for any size."""
    for channels, slot_bytes, n, itemsize in itertools.product((1, 3), (128, 1024), (2, 5, 8), (1, 2, 4, 8)):
        settings = settings_for(channels=channels, slot_bytes=slot_bytes, node_size=n // 2)
        for algorithm, collectives in dispatch.ALGORITHMS.items():
            for collective in collectives[:5]:
                if algorithm == "multimem" or (algorithm == "hierarchical" and not dispatch.nodes(n, settings)):
                    continue
                for numel in (0, 1, 15, 17, 1000, 2**33 + 3):
                    plan = dispatch.plan(collective, numel, itemsize, n, settings, algorithm)
                    slot = dispatch.slot_elements(algorithm, collective, itemsize, n, settings)
                    chunk = max(b - a for a, b in itertools.pairwise(plan.edges)) if len(plan.edges) > 1 else 0
                    assert plan.piece <= slot and plan.piece % 16 == 0 and plan.pieces >= 1
                    assert plan.piece * plan.pieces * channels >= chunk


def test_splits_that_do_not_match_are_named():
    one = {"sends": [1, 2], "receives": [1, 5]}
    other = {"sends": [4, 0], "receives": [2, 0]}
    assert calls.match([one, other]) == "rank 1 sends 4 elements to rank 0, which expects 5"
    assert calls.match([one, {**other, "sends": [5, 0]}]) == ""
    assert calls.match([one, None]) == ""  # too long to be told
