"""Who may import whom: what ``[tool.importlinter]`` in pyproject.toml says; device code is Triton alone."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "kernels").glob("*.py"))
IN_PLAIN_PYTHON = ("jit", "numerics")  # which have halves that run on a CPU


@pytest.fixture
def tree(tmp_path):
    """The package as it is installed: the linter looks for kernels and benchmarks inside."""
    for folder, place in (("tricoll", "tricoll"), ("kernels", "tricoll/kernels"), ("bench", "tricoll/bench")):
        shutil.copytree(ROOT / folder, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def lint(tree):
    linter = Path(sys.executable).with_name("lint-imports")
    command = [linter, ROOT / "pyproject.toml", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_imports_go_one_way(tree):
    code, said = lint(tree)
    assert code == 0, said
    assert "4 kept, 0 broken" in said


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("kernels/ring.py", "from . import tree", "No algorithm imports another"),
        ("kernels/link.py", "from . import group", "what they share has an order"),
        ("kernels/ring.py", "from tricoll import errors", "From commands to kernels"),
        ("fabric/base.py", "from tricoll import communicator", "From commands to kernels"),
        ("fabric/host.py", "from . import sim", "No fabric imports another"),
        ("cost/choice.py", "from .. import topology", "The cost model knows no machine"),
        ("plan/step.py", "from tricoll.bench import run", "From commands to kernels"),
        ("new.py", "", "From commands to kernels"),
    ],
)
def test_the_contract_is_not_empty(tree, file, line, broken):
    with (tree / "tricoll" / file).open("a") as at_the_end:
        at_the_end.write(f"\n\n{line}\n")
    code, said = lint(tree)
    assert code and any(broken in told and "BROKEN" in told for told in said.splitlines()), said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_are_triton_alone(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            assert name.split(".")[0] in {"torch", "triton", "typing", "collections"} or path.stem in IN_PLAIN_PYTHON, (
                f"{path.name} imports {name}"
            )
