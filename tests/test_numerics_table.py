"""The measured errors: that they are what the page says, what theory says, and below what it proves."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tricoll import numerics, oracle, testing
from tricoll.cli import app
from tricoll.numerics import BEGIN, END, Case
from tricoll.oracle import order

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
PAGE = Path(__file__).parents[1] / "docs" / "numerics.md"


@pytest.fixture(scope="module")
def table():
    """What ``tricoll numerics`` measures, by case and ranks."""
    return {(m.case, m.ranks): m for m in numerics.measure()}


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(app, ["numerics", *map(str, arguments)], env={"COLUMNS": "100"})

    return invoke


# The figures.


def test_the_page_has_the_table(table):
    """Character for character: data, sums and roundings are the same on every machine."""
    conditions = numerics._conditions(numerics.DTYPES, 8, 2**16, 0)
    written = numerics._markdown(list(table.values()), conditions)
    assert f"{BEGIN}\n{written}{END}" in PAGE.read_text()


def test_everything_is_measured(table):
    expected = {(case, n) for case in numerics.CASES for n in (2, 4, 8, 16, 32, 64)}
    assert set(table) == {(case, n) for case, n in expected if case.algorithm != "hierarchical" or n >= 8}


def test_errors_are_within_the_proven_bound(table):
    assert all(0 < m.of_bound <= 1 for m in table.values())
    # One rounding comes as near to its bound as it can, two shares of a sum as well.
    assert all(m.of_bound > 0.95 for m in table.values() if m.case.fp32_wire)
    assert table[Case("two_shot"), 2].of_bound > 0.9


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64])
def test_errors_are_as_large_as_independent_roundings_make_them(table, n):
    """Squares of roundings add up, each weighted with the number of shares in what is rounded."""
    once = table[Case("ring", fp32_wire=True), n].rms
    roundings = {"two_shot": 2, "ring": (n + 1) / 2, "hierarchical": 2 + (n // 8 - 1) / 2}
    for algorithm, count in roundings.items():
        if (Case(algorithm), n) in table:
            assert table[Case(algorithm), n].rms == pytest.approx(once * math.sqrt(count), rel=0.02)


def test_one_rounding_is_half_an_ulp(table):
    """Of sums of one sign; those of both signs also show what FP32 loses."""
    for n in numerics.RANKS:
        assert 0.499 < table[Case("ring", fp32_wire=True), n].ulps_positive < 0.501
    assert all(m.ulps >= m.ulps_positive for m in table.values() if not m.case.fp32_wire)


def test_the_direct_family_on_8_ranks():
    """Two roundings of FP32 shares cost 2.35e-3; one, of BF16 shares, which the wire has, less than 2.3e-3."""

    def rms(dtype):
        (found,) = [m for m in numerics.measure([8], (dtype, BF16, BF16)) if m.case == Case("two_shot")]
        return found.rms

    assert rms(BF16) < 2.3e-3
    assert 2.3e-3 < rms(FP32) < 2.4e-3


@pytest.mark.parametrize("wire", [BF16, FP16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_the_direct_family_rounds_correctly_what_it_can_add_exactly(n, wire):
    """Shares of the wire type with exact FP32 partial sums: every element is the nearest one to the exact sum."""
    generator = torch.Generator().manual_seed(n)
    most = int(2 / torch.finfo(wire).eps)  # the wire type has all integers up to here, and from here every second one
    shares = list(torch.randint(-most, most + 1, (n, 20_000), generator=generator).float().to(wire))
    total = torch.stack(shares).double().sum(0)
    finite = torch.arange(2 ** (8 * wire.itemsize), dtype=torch.int32).to(oracle.BITS[wire.itemsize]).view(wire)
    candidates = finite.double()[finite.double().isfinite()].unique()
    nearest = torch.searchsorted(candidates, total).clamp(1, len(candidates) - 1)
    least = torch.minimum((candidates[nearest] - total).abs(), (total - candidates[nearest - 1]).abs())
    assert least.any() or n == 1  # some sums do have to be rounded
    for algorithm in ("two_shot", "one_shot"):
        for shares_of in (shares, [x.float() for x in shares]):
            result = oracle.all_reduce(shares_of, "sum", wire, wire if shares_of is shares else None, algorithm)
            assert ((result.double() - total).abs() == least).all()
            testing.assert_same_bits(result.to(wire), total.float().to(wire))


# What is proven.


class Counted:
    """In place of the oracle's steps: of every share, how often it was rounded to the wire and in the accumulator."""

    def __init__(self, n, node_size=None):
        self.n, self.node_size = n, node_size or n

    def enter(self, share):
        return {share: (0, 0)}

    def travel(self, x):
        return {share: (a + 1, b) for share, (a, b) in x.items()}

    def combine(self, x, y):
        return {share: (a, b + 1) for share, (a, b) in {**x, **y}.items()}


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "one_shot", "multimem", "hierarchical", "tree"])
def test_roundings_are_counted(algorithm):
    for n in range(2, 70):
        for node_size in range(1, n + 1) if algorithm == "hierarchical" else [n]:
            if n % node_size:
                continue
            counted, shares = Counted(n, node_size), list(range(n))
            if algorithm == "tree":
                totals = [order.tree(counted, shares), order.tree(counted, order.second_tree(shares))]
            else:
                totals = [order.total(counted, algorithm, shares, owner) for owner in range(n)]
            totals = [counted.travel(total) for total in totals]
            assert all(set(total) == set(shares) for total in totals)
            most = tuple(max(counts[k] for total in totals for counts in total.values()) for k in (0, 1))
            to_wire, added = numerics.roundings(algorithm, n, node_size)
            if algorithm == "hierarchical" and node_size == 1:
                to_wire += 1  # of the first share a second time, which changes nothing
            if algorithm == "tree":
                assert most[0] <= to_wire and most[1] <= added
                assert n & (n - 1) or most == (to_wire, added)  # reached if n is a power of two
            else:
                assert most == (to_wire, added)


