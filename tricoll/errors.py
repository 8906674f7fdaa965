"""What can go wrong in a collective. Wrong arguments are ``ValueError`` and ``TypeError``, raised before data move.

Where they are raised, and so where their texts are:

- CollectiveTimeout, CollectiveMismatch and PeerFailure in a call: ``control.py``, before a kernel is launched, or
  from the status block of one that gave up; ``watch.py`` where launches return at once.
- CollectiveTimeout of ``Work.wait(timeout)``: ``work.py`` and ``enqueue.py``; of ranks that do not meet: ``world.py``
  and ``fabric/`` (``agree.py``, ``pes.py``, ``symmetric.py``, ``oshmem.py``).
- PeerFailure outside a call: ``pool.py``, of ranks that :func:`tricoll.launch` started; ``fabric/host.py`` and
  ``fabric/pes.py``, while memory is allocated.
- HeapExhausted: the fabrics, where memory is allocated.
- MemoryModelViolation: ``fabric/sim.py``.
- CollectiveError itself: ``executor.py``, of a communicator that cannot be used any more; ``work.py``, ``enqueue.py``
  and ``watch.py``, of calls that were given up; ``fabric/``, of a fabric that cannot be used here.

Whatever :func:`tricoll.simulate` raises has an attribute ``trace``: what happened up to then, a list of
:class:`tricoll.fabric.base.Event`.
"""


class CollectiveError(RuntimeError):
    """A collective did not complete. The message says which rank, which call, what was expected and what was seen."""


class CollectiveTimeout(CollectiveError):
    """A rank did not do its part within the communicator's timeout. The communicator cannot be used afterwards."""


class CollectiveMismatch(CollectiveError):
    """The ranks disagree about the call (collective, op, dtype, size, root). The next call works."""


class PeerFailure(CollectiveError):
    """A rank's process has ended. The communicator cannot be used afterwards."""


class HeapExhausted(CollectiveError):
    """There is too little symmetric memory. The message says what was needed, what there is, and what to set."""


class MemoryModelViolation(CollectiveError):
    """The simulator saw a kernel do what the GPU's or NVSHMEM's memory model does not allow."""
