"""Timing: seconds a call, by the clock, and by events where work is done on a stream."""

import time
import types

import pytest
import torch

from tricoll.timing import timed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_clock():
    calls = []
    seconds = timed(lambda: (calls.append("call"), time.sleep(0.01)), 3, CPU, between=lambda: calls.append("between"))
    assert calls == ["call", "between"] * 3
    assert 0.01 <= seconds < 0.1


@pytest.fixture
def stream(monkeypatch):
    """A stream that is 7 ms further at each call: what events on it say, and what the host has waited for."""
    made = types.SimpleNamespace(now=100.0, waited=0, calls=0)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = made.now

        def synchronize(self):
            made.waited += 1

        def elapsed_time(self, other):
            assert made.waited
            return other.at - self.at  # milliseconds

    def call():
        made.calls += 1
        made.now += 7.0

    made.call = call
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return made


def test_events(stream):
    """What the host takes does not count, and the work has been waited for."""
    assert timed(lambda: (stream.call(), time.sleep(0.05)), 4, GPU) == pytest.approx(7e-3)
    assert (stream.calls, stream.waited) == (4, 1)


def test_only_the_host(stream):
    """-C: nothing is waited for."""
    assert timed(stream.call, 4, GPU, cpu_time=True) < 7e-3
    assert (stream.calls, stream.waited) == (4, 0)