def test_the_bound_by_hand():
    u = 2.0**-8
    assert numerics.bound("two_shot", 2, 8, BF16, BF16, FP32) == pytest.approx((1 + u) ** 2 * (1 + 2.0**-24) - 1)
    assert numerics.bound("ring", 3, 8, FP32, FP32, FP32) == pytest.approx((1 + 2.0**-24) ** 2 - 1)
    assert numerics.bound("ring", 2, 8, FP32, BF16, FP32) == pytest.approx((1 + u) * (1 + 2.0**-24) - 1)
    assert numerics.bound("ring", 2, 8, BF16, FP32, FP32) == pytest.approx((1 + u) ** 2 * (1 + 2.0**-24) - 1)


@pytest.mark.parametrize("kind", ["random", "ties", "cancelling"])
@pytest.mark.parametrize("wire, out", [(BF16, BF16), (FP32, FP32), (BF16, torch.float8_e5m2), (FP16, FP32)])
def test_no_data_break_the_bound(wire, out, kind):
    """Data that were made to be hard; as large as FP16 and float8 can take without overflow."""
    for n in (2, 3, 8, 16):
        inputs = [(x.double() / 2**13).float() for x in testing.make_inputs(n, (2000,), FP32, kind, n)]
        exact = torch.stack(inputs).sum(0, dtype=torch.float64)
        size = torch.stack(inputs).abs().sum(0, dtype=torch.float64)
        large = (size > 2.0**-4 * n) & (size < 10_000)  # nothing near subnormal, nothing near overflow
        for case in numerics.CASES[:4]:
            nodes = n // 2 if case.algorithm == "hierarchical" and n % 2 == 0 else None
            if case.algorithm == "hierarchical" and not nodes:
                continue
            result = oracle.all_reduce(inputs, "sum", wire, out, case.algorithm, node_size=nodes)
            limit = numerics.bound(case.algorithm, n, nodes or n, wire, out, FP32)
            assert bool((((result.double() - exact).abs() <= limit * size) | ~large).all())


