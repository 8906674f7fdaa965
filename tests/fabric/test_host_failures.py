"""Ranks that are late, absent, killed or of another opinion: everybody hears of it in time, and by name."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import tricoll
from tricoll import control
from tricoll.fabric import host
from tricoll.pool import RankError

TIMEOUT = 2.0
CHECKS = pytest.mark.parametrize("check", [True, False], ids=["checked", "by fingerprint"])


def attempt(call):
    """What a rank saw: (seconds, the exception's type and text, or the result)."""
    start = time.monotonic()
    try:
        outcome = call()
    except tricoll.CollectiveError as error:
        outcome = (type(error), str(error))
    return time.monotonic() - start, outcome


def assert_named(outcomes, culprit, kinds, limit):
    """Every rank but the culprit saw an error of these kinds that names it, within the limit."""
    for rank, outcome in enumerate(outcomes):
        if rank != culprit:
            seconds, (kind, text) = outcome
            assert kind in kinds, (rank, kind, text)
            # Others that have failed for the same reason may have left by now, and are named, too.
            assert re.search(rf"ranks \[(\d+, )*{culprit}[\],]", text), (rank, text)
            assert f"rank {rank}, call" in text
            assert seconds < limit, (rank, seconds, text)


@CHECKS
def test_case_31d_a_late_rank_is_waited_for(pool, check):
    """5 s late with a timeout of 30 s: the right result."""

    def work(comm):
        if comm.rank == 3:
            time.sleep(5)
        return comm.all_reduce(torch.full((10,), float(comm.rank))).tolist()

    assert pool(4).run(work, check=check) == [[6.0] * 10] * 4


@CHECKS
def test_case_31c_a_rank_that_never_comes(pool, check):
    def work(comm):
        if comm.rank == 3:
            time.sleep(2 * TIMEOUT)
            return None
        return attempt(lambda: comm.all_reduce(torch.ones(10)))

    outcomes = pool(4).run(work, check=check, timeout=TIMEOUT)
    assert_named(outcomes, 3, [tricoll.CollectiveTimeout], TIMEOUT + 2)


@CHECKS
def test_case_31b_a_rank_that_raises(pool, check):
    """The others need not wait for the timeout, and the rank's own exception is what the caller gets."""

    def work(comm):
        if comm.rank == 2:
            raise ZeroDivisionError("rank 2's own")
        return attempt(lambda: comm.all_reduce(torch.ones(10)))

    outcomes = pool(4).outcomes(work, check=check, timeout=10 * TIMEOUT)
    assert_named(outcomes, 2, [tricoll.PeerFailure], TIMEOUT)
    with pytest.raises(ZeroDivisionError, match="rank 2's own"):
        pool(4).run(work, check=check)


@CHECKS
@pytest.mark.parametrize("when", ["before", "during"])
def test_case_31a_a_killed_rank(pool, check, when):
    def work(comm):
        x = torch.ones(1 << 20)
        comm.all_reduce(x)
        if comm.rank == 2 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 2:
            subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -KILL {os.getpid()}"])

        def calls():
            for _ in range(100_000):
                comm.all_reduce(x)

        return attempt(calls)

    outcomes = pool(4).outcomes(work, check=check, timeout=10.0)
    assert_named(outcomes, 2, [tricoll.PeerFailure], 5.0)
    assert isinstance(outcomes[2], tricoll.PeerFailure) and "signal 9" in str(outcomes[2])


@CHECKS
def test_case_31e_a_stopped_rank(pool, check):
    def work(comm):
        if comm.rank == 1:
            subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -STOP {os.getpid()}; sleep 8; kill -CONT {os.getpid()}"])

        def calls():
            for _ in range(100_000):
                comm.all_reduce(torch.ones(1 << 18))

        return attempt(calls)

    outcomes = pool(4).run(work, check=check, timeout=TIMEOUT)
    assert_named(outcomes, 1, [tricoll.CollectiveTimeout], 0.3 + TIMEOUT + 2)


def test_a_rank_that_gave_up_in_the_call_before_is_not_the_culprit(pool):
    """Ranks 3 and 0 only send in call 1, and are in call 2 when rank 2, to which rank 1 sends nothing, gives up."""

    def work(comm):
        if comm.rank == 1:
            return time.sleep(4.0)
        control.GRACE = 0.1 if comm.rank == 2 else 1.0  # rank 2 leaves while the others still listen

        def calls():
            comm.reduce(torch.ones(3), 2)
            comm.all_reduce(torch.ones(3))

        try:
            return attempt(calls)
        finally:
            control.GRACE = 1.0

    outcomes = pool(4).run(work, check=False, timeout=1.0)
    assert_named(outcomes, 1, [tricoll.CollectiveTimeout], 4.0)
    for rank, call in ((0, 2), (2, 1), (3, 2)):
        assert outcomes[rank][1][1].startswith(f"rank {rank}, call {call}, ")
    assert "rank 2: channel 0 waited for data from rank 1" in outcomes[3][1][1]


def test_a_communicator_that_failed_says_so(pool):
    """After a timeout the next call fails at once, and a new communicator works."""

    def work(comm):
        first = attempt(lambda: comm.all_reduce(torch.ones(3))) if comm.rank == 0 else time.sleep(1.0)
        second = attempt(lambda: comm.all_reduce(torch.ones(3)))
        return first, second

    (first, second), *_ = pool(2).run(work, timeout=0.5)
    assert first[1][0] is tricoll.CollectiveTimeout
    assert second[0] < 0.1 and "cannot be used" in second[1][1] and "ranks [1]" in second[1][1]
    assert pool(2).run(lambda comm: comm.all_reduce(torch.ones(1)).item()) == [2.0, 2.0]


def differing_calls():
    """Cases 13 and 14: what rank 1 does, and what the others do."""
    f32, bf16 = torch.float32, torch.bfloat16
    return {
        "409600 and 409598 elements": ([("all_reduce", (409598,), f32)], [("all_reduce", (409600,), f32)]),
        "twice the rows": ([("all_reduce", (200, 2560), f32)], [("all_reduce", (100, 2560), f32)]),
        "none and some": ([("all_reduce", (0,), f32)], [("all_reduce", (4,), f32)]),
        "equal bytes": ([("all_reduce", (4,), bf16)], [("all_reduce", (2,), f32)]),
        "types": ([("all_reduce", (4,), torch.int32)], [("all_reduce", (4,), f32)]),
        "ops": ([("all_reduce", (4,), f32, "avg")], [("all_reduce", (4,), f32, "sum")]),
        "collectives": ([("all_gather", (4,), f32)], [("all_reduce", (4,), f32)]),
        "scatter sizes": ([("reduce_scatter", (8,), f32)], [("reduce_scatter", (4,), f32)]),
        "gather sizes": ([("all_gather", (8,), f32)], [("all_gather", (4,), f32)]),
    }


@CHECKS
@pytest.mark.parametrize("name", differing_calls())
def test_cases_13_and_14_different_calls(pool, check, name):
    """Every rank gets a CollectiveMismatch with both sides, its tensors are untouched, and the next call works."""
    (theirs,), (ours,) = differing_calls()[name]

    def work(comm):
        collective, shape, dtype, *op = theirs if comm.rank == 1 else ours
        x = torch.full(shape, 7, dtype=dtype)
        seconds, outcome = attempt(lambda: getattr(comm, collective)(x, *op))
        untouched = bool((x == 7).all())
        again = comm.all_reduce(torch.full((3,), float(comm.rank))).tolist()
        return seconds, outcome, untouched, again

    # The limit is the timeout's, because calls that use different links, as those of 16-bit and other types do, are
    # only told apart when both sides have waited for each other.
    outcomes = pool(4).run(work, check=check, timeout=TIMEOUT)
    for rank, (seconds, (kind, text), untouched, again) in enumerate(outcomes):
        assert kind is tricoll.CollectiveMismatch
        assert f"rank {rank}, call 1" in text and "ranks [0, 2, 3]: " in text and "rank [1]: " in text
        assert untouched and again == [6.0] * 3 and seconds < TIMEOUT + 2


@CHECKS
def test_a_refused_call_is_an_error_on_all_ranks(pool, check):
    """The rank with the bad argument gets its own error; the others hear why. The next call works."""

    def work(comm):
        try:
            comm.all_reduce(torch.ones(4), op="median" if comm.rank == 2 else "sum")
        except (TypeError, tricoll.CollectiveMismatch) as error:
            return type(error), str(error), comm.all_reduce(torch.ones(1)).item()

    for rank, (kind, text, after) in enumerate(pool(3).run(work, check=check, timeout=TIMEOUT)):
        assert kind is (TypeError if rank == 2 else tricoll.CollectiveMismatch)
        assert "median" in text and after == 3.0


def test_case_13_same_size_in_another_shape_is_allowed(pool):
    """The documented choice, as torch's: only the number of elements counts."""

    def work(comm):
        return comm.all_reduce(torch.ones((2, 3) if comm.rank else (3, 2))).shape

    assert pool(2).run(work) == [(3, 2), (2, 3)]


def test_case_34_a_heap_larger_than_shm(pool, monkeypatch):
    """An error on all ranks that says need, have and setting, before anything is touched; and not a bus error."""
    space = os.statvfs(host.SHM)
    too_much = 2 * space.f_blocks * space.f_frsize // 128 * 128

    for outcome in pool(2).outcomes(lambda comm: None, slot_bytes=too_much):
        assert isinstance(outcome, tricoll.HeapExhausted)
        text = str(outcome)
        assert "rank 0: needs" in text and "rank 1: needs" in text and "free of" in text and "slot_bytes" in text


def test_case_34_a_heap_too_small_on_one_rank_only(pool):
    """All ranks get the error, and it names the rank."""

    def work(comm):
        def no_space(size):
            raise OSError(28, "No space left on device")

        if comm.rank == 1:
            host.reserve = no_space
        try:
            with pytest.raises(tricoll.HeapExhausted, match=r"rank 1: needs .* bytes") as caught:
                tricoll.init()
            assert "rank 0" not in str(caught.value)
        finally:
            host.reserve = reserve

    reserve = host.reserve
    pool(2).run(work)


def test_case_34_a_small_heap_is_enough_for_a_large_call(pool):
    """Slots of 128 bytes and a message of 4 MiB: the data go through in pieces."""

    def work(comm):
        return bool((comm.all_reduce(torch.ones(1 << 18)) == 2).all())

    assert pool(2).run(work, slots=2, window=1, slot_bytes=4096) == [True, True]


def test_segments_have_no_name_and_are_freed(tmp_path):
    """A script whose ranks are all killed leaves nothing behind: there was never a name to leave."""
    script = """
import os, signal, torch, tricoll
def work(comm):
    print([name for name in os.listdir("/dev/shm") if not name.startswith(("sem.mp-", "vader_segment"))], flush=True)
    comm.all_reduce(torch.ones(1000))
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    try:
        tricoll.launch(work, 2)
    except tricoll.PeerFailure as error:
        print(error)
"""
    before = names()
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "killed by signal 9" in done.stdout, done
    assert done.stdout.count(f"{before}") == 2
    assert names() == before


def names():
    """What lies in /dev/shm, without what Python's multiprocessing and Open MPI remove at their own end."""
    return [name for name in os.listdir(host.SHM) if not name.startswith(("sem.mp-", "vader_segment"))]


def test_segments_are_their_users_alone(monkeypatch):
    """The file's mode lets nobody else read it."""
    fd = host.reserve(4096)
    try:
        status = os.fstat(fd)
        assert status.st_mode & 0o777 == 0o600 and status.st_nlink == 0 and status.st_blocks * 512 >= 4096
    finally:
        os.close(fd)


def test_nothing_grows(pool):
    """Case 32: communicators come and go; descriptors, threads and maps stay the same."""

    def work(comm):
        def census():
            with open("/proc/self/maps") as maps:
                return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(maps.readlines())

        counts = []
        gc.collect()  # what earlier tests in these processes have left
        for _ in range(12):
            with tricoll.init() as again:
                again.all_reduce(torch.ones(100))
            counts.append(census())
        return counts

    for counts in pool(2).run(work, slot_bytes=1 << 16):
        assert counts[-1][:2] == counts[3][:2]
        assert counts[-1][2] <= counts[3][2] + 2


def test_using_a_destroyed_communicator_is_an_error():
    with tricoll.init() as comm:
        assert comm.all_reduce(torch.ones(2)).tolist() == [1.0, 1.0]
    comm.destroy()
    with pytest.raises(tricoll.CollectiveError, match="destroyed"):
        comm.all_reduce(torch.ones(2))


def test_ranks_that_do_not_join_are_named(monkeypatch):
    """tricoll.init() in a world of which one rank never starts."""
    store = torch.distributed.HashStore()
    start = time.monotonic()
    with pytest.raises(tricoll.CollectiveTimeout, match=r"ranks \[1, 2\] of 3 did not join within 0.5 s"):
        host.HostFabric(store, 0, 3, timeout=0.5).allocate(1024, {})
    assert time.monotonic() - start < 2


def test_a_missing_variable_is_named(monkeypatch):
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=r"\['WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'\] are not set"):
        tricoll.init()


