"""The DDP hooks: gradients are the mean over the group, in every step, for whatever DDP makes of its buckets."""

import contextlib
import copy
import datetime
import functools
import gc
import json
import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import tricoll
from tricoll import ddp

STEPS = 10
HOOKS = {"bf16": ddp.bf16_hook, "fp32": ddp.fp32_hook, "reproducible": ddp.reproducible_hook}
FP32, BF16, FP64 = torch.float32, torch.bfloat16, torch.float64


class Net(torch.nn.Module):
    """Two linear layers, each of a dtype."""

    def __init__(self, dtypes=(FP32, FP32), frozen=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 33, dtype=dtypes[0]), torch.nn.Linear(33, 5, dtype=dtypes[1])
        self.first.weight.requires_grad_(not frozen)

    def forward(self, x):
        x = torch.relu(self.first(x.to(self.first.bias.dtype)))
        return self.second(x.to(self.second.bias.dtype)).float()


def bound(hook, dtype, n):
    """The largest error of an average, relative to the mean of the ranks' absolute values.

    A value passes n ranks. Each but the first adds to it and the last divides it, in FP32: n roundings. Each rounds it
    to the wire once: n more if that is BF16. A rounding changes a partial sum, which is at most the sum of the absolute
    values, by 2**-24 or 2**-8 of it.
    """
    if dtype == FP64:
        return (1 + 2**-53) ** (2 * n) - 1  # and as many roundings in the mean that it is compared with
    wire = 2**-8 if hook == "bf16" or dtype == BF16 else 0.0
    return ((1 + wire) * (1 + 2**-24)) ** n - 1


def train(comm, hook, members=None, dtypes=(FP32, FP32), frozen=False, accumulate=False, **options):
    """Some steps with DDP, every gradient checked on the way.

    Returns the parameters as bytes, how many elements have gradients, and the communicator's statistics; None on a rank
    that is not a member.
    """
    dist.init_process_group("gloo")
    group = dist.new_group(members)
    if members is None:
        return steps(comm, group, hook, dtypes, frozen, accumulate, options)
    if dist.get_rank() not in members:
        return None
    try:
        return steps(tricoll.init(group=group), group, hook, dtypes, frozen, accumulate, options)
    finally:
        tricoll.destroy()


def steps(comm, group, hook, dtypes, frozen, accumulate, options):
    torch.manual_seed(0)
    module = Net(dtypes, frozen)
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module, process_group=group, **options)
    model.register_comm_hook(comm, HOOKS[hook])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    random = torch.Generator().manual_seed(100 + comm.rank)
    for step in range(STEPS):
        alone.load_state_dict(module.state_dict())
        optimizer.zero_grad()
        alone.zero_grad()
        for last in (False, True) if accumulate else (True,):
            x = torch.randn(8, 16, generator=random) * 4.0**-comm.rank  # gradients of different sizes
            y = torch.randn(8, 5, generator=random)
            with contextlib.nullcontext() if last else model.no_sync():
                torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.functional.mse_loss(alone(x), y).backward()
        for (name, ours), (_, own) in zip(module.named_parameters(), alone.named_parameters()):
            if not ours.requires_grad:
                assert ours.grad is None
                continue
            assert ours.grad.dtype == ours.dtype and ours.grad.shape == ours.shape
            shares = [torch.empty_like(own, dtype=FP64) for _ in range(comm.world_size)]
            dist.all_gather(shares, own.grad.double(), group=group)
            mean, size = sum(shares) / len(shares), sum(share.abs() for share in shares) / len(shares)
            error = (ours.grad.double() - mean).abs()
            assert (error <= bound(hook, ours.dtype, comm.world_size) * size).all(), (step, name, (error / size).max())
            assert mean.any()
        optimizer.step()
    parameters = torch.cat([p.detach().contiguous().view(torch.uint8).flatten() for p in module.parameters()])
    return (
        parameters.numpy().tobytes(),
        sum(p.numel() for p in module.parameters() if p.requires_grad),
        comm.stats(),
    )


def trained(pool, n, hook="bf16", **options):
    """What :func:`train` returned on each rank."""
    return pool(n).run(functools.partial(train, hook=hook, **options), limit=60)


def same_bits(results):
    return len({parameters for parameters, _, _ in results}) == 1


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("n", [2, 3])
def test_gradients_are_the_mean(pool, n, hook, view):
    results = trained(pool, n, hook, gradient_as_bucket_view=view)
    assert same_bits(results)
    _, elements, _ = results[0]
    # In the dtype that was asked for: 2 (n-1)/n of every rank's data, or n - 1 times them in one shot.
    sent = sum(stats["payload_bytes"] for _, _, stats in results)
    once = STEPS * (n - 1) * elements * (2 if hook == "bf16" else 4)
    assert sent in ([2 * once] if hook == "reproducible" else [2 * once, n * once])
    assert [stats["calls"] for _, _, stats in results] == [STEPS] * n


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
def test_many_small_buckets(pool, view):
    results = trained(pool, 3, bucket_cap_mb=1e-5, gradient_as_bucket_view=view)
    assert same_bits(results)
    # DDP makes the buckets that were asked for after the first step: one a parameter.
    assert all(stats["calls"] >= (STEPS - 1) * 4 for _, _, stats in results)


