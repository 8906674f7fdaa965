"""What holds whatever the order of additions, or for every element alike."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ways import ways

from tricoll import oracle, testing


@given(st.data())
def test_exact_inputs_give_the_exact_value(data):
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: t[0] in oracle.FLOATS))
    narrowest = min((dtype, wire, out), key=lambda d: (d.itemsize, -torch.finfo(d).eps))
    op, seed = data.draw(testing.ops(dtype, every=True)), data.draw(st.integers(0, 2**32 - 1))
    if op == "avg":  # of multiples of n, which have to be exact, too
        assume(n in (1, 2, 4, 8) and narrowest.itemsize > 1)
    inputs = testing.make_inputs(n, (n * data.draw(st.integers(0, 20)),), narrowest, "small", seed)
    kwargs = {}
    if op == "premul_sum":
        kwargs["scale"] = data.draw(st.sampled_from((0.5, -1.0, 0.0, 1.0)))
    if op == "prod":  # only signs: the product of other small integers may be too long for the type
        inputs = [torch.where(x.float() > 0, 1.0, -1.0).to(narrowest) for x in inputs]
    stack = torch.stack([x.double() for x in inputs])
    exact = {"min": stack.amin(0), "max": stack.amax(0), "prod": stack.prod(0)}.get(op, stack.sum(0))
    exact = exact * kwargs.get("scale", 1.0)
    inputs = [(x.double() * n if op == "avg" else x).to(dtype) for x in inputs]
    for way in ways(n, op=op, wire=wire):
        result = oracle.all_reduce(inputs, op, wire, out, **way, **kwargs)
        assert result.dtype == out and result.double().tolist() == exact.tolist(), way
    for way in ways(n, "reduce_scatter", op, wire):
        parts = oracle.reduce_scatter(inputs, op, wire, out, **way, **kwargs)
        assert torch.cat(parts).double().tolist() == exact.tolist(), way
    for way in ways(n, "reduce", op, wire):
        result = oracle.reduce(inputs, op, wire, out, root=n - 1, **way, **kwargs)
        assert result.double().tolist() == exact.tolist(), way


@given(st.data())
def test_the_least_and_the_greatest_do_not_depend_on_the_order(data):
    """All-reduces of all algorithms and orders of the ranks agree, to the bit: rounding is monotone."""
    n = data.draw(testing.world_sizes(6))
    dtype, wire, out = data.draw(testing.dtype_triples(every=True).filter(lambda t: oracle.has("min", t[0])))
    op = data.draw(st.sampled_from(("min", "max")))
    inputs = data.draw(testing.inputs(n, (40,), dtype))
    expected = oracle.all_reduce(inputs, op, wire, out)
    others = data.draw(st.permutations(inputs))
    for way in ways(n, op=op, wire=wire):
        testing.assert_same_bits(oracle.all_reduce(others, op, wire, out, **way), expected, str(way))


@given(st.data())
def test_direct_bits_depend_on_the_values_only(data):
    """Not on an element's place, on the size of the message, on who owns it, or on the collective."""
    n = data.draw(testing.world_sizes())
    dtype, wire, out = data.draw(testing.dtype_triples(every=True))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs = data.draw(testing.inputs(n, (60,), dtype))
    kwargs |= {"algorithm": data.draw(st.sampled_from(("two_shot", "one_shot")))}
    expected = oracle.all_reduce(inputs, op, wire, out, **kwargs)
    order = torch.tensor(data.draw(st.permutations(range(60))))[: data.draw(st.integers(0, 60))]
    testing.assert_same_bits(oracle.all_reduce([x[order] for x in inputs], op, wire, out, **kwargs), expected[order])
    testing.assert_same_bits(oracle.reduce(inputs, op, wire, out, **kwargs, root=data.draw(testing.roots(n))), expected)
    parts = oracle.reduce_scatter(inputs, op, wire, None, **kwargs, sizes=data.draw(testing.splits(n, 60)))
    if n > 1 and dtype == out == wire:
        testing.assert_same_bits(torch.cat(parts), expected)


@given(st.data())
def test_a_ring_to_a_root_is_its_chunk_of_a_reduce_scatter(data):
    n = data.draw(testing.world_sizes())
    dtype, wire, _ = data.draw(testing.dtype_triples(every=True))
    op = data.draw(testing.ops(dtype, every=True))
    kwargs = {"scale": data.draw(testing.scales())} if op == "premul_sum" else {}
    inputs, root = data.draw(testing.inputs(n, (24,), dtype)), data.draw(testing.roots(n))
    sizes = [24 if rank == root else 0 for rank in range(n)]
    part = oracle.reduce_scatter(inputs, op, wire, wire, **kwargs, sizes=sizes)[root]
    testing.assert_same_bits(oracle.reduce(inputs, op, wire, wire, root=root, **kwargs), part)
    # And it is the same ring with the ranks counted from elsewhere.
    turned = inputs[root:] + inputs[:root]
    for algorithm in ("ring", "tree"):
        testing.assert_same_bits(
            oracle.reduce(inputs, op, wire, algorithm=algorithm, root=root, **kwargs),
            oracle.reduce(turned, op, wire, algorithm=algorithm, **kwargs),
        )


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_chunks_cover_everything_once(n, numel):
    chunk = oracle.chunk_size(numel, n)
    assert chunk % 16 == 0 and n * chunk >= numel and n * (chunk - 16) < max(numel, 1)
    x = torch.arange(numel)
    for way in ways(n, wire=torch.int64):
        testing.assert_same_bits(oracle.all_reduce([x] + [torch.zeros_like(x)] * (n - 1), **way), x)
