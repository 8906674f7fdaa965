"""Planning: the bucket timeline, memory, and ``tricoll plan``."""

import json
import random
import re
import sys

import numpy as np
import pytest
from pictures import check_colours, read_png
from typer.testing import CliRunner

from tricoll import cost, plan
from tricoll.cli import app
from tricoll.cost import PROFILES, Topology
from tricoll.plan import report, step
from tricoll.schedule import Noise, sweep

LESSON = PROFILES["lesson"]
GIVEN = ["--params", "8e9", "--gpus", "64", "--link", "50GB/s", "--bucket", "25MB", "--backward", "4s"]


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "100"})

    return invoke


def lesson(**changed):
    options = {"bucket": 25e6, "backward": 4.0} | changed
    return plan.make(8e9, Topology(64, 1), LESSON, **options)


# The timeline.


def test_exposed_communication_of_8_billion_parameters():
    """640 buckets of 25 MB, each 126 (5 us + 25 MB / 64 / 50 GB/s) = 1.614375 ms; the last one is exposed."""
    line = lesson().timeline
    each = 126 * (5e-6 + 25e6 / 64 / 50e9)
    assert f"{each * 1e3:.6f}" == "1.614375"
    assert len(line.sizes) == 640
    assert line.communication == pytest.approx(640 * each, rel=1e-9)
    assert line.exposed == pytest.approx(each, rel=1e-9)
    assert line.hidden == pytest.approx(639 * each, rel=1e-9)
    assert line.total == pytest.approx(4 + each, rel=1e-9)
    assert line.ready == pytest.approx(np.arange(1, 641) * 4 / 640)


def test_buckets_wait_for_each_other():
    """By hand: two buckets are ready while the first is sent; the last one comes late."""
    line = plan.timeline(np.ones(4), np.array([1.0, 1.5, 2.0, 9.0]), np.array([2.0, 1.0, 3.0, 1.0]), backward=9.0)
    assert line.start.tolist() == [1, 3, 4, 9]
    assert line.end.tolist() == [3, 4, 7, 10]
    assert (line.communication, line.hidden, line.exposed, line.total) == (7, 6, 1, 10)


@pytest.mark.parametrize("seed", range(10))
def test_timeline_is_one_stream(seed):
    """Against a loop over buckets."""
    draw = random.Random(seed)
    n = draw.randrange(1, 40)
    ready = np.sort([draw.uniform(0, 10) for _ in range(n)])
    seconds = np.array([draw.uniform(0, 1) for _ in range(n)])
    line = plan.timeline(np.ones(n), ready, seconds, backward=10.0)
    free = 0.0
    for i in range(n):
        free = max(free, ready[i]) + seconds[i]
        assert line.end[i] == pytest.approx(free, rel=1e-12)
    assert line.hidden + (line.communication - line.hidden) == pytest.approx(seconds.sum())
    assert 0 <= line.hidden <= line.communication + 1e-12
    assert line.exposed == pytest.approx(max(0.0, free - 10.0), abs=1e-12)


def test_all_is_exposed_without_backward():
    line = lesson(backward=0.0).timeline
    assert line.hidden == 0
    assert line.exposed == pytest.approx(line.communication, rel=1e-12)


def test_buckets_in_reverse_order():
    assert plan.bucket_sizes(100, 30).tolist() == [30, 30, 30, 10]  # the first layers' gradients are last and fewest
    assert plan.bucket_sizes(90, 30).tolist() == [30, 30, 30]
    assert plan.bucket_sizes(20, 30).tolist() == [20]
    assert plan.ready_times(plan.bucket_sizes(100, 30), 10.0).tolist() == [3, 6, 9, 10]
    for total, bucket in ((100, 0), (0, 10), (100, -1)):
        with pytest.raises(ValueError, match="more than 0"):
            plan.bucket_sizes(total, bucket)
    with pytest.raises(ValueError, match=r"buckets of 1 B are 1.6e\+10: take larger ones"):
        plan.bucket_sizes(16e9, 1)


