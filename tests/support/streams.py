"""Calls of any collective, as data: they are drawn, made by simulated ranks or processes, and judged afterwards.

A :class:`Step` is one call, the same on all ranks but for the values. :class:`Played` holds its tensors, every one of
them in a larger buffer with canaries around it.
"""

import itertools
from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st

import tricoll
from tricoll import dispatch, oracle, testing
from tricoll.testing import Guarded, Layout

ROWED = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")  # dimension 0 means something
ROOTED = ("broadcast", "reduce", "gather", "scatter")
FP32 = (torch.float32, torch.float32, torch.float32)
BF16_WIRE = (torch.float32, torch.bfloat16, torch.float32)
CALLS = [(a, c) for a, collectives in dispatch.ALGORITHMS.items() for c in collectives if c != "recv"]


class Step(NamedTuple):
    """One call. "send" is a send and the recv that belongs to it."""

    algorithm: str
    collective: str
    shape: tuple[int, ...]  # of a rank's input
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = FP32  # input, wire, output
    op: str = "sum"
    scale: float | None = None
    root: int = 0  # of a send: who sends
    peer: int = 1  # of a send: who receives
    sizes: tuple[int, ...] | None = None  # rows a rank
    splits: tuple[tuple[int, ...], ...] | None = None  # rows from each rank to each
    place: str = "out"  # "out": in a given tensor, "in place", or "new", where the collective makes one
    layout: Layout = Layout()
    out_layout: Layout = Layout()
    kind: str = "mixed"
    seed: int = 0

    @property
    def name(self) -> str:
        """For whom it may concern."""
        return f"{self.algorithm} {self.collective}"


def callable_in(n, node_size, mapped):
    """The (algorithm, collective) that there are in a world."""
    nodes = 1 < node_size < n and n % node_size == 0
    missing = {"hierarchical": not nodes, "multimem": not mapped}
    return [(a, c) for a, c in CALLS if not missing.get(a) and not (c == "send" and n == 1)]


