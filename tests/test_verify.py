"""Asking backends what they do: tricoll does everything right, and what Gloo does is found."""

import json
import os
import re
import time

import pytest
import torch
from typer.testing import CliRunner

from tricoll import verify
from tricoll.cli import app
from tricoll.verify import Session, outcome, probe
from tricoll.verify.outcome import Outcome, Verdict

GROUPS = ("exact:", "bits:", "accuracy:", "values:", "memory:", "mismatch:", "time:")


def ask(backend, only, **options):
    return {probe.name: verdict for probe, verdict in verify.run(Session(backend, **options), only)}


@pytest.mark.parametrize("group", GROUPS)
def test_tricoll_does_everything_right(group):
    found = ask("tricoll", group, ranks=3, examples=6, timeout=8.0)
    assert {verdict.mark for verdict in found.values()} <= {"right", "yes"}, found


def test_the_groups_are_all_probes():
    assert sum(len(verify.chosen(group)) for group in GROUPS) == len(verify.PROBES)
    assert len({probe.name for probe in verify.PROBES}) == len(verify.PROBES)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="what PyTorch 2.13's Gloo does")
def test_gloo_is_found_out():
    crash = ask("gloo", "reduce_scatter length")["mismatch: reduce_scatter length"]
    assert crash.mark == "crash"
    assert re.match(r"rank \d was killed by signal 6: what\(\): .*Received data size doesn't match", crash.text)
    assert crash.example == "reduce_scatter to 1,001 elements on rank 1, 1,000 elsewhere"
    averages = ask("gloo", "averages")["values: averages at the ends of the range"]
    assert averages.mark == "wrong"
    assert averages.example == "avg of 60000 on 8 ranks, float16"
    assert "inf (0x7c00), not 60000.0" in averages.text
    layout = ask("gloo", "channels-last")["memory: channels-last on one rank"]
    assert layout.mark == "wrong"
    assert "channels-last on rank 0" in layout.example
    assert ask("gloo", "mismatch: dtype")["mismatch: dtype"].mark == "garbage"
    strided = ask("gloo", "non-contiguous", examples=10)["memory: non-contiguous tensors"]
    assert strided.mark == "wrong"
    assert "inputs=[[" in strided.example  # small enough to be shown


# How outcomes are told apart.


def test_a_crash_a_hang_an_error_and_a_value(monkeypatch):
    monkeypatch.setattr("tricoll.verify.session.LIMIT_AFTER", 1.0)

    def differ(api):
        if api.rank == 0:
            return 7
        if api.rank == 1:
            raise KeyError("no")
        if api.rank == 2:
            os.write(2, b"terminate called\n  what():  the reason\n")
            os.abort()
        time.sleep(60)

    session = Session("gloo", ranks=4, timeout=3.0)
    start = time.monotonic()
    try:
        value, error, crash, hang = session.ask(differ)
        assert time.monotonic() - start < 20
        assert (value.kind, value.value) == ("value", 7)
        assert (error.kind, error.text) == ("error", "KeyError: 'no'")
        assert crash.kind == "crash"
        assert crash.text == "was killed by signal 6: what():  the reason"
        assert (hang.kind, hang.text) == ("hang", "had not returned after 4 s")
        assert [outcome.value for outcome in session.ask(lambda api: api.size)] == [4] * 4  # of new processes
    finally:
        session.close()


def test_same_and_first():
    value, error, hang, crash = (Outcome(kind, text=kind) for kind in ("value", "error", "hang", "crash"))
    assert outcome.same([value, value]) == "value"
    assert outcome.same([error, error]) == "error"
    assert outcome.same([value, error]) == "mixed"
    assert outcome.same([value, crash, error]) == "crash"
    assert outcome.same([value, crash, hang]) == "hang"
    assert outcome.first([value, crash], "crash") == "rank 1 crash"


def test_a_group_that_cannot_be_joined_is_no_result():
    with pytest.raises(verify.Unavailable, match="could not join a group of 2: ModuleNotFoundError"):
        Session("gloo", ranks=2, load="no_such_module").ask(lambda api: 1)


def test_mpi_cannot_be_asked_and_what_can_be_done_instead():
    result = CliRunner().invoke(app, ["verify", "--backend", "mpi"])
    assert result.exit_code == 2
    assert "started and ended by mpirun" in result.output and "--backends mpi" in result.output


# Properties.


def drawn(draw):
    from hypothesis import strategies as st

    return {"length": draw(st.integers(0, 1000))}


def test_the_smallest_example_is_found():
    def check(length):
        assert length < 17, "too long\nmore"

    assert probe.search(Session("none", examples=100), drawn, check) == Verdict("wrong", "too long", "length=17")


def test_refusals_are_no_failures():
    def check(length):
        if length % 2:
            raise probe.Refused("odd lengths", "TypeError: odd")

    verdict = probe.search(Session("none", examples=50), drawn, check)
    assert verdict.mark == "right"
    assert verdict.text.endswith("refused: odd lengths")

    def refuse(length):
        raise probe.Refused("all", "TypeError: nothing works")

    assert probe.search(Session("none", examples=5), drawn, refuse) == Verdict("refused", "TypeError: nothing works")


def test_a_hang_ends_a_search_at_once():
    calls = []

    def check(length):
        calls.append(length)
        probe.values([Outcome("hang", text="had not returned after 9 s")], "")

    verdict = probe.search(Session("none", examples=50), drawn, check)
    assert (verdict.mark, len(calls)) == ("hang", 1)


# The command line.


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, ["verify", *map(str, arguments)], env={"COLUMNS": "160"})


def test_the_command(invoke, tmp_path):
    flags = ("--backend", "gloo", "-g", 3, "--only", "mismatch: dtype", "--timeout", 2)
    result = invoke(*flags, "-J", tmp_path / "v.json", "--markdown", tmp_path / "v.md")
    assert result.exit_code == 1, result.output
    assert re.search("mismatch: dtype +garbage +ranks .* returned and raised nothing", result.stdout)
    assert "all_reduce of int32 on rank 1, of float32 on the others" in result.stdout
    (row,) = json.loads((tmp_path / "v.json").read_text())["rows"]
    assert row["mark"] == "garbage"
    assert row["question"] == "an error on every rank"
    assert "| mismatch: dtype | garbage |" in (tmp_path / "v.md").read_text()
    assert invoke("--only", "mismatch: dtype", "-g", 3).exit_code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--backend", "nickel"), "there is no backend 'nickel'; there are tricoll, gloo"),
        (("--only", "everything"), "no probe's name contains 'everything'"),
        (("--import", "no_such_module"), "No module named 'no_such_module'"),
    ],
)
def test_what_cannot_be_asked(invoke, flags, said):
    result = invoke(*flags)
    assert result.exit_code == 2, result.output
    assert said in re.sub(r"[\s│]+", " ", result.output)
