"""A real all-reduce on each fabric that works here, compared with the oracle byte for byte.

``python -m tricoll.doctor.selftest FABRIC`` is one rank of it, for launchers that start processes themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import oracle, testing, world
from ..communicator import Communicator
from ..pool import Pool
from .finding import Finding

RANKS = {"sim": 8}  # others have 2
ALGORITHMS = ("ring", "tree", "two_shot", "one_shot")
ELEMENTS = 10_007  # no multiple of anything: all ranks have chunks and pieces of odd sizes
LIMIT = 60.0  # seconds of a fabric's test
PATIENCE = 5.0  # seconds in which a launcher may end its ranks
START = 20.0  # seconds more that processes may take to start and end
AGREED = "has the oracle's bits"
LONGEST = 300  # characters of an error on the screen


def check(comm: Communicator) -> list[str]:
    """All-reduce on one rank. Returns the algorithms that it ran; AssertionError says where one is wrong."""
    inputs = testing.make_inputs(comm.world_size, (ELEMENTS,), torch.float32, seed=1)
    for name in ALGORITHMS:
        x = inputs[comm.rank].to(comm.device, copy=True)
        comm.all_reduce(x, "avg", wire="bf16", algo=name)
        expected = oracle.all_reduce(inputs, "avg", torch.bfloat16, algorithm=name)
        testing.assert_same_bits(x.cpu(), expected, f"rank {comm.rank}, {name}")
    return list(ALGORITHMS)


def simulated() -> None:
    ran = world.simulate(check, RANKS["sim"], seed=1).results
    _all_ran(ran, RANKS["sim"])


def launched(fabric: str) -> None:
    """On processes of this machine, which are killed if they do not end."""
    with Pool(2) as pool:
        _all_ran(pool.run(check, limit=LIMIT, fabric=fabric, timeout=LIMIT / 2), 2)


def oshrun() -> None:
    """On processing elements that Open MPI starts."""
    command = ["oshrun", *["--allow-run-as-root"] * (os.geteuid() == 0), "--oversubscribe", "-np", "2"]
    command += [sys.executable, "-m", "tricoll.doctor.selftest", "openshmem"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        _end(process)
        raise TimeoutError(f"oshrun had not ended after {LIMIT:g} s") from None
    said = [rank for rank in range(2) if f"rank {rank} of 2 {AGREED}" in output]
    if process.returncode or len(said) != 2:
        raise RuntimeError(f"oshrun ended with code {process.returncode}: {output.strip()[-2000:]}")


def _end(process: subprocess.Popen[str]) -> None:
    # When it is asked to end, it ends its ranks and removes their files; not when it is killed.
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.communicate(timeout=PATIENCE)
            return
        except subprocess.TimeoutExpired:
            pass


def on_one_gpu() -> None:
    """On threads of this process, all with the same GPU."""
    start = vars(world)["loopback"]  # where this version has it
    _all_ran(start(check, 2), 2)


def _all_ran(ran: list[list[str]], ranks: int) -> None:
    if ran != [list(ALGORITHMS)] * ranks:
        raise AssertionError(f"expected {ranks} ranks with {ALGORITHMS} each, and {ran} ran")


TESTS: dict[str, Callable[[], None]] = {
    "sim": simulated,
    "host": lambda: launched("host"),
    "openshmem": oshrun,
    "loopback": on_one_gpu,
    "nvshmem": lambda: launched("nvshmem"),
}


def probe(fabric: str) -> Iterator[Finding]:
    yield run(fabric)


def run(fabric: str) -> Finding:
    """The self-test of a fabric, ended after LIMIT seconds and what starting processes takes."""
    ranks = RANKS.get(fabric, 2)
    data: dict[str, Any] = {"ranks": ranks, "algorithms": list(ALGORITHMS), "seconds": None, "error": None}
    if fabric == "nvshmem" and (gpus := torch.cuda.device_count()) < ranks:
        return Finding(f"{fabric} test", f"not made: it needs {ranks} GPUs, and there are {gpus}", "absent", data=data)
    outcome: list[BaseException | None] = []

    def body() -> None:
        try:
            TESTS[fabric]()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    start = time.monotonic()
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(LIMIT + START)
    data["seconds"] = round(time.monotonic() - start, 2)
    error = outcome[0] if outcome else TimeoutError(f"not finished after {LIMIT + START:g} s, and left alone")
    if error is not None:
        data["error"] = f"{type(error).__name__}: {error}"
        shown = data["error"] if len(data["error"]) <= LONGEST else data["error"][:LONGEST] + "..."
        hint = "docs/doctor.md lists errors; --json has the whole message"
        return Finding(f"{fabric} test", f"failed: {shown}", "failed", hint, data)
    text = f"all-reduce on {ranks} ranks, {len(ALGORITHMS)} algorithms: the oracle's bits on all of them"
    return Finding(f"{fabric} test", text, data=data)


def main(fabric: str) -> None:
    with world.init(fabric=fabric, timeout=LIMIT / 2) as comm:
        check(comm)
        print(f"rank {comm.rank} of {comm.world_size} {AGREED}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
