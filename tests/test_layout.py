"""Who may import whom: algorithms stand alone, device code knows no host code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["jit", "shmem", "numerics", "tally", "tiles", "chunks", "link", "group"]  # each may import those before it
FILES = sorted((ROOT / "kernels").glob("*.py"))


def imports(path):
    """The modules of this project that a file imports: those of its own package by name, others in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {"." * node.level + name for name in names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_import_only_what_is_below_them(path):
    for name in imports(path):
        assert (
            name.startswith(".")
            or name.split(".")[0] in {"torch", "triton", "typing", "collections"}
            or (
                path.stem in ("jit", "numerics")  # which have halves in plain Python
            )
        ), f"{path.name} imports {name}"
        assert not name.startswith(".."), f"{path.name} imports host code: {name}"
        if name.startswith("."):
            other = name[1:].split(".")[0]
            assert other in ORDER, f"{path.name} imports {other}: no algorithm imports another"
            if path.stem in ORDER:
                assert ORDER.index(other) < ORDER.index(path.stem)


def test_host_code_imports_no_tests_and_no_benchmarks():
    for path in (ROOT / "tricoll").rglob("*.py"):
        for name in imports(path):
            assert not name.startswith(("tests", "bench", "tricoll.bench")), f"{path} imports {name}"


def within(path):
    """The modules of ``tricoll`` that one of its files imports, wherever in it, by their names in there."""
    package = ("tricoll", *path.relative_to(ROOT / "tricoll").parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}".removeprefix("tricoll.") for alias in node.names}
    return found


def test_the_cost_model_knows_no_machine_and_no_rank():
    for path in (ROOT / "tricoll" / "cost").glob("*.py"):
        for name in within(path):
            assert name.startswith(("cost.", "units", "fabric.base.LinkProfile")), f"{path} imports {name}"


def test_commands_are_on_top():
    """What a command does can be had without it: only the command line imports commands, and nothing imports that."""
    seen = set()
    for path in (ROOT / "tricoll").rglob("*.py"):
        names = within(path)
        seen |= names
        if path.parent.name != "commands":
            tops = ("commands.", "bench.") if path.name != "cli.py" else ("cli.",)
            assert not [name for name in names if name.startswith((*tops, "cli."))], path
    assert {"commands.plan.plan", "bench.cli.app", "cost.Link"} <= seen
