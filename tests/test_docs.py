"""What the documentation says to type works: every block of Python runs, every ``tricoll`` command line is one that
there is, and those that are quick run.

A block that is followed by one of ``text`` prints just that ("..." stands for anything). Blocks of a page run in their
order, in an empty folder, and know each other's names.
"""

import contextlib
import doctest
import importlib.util
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import tricoll
from tricoll.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}

# Blocks that are not run here, by page and number, and why.
BLOCKS_ELSEWHERE = {
    ("README.md", 0): "a script that starts ranks: tests/test_wheel.py runs it with the installed package",
    **{
        ("docs/pytorch.md", i): "tests/test_pytorch_examples.py finds it in docs/examples, and runs those"
        for i in range(8)
    },
    **{("docs/gpu.md", i): "needs a GPU" for i in range(2)},
}

# Blocks that every rank of two runs, since they make a process group of their own.
ON_RANKS = {("README.md", 1)}

# What a page's blocks take for granted.
GIVEN = {
    "docs/algorithms.md": {"work": lambda comm: comm.all_reduce(torch.ones(8)), "tricoll": tricoll},
}

# Command lines that are not run here, and why. That there are such options is checked.
SCALE = (
    "tricoll plan --params 8e9 --gpus 64 --link 50GB/s --bucket 25MB --backward 4s --plot lanes.png --scale scale.png"
)
SLOW = "measures for a minute or more; "
COMMANDS_ELSEWHERE = {
    "tricoll bench all_reduce --backends tricoll,gloo --wire bf16": SLOW + "tests/test_bench_collectives.py",
    "tricoll bench all_reduce -b 1K -e 16M -f 4 -g 4": SLOW + "tests/test_bench_collectives.py",
    "tricoll bench all_reduce -b 1K -e 16M -f 4 -g 4 --backends tricoll,gloo": SLOW + "tests/test_bench_collectives.py",
    "tricoll bench gradients -J gradients.json": SLOW + "tests/test_bench_gradients.py",
    "tricoll bench gradients -g 4": SLOW + "tests/test_bench_gradients.py",
    "tricoll bench overlap": SLOW + "tests/test_bench_overlap.py",
    "tricoll compile --arch 90": "compiles for minutes; tests/kernels/test_compile_triton.py",
    "tricoll doctor": "starts ranks for its self-tests; tests/doctor/test_selftest.py",
    "tricoll doctor --json": "starts ranks for its self-tests; tests/doctor/test_selftest.py",
    SCALE: "simulates 16,384 ranks for a minute; tests/test_schedule.py",
    "tricoll tune --ranks 2 --max-bytes 1M --passes 2": SLOW + "tests/test_tune.py",
    "tricoll tune --ranks 4": SLOW + "tests/test_tune.py",
    "tricoll tune --ranks 4 --plot tuned.png": SLOW + "tests/test_tune.py",
    "tricoll verify --backend gloo": "takes some minutes; tests/test_verify.py",
}


def blocks(text, language):
    """(source, what it prints or None) of a page's blocks."""
    found = re.findall(rf"^```{language}\n(.*?)^```\n(?:\n*```text\n(.*?)^```)?", text, re.DOTALL | re.MULTILINE)
    return [(source, printed or None) for source, printed in found]


def commands(source):
    """The command lines of a block of shell, without comments and redirections."""
    lines = [re.sub(r"(\s#|\s>).*", "", line).strip() for line in source.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"tricoll |python -m tricoll", line)]


PYTHON = [(page, i) for page, text in TEXT.items() for i in range(len(blocks(text, "python")))]
SHELL = [
    (command, printed)
    for text in TEXT.values()
    for source, printed in blocks(text, "sh")
    for command in commands(source)
]
COMMANDS = sorted({command for command, _ in SHELL})
INLINE = sorted(
    {" ".join(c.split()) for text in TEXT.values() for c in re.findall(r"`(tricoll (?!needs)[^`]+)`", text)}
)
PRINTING = {command: printed for command, printed in SHELL if printed}


