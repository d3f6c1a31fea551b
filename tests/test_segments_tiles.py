"""Sums over equal indices come out the same in all tiles that are tried."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import tuner
from tritorch.ops import segments
from tritorch.ops.embedding import table_gradient


@pytest.mark.parametrize("choice", segments.TILES, ids=str)
def test_all_tiles_add_up_the_same(cuda, choice):
    """Segments of none, one, two, a few and of more than LONG rows."""
    rng = np.random.default_rng(0)
    index = np.where(rng.random(400) < 0.7, 150, rng.integers(0, 300, 400))
    rows, want = rng.standard_normal((400, 1024)).astype("float16"), np.zeros((300, 1024))
    np.add.at(want, index, rows)
    with tuner.forcing("segments", choice):
        got = table_gradient(torch.tensor(rows).to(cuda), torch.tensor(index).to(cuda), 300, -1)
    np.testing.assert_allclose(got.cpu().double().numpy(), want, rtol=1e-3, atol=1e-3)
