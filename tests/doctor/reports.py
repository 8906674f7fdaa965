"""What the tests of tricoll doctor do with findings, and with folders that stand for another machine."""


def one(probe, name):
    """The finding of a probe by its name."""
    found = [f for f in probe if f.name == name]
    assert len(found) == 1, found
    return found[0]


def every(report):
    return [found for findings in report.sections.values() for found in findings]


def tree(root, files):
    """Files with their texts, under a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
