"""Tuning: the grid, samples that are gone on with, the fit against known constants, and the command."""

import dataclasses

import numpy as np
import pytest
from tuning import ORIGIN, TARGET
from typer.testing import CliRunner

from tricoll import tuned
from tricoll.cli import app
from tricoll.cost import Link, Profile, Protocol, Topology
from tricoll.tune import measure
from tricoll.tune.fit import fit, predict
from tricoll.tune.measure import COLLECTIVES, Grid, algorithms, sizes
from tricoll.tune.samples import Point, Samples
from tricoll.tuned import Target


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    """No test reads or writes what a user has."""
    monkeypatch.setenv("TRICOLL_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


# What is measured.


def test_sizes():
    assert sizes(1024, 8192) == (1024, 2048, 4096, 8192)
    assert sizes(1000, 1000) == (1000,)
    assert sizes(1, 2000, 10) == (1, 10, 100, 1000)
    for wrong in ((0, 10), (10, 5), (1, 10, 1.0)):
        with pytest.raises(ValueError, match="0 < least <= most"):
            sizes(*wrong)


def test_every_block_is_there_once_in_each_pass():
    grid = Grid((1, 10, 100), passes=2)
    blocks = grid.blocks()
    assert sorted(blocks) == sorted((p, c, s) for p in (0, 1) for c in COLLECTIVES for s in (1, 10, 100))
    assert [b[0] for b in blocks] == [0] * 12 + [1] * 12
    assert [b[1:] for b in blocks[:12]] != [b[1:] for b in blocks[12:]]
    assert blocks == Grid((1, 10, 100), passes=2).blocks()  # on every rank, and in the run that goes on
    with pytest.raises(ValueError, match="at least 1 byte"):
        Grid(())


def timed(comm, grid, done):
    lines = []
    measure.measure(comm, grid, done if comm.rank == 0 else [], lines.append)
    return lines, comm.stats()["calls"]


def test_measuring(simulate):
    """All ranks have the same lines, each with the times of every algorithm; what is done already is not run."""
    grid = Grid((10, 1000), calls=2, passes=2)
    whole = simulate(timed, 3, grid, [])
    lines = whole.results[0][0]
    assert all(result[0] == lines for result in whole.results)
    assert [(x["pass"], x["collective"], x["nbytes"]) for x in lines] == [
        (p, c, {10: 12, 1000: 1008}[s])
        for p, c, s in grid.blocks()  # whole elements for every rank
    ]
    for line in lines:
        assert set(line["seconds"]) == set(algorithms(line["collective"], Topology(3), True))
        assert {len(calls) for calls in line["seconds"].values()} <= {1, 2}
        assert all(t > 0 for calls in line["seconds"].values() for t in calls)
    rest = simulate(timed, 3, grid, grid.blocks()[:-3])
    assert [x["collective"] for x in rest.results[1][0]] == [x["collective"] for x in lines[-3:]]
    assert rest.results[0][1] < whole.results[0][1]
    assert simulate(timed, 3, grid, grid.blocks()).results[0] == ([], 1)


def test_hopeless_algorithms_are_timed_once(simulate, monkeypatch):
    slow = dict.fromkeys(("all_reduce",), "tree")
    monkeypatch.setattr(
        measure,
        "_times",
        lambda comm, c, x, names, calls: {n: [100.0 if slow.get(c) == n else 1.0] * calls for n in names},
    )
    lines = simulate(timed, 2, Grid((1000,), calls=4, passes=1), []).results[0][0]
    counts = {(x["collective"], name): len(calls) for x in lines for name, calls in x["seconds"].items()}
    assert counts.pop(("all_reduce", "tree")) == 1 and set(counts.values()) == {4}


# Samples.


def line(number, collective, nbytes, **seconds):
    return {"pass": number, "collective": collective, "nbytes": nbytes, "seconds": seconds}


def test_samples_are_gone_on_with(tmp_path):
    path, grid = tmp_path / "new" / "samples.jsonl", Grid((10, 16), calls=2, passes=2, collectives=("all_reduce",))
    first = Samples(path, ORIGIN)
    assert first.done(grid, 4) == []
    first.write(line(0, "all_reduce", 16, ring=[1.0, 3.0], tree=[9.0]))
    with open(path, "a") as file:
        file.write('{"pass": 1, "colle')  # the run was stopped here
    again = Samples(path, ORIGIN)
    assert again.lines == first.lines
    assert sorted(again.done(grid, 4)) == [(0, "all_reduce", 10), (0, "all_reduce", 16)]  # 10 bytes are 4 elements
    assert again.done(dataclasses.replace(grid, calls=3), 4) == []
    again.write(line(1, "all_reduce", 16, ring=[5.0, 5.0, 50.0]))
    assert len(path.read_text().splitlines()) == 3
    assert Samples(path, ORIGIN).points() == [
        Point("all_reduce", 16, "ring", 5.0),
        Point("all_reduce", 16, "tree", 9.0),
    ]


def test_samples_of_something_else(tmp_path):
    path = tmp_path / "samples.jsonl"
    Samples(path, ORIGIN)
    other = {**ORIGIN, "target": {**ORIGIN["target"], "world_size": 8}}
    with pytest.raises(ValueError, match=r"something else \(target was .*4.* is .*8.*\): --fresh"):
        Samples(path, other)
    path.write_text("no JSON\n")
    with pytest.raises(ValueError, match="not a file with samples"):
        Samples(path, ORIGIN)


# The fit.

TRUE = Profile(
    "true",
    "",
    {
        "signal": Protocol(2e-4, {"mapped": Link(5e-5, 2e9), "inter": Link(5e-5, 2e9)}, 3e-5),
        "packed": Protocol(1e-4, {"mapped": Link(0, 1e8)}, 5e-5),
    },
    multicast=True,
    slot_bytes=1 << 20,
    window=2,
    shared=True,
    overheads={"all_reduce": {"tree": 5e-4}},
)


def synthetic(profile=TRUE, noise=0.0, drift=0.0, target=TARGET, seed=0):
    """Times as the model has them, with noise of each point and of each size (a machine that is now slow, now fast)."""
    random = np.random.default_rng(seed)
    points = []
    for collective in COLLECTIVES:
        for nbytes in sizes(1024, 1 << 26):
            slow = np.exp(random.normal(0, drift))
            for name in algorithms(collective, target.topology, profile.multicast):
                (exact,) = predict([Point(collective, nbytes, name, 1.0)], profile, target.topology)
                points.append(Point(collective, nbytes, name, float(exact * slow * np.exp(random.normal(0, noise)))))
    return points


@pytest.fixture(scope="module")
def exact():
    """Fitted to times without noise."""
    return fit(synthetic(), ORIGIN)


def test_the_constants_are_found(exact):
    fitted = exact
    signal = fitted.profile.protocols["signal"]
    assert signal.message == pytest.approx(3e-5, rel=0.1)
    assert signal.links["mapped"].alpha == pytest.approx(5e-5, rel=0.2)
    assert signal.links["mapped"].beta == pytest.approx(2e9, rel=0.02)
    assert fitted.profile.overheads["all_reduce"]["tree"] == pytest.approx(5e-4, rel=0.2)
    assert fitted.profile.protocols["packed"].links["mapped"].beta == pytest.approx(1e8, rel=0.02)
    assert fitted.error(False) < 0.01 and fitted.error(True) < 0.01
    good, of = fitted.good_choices(True)
    assert good == of == 4 * len(fitted.held_out) == 16


def test_noise_and_outliers():
    """Of 15 % noise, 5 % is left in what is predicted; one time in 19 that is 10 times as long, changes little."""
    points = synthetic(noise=0.15)
    points = [dataclasses.replace(p, seconds=p.seconds * (10 if i % 19 == 7 else 1)) for i, p in enumerate(points)]
    fitted = fit(points, ORIGIN)
    truth = predict(points, TRUE, TARGET.topology)
    ratio = predict(points, fitted.profile, TARGET.topology) / truth
    assert np.median(np.abs(ratio - 1)) < 0.05 and np.abs(ratio - 1).max() < 0.3
    assert 0.08 < fitted.error(True) < 0.2  # it says how noisy its samples were


def test_a_drifting_machine():
    """Algorithms at one size were measured in turn: who is faster is known better than how fast it is."""
    fitted = fit(synthetic(noise=0.02, drift=0.4), ORIGIN)
    good, of = fitted.good_choices(False)
    assert good >= 0.9 * of
    assert fitted.error(True) > 0.15


def test_nothing_held_out_is_fitted(exact):
    points = synthetic()
    held_out = sorted({p.nbytes for p in points})[2::4]
    wrong = [dataclasses.replace(p, seconds=p.seconds * (3 if p.nbytes in held_out else 1)) for p in points]
    fitted = fit(wrong, ORIGIN)
    assert sorted(fitted.held_out) == held_out
    assert fitted.error(False) < 0.01 and fitted.error(True) == pytest.approx(2 / 3, abs=0.01)
    assert fitted.profile.protocols == exact.profile.protocols


def test_link_classes():
    """Puts inside nodes and between them, where ranks do not share what sends."""
    target = Target("nvshmem", 8, 4, "put")
    near, far = Link(3e-6, 4e11), Link(1.2e-5, 5e10)
    true = Profile("", "", {"signal": Protocol(8e-6, {"mapped": near, "put": near, "inter": far})}, slot_bytes=1 << 22)
    origin = {**ORIGIN, "target": dataclasses.asdict(target), "multicast": False}
    origin["settings"] = {**ORIGIN["settings"], "slot_bytes": 1 << 22, "window": 1}
    fitted = fit(synthetic(true, target=target), origin)
    links = fitted.profile.protocols["signal"].links
    assert set(fitted.profile.protocols) == {"signal"}
    assert links["put"].beta == pytest.approx(4e11, rel=0.1) and links["inter"].beta == pytest.approx(5e10, rel=0.1)
    assert links["inter"].alpha == pytest.approx(1.2e-5, rel=0.1)
    assert fitted.error(True) < 0.05


def test_too_few_points():
    with pytest.raises(ValueError, match="too few to fit"):
        fit(synthetic()[:10], ORIGIN)


# The command.


@pytest.mark.slow
def test_the_command(profiles, tmp_path):
    pytest.importorskip("matplotlib")
    run = lambda *arguments: CliRunner().invoke(
        app, ["tune", "--ranks", "2", *map(str, arguments)], env={"COLUMNS": "120"}
    )
    small = ("--max-bytes", "16K", "--calls", "1", "--passes", "1")
    result = run(*small, "--plot", tmp_path / "tuned.png")
    assert result.exit_code == 0, result.output
    path = profiles / "host-2x2-mapped.json"
    assert f"profile: {path}" in result.stdout and "held out" in result.stdout
    assert (tmp_path / "tuned.png").read_bytes().startswith(b"\x89PNG")
    profile = tuned.find(Target("host", 2, 2, "mapped"))
    assert profile is not None and profile.provenance["grid"]["sizes"] == [1024 << i for i in range(5)]
    assert set(profile.provenance["fit"]) == {
        "median_error_fitted", "median_error_held_out", "held_out_choices_near_best", "all_choices_near_best",
    }  # fmt: skip
    # A second run measures nothing, and has the same constants.
    kept = (profiles / "host-2x2-mapped.samples.jsonl").read_text()
    assert run(*small).exit_code == 0
    assert (profiles / "host-2x2-mapped.samples.jsonl").read_text() == kept
    again = tuned.find(Target("host", 2, 2, "mapped"))
    assert again is not None and again.protocols == profile.protocols
    # It goes on from samples of a shorter run, and not from those of other settings.
    assert run(*small[:-1], "2", "--output", tmp_path / "mine.json").exit_code == 0
    longer = (profiles / "host-2x2-mapped.samples.jsonl").read_text()
    assert longer.startswith(kept) and len(longer.splitlines()) == 2 * len(kept.splitlines()) - 1
    assert tuned.load(tmp_path / "mine.json", Target("host", 2, 2, "mapped")).provenance["grid"]["passes"] == 2
    result = run(*small, "--link", "put", "--samples", profiles / "host-2x2-mapped.samples.jsonl")
    assert result.exit_code == 2 and "samples of something else" in result.stderr


def test_wrong_arguments():
    result = CliRunner().invoke(app, ["tune", "--min-bytes", "2M", "--max-bytes", "1M"])
    assert result.exit_code == 2 and "0 < least <= most" in result.stderr
