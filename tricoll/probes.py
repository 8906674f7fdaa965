"""What :mod:`tricoll.verify` asks: one function a row of its table.

Functions whose first argument is an ``api`` run on the ranks; the others compare what came back, in the process that
asks. Properties are searched for counterexamples by hypothesis, which reduces them to the smallest.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import oracle, testing
from .testing import Guarded, Layout
from .verify import Api, Outcome, Session, Verdict, first, refused, same

EIGHT = 8  # ranks, where the number matters


@dataclass(frozen=True)
class Probe:
    """A row: its name, what is asked, and what the right answer is."""

    name: str
    question: str
    run: Callable[[Session], Verdict]


class _Stop(BaseException):
    """Ends a search at once: after a hang, reducing the example would hang as often."""


# Properties, with examples that hypothesis draws.


def search(session: Session, draw: Callable[[Any], dict[str, Any]], check: Callable[..., None]) -> Verdict:
    """Try ``check(**example)`` with drawn examples; it raises AssertionError or _Refused. The smallest failure."""
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError('examples are drawn with hypothesis: pip install "tricoll[test]"') from error

    without: dict[str, str] = {}
    seen: dict[str, Any] = {"right": 0}

    @hypothesis.settings(
        max_examples=session.examples,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        print_blob=False,
    )
    @hypothesis.given(st.data())
    def attempt(data: Any) -> None:
        example = draw(data.draw)
        seen["example"] = _words(example)
        try:
            check(**example)
            seen["right"] += 1
        except _Refused as reason:
            without.setdefault(reason.what, str(reason))

    try:
        attempt()
    except _Stop as stop:
        return Verdict("hang", str(stop), seen["example"])
    except _Crash as crash:
        return Verdict("crash", str(crash), seen["example"])
    except AssertionError as error:
        return Verdict("wrong", str(error).splitlines()[0], seen["example"])
    if not seen["right"]:
        return Verdict("refused", next(iter(without.values()), "no example was tried"))
    also = f"; refused: {', '.join(sorted(without))}" if without else ""
    return Verdict("right", f"{seen['right']} examples{also}")


class _Refused(Exception):
    """All ranks raised an error: there is no such call."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(text)
        self.what = what


class _Crash(AssertionError):
    """A process ended."""