@pytest.mark.parametrize("dtype", oracle.FLOATS, ids=str)
def test_ulp(dtype):
    """What lies between a number and the next larger one of the type."""
    x = testing.make_inputs(1, (4000,), dtype)[0]
    x = x[(x.double() > 0) & (x.double() < torch.finfo(dtype).max)]
    following = (oracle.bits(x) + 1).view(dtype)
    assert numerics.ulp(x.double(), dtype).tolist() == (following.double() - x.double()).tolist()
    # The same for numbers that lie between.
    between = (x.double() + following.double()) / 2
    if dtype != torch.float64:
        assert numerics.ulp(-between, dtype).tolist() == (following.double() - x.double()).tolist()


# The command.


def test_help_teaches(run):
    text = run("--help").stdout
    assert "tricoll numerics --plot error.png" in text and "rounds at every hop" in text


def test_tables_are_shown(run):
    result = run("--ranks", 2, "--ranks", 4, "--node-size", 2, "--elements", 1000, "--seed", 7)
    assert result.exit_code == 0, result.stderr
    assert "Sums of 1,000 normal numbers a rank (seed 7): float32 in, bfloat16 on the wire" in result.stdout
    found = list(numerics.measure([2, 4], node_size=2, elements=1000, seed=7))
    for case in numerics.CASES:
        (two, four) = [m for m in found if m.case == case]
        assert re.search(rf"^{case} +{two.rms * 1000:.3g} +{four.rms * 1000:.3g} *$", result.stdout, re.M)


def test_other_types(run):
    result = run("--ranks", 3, "--elements", 100, "--dtype", "fp32")
    assert result.exit_code == 0 and "float32 out" in result.stdout
    assert "FP32 wire" not in result.stdout  # it is the same
    assert "hierarchical" not in result.stdout  # 3 ranks are not nodes of 8


def test_markdown_is_replaced_in_place(run, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\nafter\n")
    assert run("--ranks", 2, "--elements", 100, "--markdown", page).exit_code == 0
    text = page.read_text()
    assert text.startswith(f"before\n\n{BEGIN}\nSums of 100 normal") and text.endswith(f"|\n{END}\nafter\n")
    assert "old" not in text and "| ring | " in text
    assert run("--ranks", 2, "--elements", 100, "--markdown", page).exit_code == 0
    assert page.read_text() == text


@pytest.mark.parametrize("text", ["", "no markers", f"{END}\n{BEGIN}\n"])
def test_markdown_without_markers(run, tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    result = run("--ranks", 2, "--elements", 100, "--markdown", page)
    assert (
        result.exit_code == 2
        and f"must have these two lines; the tables go between them:\n{BEGIN}\n{END}" in result.stderr
    )
    assert page.read_text() == text and not result.stdout


def test_a_plot_is_drawn(run, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "error.png"
    assert run("--ranks", 2, "--ranks", 4, "--elements", 100, "--plot", path).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    result = run("--ranks", 2, "--elements", 100, "--plot", tmp_path / "error.txt")
    assert result.exit_code == 2 and re.search(
        r"of no type that matplotlib can write: one of .*png.*svg", result.stderr
    )


def test_a_plot_needs_matplotlib(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("--ranks", 2, "--elements", 100, "--plot", tmp_path / "error.png")
    assert result.exit_code == 2 and 'pip install "tricoll[plot]"' in result.stderr
    assert not result.stdout  # nothing was measured in vain
    assert run("--ranks", 2, "--elements", 100).exit_code == 0


@pytest.mark.parametrize("dtype", ["int32", "all", "fp32:bf16", "fp7"])
def test_types_that_have_no_error(run, dtype):
    result = run("--dtype", dtype)
    assert result.exit_code == 2 and "--dtype" in result.stderr
