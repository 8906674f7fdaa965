"""``tricoll tune``: measures the algorithms on the fabric at hand, fits the cost model's constants to that, and keeps
them in a file, a *profile*, by which ``algo="auto"`` chooses from then on. See docs/tuning.md.

Samples are appended to a JSON-lines file while they are taken: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs
import torch

from . import cost, dispatch
from .cost import Link, Profile, Protocol, Topology
from .units import show_bytes, show_rate, show_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from .communicator import Communicator

VERSION = 1  # of provenance, and of the files with samples
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
ITEMSIZE = 4  # bytes: FP32 is measured
HOPELESS = 10  # times the best one's time in the warm-up call, and an algorithm is not timed more often at this size
MOST_STEPS = 100  # of the fit
PRIOR = 0.3  # how much an algorithm's overhead of a typical time costs in the fit, in relative errors
HOLD_OUT = 4  # every so manyth size is not fitted, and used to judge the fit
NEAR = 1.10  # the choice is good if it takes at most this much times the best one's time


# What is measured.


@dataclass(frozen=True)
class Target:
    """What a profile is for. ``link``: "mapped" or "put"."""

    fabric: str
    world_size: int
    node_size: int
    link: str

    def __str__(self) -> str:
        nodes = "" if self.node_size == self.world_size else f", {self.node_size} a node"
        return f"{self.world_size} ranks{nodes} on {self.fabric}, {self.link} links"

    @property
    def topology(self) -> Topology:
        return Topology(self.world_size, self.node_size, self.link == "mapped")


@dataclass(frozen=True)
class Grid:
    """``calls`` timed calls of each algorithm at each size (bytes, of the whole buffer), ``passes`` times over all."""

    sizes: tuple[int, ...]
    calls: int = 3
    passes: int = 5
    collectives: tuple[str, ...] = COLLECTIVES

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.calls < 1 or self.passes < 1:
            raise ValueError("there has to be a size of at least 1 byte, a call and a pass")

    def blocks(self) -> list[tuple[int, str, int]]:
        """(pass, collective, bytes), in the order in which they are measured: another one in each pass, so that what
        changes on the machine meanwhile does not pass for an effect of size."""
        blocks = []
        for number in range(self.passes):
            one = [(number, c, nbytes) for nbytes in self.sizes for c in self.collectives]
            random.Random(number).shuffle(one)
            blocks += one
        return blocks


def sizes(least: int, most: int, factor: float = 2.0) -> tuple[int, ...]:
    """Bytes from ``least`` to ``most``, each ``factor`` times the one before."""
    if not 0 < least <= most or factor <= 1:
        raise ValueError(f"sizes from {least} to {most} by a factor of {factor}: give 0 < least <= most, factor > 1")
    count = int(math.log(most / least) / math.log(factor) + 1e-9) + 1
    return tuple(sorted({round(least * factor**i) for i in range(count)}))


def target_of(comm: Communicator) -> Target:
    settings = comm._settings
    node_size = settings.node_size if dispatch.nodes(comm.world_size, settings) else comm.world_size
    return Target(comm.fabric, comm.world_size, node_size, "mapped" if settings.mapped else "put")


def algorithms(collective: str, topology: Topology, multicast: bool) -> list[str]:
    """Those that the cost model has a prediction for, and that can be run."""
    profile = cost.uniform(1.0, 1.0, multicast=multicast)
    predicted = [c.algorithm for c in cost.candidates(collective, 1.0, topology, profile) if c.steps]
    return [name for name in predicted if name in dispatch.having(collective)]


def machine() -> dict[str, Any]:
    """What tells one machine from another: profiles of other machines are refused."""
    model = platform.machine()
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "hostname": name}


def provenance(comm: Communicator) -> dict[str, Any]:
    """Where and how samples are taken."""
    settings = dataclasses.asdict(comm._settings)
    return {
        "version": VERSION,
        "target": dataclasses.asdict(target_of(comm)),
        "machine": machine(),
        "settings": {name: settings[name] for name in ("channels", "slots", "slot_bytes", "window", "block")},
        "multicast": settings["multicast"],
        "tricoll": importlib.metadata.version("tricoll"),
        "torch": torch.__version__,
    }


Write = Callable[[dict[str, Any]], None]
Progress = Callable[[int, int, str], None]


def measure(
    comm: Communicator,
    grid: Grid,
    done: Iterable[tuple[int, str, int]] = (),
    write: Write = lambda line: None,
    progress: Progress = lambda done, all, what: None,
) -> None:
    """Time what is not ``done`` yet. Collective: all ranks call it, and only rank 0's other arguments count.

    ``write`` gets a line for each block: {"pass", "collective", "nbytes", "seconds": {algorithm: [s, ...]}}, where a
    call's time is that of its slowest rank, from a barrier on. Algorithms take turns, call by call.
    """
    topology, settings = target_of(comm).topology, comm._settings
    blocks = grid.blocks()
    skip = torch.tensor([int(block in set(done)) for block in blocks])
    comm.broadcast(skip)
    todo = [block for block, there in zip(blocks, skip.tolist()) if not there]
    for place, (number, collective, nbytes) in enumerate(todo):
        progress(len(blocks) - len(todo) + place, len(blocks), f"{collective}, {show_bytes(nbytes)}")
        names = algorithms(collective, topology, settings.multicast)
        numel = -(-nbytes // ITEMSIZE // comm.world_size) * comm.world_size
        x = torch.zeros(numel if collective != "all_gather" else numel // comm.world_size)
        warm = _times(comm, collective, x, names, 1)
        keep = [name for name in names if warm[name][0] <= HOPELESS * min(warm.values())[0]]
        seconds = {**warm, **_times(comm, collective, x, keep, grid.calls)}
        write({"pass": number, "collective": collective, "nbytes": numel * ITEMSIZE, "seconds": seconds})


def _times(comm: Communicator, collective: str, x: torch.Tensor, names: list[str], calls: int) -> dict[str, Any]:
    """Seconds of each call, by algorithm: the same on all ranks, those of the slowest one."""
    times = torch.zeros(calls, len(names), dtype=torch.float64)
    for call in range(calls):
        for i, name in enumerate(names):
            comm.barrier()
            start = time.perf_counter()
            getattr(comm, collective)(x, algo=name)
            times[call, i] = time.perf_counter() - start
    comm.all_reduce(times, op="max", algo="ring")
    return {name: times[:, i].tolist() for i, name in enumerate(names)}


# Samples.


class Samples:
    """A file with one line about where samples come from, and one for each block that has been measured."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """Raises ValueError if the file has samples of something else."""
        self.path, self.lines = path, []
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line that was being written when the run was stopped does not count
        if whole:
            try:
                there, *self.lines = map(json.loads, whole.splitlines())
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is not a file with samples ({error}): take another, or delete it") from None
            if there != origin:
                differing = [name for name in origin if not isinstance(there, dict) or there.get(name) != origin[name]]
                each = "; ".join(f"{name} was {there.get(name)}, is {origin[name]}" for name in differing)
                raise ValueError(f"{path} has samples of something else ({each}): --fresh measures again")
            os.truncate(path, len(whole.encode()))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(origin) + "\n")

    def write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def done(self, grid: Grid, world_size: int) -> list[tuple[int, str, int]]:
        """The blocks of a grid that have enough calls."""
        have = {
            (line["pass"], line["collective"], line["nbytes"])
            for line in self.lines
            if any(len(calls) >= grid.calls for calls in line["seconds"].values())
        }
        whole = lambda nbytes: -(-nbytes // ITEMSIZE // world_size) * world_size * ITEMSIZE
        return [(p, c, nbytes) for p, c, nbytes in grid.blocks() if (p, c, whole(nbytes)) in have]

    def points(self) -> list[Point]:
        """Medians over all passes."""
        found: dict[tuple[str, int, str], list[float]] = {}
        for line in self.lines:
            for name, calls in line["seconds"].items():
                found.setdefault((line["collective"], line["nbytes"], name), []).extend(calls)
        return [Point(c, nbytes, name, statistics.median(calls)) for (c, nbytes, name), calls in sorted(found.items())]


@dataclass(frozen=True)
class Point:
    """A measured time: the median of all calls, in seconds."""

    collective: str
    nbytes: int
    algorithm: str
    seconds: float


# The fit.


@dataclass(frozen=True)
class Judged:
    """A size of a collective: what was chosen by the fitted model, and what was the fastest. Seconds, as measured."""

    collective: str
    nbytes: int
    chosen: str
    best: str
    taken: float
    least: float
    held_out: bool

    @property
    def near(self) -> bool:
        return self.taken <= NEAR * self.least


@dataclass(frozen=True)
class Fit:
    """A profile, and how well it predicts: relative errors, and choices."""

    profile: Profile
    errors: Mapping[Point, float]  # predicted / measured - 1
    judged: Sequence[Judged]
    held_out: frozenset[int]

    def error(self, held_out: bool, collective: str = "", algorithm: str = "") -> float:
        """Median of the absolute relative errors; NaN if there is nothing to judge by."""
        found = [
            abs(error)
            for point, error in self.errors.items()
            if (point.nbytes in self.held_out) == held_out
            and collective in ("", point.collective)
            and algorithm in ("", point.algorithm)
        ]
        return statistics.median(found) if found else math.nan

    def good_choices(self, held_out: bool) -> tuple[int, int]:
        """Of how many sizes and collectives the choice is within NEAR of the best, and how many there are."""
        judged = [j for j in self.judged if j.held_out or not held_out]
        return sum(j.near for j in judged), len(judged)

    def report(self) -> dict[str, Any]:
        good, of = self.good_choices(True)
        every, all_of = self.good_choices(False)
        return {
            "median_error_fitted": self.error(False),
            "median_error_held_out": self.error(True),
            "held_out_choices_near_best": [good, of],
            "all_choices_near_best": [every, all_of],
        }


def fit(points: Sequence[Point], origin: Mapping[str, Any], name: str = "tuned") -> Fit:
    """The constants that predict the measured times best: relative errors, of which large ones count less.

    Least squares of log(predicted / measured) with a Cauchy loss, on all but every fourth size; and of what is left of
    it in comparison with the other algorithms at the same size, which took turns and so are comparable even if the
    machine was now slower, now faster. Fitted are, for the protocols in use, ``base`` and ``message``, alpha and beta
    of each class of links, and an overhead of each algorithm of a collective, which costs something (as a share of a
    typical time) so that it is used for what the others cannot explain. A protocol that only one algorithm uses has no
    alpha of its own: at one world size it cannot be told from ``base``, which has both.

    Raises ValueError if there is too little to fit.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ImportError('the fit needs SciPy: pip install "tricoll[tune]"') from None

    target, settings = Target(**origin["target"]), origin["settings"]
    whole = sorted({point.nbytes for point in points})
    held_out = frozenset(whole[HOLD_OUT - 2 : -1 : HOLD_OUT])  # none is beyond those that are fitted
    fitted = [point for point in points if point.nbytes not in held_out]
    shared = target.fabric == "host"  # one machine, whose cores do all the sending; "nodes" are made up
    kinds = [target.link] + ["inter"] * (target.topology.nodes > 1 and not shared)
    packed = target.link == "mapped" and target.topology.nodes == 1

    # Constants in units that make them about 1; all are at least 0.
    start = [100.0, 20.0, *(value for _ in kinds for value in (20.0, 1.0))] + [100.0, 20.0, 1.0] * packed
    common = len(start)
    pairs = sorted({(point.collective, point.algorithm) for point in fitted})
    start += [10.0] * len(pairs)
    if len(fitted) < 2 * len(start):
        raise ValueError(f"{len(fitted)} measured times are too few to fit {len(start)} constants to: add sizes")

    def profile(constants: Sequence[float]) -> Profile:
        base, message, *rest = (float(value) for value in constants[:common])
        overheads: dict[str, dict[str, float]] = {}
        for (collective, algorithm), value in zip(pairs, constants[common:]):
            overheads.setdefault(collective, {})[algorithm] = float(value) * MICRO
        links = {kind: _link(rest[2 * i], rest[2 * i + 1]) for i, kind in enumerate(kinds)}
        links = {"mapped": links[target.link], "inter": links[target.link], **links}
        protocols = {"signal": Protocol(base * MICRO, links, message * MICRO)}
        if packed:
            base, message, slowness = rest[-3:]
            protocols["packed"] = Protocol(base * MICRO, {"mapped": _link(0.0, slowness)}, message * MICRO)
        return Profile(
            name,
            f"measured by tricoll tune: {target}",
            protocols,
            multicast=origin["multicast"],
            channels=settings["channels"],
            slot_bytes=settings["slot_bytes"],
            window=settings["window"],
            shared=shared,
            overheads=overheads,
            provenance=origin,
        )

    measured = np.array([point.seconds for point in fitted])
    cases = _cases(fitted)
    case = np.array([cases.index((point.collective, point.nbytes)) for point in fitted])
    together = [case == number for number in range(len(cases))]
    typical = float(np.median(measured)) / MICRO

    def residuals(constants: Any) -> Any:
        wrong = np.log(predict(fitted, profile(constants), target.topology) / measured)
        usual = np.array([np.median(wrong[rows]) for rows in together])
        return np.concatenate([wrong, wrong - usual[case], PRIOR * constants[common:] / typical])

    # Measured times are fitted in some tens of steps; those without any noise would go on to the last digit.
    found = least_squares(
        residuals, start, bounds=(LEAST, np.inf), x_scale=start, loss="cauchy", f_scale=0.1, max_nfev=MOST_STEPS
    )
    constants = found.x
    seconds = np.arange(len(start)) >= common  # which of the constants are: not those that stand for beta
    seconds[[0, 1, *range(2, 2 + 2 * len(kinds), 2)]] = True
    if packed:
        seconds[[common - 3, common - 2]] = True
    constants[seconds & (constants < NOTHING)] = 0.0
    best = profile(constants)
    errors = predict(points, best, target.topology) / np.array([point.seconds for point in points]) - 1
    judged = [_judge(c, nbytes, points, best, target, nbytes in held_out) for c, nbytes in _cases(points)]
    return Fit(best, dict(zip(points, errors.tolist())), judged, held_out)


