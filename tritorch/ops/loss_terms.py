"""Losses element by element, before they are added up, and their gradients: one launch each, rounded once. Where only the sum is wanted it
is made in one pass: see `loss_of_all` in distances.py.

The gradient of a distance in y is its gradient in x with x and y exchanged.
"""
import functools

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.ops import elementwise, special
from tritorch.ops.elementwise import floats, no_bools
from tritorch.ops.slopes import K, line_slope, sigmoid, slope_of_two
from tritorch.tensor import Tensor

_terms = functools.partial(elementwise.binary, functions=K, names=("x", "y"))
_slope = functools.partial(slope_of_two, names=("g_out", "x", "y"))

# ------------------------------------------------------------------ distances
mse_slope = _slope("mse_slope", "g · 2 (x - y).", lambda g, x, y: g * ((x - y) * 2), lambda g_out, x, y: g_out * ((x - y) * 2))
mse_terms = _terms("mse_terms", "(x - y)².", lambda x, y: np.square(x - y), result=no_bools,
                   grad_input=lambda g, x, y: mse_slope(g, x, y), grad_other=lambda g, x, y: mse_slope(g, y, x))
l1_slope = _slope("l1_slope", "g · sign(x - y), 0 beside a NaN.", lambda g, x, y: g * np.sign(np.nan_to_num(x - y, nan=0.0)),
                  lambda g_out, x, y: g_out * (x - y).sign())
l1_terms = _terms("l1_terms", "|x - y|.", lambda x, y: np.abs(x - y), result=no_bools,
                  grad_input=lambda g, x, y: l1_slope(g, x, y), grad_other=lambda g, x, y: l1_slope(g, y, x))


def _bent(x, bend):
    """½ x² up to the bend, a line from there on, whose gradient is that of a line where x is infinite, too."""
    x = np.abs(x)
    near = np.minimum(x, x.dtype.type(bend))
    return near * (x - near * x.dtype.type(0.5))


def _near(g, x, y, bend):
    """How a gradient changes that grows with x - y up to the bend."""
    second = g.masked_fill(~((x - y).abs() < bend), 0)
    return second, -second


smooth_l1_slope = _slope("smooth_l1_slope", "g · (x - y) / beta, cut off at ±g.",
                         lambda g, x, y, beta: g * np.clip((x - y) / x.dtype.type(beta), -1, 1),
                         lambda g_out, x, y, beta: g_out * ((x - y) / beta).clamp(-1.0, 1.0), attrs=(("beta", 0.5),),
                         grads={"x y": lambda g, g_out, x, y, beta: _near(g * g_out / beta, x, y, beta)})
smooth_l1_terms = _terms("smooth_l1_terms", "½ (x - y)² / beta where |x - y| < beta, else |x - y| - ½ beta.",
                         lambda x, y, beta: _bent(x - y, beta) / x.dtype.type(beta), attrs=(("beta", 0.5),), result=floats,
                         grad_input=lambda g, x, y, beta: smooth_l1_slope(g, x, y, beta),
                         grad_other=lambda g, x, y, beta: smooth_l1_slope(g, y, x, beta))
huber_slope = _slope("huber_slope", "g · (x - y), of which no more than ±delta counts.",
                     lambda g, x, y, delta: g * np.clip(x - y, -x.dtype.type(delta), x.dtype.type(delta)),
                     lambda g_out, x, y, delta: g_out * (x - y).clamp(-delta, delta), attrs=(("delta", 0.5),),
                     grads={"x y": lambda g, g_out, x, y, delta: _near(g * g_out, x, y, delta)})
huber_terms = _terms("huber_terms", "½ (x - y)² where |x - y| ≤ delta, else delta (|x - y| - ½ delta).",
                     lambda x, y, delta: _bent(x - y, delta), attrs=(("delta", 0.5),), result=floats,
                     grad_input=lambda g, x, y, delta: huber_slope(g, x, y, delta),
                     grad_other=lambda g, x, y, delta: huber_slope(g, y, x, delta))


# ------------------------------------------------------------------ chances
def _log_sigmoid(x):
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def _share(y, p):
    """1 + (p - 1) y, 1 for targets without end, too, where nothing is weighted."""
    return 1 if not isinstance(p, (np.ndarray, Tensor)) and p == 1 else (p - 1) * y + 1


def _logit_samples(make):
    yield make(3, 4), make(3, 4, low=0, high=1), 1.0
    yield make(3, 1), make(4, low=0, high=1), make(4, low=0.5, high=2)
    yield make(0, 2), make(2), make(2)


