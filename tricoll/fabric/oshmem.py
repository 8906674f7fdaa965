"""Open MPI's OpenSHMEM library: found, started, called by one thread at a time, and ended, once a process.

The library is started for OpenSHMEM's SERIALIZED threads, and a lock here is what serialises them. The calls that are
made while kernels run never wait for another PE, so that every wait is one that tricoll bounds. That rules some out:

* ``shmem_ulonglong_atomic_set`` waits over TCP until the target PE is in the library (Open MPI 4.1.4), and
  ``shmem_ulonglong_p`` does once the sockets are full. A word is set with ``shmem_put64_nbi``, whose source lives on.
* ``shmem_test`` and ``shmem_fence`` do not move on what is under way, on transports where a CPU has to. What does is
  ``opal_progress``, the call on which the library's own waits spin. It is not OpenSHMEM's, but there is no other one
  that returns.

The collective calls do wait. They are made when all PEs have said that they are there, in a thread that is left behind
if it does not come back in time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any, NoReturn

from tricoll.errors import CollectiveError, CollectiveTimeout

NAMES = ("liboshmem.so.40", "liboshmem.so")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")  # Open MPI's oshrun and mpirun set both, srun --mpi=pmix the second
SERIALIZED = 2  # SHMEM_THREAD_SERIALIZED
GREATER_OR_EQUAL = 5  # SHMEM_CMP_GE
LINE = 128
TICK = 1e-3  # seconds between two looks of the thread that keeps data moving while nobody waits
INSTALL = "On Debian: apt-get install openmpi-bin libopenmpi3."

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "shmem_init_thread": (ctypes.c_int, (ctypes.c_int, ctypes.POINTER(ctypes.c_int))),
    "shmem_finalize": (None, ()),
    "shmem_my_pe": (ctypes.c_int, ()),
    "shmem_n_pes": (ctypes.c_int, ()),
    "shmem_align": (ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)),
    "shmem_free": (None, (ctypes.c_void_p,)),
    "shmem_ptr": (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int)),
    "shmem_putmem_nbi": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)),
    "shmem_put64_nbi": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)),
    "shmem_ulonglong_test": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int, ctypes.c_ulonglong)),
    "shmem_fence": (None, ()),
    "shmem_quiet": (None, ()),
    "shmem_barrier_all": (None, ()),
    "opal_progress": (None, ()),
}


def launched() -> bool:
    """Whether this process was started as one of several by Open MPI's launcher, or one that works with it."""
    return any(name in os.environ for name in RANKS)


def load() -> Any:
    """The library, not yet started. Raises OSError if it is not installed."""
    # With the library's own hooks on munmap, shmem_finalize of Open MPI 4.1.4 crashes in a Python process. UCX has its
    # own for the same purpose.
    os.environ.setdefault("OMPI_MCA_opal_common_ucx_opal_mem_hooks", "0")
    errors = []
    for name in NAMES:
        try:
            found = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            errors.append(str(error))
            continue
        for symbol, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, symbol)
            function.restype, function.argtypes = result, arguments
        return found
    raise OSError(f"no OpenSHMEM library ({errors[0]}). {INSTALL}")


