"""``tricoll bench``: the flags of nccl-tests, and what they mean here."""

from __future__ import annotations

import collections
import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer

from tricoll import ranks
from tricoll.tensors import as_dtype
from tricoll.terminal import console

from . import collective, options, results
from .measure import Case
from .options import Fabric, Json, Ngpus, Peers, Timeout
from .results import TYPES, Report
from .run import Plan, run

app = typer.Typer(
    name="bench",
    help="""Time collectives and check their results, as nccl-tests does.

    Flags and table are those of nccl-tests. Starts local ranks itself (-g), or runs under torchrun or mpirun. Exits
    with 1 if a result was wrong or tricoll could not be measured, with 2 if a flag is.

    \b
    Examples:
      tricoll bench all_reduce -b 1K -e 16M -f 4 -g 4
      tricoll bench all_reduce --backends tricoll,gloo --wire bf16
      torchrun --nproc-per-node 4 -m tricoll.bench.all_reduce -e 1M
      torchrun --nproc-per-node 8 --no-python tricoll bench all_reduce --backends tricoll,nccl     a GPU a rank
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
LOCAL = 4  # ranks on a machine without GPUs


@contextlib.contextmanager
def started(ngpus: int, fabric: str) -> Iterator[tuple[ranks.Ranks, str]]:
    """The ranks to measure, and tricoll's fabric on them. What goes wrong on them is said in a line; exit code 1."""
    if (already := ranks.launched()) and ngpus not in (0, already):
        raise typer.BadParameter(f"{already} ranks have been started already: leave -g out", param_hint="-g")
    with ranks.started(ngpus or torch.cuda.device_count() or LOCAL) as all_ranks:
        try:
            chosen = all_ranks.fabric(fabric)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--fabric") from None
        try:
            yield all_ranks, chosen
        except (RuntimeError, ValueError, TypeError) as error:
            _fail(str(error), 1)


def bench(
    context: typer.Context,
    minbytes: Annotated[str, typer.Option("-b", "--minbytes", help="The smallest size: 8, 1K, 16M, 1G.")] = "1K",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="The largest size.")] = "16M",
    stepbytes: Annotated[
        str, typer.Option("-i", "--stepbytes", help="Add this from size to size, instead of -f.")
    ] = "0",
    stepfactor: Annotated[float, typer.Option("-f", "--stepfactor", help="Multiply by this from size to size.")] = 4.0,
    ngpus: Ngpus = 0,
    iters: Annotated[int, typer.Option("-n", "--iters", min=1, help="Calls that are timed, a size.")] = 20,
    samples: Annotated[
        int, typer.Option(min=1, help="Parts that these are timed in, from a barrier each; 1 is what nccl-tests does.")
    ] = 10,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", min=1, help="Calls before that.")] = 5,
    agg: Annotated[int, typer.Option("-m", "--agg_iters", min=1, help="Make each timed call so many calls.")] = 1,
    check: Annotated[
        int, typer.Option("-c", "--check", min=0, help="Data sets to check the results with; 0: do not check.")
    ] = 1,
    accuracy: Annotated[
        bool, typer.Option(help="Also measure the error of sums of random numbers; needs -c 1 or more.")
    ] = True,
    op: Annotated[str, typer.Option("-o", "--op", help="sum, prod, min, max, avg, mulsum or all.")] = "sum",
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help=f"{', '.join(TYPES)} or all; also fp32, bf16 and so on.")
    ] = "float",
    root: Annotated[str, typer.Option("-r", "--root", help="A rank, or all.")] = "0",
    average: Annotated[
        int | None,
        typer.Option(
            "-a",
            "--average",
            min=0,
            max=3,
            help="A call's time is 0: rank 0's, 1: the mean of all ranks', 2: the fastest's, 3: the slowest's. "
            "Default: 1, and 3 on GPUs.",
        ),
    ] = None,
    blocking: Annotated[int, typer.Option("-z", "--blocking", min=0, max=1, help="1: a barrier after each call.")] = 0,
    graph: Annotated[
        int, typer.Option("-G", "--cudagraph", min=0, help="Launch the calls as a CUDA graph, so many times.")
    ] = 0,
    cpu_time: Annotated[
        int, typer.Option("-C", "--report_cputime", min=0, max=1, help="1: do not wait for the GPU.")
    ] = 0,
    timeout: Timeout = 60,
    json: Json = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    plain: Annotated[bool, typer.Option(help="Only nccl-tests' own columns.")] = False,
    names: Annotated[
        str, typer.Option("--backends", help="tricoll, gloo, nccl, mpi, several with commas between, or all.")
    ] = "tricoll",
    algos: Annotated[
        str, typer.Option(help="tricoll's algorithms: auto, ring, tree, ..., several with commas between, or all.")
    ] = "auto",
    wire: Annotated[
        str | None, typer.Option(help="The dtype that tricoll sends, such as bf16; its own if not given.")
    ] = None,
    fabric: Fabric = "auto",
    call_check: Annotated[bool, typer.Option(help="Let tricoll compare the ranks' calls first, as it does.")] = True,
) -> None:
    of = collective.named(str(context.command.name))
    step = options.size(stepbytes, "-i")
    sizes = options.sizes(options.size(minbytes, "-b"), options.size(maxbytes, "-e"), step, stepfactor)
    if graph and not torch.cuda.is_available():
        raise typer.BadParameter("CUDA graphs need a CUDA GPU, and there is none", param_hint="-G")
    try:
        on_wire = as_dtype(wire) if wire else None
    except TypeError as error:
        raise typer.BadParameter(str(error), param_hint="--wire") from None
    measured = options.measured(names, algos, of.name)
    if plain and len(measured) > 1:
        raise typer.BadParameter("plain rows do not say which backend they are of: choose one", param_hint="--plain")
    dtypes, ops = options.dtypes(datatype), options.one_of(op, collective.OPS, "-o") if of.reduces else ["none"]
    if set(ops) <= {"avg", "mulsum"} and not any(dtype.is_floating_point for dtype in dtypes):
        raise typer.BadParameter("integers have no average, and no multiplied sum", param_hint="-o")
    case = Case(
        of.name, 0, torch.float32, "", -1, measured, on_wire, iters, min(samples, iters), agg, warmup, check, accuracy,
        bool(blocking), graph, bool(cpu_time), timeout,
    )  # fmt: skip
    growth = f"{step}(bytes)" if step else f"{stepfactor:g}(factor)"
    with started(ngpus, fabric) as (all_ranks, chosen):
        prints = all_ranks.prints
        say = (lambda text: print(text, flush=True)) if prints else (lambda text: None)
        roots = options.roots(root, all_ranks.size) if of.rooted else [-1]
        init = {"fabric": chosen, "check": call_check}
        combined = average if average is not None else 3 if chosen == "nvshmem" else 1
        plan = Plan(case, sizes, dtypes, ops, roots, combined, plain, growth, init)
        report = run(plan, all_ranks, say, _command())
    if prints:
        if json:
            report.write_json(json)
        if csv:
            report.write_csv(csv)
    if report.wrong or report.failed or not report.results:
        raise typer.Exit(1)