logit_slope = _slope("logit_slope", "g · (σ(x) - y).", lambda g, x, y: g * (sigmoid(x) - y), lambda g_out, x, y: g_out * (x.sigmoid() - y))
weighted_logit_slope = elementwise.ternary(
    "weighted_logit_slope", "(1 - y) - (1 + (p - 1) y) σ(-x): the derivative of logit_terms in x.",
    lambda x, y, p: (1 - y) - _share(y, p) * sigmoid(-x), functions=K, names=("x", "y", "p"), samples=_logit_samples)
weighted_logit_slope.formula(lambda x, y, p: (1 - y) - _share(y, p) * (-x).sigmoid())
logit_terms = elementwise.ternary(
    "logit_terms", "(1 - y) x - (1 + (p - 1) y) log σ(x).", lambda x, y, p: (1 - y) * x - _share(y, p) * _log_sigmoid(x), functions=K,
    result=floats, names=("x", "y", "p"), samples=_logit_samples, grads={
        "x": lambda g, x, y, p: g * weighted_logit_slope(x, y, p) if isinstance(p, Tensor) else logit_slope(g, x, y)})
logit_terms.formula(lambda x, y, p: (1 - y) * x - _share(y, p) * (x.clamp(max=0.0) - (-x.abs()).exp().log1p()))
divergence_terms = _terms("divergence_terms", "y (log y - x), 0 for log y where y is 0.",
                          lambda x, y: special.xlogy(y, y) - y * x, result=floats, domain={"low": 0.5, "high": 2.0},
                          grad_input=lambda g, y: line_slope(g, y, -1.0, 0.0))
divergence_terms.formula(lambda x, y: y.xlogy(y) - y * x)


# ------------------------------------------------------------------ by name, for sums of all of them
def _chance_terms(x, y):
    return (y - 1) * np.maximum(np.log1p(-x), -100) - y * np.maximum(np.log(x), -100)


def _chance_slope(x, y):
    return (x - y) / np.maximum((1 - x) * x, 1e-12)


def _chance_product(x):
    """x (1 - x), not 0 at the ends, as PyTorch's second derivative takes it."""
    return (x + 1e-12) * (1 - x + 1e-12)


_chances = {"functions": kernels("loss"), "names": ("x", "y"), "domain": {"low": 0.05, "high": 0.95}}
chance_slope = elementwise.binary(
    "binary_cross_entropy_slope", "(x - y) / max(x (1 - x), 1e-12): the gradient of binary cross entropy in x.", _chance_slope,
    grad_input=lambda g, x, y: g * (x * x - 2 * x * y + y) / _chance_product(x).square(),
    grad_other=lambda g, x: -g / _chance_product(x), **_chances)
chance_terms = elementwise.binary(
    "binary_cross_entropy_terms", "-(y log x + (1 - y) log(1 - x)); logarithms stop at -100.", _chance_terms,
    grad_input=lambda g, x, y: g * chance_slope(x, y), grad_other=lambda g, x: g * ((1 - x).log() - x.log()), **_chances)

KINDS = ("mse", "l1", "smooth_l1", "huber", "logits", "chances", "divergence")
_BENT, _SLOPES = ("smooth_l1", "huber"), {"mse": mse_slope, "l1": l1_slope, "smooth_l1": smooth_l1_slope, "huber": huber_slope}


def each(kind, x, y, bend):
    """The terms of a loss, element by element."""
    if kind in _BENT:
        return (smooth_l1_terms if kind == "smooth_l1" else huber_terms)(x, y, bend)
    if kind == "logits":
        return logit_terms(x, y, 1.0)
    return {"mse": mse_terms, "l1": l1_terms, "chances": chance_terms, "divergence": divergence_terms}[kind](x, y)


def on_arrays(kind, x, y, bend):
    """The same of numpy arrays."""
    if kind in _BENT:
        return _bent(x - y, bend) / x.dtype.type(bend if kind == "smooth_l1" else 1)
    return {"mse": lambda: np.square(x - y), "l1": lambda: np.abs(x - y), "logits": lambda: (1 - y) * x - _log_sigmoid(x),
            "chances": lambda: _chance_terms(x, y), "divergence": lambda: special.xlogy(y, y) - y * x}[kind]()


def grad_x(kind, g, x, y, bend):
    """The gradient of a loss in x for the gradients of its terms."""
    if kind in _SLOPES:
        return _SLOPES[kind](g, x, y, bend) if kind in _BENT else _SLOPES[kind](g, x, y)
    if kind == "logits":
        return logit_slope(g, x, y)
    return g * chance_slope(x, y) if kind == "chances" else line_slope(y, g, -1.0, 0.0)


def grad_y(kind, g, x, y, bend):
    """The same in y."""
    if kind in _SLOPES:
        return grad_x(kind, g, y, x, bend)
    if kind == "logits":
        return line_slope(x, g, -1.0, 0.0)
    return g * ((1 - x).log() - x.log()) if kind == "chances" else g * (y.log() + y / y - x)