MICRO = 1e-6  # seconds, and seconds a kilobyte
LEAST = 1e-6  # of a constant: infinite bandwidths and logarithms of 0 are no use
NOTHING = 1e-3  # a nanosecond: what is less is reported as 0


def _link(alpha: float, slowness: float) -> Link:
    return Link(alpha * MICRO, 1e3 / (slowness * MICRO))


def predict(points: Sequence[Point], profile: Profile, topology: Topology) -> Any:
    """Seconds by the model, an array. NaN if it has none."""
    found = [cost.predict(p.algorithm, p.collective, p.nbytes, topology, profile) for p in points]
    return np.array([c.time if c.steps else math.nan for c in found])


def _cases(points: Sequence[Point]) -> list[tuple[str, int]]:
    return sorted({(point.collective, point.nbytes) for point in points})


def _judge(
    collective: str, nbytes: int, points: Sequence[Point], profile: Profile, target: Target, held_out: bool
) -> Judged:
    measured = {p.algorithm: p.seconds for p in points if (p.collective, p.nbytes) == (collective, nbytes)}
    chosen = cost.best(collective, nbytes, target.topology, profile, available=list(measured)).algorithm
    best = min(measured, key=lambda name: measured[name])
    return Judged(collective, nbytes, chosen, best, measured[chosen], measured[best], held_out)


