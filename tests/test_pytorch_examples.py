"""docs/pytorch.md: its excerpts are in the examples, and every example runs."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
TEXT = (DOCS / "pytorch.md").read_text()

PRINTS = {  # what the last line of an example's output looks like
    "accumulate": r"10 communications for 40 micro-batches; rank 0, 10 backward passes: .* hidden",
    "asynchronous": r"\[\(2\.0, 2\.0, torch\.Size\(\[200, 200\]\)\)(, \(2\.0.*){2}\]",
    "ddp_after": r"tricoll: loss 0\.\d{4} after 50 steps",
    "ddp_before": r"gloo: loss 0\.\d{4} after 50 steps",
    "fsdp": r"loss 0\.\d{4} after 50 steps",
    "functional": r"output -?\d\.\d{4} on both ranks, gradients of norm [\d.]+ and [\d.]+",
    "noise": r"gradient norm \d\.\d{3}, noise scale \d+ examples, batch 64",
    "notebook": r"loss 0\.0\d{3}; rank 1, 30 backward passes: .*",
}


def run(path, folder):
    launcher = [] if "tricoll.launch" in path.read_text() else ["-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc-per-node=2"] if launcher else []
    command = [sys.executable, *launcher, *options, str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_every_example_is_known_and_named():
    assert [path.stem for path in EXAMPLES] == sorted(PRINTS)
    assert set(re.findall(r"\(examples/(\w+)\.py\)", TEXT)) == set(PRINTS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    last = run(path, tmp_path)
    assert re.fullmatch(PRINTS[path.stem], last), last


def test_excerpts_are_from_the_examples():
    sources = [path.read_text() for path in EXAMPLES]
    excerpts = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(excerpts) >= 7
    for excerpt in excerpts:
        assert any(excerpt in source for source in sources), excerpt


def test_before_and_after_differ_as_the_page_says():
    before, after = ((DOCS / "examples" / f"ddp_{which}.py").read_text().splitlines() for which in ("before", "after"))
    lines = [line for line in difflib.ndiff(before[1:], after[1:]) if line[:1] in "+-" and line[2:].strip()]
    page = re.search(r"```diff\n(.*?)```", TEXT, re.DOTALL).group(1).splitlines()
    assert sorted(line[0] + line[2:] for line in lines) == sorted(page)
