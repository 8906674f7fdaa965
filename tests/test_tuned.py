"""Profiles that were measured: stored, found, and refused if they are for something else."""

import dataclasses
import json
import os
import warnings

import pytest
import torch
from tuning import ORIGIN, TARGET

from tricoll import cost, tuned
from tricoll.settings import settings_for
from tricoll.tuned import Target

PROFILE = cost.PROFILES["host"]


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    """No test reads or writes what a user has."""
    monkeypatch.setenv("TRICOLL_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


@pytest.fixture
def stored():
    profile = dataclasses.replace(PROFILE, provenance=ORIGIN)
    path = tuned.path_for(TARGET)
    tuned.save(profile, path)
    return profile, path


def test_a_profile_is_found(stored, profiles):
    profile, path = stored
    assert path == profiles / "host-4x4-mapped.json" and os.listdir(profiles) == [path.name]
    assert tuned.find(TARGET) == profile
    assert cost.load_profile(path) == profile  # as --profile and profile= read it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.find(Target("host", 4, 2, "mapped")) is None and tuned.find(Target("host", 8, 8, "mapped")) is None


@pytest.mark.parametrize(
    ("world_size", "node_size", "seen"), [(8, 4, 4), (8, 8, 8), (8, 0, 8), (8, 1, 8), (8, 3, 8), (8, 16, 8)]
)
def test_what_is_stored_is_what_is_looked_for(world_size, node_size, seen):
    """Nodes count where the cost model sees several of several ranks: of other sizes, all ranks are in one."""
    settings = settings_for(node_size=node_size, link="put")
    assert tuned.target("host", world_size, settings) == Target("host", world_size, seen, "put")


def test_a_profile_of_gpus_is_for_the_gpu(monkeypatch):
    """A job has other hosts each time, and a machine without GPUs has none of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    target = Target("nvshmem", 8, 8, "mapped")
    origin = {**ORIGIN, "target": dataclasses.asdict(target), "machine": tuned.machine("nvshmem")}
    tuned.save(dataclasses.replace(PROFILE, provenance=origin), tuned.path_for(target))
    assert tuned.find(target) is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"another machine .gpu was H100, is none"):
        tuned.load(tuned.path_for(target), target)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 99}, "version is 99"),
        ({"provenance": {}}, "not measured by tricoll tune"),
        ({"provenance": {**ORIGIN, "version": 0}}, "provenance has version 0"),
        ({"provenance": {**ORIGIN, "tricoll": "0.0.1"}}, r"is old.*tricoll was 0\.0\.1"),
        ({"provenance": {**ORIGIN, "machine": {**ORIGIN["machine"], "cores": 999}}}, "another machine .cores was 999"),
        ({"provenance": {**ORIGIN, "machine": None}}, "another machine"),
        ({"provenance": {**ORIGIN, "target": {**ORIGIN["target"], "fabric": "sim"}}}, "fabric was sim, is host"),
        ({"provenance": {**ORIGIN, "target": {**ORIGIN["target"], "world_size": 8}}}, "world_size was 8, is 4"),
        ({"provenance": {**ORIGIN, "target": {**ORIGIN["target"], "link": "put"}}}, "link was put, is mapped"),
        ({"protocols": {}}, "no protocol 'signal'"),
    ],
)
def test_refused(stored, change, reason):
    _, path = stored
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=reason):
        tuned.load(path, Target("host", 4, 4, "mapped"))
    with pytest.warns(RuntimeWarning, match=reason):
        assert tuned.find(Target("host", 4, 4, "mapped")) is None


def test_refused_files(tmp_path):
    with pytest.raises(ValueError, match="run tricoll tune"):
        tuned.load(tmp_path / "none.json", Target("host", 4, 4, "mapped"))
    (tmp_path / "text.json").write_text("no JSON")
    with pytest.raises(ValueError, match=r"text\.json"):
        tuned.load(tmp_path / "text.json", Target("host", 4, 4, "mapped"))