# Profiles.


def folder() -> Path:
    """Where profiles are: TRICOLL_PROFILE_DIR, else in the user's configuration."""
    given = os.environ.get("TRICOLL_PROFILE_DIR")
    return Path(given) if given else platformdirs.user_config_path("tricoll") / "profiles"


def path_for(target: Target) -> Path:
    """The file of a target's profile."""
    return folder() / f"{target.fabric}-{target.world_size}x{target.node_size}-{target.link}.json"


def save(profile: Profile, path: Path) -> None:
    """Write a profile; whoever reads at the same time sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(profile.to_json() + "\n")
    os.replace(new, path)


def load(path: Path | str, fabric: str, world_size: int, node_size: int, link: str) -> Profile:
    """A profile that was measured for this fabric, number of ranks and kind of links, on this machine.

    ``node_size`` is the number of ranks a node; 0, or ``world_size``: all are in one.

    Raises ValueError, with the reason, if the file is none, is of another version of tricoll, or is for something else.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist: run tricoll tune")
    profile = cost.load_profile(path)
    origin = profile.provenance
    if not origin:
        raise ValueError(f"{path} was not measured by tricoll tune (it has no provenance): give it as profile= instead")
    if (version := origin.get("version")) != VERSION:
        raise ValueError(f"{path}: its provenance has version {version}, and this tricoll reads {VERSION}")
    here = importlib.metadata.version("tricoll")
    wanted = dataclasses.asdict(Target(fabric, world_size, node_size or world_size, link))
    checks = [
        ("is old, measured with another tricoll", {"tricoll": origin.get("tricoll")}, {"tricoll": here}),
        ("is of another machine", origin.get("machine"), machine()),
        ("is for something else", origin.get("target"), wanted),
    ]
    for what, there, expected in checks:
        if differing := [name for name in expected if not isinstance(there, dict) or there.get(name) != expected[name]]:
            found = there if isinstance(there, dict) else {}
            each = ", ".join(f"{name} was {found.get(name)}, is {expected[name]}" for name in differing)
            raise ValueError(f"{path} {what} ({each}): run tricoll tune here")
    return profile


