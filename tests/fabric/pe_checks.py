"""What the PEs of one OpenSHMEM program do, check after check, and how it is judged: see test_openshmem.py.

Started as ``oshrun -np 4 python pe_checks.py FOLDER NAME...``; each PE leaves what every check gave in the folder.
"""

import functools
import random
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import test_host  # noqa: E402
import test_host_collectives  # noqa: E402
from streams import Played, Step  # noqa: E402
from test_host_failures import attempt, differing_calls  # noqa: E402

import tricoll  # noqa: E402
from tricoll import world  # noqa: E402

TIMEOUT = 1.5
BRIEF = 0.8  # of checks that wait for it to pass
NODES = {4: 2}  # PEs: ranks a node
CHECKS = {}


class Check(NamedTuple):
    """``work(n)`` runs on every PE; ``judge(results, n)`` gets what it gave on each, and raises if that is wrong."""

    work: object
    judge: object


def check(work):
    """Decorate a function that judges what ``work`` gave."""

    def decorate(judge):
        CHECKS[judge.__name__] = Check(work, judge)
        return judge

    return decorate


# Bits.


def play(link, checked, n):
    nodes = NODES.get(n, 0)
    with tricoll.init(timeout=20, link=link, check=checked, node_size=nodes, **test_host_collectives.SMALL) as comm:
        return test_host_collectives.play_sleepily(comm, test_host_collectives.stream(n, link, nodes), nodes)


def judge_stream(link, results, n):
    nodes = NODES.get(n, 0)
    for k, step in enumerate(test_host_collectives.stream(n, link, nodes)):
        if step.collective != "barrier":
            Played(step, n, nodes).check_bits([ranks[k] for ranks in results])


def play_edges(link, tiles, n):
    cases = test_host.cases_at_edges(n, link, tiles)
    with tricoll.init(timeout=20, link=link, tiles=tiles, check=False, **test_host.SMALL) as comm:
        return [test_host.run_one(comm, *case) for case in cases]


def judge_edges(link, tiles, results, n):
    for i, (collective, numel, seed, op, dtype, wire, *_) in enumerate(test_host.cases_at_edges(n, link, tiles)):
        test_host.check(collective, [r[i] for r in results], numel, seed, op, dtype, wire)


for link in ("put", "mapped"):
    for checked in (True, False):
        CHECKS[f"every call, {link}, {'checked' if checked else 'by fingerprint'}"] = Check(
            functools.partial(play, link, checked), functools.partial(judge_stream, link)
        )
    for tiles in ("torch", "triton"):
        CHECKS[f"edges, {link}, {tiles}"] = Check(
            functools.partial(play_edges, link, tiles), functools.partial(judge_edges, link, tiles)
        )


