"""The command line."""

import inspect

import pytest
from typer.testing import CliRunner

import tricoll
from tricoll import demo
from tricoll.cli import app


@pytest.fixture
def run():
    """``run("compile", "--arch", 90)`` is what the command printed and its exit code."""

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "100"})

    return invoke


def test_version(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"tricoll {tricoll.__version__} (Triton ")


def test_help_teaches(run):
    assert "compile" in run("--help").stdout
    text = run("compile", "--help").stdout
    assert "tricoll compile --arch 90 --link mapped       warm up for H100s in one NVLink domain" in text
    assert "tricoll demo --ranks 2 --steps 100" in run("demo", "--help").stdout


def test_demo(run, monkeypatch):
    seen, defaults = {}, {name: p.default for name, p in inspect.signature(demo.run).parameters.items()}
    monkeypatch.setattr(demo, "run", lambda **given: seen.update(given))
    assert run("demo", "--ranks", 2, "--steps", 7, "--seed", 3).exit_code == 0
    assert seen == {"nprocs": 2, "steps": 7, "seed": 3}
    assert run("demo").exit_code == 0
    assert seen == defaults
