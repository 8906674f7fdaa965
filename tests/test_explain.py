"""``tricoll explain``, and the page that has what it says."""

import json
import re

import pytest
from pictures import check_colours
from typer.testing import CliRunner

from tricoll import cost, dispatch, explain, plots
from tricoll.cli import app


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "100"})

    return invoke


def test_explain_command(run):
    result = run("explain", "all_reduce", "--bytes", "1M", "--ranks", 64, "--node-size", 8, "--all")
    assert result.exit_code == 0
    rows = re.findall(r"^ (\w+)( \*)? +[\d.]+ us", result.stdout, re.M)
    assert rows == [("tree", ""), ("hierarchical", ""), ("ring", ""), ("two_shot", " *"), ("one_shot", " *")]
    assert "* multimem is left out: the switch adds inside one node only" in result.stdout
    assert "tree is predicted to take 209.7 us, 4.83% faster than hierarchical (219.9 us)" in result.stdout
    only = run("explain", "all_reduce", "--bytes", "1M", "--ranks", 64, "--node-size", 8, "--reproducible")
    assert "two_shot is predicted" in only.stdout and "* ring is left out: not reproducible" in only.stdout


def test_explain_command_json(run):
    result = run("explain", "all_gather", "--bytes", "1GB", "--ranks", 8, "--profile", "nvlink", "--json")
    read = json.loads(result.stdout)
    assert read["winner"] == "two_shot"
    assert read["candidates"][0]["time"] == pytest.approx(5e-6 + 7 / 8 / 450)
    assert read["topology"] == {"world_size": 8, "node_size": 8, "mapped": True}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["allreduce"], "'allreduce' is not one of all_reduce, reduce_scatter"),
        (["all_reduce", "--node-size", "5"], "do not fill nodes of 5"),
        (["all_reduce", "--profile", "a100"], "neither a file nor one of"),
    ],
)
def test_explain_command_says_what_is_wrong(run, options, said):
    result = run("explain", *options, "--bytes", "1M", "--ranks", 8)
    assert result.exit_code == 2 and said in result.stderr


def test_what_tricoll_cannot_run(run, monkeypatch):
    monkeypatch.setattr(dispatch, "ALGORITHMS", {"ring": ("all_reduce",)})
    given = ("--bytes", "1M", "--ranks", 8)
    assert "* tree is left out: this version of tricoll does not have it" in run("explain", "all_reduce", *given).stdout
    missing = run("explain", "broadcast", *given)
    assert missing.exit_code == 2 and "--all predicts it all the same" in missing.stderr
    assert run("explain", "broadcast", *given, "--all").exit_code == 0


def test_two_ranks_that_send_and_receive(run):
    """The cost model has one name for both."""
    result = run("explain", "send_recv", "--bytes", "1M", "--ranks", 8)
    assert result.exit_code == 0 and "one_shot is predicted" in result.stdout


def test_help_teaches(run):
    text = run("explain", "--help").stdout
    assert "tricoll explain all_reduce --bytes 1M --ranks 64 --node-size 8\n" in text


def test_picture(run, tmp_path):
    sizes = tmp_path / "sizes.png"
    options = ("--bytes", "1M", "--ranks", 64, "--node-size", 8, "--all", "--plot", sizes)
    assert run("explain", "all_reduce", *options).exit_code == 0
    check_colours(sizes, [plots.COLOURS[a] for a in ("ring", "tree")])


def test_picture_of_an_algorithm_without_a_colour(run, tmp_path, monkeypatch):
    monkeypatch.setitem(cost.ALGORITHMS, "star", cost.ALGORITHMS["ring"])
    monkeypatch.delitem(cost.ALGORITHMS, "ring")
    sizes = tmp_path / "sizes.png"
    result = run("explain", "all_reduce", "--bytes", "1M", "--ranks", 64, "--all", "--plot", sizes)
    assert result.exit_code == 0, result.output
    check_colours(sizes, [plots.COLOURS["star"]])


# The documentation.


def test_table_of_crossovers_is_the_model(request):
    """docs/cost-model.md has the lines that ``python -m tricoll.explain`` prints."""
    text = (request.config.rootpath / "docs" / "cost-model.md").read_text()
    assert "\n".join(explain.markdown()) in text


def test_profile_of_the_documentation(request, run, tmp_path):
    text = (request.config.rootpath / "docs" / "cost-model.md").read_text()
    path = tmp_path / "mine.json"
    path.write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    result = run("explain", "all_reduce", "--bytes", "1M", "--ranks", 8, "--profile", path)
    assert result.exit_code == 0 and "profile mine" in result.stdout
