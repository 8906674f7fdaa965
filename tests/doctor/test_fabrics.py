"""Which fabrics work here and why not, and which stored profiles would be used."""

import dataclasses
import errno
import importlib.machinery
import os
import re
import sys
import types

from reports import one

import tricoll
from tricoll import tuned
from tricoll.doctor import fabrics
from tricoll.doctor.finding import Finding
from tricoll.fabric import host


def a_fabric(monkeypatch, name, unavailable):
    module = types.ModuleType(f"tricoll.fabric.{name}")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    if unavailable:
        module.unavailable = unavailable
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_fabric_says_whether_it_can_be_used(monkeypatch):
    a_fabric(monkeypatch, "loopback", lambda: None)
    assert fabrics.fabric("loopback") == Finding("loopback", "works here: several ranks on one GPU", data=True)
    a_fabric(monkeypatch, "loopback", lambda: "no GPU: buy one")
    assert fabrics.fabric("loopback") == Finding("loopback", "not here: no GPU: buy one", "absent", data=False)
    a_fabric(monkeypatch, "loopback", lambda: 1 / 0)
    assert fabrics.fabric("loopback").state == "problem" and "ZeroDivisionError" in fabrics.fabric("loopback").text
    a_fabric(monkeypatch, "loopback", None)
    assert fabrics.fabric("loopback").state == "problem" and "AttributeError" in fabrics.fabric("loopback").text
    a_fabric(monkeypatch, "host", lambda: "no memory")
    assert fabrics.fabric("host").state == "failed"


def test_host_says_why_not(monkeypatch, tmp_path):
    assert host.unavailable() is None
    monkeypatch.setattr(host, "SHM", str(tmp_path / "gone"))
    assert "cannot allocate shared memory" in host.unavailable()

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(host, "SHM", "/dev/shm")
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert re.search(
        r"needs 32768 bytes of shared memory, and /dev/shm has \d+ free.*TRICOLL_SLOT_BYTES", host.unavailable()
    )


def test_profiles(tmp_path):
    assert one(fabrics.tuning(), "tuning").state == "absent"
    target = tuned.Target("host", 4, 4, "mapped")
    origin = {
        "version": tuned.VERSION,
        "target": {"fabric": "host", "world_size": 4, "node_size": 4, "link": "mapped"},
        "machine": tuned.machine("host"),
        "tricoll": tricoll.__version__,
        "measured": "2026-11-30T10:00:00+00:00",
    }
    profile = tricoll.cost.PROFILES["host"]
    save = lambda name, **changes: tuned.save(
        dataclasses.replace(profile, provenance=origin | changes), tuned.folder() / name
    )
    save(tuned.path_for(target).name)
    assert one(fabrics.tuning(), "tuning").text == "4 ranks on host, mapped links, measured 2026-11-30"
    save("copy.json")
    save("other.json", machine={**tuned.machine("host"), "cores": 1000})
    save("built-in.json", target=None)
    (tuned.folder() / "nonsense.json").write_text("{")
    found = {f.text.split(":")[0]: f for f in fabrics.tuning()}
    assert [f.state for f in fabrics.tuning()].count("ok") == 1 and len(list(fabrics.tuning())) == 5
    texts = " ".join(f.text for f in fabrics.tuning())
    assert "copy.json is for 4 ranks on host" in texts and "is of another machine (cores was 1000" in texts
    assert "built-in.json has no target" in texts and found
