"""Which fabric ``tricoll.init(fabric="auto")`` takes: the same on every rank, or an error on every rank."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import tricoll
from tricoll import world
from tricoll.fabric import nvshmem

GPU, NONE = None, "there is no GPU here"


@pytest.mark.parametrize(
    ("reasons", "fabric"),
    [((GPU, GPU, GPU), "nvshmem"), ((GPU,), "nvshmem"), ((NONE, NONE, NONE), "host"), ((NONE,), "host")],
)
def test_gpus_are_used_where_all_ranks_have_them(reasons, fabric):
    assert world.suits(reasons) == fabric


def test_ranks_that_do_not_agree_hear_why():
    with pytest.raises(ValueError, match=r"rank 1: there is no GPU here.*tricoll.init\(fabric='host'\)"):
        world.suits((GPU, NONE, GPU))


def taken(monkeypatch, *reasons):
    """The fabric that each rank of ``init`` would take, of which each has said what keeps it from using nvshmem."""
    store, said = dist.HashStore(), iter(reasons)
    monkeypatch.setattr(nvshmem, "lacking", lambda ranks: next(said))
    monkeypatch.setattr(world, "_fabric", lambda name, *_: pytest.fail(name))

    def one(rank):
        try:
            world.connect(store, rank, len(reasons), "auto", 10.0)
        except (ValueError, pytest.fail.Exception) as error:
            return str(error)

    with ThreadPoolExecutor(len(reasons)) as ranks:
        return list(ranks.map(one, range(len(reasons))))


def test_auto_is_the_same_on_all_ranks(monkeypatch):
    assert taken(monkeypatch, GPU, GPU, GPU) == ["nvshmem"] * 3
    assert taken(monkeypatch, NONE, NONE) == ["host"] * 2
    first, second = taken(monkeypatch, GPU, NONE)
    assert first == second and "there is no GPU here" in first


def test_more_ranks_than_gpus_are_not_on_gpus(monkeypatch):
    monkeypatch.setattr(nvshmem, "unavailable", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert nvshmem.lacking(2) is None
    assert "there are 3 ranks on this host, and 2 GPUs" in nvshmem.lacking(3)


def test_an_unknown_fabric_is_refused_before_anybody_is_waited_for():
    with pytest.raises(ValueError, match="fabric is 'nccl'; it can be one of"):
        tricoll.init(fabric="nccl")
