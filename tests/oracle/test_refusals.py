"""Which types have which ops, which convert, and what the oracle refuses."""

import itertools

import pytest
import torch
from ways import C64, E4M3, FP32, FP64, filled

from tricoll import oracle
from tricoll.oracle import reductions


def test_what_types_have():
    assert all(oracle.has("sum", dtype) for dtype in oracle.DTYPES) and len(oracle.DTYPES) == 14
    assert not oracle.ops(torch.int4) and not oracle.has("sum", torch.uint16)
    refused = [("and", FP32), ("avg", torch.int32), ("avg", torch.bool), ("premul_sum", torch.int8), ("max", C64)]
    refused += [("prod", C64), ("xor", E4M3), ("sum", torch.float8_e4m3fnuz)]
    for op, dtype in refused:
        assert not oracle.has(op, dtype)
        x = [torch.zeros(2, dtype=dtype)] * 2
        kwargs = {"scale": 2.0} if op == "premul_sum" else {}
        for collective in (oracle.all_reduce, oracle.reduce_scatter, oracle.reduce):
            with pytest.raises(TypeError, match=f"has no '{op}'|cannot be sent"):
                collective(x, op, **kwargs)


@pytest.mark.parametrize(
    "dtypes",
    [(FP64, FP32, FP64), (FP32, FP64, FP32), (FP32, FP32, FP64), (torch.int32, FP32, torch.int32)]
    + [(torch.int32, torch.int64, torch.int64), (C64, C64, torch.complex128), (torch.bool, torch.uint8, torch.bool)],
)
def test_what_does_not_convert(dtypes):
    dtype, wire, out = dtypes
    x = [torch.zeros(2, dtype=dtype)] * 2
    with pytest.raises(TypeError, match="does not convert"):
        oracle.all_reduce(x, "sum", wire, out)
    for move in (oracle.all_gather, oracle.gather, oracle.broadcast, oracle.scatter, oracle.all_to_all):
        with pytest.raises(TypeError, match="does not convert"):
            move(x, wire, out)


def test_every_small_float_converts():
    for dtype, wire, out in itertools.product(oracle.SMALL_FLOATS, repeat=3):
        result = oracle.all_reduce(filled([1.0, 0.5], 3, dtype), "sum", wire, out)
        assert result.dtype == out and result.tolist() == [1.5] * 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: oracle.all_reduce(x, algorithm="star"), "has no all_reduce 'star'"),
        (lambda x: oracle.all_reduce(x, "median"), "has no op 'median'"),
        (lambda x: oracle.reduce_scatter(x, algorithm="tree"), "has no reduce_scatter 'tree'"),
        (lambda x: oracle.reduce(x, algorithm="hierarchical"), "has no reduce 'hierarchical'"),
        (lambda x: oracle.all_reduce(x, algorithm="hierarchical"), "a node_size that divides 2 ranks, not None"),
        (lambda x: oracle.all_reduce(x, algorithm="hierarchical", node_size=3), "divides 2 ranks, not 3"),
        (lambda x: oracle.all_reduce(x, "max", algorithm="multimem"), "multimem adds"),
        (lambda x: oracle.all_reduce(x, "sum", E4M3, algorithm="multimem"), "multimem adds"),
        (lambda x: oracle.all_reduce(x, "premul_sum"), "a scale belongs to op 'premul_sum'"),
        (lambda x: oracle.all_reduce(x, scale=2.0), "a scale belongs to op 'premul_sum'"),
        (lambda x: oracle.reduce(x, root=2), "root is 2; with 2 ranks it can be 0 to 1"),
        (lambda x: oracle.broadcast(x, root=-1), "root is -1"),
        (lambda x: oracle.broadcast([None, *x[1:]]), "the root, rank 0, gives no tensor"),
        (lambda x: oracle.reduce_scatter(x), "cannot be cut along dimension 0 into 2 equal parts"),
        (lambda x: oracle.scatter([y[0] for y in x]), r"shape \(\) cannot be cut"),
        (lambda x: oracle.reduce_scatter(x, sizes=[1, 1]), r"into 2 parts of \[1, 1\] rows"),
        (lambda x: oracle.all_to_all(x, splits=[[1, 2], [4, -1]]), r"of \[4, -1\] rows"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call([torch.ones(3)] * 2)


@pytest.mark.parametrize("n", [1, 3])
def test_no_order_is_no_other_order(monkeypatch, n):
    """Of an algorithm that is in ALGORITHMS and not in ORDERS: it is not judged by another one's order."""
    monkeypatch.setattr(reductions, "ALGORITHMS", dict.fromkeys(reductions.ALGORITHMS, ("star",)))
    for collective in (oracle.all_reduce, oracle.reduce_scatter, oracle.reduce):
        with pytest.raises(ValueError, match=r"ORDERS in oracle/order\.py has no 'star'"):
            collective([torch.ones(3)] * n, algorithm="star")


def test_no_bound_for_integers():
    with pytest.raises(TypeError, match="there is no bound"):
        oracle.bound([torch.ones(2, dtype=torch.int32)], "sum")