HELP = """Time {name} and check its results. {counts}

\b
Examples:
  tricoll bench {name} -b 1K -e 16M -f 4 -g 4
  tricoll bench {name} --backends tricoll,gloo --samples 20 -n 40 -J {name}.json
  torchrun --nproc-per-node 4 -m tricoll.bench.{name} -e 1M --plain
"""
for _name in collective.NAMES:
    _help = HELP.format(name=_name, counts=collective.named(_name).__class__.__doc__)
    app.command(_name, help=_help, short_help=f"Time {_name}.")(bench)


@app.command()
def gradients(
    megabytes: Annotated[
        str, typer.Option("--sizes", help="Bucket sizes in MB (1e6 bytes) of FP32, with commas between.")
    ] = "1,4,16,25,64,100",
    ngpus: Ngpus = 0,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Samples a size, taken in turn.")] = 10,
    warmup: Annotated[int, typer.Option("-w", "--warmup", min=1, help="Calls before that.")] = 3,
    peers: Peers = "gloo,nccl",
    fabric: Fabric = "auto",
    timeout: Timeout = 60,
    json: Json = None,
) -> None:
    """Time DDP's job: FP32 gradients in, their FP32 average out.

    Compares tricoll's fused all-reduce, with BF16 and with FP32 on the wire, with what DDP does without a hook and with
    what PyTorch's BF16 hook does (cast, divide, all-reduce, copy back), with the bytes that each sends and moves in
    memory, and its error.

    \b
    Examples:
      tricoll bench gradients -g 4
      tricoll bench gradients --sizes 25 -n 30 -J gradients.json
    """
    from . import gradients as job

    sizes, others = options.numbers(megabytes, "--sizes"), options.peers(peers)
    with started(ngpus, fabric) as (all_ranks, chosen):
        report = job.run(all_ranks, others, sizes, samples, warmup, timeout, chosen, _command())
    finish(report, job.tables, all_ranks.prints, json)


