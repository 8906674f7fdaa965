"""tricoll trace: what a run did, as text, pictures and Chrome traces; deadlocks; the documentation's pictures."""

import doctest
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tricoll
from tricoll import cost, dispatch, lanes, timeline, trace
from tricoll.cli import app
from tricoll.fabric import sim
from tricoll.fabric.base import Event

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["trace", *map(str, arguments)], env={"COLUMNS": "100"})


def ring(**options):
    return trace.record("all_reduce", "ring", **options)


# What is recorded.


def test_the_example():
    failed, tried = doctest.testmod(trace)
    assert tried and not failed


@pytest.mark.parametrize("link", ["mapped", "put"])
def test_a_ring_is_what_it_should_be(link):
    """6 rounds on 4 ranks; a message of m bytes takes alpha + m / beta, and everybody waits for the left neighbour."""
    run = ring(ranks=4, nbytes=1 << 16, link=link)
    step = 5e-6 + 16384 / 50e9
    assert run.end == pytest.approx(6 * step)
    assert {e.kind for e in run.messages} == {"store" if link == "mapped" else "put"}
    for number, e in enumerate(run.messages):
        assert (e.rank, e.peer, e.nbytes) == (number % 4, (number + 1) % 4, 16384)
        assert (e.start, e.arrival) == pytest.approx((number // 4 * step, (number // 4 + 1) * step))
    assert len(run.messages) == 24 and len(run.flags) == 24 and not run.stuck
    assert all(e.peer == (e.rank + 3) % 4 for e in run.waits) and len(run.waits) == 24
    assert run.end == pytest.approx(max(e.end for e in run.waits))


@pytest.mark.parametrize("collective", trace.COLLECTIVES)
def test_every_collective(collective):
    run = trace.record(collective, ranks=3, nbytes=999, root=2)
    assert run.messages and not run.stuck and collective in run.title
    moved = sum(e.nbytes for e in run.messages)
    least = {
        "all_reduce": 4 / 3,
        "reduce": 1 / 3,
        "broadcast": 2,
        "all_gather": 2,
        "reduce_scatter": 2,
        "all_to_all": 2,
    }
    assert moved >= least.get(collective, 2 / 3) * 996


@pytest.mark.parametrize("delivery", ["prompt", "adversarial"])
def test_seeds_and_deliveries_send_the_same(delivery):
    key = lambda run: sorted((e.kind, e.rank, e.peer, e.nbytes) for e in [*run.messages, *run.flags])
    assert key(ring(delivery=delivery, seed=3)) == key(ring())


def test_the_links_are_those_of_the_profile():
    nodes = trace.record("all_reduce", "ring", ranks=4, node_size=2, profile=cost.PROFILES["h100"])
    ways = {(e.rank, e.peer): e.arrival - e.end for e in nodes.messages}
    assert ways == pytest.approx({(0, 1): 3.4e-6, (1, 2): 14e-6, (2, 3): 3.4e-6, (3, 0): 14e-6})
    assert nodes.links == "links: in a node 3.4 us and 450 GB/s, between nodes 14 us and 50 GB/s"
    assert ring().links == "links: 5 us and 50 GB/s"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collective": "all_reduced"}, "is not one of all_reduce"),
        ({"algorithm": "nonsense"}, "for all_reduce it can be one of"),
        ({"collective": "gather", "algorithm": "ring"}, "gather has only 'one_shot'"),
        ({"root": 4}, "there is no rank 4"),
        ({"absent": [7]}, "there is no rank 7"),
        ({"delivery": "late"}, "delivery is 'late'"),
        ({"link": "x"}, "link is 'x'"),
    ],
)
def test_arguments_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        trace.record(**{"collective": "all_reduce", "algorithm": "ring", **options})


# Runs that do not end.


@pytest.mark.parametrize("link", ["mapped", "put"])
def test_a_rank_that_is_missing(link):
    run = ring(ranks=4, absent=[2], link=link)
    assert isinstance(run.error, tricoll.CollectiveError)
    assert [(e.rank, e.peer, e.note) for e in run.stuck] == [
        (0, 3, "waits for data from rank 3 (message 1)"),
        (1, 0, "waits for data from rank 0 (message 2)"),
        (3, 2, "waits for data from rank 2 (message 0)"),
    ]
    for e in run.stuck:  # begins when this rank had nothing else to do, and nothing is told after it
        mine = [other for other in run.events if other.rank == e.rank and other is not e]
        last = max(other.end if other.kind == "wait" or link == "mapped" else other.start for other in mine)
        assert e.start == pytest.approx(last)
    assert {e.rank for e in run.messages} == {0, 1, 3}
    assert {(e.rank, e.peer) for e in run.flags} == {(0, 3), (1, 0)}, "only slots that were given back"


