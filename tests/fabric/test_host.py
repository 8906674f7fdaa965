"""Ranks that are processes: right results, whatever the ranks do in time and wherever the tensors lie."""

import random
import time

import pytest
import torch

from tricoll import oracle, testing
from tricoll.testing import Guarded, Layout, make_inputs

SLOT_BYTES, SLOTS, BLOCK = 256, 3, 32
SMALL = {"slots": SLOTS, "slot_bytes": SLOT_BYTES, "window": 2, "block": BLOCK}
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


def sizes(n):
    """Around nothing, the number of ranks, a block, a slot and all slots of a link."""
    edges = [0, 1, n, BLOCK, n * BLOCK, n * SLOT_BYTES // 2, n * SLOTS * SLOT_BYTES // 2]
    return sorted({max(0, e + d) for e in edges for d in (-1, 0, 1)})


def run_one(comm, collective, numel, seed, op, dtype, wire, out_dtype, layout, in_place):
    """One call on this rank, with canaries around its tensors. Returns what it gave."""
    n, rank = comm.world_size, comm.rank
    shape = (numel // n * n,) if collective == "reduce_scatter" else (numel,)
    x = Guarded(make_inputs(n, shape, dtype, "mixed", seed)[rank], layout)
    elements = {"all_reduce": shape[0], "reduce_scatter": shape[0] // n, "all_gather": shape[0] * n}[collective]
    out = None if in_place else Guarded(torch.zeros(elements, dtype=out_dtype), layout)
    options = {"algo": "ring", "wire": wire, "out": None if in_place else out.view}
    if collective != "all_gather":
        options["op"] = op
    result = getattr(comm, collective)(x.view, **options)
    x.check()
    if out is not None:
        out.check()
    return result.clone()


def check(collective, outputs, numel, seed, op, dtype, wire):
    n = len(outputs)
    shape = (numel // n * n,) if collective == "reduce_scatter" else (numel,)
    inputs = make_inputs(n, shape, dtype, "mixed", seed)
    if collective == "all_gather":
        testing.check_all_gather(outputs, inputs, wire)
    else:
        getattr(testing, f"check_{collective}")(outputs, inputs, op, wire)


def cases_at_edges(n, link, tiles):
    """Arguments of :func:`run_one`: every size near a boundary, every collective."""
    draw = random.Random(f"{n}{link}{tiles}")
    floats = [torch.float32, torch.bfloat16, torch.float16]
    sample = sizes(n) if tiles == "torch" else draw.sample(sizes(n), 16 // n)
    cases = []
    for numel in sample:
        for collective in COLLECTIVES:
            in_place = draw.random() < 0.5
            dtype, wire = draw.choice(floats), draw.choice(floats)
            layout = Layout(draw.choice([0, 0, 1, 3]), draw.choice([1, 1, 2]))
            out_dtype = dtype if in_place else draw.choice(floats)
            case = (collective, numel, draw.randrange(10**6), draw.choice(["sum", "avg"]), dtype, wire, out_dtype)
            cases.append((*case, layout, in_place))
    return cases


@pytest.mark.parametrize("link", ["mapped", "put"])
@pytest.mark.parametrize("tiles", ["torch", "triton"])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_bits_are_the_oracles(pool, n, link, tiles):
    """Every size near a boundary, every collective, back to back and without a barrier in between."""
    cases = cases_at_edges(n, link, tiles)

    def work(comm):
        return [run_one(comm, *case) for case in cases]

    results = pool(n).run(work, link=link, tiles=tiles, check=False, **SMALL)
    for i, (collective, numel, seed, op, dtype, wire, *_) in enumerate(cases):
        check(collective, [r[i] for r in results], numel, seed, op, dtype, wire)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_a_few_million_elements(pool, n):
    """Default settings, many slots in flight; the size is a multiple of nothing."""
    numel = 3_000_017

    def work(comm):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(comm.rank))
        return comm.all_reduce(x, "avg", wire="bf16", algo="ring")

    inputs = [torch.randn(numel, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    testing.check_all_reduce(pool(n).run(work), inputs, "avg", torch.bfloat16)


@pytest.mark.slow
def test_case_1_a_length_of_no_use_to_anybody(pool):
    """10,556,587 elements (prime) on 8 ranks, exact in FP32."""

    def work(comm):
        i = torch.arange(10_556_587) % 251
        comm.all_reduce(x := (comm.rank + 1.0) * i)
        return bool((x == i * 36).all())

    assert pool(8).run(work) == [True] * 8


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("link", ["mapped", "put"])
def test_case_26_a_fast_rank_does_not_overwrite_what_a_slow_one_reads(pool, link, check):
    """2,000 calls back to back with inputs that change, one rank asleep at random: call k gives 10 + 4k."""

    def work(comm):
        draw, kept = random.Random(comm.rank), []
        for k in range(2000):
            if comm.rank == 3 and draw.random() < 0.02:
                time.sleep(draw.random() * 0.005)
            kept.append(comm.all_reduce(torch.full((5,), comm.rank + 1.0 + k)))
        return torch.stack(kept)

    expected = 10 + 4 * torch.arange(2000.0)[:, None].expand(2000, 5)
    for result in pool(4).run(work, link=link, check=check, **SMALL):
        assert torch.equal(result, expected)


def test_case_24_same_bits_in_every_run(pool):
    """One hash over ranks and repeats, with sleeping ranks, and again after a new communicator."""

    def work(comm):
        draw, seen = random.Random(time.time()), set()
        x = torch.randn(5003, generator=torch.Generator().manual_seed(comm.rank))
        for _ in range(100):
            time.sleep(draw.random() * 0.002)
            y = comm.all_reduce(x.clone(), "avg", wire="bf16", algo="ring")
            seen.add(hash(y.numpy().tobytes()))
        return y, len(seen)

    for _ in range(2):
        outcomes = pool(4).run(work, **SMALL)
        assert [count for _, count in outcomes] == [1] * 4
        inputs = [torch.randn(5003, generator=torch.Generator().manual_seed(r)) for r in range(4)]
        testing.check_all_reduce([y for y, _ in outcomes], inputs, "avg", torch.bfloat16)


@pytest.mark.parametrize("link", ["mapped", "put"])
def test_bytes_sent_are_the_minimum(pool, link):
    """2(n-1)/n of the data at two bytes an element, counted: half of what FP32 sends."""
    numel = 4 * 16 * 1000

    def work(comm, wire):
        comm.all_reduce(torch.ones(numel), wire=wire, algo="ring")
        return comm.stats()

    for wire, itemsize in (("bf16", 2), ("fp32", 4)):
        for stats in pool(4).run(work, wire, link=link):
            assert stats["payload_bytes"] == 2 * 3 * numel // 4 * itemsize
            assert stats["calls"] == 1 and stats["seconds"] > 0


def test_more_ranks_than_cores(pool):
    """8 ranks finish a call with little more than a millisecond each, whatever the machine's cores."""

    def work(comm):
        start = time.perf_counter()
        for _ in range(50):
            comm.all_reduce(torch.ones(10))
        return time.perf_counter() - start

    assert max(pool(8).run(work)) < 10


def test_ranks_may_differ_in_layout(pool):
    """A strided view on one rank meets an unaligned one and a plain tensor on others."""

    def work(comm):
        layout = [Layout(0, 1), Layout(3, 2), Layout(1, 1)][comm.rank]
        x = Guarded(make_inputs(3, (100,), torch.float32, "random", 7)[comm.rank], layout)
        comm.all_reduce(x.view, wire="bf16", algo="ring")
        x.check()
        return x.view.clone()

    inputs = make_inputs(3, (100,), torch.float32, "random", 7)
    testing.check_all_reduce(pool(3).run(work), inputs, "sum", torch.bfloat16)


def test_the_environment_and_torch_distributed_lead_to_the_same(pool):
    """tricoll.init() without arguments inside ranks; with a torch.distributed group; and on a sub-group of it."""

    def work(comm):
        import torch.distributed as dist

        import tricoll

        results = []
        with tricoll.init(timeout=20) as env:
            results.append(env.all_reduce(torch.tensor([1.0 + env.rank])).item())
        dist.init_process_group("gloo")
        with tricoll.init() as world:
            results.append(world.all_reduce(torch.tensor([1.0 + world.rank])).item())
        pair = dist.new_group([1, 3])
        if dist.get_rank() in (1, 3):
            with tricoll.init(pair) as sub:
                results.append((sub.rank, sub.world_size, sub.all_reduce(torch.tensor([1.0 + dist.get_rank()])).item()))
        return results

    outcomes = pool(4).run(work)
    assert [o[:2] for o in outcomes] == [[10.0, 10.0]] * 4
    assert [o[2:] for o in outcomes] == [[], [(0, 2, 6.0)], [], [(1, 2, 6.0)]]


def test_oracle_agrees_with_plain_addition():
    """The yardstick itself: where nothing is rounded, every order gives the same."""
    inputs = make_inputs(5, (64,), torch.float32, "small", 3)
    assert torch.equal(oracle.all_reduce(inputs, "sum", torch.float32), sum(inputs))


def test_settings_that_differ_are_named(pool):
    """By name and with every rank's value, on all ranks, when the communicator is made; the next one works."""

    def work(comm):
        import tricoll

        said = []
        for name, mine, others in (("window", 3, 2), ("block", 64, 128), ("node_size", 2, 1), ("check", False, True)):
            try:
                tricoll.init(timeout=20, **{name: mine if comm.rank == 1 else others})
                said.append("nothing")
            except ValueError as error:
                said.append(str(error))
        with tricoll.init(timeout=20) as good:
            return said, good.all_reduce(torch.ones(3)).tolist()

    for said, total in pool(3).run(work):
        for text, values in zip(
            said,
            (
                "window is [2, 3, 2]",
                "block is [128, 64, 128]",
                "node_size is [1, 2, 1]",
                "check is [True, False, True]",
            ),
        ):
            assert f"the ranks do not have the same settings: {values}" in text
        assert total == [3.0] * 3
