"""The radix sort in which warps vote, as a GPU runs it: on that of PTX."""
import numpy as np
import pytest

pytest.importorskip("triton")

import tritorch as torch  # noqa: E402
from tritorch.ops import ordering  # noqa: E402
from tritorch.testing.ptx import device  # noqa: E402


@pytest.mark.parametrize("choice, falling, share", [*((c, False, 1) for c in ordering.GLUON), (ordering.GLUON[0], True, 9)], ids=str)
def test_rows_are_in_stable_order(choice, falling, share):
    """A row of two tiles of which the last is short, or its first numbers; ties, zeros of both signs and NaN among them."""
    rng = np.random.default_rng()
    n = (1 << choice["LOG"]) + 77
    x = np.round(rng.normal(size=n) * 40).astype(np.float32) / 8
    x[rng.integers(0, n, 9)] = np.nan, -np.inf, np.inf, -0.0, 0.0, -np.nan, 1e-40, -1e-40, 0.0
    k = n // share
    with device.simulate(90):
        values, indices = torch.full((1, k), float("nan"), device="cuda"), torch.full((1, k), -1, dtype=torch.int64, device="cuda")
        row = torch.from_numpy(x[None]).to("cuda")
        ordering._passes(values, indices, row, 1, n, 32, choice, {"FALLING": falling, "RAW": False})
        no_number = np.isnan(x)
        keys = np.where(no_number, 0, -x if falling else x), no_number != falling              # NaN is the greatest
        want = np.lexsort(keys)[:k]
        np.testing.assert_array_equal(indices.cpu().numpy()[0], want)
        assert values.cpu().numpy().tobytes() == x[want].tobytes()
