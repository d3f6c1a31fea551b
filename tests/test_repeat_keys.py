"""Calls that repeat are told apart by all that their implementation may look at."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import ahead
from tritorch.dispatch import op, registry


def draw(*shape):
    return torch.tensor(np.random.default_rng().standard_normal(shape), dtype=torch.float32, device="cuda")


@pytest.fixture(autouse=True)
def staying():
    """As in test_repeat.py: a call is remembered only where its kernels are there."""
    with ahead.staying():
        yield


def test_tuples_that_are_equal_but_not_the_same(cuda):
    """Also beside offsets, which end keys with tuples of whole numbers."""
    runs = []

    @op
    def repeat_tuple(x, y, sizes=(), more=()):
        """x + y."""
        return x.shape, x.dtype, x.device

    @repeat_tuple.impl("cuda")
    def on_cuda(out, x, y, sizes, more):
        runs.append((sizes, more))
        torch.add.into(out, x, y)

    try:
        x, wanted = draw(8), [(1, 0), (True, False), (1.0, 0.0), (1, 0.0), (), (0,), (1, 0, 4), ((1, 0), 4), (None, 1), torch.Size([1, 2])]
        for _ in range(2):
            for sizes in wanted:
                assert torch.allclose(repeat_tuple(x[:4], x[4:], sizes), x[:4] + x[4:])
        assert repr([sizes for sizes, _ in runs]) == repr(wanted)
        runs.clear()
        for sizes, more in [((1, 0), ()), ((1,), (0,)), ((), (1, 0))] * 2:
            repeat_tuple(x[:4], x[4:], sizes, more)
        assert len(runs) == 3
    finally:
        del registry["repeat_tuple"]
