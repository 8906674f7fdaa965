"""Calls with async_op=True: right results in any order of waiting, callbacks, and nothing kept longer than needed."""

import gc
import random
import threading
import time
import weakref

import pytest
import torch

import tricoll
from tricoll import testing
from tricoll.fabric.cpu import interpreting
from tricoll.kernels import ring
from tricoll.world import connect

SMALL = {"slots": 3, "slot_bytes": 256, "window": 2, "block": 32}


def inputs(n, k, numel=501):
    return testing.make_inputs(n, (numel,), torch.float32, "mixed", k)


def ten_temporaries(comm, tiles):
    works = []
    for k in range(10):
        x = inputs(comm.world_size, k)[comm.rank].clone()
        works.append(comm.all_reduce(x, "avg", wire="bf16", async_op=True))
        del x
    gc.collect()
    junk = [torch.full((501,), 7.0) for _ in range(20)]  # lies where a freed input would have lain
    for work in reversed(works):
        assert work.wait() and work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert 0 < work.submitted <= work.started < work.ended
    del junk
    return [work.result() for work in works]


@pytest.mark.parametrize("tiles", ["torch", "triton"])
def test_case_29_temporaries_and_waiting_in_reverse(pool, tiles):
    results = pool(4).run(ten_temporaries, tiles, tiles=tiles, limit=60, **SMALL)
    for k in range(10):
        testing.check_all_reduce([r[k] for r in results], inputs(4, k), "avg", torch.bfloat16, "two_shot")


def never_waited_for(comm):
    x = torch.full((10_000,), comm.rank + 1.0)
    comm.all_reduce(x, async_op=True)
    comm.barrier()
    first = x.clone()
    # Synchronous and asynchronous calls on one tensor see each other's results, in the order in which they were made.
    comm.all_reduce(x, async_op=True)
    comm.broadcast(x, 2, async_op=True)
    gathered = comm.all_gather(x)
    work = comm.all_reduce(x, "max", async_op=True)
    polls = 0
    while not work.is_completed():
        time.sleep(0.001)
        polls += 1
    return bool((first == 10).all()), bool((gathered == 40).all()) and bool((x == 40).all()), polls


def test_case_29_never_waited_for_and_polled(pool):
    for first, second, polls in pool(4).run(never_waited_for, limit=60):
        assert first and second and polls < 30_000


