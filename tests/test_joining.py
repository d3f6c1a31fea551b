"""Tensors one after the other in short rows, which are written together."""
import numpy as np
import pytest

import tritorch as torch


def test_nothing_at_all_has_a_gradient():
    nothing, rows = [torch.zeros(n, requires_grad=True) for n in (0, (2, 3))]
    torch.cat([nothing, rows], 1).sum().backward()
    assert nothing.grad.shape == (0,) and rows.grad.shape == (2, 3)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("widths", [(1, 1), (1, 1, 1), (1,) * 4, (1,) * 8, (7, 9), (3, 1, 2), (16, 1), (1, 0, 1), (1,) * 9])
def test_short_rows_one_after_the_other(widths, kind, cuda):
    rng = np.random.default_rng(0)
    for rows in (1, 37, 1500):
        parts = [torch.tensor(rng.integers(0, 2, (rows, n))).to(getattr(torch, kind)) for n in widths]
        want = np.concatenate([part.float().numpy() for part in parts], 1)
        there = [part.to(cuda) for part in parts]
        np.testing.assert_array_equal(torch.cat(there, -1).cpu().float().numpy(), want)
        out = torch.empty(rows, 2 * sum(widths), dtype=parts[0].dtype, device=cuda)[:, ::2]
        np.testing.assert_array_equal(torch.cat(there, 1, out=out).cpu().float().numpy(), want)
        if max(widths) == 1 == min(widths):
            stacked = torch.stack([part[:, 0].to(cuda) for part in parts], -1)
            np.testing.assert_array_equal(stacked.cpu().float().numpy(), want)
