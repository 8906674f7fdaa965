"""Calls that are put on a stream, as on a GPU: order, errors and graphs, with threads for streams and real kernels."""

import logging
import re
import threading
import time

import pytest
import torch
from enqueued import enqueuing, over, poll

import tricoll
from tricoll import testing
from tricoll.enqueue import StreamQueue
from tricoll.fabric.board import LEFT


def outcome(call):
    """What a call raises, or returns."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# What goes well


def calls_of_all_kinds(comm):
    with enqueuing(comm, "kinds") as c:
        mine = torch.arange(1000.0) * (c.rank + 1)
        first = mine.clone()
        c.all_reduce(first)
        second = c.all_reduce(mine.clone(), "avg", algo="two_shot", async_op=True)
        third = c.all_gather(mine[:10])
        fourth = c.broadcast(mine.clone(), 1, async_op=True)
        pair = torch.zeros(7)
        other = (c.rank + 1) % c.world_size
        sent = c.send(torch.full((7,), c.rank + 1.0), other, async_op=True)
        got = c.recv(pair, (c.rank - 1) % c.world_size, async_op=True)
        for work in (second, fourth, sent, got):
            assert work.wait() and work.wait(20)
        c.barrier()
        assert all(work.is_completed() and work.is_success() for work in (second, fourth, sent, got))
        assert c._queue.pending == []
        assert second.get_future().wait() is second.result()
        return first, second.result(), over(c, third), fourth.result(), pair


def test_calls_of_all_kinds(pool):
    n = 3
    x = [torch.arange(1000.0) * (r + 1) for r in range(n)]
    for r, (first, second, third, fourth, pair) in enumerate(pool(n).run(calls_of_all_kinds, limit=60)):
        assert torch.equal(first, sum(x))
        assert torch.equal(second, sum(x) / n)
        assert torch.equal(third, torch.cat([t[:10] for t in x]))
        assert torch.equal(fourth, x[1])
        assert torch.equal(pair, torch.full((7,), (r - 1) % n + 1.0))


def many(comm):
    with enqueuing(comm, "many") as c:
        outs = []
        for k in range(60):
            x = testing.make_inputs(c.world_size, (257,), torch.float32, "mixed", k)[c.rank].clone()
            outs.append(c.all_reduce(x, "avg", wire="bf16", algo="two_shot", async_op=k % 3 == 0))
        outs = [out.result() if isinstance(out, tricoll.Work) else out for out in outs]
        c.barrier()
        return outs


def test_many_calls_without_waiting(pool):
    results = pool(2).run(many, limit=60)
    for k in range(60):
        inputs = testing.make_inputs(2, (257,), torch.float32, "mixed", k)
        testing.check_all_reduce([r[k] for r in results], inputs, "avg", torch.bfloat16, "two_shot")


def nothing_is_waited_for(comm):
    with enqueuing(comm, "late", timeout=20.0) as c:
        start = time.monotonic()
        if c.rank == 1:
            time.sleep(1.0)
        x = torch.ones(10)
        work = c.all_reduce(x, async_op=True)
        c.all_reduce(torch.ones(5))
        spent = time.monotonic() - start
        early = work.is_completed()
        assert work.wait(15) and work.is_completed()
        return spent, early, x[0].item()


def test_the_caller_waits_for_nobody(pool):
    (spent, early, value), (_, _, other) = pool(2).run(nothing_is_waited_for, limit=60)
    assert spent < 0.9 and not early
    assert value == other == 2


def order_on_the_device(comm):
    with enqueuing(comm, "order") as c:
        x = torch.ones(4)
        c.all_reduce(x, async_op=True)
        c._executor.streams.log.clear()
        c.all_reduce(x)  # on the caller's stream: behind the one that is on the communicator's own
        log = list(c._executor.streams.log)
        c.all_reduce(x, async_op=True)
        c.barrier()
        kept = list(c._executor.streams.kept)
        assert x.data_ptr() in kept
        return log, x[0].item()


def test_a_call_follows_the_one_before_it_on_another_stream(pool):
    for log, value in pool(2).run(order_on_the_device, limit=60):
        assert log[0] == ("wait", "default")
        assert value == 8


# What goes wrong


def late(comm):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("tricoll").addHandler(handler)
    with enqueuing(comm, "absent", timeout=1.5) as c:
        first = torch.ones(3)
        c.all_reduce(first)
        c.barrier()
        if c.rank == 2:  # takes no part in the next call, and keeps its side of the board
            time.sleep(4)
            return "absent"
        x = torch.ones(100)
        work = c.all_reduce(x, async_op=True)
        said = [outcome(lambda: work.wait(0.3))]
        work.wait()  # returns
        time.sleep(3)
        said += [outcome(work.wait), outcome(lambda: c.all_reduce(x)), work.is_success(), repr(c._queue.pending)]
        return said, records


def test_an_absent_rank_is_named_while_the_call_runs_and_after_it(pool):
    *present, absent = pool(3).run(late, limit=60)
    assert absent == "absent"
    for said, records in present:
        assert "has not finished within 0.3 s. Ranks [2] have not begun" in said[0]
        for text in said[1:3]:
            assert text.startswith("CollectiveTimeout: rank ") and "call 3, all_reduce(float32[100]" in text
            assert "ranks [2] did not take part within 1.5 s" in text
        assert said[3:] == [False, "[]"]
        assert any(
            re.search(r"has waited for \d\.\d s\. Late: rank 2 is in its call 2 barrier", line) for line in records
        ), records


def one_leaves_after_its_error(comm):
    with enqueuing(comm, "leaves", timeout=1.0) as c:
        c.all_reduce(torch.ones(3))
        c.barrier()
        if c.rank == 2:  # takes no part, and is there to the end
            assert poll(lambda: c._fabric.peek(1, LEFT)[0], 20)
            return None
        if c.rank == 1:  # is a call ahead, and looks at the others when rank 0 has closed
            c._fabric.pause = lambda until, timeout: poll(lambda: c._fabric.peek(0, LEFT)[0], 20)
        calls = [c.all_reduce(torch.ones(100), async_op=True) for _ in range(1 + c.rank)]
        return outcome(lambda: calls[0].wait(20))


def test_a_rank_that_has_told_its_error_and_left_is_not_taken_for_the_culprit(pool):
    *said, absent = pool(3).run(one_leaves_after_its_error, limit=60)
    assert absent is None
    for text in said:
        assert "ranks [2] did not take part within 1 s" in text


def different(comm):
    with enqueuing(comm, "different", timeout=20.0) as c:
        c.all_reduce(torch.ones(3))
        x = torch.ones(64 if c.rank else 96)
        c.all_reduce(x, algo="ring")
        start = time.monotonic()
        said = outcome(c.barrier)
        return said, outcome(lambda: c.all_reduce(torch.ones(3))), time.monotonic() - start


def test_ranks_in_different_calls_are_told_what_each_of_them_does(pool):
    for said, again, seconds in pool(2).run(different, limit=60):
        assert said == again
        assert said.startswith("CollectiveMismatch: rank ") and "call 2, all_reduce(float32[" in said
        assert "float32[64]" in said and "float32[96]" in said
        assert seconds < 8, "nobody waits out a timeout"


def refused(comm):
    with enqueuing(comm, "refused", timeout=20.0) as c:
        said = [outcome(lambda: c.all_gather(torch.ones(4), sizes=[4, 4] if c.rank else [3, 4]))]
        said.append(outcome(c.barrier))
        return said


def test_bad_arguments_on_one_rank(pool):
    (mine, after), (_, other) = pool(2).run(refused, limit=60)
    assert mine.startswith("ValueError: x of rank 0 has shape (4,)")
    assert after.startswith("CollectiveMismatch") and other.startswith("CollectiveMismatch")
    assert "refused, x of rank 0" in other


def checked(comm):
    with enqueuing(comm, "checked", timeout=20.0, check=True) as c:
        said = outcome(lambda: c.all_reduce(torch.ones(4 + c.rank)))
        x = torch.ones(4)
        c.all_reduce(x)
        c.barrier()
        return said, x[0].item()


def test_check_finds_it_before_data_move_and_the_next_call_works(pool):
    for said, value in pool(2).run(checked, limit=60):
        assert "the ranks make different calls" in said
        assert value == 2


def left_alone(comm):
    c = enqueuing(comm, "alone", timeout=30.0)
    work = c.all_reduce(torch.ones(9), async_op=True) if c.rank == 0 else None
    start = time.monotonic()
    c.abort()
    return time.monotonic() - start, work and outcome(work.wait), outcome(lambda: c.all_reduce(torch.ones(2)))


def test_abort_has_the_device_give_up(pool):
    (seconds, waited, after), _ = pool(2).run(left_alone, limit=60)
    assert seconds < 5
    assert "was given up: the communicator was destroyed" in waited
    assert "cannot be used (destroyed)" in after


def any_source(comm):
    with enqueuing(comm, "any") as c:
        return outcome(lambda: c.recv(torch.ones(2), None))


def test_a_receive_from_any_rank_is_refused(pool):
    assert all("name the source" in said for said in pool(2).run(any_source, limit=60))


# Graphs


def captured(comm):
    with enqueuing(comm, "graph", timeout=20.0) as c:
        x, y, seen = torch.zeros(300), torch.zeros(40), []
        step = lambda: (c.all_reduce(x), c.all_reduce(y, "max", async_op=True).wait())
        streams = c._executor.streams
        streams.graph = []
        cold = outcome(step)
        streams.graph = None
        step()  # makes the tables
        c.barrier()
        streams.graph = graph = []
        step()
        streams.graph = None
        assert len(graph) == 2
        pending = len(c._queue.pending)
        for k in range(4):
            over(c, x)  # the stream has come so far, so this thread may write to it
            x.fill_(c.rank + k)
            y.fill_(c.rank - k)
            for task in graph:  # a replay, on the current stream
                streams.put(task)
            seen.append((over(c, x)[0].item(), over(c, y)[0].item()))
            if k % 2:
                z = torch.full((50,), 2.0)
                c.all_reduce(z, async_op=k == 3)
                c.barrier()
                seen.append(z[0].item())
        return cold, pending, seen


def test_a_graph_is_replayed_among_other_calls(pool):
    for cold, pending, seen in pool(2).run(captured, limit=60):
        assert cold.startswith("RuntimeError") and "while a graph is captured" in cold
        assert pending == 0
        assert seen == [(1, 1), (3, 0), 4, (5, -1), (7, -2), 4]


def broken_replay(comm):
    with enqueuing(comm, "broken", timeout=1.0) as c:
        x = torch.ones(30)
        c.all_reduce(x)
        c.barrier()
        c._executor.streams.graph = graph = []
        c.all_reduce(x)
        c._executor.streams.graph = None
        if c.rank == 0:
            c._executor.streams.put(graph[0])
            time.sleep(2.5)
            return outcome(lambda: c.all_reduce(x))
        time.sleep(3)


def test_a_replay_that_fails_is_noticed(pool):
    said, _ = pool(2).run(broken_replay, limit=60)
    assert said.startswith("CollectiveTimeout: rank 0") and "all_reduce(float32[30]" in said


# The queue by itself


class Fake:
    """Streams that record what is asked of them."""

    def __init__(self):
        self.log, self.now, self.events = [], "main", 0

    def current(self):
        return self.now

    def own(self, name):
        return f"own {name}"

    def on(self, stream):
        class On:
            def __enter__(_):
                self.before, self.now = self.now, stream

            def __exit__(_, *__):
                self.now = self.before

        return On()

    def record(self, stream):
        self.events += 1
        return f"event {self.events} of {stream}"

    def wait(self, stream, event):
        self.log.append(f"{stream} waits for {event}")

    def done(self, event):
        return True

    def capturing(self):
        return False


def test_lanes_wait_for_collectives_and_for_their_own_kind_only():
    streams = Fake()
    q = StreamQueue(streams, lambda: None)
    put = lambda lane: q.submit(q.work(q, "x", lambda: None, None, lane))
    put(None)
    streams.log.clear()
    put(("send", 1))
    put(("recv", 1))
    assert streams.log == [
        "own ('send', 1) waits for event 3 of main",
        "own ('send', 1) waits for event 2 of own None",
        "own ('recv', 1) waits for event 5 of main",
        "own ('recv', 1) waits for event 2 of own None",
    ]
    streams.log.clear()
    put(None)
    assert streams.log == [
        "own None waits for event 7 of main",
        "own None waits for event 4 of own ('send', 1)",
        "own None waits for event 6 of own ('recv', 1)",
    ]


def barrier_holds_up(comm):
    with enqueuing(comm, "barrier") as c:
        if c.rank == 1:
            time.sleep(0.7)
        start = time.monotonic()
        work = c.barrier(async_op=True)
        enqueued = time.monotonic() - start
        work.wait()
        return enqueued, time.monotonic() - start


def test_a_barrier_holds_its_caller_up(pool):
    (enqueued, seconds), _ = pool(2).run(barrier_holds_up, limit=60)
    assert enqueued < 0.4 < seconds


def test_an_error_while_enqueuing_is_the_callers():
    q = StreamQueue(Fake(), lambda: None)

    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        q.call(q.work(q, "x", broken, None))
    work = q.submit(q.work(q, "x", broken, None))
    with pytest.raises(ValueError, match="no"):
        work.wait()
    assert threading.current_thread() and not q.inside
