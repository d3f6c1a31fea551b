"""Activations against PyTorch: values at special places, gradients to second order, half types, parameters, errors."""
import math

import numpy as np
import pytest
from oracle import FLOATS, SPECIAL, agree, draw

import tritorch
import tritorch.nn

CALLS = {
    "relu": [{}], "relu6": [{}], "leaky_relu": [{}, {"negative_slope": 0.2}, {"negative_slope": -0.3}],
    "hardtanh": [{}, {"min_val": -2, "max_val": 0.5}],
    "threshold": [{"threshold": 0.5, "value": 7.0}], "hardshrink": [{}, {"lambd": 1.0}], "softshrink": [{}, {"lambd": 1.0}],
    "gelu": [{}, {"approximate": "tanh"}], "silu": [{}], "softplus": [{}, {"beta": 2.0, "threshold": 3.0}], "logsigmoid": [{}],
    "mish": [{}],
    "elu": [{}, {"alpha": 0.3}], "celu": [{}, {"alpha": 2.0}], "selu": [{}], "hardswish": [{}], "hardsigmoid": [{}], "softsign": [{}],
    "tanhshrink": [{}],
    "sigmoid": [{}], "tanh": [{}],
}
CASES = [(name, keywords) for name, calls in CALLS.items() for keywords in calls]
ORDINARY = np.concatenate([np.linspace(-8, 8, 41), [0.5, -0.5, 1, -1, 3, -3, 1e-6]])


def call(name, keywords):
    return lambda lib, x: getattr(lib.nn.functional, name)(x, **keywords)


@pytest.mark.parametrize("name, keywords", CASES)
def test_values(name, keywords):
    for kind in FLOATS:
        special = SPECIAL[np.abs(SPECIAL) < 60000] if name == "gelu" else SPECIAL        # PyTorch's vectorized gelu of inf is NaN
        agree(call(name, keywords), (special, kind), what=f"{name} {kind}", signs=False, atol=3e-6 if kind == "float32" else None)
        agree(call(name, keywords), (ORDINARY, kind), what=f"{name} {kind}", signs=False, atol=3e-6 if kind == "float32" else None)


@pytest.mark.parametrize("name, keywords", CASES)
def test_gradients(name, keywords):
    agree(call(name, keywords), ORDINARY, grad=True, rtol=1e-6, atol=1e-10, what=name, signs=False)
    agree(call(name, keywords), SPECIAL, grad=True, rtol=1e-6, atol=1e-7, what=name, signs=False)


@pytest.mark.parametrize("name, keywords", CASES)
def test_second_derivatives(name, keywords):
    def program(lib, x):
        (g,) = lib.autograd.grad(call(name, keywords)(lib, x).sin().sum(), x, create_graph=True)
        return g

    if name not in ("celu", "elu", "hardswish", "hardsigmoid"):          # which PyTorch differentiates once, or otherwise at the kinks
        agree(program, ORDINARY[:41] + 0.01, grad=True, rtol=1e-6, atol=1e-9, what=name)


def test_prelu():
    for shape in ((5,), (4, 3), (2, 3, 4)):
        for count in {1, shape[1] if len(shape) > 1 else 1}:
            agree(lambda lib, x, w: lib.nn.functional.prelu(x, w), draw(*shape), np.linspace(0.1, 0.7, count).astype(np.float32), grad=True)
    agree(lambda lib, x, w: lib.nn.functional.prelu(x, w), draw(4, 3), draw(2))


def test_in_place():
    for name in "relu relu6 leaky_relu hardtanh elu selu celu silu mish hardswish hardsigmoid".split():
        def program(lib, x, name=name):
            y = x.clone()
            out = getattr(lib.nn.functional, name)(y, inplace=True)
            return out, y

        agree(program, draw(4, 3), what=name)
    agree(lambda lib, x: (x.clone().relu_(), lib.relu(x), x.relu()), draw(5))


def test_errors():
    for f in (lambda F, x: F.hardtanh(x, 2, 1), lambda F, x: F.gelu(x, approximate="fast"), lambda F, x: F.celu(x, 0),
              lambda F, x: F.softshrink(x, -1)):
        agree(lambda lib, x, f=f: f(lib.nn.functional, x), draw(3))
    for name in "relu gelu silu relu6 leaky_relu elu hardtanh".split():
        agree(lambda lib, x, name=name: getattr(lib.nn.functional, name)(x), np.array([-2, 0, 3]), what=name)
        agree(lambda lib, x, name=name: getattr(lib.nn.functional, name)(x), draw(3, dtype="bool"), what=name)


def test_on_a_cuda_device(cuda):
    for name, keywords in CASES:
        agree(call(name, keywords), (ORDINARY, "float32"), device=cuda, grad=True, rtol=1e-5, atol=1e-6, what=name, signs=False)
        special = SPECIAL[np.isfinite(SPECIAL)] if name == "gelu" else SPECIAL
        agree(call(name, keywords), (special, "float32"), device=cuda, what=name, rtol=1e-5, atol=1e-6, signs=False)


def test_gelu_keeps_its_digits_where_it_is_small(cuda):
    """Relative to itself: 1 + erf would have none left at -5."""
    x = np.linspace(-6, 6, 5001).astype(np.float32)
    wide = x.astype(np.float64)
    cdf = np.vectorize(math.erfc)(-wide / math.sqrt(2)) / 2
    y = tritorch.tensor(x).to(cuda).requires_grad_()
    out = tritorch.nn.functional.gelu(y)
    out.sum().backward()
    np.testing.assert_allclose(out.detach().cpu().array, wide * cdf, rtol=4e-6)
    np.testing.assert_allclose(y.grad.cpu().array, cdf + wide * np.exp(-wide ** 2 / 2) / math.sqrt(2 * math.pi), rtol=1e-5, atol=2e-7)
