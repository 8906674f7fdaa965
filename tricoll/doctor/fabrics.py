"""Which fabrics work on this machine, and what has been tuned for it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from .. import cost, tuned
from .finding import Finding, broken

# In the order of what they need. The first two should work on any machine.
FABRICS = {
    "sim": "all ranks in one process",
    "host": "processes of this machine, shared memory",
    "openshmem": "processes over an OpenSHMEM library",
    "loopback": "several ranks on one GPU",
    "nvshmem": "a GPU a rank",
}
EVERYWHERE = ("sim", "host")


def availability() -> Iterator[Finding]:
    for name in FABRICS:
        yield fabric(name)


def fabric(name: str) -> Finding:
    """Whether a fabric works here: its module says why not, by ``unavailable()``. ``data``: whether it does."""
    module, what = f"tricoll.fabric.{name}", FABRICS[name]
    state = "failed" if name in EVERYWHERE else "absent"
    try:
        if importlib.util.find_spec(module) is None:
            return Finding(name, f"this version of tricoll does not have it ({what})", state, data=False)
        reason = importlib.import_module(module).unavailable()
    except Exception as error:  # its library may be there, and broken
        found = broken(name, error)
        return Finding(name, found.text, state if name in EVERYWHERE else "problem", found.hint, False)
    if reason is not None:
        return Finding(name, f"not here: {reason}", state, data=False)
    return Finding(name, f"works here: {what}", data=True)


def tuning() -> Iterator[Finding]:
    """The stored profiles, and which of them would be used."""
    folder = tuned.folder()
    paths = sorted(folder.glob("*.json"))
    if not paths:
        hint = "tricoll tune --ranks N measures; until then, algo=auto goes by the built-in profile 'host'"
        yield Finding("tuning", f"none is stored in {folder}", "absent", hint, [])
    for path in paths:
        try:
            target = tuned.Target(**cost.load_profile(path).provenance["target"])
            profile = tuned.load(path, target)
        except (ValueError, KeyError, TypeError, OSError) as error:
            said = str(error) if isinstance(error, ValueError) else f"{path} has no target: it is not by tricoll tune"
            yield Finding("tuning", f"not used: {said}", "problem", "tricoll tune measures again", {"file": path.name})
            continue
        if tuned.path_for(target) != path:
            hint = f"tricoll.init() looks for {tuned.path_for(target).name}; --profile takes any file"
            yield Finding("tuning", f"{path.name} is for {target}, by another name", "problem", hint)
            continue
        measured = str(profile.provenance.get("measured", "at an unknown time"))[:10]
        yield Finding("tuning", f"{target}, measured {measured}", data={"file": path.name, "target": str(target)})