@pytest.mark.parametrize("link", ["mapped", "put"])
def test_those_who_are_told_are_marked_too(link, monkeypatch):
    """One rank's timeout comes first, and the others hear of it: they waited, all the same."""
    monkeypatch.setattr(sim.Scheduler, "losers", lambda scheduler: scheduler.tasks[-1:])
    run = ring(ranks=4, absent=[2], link=link)
    assert [e.rank for e in run.stuck] == [0, 1, 3] and all("waits for data" in e.note for e in run.stuck)
    assert {(e.rank, e.peer) for e in run.flags} == {(0, 3), (1, 0)}


def test_flags_in_the_data(link="mapped"):
    run = trace.record("all_reduce", "one_shot", ranks=3, nbytes=64, absent=[1], link=link)
    assert [(e.rank, e.peer) for e in run.stuck] == [(0, 1), (2, 1)] and not run.flags


def test_what_is_raised_has_the_trace():
    """In Python, for code of one's own: also for a rank's own mistake, and outside of kernels."""

    def late(comm):
        comm.all_reduce(torch.ones(96), algo="ring")
        if comm.rank:
            comm.all_reduce(torch.ones(96), algo="ring")

    with pytest.raises(tricoll.CollectiveError) as raised:
        tricoll.simulate(late, 3)
    run = trace.of(raised.value)
    assert {e.rank for e in run.stuck} == {1, 2} and run.ranks == 3 and run.error is raised.value
    assert len(run.messages) >= 12
    with pytest.raises(tricoll.CollectiveError) as raised:
        tricoll.simulate(late, 3, check=True)
    run = trace.of(raised.value)
    assert {(e.rank, e.note) for e in run.stuck} == {(r, "waits for other ranks, outside of a kernel") for r in (1, 2)}
    assert len(run.messages) == 12

    def mistaken(comm):
        comm.all_reduce(torch.ones(96), algo="ring")
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce(torch.ones(96), algo="ring")

    with pytest.raises(KeyError) as raised:
        tricoll.simulate(mistaken, 3)
    assert {e.rank for e in trace.of(raised.value).stuck} == {0, 2}
    with pytest.raises(TypeError, match="has no trace"):
        trace.of(KeyError("of another origin"))


def test_a_mismatch_is_not_a_wait(simulate):
    def other(comm):
        with pytest.raises(tricoll.CollectiveMismatch):
            comm.all_reduce(torch.ones(64 + comm.rank), algo="ring")

    assert not [e for e in simulate(other, 2, link="put", delivery="prompt").trace if e.kind == "stuck"]


# Text.


def test_text_of_a_run_that_ended():
    text = ring(ranks=2, nbytes=1 << 10).text(messages=3).splitlines()
    assert text[0] == "ring all_reduce of 1.024 kB on 2 ranks: 10.02 us, 4 messages of 512 B, 4 flags"
    assert text[2] == "rank 0  >" + "." * 39 + ">" + "." * 38
    assert text[-1].strip() == "and 1 more: -o FILE.json has all"
    assert text[-2].split() == ["5.010", "10.020", "0", "->", "1", "store", "512", "B"]


def test_text_of_one_that_did_not():
    text = ring(ranks=3, absent=[0]).text().splitlines()
    assert text[0].endswith("2 waits without end")
    assert text[2] == "rank 0" and set(text[3][8:]) == {">", "!"}
    assert text[-1].split(maxsplit=3)[1:] == ["never", "ends", "rank 2 waits for data from rank 1 (message 1)"]


def test_text_of_nothing():
    assert trace.of([], ranks=2, title="none").text().startswith("none: 0 s, 0 messages, 0 flags\n")
    assert len(trace.record("all_reduce", ranks=1).text().splitlines()) == 4


def test_units_and_channels():
    events = [Event("put", 0, 1, 1, 8, 0.0, 0.5, 0.75)]
    assert trace.of(events).unit == (1e3, "ms") and trace.of(events).channels == 2
    assert "   750.000  " in trace.of(events).text()
    events[0].arrival = 75.0
    assert trace.of(events).unit == (1.0, "s")


# Chrome's traces.


def records(path):
    found = json.loads(path.read_text())
    assert found["displayTimeUnit"] == "ms"
    return found["traceEvents"]


