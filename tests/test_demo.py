"""The demo: it runs, says what it should, and its trainings agree."""

import contextlib
import io
import re
import sys

import pytest

from tricoll import demo

STEPS = 60


@pytest.fixture(scope="module")
def shown():
    """What the demo prints, for 2 ranks and few steps."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'tricoll[demo]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            demo.run(nprocs=2, steps=STEPS)
    return out.getvalue()


def values(shown, what):
    """The numbers of a line of the table of totals, one a training."""
    (line,) = re.findall(rf"^ +{what} +(.+)$", shown, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", line)]


def test_it_says_what_ran_and_what_did_not(shown):
    text = " ".join(shown.split())
    for part in (
        "handwritten digits on 2 CPU ranks",
        "tricoll.ddp.bf16_hook",
        "Training, step by step",
        "Loss, on a logarithmic scale",
        "In total",
        "* Computed, because Gloo does not count",
        "the host fabric",
        "nvshmem fabric",
        "No figure of a GPU is shown",
    ):
        assert part in text, part
    assert max(map(len, shown.splitlines())) <= 80


def test_the_trainings_agree(shown):
    ours, gloo, fp32 = values(shown, "Test accuracy")
    assert gloo > 80 and abs(ours - gloo) < 3 and abs(fp32 - gloo) < 3
    bf16, fp32 = values(shown, "relative, L2")
    assert 0 <= fp32 < bf16 < 0.05
    assert re.search(r"Same bits on all ranks +yes +yes +yes", shown)


def test_bf16_sends_half_of_what_a_ring_of_fp32_does(shown):
    ours, gloo, fp32 = values(shown, "Sent, all ranks")
    assert gloo == fp32 and ours == pytest.approx(fp32 / 2, abs=0.1)
    assert values(shown, "All-reduces, a rank") == [STEPS] * 3


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 240])
def test_rows_end_with_the_last_step(steps):
    rows = demo.rows(steps)
    assert rows[-1] == steps and rows[0] >= 1 and len(rows) <= demo.ROWS


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SystemExit, match=r'pip install "tricoll\[demo\]"'):
        demo.run()


@pytest.mark.parametrize("wrong", [{"nprocs": 0}, {"steps": 0}])
def test_nothing_to_do(wrong):
    with pytest.raises(SystemExit, match="must be at least 1"):
        demo.run(**wrong)