def every_collective(comm):
    n, r = comm.world_size, comm.rank
    x = torch.arange(12.0) + 100 * r
    works = [
        comm.reduce_scatter(x.clone(), async_op=True),
        comm.all_gather(x, async_op=True),
        comm.broadcast(x.clone(), 1, async_op=True),
        comm.reduce(x.clone(), 2, async_op=True),
        comm.gather(x, 1, async_op=True),
        comm.scatter(x, 0, out=torch.empty(12 // n), async_op=True),
        comm.all_to_all(x, async_op=True),
        comm.barrier(async_op=True),
    ]
    right = [
        comm.reduce_scatter(x.clone()),
        comm.all_gather(x),
        comm.broadcast(x.clone(), 1),
        comm.reduce(x.clone(), 2),
        comm.gather(x, 1),
        comm.scatter(x, 0, out=torch.empty(12 // n)),
        comm.all_to_all(x),
        comm.barrier(),
    ]
    assert all(isinstance(work, tricoll.Work) for work in works)
    for work, expected in zip(works, right):
        result = work.result()
        assert (result is None) == (expected is None), work
        assert result is None or torch.equal(result, expected), work
    return True


def test_every_collective(pool):
    assert pool(3).run(every_collective, limit=60) == [True] * 3


def test_in_the_simulator_it_is_made_at_once(simulate):
    def work(comm):
        started = comm.all_reduce(torch.full((100,), comm.rank + 1.0), async_op=True)
        assert started.is_completed()
        return started.get_future().wait()[0].item()

    assert simulate(work, 4, seed=3).results == [10.0] * 4


def both_ways(comm, numel):
    """Everybody receives from, then sends to, everybody; then the other way round: both at once or nothing moves."""
    others = [r for r in range(comm.world_size) if r != comm.rank]
    mine = lambda k: torch.arange(numel) + 1000.0 * comm.rank + k
    got = {(r, k): torch.empty(numel) for r in others for k in range(2)}
    works = [comm.recv(got[r, 0], r, async_op=True) for r in others]
    works += [comm.send(mine(0), r, async_op=True) for r in others]
    works += [comm.send(mine(1), r, async_op=True) for r in others]
    works += [comm.recv(got[r, 1], r, async_op=True) for r in others]
    for work in works:
        work.wait()
    total = comm.all_reduce(torch.ones(1))
    return total.item(), all(torch.equal(t, torch.arange(numel) + 1000.0 * r + k) for (r, k), t in got.items())


@pytest.mark.parametrize("numel", [1, 5000])  # the second: many times what a link can hold
def test_sends_and_receives_beside_each_other(pool, numel):
    assert pool(3).run(both_ways, numel, limit=60, **SMALL) == [(3.0, True)] * 3


def blocking_send_after_irecv(comm):
    got, other = torch.empty(5000), 1 - comm.rank
    work = comm.recv(got, other, async_op=True)
    comm.send(torch.full((5000,), comm.rank + 1.0), other)
    work.wait()
    return got.unique().tolist()


def test_a_blocking_send_after_a_pending_receive(pool):
    assert pool(2).run(blocking_send_after_irecv, limit=60, **SMALL) == [[2.0], [1.0]]


def callbacks(comm):
    """Each callback makes a collective of its own: its place among the calls is the same on all ranks."""
    n, mood, futures = comm.world_size, random.Random(comm.rank), []

    def then(future):
        y = future.value() * 2
        comm.all_reduce(y)
        return comm.all_gather(y[:1], async_op=True).result()

    for k in range(20):
        time.sleep(mood.choice([0, 0, 0.005]))  # a callback runs before the next call is made on some ranks only
        futures.append(comm.all_reduce(torch.full((50,), float(k)), async_op=True).get_future().then(then))
    last = comm.all_reduce(torch.full((3,), 5.0))
    assert last[0] == 5 * n
    values = [f.wait().tolist() for f in futures]
    assert values == [[2.0 * k * n * n] * n for k in range(20)]
    broken = comm.all_reduce(torch.ones(2), async_op=True)
    failed = broken.get_future().then(lambda f: 1 // 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        failed.wait()
    assert broken.wait() and broken.is_success()
    return comm.all_reduce(torch.ones(1)).item()


def test_case_29_callbacks(pool):
    assert pool(3).run(callbacks, limit=60) == [3.0] * 3


def several_communicators(comm, tiles):
    """Three communicators of one process, each used by a thread of its own."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    others = [
        connect(dist.PrefixStore(f"more/{k}", store), comm.rank, comm.world_size, tiles=tiles, **SMALL)
        for k in range(2)
    ]
    results, errors = {}, []

    def use(k, each):
        try:
            mine = [inputs(comm.world_size, 10 * k + i, 77)[comm.rank].clone() for i in range(8)]
            results[k] = [each.all_reduce(x, algo="two_shot") for x in mine]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(k, each)) for k, each in enumerate([comm, *others])]
    # Not in the same order on all ranks: nobody may have to wait for another communicator's turn.
    for thread in threads if comm.rank else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.destroy()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("tiles", ["torch", "triton"])
def test_several_communicators_in_threads(pool, tiles):
    results = pool(3).run(several_communicators, tiles, tiles=tiles, limit=100, **SMALL)
    for k in range(3):
        for i in range(8):
            outputs = [r[k][i] for r in results]
            testing.check_all_reduce(outputs, inputs(3, 10 * k + i, 77), "sum", torch.float32, "two_shot")


def test_the_language_is_given_back_when_the_last_interpreted_run_ends():
    import triton.language as tl

    before = tl.load
    with interpreting(ring.all_reduce):
        inside = tl.load
        with interpreting(ring.all_gather):
            assert tl.load is inside
        assert tl.load is inside is not before
    assert tl.load is before


def dropped(comm):
    """A handle keeps its tensors until it is dropped, and no longer."""
    x = torch.ones(1000)
    alive = weakref.ref(x)
    work = comm.all_reduce(x, async_op=True)
    del x
    gc.collect()
    work.get_future().wait()
    assert alive() is not None and work.result()[0] == comm.world_size
    del work
    deadline = time.monotonic() + 5
    while alive() is not None and time.monotonic() < deadline:
        gc.collect()
    return alive() is None


def test_a_handle_lets_go_of_its_tensors(pool):
    assert pool(2).run(dropped, limit=60) == [True] * 2


def many(comm):
    """Threads come and go: their number does not grow with the calls."""
    before = threading.active_count()
    for _ in range(200):
        works = [comm.all_reduce(torch.ones(4), async_op=True) for _ in range(4)]
        works[-1].wait()
    return threading.active_count() - before


def test_threads_do_not_pile_up(pool):
    assert max(pool(2).run(many, limit=60)) <= 2


def test_a_program_that_ends_with_calls_pending(tmp_path):
    import subprocess
    import sys

    program = tmp_path / "pending.py"
    program.write_text(
        "import torch, tricoll\n"
        "comm = tricoll.init()\n"
        "for _ in range(100):\n"
        "    comm.all_reduce(torch.ones(100_000), 'avg', wire='bf16', async_op=True)\n"
    )
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr


def anything(comm, seed, check_results):
    """Calls of all kinds, synchronous or not, in one order on all ranks, which sleep when they like."""
    plan, mood = random.Random(seed), random.Random(1000 * seed + comm.rank)
    n, r, pending = comm.world_size, comm.rank, []
    x = lambda rank, k, numel: torch.arange(numel) % 17 + 10.0 * rank + k
    for k in range(60):
        if mood.random() < 0.1:
            time.sleep(mood.random() * 0.004)
        kind = plan.choice(["all_reduce", "all_gather", "broadcast", "pairs", "pairs", "barrier"])
        numel, root, is_async = plan.choice([1, 7, 300, 2000]), plan.randrange(n), plan.random() < 0.7
        options = {"async_op": is_async}
        if kind == "all_reduce":
            y = x(r, k, numel)
            made = comm.all_reduce(y, **options)
            pending.append((made, y, sum(x(s, k, numel) for s in range(n))))
        elif kind == "all_gather":
            y = torch.empty(n * numel)
            made = comm.all_gather(x(r, k, numel), out=y, **options)
            pending.append((made, y, torch.cat([x(s, k, numel) for s in range(n)])))
        elif kind == "broadcast":
            y = x(r, k, numel)
            made = comm.broadcast(y, root, **options)
            pending.append((made, y, x(root, k, numel)))
        elif kind == "barrier":
            comm.barrier(**options)
        else:  # everybody to its neighbour, in an order of its own
            y, shift = torch.empty(numel), plan.randrange(1, n)
            calls = [
                lambda: comm.send(x(r, k, numel), (r + shift) % n, async_op=True),
                lambda: comm.recv(y, (r - shift) % n, async_op=True),
            ]
            if mood.random() < 0.5:
                calls.reverse()
            made = [call() for call in calls]
            if not is_async:
                [work.wait() for work in made]
            pending.append((made, y, x((r - shift) % n, k, numel)))
        while pending and mood.random() < 0.3:
            check_results(*pending.pop(mood.randrange(len(pending))))
    mood.shuffle(pending)
    for each in pending:
        check_results(*each)
    return True


def finished(made, y, expected):
    for work in made if isinstance(made, list) else [made]:
        if isinstance(work, tricoll.Work):
            work.wait()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("seed", range(6))
def test_calls_of_all_kinds_in_any_mixture(pool, seed):
    n = 2 + seed % 3
    options = {"link": "put" if seed % 2 else "mapped", "check": seed < 4}
    assert pool(n).run(anything, seed, finished, limit=60, **options, **SMALL) == [True] * n


def hidden(comm):
    """Computation that releases the interpreter, between an asynchronous call and its wait."""
    a, x = torch.randn(500, 500), torch.ones(1_000_000)
    comm.barrier()
    start = comm.stats()
    for _ in range(3):
        comm.all_reduce(x)
    after_blocking = comm.stats()
    for _ in range(3):
        work = comm.all_reduce(x, async_op=True)
        while not work.is_completed():
            a @ a
        work.wait()
    end = comm.stats()
    spent = lambda key, a, b: b[key] - a[key]
    return [
        [spent(f"{k}seconds", *ab) for k in ("", "exposed_", "hidden_")]
        for ab in ((start, after_blocking), (after_blocking, end))
    ]


def test_what_was_hidden(pool):
    for (total, exposed, overlapped), (total_async, exposed_async, hidden_async) in pool(2).run(hidden, limit=60):
        assert total > 0 and exposed == pytest.approx(total, rel=0.2) and overlapped <= 0.2 * total
        assert hidden_async > 0.5 * total_async and exposed_async < 0.5 * total_async
