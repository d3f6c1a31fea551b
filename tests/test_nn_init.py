"""Initialisation: the distributions, the special matrices, the errors, and PyTorch's numbers for gains and fans."""
import math

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn import init


def _spread(t):
    return t.min().item(), t.max().item(), t.mean().item(), t.std().item()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_every_initialiser_returns_its_tensor_and_records_nothing():
    w = nn.Parameter(torch.empty(6, 6))
    for fn, args in ((init.uniform_, ()), (init.normal_, ()), (init.trunc_normal_, ()), (init.constant_, (2.0,)), (init.ones_, ()),
                     (init.zeros_, ()),
                     (init.eye_, ()), (init.xavier_uniform_, ()), (init.xavier_normal_, ()), (init.kaiming_uniform_, ()),
                     (init.kaiming_normal_, ()),
                     (init.orthogonal_, ()), (init.sparse_, (0.5,))):
        assert fn(w, *args) is w and w.is_leaf and w.requires_grad


def test_uniform_and_normal():
    low, high, mean, std = _spread(init.uniform_(torch.empty(100, 100), -2.0, 3.0))
    assert -2 <= low < -1.9 and 2.9 < high <= 3 and abs(mean - 0.5) < 0.1 and abs(std - 5 / math.sqrt(12)) < 0.05
    _, _, mean, std = _spread(init.normal_(torch.empty(100, 100), 1.0, 2.0))
    assert abs(mean - 1) < 0.1 and abs(std - 2) < 0.1
    low, high, mean, std = _spread(init.trunc_normal_(torch.empty(100, 100), 0.0, 1.0, -1.0, 2.0))
    assert -1 <= low < -0.99 and 1.9 < high <= 2 and abs(mean - 0.2296) < 0.05
    with pytest.warns(UserWarning, match="more than 2 std from"):
        init.trunc_normal_(torch.empty(3), 10.0)


def test_generators_make_the_numbers_repeat():
    a, b = (init.normal_(torch.empty(5), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert (a == b).all()


def test_scaled_initialisers():
    shape = (40, 20, 5, 5)
    fan_in, fan_out = 20 * 25, 40 * 25
    assert init._calculate_fan_in_and_fan_out(torch.empty(*shape)) == (fan_in, fan_out)
    for fn, kwargs, std in ((init.xavier_uniform_, {"gain": 2.0}, 2 * math.sqrt(2 / (fan_in + fan_out))),
                            (init.xavier_normal_, {}, math.sqrt(2 / (fan_in + fan_out))),
                            (init.kaiming_uniform_, {"nonlinearity": "relu"}, math.sqrt(2 / fan_in)),
                            (init.kaiming_normal_, {"mode": "fan_out", "a": 1}, math.sqrt(1 / fan_out))):
        assert abs(_spread(fn(torch.empty(*shape), **kwargs))[3] / std - 1) < 0.05
    with pytest.raises(ValueError, match="expected a tensor of 2 dims or more, got 1"):
        init.xavier_normal_(torch.empty(3))
    with pytest.raises(ValueError, match="expected mode 'fan_in' or 'fan_out', got 'fan'"):
        init.kaiming_uniform_(torch.empty(3, 3), mode="fan")
    with pytest.warns(UserWarning, match="nothing to initialize in a tensor of no elements"):
        init.kaiming_uniform_(torch.empty(0, 3))


def test_gains():
    assert init.calculate_gain("relu") == math.sqrt(2) and init.calculate_gain("tanh") == 5 / 3 and init.calculate_gain("conv2d") == 1
    assert init.calculate_gain("leaky_relu", 1) == 1 and init.calculate_gain("selu") == 0.75
    with pytest.raises(ValueError, match="Unsupported nonlinearity sin"):
        init.calculate_gain("sin")
    with pytest.raises(ValueError, match="expected a number as negative_slope, got True"):
        init.calculate_gain("leaky_relu", True)


def test_eye_and_dirac():
    assert init.eye_(torch.ones(3, 2)).tolist() == [[1, 0], [0, 1], [0, 0]]
    with pytest.raises(ValueError, match="Only tensors with 2 dimensions"):
        init.eye_(torch.ones(3))
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    init.dirac_(layer.weight, 2)
    x = torch.randn(1, 4, 5, 5)
    assert (layer(x) == x).all()
    with pytest.raises(ValueError, match="expected a tensor of 3 to 5 dims, got 2"):
        init.dirac_(torch.ones(3, 3))
    with pytest.raises(ValueError, match="divisible by groups"):
        init.dirac_(torch.ones(3, 3, 3), 2)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (4, 2, 3)])
def test_orthogonal(shape):
    w = init.orthogonal_(torch.empty(*shape), gain=2.0).view(shape[0], -1).numpy() / 2
    product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(product, np.eye(min(w.shape)), atol=1e-5)
    with pytest.raises(ValueError, match="expected a tensor of 2 dims or more, got 1"):
        init.orthogonal_(torch.empty(3))


def test_sparse():
    w = init.sparse_(torch.empty(10, 4), 0.35, 1.0)
    assert (w == 0).sum(0).tolist() == [4] * 4
    with pytest.raises(ValueError, match="Only tensors with 2 dimensions"):
        init.sparse_(torch.empty(3), 0.1)


def test_old_names():
    with pytest.warns(FutureWarning, match="nn.init.constant is the old name of nn.init.constant_"):
        assert init.constant(torch.empty(2), 3.0).tolist() == [3, 3]
    assert init.xavier_uniform.__name__ == "xavier_uniform"


def test_numbers_agree_with_pytorch():
    oracle = pytest.importorskip("torch")
    for name, args in (("relu", ()), ("leaky_relu", (0.3,)), ("selu", ()), ("sigmoid", ())):
        assert init.calculate_gain(name, *args) == pytest.approx(oracle.nn.init.calculate_gain(name, *args))
    for layer in ("Linear", "Conv1d", "Conv2d", "Embedding", "LSTM", "MultiheadAttention", "Bilinear"):
        args = {"Linear": (64, 64), "Conv1d": (32, 32, 5), "Conv2d": (16, 32, 3), "Embedding": (64, 64), "LSTM": (32, 32),
                "MultiheadAttention": (64, 4),
                "Bilinear": (16, 16, 16)}[layer]
        torch.manual_seed(0)
        oracle.manual_seed(0)
        for a, b in zip(getattr(nn, layer)(*args).parameters(), getattr(oracle.nn, layer)(*args).parameters(), strict=True):
            assert a.std().item() == pytest.approx(b.std().item(), rel=0.35, abs=1e-6)