def test_a_subgroup_divides_by_its_own_size(pool):
    results = trained(pool, 4, members=(1, 3))
    assert results[0] is None and results[2] is None
    assert same_bits([results[1], results[3]])


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("dtypes", [(BF16, BF16), (FP32, BF16)], ids=["bf16", "mixed"])
def test_bf16_parameters(pool, dtypes, hook):
    assert same_bits(trained(pool, 2, hook, dtypes=dtypes))


def test_fp64_goes_as_fp64(pool):
    results = trained(pool, 2, dtypes=(FP64, FP64))
    assert same_bits(results)
    assert sum(stats["payload_bytes"] for _, _, stats in results) == STEPS * 2 * results[0][1] * 8


def test_frozen_parameters(pool):
    results = trained(pool, 2, frozen=True)
    assert same_bits(results)
    _, elements, _ = results[0]
    assert elements == 33 + 33 * 5 + 5
    assert sum(stats["payload_bytes"] for _, _, stats in results) == STEPS * 2 * elements * 2


def test_accumulated_gradients(pool):
    results = trained(pool, 2, accumulate=True)
    assert same_bits(results)
    assert all(stats["calls"] == STEPS for _, _, stats in results)


def large_fp16(comm):
    dist.init_process_group("gloo")
    module = torch.nn.Linear(64, 1, bias=False, dtype=torch.float16)
    model = DistributedDataParallel(module)
    model.register_comm_hook(comm, ddp.bf16_hook)
    (model(torch.full((1, 64), 200.0, dtype=torch.float16)) * 200).sum().backward()
    return module.weight.grad


def test_a_sum_too_large_for_fp16(pool):
    for grad in pool(3).run(large_fp16, limit=60):
        assert grad.dtype == torch.float16
        torch.testing.assert_close(grad, torch.full_like(grad, 40000.0), rtol=3 / 256, atol=0)


def wrong(comm, what):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    if what == "registered twice":
        model.register_comm_hook(comm, ddp.bf16_hook)
        model.register_comm_hook(comm, ddp.fp32_hook)
    model.register_comm_hook(None if what == "no communicator" else dist.group.WORLD, ddp.bf16_hook)
    model(torch.ones(2, 16)).sum().backward()


def test_a_second_registration_is_an_error(pool):
    for error in pool(2).outcomes(wrong, "registered twice", limit=60):
        assert isinstance(error, RuntimeError) and "only be called once" in str(error)


@pytest.mark.parametrize("what", ["no communicator", "process group"])
def test_a_state_that_is_no_communicator(pool, what):
    for error in pool(2).outcomes(wrong, what, limit=60):
        assert isinstance(error, TypeError) and "register_comm_hook(comm, tricoll.ddp.bf16_hook)" in str(error)


def too_many_ranks(comm):
    dist.init_process_group("gloo")
    group = dist.new_group([1, 2])
    if comm.rank == 0:
        return
    model = DistributedDataParallel(Net(), process_group=group)
    model.register_comm_hook(comm, ddp.bf16_hook)
    model(torch.ones(2, 16)).sum().backward()


def test_a_communicator_of_more_ranks_than_the_model(pool):
    nothing, *errors = pool(3).outcomes(too_many_ranks, limit=60, timeout=3)
    assert nothing is None
    for error in errors:  # through the backward pass with its type; rank 0 has left by then, or is late
        assert isinstance(error, tricoll.CollectiveError) and "ranks [0]" in str(error)


# What is averaged, bit for bit, and where it goes.


def twenty_steps(comm, hook, state, options):
    """Training with a hook. Returns the parameters, and in how many steps a gradient was not the rank-order mean."""
    dist.init_process_group("gloo" if state == "communicator" else "tricoll")
    torch.manual_seed(0)
    module = Net()
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module, **options)
    model.register_comm_hook({"communicator": comm, "group": dist.group.WORLD, "default": None}[state], HOOKS[hook])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    random, others = torch.Generator().manual_seed(100 + comm.rank), 0
    for _ in range(20):
        alone.load_state_dict(module.state_dict())
        x, y = torch.randn(8, 16, generator=random), torch.randn(8, 5, generator=random)
        optimizer.zero_grad()
        alone.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.functional.mse_loss(alone(x), y).backward()
        for ours, own in zip(module.parameters(), alone.parameters()):
            shares = [torch.empty_like(own) for _ in range(comm.world_size)]
            dist.all_gather(shares, own.grad)
            mean = functools.reduce(torch.add, shares) / comm.world_size  # in rank order, in FP32
            others += not torch.equal(ours.grad, mean)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]), others