@app.command()
def overlap(
    buckets: Annotated[str, typer.Option(help="DDP's bucket_cap_mb, several with commas between.")] = "0.5,1,2,5,25",
    layers: Annotated[int, typer.Option(min=1, help="Linear layers of the model.")] = 16,
    width: Annotated[int, typer.Option(min=1, help="Of a layer: width x width FP32 parameters.")] = 512,
    batch: Annotated[int, typer.Option(min=1, help="Rows a rank.")] = 64,
    ngpus: Ngpus = 0,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Backward passes a bucket size.")] = 10,
    peers: Peers = "gloo,nccl",
    fabric: Fabric = "auto",
    timeout: Timeout = 60,
    json: Json = None,
) -> None:
    """Measure how much of DDP's communication the backward pass hides, at several bucket sizes.

    Small buckets are ready early but pay for a call more often; large ones are ready late. Beside what was measured
    stands what the times of the calls alone predict.

    \b
    Example:
      tricoll bench overlap -g 2 --buckets 1,5,25
    """
    from . import overlap as job

    sizes, others = options.numbers(buckets, "--buckets"), options.peers(peers)
    with started(ngpus, fabric) as (all_ranks, chosen):
        report = job.run(all_ranks, others, sizes, job.Job(layers, width, batch, samples, timeout), chosen, _command())
    finish(report, job.tables, all_ranks.prints, json)


@app.command("compare")
def compare_command(
    old: Annotated[Path, typer.Argument(help="A result that tricoll bench -J has written.")],
    new: Annotated[Path, typer.Argument(help="Another one of the same benchmark.")],
    more_old: Annotated[list[Path], typer.Option("--old", help="A further run of it; may be repeated.")] = [],  # noqa: B006
    more_new: Annotated[list[Path], typer.Option("--new", help="A further run of it; may be repeated.")] = [],  # noqa: B006
    threshold: Annotated[float, typer.Option(min=0, help="A change of less than this part is none.")] = 0.05,
    relative_to: Annotated[
        str, typer.Option(help="A backend that is in both, such as gloo: compare the times relative to its.")
    ] = "",
) -> None:
    """Compare two results: what became faster or slower, and what cannot be told from noise.

    Intervals are 95 % bootstrap intervals of the ratio of medians. With one run of each they know the noise within
    the runs only: give several of each (--old, --new), or measure a peer in all of them (--relative-to), for machines
    that others use, too. Exits with 1 if something is slower or wrong.

    \b
    Examples:
      tricoll bench compare before.json after.json --relative-to gloo
      tricoll bench compare a1.json b1.json --old a2.json --new b2.json --old a3.json --new b3.json
    """
    from . import compare

    try:
        runs = [[results.read_json(path) for path in each] for each in ([old, *more_old], [new, *more_new])]
        changes = list(compare.compare(runs[0], runs[1], threshold, relative_to))
    except ValueError as error:
        _fail(str(error), 2)
    if not changes:
        _fail("the two results have no row in common", 2)
    wide = console(120)
    for text in compare.differences(runs[0][0], runs[1][0]):
        wide.print(f"measured differently, {text}")
    counts = collections.Counter(c.verdict for c in changes)
    wide.print(compare.table(changes), "", ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common()))
    if counts["slower"] or counts["wrong"]:
        raise typer.Exit(1)


@app.command("report")
def report_command(
    files: Annotated[list[Path], typer.Argument(help="Results that tricoll bench -J has written, of any kind.")],
    html: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="A folder for the pictures, too.")] = None,
) -> None:
    """Write one HTML page with tables, pictures and the machine's description, with nothing outside it.

    \b
    Example:
      tricoll bench all_reduce --backends tricoll,gloo -J all_reduce.json
      tricoll bench gradients -J gradients.json
      tricoll bench report all_reduce.json gradients.json -o report.html --png pictures
    """
    from . import report

    try:
        for path in report.write([results.read_json(file) for file in files], html, png):
            typer.echo(path)
    except (ImportError, ValueError) as error:
        _fail(str(error), 2)


def finish(report: Report, tables: Callable[[Report], Iterable[Any]], prints: bool, json: Path | None) -> None:
    """Show and write what came out; exits with 1 where that has failed."""
    if prints:
        for part in tables(report):
            console().print(part)
        if json:
            report.write_json(json)
    if report.failed:
        raise typer.Exit(1)


def _command() -> str:
    return shlex.join(["tricoll", "bench", *(sys.argv[2:] if sys.argv[1:2] == ["bench"] else sys.argv[1:])])


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"tricoll: {text}", err=True)
    raise typer.Exit(code)


def main(name: str) -> None:
    """``python -m tricoll.bench.NAME``."""
    app([name, *sys.argv[1:]], prog_name="tricoll bench")
