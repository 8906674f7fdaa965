"""The NVSHMEM fabric against stand-ins: what is called, in which order, and what is said when something is wrong.

That the real packages have what is called, with these parameters, is in test_nvshmem_contract.py.
"""

import threading
import time

import pytest
import torch
from nvshmem_fakes import Fake, Launcher, fabric, installed

from tricoll import gpu
from tricoll.fabric import arena, gpus, nvshmem, symmetric
from tricoll.kernels import ring
from tricoll.settings import settings_for


def outcome(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def settings(made):
    return settings_for(base=made.settings())


def allocated(made, nbytes=4096, mapped=None, **agreed):
    return made.allocate(nbytes, {"mapped": made.mapped if mapped is None else mapped, **agreed})


# Start-up, memory, launches and the end


def life(comm, mapped):
    with installed(Fake(comm.rank, comm.world_size)) as fake:
        if not mapped:
            fake.unmapped = {1 - comm.rank}
        made = fabric(comm, f"life {mapped}")
        heap = allocated(made)
        zero = bool((heap.words == 0).all())
        bases = [base - heap.words.data_ptr() * mapped for base in heap.bases.tolist()]
        for kernel in (ring.all_reduce, ring.all_gather, ring.all_reduce):
            made.launch(kernel, 16, {})
        launcher = Launcher.made
        made.post(0, 3, "text")
        while made.peek(1 - made.rank, 0)[0] != 3:
            time.sleep(0.001)
        said = made.peek(1 - made.rank, 0)
        made.close()
        made.close()
        symmetric.finalise()
        symmetric.finalise()
        return {
            "log": fake.log,
            "shape": (zero, heap.words.numel(), bases, heap.multicast),
            "fabric": (made.name, made.mapped, made.multicast, made.device.type),
            "launcher": (launcher.link, launcher.cooperative, len(launcher.launched)),
            "settings": settings(made),
            "said": said,
            "left": fake.memory,
        }


@pytest.mark.parametrize("mapped", [True, False])
def test_from_start_to_end(pool, mapped):
    uids = set()
    for r, seen in enumerate(pool(2).run(life, mapped, limit=60)):
        (init, device, rank, n, uid), *log = seen["log"]
        assert (init, device, rank, n) == ("init", r, r, 2), "the GPU of LOCAL_RANK"
        uids.add(uid)
        assert log[:2] == [("malloc", symmetric.PROBE), ("malloc", 4096)]
        modules = [] if mapped else [("cumodule_init", 1), ("cumodule_init", 2)]
        assert log[2:-4] == modules, "each loaded module once, before its kernel; none without NVSHMEM in it"
        assert [name for name, *_ in log[-4:]] == ["synchronize", "free", "free", "finalize"]
        assert seen["left"] == {}
        zero, words, bases, multicast = seen["shape"]
        assert zero and words == 512 and multicast is None
        assert bases == ([[0, 2 << 40], [1 << 40, 0]][r] if mapped else [0, 1]), "addresses, or PE numbers"
        assert seen["fabric"] == ("nvshmem", mapped, False, "cpu")
        assert seen["launcher"] == ("mapped" if mapped else "put", True, 3)
        assert seen["settings"].mapped == mapped and seen["settings"].channels == gpu.GPU.channels
        assert seen["said"] == (3, "text")
    assert len(uids) == 1 and len(uids.pop()) == 256, "rank 0's, on all"


def one_not_mapped(comm):
    with installed(Fake(comm.rank, 3)) as fake:
        if comm.rank == 2:
            fake.unmapped = {0}
        made = fabric(comm, "one not mapped")
        said = outcome(lambda: allocated(made, mapped=True))
        put = allocated(made, mapped=False)
        return made.mapped, said, put.words.numel()


def test_links_are_mapped_if_all_are_or_put(pool):
    for mapped, said, words in pool(3).run(one_not_mapped, limit=60):
        assert mapped is False and words == 512
        assert "link is 'mapped', and not every rank's memory is mapped" in said


def without_atomics(comm):
    with installed(Fake(comm.rank, 2)) as fake:
        fake.atomics = False
        same = fabric(comm, "pcie").mapped
    with installed(Fake(comm.rank, 2)) as fake:
        fake.atomics, fake.host = False, f"host {comm.rank}"
        elsewhere = fabric(comm, "other hosts").mapped
    with installed(Fake(comm.rank, 2)) as fake:
        fake.atomics = None
        hidden = fabric(comm, "hidden").mapped
    return same, elsewhere, hidden


def test_peers_without_atomic_operations_are_not_mapped(pool):
    assert pool(2).run(without_atomics, limit=60) == [(False, True, True)] * 2


def switch(comm):
    found = []
    for multicast in (1, 0, -1):
        with installed(Fake(comm.rank, 2)) as fake:
            fake.multicast = multicast
            made = fabric(comm, f"switch {multicast}")
            found.append((made.multicast, allocated(made).multicast is not None))
    with installed(Fake(comm.rank, 2)) as fake:
        fake.multicast = comm.rank
        found.append(fabric(comm, "half a switch").multicast)
    return found


def test_multicast_is_used_if_all_have_it(pool):
    assert pool(2).run(switch, limit=60) == [[(True, True), (False, False), (False, False), False]] * 2


def several(comm):
    with installed(Fake(comm.rank, 3)) as fake, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRICOLL_HEAP_BYTES", "16384")
        first = fabric(comm, "first")
        a = allocated(first)
        second = fabric(comm, "second")
        b = allocated(second)
        apart = b.words.data_ptr() - a.words.data_ptr()
        third, offset = None, None
        if comm.rank != 1:
            third = fabric(comm, "third", ranks=[2, 0])
            c = allocated(third)
            offset = [base - c.words.data_ptr() for base in c.bases.tolist()]
            puts = allocated(fabric(comm, "puts", ranks=[2, 0]), nbytes=512, mapped=False).bases.tolist()
            full = outcome(lambda: allocated(fabric(comm, "full", ranks=[2, 0]), nbytes=9000))
        first.close()
        second.close()
        comm.barrier()
        again = allocated(fabric(comm, "again"), nbytes=8192)  # where the first two were
        same = again.words.data_ptr() - a.words.data_ptr()
        again.words.fill_(1)
        more = allocated(fabric(comm, "more"), nbytes=1 << 20)
        inits = [call for call in fake.log if call[0] == "init"]
        mallocs = [call[1] for call in fake.log if call[0] == "malloc"]
        rest = (offset, puts, full, third.mapped) if third else None
        return apart, same, len(inits), mallocs, rest, bool((more.words == 0).all())


def test_communicators_share_what_was_allocated(pool):
    results = pool(3).run(several, limit=60)
    for apart, same, inits, mallocs, _, zero in results:
        assert (apart, same, inits, zero) == (4096, 0, 1, True)
        assert mallocs == [512, 16384, 1 << 20], "all PEs allocate together, and only then"
    assert results[1][4] is None
    for r in (0, 2):
        offset, puts, full, mapped = results[r][4]
        assert mapped and offset == ([3 << 40, 0] if r == 0 else [0, 1 << 40]), "PE 2 is rank 0 there, PE 0 rank 1"
        assert puts == [2, 0], "a put names a PE, not a rank of the group"
        assert full.startswith("HeapExhausted") and "set TRICOLL_HEAP_BYTES" in full


def of_different_worlds(comm):
    with installed(Fake(comm.rank, 3)):
        if comm.rank < 2:
            fabric(comm, "two", ranks=[0, 1])
        return outcome(lambda: fabric(comm, "three"))


def test_a_group_of_more_ranks_than_the_first(pool):
    for said in pool(3).run(of_different_worlds, limit=60):
        assert said.startswith("ValueError: some of these ranks have initialised NVSHMEM with other ranks before")
        assert "make the communicator of all ranks first" in said


def adopted(comm, shifted):
    with installed(Fake(comm.rank, 2)) as fake:
        fake.status = 2
        if shifted:
            fake.rank = 1 - fake.rank
        made = outcome(lambda: fabric(comm, f"adopted {shifted}"))
        return made if isinstance(made, str) else [call[0] for call in fake.log]


def test_nvshmem_that_another_library_has_initialised(pool):
    assert pool(2).run(adopted, False, limit=60) == [["malloc"], ["malloc"]]
    for said in pool(2).run(adopted, True, limit=60):
        assert said.startswith("ValueError: another library has initialised NVSHMEM with PEs [1, 0]")


# What can go wrong


def broken(comm, name, change, nbytes=4096):
    with installed(Fake(comm.rank, comm.world_size)) as fake:
        change(fake, comm.rank)
        start = time.monotonic()
        said = outcome(lambda: allocated(fabric(comm, name, timeout=1.0), nbytes))
        return said if isinstance(said, str) else "fine", time.monotonic() - start


def one_gpu(fake, rank):
    fake.gpu = "0000:07:00.0"


def other_version(fake, rank):
    fake.version = f"3.{7 + rank}.0"


def no_room(fake, rank):
    fake.room = 1 << (40 - 30 * rank)


def hanging(fake, rank):
    fake.hang = threading.Event()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (one_gpu, "ValueError: ranks [0, 1] have the same GPU, 0000:07:00.0 of one: start one rank a GPU"),
        (
            other_version,
            "ValueError: the ranks do not have the same settings: the NVSHMEM library is ['3.7.0', '3.8.0']",
        ),
        (
            no_room,
            "HeapExhausted: rank 1: NVSHMEM has no 4096 bytes of symmetric memory left. NVSHMEM_SYMMETRIC_SIZE is",
        ),
        (hanging, "CollectiveTimeout: rank %d: initialising NVSHMEM with 2 ranks was not over within 1 s"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_is_said_on_all_ranks(pool, change, expected):
    for r, (said, seconds) in enumerate(pool(2).run(broken, change.__name__, change, limit=60)):
        assert said.startswith(expected % r if "%d" in expected else expected), said
        assert seconds < 5


def test_other_settings_on_one_rank(pool):
    def fn(comm):
        with installed(Fake(comm.rank, 2)):
            return outcome(lambda: allocated(fabric(comm, "settings"), slots=3 + comm.rank))

    for said in pool(2).run(fn, limit=60):
        assert said.startswith("ValueError: the ranks do not have the same settings: slots is [3, 4]")


def test_a_module_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(nvshmem.bitcode, "find", lambda arch: "libnvshmem_device_sm_90.bc")
    monkeypatch.setattr(nvshmem.cuda, "arch_of", lambda device: 90)
    monkeypatch.setattr(nvshmem.cuda, "current_device", lambda: torch.device("cuda", 0))
    fake = Fake(0, 1)
    fake.module = 7
    said = r"module \(status 7\): its host library is 3.8.0, and the device library"
    with installed(fake), pytest.raises(nvshmem.CollectiveError, match=said):
        nvshmem.module_loaded(5)


def test_a_rank_that_ends_is_seen(pool):
    def fn(comm):
        with installed(Fake(comm.rank, 2)):
            made = fabric(comm, "ends")
            allocated(made)
            before = made.dead()
            comm.barrier()
            made.sequence = 5
            if made.rank == 1:
                made.sequence = 4
                made.close()
                return before, None
            start = time.monotonic()
            assert not made.pause(lambda: False, 20)
            return before, (made.dead(), time.monotonic() - start < 10)

    assert pool(2).run(fn, limit=60) == [([], ([1], True)), ([], None)]


# Choices


def test_which_gpu():
    assert gpus.choose_device({"LOCAL_RANK": "3"}, 8, 0) == 3
    assert gpus.choose_device({"LOCAL_RANK": "3"}, 1, 0) == 0, "CUDA_VISIBLE_DEVICES leaves one"
    assert gpus.choose_device({"LOCAL_RANK": "3"}, 8, 5) == 5, "the program has chosen"
    assert gpus.choose_device({}, 8, 0) == 0
    with pytest.raises(ValueError, match=r"LOCAL_RANK is '8', and this process sees 8 GPUs"):
        gpus.choose_device({"LOCAL_RANK": "8"}, 8, 0)


def test_nodes(caplog):
    assert gpus.node_size(["a"] * 4) == 0
    assert gpus.node_size(["a", "a", "b", "b"]) == 2
    assert gpus.node_size(["a", "b", "c"]) == 1
    assert not caplog.records
    for hosts in (["a", "b", "a", "b"], ["a", "a", "b"], ["a", "b", "b"], ["a", "a", "b", "c"], list("aabbaa")):
        caplog.clear()
        assert gpus.node_size(hosts) == 0
        assert "not the same number on each" in caplog.text


def test_places_in_shared_memory():
    mine = arena.Arena(4096)
    mine.take(512, 100)
    mine.take(2048, 513)
    assert mine.free() == [(0, 512), (1024, 2048), (3072, 4096)]
    assert arena.place([mine.free()], 512) == 0
    assert arena.place([mine.free()], 600) == 1024
    assert arena.place([mine.free()], 1025) is None
    other = arena.Arena(4096)
    other.take(1024, 512)
    assert arena.place([mine.free(), other.free()], 513) == 3072
    assert arena.place([mine.free(), other.free(), [(0, 512)]], 513) is None
    mine.give(512)
    assert arena.place([mine.free()], 2048) == 0
    with pytest.raises(ValueError, match="are not free"):
        mine.take(1536, 1024)


def test_versions_that_do_not_fit(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    have = {"nvshmem4py-cu13": "0.4.1"}
    monkeypatch.setattr(nvshmem, "_version", have.get)
    assert "PyTorch is built for CUDA 12, and nvshmem4py is installed for CUDA 13" in nvshmem.versions()
    have["nvshmem4py-cu12"] = "0.4.1"
    assert nvshmem.versions() is None
    have["nvidia-nvshmem-cu12"] = "3.2.5"
    assert nvshmem.versions() == "NVSHMEM is 3.2.5; tricoll needs 3.4 or newer"


def test_a_host_library_that_is_not_the_kernels(monkeypatch):
    monkeypatch.setattr(nvshmem, "_version", {"nvidia-nvshmem-cu13": "3.8.0"}.get)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert nvshmem.libraries("3.8.2", {}) is None
    assert nvshmem.libraries("3.6.0", {"TRICOLL_NVSHMEM_BITCODE": "other.bc"}) is None
    said = nvshmem.libraries("3.6.0", {})
    assert (
        said.startswith("NVSHMEM's host library that was loaded is 3.6.0, and kernels get")
        and "LD_LIBRARY_PATH" in said
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    assert "CUDA" in nvshmem.unavailable() or "GPU" in nvshmem.unavailable()
