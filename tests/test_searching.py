"""Places in sorted sequences of every length around a power of two, with equal elements, infinities and NaN, against numpy."""
import numpy as np
import pytest

import tritorch as torch

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "float16"])
@pytest.mark.parametrize("right", [False, True])
def test_every_length(kind, right, cuda):
    for n in (0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 600):
        row = np.sort(RNG.integers(-n, n + 1, n)).astype(kind)
        values = RNG.integers(-n - 2, n + 3, (3, 70)).astype(kind)
        if kind.startswith("float"):
            row[n - n // 4:], values[0, :3] = np.inf, (np.inf, -np.inf, np.nan)
            row[n - n // 8:] = np.nan
        want = np.searchsorted(row, values, "right" if right else "left")
        on, there = torch.tensor(values).to(cuda), torch.tensor(row).to(cuda)
        found = torch.searchsorted(there, on, right=right)
        assert found.dtype is torch.int64
        np.testing.assert_array_equal(found.cpu().numpy(), want, err_msg=f"{n}")
        np.testing.assert_array_equal(torch.bucketize(on.T, there, right=right, out_int32=True).cpu().numpy(), want.T)
        rows = np.stack([row, row, row])
        np.testing.assert_array_equal(torch.searchsorted(torch.tensor(rows).to(cuda), on, right=right).cpu().numpy(), want)
        out = torch.zeros(70, 3, dtype=torch.int64, device=cuda).T
        torch.searchsorted(there, on, right=right, out=out)
        np.testing.assert_array_equal(out.cpu().numpy(), want)
