"""FSDP2 with FP32 gradients that travel as BF16: torchrun --nproc-per-node=4 docs/examples/fsdp.py"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import tricoll

dist.init_process_group("tricoll")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

mesh = init_device_mesh("cpu", (dist.get_world_size(),))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
tricoll.fsdp.apply(model)  # FP32 in, BF16 on the wire, added in FP32, FP32 shards out

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(dist.get_rank())
for _ in range(50):
    x = torch.randn(32, 20, generator=data)
    loss = torch.nn.functional.mse_loss(model(x).float(), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

dist.all_reduce(loss.detach(), dist.ReduceOp.SUM)
if dist.get_rank() == 0:
    print(f"loss {loss / dist.get_world_size():.4f} after 50 steps")
dist.destroy_process_group()
