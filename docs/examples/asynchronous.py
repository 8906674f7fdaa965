"""Communication beside computation: python docs/examples/asynchronous.py"""

import torch

import tricoll


def work(comm):
    x = torch.full((1_000_000,), comm.rank + 1.0)
    handle = comm.all_reduce(x, "avg", wire="bf16", async_op=True)
    own = torch.randn(200, 200) @ torch.randn(200, 200)  # something that does not need x
    handle.wait()  # from here on, x is the average

    neighbour, other = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    received = torch.empty(1000)
    handles = [
        comm.recv(received, other, async_op=True),
        comm.send(x[:1000].contiguous(), neighbour, async_op=True),
    ]
    for each in handles:
        each.wait(timeout=10.0)
    return x[0].item(), received[0].item(), own.shape


if __name__ == "__main__":
    print(tricoll.launch(work, 3))
