"""A host fabric whose launches return at once, as a GPU's do: streams are threads that work off what is put on them."""

import contextlib
import queue
import threading
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from tricoll.communicator import Communicator
from tricoll.fabric.host import HostFabric


class Stream:
    """Runs one thing after another."""

    def __init__(self, name):
        self.name, self.todo = name, queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True, name=f"stream {name}").start()

    def run(self):
        while True:
            self.todo.get()()


class Streams:
    """tricoll.fabric.base.Streams. ``graph``: while it is a list, launches are added to it instead of being made."""

    def __init__(self):
        self.here = threading.local()
        self.default, self.owned = Stream("default"), {}
        self.graph, self.log, self.kept = None, [], []

    def current(self):
        return getattr(self.here, "stream", self.default)

    def own(self, name):
        if name not in self.owned:
            self.owned[name] = Stream(name)
        return self.owned[name]

    @contextlib.contextmanager
    def on(self, stream):
        before, self.here.stream = self.current(), stream
        try:
            yield
        finally:
            self.here.stream = before

    def put(self, task):
        if self.graph is not None:
            self.graph.append(task)
        else:
            self.current().todo.put(task)

    def record(self, stream):
        assert self.graph is None, "an event of a capture means nothing outside of it"
        event = threading.Event()
        self.log.append(("record", stream.name))
        stream.todo.put(event.set)
        return event

    def wait(self, stream, event):
        assert self.graph is None, "a capture cannot wait for what was enqueued before it"
        self.log.append(("wait", stream.name))
        stream.todo.put(event.wait)

    def done(self, event):
        return event.is_set()

    def capturing(self):
        return self.graph is not None

    def keep(self, tensors):
        if self.current() is not self.default:
            self.kept += [tensor.data_ptr() for tensor in tensors]

    def upload(self, values):
        if self.capturing():
            raise RuntimeError("tables cannot be copied while a graph is captured")
        return values.clone()

    def read(self, words):
        return [tensor.tolist() for tensor in words]

    def write(self, words, value):
        for tensor in words:
            tensor.fill_(value)


def poll(until, timeout):
    """Wait as a kernel does: by its clock alone. False if the condition does not come."""
    deadline = time.monotonic() + timeout
    while not until():
        if time.monotonic() > deadline:
            return False
        time.sleep(20e-6)
    return True


class EnqueuingFabric(HostFabric):
    """A HostFabric with streams."""

    name = "enqueuing"

    def __init__(self, store, rank, world_size, timeout):
        super().__init__(store, rank, world_size, timeout)
        self.streams = Streams()

    # A kernel on a GPU knows nothing but its memory and the clock: the host cannot stop it otherwise.

    def poll(self, until, timeout):
        return poll(until, timeout)

    def pause(self, until, timeout):
        return until() or super().poll(until, timeout)

    def launch(self, kernel, channels, arguments):
        self.streams.put(lambda: super(EnqueuingFabric, self).launch(kernel, channels, arguments))


def enqueuing(comm, name, timeout=30.0, check=False):
    """A communicator of the same ranks whose calls are enqueued."""
    store = dist.PrefixStore(f"enqueuing/{name}", comm._fabric.store)
    fabric = EnqueuingFabric(store, comm.rank, comm.world_size, timeout)
    settings = replace(comm._settings, multicast=False)
    return Communicator(fabric, settings, timeout, check, comm._profile)


def over(comm, out):
    """What a synchronous call has returned, once the stream has come so far."""
    done = comm._executor.streams.record(comm._executor.streams.current())
    assert done.wait(20)
    return torch.as_tensor(out).clone()
