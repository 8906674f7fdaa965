"""A built wheel in an environment that has nothing else of tricoll: README's quick start runs from an empty
folder."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(*command, cwd, timeout=100):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built in a copy, so that nothing is left in the checkout."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("tricoll", "kernels", "bench"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(built)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (path,) = built.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel; what tricoll depends on is this environment's, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Only folders: what is in the .pth files there, an editable tricoll for one, does not count.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others) + "\n")
    return python


def test_what_is_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"tricoll/py.typed", "tricoll/kernels/ring.py", "tricoll/bench/cli.py", "tricoll/fabric/sim.py"} <= set(
        names
    )
    sources = [*(ROOT / "tricoll").rglob("*.py"), *(ROOT / "kernels").glob("*.py"), *(ROOT / "bench").glob("*.py")]
    assert len([name for name in names if name.endswith(".py")]) == len(sources)  # no subpackage was forgotten
    assert not [name for name in names if name.startswith(("tests", "docs", "kernels", "bench"))]
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata and "Provides-Extra: docs" in metadata


def test_the_quick_start_of_the_readme(installed, tmp_path):
    script = tmp_path / "quick.py"
    script.write_text(re.search(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1])
    lines = run(installed, script, cwd=tmp_path).splitlines()
    assert lines[0] == "[1.5, 1.5, 1.5, 1.5]" and f": {lines[0]}" in README
    assert re.fullmatch(r"3\.5 \d+", lines[1])
    where = "import tricoll, tricoll.kernels.ring as k; print(tricoll.__file__, k.__file__)"
    assert all(path.startswith(str(installed.parents[1])) for path in run(installed, "-c", where, cwd=tmp_path).split())


def test_the_command(installed, tmp_path):
    said = run(installed.parent / "tricoll", "--version", cwd=tmp_path)
    assert re.match(r"tricoll \d+\.\d+\.\d+ \(Triton .*, PyTorch .*\)", said)