@pytest.mark.parametrize("absent", [[], [1]])
def test_chrome_trace(tmp_path, absent):
    run = ring(ranks=3, absent=absent)
    run.chrome_trace(tmp_path / "run.json")
    found = records(tmp_path / "run.json")
    spans = [r for r in found if r["ph"] == "X"]
    assert len([r for r in spans if r["tid"] == 0]) == len(run.messages) + len(run.flags)
    assert len([r for r in spans if r["tid"] == 1]) == len(run.waits) + len(run.stuck)
    assert sum(r["args"]["bytes"] for r in spans if r["tid"] == 0) == sum(e.nbytes for e in run.messages)
    starts, ends = ({r["id"]: r for r in found if r["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() and len(starts) == len(run.messages) + len(run.flags)
    inside = lambda a, s: (a["pid"], a["tid"]) == (s["pid"], s["tid"]) and s["ts"] <= a["ts"] <= s["ts"] + s["dur"]
    for number, start in starts.items():
        assert start["ts"] < ends[number]["ts"]
        assert any(inside(start, s) for s in spans) and any(inside(ends[number], s) for s in spans)
    assert len([r for r in spans if r["name"].endswith("without end")]) == len(run.stuck)


def test_one_writer_for_all_traces(tmp_path):
    """A training step's timeline is written by the same functions, as before."""
    step = timeline.Step([timeline.Bucket(0, 100, 1.0, 1.5, 2.0)], 1.75, 2.0)
    timeline.Timeline(3, [step]).chrome_trace(tmp_path / "step.json")
    found = records(tmp_path / "step.json")
    assert [r["args"]["name"] for r in found[:3]] == list(timeline.TRACKS)
    assert found[4] == {
        "ph": "X", "name": "bucket 0", "pid": 3, "tid": 1, "ts": 1.5e6, "dur": 0.5e6,
        "args": {"bytes": 100, "waited_us": 5e5},
    }  # fmt: skip
    assert found[5]["name"] == "exposed" and found[5]["dur"] == 0.25e6
    for module in ("timeline", "trace"):
        assert "traceEvents" not in (ROOT / "tricoll" / f"{module}.py").read_text()


# Pictures.


def test_places_in_a_picture():
    """A band is from the sender's lane to the receiver's, and its arrow ends where the last byte arrives."""
    run = trace.of([Event("put", 0, 0, 2, 100, 1e-5, 2e-5, 5e-5), Event("put", 2, 0, 1, 100, 0.0, 1e-5, 2e-5)])
    picture = lanes.Picture(run)
    down, up = run.events
    top, bottom = picture.y(0, 0) + lanes.BAR / 2, picture.y(2, 0) - lanes.BAR / 2
    flat = [value for corner in picture.band(down) for value in corner]
    assert flat == pytest.approx([10, top, 20, top, 50, bottom, 40, bottom])
    assert picture.head(down)[0] == pytest.approx((50, bottom))
    assert all(x < 50 for x, _ in picture.head(down)[1:])
    assert sum(y for _, y in picture.head(down)[1:]) / 2 < bottom
    assert picture.ends(up) == pytest.approx((picture.y(2, 0) - lanes.BAR / 2, picture.y(1, 0) + lanes.BAR / 2))
    assert sum(y for _, y in picture.head(up)[1:]) / 2 > picture.head(up)[0][1]
    assert picture.y(0, 0) < picture.y(1, 0) < picture.y(2, 0), "rank 0 is on top"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_formats(tmp_path, suffix):
    path = tmp_path / "new folder" / f"run.{suffix}"
    ring(ranks=2).draw(path)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(begins)


def test_the_same_run_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        ring(ranks=3, seed=5, delivery="adversarial").draw(tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text() and "rank 2" in text and "virtual time" in text


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (16, 1), (5, 3)])
def test_sizes_that_can_be_drawn(tmp_path, ranks, channels):
    run = ring(ranks=ranks, nbytes=1 << 18, channels=channels, node_size=2 if ranks == 16 else 0)
    run.draw(tmp_path / "run.svg", flags=True)
    text = (tmp_path / "run.svg").read_text()
    assert text.count("<path") > len(run.messages) and len(text) < 3_000_000
    assert (f"{ranks - 1}, ch. 2" if channels == 3 else f"rank {ranks - 1}") in text
    assert ("node 7" in text) == (ranks == 16)


def test_what_is_stuck_is_marked(tmp_path):
    ring(ranks=3, absent=[1]).draw(tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert "waits for data from rank 1 (message 0)" in text and "waits without end" in text
    ring(ranks=3).draw(tmp_path / "run.svg")
    assert "without end" not in (tmp_path / "run.svg").read_text()


def test_what_cannot_be_drawn(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="up to 16 ranks, and these are 17: take text"):
        ring(ranks=17, nbytes=64).draw(tmp_path / "run.svg")
    with pytest.raises(ValueError, match="no type that Matplotlib can write"):
        ring(ranks=2).draw(tmp_path / "run.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ImportError, match=r"tricoll\[plot\]"):
        ring(ranks=2).draw(tmp_path / "run.svg")
    assert not list(tmp_path.iterdir())


# The command.


def test_the_command(run, tmp_path):
    result = run("all_reduce", "--algo", "ring", "--ranks", 4, "--bytes", "64K", "--link", "put", "--seed", 3,
                 "--delivery", "adversarial", "-o", tmp_path / "ring.svg", "-o", tmp_path / "ring.json")  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout.startswith("ring all_reduce of 65.54 kB on 4 ranks: ") and result.stdout.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"ring.svg", "ring.json"}
    result = run("broadcast", "--ranks", 3, "--root", 1, "--messages", 1)
    assert result.exit_code == 0 and "and " in result.stdout.splitlines()[-1] and "rank 2" in result.stdout
    assert "one_shot all_reduce of 1 kB on 4 ranks" in run("all_reduce", "--bytes", "1kB").stdout


def test_the_command_when_the_run_does_not_end(run, tmp_path):
    """It is drawn all the same, the error is said, and the exit code is 1."""
    result = run("all_reduce", "--algo", "tree", "--absent", 0, "-o", tmp_path / "stuck.svg")
    assert result.exit_code == 1 and "3 waits without end" in result.stdout
    assert "ranks [0] are gone" in result.stderr
    assert "waits without end" in (tmp_path / "stuck.svg").read_text()
    assert run("all_reduce", "--absent", 0, "--absent", 1, "--absent", 2).stdout.count("never ends") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "what is to be traced?"),
        (("all_reduce", "--algo", "x"), "algo is 'x'"),
        (("all_reduce", "--bytes", "many"), "'many' is not a size"),
        (("all_reduce", "--ranks", 20, "-o", "x.svg"), "up to 16 ranks"),
        (("all_reduce", "--profile", "x"), "neither a file nor one of the profiles"),
    ],
)
def test_the_command_refuses(run, arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


# The documentation.


def described(path):
    """What run a picture is of."""
    return re.search(r"<dc:description>(\w+)</dc:description>", path.read_text())[1]


def test_the_page_has_every_algorithm_and_picture():
    named = re.findall(r"!\[[^]]{20,}\]\(pictures/(\w+)\.svg\)", PAGE)
    assert sorted(f"{name}.svg" for name in named) == sorted(path.name for path in PICTURES.iterdir())
    assert set(named) == {*dispatch.having("all_reduce"), "stuck"}
    assert set(re.findall(r"^## (\w+)$", PAGE, re.M)) == set(dispatch.having("all_reduce"))
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) < 400_000
    for path in re.findall(r"\]\((\.\./kernels/\w+\.py)\)", PAGE):
        assert (ROOT / "docs" / path).exists()


