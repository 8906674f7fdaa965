"""Variables: what each does, which are unknown, and which values will not do."""

import dataclasses
import re
from pathlib import Path

import pytest
from reports import one

import tricoll
from tricoll import dispatch
from tricoll.doctor import environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "doctor.md"


def test_every_variable_that_the_code_reads_is_known():
    shape = {field.name for field in dataclasses.fields(dispatch.Settings)} - {"mapped", "multicast"}
    read = {f"TRICOLL_{name.upper()}" for name in shape}
    for path in [*(ROOT / "tricoll").rglob("*.py"), *(ROOT / "bench").glob("*.py"), *(ROOT / "kernels").glob("*.py")]:
        if path.parent.name != "doctor":
            read |= set(re.findall(r"TRICOLL_[A-Z_]*[A-Z]", path.read_text()))
    assert read <= set(environment.TRICOLL)
    assert set(environment.TRICOLL) - read <= {"TRICOLL_HEAP_BYTES"}  # which is for the nvshmem fabric


def test_variables_with_their_effect(monkeypatch):
    monkeypatch.setenv("TRICOLL_LINK", "put")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = {f.name: f for f in environment.variables()}
    assert found["TRICOLL_LINK"].text == "put  (mapped or put links)" and found["TRICOLL_LINK"].state == "ok"
    assert found["OMP_NUM_THREADS"].data == {"value": "3"}
    assert one(environment.settings(), "settings").data["mapped"] is False


@pytest.mark.parametrize(
    ("name", "near"), [("TRICOLL_LINKS", "TRICOLL_LINK"), ("TRICOLL_SLOTBYTES", "TRICOLL_SLOT_BYTES")]
)
def test_an_unknown_variable_is_pointed_out_and_its_value_kept(name, near, monkeypatch, run):
    monkeypatch.setenv(name, "a secret")
    monkeypatch.setenv("NVSHMEM_SOMETHING", "another secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a third secret")
    for result in (run("--no-test", "--json"), run("--no-test")):
        assert result.exit_code == 0
        assert "secret" not in result.stdout and "AWS" not in result.stdout
        assert f"do you mean {near}?" in result.stdout and "NVSHMEM_SOMETHING" in result.stdout


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TRICOLL_PROFILE", "h1000", "neither a file nor one of the profiles"),
        ("TRICOLL_NVSHMEM_BITCODE", "/nowhere", "no such file"),
        ("GLOO_SOCKET_IFNAME", "ib7", "no interface is named ib7"),
        ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "=lo,ib7", "no interface is named ib7"),
        ("CUDA_LAUNCH_BLOCKING", "1", "unset it"),
    ],
)
def test_a_value_that_will_not_do(name, value, said, monkeypatch):
    monkeypatch.setenv(name, value)
    found = one(environment.variables(), name)
    assert found.state == "problem" and said in found.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRICOLL_PROFILE", "h100"),
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "^docker"),
        ("CUDA_LAUNCH_BLOCKING", "0"),
    ],
)
def test_a_value_that_will_do(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert one(environment.variables(), name).state == "ok"


@pytest.mark.parametrize(
    ("name", "value"), [("TRICOLL_SLOTS", "two"), ("TRICOLL_SLOTS", "1"), ("TRICOLL_LINK", "x"), ("TRICOLL_TILES", "x")]
)
def test_settings_that_init_would_refuse(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as refused:
        tricoll.simulate(lambda comm: None, 1)
    found = one(environment.settings(), "settings")
    assert found.state == "problem" and found.text == str(refused.value)


def test_half_a_rendezvous(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "here")
    assert one(environment.variables(), "rendezvous").data == ["WORLD_SIZE", "MASTER_PORT"]
