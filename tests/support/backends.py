"""Programs of torch.distributed, run with the backend tricoll or with another one."""

import torch
import torch.distributed as dist


def with_backend(comm, backend, fn, *args):
    """What fn returns, in a world of that backend."""
    dist.init_process_group(backend)
    try:
        return fn(*args)
    finally:
        dist.destroy_process_group()


def on(pool, n, fn, *args, backend="tricoll", limit=60):
    return pool(n).run(with_backend, backend, fn, *args, limit=limit)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return a == b


def ranks_tensor(shape=(4, 6), dtype=torch.float32, k=0):
    r = dist.get_rank()
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 13 + 10 * r + k).to(dtype)
