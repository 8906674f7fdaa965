"""The choice of algorithm: a pure function, right where the answer is known, the same on all ranks, and fast."""

import pytest
import torch

import tricoll
from tricoll import cost, dispatch
from tricoll.settings import settings_for


def chosen(nbytes, world_size, profile="h100", collective="all_reduce", once=False, multicast=False, **settings):
    settings = dispatch.Settings(**{**vars(settings_for(**settings)), "multicast": multicast})
    return dispatch.choose(collective, nbytes, world_size, settings, cost.load_profile(profile), once)


def in_order(world_size, **options):
    """What is chosen as the size grows from 1 KiB to 16 GiB, without repetitions."""
    return list(dict.fromkeys(chosen(1 << k, world_size, **options) for k in range(10, 35)))


def test_inside_a_node_from_one_step_to_two():
    assert in_order(8) == ["one_shot", "two_shot"]
    assert in_order(8, multicast=True) == ["one_shot", "multimem"]


@pytest.mark.parametrize("world_size", [64, 512])
def test_across_nodes_from_the_tree_to_the_hierarchy(world_size):
    assert in_order(world_size, node_size=8) == ["tree", "hierarchical"]


def test_between_nodes_of_one_rank_from_the_tree_to_the_ring():
    """Many ranks with a NIC each: the model has no direct algorithms there."""
    settings = settings_for()
    for n in (8, 64):
        topology = cost.Topology(n, 1)
        available = dispatch.candidates("all_reduce", n, settings)
        pick = lambda nbytes: cost.best("all_reduce", nbytes, topology, cost.PROFILES["nic-400g"], available=available)
        assert pick(1 << 10).algorithm == "tree"
        assert pick(1 << 34).algorithm == "ring"


def test_reproducible_takes_only_what_rounds_once():
    for nbytes in (1, 1 << 16, 1 << 30):
        for collective in ("all_reduce", "reduce_scatter", "reduce"):
            assert chosen(nbytes, 64, collective=collective, node_size=8, reproducible=True) in ("one_shot", "two_shot")
            assert chosen(nbytes, 64, collective=collective, node_size=8, once=True) in ("one_shot", "two_shot")


def test_only_what_there_is_is_offered():
    names = lambda **kw: dispatch.candidates("all_reduce", 8, dispatch.Settings(**{**vars(settings_for()), **kw}))
    assert "hierarchical" not in names() and "multimem" not in names()
    assert "hierarchical" in names(node_size=4) and "hierarchical" not in names(node_size=3)
    assert "multimem" in names(multicast=True)
    for collective in ("gather", "scatter", "all_to_all", "barrier"):
        assert dispatch.candidates(collective, 8, settings_for()) == ["one_shot"]


def test_bits_do_not_depend_on_the_size_if_reproducible(simulate):
    """The same values in a small and in a large tensor, for which the model would take other algorithms."""

    def work(comm):
        head = torch.arange(32) / 7 * (comm.rank + 1)
        small, large = head.clone(), torch.cat([head, torch.zeros(200_000)])
        winners = {comm.explain("all_reduce", x.nbytes).winner.algorithm for x in (small, large)}
        comm.all_reduce(small)
        comm.all_reduce(large)
        return winners, torch.equal(small, large[:32])

    for winners, same in simulate(work, 5, reproducible=True).results:
        assert same and winners == {"one_shot", "two_shot"}


def test_explain_says_what_auto_takes(simulate):
    def work(comm):
        explained = comm.explain("all_reduce", 4000)
        comm.all_reduce(torch.ones(1000))
        return explained.winner.algorithm, explained.reason, comm._prepare.chosen

    for winner, reason, made in simulate(work, 4, node_size=2).results:
        assert made == {("all_reduce", 4000, False, False): winner} and winner in reason


def test_an_unknown_profile_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="neither a file nor one of the profiles"):
        tricoll.init(profile="a100")
    monkeypatch.setenv("TRICOLL_PROFILE", "a100")
    with pytest.raises(ValueError, match="neither a file nor one of the profiles"):
        tricoll.init()


def test_ranks_with_other_profiles_are_told(pool):
    def work(comm):
        try:
            tricoll.init(timeout=20, profile="lesson" if comm.rank else "nvlink")
        except ValueError as error:
            return str(error)

    assert all("profile is ['nvlink " in text and "'lesson " in text for text in pool(2).run(work))


def test_a_decision_takes_less_than_20_us(benchmark, simulate):
    """Once it has been made for a size: what a call pays."""
    prepare = simulate(lambda comm: comm._prepare, 8, node_size=4).results[0]
    prepare.choose("all_reduce", 1 << 20, once=False)
    benchmark(prepare.choose, "all_reduce", 1 << 20, once=False)
    assert benchmark.stats.stats.median < 20e-6
