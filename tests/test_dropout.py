"""Dropout and its relatives: chances, scales, gradients, whole channels."""
import numpy as np
import pytest

import tritorch as T
from tritorch import cuda
from tritorch.ops import dropout as D
from tritorch.ops import random as R
from tritorch.random import manual_seed


@pytest.fixture
def simulated():
    with cuda.simulate(seed=0) as device:
        yield device


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dropout(simulated, device):
    x = T.ones(100, 100, device=device, requires_grad=True)
    y = D.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu().array
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((kept == 0).mean() - 0.25) < 0.02
    assert (x.grad.cpu().array == kept).all()
    assert D.dropout(x, 0.25, training=False) is x and D.dropout(x, 0.0) is x
    assert not D.dropout(x, 1.0).any()
    z = T.ones(50, device=device)
    assert D.dropout(z, 0.5, inplace=True) is z and set(z.cpu().tolist()) == {0, 2}
    nan = D.dropout(T.full((64,), float("nan"), device=device), 0.5)
    assert np.isnan(nan.cpu().array).all()
    with pytest.raises(ValueError, match="0 ≤ p ≤ 1"):
        D.dropout(x, 1.5)


def test_dropout_in_half_and_second_order():
    for kind in (T.float16, T.bfloat16):
        assert set(D.dropout(T.ones(40, dtype=kind), 0.5).tolist()) == {0, 2}
    x = T.ones(20, requires_grad=True)
    (g,) = T.autograd.grad((D.dropout(x, 0.5) ** 2).sum(), x, create_graph=True)
    g.sum().backward()
    assert set(x.grad.tolist()) == {0, 8}


def test_channels_go_together():
    x = T.ones(8, 16, 5, 3)
    for f in (D.dropout2d, D.feature_dropout):
        y = f(x, 0.5).array
        assert (y == y[:, :, :1, :1]).all() and set(np.unique(y)) == {0, 2}
    assert D.dropout1d(T.ones(16, 7), 0.5).shape == (16, 7)
    assert D.dropout3d(T.ones(2, 16, 3, 4, 5), 0.5).shape == (2, 16, 3, 4, 5)
    z = T.ones(16, 7)
    assert D.dropout1d(z, 0.5, inplace=True) is z and 0 in z.tolist()[0] + z.tolist()[1] + [0]
    with pytest.raises(RuntimeError, match="2 or 3 dims"):
        D.dropout1d(T.ones(3), 0.5)


def test_alpha_dropout_keeps_mean_and_variance():
    manual_seed(0)
    y = D.alpha_dropout(R.randn(400_000), 0.3, training=True).array
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.02
    x = T.ones(4, 8, 3)
    z = D.feature_alpha_dropout(x, 0.5, training=True).array
    assert (z == z[:, :, :1]).all() and len(np.unique(z)) == 2
    assert D.alpha_dropout(x) is x


def test_rrelu():
    x = T.tensor([-1.0, 2.0])
    assert np.allclose(D.rrelu(x).array, [-(1 / 8 + 1 / 3) / 2, 2])
    y = D.rrelu(T.full((1000,), -1.0), 0.1, 0.3, training=True).array
    assert y.min() >= -0.3 and y.max() <= -0.1 and abs(y.mean() + 0.2) < 0.01