DTYPES = (
    torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


def other_dtypes(n):
    """Two calls of each dtype that the streams do not have."""
    return [
        Step(algorithm, collective, (n * 23,), (dtype,) * 3, seed=k)
        for k, dtype in enumerate(DTYPES)
        for algorithm, collective in (("two_shot", "all_reduce"), ("ring", "all_gather"))
    ]


def play_dtypes(n):
    with tricoll.init(timeout=20, **test_host_collectives.SMALL) as comm:
        return [Played(step, n).on(comm) for step in other_dtypes(n)]


@check(play_dtypes)
def every_other_dtype(results, n):
    for k, step in enumerate(other_dtypes(n)):
        Played(step, n).check_bits([ranks[k] for ranks in results])


def large(n):
    with tricoll.init(timeout=20) as comm:
        x = torch.randn(3_000_017, generator=torch.Generator().manual_seed(comm.rank))
        return comm.all_reduce(x, "avg", wire="bf16", algo="ring")


@check(large)
def a_few_million_elements(results, n):
    """Default settings; the messages are larger than a socket's buffer."""
    inputs = [torch.randn(3_000_017, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    tricoll.testing.check_all_reduce(results, inputs, "avg", torch.bfloat16)


# Many calls, several at once.


def back_to_back(n):
    draw, kept = random.Random(n), []
    with tricoll.init(timeout=20, check=False, **test_host.SMALL) as comm:
        for k in range(500):
            if comm.rank == n - 1 and draw.random() < 0.02:
                time.sleep(draw.random() * 0.005)
            kept.append(comm.all_reduce(torch.full((5,), comm.rank + 1.0 + k)))
    return torch.stack(kept)


@check(back_to_back)
def case_26_back_to_back(results, n):
    expected = n * (n + 1) / 2 + n * torch.arange(500.0)[:, None].expand(500, 5)
    assert all(torch.equal(result, expected) for result in results)


def in_flight(n):
    """Ten reductions that are waited for in reverse, while messages go both ways and another communicator works."""
    with tricoll.init(timeout=20) as comm, tricoll.init(timeout=20) as other:
        right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
        works = [comm.all_reduce(torch.full((3000,), comm.rank + k * 1.0), async_op=True) for k in range(10)]
        got = torch.empty(200_000)
        pair = [comm.send(torch.full((200_000,), comm.rank * 1.0), right, async_op=True)]
        pair.append(comm.recv(got, left, async_op=True))
        beside = [other.all_reduce(torch.full((100,), 1.0 + k)).unique().tolist() for k in range(20)]
        for work in pair:
            work.wait()
        return [work.result().unique().tolist() for work in reversed(works)], got.unique().tolist(), beside


@check(in_flight)
def several_calls_in_flight(results, n):
    for rank, (sums, got, beside) in enumerate(results):
        assert sums == [[n * (n - 1) / 2 + n * k] for k in reversed(range(10))]
        assert got == [(rank - 1) % n] and beside == [[n * (1.0 + k)] for k in range(20)]


def early_and_late(n):
    """A sender goes on while the receiver is elsewhere, and data leave while the sender is."""
    with tricoll.init(timeout=20, check=False) as comm:
        x = torch.full((100_000,), comm.rank + 1.0)
        comm.all_reduce(torch.ones(1))
        if comm.rank == 0:
            start = time.monotonic()
            comm.send(x, 1)
            sent = time.monotonic() - start
            time.sleep(2.0)
            return sent
        if comm.rank == 1:
            time.sleep(0.7)
            start = time.monotonic()
            comm.recv(x, 0)
            return time.monotonic() - start, x.unique().tolist()


@check(early_and_late)
def nobody_waits_for_a_rank_that_is_elsewhere(results, n):
    sent, (received, values) = results[:2]
    assert sent < 0.5 and received < 0.8 and values == [1.0]


# Communicators.


def again_and_again(n):
    """30 communicators of 24 MB in a heap of 128 MB; they are closed in an order that differs from rank to rank."""
    sums = []
    for k in range(15):
        one, two = tricoll.init(timeout=20), tricoll.init(timeout=20)
        sums.append((one.all_reduce(torch.ones(1)) + two.all_reduce(torch.ones(1))).item())
        for comm in (one, two) if (one.rank + k) % 2 else (two, one):
            comm.destroy()
            comm.destroy()
    return sums


@check(again_and_again)
def communicators_come_and_go(results, n):
    assert results == [[2.0 * n] * 15] * n


def picked(n):
    with tricoll.init() as comm:
        return comm.fabric, comm.rank, comm.world_size, comm._settings.mapped, comm._fabric.library.mapped


@check(picked)
def auto_is_openshmem(results, n):
    assert [result[:4] for result in results] == [("openshmem", r, n, False) for r in range(n)]
    assert len({result[4] for result in results}) == 1


# Trouble.


def said(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    return "nothing"


def with_other_settings(n):
    me = tricoll.init().rank
    tricoll.destroy()
    texts = []
    for name, mine, others in (("window", 3, 2), ("check", False, True), ("link", "mapped", "put")):
        values = {name: mine if me == 1 else others}
        texts.append(said(ValueError, lambda: tricoll.init(timeout=20, **values)))
    with tricoll.init(timeout=20) as good:
        return texts, good.all_reduce(torch.ones(3)).tolist()


@check(with_other_settings)
def settings_that_differ_are_named(results, n):
    rest = [2] * (n - 2)
    for texts, total in results:
        assert f"the ranks do not have the same settings: window is {[2, 3, *rest]}" in texts[0]
        assert f"check is {[True, False, *[True] * (n - 2)]}" in texts[1]
        assert f"mapped is {[False, True, *[False] * (n - 2)]}" in texts[2]
        assert total == [n] * 3


def too_large(n):
    text = said(tricoll.HeapExhausted, lambda: tricoll.init(slot_bytes=64 << 20))
    with tricoll.init(timeout=20) as good:
        return text, good.all_reduce(torch.ones(3)).tolist()


@check(too_large)
def case_34_a_heap_that_is_too_small(results, n):
    for text, total in results:
        assert all(f"rank {r}: needs " in text for r in range(n))
        assert "128M in all" in text and "SHMEM_SYMMETRIC_SIZE" in text and "slot_bytes" in text and total == [n] * 3


def sub_group(n):
    me = tricoll.init().rank
    tricoll.destroy()
    return said(ValueError, lambda: world.connect(dist.HashStore(), 0, 1, "openshmem")), me


@check(sub_group)
def a_sub_group_is_refused(results, n):
    for text, me in results:
        assert f"is PE {me} of {n}" in text and "cannot be of a sub-group. fabric='host' can" in text


def mapped_if_possible(n):
    return said(ValueError, lambda: tricoll.init(link="mapped", timeout=20).destroy())


@check(mapped_if_possible)
def mapped_links_that_there_cannot_be(results, n):
    for text in results:
        assert f"on ranks {[*range(n)]} shmem_ptr has no address" in text and "link='put'" in text


def different_calls(checked, n):
    """Cases 13 and 14 of what the host fabric's tests do, on one communicator: the next call always works."""
    seen = []
    with tricoll.init(timeout=TIMEOUT, check=checked) as comm:
        for name, ((theirs,), (ours,)) in differing_calls().items():
            collective, shape, dtype, *op = theirs if comm.rank == 1 else ours
            if collective == "reduce_scatter":
                shape = (3 * shape[0],)  # for any number of ranks from 2 to 4
            x = torch.full(shape, 7, dtype=dtype)
            seconds, outcome = attempt(lambda: getattr(comm, collective)(x, *op))
            untouched = bool((x == 7).all())
            seen.append((name, seconds, outcome, untouched, comm.all_reduce(torch.full((3,), 1.0)).tolist()))
    return seen


def judge_different_calls(results, n):
    for rank, seen in enumerate(results):
        for name, seconds, (kind, text), untouched, again in seen:
            assert kind is tricoll.CollectiveMismatch, (name, kind, text)
            assert f"rank {rank}, call" in text and "rank [1]: " in text, (name, text)
            assert untouched and again == [n] * 3 and seconds < TIMEOUT + 2, (name, seconds, again)


for checked in (True, False):
    CHECKS[f"different calls, {'checked' if checked else 'by fingerprint'}"] = Check(
        functools.partial(different_calls, checked), judge_different_calls
    )


def absent(checked, n):
    with tricoll.init(timeout=BRIEF, check=checked) as comm:
        if comm.rank == n - 1:
            time.sleep(BRIEF + 1.5)  # longer than the others wait, and then hear from each other
            outcome = None
        else:
            outcome = attempt(lambda: comm.all_reduce(torch.ones(10)))
    with tricoll.init(timeout=20) as comm:
        return outcome, comm.all_reduce(torch.ones(1)).item()


def judge_absent(results, n):
    for rank, (outcome, again) in enumerate(results):
        assert again == n
        if rank < n - 1:
            seconds, (kind, text) = outcome
            assert kind is tricoll.CollectiveTimeout and f"ranks [{n - 1}] did not take part" in text, text
            assert BRIEF * 0.9 < seconds < BRIEF + 2


for checked in (True, False):
    CHECKS[f"a rank that does not take part, {'checked' if checked else 'by fingerprint'}"] = Check(
        functools.partial(absent, checked), judge_absent
    )


def leaves(n):
    comm = tricoll.init(timeout=20)
    comm.all_reduce(torch.ones(1))
    if comm.rank == 1:
        comm.destroy()
        return None
    outcome = attempt(lambda: comm.all_reduce(torch.ones(1)))
    comm.destroy()
    return outcome


@check(leaves)
def a_rank_that_leaves_is_known_at_once(results, n):
    for rank in {*range(n)} - {1}:
        seconds, (kind, text) = results[rank]
        assert kind is tricoll.PeerFailure and "are gone" in text and seconds < 1, (seconds, text)


def late_to_join(n):
    """A rank is late for init: the others give up, it hears of that, and the next time works."""
    me = int(tricoll.init().rank)
    tricoll.destroy()
    if me == 0:
        time.sleep(2 * BRIEF)
    start = time.monotonic()
    text = said(tricoll.CollectiveTimeout, lambda: tricoll.init(timeout=BRIEF))
    seconds = time.monotonic() - start
    with tricoll.init(timeout=20) as comm:
        return seconds, text, comm.all_reduce(torch.ones(1)).item()


@check(late_to_join)
def a_rank_that_is_late_to_join(results, n):
    for rank, (seconds, text, again) in enumerate(results):
        assert again == n and seconds < BRIEF + 2
        assert ("have given up waiting" if rank == 0 else f"ranks [0] of {n} did not join within 0.8 s") in text


def run(folder, names):
    """On a PE: every check, and its outcome in the folder."""
    torch.set_num_threads(1)
    outcomes, n = {}, tricoll.init(timeout=60).world_size
    me = world.default().rank
    tricoll.destroy()
    for name in names:
        start = time.monotonic()
        try:
            value, error = CHECKS[name].work(n), ""
        except BaseException:
            value, error = None, traceback.format_exc()
        tricoll.destroy()  # what a check has left as the default
        outcomes[name] = value, error, time.monotonic() - start
        torch.save(outcomes, Path(folder, f"{me}.new"))
        Path(folder, f"{me}.new").replace(Path(folder, f"{me}.pt"))
    # The program ends with a communicator that is in use.
    comm = tricoll.init(timeout=20)
    comm.all_reduce(torch.ones(3), async_op=True)


if __name__ == "__main__":
    # As the module that the test unpickles from.
    import pe_checks
    import seen

    seen.watch_pe()
    pe_checks.run(sys.argv[1], sys.argv[2:])