@pytest.mark.parametrize("options", [{}, {"static_graph": True, "gradient_as_bucket_view": True}], ids=["", "static"])
@pytest.mark.parametrize("state", ["communicator", "group", "default"])
@pytest.mark.parametrize("hook", HOOKS)
def test_twenty_steps(pool, hook, state, options):
    results = pool(3).run(twenty_steps, hook, state, options, limit=60)
    assert all(torch.equal(parameters, results[0][0]) for parameters, _ in results)
    if hook == "reproducible":
        assert [others for _, others in results] == [0] * 3


def test_fp32_on_two_ranks_is_the_rank_order_mean(pool):
    """Two summands have one order."""
    assert [others for _, others in pool(2).run(twenty_steps, "fp32", "communicator", {}, limit=60)] == [0, 0]


def in_a_subgroup(comm):
    dist.init_process_group("tricoll")
    group = dist.new_group([1, 3])
    if comm.rank not in (1, 3):
        return None
    module = torch.nn.Linear(3, 1, bias=False)
    model = DistributedDataParallel(module, process_group=group)
    model.register_comm_hook(group, ddp.bf16_hook)
    model(torch.full((1, 3), float(comm.rank))).sum().backward()
    return module.weight.grad


def test_a_subgroup_of_the_backend(pool):
    results = pool(4).run(in_a_subgroup, limit=60)
    assert results[0] is None and results[2] is None
    assert torch.equal(results[1], torch.full((1, 3), 2.0)) and torch.equal(results[1], results[3])


# Case 38, and complex parameters.


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.common, self.extra = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, both):
        return self.common(x) + (self.extra(x) if both else 0.0)


def unused(comm, find):
    dist.init_process_group("tricoll", timeout=datetime.timedelta(seconds=5))
    torch.manual_seed(0)
    module = Branches()
    model = DistributedDataParallel(module, find_unused_parameters=find, bucket_cap_mb=1e-5)
    model.register_comm_hook(None, ddp.fp32_hook)
    for _ in range(3):
        module.zero_grad()
        model(torch.ones(1, 4), comm.rank == 0).sum().backward()
    return module.extra.bias.grad


def test_case_38a_a_branch_used_on_one_rank_only(pool):
    """The absent rank counts as zero."""
    for grad in pool(2).run(unused, True, limit=60):
        assert torch.equal(grad, torch.full((4,), 0.5))


def test_case_38b_not_announced(pool):
    """torch's own error on the rank without the branch, an error of the collectives or torch's on the other."""
    start = time.monotonic()
    outcomes = pool(2).outcomes(unused, False, limit=60)
    assert time.monotonic() - start < 30
    assert "find_unused_parameters" in str(outcomes[1])
    assert isinstance(outcomes[0], RuntimeError)


def sparse(comm, hook):
    dist.init_process_group("tricoll")
    torch.manual_seed(0)
    module = torch.nn.Embedding(10, 3, sparse=True)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, HOOKS[hook])
    for _ in range(3):
        module.zero_grad()
        model(torch.tensor([0, comm.rank + 1, 0])).sum().backward()
    return module.weight.grad.to_dense()[:, 0].tolist(), module.weight.grad.is_sparse


@pytest.mark.parametrize("hook", HOOKS)
def test_case_38c_sparse_gradients(pool, hook):
    assert pool(2).run(sparse, hook, limit=60) == [([2.0, 0.5, 0.5] + [0.0] * 7, True)] * 2


def uneven(comm):
    dist.init_process_group("tricoll")
    module = torch.nn.Linear(2, 1, bias=False)
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, ddp.fp32_hook)
    grads = []
    with model.join():
        for k in range(5 - 2 * comm.rank):
            module.zero_grad()
            model(torch.full((1, 2), k + 1.0)).sum().backward()
            grads.append(module.weight.grad[0, 0].item())
    return grads


def test_case_38d_uneven_inputs(pool):
    """The rank that has run out counts as zero, and the sum is divided by both."""
    assert pool(2).run(uneven, limit=60) == [[1.0, 2.0, 3.0, 2.0, 2.5], [1.0, 2.0, 3.0]]


def complex_parameters(comm, hook):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3, dtype=torch.cfloat)
    alone = copy.deepcopy(module)
    model = DistributedDataParallel(module)
    model.register_comm_hook(comm, HOOKS[hook])
    x = torch.randn(4, 5, dtype=torch.cfloat, generator=torch.Generator().manual_seed(comm.rank))
    for each in (model, alone):
        (each(x).abs() ** 2).sum().backward()
    shares = [torch.empty_like(alone.weight.grad) for _ in range(comm.world_size)]
    dist.all_gather(shares, alone.weight.grad)
    return module.weight.grad, sum(shares) / comm.world_size, comm.stats()["payload_bytes"]