def test_best_bucket():
    """As good as any of a finer grid, to 2 %; small if that is free, everything if latency is all there is."""
    made = lesson()
    ring = lambda size: cost.ring_seconds(64, size, 5e-6, 50e9)
    tried = [plan.uniform_timeline(16e9, size, 4.0, ring).exposed for size in np.geomspace(5e5, 16e9, 400)]
    assert min(tried) < made.best.exposed < 1.02 * min(tried)
    # buckets of size b take 126 (5 us + b / 3.2e12 B/s); 16e9 / b of them fit into 4 s from about this size on
    smallest = 16e9 * 126 * 5e-6 / (4 - 126 * 16e9 / 64 / 50e9)
    assert smallest < made.best.sizes[0] < 1.3 * smallest
    assert plan.best_bucket(16e9, 4.0, lambda size: 1e-12 * size).sizes[0] < 1e5
    assert len(plan.best_bucket(16e9, 1e-9, ring).sizes) == 1


def test_lanes():
    line = plan.timeline(np.ones(2), np.array([4.0, 8.0]), np.array([2.0, 2.0]), backward=8.0)
    assert report.lanes(line, 0.0, 10.0, width=10) == ("████████  ", "    ██  ##")
    assert report.lanes(line, 0.0, 10.0, width=5) == ("████ ", "  █ #")
    half = plan.timeline(np.ones(1), np.array([1.0]), np.array([0.5]), backward=4.0)
    assert report.lanes(half, 0.0, 4.0, width=4) == ("████", " ▒  ")


# When it ends.


def test_memory():
    made = lesson()
    assert step.BYTES_A_PARAMETER == 16
    assert made.ending.memory == 128e9 and not made.ending.fits
    assert made.ending.parameters == 5e9
    seventy = plan.make(70e9, Topology(64, 1), LESSON, bucket=25e6, backward=4.0)
    assert seventy.ending.memory == 1.12e12  # the textbook's 1.1 TB a replica
    assert plan.make(5e9, Topology(64, 1), LESSON, bucket=25e6, backward=4.0).ending.fits


def test_communication_outgrows_backward():
    """640 buckets of 2(n-1) (5 us + 25 MB / n / 50 GB/s) are more than 4 s from 527 GPUs on."""
    together = lambda n: 640 * cost.ring_seconds(n, 25e6, 5e-6, 50e9)
    assert together(526) <= 4.0 < together(527)
    assert lesson().ending.gpus == 527
    assert lesson(algorithm="tree").ending.gpus is None
    assert lesson(algorithm="tree").ending.searched == step.LARGEST_WORLD
    assert lesson(backward=0.1).ending.gpus == 2  # even the smallest job
    node = plan.make(1e9, Topology(8), PROFILES["h100"], bucket=25e6, backward=4.0, algorithm="two_shot")
    assert (node.ending.gpus, node.ending.searched) == (None, 8)  # not over nodes


def test_turning_points():
    by_ranks = {each.ranks: each for each in lesson().turning}
    assert sorted(by_ranks) == [8, 64, 512, 4096]
    assert by_ranks[512].balanced == pytest.approx(128e6)
    assert by_ranks[512].tree_below == pytest.approx(15.68e6, rel=1e-3)


def test_algorithms_of_a_plan():
    topology = Topology(64, 8)
    make = lambda algorithm: plan.make(8e9, topology, PROFILES["h100"], bucket=25e6, backward=4.0, algorithm=algorithm)
    made = make("ring")
    assert set(made.others) == {"tree", "hierarchical"}
    assert make("hierarchical").timeline.exposed == pytest.approx(made.others["hierarchical"].exposed)
    assert make("auto").timeline.exposed == pytest.approx(made.others["hierarchical"].exposed)
    for algorithm, said in [("rings", "'rings' is not one of auto, "), ("multimem", "cannot be used on 64 ranks")]:
        with pytest.raises(ValueError, match=said):
            make(algorithm)


# The commands.


