"""The simulator's own: virtual time, which is not a matter of the seed where puts are prompt; and too large a heap."""

import pytest
import torch

import tricoll


def seconds(algo, seed, **options):
    def work(comm):
        for _ in range(2):
            comm.all_reduce(torch.ones(2000), algo=algo)

    return tricoll.simulate(work, 4, seed=seed, delivery="prompt", slot_bytes=512, **options).virtual_time


@pytest.mark.parametrize("link", ["put", "mapped"])
@pytest.mark.parametrize("algo", ["ring", "tree", "two_shot", "one_shot"])
def test_channels_share_a_port_in_the_order_of_their_clocks(algo, link):
    one, other = (seconds(algo, seed, channels=3, link=link) for seed in (1, 2))
    assert one == other


def test_channels_keep_a_port_busy():
    """While one channel waits for an answer, another one sends: all takes no longer than on one channel."""
    profile = tricoll.LinkProfile(alpha=1e-6, beta=1e9)
    alone, shared = (seconds("ring", 1, channels=c, slots=8, window=4, profile=profile) for c in (1, 4))
    assert shared <= alone


def test_more_memory_than_there_is():
    """More than a process can address: on no machine is it there."""
    with pytest.raises(tricoll.HeapExhausted, match=r"2 simulated ranks need \d+ bytes each.*TRICOLL_CHANNELS"):
        tricoll.simulate(lambda comm: None, 2, channels=10**8)