def find(fabric: str, world_size: int, node_size: int, link: str) -> Profile | None:
    """The stored profile for this machine, or None. Warns, with the reason, if there is one that cannot be used."""
    path = path_for(Target(fabric, world_size, node_size or world_size, link))
    if not path.exists():
        return None
    try:
        return load(path, fabric, world_size, node_size, link)
    except ValueError as error:
        warnings.warn(f"a tuned profile is not used: {error}", RuntimeWarning, stacklevel=2)
        return None


# The command.


def session(
    comm: Communicator, grid: Grid, samples: Path | None, fresh: bool, where: Path
) -> tuple[Path, list[Point]] | None:
    """Measure with all ranks of a communicator; on rank 0, the file with all samples and the points in it.

    ``samples``: that file; None: it is in the folder ``where``.
    """
    if comm.rank:
        measure(comm, grid)
        return None
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    path = samples or (where / path_for(target_of(comm)).name).with_suffix(".samples.jsonl")
    if fresh:
        path.unlink(missing_ok=True)
    file = Samples(path, provenance(comm))
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(grid.blocks()))
        show = lambda done, total, what: bar.update(task, completed=done, description=what)
        measure(comm, grid, file.done(grid, comm.world_size), file.write, show)
    return path, file.points()


def run(
    ranks: int,
    grid: Grid,
    *,
    fabric: str = "host",
    link: str = "auto",
    node_size: int | None = None,
    samples: Path | None = None,
    fresh: bool = False,
    timeout: float = 120.0,
) -> tuple[Path, Fit] | None:
    """Measure and fit: with ``ranks`` local ranks, or with those of the job that this process is a rank of (RANK is
    set). Returns the file with the samples and the fit; None on other ranks than 0.

    Raises what ranks raise; ValueError for wrong arguments, and if samples are of something else.
    """
    from .pool import launch
    from .world import init  # which looks for profiles here

    options: dict[str, Any] = {"fabric": fabric, "link": link, "node_size": node_size, "timeout": timeout}
    if "RANK" in os.environ:
        with init(**options) as comm:
            found = session(comm, grid, samples, fresh, folder())
    elif ranks < 2:
        raise ValueError(f"{ranks} rank has nobody to send to: --ranks 2 or more")
    else:
        # Paths are settled here: ranks may have another working directory and environment than this process has now.
        found = launch(session, ranks, grid, samples and samples.absolute(), fresh, folder().absolute(), **options)[0]
    if found is None:
        return None
    path, points = found
    origin = json.loads(path.read_text().splitlines()[0])
    origin |= {"measured": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    origin["grid"] = dataclasses.asdict(grid)
    fitted = fit(points, origin)
    origin["fit"] = fitted.report()
    return path, dataclasses.replace(fitted, profile=dataclasses.replace(fitted.profile, provenance=origin))


def show(fitted: Fit, console: Console) -> None:
    """Print the constants, how well they predict, and where they would choose what is not the fastest."""
    from rich import box
    from rich.table import Table

    profile = fitted.profile
    console.print(f"{profile.source}\n", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("protocol", "link", "base", "a message", "alpha", "beta"):
        table.add_column(name, justify="left" if name in ("protocol", "link") else "right", no_wrap=True)
    for name, protocol in profile.protocols.items():
        for kind, link in protocol.links.items():
            figures = (show_seconds(protocol.base), show_seconds(protocol.message), show_seconds(link.alpha))
            table.add_row(name, kind, *figures, show_rate(link.beta))
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("algorithm", "overhead", "error, fitted sizes", "error, held-out sizes"):
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for collective, algorithm in sorted({(point.collective, point.algorithm) for point in fitted.errors}):
        overhead = profile.overheads.get(collective, {}).get(algorithm, 0.0)
        errors = (f"{fitted.error(held_out, collective, algorithm):.0%}" for held_out in (False, True))
        table.add_row(f"{collective}, {algorithm}", show_seconds(overhead), *errors)
    console.print(table)
    console.print(
        f"Median relative error: {fitted.error(False):.1%} on the sizes that were fitted, {fitted.error(True):.1%} on "
        "those that were held out."
    )
    for held_out, what in ((True, "held-out sizes"), (False, "all sizes")):
        good, of = fitted.good_choices(held_out)
        console.print(f"The choice takes at most {NEAR:.2f} times the fastest one's time in {good} of {of} {what}.")
    for j in sorted((j for j in fitted.judged if not j.near), key=lambda j: -j.taken / j.least)[:5]:
        console.print(
            f"  {j.collective} of {show_bytes(j.nbytes)}: {j.chosen} would be chosen and took {show_seconds(j.taken)}, "
            f"{j.best} {show_seconds(j.least)}"
        )


def draw(fitted: Fit, path: Path) -> None:
    """Time over size, a panel a collective: measured (points; hollow: held out), and by the fitted model (lines)."""
    from .plots import COLOURS, figure
    from .plots import save as save_figure

    target = Target(**fitted.profile.provenance["target"])
    points = list(fitted.errors)
    names = sorted({point.collective for point in points})
    fig, axes = figure(8, 3 * len(names), rows=len(names))
    for axis, collective in zip(np.atleast_1d(axes), names):
        mine = [point for point in points if point.collective == collective]
        for algorithm in sorted({point.algorithm for point in mine}):
            of = [point for point in mine if point.algorithm == algorithm]
            colour, x = COLOURS[algorithm], [point.nbytes for point in of]
            axis.plot(x, predict(of, fitted.profile, target.topology), color=colour, label=algorithm)
            fill = ["none" if point.nbytes in fitted.held_out else colour for point in of]
            axis.scatter(x, [point.seconds for point in of], facecolors=fill, edgecolors=colour, s=20)
        axis.set(xscale="log", yscale="log", ylabel="seconds", title=f"{collective}, {target}")
        axis.legend(fontsize="small")
    np.atleast_1d(axes)[-1].set_xlabel("bytes")
    save_figure(fig, path)