def test_the_pictures_are_those_that_the_commands_draw_today(run, tmp_path):
    """All of them by one command, and each by the command that the page has under it."""
    assert run("--pictures", tmp_path).exit_code == 0
    drawn = {path.name: described(path) for path in tmp_path.iterdir()}
    assert drawn == {path.name: described(path) for path in PICTURES.iterdir()}, "make pages draws them again"
    commands = re.findall(r"\(pictures/(\w+)\.svg\)\n\n`tricoll trace ([^`]+)`", PAGE)
    assert len(commands) == len(drawn)
    for name, command in commands:
        result = run(*shlex.split(command), "-o", tmp_path / "one.svg")
        assert result.exit_code == int(name == "stuck")
        text = (tmp_path / "one.svg").read_text()
        assert described(tmp_path / "one.svg") == drawn[f"{name}.svg"], command
        assert text.count("<path") == (PICTURES / f"{name}.svg").read_text().count("<path"), "flags or no flags"


def test_figures_of_the_page_are_those_of_the_cost_model():
    crossings = lambda profile, n, node_size=0, **options: {
        c.above: c.nbytes
        for c in cost.crossovers("all_reduce", cost.Topology(n, node_size), cost.PROFILES[profile], **options)
    }
    no_switch = [name for name in dispatch.having("all_reduce") if name != "multimem"]
    for value, text in (
        (crossings("nic-400g", 8, 1)["ring"], "fastest from 3.8 MB on 8 ranks"),
        (crossings("nic-400g", 64, 1)["ring"], "from 828 MB on 64"),
        (crossings("h100", 64, 8)["hierarchical"], "fastest from 1.4 MB on 64"),
        (crossings("h100", 512, 8)["hierarchical"], "from 48 MB on 512"),
        (crossings("h100", 8)["multimem"], "fastest from 280 kB on 8"),
        (crossings("h100", 8, available=no_switch)["two_shot"], "fastest from about 290 kB on 8"),
    ):
        number, unit = re.search(r"([\d.]+) (MB|kB)", text).groups()
        assert text in " ".join(PAGE.split()) and value == pytest.approx(
            float(number) * {"MB": 1e6, "kB": 1e3}[unit], rel=0.03
        )
