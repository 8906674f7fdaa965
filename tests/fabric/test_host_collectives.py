"""Every algorithm and collective between processes: right bits in any rhythm, and news of the dead."""

import os
import random
import re
import signal
import time

import pytest
import torch
from streams import BF16_WIRE, CALLS, FP32, ROOTED, ROWED, Played, Step, callable_in

import tricoll

SMALL = {"slots": 3, "window": 2, "slot_bytes": 2048, "block": 32}
KILLED = [c for c in CALLS if c[1] == "all_reduce"]  # every algorithm, and the kernels that only others use
KILLED += [("one_shot", "all_to_all"), ("one_shot", "send"), ("tree", "broadcast"), ("ring", "reduce")]
LINKS = pytest.mark.parametrize("link", ["mapped", "put"])
NODES = {6: 3, 8: 4}  # ranks: ranks a node


def stream(n, link, nodes):
    """Every call twice, of different sizes, in an order of its own: with roots and partners of all kinds."""
    chance = random.Random(f"{n}{link}")
    chosen = callable_in(n, nodes, link == "mapped") * 2
    chance.shuffle(chosen)
    steps = []
    for k, call in enumerate(chosen):
        rows = chance.choice((0, 1, 7, 40, 300))
        shape = (n * rows,) if call[1] in ROWED and call[1] not in ("all_gather", "gather") else (rows,)
        root = chance.randrange(n)
        step = Step(*call, shape, (FP32, BF16_WIRE)[k % 2], ("sum", "avg")[k // 2 % 2], root=root, seed=k)
        steps.append(step._replace(peer=(root + chance.randrange(1, n)) % n))
    return steps


def play_sleepily(comm, steps, nodes):
    """The results of a stream without barriers, in which ranks fall asleep at random."""
    chance, results = random.Random(comm.rank), []
    played = [Played(step, comm.world_size, nodes) for step in steps]
    for call in played:
        if chance.random() < 0.1:
            time.sleep(chance.random() * 0.02)
        results.append(call.on(comm))
    for call in played:
        for guard in call.memory[comm.rank] if call.step.collective != "barrier" else ():
            guard.check()
    return results


@LINKS
@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8])
def test_bits_are_the_oracles(pool, n, link):
    """A stream without barriers, in which ranks fall asleep at random."""
    nodes = NODES.get(n, 0)
    steps = stream(n, link, nodes)
    for check in (True, False) if n == 3 else (n % 2 == 0,):
        results = pool(n).run(play_sleepily, steps, nodes, check=check, link=link, node_size=nodes, **SMALL)
        for k, step in enumerate(steps):
            if step.collective != "barrier":
                Played(step, n, nodes).check_bits([ranks[k] for ranks in results])


@pytest.mark.parametrize("call", KILLED, ids=" ".join)
def test_a_killed_rank_in_every_call(call):
    """The others learn of it at once, not after the timeout."""
    n, root = 4, 0 if call[1] in ("reduce", "gather") else 2  # so that others wait for rank 2
    rows = 64 if call[1] in ROWED else 1 << 14

    def work(comm):
        made = Played(Step(*call, (rows,), FP32, root=root, peer=0), n, 2)
        start = None
        try:
            for k in range(200):
                if comm.rank == 2 and k == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                if k == 3:
                    start = time.monotonic()
                made.on(comm)
                if call[1] in ("send", *ROOTED):
                    comm.barrier()  # those who only send would run ahead, and leave
        except tricoll.CollectiveError as error:
            return type(error), str(error), time.monotonic() - (start or 0)

    with tricoll.pool.Pool(n) as ranks:
        outcomes = ranks.outcomes(work, timeout=20.0, node_size=2, slots=2, window=1, slot_bytes=4096)
    assert isinstance(outcomes[2], tricoll.PeerFailure) and "signal 9" in str(outcomes[2])
    for rank in (0, 1, 3):
        kind, text, seconds = outcomes[rank]
        # After a failed send or recv its ranks leave, too.
        named = re.search(r"ranks \[(0, )?2\] are gone", text)
        assert kind is tricoll.PeerFailure and named and seconds < 10, outcomes[rank]


# Send and receive.


@LINKS
def test_ring_shift(pool, link):
    """Everybody sends to the right and receives from the left; an even rank begins with one, an odd with the other."""

    def work(comm):
        right, left, kept = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size, []
        for k in range(30):
            x, y = torch.full((1000,), comm.rank + 10.0 * k), torch.zeros(1000)
            for turn in (0, 1):
                if (comm.rank + turn) % 2 == 0:
                    comm.send(x, right)
                else:
                    comm.recv(y, left)
            kept.append(y.unique().tolist())
        return kept

    for rank, kept in enumerate(pool(5).run(work, link=link, slots=2, window=1, slot_bytes=1280)):
        assert kept == [[(rank - 1) % 5 + 10.0 * k] for k in range(30)]


