"""``tricoll plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .. import cost, plots, units
from ..plan import make, report
from ..schedule import Noise, sweep
from ..terminal import console, progress
from .options import MACHINES, usage_errors


def plan(
    params: Annotated[str, typer.Option(help="Parameters of the model: 8e9, 8B or 350M.")],
    gpus: Annotated[int, typer.Option(min=2, help="GPUs, each with a copy of the model.")],
    backward: Annotated[str, typer.Option(help="How long backward takes: 4s or 300ms.")],
    link: Annotated[str, typer.Option(help="A GPU's rate to other nodes: 50GB/s, or 400Gb/s in bits.")] = "50GB/s",
    alpha: Annotated[str, typer.Option(help="Latency of a message.")] = "5us",
    node_size: Annotated[int, typer.Option(min=1, help="GPUs a node.")] = 1,
    node_link: Annotated[str, typer.Option(help="A GPU's rate inside a node.")] = "450GB/s",
    profile: Annotated[str | None, typer.Option(help=f"Instead of links: a machine's constants: {MACHINES}.")] = None,
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
    with usage_errors():
        if profile:
            constants = cost.load_profile(profile)
        else:
            latency = units.seconds(alpha)
            inner, outer = cost.Link(latency, units.rate(node_link)), cost.Link(latency, units.rate(link))
            constants = cost.two_levels(inner, outer, f"given ({alpha}, {link})")
        made = make(
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
        report.show(made, console())
    if plot or scale:
        with usage_errors():
            if plot:
                plots.timeline(made, plot)
            if scale:
                noise = Noise(jitter, stragglers=stragglers, seed=seed)
                worlds = [n for n in sweep.WORLDS if n % node_size == 0]
                with progress(percent=True) as bar:
                    task = bar.add_task("simulating", total=1.0)
                    show = lambda what, share: bar.update(task, description=what, completed=share)
                    points = sweep.sweep(made.bucket, node_size, constants, noise, worlds, show)
                plots.scale(points, made.bucket, node_size, constants, noise, scale)
                if not as_json:
                    report.show_sweep(points, console())
