"""Functional collectives: values, gradients against a plain computation of all ranks, torch.compile without a break."""

import pytest
import torch

import tricoll
from tricoll import ops

N = 3
SPLITS = [[0, 2, 1], [1, 1, 1], [2, 0, 3]]  # rows from rank r to each


def plain(what, xs):
    """What each rank gets from the inputs of all."""
    n = len(xs)
    if what == "uneven":
        return [torch.cat([x.split(SPLITS[s])[r] for s, x in enumerate(xs)]) for r in range(n)]
    total = sum(xs[1:], xs[0])
    if what == "sum":
        return [total * 1 for _ in xs]
    if what == "avg":
        return [total / n for _ in xs]
    if what == "premul":
        return [total * 0.5 for _ in xs]
    if what == "reduce_scatter":
        return list(total.chunk(n))
    if what == "reduce_scatter avg":
        return list((total / n).chunk(n))
    if what == "all_gather":
        return [torch.cat(xs) for _ in xs]
    if what == "all_to_all":
        return [torch.cat([x.chunk(n)[r] for x in xs]) for r in range(n)]
    return [xs[1] * 1 for _ in xs]  # broadcast


OPS = {
    "sum": lambda x, comm: ops.all_reduce(x, comm=comm),
    "avg": lambda x, comm: ops.all_reduce(x, "avg", comm=comm),
    "premul": lambda x, comm: ops.all_reduce(x, tricoll.premul_sum(0.5), comm=comm),
    "reduce_scatter": lambda x, comm: ops.reduce_scatter(x, comm=comm),
    "reduce_scatter avg": lambda x, comm: ops.reduce_scatter(x, "avg", comm=comm),
    "all_gather": lambda x, comm: ops.all_gather(x, comm=comm),
    "all_to_all": lambda x, comm: ops.all_to_all(x, comm=comm),
    "uneven": lambda x, comm: ops.all_to_all(x, SPLITS[comm.rank], [SPLITS[s][comm.rank] for s in range(N)], comm=comm),
    "broadcast": lambda x, comm: ops.broadcast(x, 1, comm=comm),
}


def share(what, r):
    rows = sum(SPLITS[r]) if what == "uneven" else 6
    random = torch.Generator().manual_seed(10 + r)
    return torch.randint(-9, 9, (rows, 2), generator=random).double()


def weights(y, r):
    return (torch.arange(y.numel()) % 7 + r + 1.0).double().view(y.shape)


def differentiated(comm, mode):
    """Values and gradients, and gradients of gradients, of every operator."""
    got = {}
    for what, fn in OPS.items():
        x = share(what, comm.rank).requires_grad_()

        def loss(x, fn=fn):
            y = fn(x * x, comm)
            return y, (y * y * weights(y, comm.rank)).sum()

        if mode:
            torch._dynamo.reset()  # else the operators are variants of one function, and too many
            loss = torch.compile(loss, fullgraph=True, backend=mode)
        y, value = loss(x)
        (grad,) = torch.autograd.grad(value, x, create_graph=not mode)
        second = None if mode else torch.autograd.grad((grad * grad).sum(), x)[0]
        got[what] = y.detach(), grad.detach(), second
    return got


@pytest.mark.parametrize("mode", [None, "eager", "aot_eager"])
def test_values_and_gradients(pool, mode):
    results = pool(N).run(differentiated, mode, limit=110)
    for what in OPS:
        xs = [share(what, r).requires_grad_() for r in range(N)]
        ys = plain(what, [x * x for x in xs])
        total = sum((y * y * weights(y, r)).sum() for r, y in enumerate(ys))  # of all ranks' losses
        grads = torch.autograd.grad(total, xs, create_graph=True, materialize_grads=True)
        seconds = torch.autograd.grad(sum((g * g).sum() for g in grads), xs, materialize_grads=True)
        for r in range(N):
            y, grad, second = results[r][what]
            torch.testing.assert_close(y, ys[r].detach(), rtol=1e-14, atol=0, msg=f"{what}, rank {r}")
            torch.testing.assert_close(grad, grads[r].detach(), rtol=1e-13, atol=0, msg=f"gradient of {what}, rank {r}")
            if second is not None:
                torch.testing.assert_close(second, seconds[r], rtol=1e-12, atol=0, msg=f"second of {what}, rank {r}")


def module_in_a_graph(comm):
    """A tensor-parallel layer, compiled once, used with several shapes; on the default communicator."""
    tricoll.init()
    weight = torch.full((4, 4), comm.rank + 1.0, requires_grad=True)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def layer(x):
        gathered = ops.all_gather(x @ weight, wire="bf16")
        return ops.reduce_scatter(torch.relu(gathered))

    try:
        return [layer(torch.ones(rows, 4)).sum().item() for rows in (2, 3, 5)]
    finally:
        tricoll.destroy()


def test_a_layer_with_shapes_that_change(pool):
    # x @ w is 4 (rank 0) and 8 (rank 1); gathered by both, so that each sum is twice that.
    results = pool(2).run(module_in_a_graph, limit=110)
    assert results == [[rows * 4 * 8.0 for rows in (2, 3, 5)], [rows * 4 * 16.0 for rows in (2, 3, 5)]]


def checked(comm):
    library = torch.ops.tricoll
    torch.manual_seed(1)  # the same values on all ranks, whatever these processes have drawn before
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    name = comm.name
    torch.library.opcheck(library.all_reduce.default, (x, "sum", 1.0, name, None, "auto"))
    torch.library.opcheck(library.all_reduce.default, (x.t(), "avg", 1.0, name, None, "auto"))
    torch.library.opcheck(library.reduce_scatter.default, (x, "sum", 1.0, name, None, "auto"))
    torch.library.opcheck(library.all_gather.default, (x, name, None, "auto"))
    torch.library.opcheck(library.all_to_all.default, (x, None, None, name, None))
    torch.library.opcheck(library.broadcast.default, (x, 0, name, None))
    torch.library.opcheck(library.sum_at.default, (x, 0, name, None))
    # In lockstep, all ranks change the same element at once, and go back from the same one.
    assert torch.autograd.gradcheck(lambda t: ops.all_reduce(t, comm=comm), x)
    assert torch.autograd.gradgradcheck(lambda t: ops.all_reduce(t * t, "avg", comm=comm), x)
    return True


@pytest.mark.parametrize("n", [1, 2])
def test_opcheck_and_gradcheck(pool, n):
    assert pool(n).run(checked, limit=110) == [True] * n


def test_gradcheck_alone():
    with tricoll.init() as comm:
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        for what, fn in OPS.items():
            if what not in ("uneven", "broadcast"):
                assert torch.autograd.gradcheck(lambda t: fn(t, comm), x), what
        assert torch.autograd.gradcheck(lambda t: ops.broadcast(t, 0, comm=comm), x)


def test_what_has_no_gradient():
    with tricoll.init() as comm:
        x = torch.randn(4, requires_grad=True)
        y = ops.all_reduce(x, "max", comm=comm)
        with pytest.raises(RuntimeError, match="'max' has no gradient"):
            y.sum().backward()


def test_a_communicator_that_is_gone():
    comm = tricoll.init()
    tricoll.destroy()
    with pytest.raises(tricoll.CollectiveError, match="destroyed"):
        ops.all_gather(torch.ones(2), comm=comm)
    with pytest.raises(tricoll.CollectiveError, match="gone"):
        torch.ops.tricoll.all_gather(torch.ones(2), "no such name", None, "auto")
