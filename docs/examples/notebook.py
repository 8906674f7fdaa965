"""Ranks from a notebook or a script, without torchrun: python docs/examples/notebook.py"""

import torch
from torch.nn.parallel import DistributedDataParallel

import tricoll


def train(comm, steps):
    torch.distributed.init_process_group("tricoll")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(comm, tricoll.ddp.bf16_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(comm.rank)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), str(tricoll.ddp.timeline(comm))


if __name__ == "__main__":  # not needed in a notebook
    for loss, summary in tricoll.launch(train, 2, 30):
        print(f"loss {loss:.4f}; {summary}")
