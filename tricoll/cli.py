"""The command line: ``tricoll --help``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .bench.cli import app as bench
from .compile_command import compile_kernels
from .options import console, dtypes

if TYPE_CHECKING:
    pass


app = typer.Typer(
    name="tricoll",
    help="Collectives for multi-GPU training, with device code written in Triton.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


app.add_typer(bench)


def _version(asked: bool) -> None:
    if asked:
        versions = {name: importlib.metadata.version(name) for name in ("tricoll", "triton", "torch")}
        typer.echo(f"tricoll {versions['tricoll']} (Triton {versions['triton']}, PyTorch {versions['torch']})")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    ranks: Annotated[int, typer.Option(min=1, help="Processes to train with, on this machine's CPU.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of each training.")] = 240,
    seed: Annotated[int, typer.Option(help="Of the initial parameters and the batches.")] = 0,
) -> None:
    """Train a digit classifier on local CPU ranks, with BF16 gradients and, next to it, with Gloo in FP32.

    \b
    Example:
      tricoll demo --ranks 2 --steps 100
    """
    from .demo import run

    run(nprocs=ranks, steps=steps, seed=seed)


@app.command()
def numerics(
    ranks: Annotated[
        list[int] | None, typer.Option(min=2, help="World size; may be repeated. Default: 2 4 8 16 32 64.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="input:wire:output, or one dtype for all three; floats.")
    ] = "fp32:bf16:bf16",
    node_size: Annotated[int, typer.Option(min=1, help="Ranks a node, for the hierarchical algorithm.")] = 8,
    elements: Annotated[int, typer.Option(min=1, help="In each rank's tensor.")] = 2**16,
    seed: Annotated[int, typer.Option(min=0, help="Of the data.")] = 0,
    markdown: Annotated[Path | None, typer.Option(help="Replace the tables of this file, between its markers.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the error over the ranks to this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Measure how far every algorithm's sum is from the exact one; needs no GPU and no other process.

    The sums are those of tricoll.oracle, which says what the kernels give, bit for bit. Use it to choose an algorithm
    and a wire dtype: a ring with BF16 on the wire rounds at every hop, the direct algorithms once.

    \b
    Examples:
      tricoll numerics --plot error.png
      tricoll numerics --ranks 8 --ranks 16 --dtype fp32:fp16:fp32
      tricoll numerics --markdown docs/numerics.md      write the table of the documentation again
    """
    from .numerics import RANKS, run

    triples = dtypes([dtype])
    if len(triples) != 1 or not all(d.is_floating_point for d in triples[0]):
        raise typer.BadParameter(f"{dtype!r} is not one combination of floats", param_hint="--dtype")
    with _usage_errors():
        run(ranks or RANKS, triples[0], node_size, elements, seed, markdown, plot)


