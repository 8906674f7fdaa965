"""The documentation's site builds, and every warning is an error: broken links, pages that nobody can reach, docstrings
that do not fit their functions."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tricoll

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def links():
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs" / "mkdocs" / "links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_there(site, links):
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in links.PAGES)]
    for path in pages:
        name = links.place(str(path.relative_to(ROOT))).replace("README.md", "index.md")
        assert (site / name).with_suffix(".html").exists(), path
    assert len(pages) >= 20


def test_the_reference_has_the_public_names(site):
    """Everything in ``tricoll.__all__``; and roles of docstrings have become links."""
    pages = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    modules = {"ddp", "fsdp", "ops"}
    for name in set(tricoll.__all__) - modules:
        assert f'id="tricoll.{name}"' in pages, name
    assert not re.search(r":(func|class|meth|mod):", pages)
    assert "<autoref" not in pages


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=\"?https?://", path.read_text()), path


@pytest.mark.parametrize(
    ("link", "page", "becomes"),
    [
        ("docs/pytorch.md", "README.md", "pytorch.md"),
        ("LICENSE", "README.md", "source/LICENSE"),
        ("../README.md#use", "docs/pytorch.md", "index.md#use"),
        ("../kernels/ring.py", "docs/algorithms.md", "source/kernels/ring.py"),
        ("gradients.json", "docs/results/README.md", "gradients.json"),
        ("../../tests/conftest.py", "docs/results/README.md", "../source/tests/conftest.py"),
        ("https://example.org/a.md", "README.md", "https://example.org/a.md"),
        ("#use", "README.md", "#use"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(links, link, page, becomes):
    assert links.rewritten(f"[x]({link})", page) == f"[x]({becomes})"


def test_a_link_to_nothing_is_an_error(tmp_path):
    """The build above can fail: a copy of the documentation with one broken link does."""
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tricoll", "kernels", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "tuning.md"
    page.write_text(page.read_text() + "\n[gone](../tricoll/nothing.py)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "nothing.py" in done.stdout + done.stderr
