"""What can go wrong in a collective. Wrong arguments are ``ValueError`` and ``TypeError``, raised before data move.

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
