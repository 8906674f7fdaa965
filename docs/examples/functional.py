"""A layer split over ranks, compiled as one graph: python docs/examples/functional.py"""

import torch

import tricoll


def train(comm):
    torch.manual_seed(comm.rank)
    up, down = torch.randn(8, 16) / 4, torch.randn(16, 8) / 4  # this rank's columns, and rows
    up.requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x):
        hidden = torch.relu(x @ up)
        return tricoll.ops.all_reduce(hidden @ down, comm=comm)

    x = torch.ones(4, 8)
    y = layer(x)
    y.square().mean().backward()
    return y[0, 0].item(), up.grad.norm().item()


if __name__ == "__main__":
    outputs = tricoll.launch(train, 2)
    print(f"output {outputs[0][0]:.4f} on both ranks, gradients of norm {outputs[0][1]:.4f} and {outputs[1][1]:.4f}")
