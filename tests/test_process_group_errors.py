"""The backend when something is wrong or late, and when groups come and go."""

import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist
from backends import on
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import process_group


def errors():
    r, seen = dist.get_rank(), []

    def expect(kinds, fn):
        with pytest.raises(kinds) as caught:
            fn()
        seen.append(str(caught.value))

    expect(TypeError, lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
    expect(tricoll.CollectiveMismatch, lambda: dist.all_reduce(torch.ones(3 + r)))
    expect(ValueError, lambda: dist.broadcast(torch.ones(3), 17))
    expect(ValueError, lambda: process_group.communicator().broadcast(torch.ones(3), 17))
    x = torch.ones(3)
    dist.all_reduce(x)
    return seen, x[0].item()


def test_errors_and_the_call_after_them(pool):
    for seen, total in on(pool, 2, errors):
        assert total == 2.0 and "float32[3" in seen[1] and "float32[4" in seen[1]


def late(comm):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=60))
    if comm.rank == 2:
        time.sleep(3)
        return None
    start = time.monotonic()
    with pytest.raises(tricoll.CollectiveTimeout, match=r"\[2\]"):
        dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=1))
    took = time.monotonic() - start
    with pytest.raises(tricoll.CollectiveError, match="cannot be used"):
        dist.barrier()
    return took


def test_a_timeout_of_one_call_names_who_is_late(pool):
    first, second, _ = pool(3).run(late, limit=60)
    assert first < 2.5 and second < 2.5


def late_async(comm):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=3))
    if comm.rank == 1:
        time.sleep(4.5)
        return None
    work = dist.all_reduce(torch.ones(2), async_op=True)
    with pytest.raises(tricoll.CollectiveTimeout, match=r"within 0\.5 s"):
        work.wait(datetime.timedelta(seconds=0.5))
    with pytest.raises(tricoll.CollectiveError):
        work.wait()
    return True


def test_a_timeout_of_wait(pool):
    assert pool(2).run(late_async, limit=60) == [True, None]


def ddp_error(comm):
    """An error reaches DDP through the future of a Work, with its text."""
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=3))
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loss = model(torch.ones(1, 4)).sum()
    if comm.rank == 1:
        return None
    with pytest.raises(RuntimeError, match=r"ranks \[1\]"):
        loss.backward()
    return True


def test_an_error_in_ddp(pool):
    assert pool(2).run(ddp_error, limit=60) == [True, None]


def again(comm):
    """Case 32: groups come and go, in the same store."""
    totals = []
    for k in range(8):
        dist.init_process_group("tricoll", pg_options={"slot_bytes": 1 << 14})
        x = torch.full((100,), float(k + comm.rank))
        dist.all_reduce(x)
        totals.append(x[0].item())
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="initialized"):
        dist.all_reduce(torch.ones(1))
    return totals


def test_init_and_destroy_again_and_again(pool):
    assert pool(3).run(again, limit=100) == [[3.0 * k + 3 for k in range(8)]] * 3


def other_ranks(comm):
    """In one store, a group with a name that another one had, which had other ranks."""
    for members in ([0, 2], [0, 1, 2], [1, 2], [0, 1]):
        dist.init_process_group("tricoll", pg_options={"slot_bytes": 1 << 14})
        group = dist.new_group(members, pg_options={"slot_bytes": 1 << 14})
        x = torch.ones(5)
        if comm.rank in members:
            dist.all_reduce(x, group=group)
            assert x[0] == len(members)
        dist.destroy_process_group()


def test_a_group_is_not_taken_for_an_earlier_one_of_its_name(pool):
    pool(3).run(other_ranks, limit=60)


def late_for_a_group(comm):
    dist.init_process_group("tricoll")
    if comm.rank == 0:
        with pytest.raises(tricoll.CollectiveTimeout, match=r"rank 0: ranks \[1\] of 2 did not come to make the group"):
            dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    comm.barrier()


def test_a_group_that_a_rank_does_not_make(pool):
    pool(3).run(late_for_a_group, limit=60)


def sub_groups(comm):
    dist.init_process_group("tricoll")
    count = lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
    seen = []
    for _ in range(20):
        group = dist.new_group([0, 1], pg_options={"slot_bytes": 1 << 14})
        x = torch.ones(10)
        work = dist.all_reduce(x, group=group, async_op=True)
        work.wait()
        assert x[0] == 2
        del work
        dist.destroy_process_group(group)
        seen.append(count())
    dist.destroy_process_group()
    return seen


def test_nothing_grows_with_groups(pool):
    for seen in pool(2).run(sub_groups, limit=100):
        (files, threads), (files_early, threads_early) = seen[-1], seen[4]  # PyTorch's own come and stay
        # A thread may be on its way out, or PyTorch's next one have come; 15 groups would leave 15.
        assert files <= files_early and threads <= threads_early + 3, seen


def wrong_options(comm):
    dist.init_process_group("tricoll", pg_options=3)


def test_options_that_are_none(pool):
    for error in pool(2).outcomes(wrong_options, limit=60):
        assert isinstance(error, TypeError) and "slot_bytes" in str(error)


def name_of_the_default_group():
    return dist.group.WORLD.group_name


def test_a_group_that_could_not_be_made_has_used_up_no_name(pool):
    """DTensor remembers the names of groups by their ranks: those of a pool's next run must be the same."""
    before = on(pool, 2, name_of_the_default_group)
    pool(2).outcomes(wrong_options, limit=60)
    assert on(pool, 2, name_of_the_default_group) == before
