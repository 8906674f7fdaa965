"""Send and receive: rank r sends to r + 1 and receives from r - 1. ``python -m tricoll.bench.sendrecv``."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tricoll.bench.collective import Collective, Part, apart, copy


class SendRecv(Collective):
    """Counts are of what one rank sends."""

    name = "sendrecv"

    def tricoll(self, comm: Any, x: Tensor, out: Tensor, op: str, root: int, **options: Any) -> None:
        options.pop("algo", None)  # there is one
        n, rank = comm.world_size, comm.rank
        if n == 1:
            return copy(out, x)
        to, source = (rank + 1) % n, (rank - 1) % n
        # A large send ends when the receiver takes it, so somebody has to receive first.
        if rank % 2 == 0:
            comm.send(x, to, **options)
            comm.recv(out, source, **options)
        else:
            arrived = x.new_empty(out.shape) if out is x else out
            comm.recv(arrived, source, **options)
            comm.send(x, to, **options)
            copy(out, arrived)

    def torch(self, group: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        if n == 1:
            return copy(out, x)
        arrived = x.new_empty(out.shape) if out is x else out
        pair = [
            dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, arrived, group=group, group_peer=(rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        copy(out, arrived)

    def mpi(self, mpi: Any, x: Tensor, out: Tensor, op: str, root: int) -> None:
        n, rank = mpi.size, mpi.rank
        mpi.comm.Sendrecv(mpi.data(apart(x, out)), (rank + 1) % n, 0, mpi.data(out), (rank - 1) % n)

    def exact(self, part: Part, count: int, n: int, rank: int, op: str, root: int) -> Tensor:
        return part((rank - 1) % n, 0, count)


COLLECTIVE = SendRecv()

if __name__ == "__main__":
    from tricoll.bench.cli import main

    main(COLLECTIVE.name)
