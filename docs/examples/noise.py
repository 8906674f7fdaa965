"""Clipping, skipped overflows and a noise scale that is measured: torchrun --nproc-per-node=4 docs/examples/noise.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tricoll

BATCH = 32  # examples a rank

dist.init_process_group("tricoll")
torch.manual_seed(0)
teacher = torch.nn.Linear(32, 1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stats = tricoll.ddp.GradientStats(batch_size=BATCH)
model.register_comm_hook(stats, tricoll.ddp.bf16_hook)

torch.manual_seed(1 + dist.get_rank())
for _ in range(50):
    x = torch.randn(BATCH, 32)
    loss = (model(x) - teacher(x).detach() - torch.randn(BATCH, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    step = stats.step()  # of all ranks' gradients, counted while they were averaged
    if not step.overflow:
        stats.clip_(model.parameters(), step, max_norm=1.0)
        optimizer.step()

if dist.get_rank() == 0:
    scale = "not known" if step.noise_scale is None else f"{step.noise_scale:.0f}"
    print(f"gradient norm {step.norm:.3f}, noise scale {scale} examples, batch {BATCH * dist.get_world_size()}")
dist.destroy_process_group()