class Library:
    """The library of this process. Addresses are ints; symmetric ones are the same on all PEs."""

    def __init__(self, timeout: float) -> None:
        self._c = load()
        self._lock = threading.Lock()
        self._over = ""  # why no more calls can be made
        self.pe, self.pes = int(next(os.environ[name] for name in RANKS if name in os.environ)), 0
        self.mapped = False  # whether all PEs' memory is mapped here
        self.patience = timeout  # seconds for a call that waits for other PEs
        self._ending = threading.Event()
        self._mover: threading.Thread | None = None

    def begin(self, words: int) -> int:
        """Start it. Collective. Returns a symmetric address of so many zeros a PE."""

        def start() -> int:
            self._c.shmem_init_thread(SERIALIZED, ctypes.byref(ctypes.c_int()))
            self.pe, self.pes = self._c.shmem_my_pe(), self._c.shmem_n_pes()
            at = int(self._c.shmem_align(LINE, 8 * words * self.pes) or 0)
            if at:
                ctypes.memset(at, 0, 8 * words * self.pes)
            self._c.shmem_barrier_all()
            return at

        first: int = self.together("shmem_init_thread", start)
        self.mapped = bool(first) and all(self.pointer(first, pe) for pe in range(self.pes))
        if self.pes > 1 and not self.mapped:
            self._mover = threading.Thread(target=self._move, daemon=True, name="tricoll openshmem")
            self._mover.start()
        return first

    def _move(self) -> None:
        # Over a network that has no memory access of its own, data leave and arrive only while a PE is in the library.
        with contextlib.suppress(CollectiveError):
            while not self._ending.wait(TICK):
                self.progress()

    # Calls that do not wait for other PEs.

    def _call(self, function: Any, *arguments: Any) -> Any:
        self._enter()
        try:
            return function(*arguments)
        finally:
            self._lock.release()

    def _enter(self) -> None:
        if not self._over and self._lock.acquire(timeout=self.patience):
            if not self._over:
                return
            self._lock.release()
        self.check()
        raise CollectiveTimeout(f"PE {self.pe}: the OpenSHMEM library did not return in {self.patience:g} s")

    def check(self) -> None:
        """Raise CollectiveError if no more calls can be made."""
        if self._over:
            raise CollectiveError(f"PE {self.pe}: the OpenSHMEM library cannot be used any more: {self._over}")

    def progress(self) -> None:
        """Move on what is under way."""
        self._call(self._c.opal_progress)

    def put(self, dest: int, source: int, nbytes: int, pe: int) -> None:
        """Start a copy to a symmetric address. ``source`` must not change until it is known to have arrived."""
        self._call(self._c.shmem_putmem_nbi, dest, source, nbytes, pe)

    def fence(self) -> None:
        """What is put from now on arrives after what has been put so far, at each PE."""
        self._call(self._c.shmem_fence)

    def put_word(self, dest: int, source: int, pe: int) -> None:
        """Start a copy of a word of 8 bytes."""
        self._call(self._c.shmem_put64_nbi, dest, source, 1, pe)

    def test(self, word: int, least: int) -> bool:
        """Whether a word here has come to be ``least``. If so, what was put before it is seen by what follows."""
        return bool(self._call(self._c.shmem_ulonglong_test, word, GREATER_OR_EQUAL, least))

    def pointer(self, symmetric: int, pe: int) -> int:
        """Where a symmetric address of a PE is mapped here; 0 if it is not."""
        return self._call(self._c.shmem_ptr, symmetric, pe) or 0

    # Calls that wait for others.

    def together(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call that returns when other PEs have done their part. Raises CollectiveTimeout if they do not."""
        outcome: Future[Any] = Future()
        self._enter()

        def run() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._lock.release()

        threading.Thread(target=run, daemon=True, name=f"tricoll {what}").start()
        try:
            return outcome.result(self.patience)
        except (TimeoutError, futures.TimeoutError):  # two classes before Python 3.11
            self._over = f"{what} has not returned within {self.patience:g} s: not all PEs have called it"
        raise CollectiveTimeout(
            f"PE {self.pe}: {self._over}. All processes that were started together have to call tricoll.init(); its "
            "timeout sets how long to wait."
        )

    def quiet(self) -> None:
        """Return when all puts of this PE have arrived."""
        self.together("shmem_quiet", self._c.shmem_quiet)

    def allocate(self, nbytes: int) -> int:
        """A symmetric address, a multiple of 128; 0 if there is too little memory. Collective."""
        return self.together("shmem_align", lambda: self._c.shmem_align(LINE, nbytes)) or 0

    def free(self, symmetric: int) -> None:
        """Collective."""
        self.together("shmem_free", lambda: self._c.shmem_free(symmetric))

    # The end.

    @property
    def usable(self) -> bool:
        """Whether calls can be made."""
        return not self._over

    def finalize(self) -> None:
        """End it. Collective."""
        self._ending.set()
        if self._mover:
            self._mover.join()
        self._call(self._c.shmem_finalize)
        self._over = "the program has ended"

    def abandon(self, reason: str) -> NoReturn:
        """End the process without ending the library: its own way out would wait for the other PEs without a limit.
        The launcher ends them, too."""
        reason = self._over or reason
        print(f"tricoll: PE {self.pe} ends with code 1, without shmem_finalize: {reason}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
