"""The kernels on an OpenSHMEM library that nobody here wrote, over shared memory and over TCP.

One program is started for each number of PEs and transport. It runs all its checks (pe_checks.py), and each is a test
here, so that a failure names the check.
"""

import ctypes
import re
import time

import openmpi
import pe_checks
import pytest
import torch
from pe_checks import CHECKS

import tricoll
from tricoll import world
from tricoll.fabric import openshmem
from tricoll.fabric.cpu_rank import RankFabric

pytestmark = openmpi.needs("OpenSHMEM", openshmem.unavailable())

SMALL_SOCKETS = {"UCX_TCP_SNDBUF": "32k", "UCX_TCP_RCVBUF": "32k"}  # so that what is put waits for its way
TRANSPORTS = {
    "shared memory": {},
    "TCP": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", **SMALL_SOCKETS},
}
ONCE = 3  # the number of PEs with which all checks run, not only those of the bits of every call
ONLY = {
    "shared memory": ("every call, mapped", "edges, mapped"),
    "TCP": ("mapped_links_that_there_cannot_be", "nobody_waits", "a rank that does not take", "a_rank_that_is_late"),
}


def names(n, transport):
    """The checks that a program of ``n`` PEs makes."""
    (elsewhere,) = (prefixes for where, prefixes in ONLY.items() if where != transport)
    here = [name for name in CHECKS if not name.startswith(elsewhere)]
    return [name for name in here if n == ONCE or name.startswith(("every call", "a_few_million"))]


def start(n, script, *arguments, environment=()):
    """Start a program of ``n`` PEs."""
    heap = {"SHMEM_SYMMETRIC_SIZE": "128M"}
    return openmpi.start("oshrun", n, script, *arguments, environment=heap | dict(environment))


class Program:
    """What came of one program: its exit code, its output, and the outcome of each check on each PE."""

    def __init__(self, n, transport, folder):
        self.n, self.transport = n, transport
        started = start(n, pe_checks.__file__, str(folder), *names(n, transport), environment=TRANSPORTS[transport])
        self.code, self.output = openmpi.finish(started, 100)
        self.outcomes = []
        for pe in range(n):
            left = folder / f"{pe}.pt"
            self.outcomes.append(torch.load(left, weights_only=False) if left.exists() else {})


PROGRAMS = {}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """``program(n, transport)``, started once."""

    def get(n, transport):
        if (n, transport) not in PROGRAMS:
            PROGRAMS[n, transport] = Program(n, transport, tmp_path_factory.mktemp("pes"))
        return PROGRAMS[n, transport]

    return get


@pytest.mark.parametrize(
    ("n", "transport", "name"),
    [(n, transport, name) for n in (2, 3, 4) for transport in TRANSPORTS for name in names(n, transport)],
)
def test_openshmem(program, n, transport, name):
    done = program(n, transport)
    results = []
    for pe, outcomes in enumerate(done.outcomes):
        assert name in outcomes, f"PE {pe} did not come so far (exit code {done.code}):\n{done.output[-4000:]}"
        value, error, _ = outcomes[name]
        assert not error, f"on PE {pe}:\n{error}"
        results.append(value)
    CHECKS[name].judge(results, n)


@pytest.mark.parametrize(("n", "transport"), [(n, transport) for n in (2, 3, 4) for transport in TRANSPORTS])
def test_the_program_ends_well(program, n, transport):
    """With code 0, and nothing that the library complains about but what was asked for on purpose."""
    done = program(n, transport)
    assert done.code == 0, done.output[-4000:]
    complaints = [line for line in done.output.splitlines() if line.strip() and "exceeds symmetric space" not in line]
    assert not complaints, complaints


# The end of a program that does not go well.


def run(tmp_path, n, text, limit=30.0, environment=()):
    """The exit code, the output, and the seconds that a program of this text took."""
    (tmp_path / "program.py").write_text(text)
    began = time.monotonic()
    code, output = openmpi.finish(start(n, tmp_path / "program.py", environment=environment), limit)
    return code, output, time.monotonic() - began


def test_an_exception_on_one_pe_ends_all(tmp_path):
    """The others learn of it in the middle of a call; the exit code is 1, and nobody crashes."""
    text = """
import time, torch, tricoll
comm = tricoll.init(timeout=60)
comm.all_reduce(torch.ones(3))
work = comm.all_reduce(torch.ones(3), async_op=True)
if comm.rank == 1:
    raise ZeroDivisionError("PE 1's own")
try:
    comm.all_reduce(torch.ones(3))
except tricoll.PeerFailure as error:
    print("told:", error, flush=True)
    raise SystemExit(1)
"""
    code, output, seconds = run(tmp_path, 3, text)
    assert code == 1 and seconds < 25 and "PE 1's own" in output
    # Who has been told may have left by the time that the other one is.
    assert len(re.findall(r"told: rank [02], call 3, .*ranks \[(0, )?1(, 2)?\] are gone", output)) == 2, output
    assert "signal" not in output and "without shmem_finalize" not in output, output


def test_a_killed_pe_ends_all(tmp_path):
    """The launcher does that: nobody waits for the timeout."""
    text = """
import os, signal, torch, tricoll
comm = tricoll.init(timeout=60)
comm.all_reduce(torch.ones(3))
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(torch.ones(3))
"""
    code, output, seconds = run(tmp_path, 2, text)
    assert code == 128 + 9 and seconds < 25 and "signal 9" in output


def test_a_process_that_never_joins_is_not_waited_for(tmp_path):
    """The others' init ends with its timeout, and with it the program."""
    text = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    time.sleep(60)
import tricoll
tricoll.init(timeout=2)
"""
    code, output, seconds = run(tmp_path, 2, text)
    assert code == 1 and seconds < 25 and "shmem_init_thread has not returned within 2 s" in output, output


def test_openshmem_without_a_launcher_says_how_to_start():
    with pytest.raises(ValueError, match="oshrun -np 4"):
        tricoll.init(fabric="openshmem")


def test_auto_is_openshmem_only_where_nobody_names_ranks(monkeypatch):
    for name in ("RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not world._among_pes()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert world._among_pes()
    monkeypatch.setenv("RANK", "0")  # as tricoll bench does under mpirun, and torchrun everywhere
    assert not world._among_pes()


def test_a_put_with_signal_is_a_put_a_fence_and_a_word():
    """The fence cannot be missed where these tests run, since a socket keeps the order; elsewhere it can."""
    said = []

    class Library:
        def put(self, dest, source, nbytes, pe):
            said.append(("put", dest, source, nbytes, pe))

        def fence(self):
            said.append("fence")

        def put_word(self, dest, source, pe):
            said.append(("word", dest, ctypes.c_int64.from_address(source).value, pe))

    fabric = openshmem.OpenshmemFabric.__new__(openshmem.OpenshmemFabric)
    RankFabric.__init__(fabric, 0, 2, 1.0, "torch")
    fabric.library, fabric._words = Library(), {}
    program = openshmem.OpenshmemProgram(fabric, 0)
    program.put_signal(0x1000, 0x2000, 640, 0x3000, 1 << 40, 1)
    program.signal(0x3008, 7, 1)
    assert said == [("put", 0x1000, 0x2000, 640, 1), "fence", ("word", 0x3000, 1 << 40, 1), ("word", 0x3008, 7, 1)]
    assert (program.counters.puts, program.counters.payload_bytes, program.counters.signals) == (1, 640, 1)
    sources = {address: ctypes.addressof(word) for (address, _), word in fabric._words.items()}
    assert len(set(sources.values())) == 2  # a source a word, which lives as long as the communicator
