"""Comparing results, and the page with pictures."""

import dataclasses
import html.parser
import json
import re

import pytest
import torch
from typer.testing import CliRunner

from tricoll.bench import compare, plots, report, results
from tricoll.bench.cli import app
from tricoll.bench.measure import Case, Seen, Side
from tricoll.bench.run import compare_rows

SIZES = (1024, 1 << 14, 1 << 18)


def result(factor=1.0, wrong=0, noise=0.01, slow_machine=1.0, ranks=4):
    """A report of tricoll, ``factor`` times as slow as usual, next to gloo."""
    found = results.Report("all_reduce", "tricoll bench all_reduce", {"ranks": ranks})
    for size in SIZES:
        rows = []
        for name, base in (("tricoll", factor * 1e-3), ("gloo", 2e-3)):
            seconds = [base * slow_machine * (1 + size / 1e6) * (1 + noise * (i % 5 - 2)) for i in range(10)]
            seen = Seen(name, sides=(Side(seconds, wrong), Side(seconds)), ulps=1.0, error=1.0, scale=1e6)
            case = Case("all_reduce", size // 4, torch.float32, "sum", -1)
            rows.append(results.row(case, (size // 4,) * 3, [dataclasses.replace(seen) for _ in range(ranks)], 1))
            found.add(rows[-1])
        found.comparisons += compare_rows(rows)
    return found


def as_read(found, path):
    found.write_json(path)
    return results.read_json(path)


@pytest.fixture
def reports(tmp_path):
    return lambda *found: [as_read(f, tmp_path / f"{i}.json") for i, f in enumerate(found)]


def verdicts(old, new, **options):
    return {c.what: c.verdict for c in compare.compare([old], [new], **options)}


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "same"),
        ({"factor": 1.2}, "slower"),
        ({"factor": 0.8}, "faster"),
        ({"factor": 1.06, "noise": 0.1}, "unclear"),
    ],
)
def test_verdicts(reports, options, verdict):
    old, new = reports(result(noise=options.get("noise", 0.01)), result(**options))
    found = verdicts(old, new)
    assert len(found) == 2 * 2 * len(SIZES)
    tricoll = {what: v for what, v in found.items() if what.startswith("tricoll")}
    assert set(tricoll.values()) == {verdict}
    assert "tricoll all_reduce 4 1024 float sum out_of_place" in tricoll


def test_a_slow_machine_does_not_count_relative_to_a_peer(reports):
    old, new = reports(result(), result(slow_machine=1.5))
    assert set(verdicts(old, new).values()) == {"slower"}
    assert set(verdicts(old, new, relative_to="gloo").values()) == {"same"}
    with pytest.raises(ValueError, match="no backend 'nccl'"):
        verdicts(old, new, relative_to="nccl")


def test_wrong_is_worse_than_slow(reports):
    old, new = reports(result(), result(factor=0.5, wrong=1))
    found = verdicts(old, new)
    assert found["tricoll all_reduce 4 1024 float sum out_of_place"] == "wrong"
    assert found["tricoll all_reduce 4 1024 float sum in_place"] == "faster"


def test_differences_are_said(reports):
    old, new = reports(result(), result(ranks=8))
    new["machine"]["torch"] = "1.0"
    assert "ranks: 4, 8" in compare.differences(old, new)
    assert any(text.startswith("torch: ") and text.endswith(", 1.0") for text in compare.differences(old, new))


def test_the_commands(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path, found in zip(paths, (result(), result(factor=1.3), result(factor=1.31)), strict=True):
        found.write_json(path)
    invoke = lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})
    assert invoke("compare", paths[0], paths[0]).exit_code == 0
    slower = invoke("compare", paths[0], paths[1], "--new", paths[2])
    assert slower.exit_code == 1
    assert re.search(r"tricoll all_reduce 4 1024 float sum in_place +\S+ +\S+ +1\.3\d\d \[.*\] +slower", slower.stdout)
    assert "slower: 6, same: 6" in slower.stdout
    paths[2].write_text(json.dumps({}))
    assert invoke("compare", paths[0], paths[2]).exit_code == 2
    assert invoke("report", paths[2]).exit_code == 2
    written = invoke("report", paths[0], "-o", tmp_path / "r.html", "--png", tmp_path / "png")
    assert written.exit_code == 0, written.output
    assert {p.name for p in (tmp_path / "png").iterdir()} == {
        "all_reduce_busbw.png", "all_reduce_time.png", "all_reduce_ratio.png", "accuracy.png",
    }  # fmt: skip


class Page(html.parser.HTMLParser):
    """Collects what a page refers to, and counts."""

    def __init__(self, text):
        super().__init__()
        self.links, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]


def test_the_page_needs_nothing_else(reports, tmp_path):
    found = result(wrong=2)
    found.unavailable.append("nccl: <none> & nothing")
    report.write(reports(found), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.tags.count("img") == 4
    assert all(link.startswith("data:image/png;base64,iVBOR") for link in page.links)
    assert "nccl: &lt;none&gt; &amp; nothing" in text
    assert found.machine["cpu"] in text
    assert page.tags.count("tr") == 1 + 2 * len(SIZES)
    assert text.count('<tr class="bad">') == 2 * len(SIZES)


def test_pictures_show_the_numbers(reports):
    (read,) = reports(result())
    by_name = {name: figure for name, _, figure in plots.figures([read])}
    line = by_name["all_reduce_busbw"].axes[0].lines[0]
    assert line.get_label() == "tricoll"
    assert list(line.get_xdata()) == list(SIZES)
    own = [r["out_of_place"]["bus_bw"] for r in read["results"] if r["backend"] == "tricoll"]
    assert list(line.get_ydata()) == own
    floor = by_name["all_reduce_time"].axes[0].lines[1]
    times = [r["out_of_place"]["time"] for r in read["results"] if r["backend"] == "tricoll"]
    assert all(low <= t + 1e-9 for low, t in zip(floor.get_ydata(), times, strict=True))
    ratio = by_name["all_reduce_ratio"].axes[0].lines[0]
    assert list(ratio.get_ydata()) == [c["ratio"] for c in read["comparisons"]]
