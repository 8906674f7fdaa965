"""The kernels on a virtual clock against the cost model: every all-reduce, within 5 %."""

import pytest
from typer.testing import CliRunner

from tricoll import crosscheck
from tricoll.crosscheck import ALGORITHMS, BEGIN, END, Case

RANKS, SIZES = (2, 4, 8), (1 << 10, 1 << 16, 1 << 20, 1 << 22)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kernels_and_model(algorithm):
    found = [crosscheck.check(*case) for case in crosscheck.cases([algorithm], RANKS, SIZES)]
    assert len(found) == (8 if algorithm == "hierarchical" else 12)
    assert crosscheck.median(found, algorithm) == pytest.approx(1, abs=0.05)
    # No case is far away, and where latency is all, the model is exact.
    assert all(0.75 < case.ratio < 1.45 for case in found)
    assert all(case.ratio == pytest.approx(1, abs=0.005) for case in found if case.nbytes == 1024)


def test_what_is_run():
    every = crosscheck.cases()
    assert {n for name, n, _ in every if name == "ring"} == {2, 3, 4, 8, 16, 32}
    assert max(n * nbytes for _, n, nbytes in every) == 512 << 20
    assert ("ring", 8, 64 << 20) in every and ("ring", 16, 64 << 20) not in every
    assert {n for name, n, _ in every if name == "hierarchical"} == set(crosscheck.NODES)


def test_the_section_is_written():
    found = [
        Case("ring", 2, 1024, 1.0, 1.0, 1.1),
        Case("ring", 4, 1024, 1.02, 1.0, 1.2),
        Case("ring", 4, 4096, 0.5, 1.0, 1.3),
        Case("multimem", 2, 1024, 1.03, 1.0, None),
    ]
    text = "\n".join(crosscheck.markdown(found))
    assert "| `ring` | 3 | 1.000 | 0.500 | 1.020 | 1 | 1.200 |" in text
    assert "| `multimem` | 1 | 1.030 | 1.030 | 1.030 | 0 | - |" in text
    assert f"`ring`: {crosscheck.REASONS['ring']}\n\n| ranks | 4.096 kB |\n| ---: | ---: |\n| 4 | 0.500 |" in text
    assert crosscheck.REASONS["multimem"] not in text


def test_the_page(tmp_path, monkeypatch):
    import typer

    app = typer.Typer()
    app.command()(crosscheck.main)
    page = tmp_path / "page.md"
    run = lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])
    page.write_text("no markers")
    assert run("--markdown", page).exit_code == 2
    assert run("--algo", "best").exit_code == 2
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(crosscheck, "cases", lambda algorithms, ranks: [(algorithms[0], ranks[0], 1024)])
    result = run("--markdown", page, "--algo", "ring", "--ranks", 2)
    assert result.exit_code == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nWritten by") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert "| `ring` | 1 | 1.000 | 1.000 | 1.000 | 0 | 1.000 |" in text
