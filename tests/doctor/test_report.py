"""The report: never silent or stopped by what is missing or broken, private, and explained by its page."""

import ast
import errno
import inspect
import json
import re
import socket
import sys
import types
from pathlib import Path

import pytest

from tricoll import doctor
from tricoll.doctor import environment, fabrics, finding, gpu, machine
from tricoll.doctor.finding import Finding
from tricoll.fabric import host

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "doctor.md"


def test_with_nothing_there(monkeypatch, tmp_path, run):
    """Not even /dev/shm and /proc: every section has its lines, and host, which should work, fails."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(host, "SHM", str(tmp_path / "gone"))
    for module in (machine, gpu):
        monkeypatch.setattr(module, "version", lambda name: "")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.bitcode, "_wheel_folders", lambda: [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    rooted = lambda probe: "root" in inspect.signature(probe).parameters
    at = lambda probe: types.FunctionType(
        probe.__code__, probe.__globals__, probe.__name__, (empty,), probe.__closure__
    )
    sections = {
        name: tuple(at(probe) if rooted(probe) else probe for probe in probes)
        for name, probes in doctor.SECTIONS.items()
    }
    monkeypatch.setattr(doctor, "SECTIONS", sections)
    result = run("--no-test", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["failed"]
    states = {f["name"]: f["state"] for findings in report["sections"].values() for f in findings}
    assert states["PyTorch"] == states["memory"] == states["interfaces"] == states["NVSHMEM"] == "absent"
    assert states[str(tmp_path / "gone")] == "problem"
    assert {name for name, state in states.items() if state == "failed"} == {"sim", "host"}  # find_spec finds nothing


PROBES = [(section, probe.__name__) for section, probes in doctor.SECTIONS.items() for probe in probes]


@pytest.mark.parametrize(("section", "name"), PROBES)
def test_a_broken_probe_is_a_line(section, name, monkeypatch, run):
    """After what it has found, and without any harm to the others."""

    def broken():
        yield Finding("before", "it broke")
        raise OSError(errno.EIO, "this disk is on fire")

    broken.__name__ = name
    probes = tuple(broken if probe.__name__ == name else lambda: iter(()) for probe in doctor.SECTIONS[section])
    others = {other: (lambda: iter([Finding("fine", "fine")]),) for other in doctor.SECTIONS}
    monkeypatch.setattr(doctor, "SECTIONS", {**others, section: probes})
    result = run("--no-test", "--json")
    sections = json.loads(result.stdout)["sections"]
    assert [f["name"] for f in sections[section]] == ["before", name]
    assert sections[section][1]["state"] == "failed"
    assert sections[section][1]["text"] == "could not be found out: OSError: [Errno 5] this disk is on fire"
    assert all(len(findings) == 1 for other, findings in sections.items() if other not in (section, doctor.TESTS))
    assert result.exit_code == (1 if section in doctor.FATAL else 0)
    assert "on fire" in run("--no-test").stdout


def test_json_is_what_the_page_says(run):
    report = json.loads(run("--no-test", "--json").stdout)
    assert list(report) == ["format", "tricoll", "taken", "tested", "failed", "sections"]
    assert report["format"] == doctor.FORMAT == 1
    names = ["software", "machine", "gpu", "network", "environment", "fabrics", "self-test"]
    assert list(report["sections"]) == names
    for findings in report["sections"].values():
        for found in findings:
            assert list(found) == ["name", "text", "state", "hint", "data"]
            assert found["state"] in finding.STATES
            assert all(isinstance(found[field], str) for field in ("name", "text", "state", "hint"))
    page = PAGE.read_text()
    for name in [*report, *names, *finding.STATES]:
        assert f"`{name}`" in page, name


def test_no_home_and_no_host_in_the_report(monkeypatch, tmp_path, run):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRICOLL_PROFILE_DIR", str(tmp_path / "kept" / "here"))
    (tmp_path / "kept").mkdir()
    for options in (["--json"], []):
        text = run("--no-test", *options).stdout
        assert str(tmp_path) not in text and "~/kept/here" in text
        assert socket.gethostname() not in text or len(socket.gethostname()) < 5


def test_the_page_is_written_by_the_command(run, tmp_path):
    page = tmp_path / "doctor.md"
    page.write_text(f"before\n{doctor.BEGIN}\nold\n{doctor.END}\nafter\n")
    result = run("--no-test", "--markdown", str(page))
    text = page.read_text()
    assert result.exit_code == 0 and "old" not in text
    assert text.startswith(f"before\n{doctor.BEGIN}\n```text\nsoftware\n") and text.endswith(
        f"```\n{doctor.END}\nafter\n"
    )
    page.write_text("no markers")
    assert run("--no-test", "--markdown", str(page)).exit_code == 2


def test_the_page_shows_and_explains_every_line(run):
    page = PAGE.read_text()
    shown = page[page.index(doctor.BEGIN) : page.index(doctor.END)]
    report = doctor.examine(test=False)
    always = [f.name for name in ("software", "machine", "environment", "fabrics") for f in report.sections[name]]
    for name in [*always, "CUDA runtime", "driver", "GPUs", "interfaces", "RDMA NICs", "sim test", "host test"]:
        assert re.search(rf"^ [ \-!x] {re.escape(name)} ", shown, re.M), (
            f"{name} is not in the page's report: make pages"
        )
    explained = set(re.findall(r"^\| ([^|]+?) \|", page, re.M))
    explained = {name.strip() for row in explained for name in row.split(",")}
    for match in re.finditer(r"^ [ \-!x] (\S.{15,}?) \S", shown, re.M):
        name = match[1].strip()
        assert name in explained or name in fabrics.FABRICS or name.endswith(" test"), f"{name} is not explained"
    sources = "".join(inspect.getsource(module) for module in (machine, gpu, environment, fabrics))
    for name in re.findall(r'Finding\("([^"]+)"', sources):
        assert name in explained, f"{name} is not explained"


def constants(paths):
    """The texts in the source: an f-string's pieces with ... between them."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(p.value if isinstance(p, ast.Constant) else "..." for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_errors_that_the_page_lists_are_in_the_code():
    listed = re.findall(r"^- `([^`]+)`", PAGE.read_text()[PAGE.read_text().index("## What an error says") :], re.M)
    assert len(listed) >= 15
    texts = constants([*(ROOT / "tricoll").glob("*.py"), *(ROOT / "tricoll" / "fabric").glob("*.py")])
    for message in listed:
        assert any(message in text for text in texts), f"no error says {message!r}"
