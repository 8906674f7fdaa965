"""Arguments of calls: what is refused before data move, and what the refusal says."""

import pytest
import torch

from tricoll import cost
from tricoll.prepare import Prepare
from tricoll.settings import settings_for

CPU = torch.device("cpu")


def prepare(rank=0, world_size=4):
    return Prepare(rank, world_size, settings_for(), cost.PROFILES["host"], CPU)


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
    "sizes, what": (
        lambda p: p.all_gather(torch.ones(2), None, None, "auto", [2.0, 2, 2, 2]),
        TypeError,
        r"sizes is \[2.0, 2, 2, 2\]; it must be 4 whole numbers",
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
        lambda p: prepare(rank=1).scatter(None, 0, None, None),
        ValueError,
        "rank 1 gets a part of rank 0's tensor: give out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call(prepare())
