"""Public names have docstrings that are complete: what is public is what the reference pages list.

Griffe, which reads the docstrings for those pages, does it here, too. A parameter is described if it is in ``Args``,
quoted in the text, or one of a function that the docstring refers to; likewise what is returned and raised.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import griffe
import pytest
import yaml

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^::: ([\w.]+)\n((?:    .*\n)*)", re.MULTILINE)
REFERENCE = re.compile(r":(?:func|class|meth|mod):`~?([\w.]+)`")
# A docstring that begins so says what a function does; any other says what it returns.
VERBS = re.compile(
    "Average|Begin|Change|Check|Compare|Count|Cut|Destroy|Draw|Give|Have|Join|Make|Measure|Print|Receive|Reduce|Run|Send|"
    "Simulate|Start|Store|Take|Wait|Write"
)


@pytest.fixture(scope="module")
def package():
    return griffe.load("tricoll", search_paths=[str(ROOT)], docstring_parser="google")


def listed(package):
    """The functions, classes and modules of the reference pages, with what belongs to them."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name, options in ENTRY.findall(page.read_text() + "\n"):
            chosen = (yaml.safe_load(options) or {}).get("options", {}) if options else {}
            thing = package[name.removeprefix("tricoll.")] if name != "tricoll" else package
            yield from walk(final(thing), chosen.get("members"), chosen.get("filters", []))


def final(thing):
    return thing.final_target if thing.is_alias else thing


def walk(thing, members=None, filters=()):
    yield thing
    if not (thing.is_module or thing.is_class):
        return
    for name, member in thing.members.items():
        imported = member.is_alias and members is None
        hidden = name.startswith("_") or any(re.search(f[1:], name) for f in filters if f.startswith("!"))
        if imported or hidden or (members is not None and name not in members):
            continue
        if final(member).is_function or final(member).is_class or "property" in final(member).labels:
            yield from walk(final(member))


def text(thing):
    return inspect.cleandoc(thing.docstring.value) if thing.docstring else ""


def related(thing, package):
    """What a docstring refers to: for "See :meth:`Communicator.all_reduce`", that method."""
    for name in REFERENCE.findall(text(thing)):
        scope = thing.parent.path.removeprefix("tricoll").strip(".") if thing.parent else ""
        for path in (f"{scope}.{name}".strip("."), name.removeprefix("tricoll.")):
            try:
                found = final(package[path])
            except (KeyError, ValueError, griffe.GriffeError):
                continue
            if found.is_function or found.is_class:
                yield found
            break


def described(thing):
    """Names of parameters that a docstring says something of."""
    names = set()
    for section in thing.docstring.parse("google") if thing.docstring else ():
        if section.kind is griffe.DocstringSectionKind.parameters:
            names |= {p.name.lstrip("*") for p in section.value}
    for quoted in re.findall(r"``([^`]+)``", text(thing)):
        names |= set(re.findall(r"\w+", quoted))
    return names


def raised(thing):
    """The exceptions that a function's own lines raise."""
    source = textwrap.dedent("\n".join(thing.lines))
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(getattr(node.exc.func, "id", getattr(node.exc.func, "attr", "")))
    return found - {"AssertionError", "NotImplementedError"}


def missing(thing, package):
    """What a docstring lacks."""
    if not text(thing):
        return ["a docstring"]
    if thing.is_class:
        init = thing.members.get("__init__")
        made = "dataclass" in thing.labels or "ade by" in text(thing) or init is None
        return [] if made else [p.name for p in init.parameters if p.name != "self" and p.name not in described(thing)]
    if not thing.is_function:
        return []
    others = list(related(thing, package))
    known = set().union(described(thing), *map(described, others))
    if others:  # what is handed on to them
        known |= {p.name.lstrip("*") for p in thing.parameters if p.kind is griffe.ParameterKind.var_keyword}
    lacks = [p.name for p in thing.parameters if p.name not in ("self", "cls") and p.name.lstrip("*") not in known]
    all_text = "\n".join([text(thing), *map(text, others)])
    returns = thing.returns is not None and str(thing.returns) not in ("None", "typing.NoReturn")
    if returns and VERBS.match(text(thing)) and not re.search(r"\b[Rr]eturns?\b", all_text):
        lacks.append("what it returns")
    return lacks + [f"{name}, which it raises" for name in sorted(raised(thing)) if name not in all_text]


def test_docstrings_are_complete(package):
    seen = {thing.path: thing for thing in listed(package)}
    assert len(seen) > 120
    lacking = {path: lacks for path, thing in seen.items() if (lacks := missing(thing, package))}
    assert not lacking, "\n".join(f"{path}: {', '.join(lacks)}" for path, lacks in sorted(lacking.items()))


def test_what_is_missing_is_found(package, tmp_path):
    (tmp_path / "sample.py").write_text(
        textwrap.dedent('''
            def bare(x): ...

            def half(x: int, y: int) -> int:
                """Make something of ``x``."""
                raise ValueError("no")

            def whole(x: int, y: int) -> int:
                """Make something of ``x``.

                Args:
                    y: what to make.

                Returns:
                    It.

                Raises:
                    ValueError: always.
                """
                raise ValueError("no")

            def like(x: int, y: int) -> int:
                """Make it as :func:`whole` does."""
                raise ValueError("no")
            ''')
    )
    sample = griffe.load("sample", search_paths=[str(tmp_path)])
    found = {name: missing(thing, sample) for name, thing in sample.members.items()}
    assert found == {
        "bare": ["a docstring"],
        "half": ["y", "what it returns", "ValueError, which it raises"],
        "whole": [],
        "like": [],
    }
