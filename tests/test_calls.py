"""Calls: what ranks agree on, and how differences are told."""

import itertools

import torch

import tricoll
from tricoll import calls, cost, dispatch
from tricoll.prepare import Prepare
from tricoll.settings import settings_for

CPU = torch.device("cpu")


def prepare(rank=0, world_size=4, **settings):
    return Prepare(rank, world_size, settings_for(**settings), cost.PROFILES["host"], CPU)


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
    other = prepare(rank=3, node_size=2)
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
