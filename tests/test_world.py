"""Which fabric ``tricoll.init(fabric="auto")`` takes: the same on every rank, or an error on every rank."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import tricoll
from tricoll import world
from tricoll.fabric import nvshmem

GPU, NONE = None, "there is no GPU here"


@pytest.fixture
def suits(monkeypatch):
    """What ranks find, of which each has said what keeps it from using nvshmem."""

    def ask(*reasons):
        store = dist.HashStore()
        said = iter(reasons)
        monkeypatch.setattr(nvshmem, "unavailable", lambda: next(said))
        with ThreadPoolExecutor(len(reasons)) as ranks:
            return list(ranks.map(lambda r: outcome(store, r, len(reasons)), range(len(reasons))))

    return ask


def outcome(store, rank, size):
    try:
        return world._suits(store, rank, size, 10.0)
    except ValueError as error:
        return str(error)


def test_gpus_are_used_where_all_ranks_have_them(suits):
    assert suits(GPU, GPU, GPU) == ["nvshmem"] * 3
    assert suits(GPU) == ["nvshmem"]


def test_host_where_nobody_has_one(suits):
    assert suits(NONE, NONE, NONE) == ["host"] * 3


def test_ranks_that_do_not_agree_all_hear_why(suits):
    first, *others = suits(GPU, NONE, GPU)
    assert others == [first] * 2
    assert "there is no GPU here" in first and "tricoll.init(fabric='host')" in first


def test_init_takes_what_suits(monkeypatch):
    monkeypatch.setattr(nvshmem, "unavailable", lambda: None)
    taken = []
    monkeypatch.setattr(world, "_fabric", lambda name, *_: taken.append(name) or pytest.fail("far enough"))
    with pytest.raises(pytest.fail.Exception, match="far enough"):
        tricoll.init()
    assert taken == ["nvshmem"]


def test_an_unknown_fabric_is_refused_before_anybody_is_waited_for():
    with pytest.raises(ValueError, match="fabric is 'nccl'; it can be one of"):
        tricoll.init(fabric="nccl")