@LINKS
def test_ping_pong_and_many_small_messages(pool, link):
    """Also without anybody to receive yet, up to what the slots hold; and larger than all slots together."""

    def work(comm):
        x = torch.zeros(3)
        for k in range(50):
            if comm.rank == k % 2:
                comm.send(x + 1, 1 - comm.rank)
            else:
                comm.recv(x, 1 - comm.rank)
        many = [torch.tensor([float(k)]) for k in range(200)]
        for y in many:
            comm.send(y, 1) if comm.rank == 0 else comm.recv(y.zero_(), 0)
        large = torch.arange(100_000.0) * (1 - comm.rank)
        comm.send(large, 1) if comm.rank == 0 else comm.recv(large, 0)
        return x[0].item(), torch.cat(many).tolist(), torch.equal(large, torch.arange(100_000.0))

    (zero, _, sent), (one, many, received) = pool(2).run(work, link=link, **SMALL)
    assert (zero, one) == (50.0, 49.0) and many == [float(k) for k in range(200)] and sent and received


def test_pairs_that_do_not_agree(pool):
    """Another size or dtype is an error of the receiver, which names the sender."""

    def work(comm):
        if comm.rank == 0:
            comm.send(torch.ones(4), 1)
            return None
        with pytest.raises(tricoll.CollectiveMismatch, match="what rank 0 has sent is of another dtype or number"):
            comm.recv(torch.ones(5), 0)

    pool(2).run(work, timeout=5.0)


# Barriers and mistakes.


@pytest.mark.parametrize("check", [True, False])
def test_a_barrier_holds(pool, check):
    """Nobody leaves before the last has come: rank r comes r times 50 ms late."""

    def work(comm):
        comm.barrier()
        times = []
        for _ in range(3):
            time.sleep(0.05 * comm.rank)
            came = time.monotonic()
            comm.barrier()
            times.append((came, time.monotonic()))
        return times

    results = pool(4).run(work, check=check)
    for k in range(3):
        assert max(times[k][0] for times in results) <= min(times[k][1] for times in results)


MISTAKES = {
    "all_reduce": lambda c: c.all_reduce(torch.ones(4), "and"),
    "reduce_scatter": lambda c: c.reduce_scatter(torch.ones(7)),
    "all_gather": lambda c: c.all_gather(torch.ones(4), out=torch.ones(5)),
    "broadcast": lambda c: c.broadcast(torch.ones(4), root=9),
    "reduce": lambda c: c.reduce(torch.ones(4), algo="hierarchical"),
    "gather": lambda c: c.gather(torch.ones(4), wire="int8"),
    "scatter": lambda c: c.scatter(torch.ones(7) if c.rank == 0 else None),
    "all_to_all": lambda c: c.all_to_all(torch.ones(6), input_splits=[1, 2, 3]),
}
RIGHT = {
    "scatter": lambda c: c.scatter(torch.ones(6) if c.rank == 0 else None, out=torch.ones(2)),
    "all_to_all": lambda c: c.all_to_all(torch.ones(6)),
    "reduce_scatter": lambda c: c.reduce_scatter(torch.ones(6)),
}


def test_bad_arguments_of_one_rank(pool):
    """The rank has a ValueError or TypeError, the others a CollectiveMismatch with its text; the next call works."""

    def work(comm):
        for name, wrong in MISTAKES.items():
            right = RIGHT.get(name, lambda c: getattr(c, name)(torch.ones(4)))
            try:
                (wrong if comm.rank == 1 else right)(comm)
            except (ValueError, TypeError) as error:
                assert comm.rank == 1, error
            except tricoll.CollectiveMismatch as error:
                assert comm.rank != 1 and f"rank [1]: {name}: refused" in str(error), error
            else:
                raise AssertionError(f"{name}: no error on rank {comm.rank}")
            assert comm.all_reduce(torch.ones(3)).tolist() == [3.0] * 3

    pool(3).run(work, timeout=5.0)


def test_splits_that_do_not_match(pool):
    """Rank 0 sends rank 1 two rows, which expects one: all hear of both numbers, and the next call works."""

    def work(comm):
        sends = [[1, 2, 0], [1, 1, 1], [0, 0, 3]][comm.rank]
        receives = [[1, 1, 0], [1, 1, 0], [0, 1, 3]][comm.rank]
        with pytest.raises(tricoll.CollectiveMismatch, match=r"rank 0 sends 8 elements to rank 1, which expects 4"):
            comm.all_to_all(torch.ones(3, 4), input_splits=sends, output_splits=receives)
        receives = [[1, 1, 0], [2, 1, 0], [0, 1, 3]][comm.rank]
        return comm.all_to_all(torch.full((3, 4), comm.rank), input_splits=sends, output_splits=receives)[:, 0].tolist()

    assert pool(3).run(work) == [[0, 1], [0, 0, 1], [1, 2, 2, 2]]
