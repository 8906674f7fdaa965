"""FSDP2 through tricoll: gradients are the mean, half the bytes travel, and the communicator's ranks are checked."""

import copy

import pytest
import torch
import torch.distributed as dist

import tricoll

STEPS = 4


def sharded(comm, backend, mesh_shape, wire, policy):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group(backend)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 5))
    alone = copy.deepcopy(module)
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    options = {"mesh": mesh}
    if policy:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (module[0], module[2]):
        fully_shard(layer, **options)
    fully_shard(module, **options)
    tricoll.fsdp.apply(module, comm if backend == "gloo" else None, wire=wire)
    random = torch.Generator().manual_seed(comm.rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    worst, bits = 0.0, True
    for _ in range(STEPS):
        full = {k: p.full_tensor() for k, p in module.state_dict().items()}
        alone.load_state_dict(full)
        optimizer.zero_grad()
        alone.zero_grad()
        x = torch.randn(6, 8, generator=random)
        module(x).float().square().mean().backward()
        alone(x).square().mean().backward()
        for ours, own in zip(module.parameters(), alone.parameters()):
            assert ours.grad.dtype == torch.float32
            shares = [torch.empty_like(own) for _ in range(comm.world_size)]
            dist.all_gather(shares, own.grad)
            mean, size = sum(shares) / len(shares), sum(s.abs() for s in shares) / len(shares)
            grad = ours.grad.full_tensor()
            worst = max(worst, ((grad - mean).abs() / size.clamp_min(1e-20)).max().item())
            bits &= torch.equal(grad, mean)
        optimizer.step()
    final = torch.cat([p.full_tensor().flatten() for p in module.state_dict().values()])
    return worst, bits, final, comm.stats()["payload_bytes"]


@pytest.mark.parametrize("backend", ["gloo", "tricoll"])
@pytest.mark.parametrize("wire", ["bf16", None])
def test_gradients_are_the_mean(pool, backend, wire):
    results = pool(2).run(sharded, backend, (2,), wire, False, limit=60)
    assert all(torch.equal(final, results[0][2]) for _, _, final, _ in results)
    for worst, bits, _, _ in results:
        # With an FP32 wire, two summands have one order; with BF16, what comes from the other rank is rounded, once.
        assert bits if wire is None else 0 < worst < 2**-8


def test_half_the_bytes(pool):
    sent = {}
    for wire in ("bf16", None):
        sent[wire] = sum(sent for *_, sent in pool(2).run(sharded, "gloo", (2,), wire, False, limit=60))
    elements = 8 * 24 + 24 + 6 * 24 + 6  # 5 rows are padded to 6
    # Gradients once a step, in BF16 or FP32; parameters in FP32, twice a step.
    assert sent[None] - sent["bf16"] == STEPS * elements * 2
    assert sent[None] >= STEPS * elements * 4 * 2


def test_mixed_precision(pool):
    """BF16 parameters and activations; the gradients are reduced from FP32."""
    results = pool(2).run(sharded, "tricoll", (2,), "bf16", True, limit=60)
    assert all(torch.equal(final, results[0][2]) for _, _, final, _ in results)
    assert all(0 < worst < 0.5 for worst, *_ in results)


def test_replicas_of_shards(pool):
    results = pool(4).run(sharded, "tricoll", (2, 2), None, False, limit=60)
    assert all(torch.equal(final, results[0][2]) for _, _, final, _ in results)
    assert all(worst < 1e-5 for worst, *_ in results)


def wrong(comm, what):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    module = torch.nn.Linear(4, 4)
    if what == "not sharded":
        tricoll.fsdp.apply(module, comm)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["b"]
    fully_shard(module, mesh=mesh)
    tricoll.fsdp.apply(module, comm if what == "other ranks" else None)
    module(torch.ones(1, 4)).sum().backward()


@pytest.mark.parametrize(
    "what, kind, text",
    [
        ("not sharded", ValueError, "fully_shard"),
        ("other ranks", ValueError, "FSDP shards over 2 ranks"),
        ("no communicator", TypeError, "not a process group of the tricoll backend"),
    ],
)
def test_mistakes(pool, what, kind, text):
    for error in pool(4).outcomes(wrong, what, limit=60):
        assert isinstance(error, kind) and text in str(error), repr(error)
