"""Every way that the tuner may choose to look up rows gives the same."""
import numpy as np
import pytest

import tritorch
from tritorch.cuda import tuner
from tritorch.ops.indexing import _row_blocks


@pytest.mark.parametrize("number", range(10))
def test_all_ways_agree(cuda, number):
    way, rng = _row_blocks(4, 2100, 40)[number], np.random.default_rng(0)
    for parts, rows, width, count in (1, 40, 700, 33), (3, 3, 2100, 2):
        x, index = rng.standard_normal((parts, rows, width)).astype("f4"), rng.integers(0, rows, count)
        with tuner.forcing("take_rows", way):
            found = tritorch.tensor(x).to(cuda).index_select(1, tritorch.tensor(index).to(cuda))
        np.testing.assert_array_equal(found.cpu().numpy(), x[:, index])