@pytest.mark.parametrize("hook", HOOKS)
def test_case_23_complex_parameters(pool, hook):
    results = pool(2).run(complex_parameters, hook, limit=60)
    for grad, mean, _ in results:
        assert grad.dtype == torch.cfloat and grad.imag.abs().max() > 0.1
        torch.testing.assert_close(
            grad, mean, rtol=2**-7 if hook == "bf16" else 1e-6, atol=1e-2 if hook == "bf16" else 0
        )
    assert torch.equal(results[0][0], results[1][0])
    reals = 2 * (5 * 3 + 3)
    assert sum(sent for _, _, sent in results) >= 2 * reals * (2 if hook == "bf16" else 4)
    if hook == "bf16":
        assert sum(sent for _, _, sent in results) < 2 * reals * 4


# Asynchrony, seen.


class Slow(torch.autograd.Function):
    """The identity, whose gradient takes its time."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.15)
        return grad


def overlapped(comm, folder):
    dist.init_process_group("gloo")
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.second(Slow.apply(self.first(x)))

    model = DistributedDataParallel(Model(), bucket_cap_mb=1e-5)
    model.register_comm_hook(comm, ddp.bf16_hook)
    assert "no backward pass" in str(ddp.timeline(comm))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    timeline = ddp.timeline(comm)
    if comm.rank == 0:
        timeline.chrome_trace(folder / "trace.json")
        timeline.plot(folder / "step.png")
    return timeline


def test_buckets_travel_during_the_backward_pass(pool, tmp_path):
    for rank, timeline in enumerate(pool(2).run(overlapped, tmp_path, limit=60)):
        assert timeline.rank == rank and len(timeline.steps) == 3
        for step in timeline.steps[1:]:  # in the first, DDP has one bucket
            assert len(step.buckets) == 4
            assert all(b.ready <= b.start < b.end <= step.end for b in step.buckets)
            # The second layer's buckets were sent while the gradient of the first was on its way.
            assert sum(b.end < step.backward_end for b in step.buckets) >= 2
            assert 0 < step.hidden < 0.3 and 0 <= step.exposed < 0.3
            assert sorted(b.nbytes for b in step.buckets) == [32, 32, 256, 256]
        assert "hidden" in str(timeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert len(spans) == sum(len(step.buckets) for step in timeline.steps)
    assert all(e["dur"] > 0 for e in spans)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def absent_in_backward(comm, static):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2), static_graph=static)
    model.register_comm_hook(comm, ddp.bf16_hook)
    loss = model(torch.ones(1, 4)).sum()
    if comm.rank == 1:
        return time.sleep(3)
    # The first pass of a static graph averages after its end, where the type of an error does not survive DDP.
    with pytest.raises(RuntimeError if static else tricoll.CollectiveTimeout, match=r"ranks \[1\]"):
        loss.backward()
    return True


@pytest.mark.parametrize("static", [False, True])
def test_a_late_rank_is_an_error_out_of_backward(pool, static):
    assert pool(2).run(absent_in_backward, static, timeout=1, limit=60) == [True, None]


class OneBucket:
    """As much of a bucket as hooks look at."""

    def __init__(self, buffer):
        self.tensor = buffer

    def buffer(self):
        return self.tensor

    def set_buffer(self, buffer):
        self.tensor = buffer

    def index(self):
        return 0


def peak_of(call):
    """By how many bytes a call raises the memory of this process while it goes on."""
    status = lambda name: int(re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    call()  # what stays from the first time on does not count, nor what goes
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def memory(comm):
    dist.init_process_group("gloo")
    buffer, stats = torch.zeros(1 << 25), ddp.GradientStats(comm)
    hooks = {
        "bf16": lambda: ddp.bf16_hook(comm, OneBucket(buffer)).wait(),
        "fp32": lambda: ddp.fp32_hook(comm, OneBucket(buffer)).wait(),
        "stats": lambda: ddp.bf16_hook(stats, OneBucket(buffer)).wait(),
        "torch": lambda: bf16_compress_hook(dist.group.WORLD, OneBucket(buffer)).wait(),
    }
    return {name: peak_of(hook) for name, hook in hooks.items()}


def test_no_temporary_as_large_as_a_bucket(pool):
    """128 MiB of FP32 gradients. PyTorch's BF16 hook makes a copy in BF16, so what is measured is there to be seen."""
    for peaks in pool(2).run(memory, limit=100):
        assert max(peaks[name] for name in ("bf16", "fp32", "stats")) < 8 << 20, peaks
        assert peaks["torch"] > 32 << 20, peaks
