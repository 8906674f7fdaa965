"""Calls with async_op=True that do not end as they should: absent peers, wrong arguments, giving up, and destroying."""

import gc
import time
import weakref
from datetime import timedelta

import pytest
import torch

import tricoll
from tricoll import communicator


def wrong_tag(comm):
    if comm.rank:
        comm.send(torch.ones(3), 0, tag=5)
    else:
        comm.recv(torch.empty(3), 1, tag=6)


def test_a_tag_that_the_receiver_does_not_expect(pool):
    error, nothing = pool(2).outcomes(wrong_tag, limit=60)
    assert isinstance(error, tricoll.CollectiveMismatch) and nothing is None


def absent(comm, kind):
    if comm.rank == 2:
        time.sleep(4)
        return None
    if kind == "collective":
        work = comm.all_reduce(torch.ones(4), async_op=True)
    else:
        work = comm.recv(torch.ones(4), 2, async_op=True)
    queued = comm.all_reduce(torch.ones(4), async_op=True)
    for nonsense in (-1, float("nan"), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="it must be positive, or None or 0"):
            work.wait(nonsense)
    start, messages = time.monotonic(), []
    for each in (work, queued):
        with pytest.raises(tricoll.CollectiveTimeout) as caught:
            each.wait(timeout=1.0)
        messages.append(str(caught.value))
    took = time.monotonic() - start
    assert not work.is_completed() and work.exception() is None
    with pytest.raises(tricoll.CollectiveError) as late:
        work.wait()  # the communicator's own timeout, 3 s
    with pytest.raises(tricoll.CollectiveError):
        queued.wait()
    with pytest.raises(tricoll.CollectiveError, match="cannot be used"):
        comm.barrier()
    return took, messages, str(late.value)


@pytest.mark.parametrize("kind", ["collective", "pair"])
def test_case_29_an_absent_peer(pool, kind):
    for outcome in [o for o in pool(3).run(absent, kind, limit=60, timeout=3) if o]:
        took, (first, queued), late = outcome
        assert 1.9 < took < 3.0
        assert "within 1 s" in first and ("[2]" in first if kind == "collective" else "Rank 2" in first)
        assert "queued behind" in queued
        assert "2" in late


def refused_while_pending(comm):
    slow = [comm.all_reduce(torch.full((100_000,), 1.0), async_op=True) for _ in range(5)]
    if comm.rank == 1:
        with pytest.raises(TypeError):
            comm.all_reduce("no tensor", async_op=True)
    else:
        work = comm.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(tricoll.CollectiveMismatch, match="refused"):
            work.wait()
        assert isinstance(work.exception(), tricoll.CollectiveMismatch) and not work.is_success()
    after = comm.all_reduce(torch.ones(3))
    return [w.result()[0].item() for w in slow], after[0].item()


@pytest.mark.parametrize("check", [True, False])
def test_a_wrong_argument_is_an_error_at_once_and_the_next_call_works(pool, check):
    # Without the check, a refusal is only told from a late call when those that use other links have waited for it.
    assert pool(3).run(refused_while_pending, check=check, timeout=5.0, limit=60) == [([3.0] * 5, 3.0)] * 3


def waits_in_a_callback(comm):
    time.sleep(0.2 * (comm.rank == 1))  # the others add their callback before the first call has finished
    first = comm.all_reduce(torch.ones(2), async_op=True)
    later = []
    chained = first.get_future().then(lambda f: later[0].wait())
    later.append(comm.all_reduce(torch.ones(2), async_op=True))
    later[0].wait()
    try:
        return str(chained.wait())
    except RuntimeError as error:
        return str(error)


def test_a_callback_that_waits_for_a_later_call_is_told(pool):
    outcomes = pool(3).run(waits_in_a_callback, limit=60)
    assert all("chain callbacks" in outcome for outcome in outcomes if outcome != "True")
    assert any("chain callbacks" in outcome for outcome in outcomes)


