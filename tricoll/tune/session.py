"""Measuring and fitting, with the ranks that there are."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import tuned
from ..communicator import Communicator
from ..ranks import Ranks
from ..terminal import progress
from .fit import Fit, fit
from .measure import Grid, measure
from .samples import Samples

TIMEOUT = 120.0  # seconds that a rank waits for others: on a busy machine they come late


def provenance(comm: Communicator) -> dict[str, Any]:
    """Where and how samples are taken."""
    settings = dataclasses.asdict(comm._settings)
    return {
        "version": tuned.VERSION,
        "target": dataclasses.asdict(tuned.target(comm.fabric, comm.world_size, comm._settings)),
        "machine": tuned.machine(comm.fabric),
        "settings": {name: settings[name] for name in ("channels", "slots", "slot_bytes", "window", "block")},
        "multicast": settings["multicast"],
        "tricoll": importlib.metadata.version("tricoll"),
        "torch": torch.__version__,
    }


def sample(comm: Communicator, grid: Grid, samples: Path | None, fresh: bool, where: Path) -> Path | None:
    """Measure what is missing, with all ranks of a communicator. Returns the file with all samples, on rank 0.

    ``samples``: that file; None: it is in the folder ``where``.
    """
    if comm.rank:
        measure(comm, grid)
        return None
    target = tuned.target(comm.fabric, comm.world_size, comm._settings)
    path = samples or (where / tuned.path_for(target).name).with_suffix(".samples.jsonl")
    if fresh:
        path.unlink(missing_ok=True)
    file = Samples(path, provenance(comm))
    with progress() as bar:
        task = bar.add_task("", total=len(grid.blocks()))
        show = lambda done, total, what: bar.update(task, completed=done, description=what)
        measure(comm, grid, file.done(grid, comm.world_size), file.write, show)
    return path


@dataclass(frozen=True)
class Outcome:
    """Where samples and profile are, and, on the process that prints, how well the profile predicts."""

    samples: Path
    profile: Path
    fit: Fit | None


def run(
    ranks: Ranks,
    grid: Grid,
    *,
    fabric: str = "auto",
    link: str = "auto",
    node_size: int | None = None,
    samples: Path | None = None,
    fresh: bool = False,
    output: Path | None = None,
) -> Outcome:
    """Measure with these ranks, fit, and store the profile, on each host: all ranks of a job have to find the same.

    ``output``: where it goes; None: where :func:`tricoll.init` looks for it.

    Raises what ranks raise; ValueError for wrong arguments, and if samples are of something else.
    """
    # Paths are settled here: local ranks may have another working directory and environment than this process has now.
    where = samples and samples.absolute(), fresh, tuned.folder().absolute()
    options: dict[str, Any] = {"fabric": ranks.fabric(fabric), "link": link, "node_size": node_size}
    kept = ranks.run(sample, grid, *where, timeout=TIMEOUT, **options)[0]
    found: Fit | Exception | None = None
    if ranks.prints:
        try:
            found = fitted(kept, grid)
        except (ValueError, ImportError) as error:  # which the others wait for, too
            found = error
    profile = ranks.share(found.profile if isinstance(found, Fit) else found)
    if isinstance(profile, Exception):
        raise profile
    path = output or tuned.path_for(tuned.Target(**profile.provenance["target"]))
    if ranks.first_here:
        tuned.save(profile, path)
    return Outcome(kept, path, found if isinstance(found, Fit) else None)


def fitted(path: Path, grid: Grid) -> Fit:
    """The fit to a file of samples, with all that is known of how it came about in its profile."""
    origin = json.loads(path.read_text().splitlines()[0])
    found = fit(Samples(path, origin).points(), origin)
    measured = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    history = origin | {"measured": measured, "grid": dataclasses.asdict(grid), "fit": found.report()}
    return dataclasses.replace(found, profile=dataclasses.replace(found.profile, provenance=history))