def _words(example: dict[str, Any]) -> str:
    def word(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            small = value[0].numel() <= 4
            return str([v.tolist() for v in value]) if small else f"{len(value)} tensors of {tuple(value[0].shape)}"
        return str(value).removeprefix("torch.")

    return ", ".join(f"{key}={word(value)}" for key, value in example.items())


def _values(outcomes: Sequence[Outcome], what: str) -> list[Any]:
    kind = same(outcomes)
    if kind == "hang":
        raise _Stop(first(outcomes, "hang"))
    if kind == "crash":
        raise _Crash(first(outcomes, "crash"))
    if kind == "error" and refused(outcomes):
        raise _Refused(what, outcomes[0].text)
    if kind != "value":
        raise AssertionError(f"an error: {first(outcomes, 'error')}")
    return [outcome.value for outcome in outcomes]


def _all_reduce(api: Api, inputs: Sequence[Tensor], op: str) -> Tensor:
    x = inputs[api.rank].clone().to(api.device)
    api.all_reduce(x, op)
    return x.cpu()


def _reduce_scatter(api: Api, inputs: Sequence[Tensor], op: str) -> Tensor:
    x = inputs[api.rank].to(api.device)
    out = torch.empty((x.shape[0] // api.size, *x.shape[1:]), dtype=x.dtype, device=api.device)
    api.reduce_scatter(out, x, op)
    return out.cpu()


def _all_gather(api: Api, inputs: Sequence[Tensor]) -> Tensor:
    x = inputs[api.rank].to(api.device)
    out = torch.empty((x.shape[0] * api.size, *x.shape[1:]), dtype=x.dtype, device=api.device)
    api.all_gather(out, x)
    return out.cpu()


def _broadcast(api: Api, inputs: Sequence[Tensor], root: int) -> Tensor:
    x = inputs[api.rank].clone().to(api.device)
    api.broadcast(x, root)
    return x.cpu()


def _drawn(
    draw: Any, n: int, kinds: Sequence[str], dtypes: Sequence[torch.dtype], ops: Sequence[str], rows: bool
) -> dict[str, Any]:
    from hypothesis import strategies as st

    dtype = draw(st.sampled_from(list(dtypes)))
    numel = (
        draw(st.integers(0, 40)) * (n if rows else 1)
        if draw(st.booleans())
        else n * draw(st.sampled_from((1, 16, 100)))
    )
    inputs = testing.make_inputs(n, (numel,), dtype, draw(st.sampled_from(list(kinds))), draw(st.integers(0, 99)))
    return {"inputs": inputs, "dtype": dtype, **({"op": draw(st.sampled_from(list(ops)))} if ops else {})}


FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NUMBERS = (*FLOATS, torch.int32, torch.int64, torch.uint8)


def exact_all_reduce(session: Session) -> Verdict:
    def check(inputs: list[Tensor], dtype: torch.dtype, op: str) -> None:
        outputs = _values(session.ask(_all_reduce, inputs, op), f"{dtype}".removeprefix("torch."))
        expected = oracle.reduce(inputs, op)
        for rank, output in enumerate(outputs):
            testing.assert_same_bits(output, expected, f"rank {rank}")

    return search(session, lambda d: _drawn(d, session.ranks, ("small",), NUMBERS, ("sum", "min", "max"), False), check)


def exact_reduce_scatter(session: Session) -> Verdict:
    def check(inputs: list[Tensor], dtype: torch.dtype, op: str) -> None:
        outputs = _values(session.ask(_reduce_scatter, inputs, op), f"{dtype}".removeprefix("torch."))
        testing.check_reduce_scatter(outputs, inputs, op)

    return search(session, lambda d: _drawn(d, session.ranks, ("small",), NUMBERS, ("sum", "min", "max"), True), check)


def moves_all_gather(session: Session) -> Verdict:
    def check(inputs: list[Tensor], dtype: torch.dtype) -> None:
        outputs = _values(session.ask(_all_gather, inputs), f"{dtype}".removeprefix("torch."))
        testing.check_all_gather(outputs, inputs)

    return search(session, lambda d: _drawn(d, session.ranks, ("bits",), NUMBERS, (), False), check)


def moves_broadcast(session: Session) -> Verdict:
    from hypothesis import strategies as st

    def draw(d: Any) -> dict[str, Any]:
        return {**_drawn(d, session.ranks, ("bits",), NUMBERS, (), False), "root": d(st.integers(0, session.ranks - 1))}

    def check(inputs: list[Tensor], dtype: torch.dtype, root: int) -> None:
        outputs = _values(session.ask(_broadcast, inputs, root), f"{dtype}".removeprefix("torch."))
        testing.check_broadcast(outputs, inputs, root)

    return search(session, draw, check)


def same_on_all_ranks(session: Session) -> Verdict:
    def check(inputs: list[Tensor], dtype: torch.dtype, op: str) -> None:
        outputs = _values(session.ask(_all_reduce, inputs, op), f"{op} of {dtype}".replace("torch.", ""))
        testing.assert_same_on_all_ranks(outputs)

    return search(
        session,
        lambda d: _drawn(d, session.ranks, ("mixed", "cancelling"), FLOATS, ("sum", "avg", "min"), False),
        check,
    )


def within_the_bound(session: Session) -> Verdict:
    def check(inputs: list[Tensor], dtype: torch.dtype, op: str) -> None:
        outputs = _values(session.ask(_all_reduce, inputs, op), f"{op} of {dtype}".replace("torch.", ""))
        testing.check_all_reduce(outputs, inputs, op, algorithm=None)

    return search(
        session,
        lambda d: _drawn(d, session.ranks, ("random", "cancelling", "ties"), FLOATS, ("sum", "avg"), False),
        check,
    )


# Scenes: one call, or a few, and what must come of it.


def _scene(session: Session, fn: Callable[..., Any], judge: Callable[[list[Any]], Verdict], example: str,
           ranks: int | None = None) -> Verdict:  # fmt: skip
    """Run on all ranks and judge the values; errors on every rank are "refused"."""
    outcomes = session.ask(fn, ranks=ranks)
    kind = same(outcomes)
    if kind in ("hang", "crash"):
        return Verdict(kind, first(outcomes, kind), example)
    if kind == "error" and refused(outcomes):
        return Verdict("refused", outcomes[0].text, example)
    if kind != "value":
        return Verdict("wrong", f"an error: {first(outcomes, 'error')}", example)
    return judge([outcome.value for outcome in outcomes])


def _equal(expected: Tensor, example: str, values: list[Tensor]) -> Verdict:
    try:
        for rank, value in enumerate(values):
            testing.assert_same_bits(value, expected, f"rank {rank}")
    except AssertionError as error:
        return Verdict("wrong", str(error).splitlines()[0], example)
    return Verdict("right", example)


def run_to_run(session: Session) -> Verdict:
    repeats = 20
    results = partial(_repeated, repeats=repeats)

    def judge(values: list[list[str]]) -> Verdict:
        bits = {digest for digests in values for digest in digests}
        example = f"all_reduce of 3,000 FP32, {repeats} times, ranks up to 3 ms late"
        if len(bits) == 1:
            return Verdict("yes", example)
        return Verdict("no", f"{len(bits)} different results", example)

    return _scene(session, results, judge, "all_reduce, repeated")


def _repeated(api: Api, repeats: int) -> list[str]:
    sleeps = random.Random(api.rank)
    data = testing.make_inputs(api.size, (3000,), torch.float32, "cancelling", 5)[api.rank]
    digests = []
    for _ in range(repeats):
        time.sleep(0.003 * sleeps.random())
        x = data.clone().to(api.device)
        api.all_reduce(x)
        digests.append(hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest())
    return digests


SIZES = (1, 7, 100, 1000, 5000)


def size_independence(session: Session) -> Verdict:
    def judge(values: list[list[Tensor]]) -> Verdict:
        longest = values[0][-1]
        how = ', with algo="two_shot"' if session.backend == "tricoll" else ""
        for size, x in zip(SIZES, values[0], strict=True):
            if different := int(oracle.differing(x, longest[:size]).sum()):
                example = f"all_reduce of the first {size} of {SIZES[-1]} FP32 numbers, and of all"
                return Verdict("no", f"{different} of {size} elements have other bits", example)
        return Verdict("yes", f"all_reduce of the first {SIZES} numbers of the same data{how}")

    return _scene(session, _prefixes, judge, "all_reduce of parts of a tensor")


def _prefixes(api: Api) -> list[Tensor]:
    data = testing.make_inputs(api.size, (SIZES[-1],), torch.float32, "cancelling", 5)[api.rank]
    results = []
    for size in SIZES:
        x = data[:size].clone().to(api.device)
        api.all_reduce(x, reproducible=True)
        results.append(x.cpu())
    return results


def accuracy(session: Session) -> Verdict:
    def judge(values: list[dict[str, float]]) -> Verdict:
        text = ", ".join(f"{name} {error:.2g}" for name, error in values[0].items() if name != "ones")
        return Verdict("right", f"relative RMS error of sums of normal numbers, {session.ranks} ranks: {text}")

    return _scene(session, _errors, judge, "all_reduce of normal numbers")


def _errors(api: Api) -> dict[str, float]:
    errors = {}
    for name, dtype in (("FP32", torch.float32), ("BF16", torch.bfloat16), ("FP16", torch.float16)):
        generator = torch.Generator().manual_seed(3)
        inputs = [torch.randn(1 << 15, generator=generator).to(dtype) for _ in range(api.size)]
        exact = torch.stack(inputs).sum(0, dtype=torch.float64)
        x = inputs[api.rank].clone().to(api.device)
        api.all_reduce(x)
        errors[name] = float(((x.cpu().double() - exact).square().mean() / exact.square().mean()).sqrt())
    return errors


def wide_sums(session: Session) -> Verdict:
    example = "all_reduce of BF16: 256 on rank 0 and 1 on 7 others; 263 is 264 in BF16"

    def judge(values: list[Tensor]) -> Verdict:
        got = sorted({v for x in values for v in x.tolist()})
        return Verdict("yes", example) if got == [264.0] else Verdict("no", f"{got}, not 264", example)

    return _scene(session, _large_and_small, judge, example, EIGHT)


def _large_and_small(api: Api) -> Tensor:
    x = torch.full((4096,), 256.0 if api.rank == 0 else 1.0, dtype=torch.bfloat16, device=api.device)
    api.all_reduce(x)
    return x.cpu()


def nan(session: Session) -> Verdict:
    example = "one rank has NaN, the others 1, 2, ...: sum, min and max of FP32, FP16 and BF16, the NaN on each rank"

    def judge(values: list[dict[str, Tensor]]) -> Verdict:
        for rank, found in enumerate(values):
            for what, x in found.items():
                if not bool(x.isnan().all()):
                    at = int((~x.isnan()).nonzero()[0])
                    smallest = f"{what}, NaN on rank {at % session.ranks}"
                    return Verdict("wrong", f"{what}: {x[at].item():g} on rank {rank}, not NaN", smallest)
        return Verdict("right", example)

    return _scene(session, _nans, judge, example)


def _nans(api: Api) -> dict[str, Tensor]:
    results = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for op in ("sum", "min", "max"):
            x = torch.full((17 * api.size,), float(api.rank + 1), dtype=dtype, device=api.device)
            x[api.rank :: api.size] = float("nan")
            api.all_reduce(x, op)
            results[f"{op} of {dtype}".replace("torch.", "")] = x.cpu()
    return results


def _constant(api: Api, value: float, dtype: torch.dtype, op: str) -> Tensor:
    x = _filled(value, dtype).to(api.device)
    api.all_reduce(x, op)
    return x.cpu()


def _filled(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((33,), value, dtype=torch.float64 if isinstance(value, float) else torch.int64).to(dtype)


def _constants(session: Session, cases: Sequence[tuple[float, torch.dtype, str, float]], ranks: int) -> Verdict:
    """(value on every rank, dtype, op, right result): the first that is wrong, or right."""
    without = []
    for value, dtype, op, right in cases:
        example = f"{op} of {value:g} on {ranks} ranks, {str(dtype).removeprefix('torch.')}"
        expected = _filled(right, dtype)
        verdict = _scene(
            session,
            partial(_constant, value=value, dtype=dtype, op=op),
            partial(_equal, expected, example),
            example,
            ranks,
        )
        if verdict.mark == "refused":
            without.append(example)
        elif verdict.mark != "right":
            return verdict
    if len(without) == len(cases):
        return verdict
    text = "; ".join(f"{op} of {value:g} ({str(dtype).removeprefix('torch.')})" for value, dtype, op, _ in cases)
    return Verdict("right", text + (f"; refused: {', '.join(without)}" if without else ""))


def negative_zero(session: Session) -> Verdict:
    cases = [(-0.0, dtype, "sum", -0.0) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    return _constants(session, cases, session.ranks)


def subnormals(session: Session) -> Verdict:
    n = session.ranks
    smallest = ((torch.float32, 2.0**-149), (torch.float16, 2.0**-24), (torch.bfloat16, 2.0**-133))
    return _constants(session, [(value, dtype, "sum", n * value) for dtype, value in smallest], n)


def averages(session: Session) -> Verdict:
    cases = [(60000.0, torch.float16, "avg", 60000.0), (2.0**-24, torch.float16, "avg", 2.0**-24),
             (2.0**-149, torch.float32, "avg", 2.0**-149), (2.0**-133, torch.bfloat16, "avg", 2.0**-133)]  # fmt: skip
    return _constants(session, cases, EIGHT)


def integers(session: Session) -> Verdict:
    n = session.ranks
    cases: list[tuple[float, torch.dtype, str, float]] = [
        (2**60 // n + 1, torch.int64, "sum", 2**60 // n * n + n),
        (1, torch.bool, "sum", 1),
        (3, torch.uint8, "prod", 3**n % 256),
    ]
    return _constants(session, cases, n)


SHAPES = ((0,), (1, 0, 2), (0, 8), (1,), (3,))


def empty(session: Session) -> Verdict:
    for shape in SHAPES:
        example = f"all_reduce, all_gather, broadcast of shape {shape}, then all_reduce of 1 element"
        inputs = testing.make_inputs(session.ranks, shape, torch.float32, "small", 1)
        expected = [oracle.reduce(inputs), oracle.all_gather(inputs), inputs[session.ranks - 1]]

        def judge(values: list[list[Tensor]], expected: Any = expected, example: str = example) -> Verdict:
            for rank, results in enumerate(values):
                for got, right in zip(results, [*expected, torch.full((1,), float(session.ranks))], strict=True):
                    if not oracle.same_bits(got, right):
                        return Verdict(
                            "wrong", f"rank {rank}: {tuple(got.shape)}, {got.flatten()[:4].tolist()}", example
                        )
            return Verdict("right")

        verdict = _scene(session, partial(_small, inputs=inputs), judge, example)
        if verdict.mark != "right":
            return verdict
    return Verdict("right", f"shapes {', '.join(map(str, SHAPES))} on {session.ranks} ranks")


def _small(api: Api, inputs: Sequence[Tensor]) -> list[Tensor]:
    one = torch.ones(1, device=api.device)
    results = [_all_reduce(api, inputs, "sum"), _all_gather(api, inputs), _broadcast(api, inputs, api.size - 1)]
    api.all_reduce(one)
    return [*results, one.cpu()]


def _placed(api: Api, inputs: Sequence[Tensor], layout: Layout, collective: str) -> tuple[Tensor, str]:
    guarded = Guarded(inputs[api.rank].to(api.device), layout)
    if collective == "all_reduce":
        api.all_reduce(guarded.view)
    else:
        api.broadcast(guarded.view, api.size - 1)
    try:
        guarded.check()
        outside = ""
    except AssertionError as error:
        outside = str(error)
    return guarded.view.cpu().clone(), outside


def _layouts(session: Session, unaligned_only: bool) -> Verdict:
    from hypothesis import strategies as st

    def draw(d: Any) -> dict[str, Any]:
        shape = d(st.sampled_from([(2, 2), (4,), (3, 4), (64, 33)]))
        layout = (
            Layout(d(st.integers(1, 5))) if unaligned_only else Layout(0, d(st.sampled_from((1, 2))), d(st.booleans()))
        )
        dtype = d(st.sampled_from((torch.float32, torch.float16, torch.uint8)))
        inputs = testing.make_inputs(session.ranks, shape, dtype, "small", 3)
        return {
            "inputs": inputs,
            "dtype": dtype,
            "layout": layout,
            "collective": d(st.sampled_from(("all_reduce", "broadcast"))),
        }

    def check(inputs: list[Tensor], dtype: torch.dtype, layout: Layout, collective: str) -> None:
        what = f"{collective} of stride {layout.stride}" + (", transposed" if layout.transposed else "")
        placed = _values(session.ask(_placed, inputs, layout, collective), what)
        expected = oracle.reduce(inputs) if collective == "all_reduce" else inputs[-1]
        for rank, (output, outside) in enumerate(placed):
            testing.assert_same_bits(output, expected, f"rank {rank}")
            assert not outside, f"rank {rank}: {outside}"

    return search(session, draw, check)


def one_channels_last(session: Session) -> Verdict:
    inputs = testing.make_inputs(session.ranks, (2, 3, 4, 5), torch.float32, "small", 4)
    example = "all_reduce of shape (2, 3, 4, 5): channels-last on rank 0, contiguous on the others"
    judge = partial(_equal, oracle.reduce(inputs), example)
    return _scene(session, partial(_channels_last, inputs=inputs), judge, example)


def _channels_last(api: Api, inputs: Sequence[Tensor]) -> Tensor:
    x = inputs[api.rank].to(api.device)
    x = x.to(memory_format=torch.channels_last) if api.rank == 0 else x.clone()
    api.all_reduce(x)
    return x.cpu().contiguous()


def overlapping(session: Session) -> Verdict:
    example = "all_reduce of torch.ones(4)[:1].expand(4): four elements in one place"

    def judge(values: list[list[float]]) -> Verdict:
        if values[0] == [float(session.ranks), 1.0, 1.0, 1.0]:
            return Verdict("right", "reduced as one element")
        return Verdict("wrong", f"no error, and memory next to the tensor is written: {values[0]}", example)

    return _errors_are_right(_scene(session, _expanded, judge, example))


def _expanded(api: Api) -> list[float]:
    memory = torch.ones(4, device=api.device)
    api.all_reduce(memory[:1].expand(4))
    found: list[float] = memory.tolist()
    return found


def _errors_are_right(verdict: Verdict) -> Verdict:
    return Verdict("right", f"error on every rank: {verdict.text}") if verdict.mark == "refused" else verdict


# Ranks that disagree: nothing but an error on every rank is right.


def mismatch(fn: Callable[[Api], Any], example: str, session: Session) -> Verdict:
    outcomes = session.ask(fn)
    kind = same(outcomes)
    if kind == "error":
        slowest = max(outcome.seconds for outcome in outcomes)
        return Verdict("right", f"error on every rank after {slowest:.1f} s: {outcomes[0].text[:160]}")
    if kind in ("hang", "crash"):
        return Verdict(kind, first(outcomes, kind), example)
    ranks = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == "value"]
    return Verdict("garbage", f"ranks {ranks} returned and raised nothing", example)


def _other_length(api: Api) -> None:
    api.all_reduce(torch.ones(1000 + (api.rank == 1), device=api.device))


def _none_here(api: Api) -> None:
    api.all_reduce(torch.ones(0 if api.rank == 1 else 1000, device=api.device))


def _other_length_scatter(api: Api) -> None:
    part = 1000 + (api.rank == 1)
    api.reduce_scatter(torch.empty(part, device=api.device), torch.ones(part * api.size, device=api.device))


def _other_length_gather(api: Api) -> None:
    part = 1000 + (api.rank == 1)
    api.all_gather(torch.empty(part * api.size, device=api.device), torch.ones(part, device=api.device))


def _other_length_broadcast(api: Api) -> None:
    api.broadcast(torch.ones(1000 + (api.rank == 1), device=api.device))


def _other_dtype(api: Api) -> None:
    x = torch.ones(400, dtype=torch.int32) if api.rank == 1 else torch.ones(400)
    api.all_reduce(x.to(api.device))


def _other_op(api: Api) -> None:
    api.all_reduce(torch.ones(400, device=api.device), "max" if api.rank == 1 else "sum")


def _other_root(api: Api) -> None:
    api.broadcast(torch.full((400,), float(api.rank), device=api.device), 1 if api.rank == 1 else 0)


def _other_collective(api: Api) -> None:
    x = torch.ones(400, device=api.device)
    api.broadcast(x) if api.rank == 1 else api.all_reduce(x)


# Ranks that die, stop or are late.


def _dead(api: Api, how: signal.Signals) -> float:
    x = torch.ones(1000, device=api.device)
    api.all_reduce(x)  # all are there
    if api.rank == 1:
        os.kill(os.getpid(), how)
    start = time.monotonic()
    try:
        api.all_reduce(x)
    except Exception:
        return time.monotonic() - start
    return -1.0


def dead(how: signal.Signals, session: Session) -> Verdict:
    what = "killed" if how == signal.SIGKILL else "stopped"
    example = (
        f"rank 1 is {what} ({how.name}) before an all_reduce of the others; their timeout is {session.timeout:g} s"
    )
    outcomes = session.ask(partial(_dead, how=how))
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != 1]
    kind = same(others)
    if kind != "value":
        return Verdict(kind, first(others, kind), example)
    if min(outcome.value for outcome in others) < 0:
        return Verdict("garbage", "an all_reduce without rank 1 returned", example)
    return Verdict("right", f"the others raise an error within {max(outcome.value for outcome in others):.1f} s")


def late(session: Session) -> Verdict:
    example = "all_reduce, for which rank 1 is a second late"
    return _scene(session, _late, partial(_equal, torch.full((1000,), float(session.ranks)), example), example)


def _late(api: Api) -> Tensor:
    time.sleep(1.0 if api.rank == 1 else 0.0)
    x = torch.ones(1000, device=api.device)
    api.all_reduce(x)
    return x.cpu()


def _mismatch(name: str, fn: Callable[[Api], None], example: str) -> Probe:
    return Probe(f"mismatch: {name}", "an error on every rank", partial(mismatch, fn, example))


PROBES = (
    Probe("exact: all_reduce", "sums that are exact in any order are exact", exact_all_reduce),
    Probe("exact: reduce_scatter", "the same, a part a rank", exact_reduce_scatter),
    Probe("exact: all_gather", "any bit pattern arrives as it was", moves_all_gather),
    Probe("exact: broadcast", "any bit pattern arrives as it was, from any root", moves_broadcast),
    Probe("exact: integers and bool", "integers wrap and take no detour by floats, bool sums are or", integers),
    Probe("exact: empty and small tensors", "no element, or fewer than ranks", empty),
    Probe("bits: same on all ranks", "whatever the data", same_on_all_ranks),
    Probe("bits: same run after run", "whoever is late", run_to_run),
    Probe(
        "bits: independent of the size",
        "an element's result does not depend on the message's length",
        size_independence,
    ),
    Probe("accuracy: within the bound", "what any order of additions may give", within_the_bound),
    Probe("accuracy: measured", "how far off sums are", accuracy),
    Probe("accuracy: BF16 is added in FP32", "small numbers are not lost next to a large one", wide_sums),
    Probe("values: NaN", "sum, min and max are NaN, whichever rank has it", nan),
    Probe("values: -0.0", "the sum of negative zeros is one", negative_zero),
    Probe("values: subnormal numbers", "are not taken for zero", subnormals),
    Probe("values: averages at the ends of the range", "neither overflow nor vanish", averages),
    Probe(
        "memory: unaligned tensors",
        "right, and nothing next to them is written",
        partial(_layouts, unaligned_only=True),
    ),
    Probe(
        "memory: non-contiguous tensors", "right, or an error on every rank", partial(_layouts, unaligned_only=False)
    ),
    Probe("memory: channels-last on one rank", "right, or an error on every rank", one_channels_last),
    Probe("memory: overlapping elements", "an error on every rank", overlapping),
    _mismatch("length", _other_length, "all_reduce of 1,001 elements on rank 1, of 1,000 on the others"),
    _mismatch("nothing on one rank", _none_here, "all_reduce of no element on rank 1, of 1,000 on the others"),
    _mismatch(
        "reduce_scatter length", _other_length_scatter, "reduce_scatter to 1,001 elements on rank 1, 1,000 elsewhere"
    ),
    _mismatch("all_gather length", _other_length_gather, "all_gather of 1,001 elements on rank 1, 1,000 elsewhere"),
    _mismatch("broadcast length", _other_length_broadcast, "broadcast of 1,001 elements on rank 1, 1,000 elsewhere"),
    _mismatch("dtype", _other_dtype, "all_reduce of int32 on rank 1, of float32 on the others"),
    _mismatch("op", _other_op, "all_reduce with max on rank 1, with sum on the others"),
    _mismatch("root", _other_root, "broadcast from rank 1 on rank 1, from rank 0 on the others"),
    _mismatch("collective", _other_collective, "broadcast on rank 1, all_reduce on the others"),
    Probe("time: a dead rank", "the others raise an error in bounded time", partial(dead, signal.SIGKILL)),
    Probe("time: a stopped rank", "the others raise an error in bounded time", partial(dead, signal.SIGSTOP)),
    Probe("time: a late rank", "is waited for", late),
)
