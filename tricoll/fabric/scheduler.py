"""Who runs next in a simulation, and which put arrives next: the programs of all ranks are greenlets of one process."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet

from tricoll.kernels import jit

from .cpu import poke_word


@dataclass
class Put:
    """A put that has started and has not arrived."""

    rank: int
    dest: int
    source: int
    nbytes: int
    flag: int  # 0: none
    word: int
    data: Any = None  # keeps the source alive, if it is nobody's memory


class Task:
    """A greenlet and what it waits for."""

    def __init__(self, name: str, body: Callable[[], None], parent: greenlet, clock: Callable[[], float]) -> None:
        self.name, self.clock = name, clock
        self.greenlet = greenlet(body, parent)
        self.ready: Callable[[], bool] | None = None
        self.give_up = False  # set by the scheduler when nobody can go on
        self.bound: Any = None  # the program that device functions act for while this task runs
        self.pace = 0.0  # how often it is drawn, compared with others; 0: not known yet


class Scheduler:
    """Says which task runs next and which put arrives next: draws them, or goes by virtual time if all is prompt."""

    def __init__(self, seed: int, adversarial: bool) -> None:
        self.random = random.Random(seed)
        self.adversarial = adversarial
        self.tasks: list[Task] = []
        self.puts: list[Put] = []
        self.current: Task | None = None
        self.main = getcurrent()
        self.deadlock: list[str] = []
        self.paces: dict[str, float] = {}

    def spawn(self, name: str, body: Callable[[], None], clock: Callable[[], float]) -> Task:
        """A task that will run ``body``. ``clock``: its virtual time, whenever it is asked."""
        task = Task(name, body, self.main, clock)
        self.tasks.append(task)
        return task

    def step_aside(self) -> None:
        """Let others run, perhaps."""
        if self.adversarial:
            self.block(lambda: True)

    def await_turn(self) -> None:
        """Before something that is served in the order of virtual time: let those run who are earlier."""
        if not self.adversarial:
            self.block(lambda: True)

    def block(self, ready: Callable[[], bool]) -> bool:
        """Run others until ``ready()``. False if nobody can go on."""
        task = self.current
        assert task is not None
        task.ready, task.give_up, task.bound = ready, False, jit.bind(None)
        self.main.switch()
        jit.bind(task.bound)
        task.ready = None
        return not task.give_up

    def run(self) -> None:
        # How eager puts are to arrive, and how slow a task is, differ from seed to seed: what goes wrong only when
        # ranks are far apart does not show under a fair draw.
        eager = self.random.choice((0.02, 0.1, 0.4, 0.8))
        while self.tasks:
            runnable = [t for t in self.tasks if t.ready is None or t.ready()]
            if self.puts and (not runnable or self.random.random() < eager):
                self.deliver(self.random.randrange(len(self.puts)))
            elif runnable:
                self.switch(self.choose(runnable))
            else:
                self.deadlock = self.deadlock or [t.name for t in self.tasks]
                for task in self.losers():
                    task.give_up = True
                    self.switch(task)
        while self.puts:
            self.deliver(0)

    def choose(self, runnable: list[Task]) -> Task:
        """Who goes on: anybody if adversarial; else who is earliest, so that what follows from it is later for all."""
        if not self.adversarial:
            return min(runnable, key=lambda task: task.clock())
        return self.random.choices(runnable, [task.pace or self.pace(task) for task in runnable])[0]

    def pace(self, task: Task) -> float:
        """Draw how often a task is drawn: the same in all kernels that a channel runs."""
        if task.name not in self.paces:
            self.paces[task.name] = self.random.choice((1.0, 1.0, 0.02))
        task.pace = self.paces[task.name]
        return task.pace

    def losers(self) -> list[Task]:
        """Whose waits time out when nobody can go on."""
        return list(self.tasks)

    def switch(self, task: Task) -> None:
        self.current = task
        task.greenlet.switch()
        if task.greenlet.dead:
            self.tasks.remove(task)

    def deliver(self, index: int) -> None:
        put = self.puts.pop(index)
        if put.nbytes:
            ctypes.memmove(put.dest, put.source, put.nbytes)
        if put.flag:
            poke_word(put.flag, put.word)