@app.command("plan")
def plan_step(
    params: Annotated[str, typer.Option(help="Parameters of the model: 8e9, 8B or 350M.")],
    gpus: Annotated[int, typer.Option(min=2, help="GPUs, each with a copy of the model.")],
    backward: Annotated[str, typer.Option(help="How long backward takes: 4s or 300ms.")],
    link: Annotated[str, typer.Option(help="A GPU's rate to other nodes: 50GB/s, or 400Gb/s in bits.")] = "50GB/s",
    alpha: Annotated[str, typer.Option(help="Latency of a message.")] = "5us",
    node_size: Annotated[int, typer.Option(min=1, help="GPUs a node.")] = 1,
    node_link: Annotated[str, typer.Option(help="A GPU's rate inside a node.")] = "450GB/s",
    profile: Annotated[
        str | None, typer.Option(help="Instead of links: a machine's constants (lesson, nvlink, nic-400g, h100, FILE).")
    ] = None,
    bucket: Annotated[str, typer.Option(help="Gradients in an all-reduce: 25MB (10^6) or 25M (2^20).")] = "25MB",
    algo: Annotated[str, typer.Option(help="ring, tree, hierarchical; auto: the fastest for each bucket.")] = "ring",
    gradient_bytes: Annotated[int, typer.Option(min=1, help="Of a gradient on the wire: 2 for BF16.")] = 2,
    gpu_memory: Annotated[str, typer.Option(help="Memory of a GPU.")] = "80GB",
    plot: Annotated[Path | None, typer.Option(help="Draw the lanes: FILE.png, .svg or .pdf.")] = None,
    scale: Annotated[
        Path | None, typer.Option(help="Draw a bucket's all-reduce on up to 16,384 ranks, simulated with noise, too.")
    ] = None,
    jitter: Annotated[float, typer.Option(min=0, help="For --scale: mean extra latency, as a share of it.")] = 0.5,
    stragglers: Annotated[int, typer.Option(min=0, max=8, help="For --scale: ranks with links half as fast.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="For --scale: of the noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (seconds and bytes) instead.")] = False,
) -> None:
    """What data parallelism costs a training step, and when it ends.

    Gradients are all-reduced in buckets while backward is still running, one bucket after the other; what is left when
    backward ends is exposed, and the step waits for it. Shows both as lanes, and the best bucket size, the memory of a
    GPU, and from how many GPUs on communication cannot be hidden. Predicted by a model, not measured:
    docs/cost-model.md.

    \b
    Examples:
      tricoll plan --params 8e9 --gpus 64 --link 50GB/s --bucket 25MB --backward 4s
      tricoll plan --params 1B --gpus 512 --node-size 8 --algo hierarchical --backward 300ms --plot lanes.png
      tricoll plan --params 8e9 --gpus 64 --backward 4s --node-size 8 --scale scale.png     takes about a minute
    """
    import json

    from . import cost, plan, units

    with _usage_errors():
        if profile:
            constants = cost.load_profile(profile)
        else:
            latency = units.seconds(alpha)
            inner, outer = cost.Link(latency, units.rate(node_link)), cost.Link(latency, units.rate(link))
            constants = cost.two_levels(inner, outer, f"given ({alpha}, {link})")
        made = plan.make(
            units.count(params),
            cost.Topology(gpus, node_size),
            constants,
            bucket=units.nbytes(bucket),
            backward=units.seconds(backward),
            algorithm=algo,
            gradient_bytes=gradient_bytes,
            gpu_memory=units.nbytes(gpu_memory),
        )
    if as_json:
        typer.echo(json.dumps(made.as_dict(), indent=2))
    else:
        plan.show(made, console())
    if plot or scale:
        with _usage_errors():
            from . import plots, schedule

            if plot:
                plots.timeline(made, plot)
            if scale:
                noise = schedule.Noise(jitter, stragglers=stragglers, seed=seed)
                with _share_of_work() as progress:
                    worlds = [n for n in schedule.WORLDS if n % node_size == 0]
                    points = schedule.sweep(made.bucket, node_size, constants, noise, worlds, progress)
                plots.scale(points, made.bucket, node_size, constants, noise, scale)
                if not as_json:
                    plan.show_sweep(points, console())


@app.command()
def explain(
    collective: Annotated[str, typer.Argument(help="all_reduce, reduce_scatter, all_gather, broadcast, ...")],
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Size as in nccl-tests, the whole buffer: 1M (2^20), 1MB (10^6) or 4096.")
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the job.")],
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    profile: Annotated[
        str, typer.Option(help="The machine's constants: lesson, nvlink, nic-400g, h100, or a JSON file.")
    ] = "h100",
    reproducible: Annotated[
        bool, typer.Option("--reproducible", help="Only algorithms whose bits do not depend on sizes and places.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also algorithms that this version of tricoll does not have.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted time over size, with crossovers: FILE.png, .svg or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (seconds and bytes) instead.")] = False,
) -> None:
    """Which algorithm a collective would take, why, and by how much it wins.

    Lists what each algorithm costs by the alpha-beta model: latency (steps), bandwidth (bytes on the busiest link),
    busbw as in nccl-tests, and how often a value is rounded when a narrower dtype travels. Predicted, not measured:
    docs/cost-model.md.

    \b
    Examples:
      tricoll explain all_reduce --bytes 1M --ranks 64 --node-size 8
      tricoll explain all_reduce --bytes 1M --ranks 8 --reproducible --plot sizes.png
      tricoll explain broadcast --bytes 100MB --ranks 512 --node-size 8 --all --json
    """
    import json

    from . import cost, dispatch, units
    from . import explain as explaining

    with _usage_errors():
        cost.check_collective(collective)
        available = [name for name, collectives in dispatch.ALGORITHMS.items() if collective in collectives]
        if not available and not everything:
            raise ValueError(f"this version of tricoll does not have {collective}; --all predicts it all the same")
        topology, constants = cost.Topology(ranks, node_size), cost.load_profile(profile)
        among = None if everything else available
        explanation = cost.explain(
            collective, units.nbytes(nbytes), topology, constants, reproducible=reproducible, available=among
        )
    if as_json:
        typer.echo(json.dumps(explanation.as_dict(), indent=2))
    else:
        explaining.show(explanation, console())
    if plot:
        with _usage_errors():
            from . import plots

            plots.sizes(explanation, constants, plot, among)


@app.command("tune")
def tune_fabric(
    ranks: Annotated[int, typer.Option(min=2, help="Local ranks to start; under torchrun, its ranks are used.")] = 4,
    fabric: Annotated[str, typer.Option(help="What to measure: host.")] = "host",
    link: Annotated[str, typer.Option(help="mapped, put, or auto as in tricoll.init.")] = "auto",
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    least: Annotated[
        str, typer.Option("--min-bytes", help="Smallest size, of the whole buffer: 1K (2^10), 1kB (10^3).")
    ] = "1K",
    most: Annotated[str, typer.Option("--max-bytes", help="Largest size.")] = "64M",
    factor: Annotated[float, typer.Option(min=1.1, help="From one size to the next.")] = 2.0,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each algorithm at each size in a pass.")] = 3,
    passes: Annotated[int, typer.Option(min=1, help="Passes over everything; medians are taken over all.")] = 5,
    output: Annotated[
        Path | None, typer.Option(help="Where the profile goes. Default: where tricoll.init looks for it.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Where samples are kept, to go on from. Default: next to the profiles.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget samples that there are, and measure again.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw measured and fitted time over size: FILE.png, .svg or .pdf.")
    ] = None,
) -> None:
    """Measure this machine's algorithms, so that algo="auto" chooses by figures instead of guesses.

    Times every algorithm of all_reduce, reduce_scatter, all_gather and broadcast, fits the constants of the cost model,
    tells how well they predict sizes that were kept out of the fit, and stores them as a profile for this machine,
    fabric, number of ranks and kind of links. A run that was stopped goes on where it was. Measure on a quiet machine.

    \b
    Examples:
      tricoll tune --ranks 4 --plot tuned.png                  some minutes
      tricoll tune --ranks 2 --max-bytes 1M --passes 2         a first look
      torchrun --nproc-per-node 4 --no-python tricoll tune     with the ranks of a job
    """
    from . import tune, units

    with _usage_errors():
        grid = tune.Grid(tune.sizes(units.nbytes(least), units.nbytes(most), factor), calls, passes)
        found = tune.run(
            ranks, grid, fabric=fabric, link=link, node_size=node_size or None, samples=samples, fresh=fresh
        )
        if found is None:
            return  # rank 0 reports
        kept, fitted = found
        path = output or tune.path_for(tune.Target(**fitted.profile.provenance["target"]))
        tune.save(fitted.profile, path)
        tune.show(fitted, console())
        typer.echo(f"\nprofile: {path}\nsamples: {kept}")
        if plot:
            tune.draw(fitted, plot)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """What is wrong with arguments, or missing for what they ask for, is said in a line; exit code 2."""
    try:
        yield
    except (ValueError, ImportError, OSError) as error:
        typer.echo(f"tricoll: {error}", err=True)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def _share_of_work() -> Iterator[Callable[[str, float], None]]:
    """A progress bar; call it with what is being done, and how much of all work has been, 0 to 1."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


@app.command()
def verify(
    backend: Annotated[
        str, typer.Option(help="tricoll, gloo, nccl, or another that torch.distributed knows.")
    ] = "tricoll",
    ranks: Annotated[int, typer.Option("--ranks", "-g", min=3, help="Local ranks; some probes take 8.")] = 4,
    only: Annotated[str, typer.Option(help="Only the probes whose name contains this: mismatch, NaN, exact ...")] = "",
    examples: Annotated[int, typer.Option("--examples", "-n", min=1, help="That each property is tried with.")] = 25,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds, the backend's own; after 10 more, it hangs.")] = 10.0,
    load: Annotated[str, typer.Option("--import", help="A module that registers the backend.")] = "",
    json: Annotated[Path | None, typer.Option("-J", help="Write what was found to this JSON file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
) -> None:
    """Ask a collectives backend what it does: exact, same bits, NaN, odd tensors, ranks that disagree or die.

    Useful with any backend of torch.distributed, whether or not you use tricoll. Every probe runs in processes of its
    own, so that a crash or a hang is a result. Exits with 1 if there are wrong results, crashes or hangs, with 2 if the
    backend is not there.

    \b
    Examples:
      tricoll verify --backend gloo
      tricoll verify --backend nccl --ranks 8 --only mismatch
      tricoll verify --backend ours --import our.package
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from . import verify as verifier

    errors = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    session = verifier.Session(backend, ranks, timeout, examples, load)
    probes = verifier.chosen(only)
    if not probes:
        raise typer.BadParameter(f"no probe's name contains {only!r}", param_hint="--only")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        if load:
            importlib.import_module(load)
        verifier.check_available(backend, ranks)
        with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=errors, transient=True) as progress:
            os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", folder)  # not in whatever folder this is called
            task = progress.add_task("starting ranks", total=len(probes), completed=-1)
            found = verifier.run(session, only, lambda name: progress.update(task, advance=1, description=name))
    except (ImportError, verifier.Unavailable) as error:
        errors.print(f"tricoll: {error}")
        raise typer.Exit(2) from None
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    console.print(f"{backend}, {ranks} ranks, timeout {timeout:g} s\n", verifier.table(found), "", verifier.LEGEND)
    if json:
        json.write_text(verifier.as_json(session, found))
    if markdown:
        markdown.write_text(verifier.markdown(found))
    if verifier.defects(found):
        raise typer.Exit(1)


@app.command("trace")
def trace_run(
    collective: Annotated[str, typer.Argument(help="all_reduce, reduce_scatter, all_gather, broadcast, ...")] = "",
    algo: Annotated[
        str, typer.Option(help="ring, tree, one_shot, two_shot, hierarchical, multimem, or auto.")
    ] = "auto",
    ranks: Annotated[int, typer.Option(min=1, help="Simulated ranks; a picture shows up to 16.")] = 4,
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Size of the whole buffer, FP32: 64K (2^16), 1MB (10^6) or 4096.")
    ] = "64K",
    link: Annotated[str, typer.Option(help="mapped, put, or auto as in tricoll.init.")] = "auto",
    delivery: Annotated[
        str, typer.Option(help="prompt, or adversarial: as late and out of order as the memory model allows.")
    ] = "prompt",
    seed: Annotated[int, typer.Option(help="Of the scheduler.")] = 0,
    node_size: Annotated[int, typer.Option(min=0, help="Ranks a node. Default: all in one.")] = 0,
    root: Annotated[int, typer.Option(min=0, help="Of a broadcast, reduce, gather or scatter.")] = 0,
    absent: Annotated[
        list[int] | None, typer.Option(help="A rank that does not make the call; may be repeated. Shows who waits.")
    ] = None,
    alpha: Annotated[str, typer.Option(help="Latency of a message.")] = "5us",
    rate: Annotated[str, typer.Option(help="A rank's rate, to other nodes if there are several.")] = "50GB/s",
    node_alpha: Annotated[str, typer.Option(help="Latency inside a node, if there are several. Default: alpha.")] = "",
    node_rate: Annotated[str, typer.Option(help="A rank's rate inside a node. Default: rate.")] = "",
    profile: Annotated[
        str | None, typer.Option(help="Instead of those: a machine's constants (lesson, nvlink, nic-400g, h100, FILE).")
    ] = None,
    flags: Annotated[
        bool | None, typer.Option(help="Draw flags without data. Default: if a wait does not end.")
    ] = None,
    messages: Annotated[int, typer.Option(min=0, help="How many the text lists.")] = 40,
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="FILE.svg, .png or .pdf, or .json for Perfetto; repeat.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="Draw those of docs/algorithms.md into this folder.")] = None,
) -> None:
    """Draw what one call does: who sends what to whom and when, and who waits.

    Runs the kernels in the simulator, with a virtual clock on which only messages take time. The shape of the links is
    that of the TRICOLL_ variables. If the call deadlocks, what happened up to then is drawn, with the waits that never
    ended, and the exit code is 1. In Python: tricoll.trace.

    \b
    Examples:
      tricoll trace all_reduce --algo ring --ranks 4 --bytes 64K -o ring.svg
      tricoll trace broadcast --algo tree --ranks 8 --link put --delivery adversarial --seed 3 -o tree.png -o tree.json
      tricoll trace all_reduce --algo two_shot --absent 2                        who waits for a rank that is missing
      tricoll trace --pictures docs/pictures                                     the pictures of the documentation
    """
    from . import cost, trace, units

    with _usage_errors():
        if pictures:
            for name, run, flagged in trace.pictures():
                run.draw(pictures / f"{name}.svg", flagged)
                typer.echo(f"{pictures / name}.svg: {run.summary()}")
            return
        if not collective:
            raise ValueError("what is to be traced? One of " + ", ".join(trace.COLLECTIVES))
        if profile:
            constants = cost.load_profile(profile)
        else:
            between = cost.Link(units.seconds(alpha), units.rate(rate))
            inside = cost.Link(units.seconds(node_alpha or alpha), units.rate(node_rate or rate))
            constants = cost.two_levels(inside if node_size else between, between, "given")
        run = trace.record(
            collective,
            algo,
            ranks=ranks,
            nbytes=units.nbytes(nbytes),
            link=link,
            delivery=delivery,
            seed=seed,
            node_size=node_size,
            root=root,
            absent=absent or (),
            profile=constants,
        )
        for path in output or ():
            if path.suffix == ".json":
                run.chrome_trace(path)
            else:
                run.draw(path, flags)
    typer.echo(run.summary() if output else run.text(messages))
    if run.error:
        typer.echo(f"\ntricoll: {run.error}", err=True)
        raise typer.Exit(1)


@app.command("doctor")
def examine_machine(
    test: Annotated[bool, typer.Option("--test/--no-test", help="Run an all-reduce on each fabric that works.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report, instead.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write it to this page, too, between its markers.")] = None,
) -> None:
    """What this machine has, which fabrics work on it, and what to do about the rest.

    Looks at versions, cores, memory, GPUs, NVSHMEM, the network, environment variables and tuned profiles; then makes a
    real all-reduce on each fabric that works here, and compares every byte with the oracle. Needs nothing but the
    package: what is missing is said. Exits with 1 if a self-test fails, or sim or host cannot be used. Each line is
    explained in docs/doctor.md.

    \b
    Examples:
      tricoll doctor
      tricoll doctor --json > report.json      for a bug report: no hostnames, nothing that tricoll does not know
    """
    from . import doctor

    with _usage_errors(), _spinner() as progress:
        if markdown:
            doctor.check_page(markdown)
        report = doctor.examine(test, progress)
    if as_json:
        typer.echo(report.as_json())
    else:
        doctor.show(report, console())
    if markdown:
        doctor.write(report, markdown)
    if report.failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _spinner() -> Iterator[Callable[[str], None]]:
    """Shows what is being done; call it with that."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


app.command("compile")(compile_kernels)