def error_in_a_future(comm):
    if comm.rank == 1:
        return None
    work = comm.all_reduce(torch.ones(2), async_op=True)
    with pytest.raises(RuntimeError, match=r"CollectiveTimeout|PeerFailure") as caught:
        work.get_future().wait()
    assert "[1]" in str(caught.value)
    with pytest.raises(tricoll.CollectiveError):
        work.result()
    return True


def test_an_error_reaches_the_future(pool):
    assert pool(2).run(error_in_a_future, timeout=2, limit=60) == [True, None]


def destroyed(comm, store_of, absent_rank):
    """Returns how long destroy() took, and what became of the works."""
    works = [comm.all_reduce(torch.full((1000,), 1.0), async_op=True) for _ in range(3)]
    if comm.rank == absent_rank:
        return None
    if absent_rank is not None:
        works += [comm.all_reduce(torch.ones(1), async_op=True) for _ in range(5)]
    start = time.monotonic()
    comm.destroy()
    comm.destroy()
    took = time.monotonic() - start
    with pytest.raises(tricoll.CollectiveError, match="destroyed"):
        comm.all_reduce(torch.ones(1))
    return took, [type(w.exception()).__name__ for w in works]


def test_destroy_finishes_what_is_pending(pool):
    for took, kinds in pool(3).run(destroyed, None, None, limit=60):
        assert took < 3 and kinds == ["NoneType"] * 3


def test_destroy_with_an_absent_peer_ends(pool):
    for outcome in pool(3).run(destroyed, None, 1, limit=60, timeout=2)[::2]:
        took, kinds = outcome
        assert took < 6
        assert kinds[:3] == ["NoneType"] * 3 and "NoneType" not in kinds[3:]


def given_up(comm, how):
    """A receive that nobody answers, and a collective that rank 0 does not join."""
    if comm.rank == 0:
        time.sleep(1.0)
        start = time.monotonic()
        with pytest.raises(tricoll.CollectiveError, match=r"\[\d"):  # those that have left
            comm.all_reduce(torch.ones(3))
        return time.monotonic() - start
    works = []
    if comm.rank == 1:
        works.append(comm.recv(torch.ones(3), 0, async_op=True))
    works += [comm.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
    time.sleep(0.2)
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(communicator, "PATIENCE", 1.0)
        comm.abort() if how == "abort" else comm.destroy()
    took = time.monotonic() - start
    for work in works:
        # Ours, or that of a rank that was quicker.
        with pytest.raises(tricoll.CollectiveError, match=r"destroyed|\[\d\] are gone"):
            work.wait()
    return took


@pytest.mark.parametrize("how", ["abort", "destroy"])
def test_giving_up_does_not_take_the_timeout(pool, how):
    first, *others = pool(3).run(given_up, how, timeout=60, limit=50)
    assert first < 5
    assert all((0.9 if how == "destroy" else 0.0) < took < 4 for took in others)


def errors_keep_nothing(comm):
    """A failed call's error does not keep its communicator in a circle of references that only the collector breaks."""
    gc.disable()
    try:
        mine = tricoll.init(slot_bytes=1 << 14)
        alive = weakref.ref(mine)
        with pytest.raises(tricoll.CollectiveMismatch):
            mine.all_reduce(torch.ones(3 + comm.rank))
        work = mine.all_reduce(torch.ones(3 + comm.rank), async_op=True)
        with pytest.raises(tricoll.CollectiveMismatch):
            work.wait()
        with pytest.raises(tricoll.CollectiveMismatch):
            work.result()
        tricoll.destroy()
        del mine, work
        return alive() is None
    finally:
        gc.enable()


def test_errors_keep_nothing(pool):
    assert pool(2).run(errors_keep_nothing, limit=60) == [True] * 2


def test_a_callback_that_destroys_its_communicator(pool):
    """An error at once: it would wait for itself, for 40 s."""

    def work(comm):
        handle = comm.all_reduce(torch.ones(3), async_op=True)
        seen = handle.get_future().then(lambda _: comm.destroy())
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="destroys it, which waits for that call to end"):
            seen.wait()
        assert time.monotonic() - start < 10
        return comm.all_reduce(torch.ones(3)).tolist()

    assert pool(2).run(work) == [[2.0] * 3] * 2
