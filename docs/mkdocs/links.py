"""What links mean on the site. Pages are written to be read in the repository: their links are relative to their file.

Three files at the top of the repository become pages, and files outside of docs/ that a page refers to (kernels, tests)
are copied to source/.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def place(path):
    """Where a file of the repository is on the site."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}")


def links(text, path):
    """What a page of the repository refers to: paths from the root."""
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) for link in LINK.findall(text)}


def rewritten(text, path):
    """The text of a page with links that are right on the site."""

    def new(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return posixpath.relpath(place(target), posixpath.dirname(place(path)) or ".")

    return LINK.sub(new, text)


def on_files(files, config):
    """MkDocs asks what there is to build."""
    paths = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for page, site in PAGES.items():
        files.append(File.generated(config, site, content=(ROOT / page).read_text()))
    outside = set().union(*(links((ROOT / path).read_text(), path) for path in paths))
    for path in sorted(outside - set(PAGES)):
        if not path.startswith(("docs/", "..")) and (ROOT / path).is_file():
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """MkDocs asks what a page is to say."""
    site = page.file.src_uri
    path = next((path for path, name in PAGES.items() if name == site), f"docs/{site}")
    return rewritten(markdown, path)
