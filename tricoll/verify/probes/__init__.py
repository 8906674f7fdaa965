"""What :mod:`tricoll.verify` asks: a file a group, in it a function a row of the table."""

from ..probe import Probe
from . import absence, accuracy, bits, exact, memory, mismatch, values

PROBES: tuple[Probe, ...] = (
    *exact.PROBES,
    *bits.PROBES,
    *accuracy.PROBES,
    *values.PROBES,
    *memory.PROBES,
    *mismatch.PROBES,
    *absence.PROBES,
)
