"""What a tuned profile of the tests is for, and where it is from."""

import dataclasses

import tricoll
from tricoll import tuned
from tricoll.tuned import Target

TARGET = Target("host", 4, 4, "mapped")
ORIGIN = {
    "version": tuned.VERSION,
    "target": dataclasses.asdict(TARGET),
    "machine": tuned.machine("host"),
    "settings": {"channels": 1, "slots": 4, "slot_bytes": 1 << 20, "window": 2, "block": 1 << 14},
    "multicast": True,
    "tricoll": tricoll.__version__,
    "torch": "of the tests",
}