def test_plan_command(run):
    result = run("plan", *GIVEN)
    assert result.exit_code == 0
    text = re.sub(r"\s+", " ", result.stdout)
    for said in (
        "16 GB of gradients in 640 buckets of 25 MB",
        "ring 25 MB 640 1.614 ms 1.033 s 1.032 s 1.614 ms 0.040%",
        "The best bucket size is 3.651 MB: 764.6 us exposed.",
        "together 16 128 GB",
        "a GPU of 80 GB holds 5e+09 parameters",
        "it takes longer from 527 GPUs on",
        "512 128 MB 15.68 MB",
    ):
        assert said in text
    assert re.search(r"communication  \|[░▒]+\|", result.stdout)  # a quarter of the time, all along
    assert re.search(r"communication  \|.*[░▒▓]#+\|", result.stdout)


def test_plan_command_json(run):
    read = json.loads(run("plan", *GIVEN, "--json").stdout)
    assert read["exposed"] == pytest.approx(1.614375e-3)
    assert read["buckets"] == 640 and read["ends"]["gpus"] == 527
    assert sum(read["memory"].values()) == read["ends"]["memory"] == 128e9
    assert read["best_bucket"]["exposed"] < read["exposed"]
    assert {"balanced", "ranks", "tree_below"} == set(read["turning_points"][0])
    other = json.loads(run("plan", *GIVEN, "--node-size", 8, "--algo", "hierarchical", "--json").stdout)
    assert other["exposed"] < read["exposed"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bucket", "25Mb"], "'25Mb' is not a size: write 4096, 25MB (10^6) or 25M (2^20)"),
        (["--backward", "4"], "'4' is not a time"),
        (["--node-size", "7"], "64 ranks do not fill nodes of 7"),
        (["--algo", "trees"], "'trees' is not one of auto, "),
        (["--profile", "h200"], "'h200' is neither a file nor one of the profiles"),
        (["--bucket", "0"], "more than 0"),
    ],
)
def test_plan_command_says_what_is_wrong(run, options, said):
    result = run("plan", *GIVEN, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("tricoll: ") and said in result.stderr
    assert not result.stdout


def test_help_teaches(run):
    text = run("plan", "--help").stdout
    assert "tricoll plan --params 8e9 --gpus 64 --link 50GB/s --bucket 25MB --backward 4s\n" in text


# Pictures.


def test_picture(run, tmp_path):
    lanes = tmp_path / "new" / "lanes.png"
    assert run("plan", *GIVEN, "--plot", lanes).exit_code == 0
    check_colours(lanes, ("#0072b2", "#d55e00"))


def test_picture_of_many_ranks(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "WORLDS", (8, 16, 32, 64))
    path = tmp_path / "scale.png"
    result = run("plan", *GIVEN, "--node-size", 8, "--scale", path)
    assert result.exit_code == 0, result.stderr
    assert read_png(path).shape[2] == 4
    rows = re.findall(r"^ (8|16|32|64) +([\d.]+ [mu]s)", result.stdout.split("simulated")[1], re.M)
    assert [n for n, _ in rows] == ["8", "16", "32", "64"]


def test_sweep():
    told = []
    noise = Noise(jitter=0.5, stragglers=1)
    points = sweep.sweep(1e6, 8, PROFILES["h100"], noise, (8, 32), lambda what, share: told.append(share))
    seconds = {(p.algorithm, p.ranks, p.noisy): p.seconds for p in points}
    assert set(seconds) == {
        (a, n, noisy)
        for a, n in (("ring", 8), ("ring", 32), ("tree", 8), ("tree", 32), ("hierarchical", 32))
        for noisy in (False, True)
    }
    for (algorithm, n, noisy), value in seconds.items():
        assert noisy or seconds[algorithm, n, True] > value
    assert told == sorted(told) and told[0] >= 0 and told[-1] <= 1


def test_pictures_say_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("plan", *GIVEN, "--plot", tmp_path / "lanes.png")
    assert result.exit_code == 2
    assert 'pip install "tricoll[plot]"' in result.stderr
