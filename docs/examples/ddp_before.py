"""Data-parallel training with PyTorch alone: torchrun --nproc-per-node=4 docs/examples/ddp_before.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

data = torch.Generator().manual_seed(dist.get_rank())  # every rank has data of its own
for _ in range(50):
    x = torch.randn(32, 20, generator=data)
    loss = torch.nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

dist.all_reduce(loss.detach(), dist.ReduceOp.SUM)
if dist.get_rank() == 0:
    print(f"{dist.get_backend()}: loss {loss / dist.get_world_size():.4f} after 50 steps")
dist.destroy_process_group()