class Played:
    """A step with its tensors, all made beforehand, and its judgement."""

    def __init__(self, step, n, node_size=0, device="cpu"):
        self.step, self.n, self.node_size, self.device = step, n, node_size, device
        rows = step.sizes if step.collective == "all_gather" else None
        if step.splits is not None:
            rows = [sum(parts) for parts in step.splits]
        if step.collective != "barrier":
            self.inputs = testing.make_inputs(n, step.shape, step.dtypes[0], step.kind, step.seed, rows)
            places = [self._place(rank) for rank in range(n)]
            self.source, self.target, self.memory, self.before = map(list, zip(*places, strict=True))

    def _place(self, me):
        # x, out, the guards around them, and what must still be in them at the end.
        step, given = self.step, self.inputs[me]
        shape, start = self._result(me)
        if step.place == "in place" and step.collective in ("all_gather", "gather"):  # x is a part of out
            whole = torch.zeros(shape, dtype=given.dtype, device=self.device)
            guard = Guarded(whole, step.layout)
            x = guard.view.narrow(0, start, given.shape[0])
            x.copy_(given)
            return x, guard.view, [guard], None
        x = Guarded(given.to(self.device), step.layout)
        if step.place == "in place" and step.collective in ("reduce_scatter", "scatter"):  # out is a part of x
            out = x.view.narrow(0, start, shape[0])
            kept = torch.ones(given.shape, dtype=torch.bool)
            kept.narrow(0, start, shape[0]).fill_(False)
            return x.view, out, [x], [(x.view, given, kept)]
        if step.place == "in place":
            return x.view, x.view, [x], None
        unchanged = [(x.view, given, torch.ones(given.shape, dtype=torch.bool))]
        if step.place == "new" and not (step.collective == "scatter" and me != step.root):
            return x.view, None, [x], unchanged
        out = Guarded(torch.zeros(shape, dtype=step.dtypes[2], device=self.device), step.out_layout)
        if step.collective in ("reduce", "gather") and me != step.root:  # not written
            unchanged.append((out.view, torch.zeros_like(out.view).cpu(), torch.ones(shape, dtype=torch.bool)))
        return x.view, out.view, [x, out], unchanged

    def _result(self, me):
        # The shape of a rank's result, and the row at which its own part of a larger whole starts.
        step, n = self.step, self.n
        first, rest = (step.shape[0], step.shape[1:]) if step.shape else (1, ())
        sizes = step.sizes or ([first] if step.collective in ("all_gather", "gather") else [first // n]) * n
        start = sum(sizes[:me])
        if step.collective in ("all_gather", "gather"):
            return (sum(sizes), *rest), start
        if step.collective in ("reduce_scatter", "scatter"):
            return (sizes[me], *rest), start
        if step.splits is not None:
            return (sum(parts[me] for parts in step.splits), *rest), 0
        return step.shape, 0

    def on(self, comm):
        """Make the call on this rank. Returns the result, None if it has none."""
        step, me = self.step, comm.rank
        if step.collective == "barrier":
            return comm.barrier()
        x, out = self.source[me], self.target[me]
        if step.collective == "send":
            if me == step.root:
                comm.send(x, step.peer, wire=step.dtypes[1])
            elif me == step.peer:
                return comm.recv(x, step.root, wire=step.dtypes[1])
            return None
        options = {"wire": step.dtypes[1]}
        if step.collective in dispatch.ALGORITHMS["ring"]:
            options["algo"] = step.algorithm
        if step.collective in ("all_reduce", "reduce_scatter", "reduce"):
            options["op"] = tricoll.premul_sum(step.scale) if step.op == "premul_sum" else step.op
        if step.collective in ROOTED:
            options["root"] = step.root
        if step.sizes is not None:
            options["sizes"] = step.sizes
        if step.splits is not None:
            options["input_splits"] = step.splits[me]
            options["output_splits"] = [parts[me] for parts in step.splits]
        if out is not x:
            options["out"] = out
        if step.collective == "all_to_all" and step.place == "in place":
            options["out"] = x
        if step.collective == "scatter" and me != step.root:
            x = None
        result = getattr(comm, step.collective)(x, **options)
        if step.place != "new" and result is not None:
            given = x if step.collective == "reduce" and me != step.root else out
            assert result is given, f"{step.name}, rank {me}: not the tensor that was given"
        return result

    def check(self, results):
        """Judge what all ranks returned: the bits, and that nothing else was written."""
        step = self.step
        if step.collective == "barrier":
            return
        self.check_bits([r if r is None else r.cpu() for r in results])
        for guard in itertools.chain(*self.memory):
            guard.check()
        written_in_place = ("broadcast", "send", "all_reduce", "all_to_all")
        for me, kept in enumerate(self.before):
            if step.collective == "send" and me == step.peer:
                continue
            if kept is None and step.collective not in written_in_place and me != step.root:
                continue  # all_gather and gather, whose x is judged as a part of the result; reduce judges itself
            for tensor, expected, where in kept or ():
                what = f"{step.name}, rank {me}: what is only read"
                testing.assert_same_bits(tensor.cpu()[where], expected[where], what)

    def check_bits(self, results):
        """Judge what all ranks returned, and nothing else: where their tensors are in other processes."""
        step = self.step
        wire, inputs = step.dtypes[1], self.inputs
        nodes = self.node_size if step.algorithm == "hierarchical" else None
        reduction = (results, inputs, step.op, wire, step.algorithm)
        if step.collective == "all_reduce":
            testing.check_all_reduce(*reduction, scale=step.scale, node_size=nodes)
        elif step.collective == "reduce_scatter":
            testing.check_reduce_scatter(*reduction, scale=step.scale, node_size=nodes, sizes=step.sizes)
        elif step.collective == "reduce":
            testing.check_reduce(*reduction, root=step.root, scale=step.scale)
        elif step.collective == "all_gather":
            testing.check_all_gather(results, inputs, wire)
        elif step.collective == "gather":
            assert [r is None for r in results] == [r != step.root for r in range(self.n)]
            testing.check_gather(results, inputs, step.root, wire)
        elif step.collective == "broadcast":
            testing.check_broadcast(results, inputs, step.root, wire)
        elif step.collective == "scatter":
            testing.check_scatter(results, inputs, step.root, wire)
        elif step.collective == "all_to_all":
            testing.check_all_to_all(results, inputs, step.splits, wire)
        else:
            expected = oracle.broadcast([inputs[step.root]], wire, step.dtypes[2])
            testing.assert_same_bits(results[step.peer], expected, f"send from {step.root} to {step.peer}")


def play(comm, calls):
    """Make all calls on this rank, with nothing between them."""
    return [call.on(comm) for call in calls]


def played(simulate, n, steps, node_size=None, **options):
    """Run the steps back to back on n simulated ranks, then judge every result. Returns the simulation."""
    calls = [Played(step, n, node_size) for step in steps]
    simulation = simulate(play, n, calls, node_size=node_size, **options)
    for i, call in enumerate(calls):
        call.check([results[i] for results in simulation.results])
    return simulation


# What to draw.


def examples(times):
    """As many examples as the profile's, times this."""
    return settings(max_examples=int(times * settings.default.max_examples))


@st.composite
def steps(draw, n, node_size, options, calls=None, most=600):
    """Strategy: any call that there is in a world whose links have these settings."""
    there = callable_in(n, node_size, options["link"] == "mapped")
    algorithm, collective = draw(st.sampled_from([c for c in there if calls is None or c in calls]))
    if collective == "barrier":
        return Step(algorithm, collective, ())
    dtypes = draw(testing.dtype_triples(every=True))
    reduces = collective in ("all_reduce", "reduce_scatter", "reduce")
    op = draw(testing.ops(dtypes[0], every=True)) if reduces else "sum"
    if algorithm == "multimem":
        dtypes = (dtypes[0], draw(st.sampled_from(oracle.MULTIMEM_WIRES)), dtypes[2])
        if dtypes[0] not in oracle.SMALL_FLOATS:
            dtypes = (torch.float32, dtypes[1], torch.float32)
        op = draw(st.sampled_from(("sum", "avg")))
    if collective == "send":
        dtypes = (dtypes[0], dtypes[1], dtypes[0])
    slot = max(1, options["slot_bytes"] // dtypes[1].itemsize)
    numel = draw(testing.numels(n, slot, options["block"], options["channels"], most))
    root = draw(testing.roots(n))
    shape, sizes, splits = _cut(draw, n, collective, numel)
    places = ["out"] if dtypes[0] != dtypes[2] else ["out", "in place", "new"]
    if collective in ("all_reduce", "reduce", "broadcast", "send") and "new" in places:
        places.remove("new")
    if splits is not None and "in place" in places:
        places.remove("in place")
    place = draw(st.sampled_from(places))
    if place == "in place" and collective in ROWED and not shape:
        shape = (1,)
    layout, out_layout = draw(testing.layouts()), draw(testing.layouts())
    if place == "in place" and collective in ROWED:
        layout = Layout(layout.offset)  # a part of the other must be contiguous
    return Step(
        algorithm,
        collective,
        shape,
        dtypes,
        op,
        draw(testing.scales()) if op == "premul_sum" else None,
        root,
        (root + draw(st.integers(1, max(1, n - 1)))) % n,
        sizes,
        splits,
        place,
        layout,
        out_layout,
        draw(st.sampled_from(testing.KINDS)),
        draw(st.integers(0, 2**32 - 1)),
    )


def _cut(draw, n, collective, numel):
    # The shape of an input of a rank, so that about ``numel`` elements are moved, with rows a rank, or splits.
    if collective not in ROWED:
        return draw(testing.shapes(numel)), None, None
    rest = draw(st.sampled_from(((), (), (1,), (3,), (2, 2), (0,))))
    rows = numel // max(1, n * torch.Size(rest).numel())
    if collective in ("all_gather", "gather") and rows == 1 and not rest and draw(st.booleans()):
        return (), None, None
    if collective in ("reduce_scatter", "all_gather") and draw(st.booleans()):
        sizes = draw(testing.sizes(n, min(rows + 2, 60)))
        return (sum(sizes) if collective == "reduce_scatter" else 0, *rest), tuple(sizes), None
    if collective == "all_to_all" and draw(st.booleans()):
        splits = [tuple(draw(testing.splits(n, draw(st.integers(0, rows + 3))))) for _ in range(n)]
        return (0, *rest), None, tuple(splits)
    return (rows if collective in ("all_gather", "gather") else n * rows, *rest), None, None


@st.composite
def streams(draw, least=1, most=5, worlds=None, calls=None, largest=600):
    """Strategy: ``(n, steps, options)`` of a world of any shape, and calls to make there back to back."""
    n = draw(worlds if worlds is not None else testing.world_sizes(8))
    node_size = draw(testing.node_sizes(n))
    options = draw(testing.settings())
    chosen = draw(st.lists(steps(n, node_size, options, calls, largest), min_size=least, max_size=most))
    return n, chosen, options | draw(testing.schedules()) | {"node_size": node_size}
