"""Four micro-batches, one communication: torchrun --nproc-per-node=4 docs/examples/accumulate.py"""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tricoll

dist.init_process_group("tricoll")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(20, 1))
model.register_comm_hook(None, tricoll.ddp.reproducible_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

MICRO = 4
data = torch.Generator().manual_seed(dist.get_rank())
for _ in range(10):
    optimizer.zero_grad()
    for micro in range(MICRO):
        last = micro == MICRO - 1
        with contextlib.nullcontext() if last else model.no_sync():  # gradients add up, nothing is sent
            x = torch.randn(8, 20, generator=data)
            loss = torch.nn.functional.mse_loss(model(x), x[:, :1])
            (loss / MICRO).backward()
    optimizer.step()

timeline = tricoll.ddp.timeline()
if dist.get_rank() == 0:
    print(f"{len(timeline.steps)} communications for 40 micro-batches; {timeline}")
dist.destroy_process_group()
