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