def same(seen, said):
    """Whether a page has what was printed."""
    return doctest.OutputChecker().check_output(said, seen, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def test_lists_have_only_what_the_pages_have():
    assert set(BLOCKS_ELSEWHERE) | ON_RANKS <= set(PYTHON)
    assert set(COMMANDS_ELSEWHERE) <= set(COMMANDS) and set(GIVEN) <= set(TEXT)
    for reason in (*BLOCKS_ELSEWHERE.values(), *COMMANDS_ELSEWHERE.values()):
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / path).exists(), reason


def test_the_mutants_that_a_page_names_are_there():
    source = (ROOT / "tests" / "kernels" / "test_mutations.py").read_text()
    named = re.findall(r"^Mutants: (.*?)\n\n", TEXT["docs/link-protocol.md"], re.DOTALL | re.MULTILINE)
    names = re.findall(r"`([^`]+)`", " ".join(" ".join(named).split()))
    assert len(names) > 30
    assert not [name for name in names if f'Mutant("{name}"' not in source and f'"{name}",' not in source]


def test_the_lines_that_are_to_be_imitated_are_there():
    page = TEXT["docs/adding-an-algorithm.md"]
    rows = re.findall(r"^\| \d \| \[[\w.]+\]\(\.\./(\S+)\) \| .* \| `(.*)` \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for path, line in rows:
        assert line.replace("\\|", "|") in (ROOT / path).read_text(), (path, line)


@pytest.mark.parametrize("page", dict.fromkeys(page for page, _ in PYTHON))
def test_python_runs(page, pool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page, **GIVEN.get(page, {})}
    for number, (source, said) in enumerate(blocks(TEXT[page], "python")):
        if (page, number) in ON_RANKS:
            pool(2).run(on_a_rank, source)
        elif (page, number) not in BLOCKS_ELSEWHERE:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"{page}, block {number}", "exec"), names)
            assert said is None or same(printed.getvalue(), said), printed.getvalue()


def on_a_rank(comm, source):
    """A piece of a training script: it has a model, and torch; and gradients are averaged after it."""
    names = {"torch": torch, "model": torch.nn.Linear(3, 1)}
    exec(source, names)
    names["model"](torch.full((2, 3), comm.rank + 1.0)).sum().backward()
    assert names["model"].module.weight.grad.tolist() == [[3.0, 3.0, 3.0]]


def parse(command):
    """Have the command line's parser look at it. Raises what the parser does."""
    program, *arguments = shlex.split(command)
    if program == "python":
        assert importlib.util.find_spec(arguments[1])
        return
    parsed = typer.main.get_command(app)
    context = parsed.make_context("tricoll", arguments)
    while hasattr(parsed, "commands"):
        name, parsed, rest = parsed.resolve_command(context, [*context._protected_args, *context.args])
        context = parsed.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_lines_are_such_that_there_are(command):
    parse(command)


@pytest.mark.parametrize("command", INLINE)
def test_commands_that_a_text_mentions_are_there(command):
    """They may lack what is needed to run them, but what they have must exist."""
    try:
        parse(command)
    except Exception as error:
        assert type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError", "Exit"), (command, error)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in COMMANDS_ELSEWHERE])
def test_quick_commands_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("all_reduce", "gradients", "before", "after"):
        source = ROOT / "docs" / "results" / f"{'gradients' if name == 'gradients' else 'all_reduce'}.json"
        (tmp_path / f"{name}.json").write_bytes(source.read_bytes())
    program, *arguments = shlex.split(command)
    if program == "python":
        monkeypatch.setattr(sys, "argv", arguments[1:])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_module(arguments[1], run_name="__main__")
        code, output = 0, printed.getvalue()
    else:
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
        code, output = done.exit_code, done.stdout
    assert code == 0, output
    if said := PRINTING.get(command):
        assert same(output, said), output
    for name in re.findall(r"(?:--plot|-o) (\S+)", command):
        assert (tmp_path / name).stat().st_size > 1000