def test_a_rank_that_hangs_is_ended(pool):
    """A limit on a pool's run: the rank is killed and the pool says so."""
    outcomes = pool(2).outcomes(lambda comm: time.sleep(60) if comm.rank else "done", limit=1.0)
    assert outcomes[0] == "done" and isinstance(outcomes[1], RankError)


def test_ranks_end_with_their_parent(tmp_path):
    """A killed parent leaves no process behind, even if a rank is busy."""
    script = f"""
import os, pathlib, time, tricoll
def work(comm):
    pathlib.Path({str(tmp_path)!r}, f"pid{{comm.rank}}").write_text(f"{{os.getpid()}} ")
    time.sleep(60)
if __name__ == "__main__":
    tricoll.launch(work, 2)
"""
    (tmp_path / "script.py").write_text(script)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    within(60, lambda: sum(f.read_text().endswith(" ") for f in tmp_path.glob("pid?")) == 2)
    pids = [int(f.read_text()) for f in tmp_path.glob("pid?")]
    parent.kill()
    parent.wait()
    within(5, lambda: not any(alive(pid) for pid in pids))


def within(seconds, condition):
    """Wait until a condition holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@CHECKS
def test_a_call_that_is_interrupted_is_the_last(pool, check):
    """Ctrl-C while others are awaited, caught: the next call must not be taken for the one that was cut short."""

    def work(comm):
        if comm.rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not Python's where a shell said "&"
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(torch.ones(100_000))
            with pytest.raises(tricoll.CollectiveError, match="was cut short by KeyboardInterrupt"):
                comm.all_reduce(torch.ones(100_000))
            return None
        time.sleep(1.5)
        return attempt(lambda: comm.all_reduce(torch.ones(100_000)))

    seconds, (kind, text) = pool(2).run(work, check=check)[1]
    assert kind is tricoll.PeerFailure and "ranks [0] are gone" in text
    assert seconds < 5.0  # not the timeout of 30 s


def test_a_rank_that_interrupts_itself_before_it_takes_part(pool, monkeypatch):
    """Memory runs out while a tensor is made contiguous: its next call is not taken for this one."""

    def work(comm):
        if comm.rank == 0:
            with monkeypatch.context() as m:
                m.setattr("tricoll.executor.plain", lambda x: (_ for _ in ()).throw(MemoryError))
                with pytest.raises(MemoryError):
                    comm.all_reduce(torch.full((10,), 1.0))
        return attempt(lambda: comm.all_reduce(torch.full((10,), 2.0)))[1]

    first, second = pool(2).run(work, timeout=TIMEOUT)
    assert first[0] is tricoll.CollectiveError and "was cut short by MemoryError" in first[1]
    assert second[0] in (tricoll.PeerFailure, tricoll.CollectiveTimeout) and "ranks [0]" in second[1]


def test_a_forked_process_is_no_rank(pool):
    """A call that it makes would go into its parent's place; one that it ends with would take the parent away."""

    def work(comm):
        comm.all_reduce(torch.ones(3), async_op=True).wait()
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(tricoll.CollectiveError, match="was forked from it"):
                    comm.all_reduce(torch.ones(3))
                comm.destroy()
                os._exit(0)
            finally:
                os._exit(1)
        comm.barrier()
        assert os.waitpid(child, 0)[1] == 0
        return comm.all_reduce(torch.full((3,), comm.rank + 1.0)).tolist()

    assert pool(2).run(work) == [[3.0] * 3] * 2


