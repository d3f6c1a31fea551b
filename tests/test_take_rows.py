"""Every way that the tuner may choose to look up rows gives the same."""
import numpy as np
import pytest

import tritorch
from tritorch.cuda import tuner
from tritorch.ops.indexing import _row_blocks, take_rows


@pytest.mark.parametrize("number", range(10))
def test_all_ways_agree(cuda, number):
    way, rng = _row_blocks(4, 2100, 40)[number], np.random.default_rng(0)
    for parts, rows, width, count in (1, 40, 700, 33), (3, 3, 2100, 2):
        x, index = rng.standard_normal((parts, rows, width)).astype("f4"), rng.integers(0, rows, count)
        with tuner.forcing("take_rows", way):
            found = tritorch.tensor(x).to(cuda).index_select(1, tritorch.tensor(index).to(cuda))
        np.testing.assert_array_equal(found.cpu().numpy(), x[:, index])


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("number", [0, 5])
def test_rows_that_are_added_in_turn(cuda, number, kind):
    """They are added as an operator of its own would, over and over; where an index is outside they are all there is."""
    dtype, rng = getattr(tritorch, kind), np.random.default_rng(0)
    way = _row_blocks(4, 2100, 36)[number]
    x, added = [tritorch.tensor(rng.standard_normal(shape)).to(dtype).to(cuda) for shape in ((40, 2100), (12, 2100))]
    index = tritorch.tensor(rng.integers(0, 40, 36)).to(cuda)
    out = tritorch.empty(36, 2100, dtype=dtype, device=cuda)
    with tuner.forcing("take_rows", way):
        take_rows(out, x.unsqueeze(0), index, "embedding", False, added)
    want = x.index_select(0, index).reshape(3, 12, 2100) + added
    np.testing.assert_array_equal(out.cpu().numpy(), want.reshape(36, 2100).cpu().numpy())
