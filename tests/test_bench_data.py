"""The benchmark's data: their result is exact in any order, and every algorithm must get it."""

import itertools

import pytest
import torch

from tricoll.bench import collective, data

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.uint8)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(
    ("op", "dtype"), [(o, d) for o in collective.OPS for d in DTYPES if o != "avg" or d.is_floating_point]
)
def test_data_are_exact_in_any_order(n, op, dtype):
    part = data.exact(dtype, dtype, op, n, seed=3)
    shares = [part(r, 5, 3005) for r in range(n)]
    exact = collective.fold([lambda x=x: x for x in shares], op)
    assert torch.equal(exact, exact.to(dtype).to(exact.dtype))
    for order in (shares, shares[::-1], shares[n // 2 :] + shares[: n // 2]):
        total = None
        for x in order:  # every partial result rounded to the dtype, as a ring with a narrow wire does
            x = (x.double() * (collective.SCALE if op == "mulsum" else 1)).to(dtype).double()
            combine = {"prod": torch.mul, "min": torch.minimum, "max": torch.maximum}.get(op, torch.add)
            total = x if total is None else combine(total, x).to(dtype).double()
        total = total / n if op == "avg" else total
        assert torch.equal(total.to(dtype).double(), exact.double())
    if 1 < n < 16 and op != "prod":
        assert not any(torch.equal(a.double(), b.double()) for a, b in itertools.pairwise(shares))


def test_parts_are_parts_of_one_tensor():
    part = data.normal(torch.float32, positive=False, n=2, seed=0)
    whole = part(1, 0, 3_000_000)
    assert torch.equal(part(1, 1_048_570, 2_500_000), whole[1_048_570:2_500_000])
    assert part(1, 7, 7).numel() == 0