FORK_AND_EXIT = """
import os, sys, threading, time, torch, tricoll
from tricoll.world import connect
import torch.distributed as dist

store, comms = dist.HashStore(), [None, None]
def join(r):
    comms[r] = connect(store, r, 2)
threads = [threading.Thread(target=join, args=(r,)) for r in range(2)]
[t.start() for t in threads], [t.join() for t in threads]
pending = comms[0].all_reduce(torch.ones(3), async_op=True)
time.sleep(0.2)
child = os.fork()
if child == 0:
    sys.exit(0)
start = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
print("ended after", time.monotonic() - start)
comms[1].all_reduce(torch.ones(3))
print("result", pending.result().tolist())
"""


def test_a_forked_process_ends_at_once():
    """Calls that its parent is in are not its own to wait for."""
    run = subprocess.run([sys.executable, "-c", FORK_AND_EXIT], capture_output=True, text=True, timeout=90)
    assert run.returncode == 0, run.stderr
    assert "result [2.0, 2.0, 2.0]" in run.stdout
    assert float(re.search(r"ended after (\S+)", run.stdout)[1]) < 4.0  # it was 15


def test_ranks_may_have_children(pool):
    """The workers of a DataLoader."""

    def work(comm):
        data = torch.utils.data.DataLoader(list(range(8)), num_workers=1)
        return sum(int(batch) for batch in data)

    assert pool(2).run(work) == [28, 28]
