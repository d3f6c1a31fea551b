"""Bessel and Airy functions, elementwise: scipy's on the CPU, Chebyshev series in float64 on CUDA (triton_kernels/bessel.py).

As in PyTorch only i0, i0e, i1 and i1e have gradients and take half types; the others refuse those, and their results have no history.
"""
import functools
import math

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dtype import types
from tritorch.ops import elementwise
from tritorch.ops.compare import where
from tritorch.ops.elementwise import floating
from tritorch.ops.pointwise import sign
from tritorch.ops.special import from_scipy
from tritorch.ops.wide import wide_only

K = kernels("bessel")
unary = functools.partial(elementwise.unary, functions=K, result=floating)
ABOVE = {"low": 0.1, "high": 12.0}
AROUND = {"low": -12.0, "high": 12.0}


# ------------------------------------------------------------------ modified, of the first kind: those with gradients
def _i1_grad(g, input, out):
    tiny = abs(input) < types.finfo(input.dtype).eps
    x = where(tiny, 1, input)
    return g * where(tiny, 0.5, i0(x) - where(tiny, 0, out) / x)


def _i1e_grad(g, input, out):
    tiny = abs(input) < types.finfo(input.dtype).eps
    x = where(tiny, 1, input)
    return g * where(tiny, 0.5, i0e(x) - where(tiny, 0, out) * (sign(x) + 1 / x))


i0 = unary("i0", """The modified Bessel function of the first kind of order 0: Σ (input/2)²ᵏ / (k!)².

    >>> import tritorch as torch; torch.i0(torch.tensor([0.0, 1.0, 2.0]))
    tensor([1.0000, 1.2661, 2.2796])
    """, from_scipy("i0"), domain={"low": -3.0, "high": 3.0}, grad=lambda g, input: g * i1(input))
i0e = unary("i0e", """exp(-|input|) · i0(input).

    >>> import tritorch as torch; torch.special.i0e(torch.tensor([0.0, 1.0, 1000.0]))
    tensor([1.0000, 0.4658, 0.0126])
    """, from_scipy("i0e"), domain=AROUND, grad=lambda g, input, out: g * (i1e(input) - sign(input) * out))
i1 = unary("i1", """The modified Bessel function of the first kind of order 1, the derivative of i0.

    >>> import tritorch as torch; torch.special.i1(torch.tensor([0.0, 1.0, -2.0]))
    tensor([ 0.0000,  0.5652, -1.5906])
    """, from_scipy("i1"), domain={"low": -3.0, "high": 3.0}, grad=_i1_grad)
i1e = unary("i1e", """exp(-|input|) · i1(input).

    >>> import tritorch as torch; torch.special.i1e(torch.tensor([0.0, 1.0, -1000.0]))
    tensor([ 0.0000,  0.2079, -0.0126])
    """, from_scipy("i1e"), domain=AROUND, grad=_i1e_grad)


# ------------------------------------------------------------------ without gradients
def airy(x):
    """Ai by scipy; where that gives up, far out, by the first terms of its wave, or 0."""
    x = np.asarray(x)
    near = np.abs(x) < 1000
    out = from_scipy("airy")(np.where(near, x, 0))[0]
    y = np.abs(np.where(near, 1000, x).astype(np.float64))
    zeta = 2 / 3 * y * np.sqrt(y)
    wave = (np.sin(zeta + math.pi / 4) - 5 / 72 / zeta * np.cos(zeta + math.pi / 4)) / (math.sqrt(math.pi) * y**0.25)
    return np.where(near, out, np.where(np.isfinite(x), np.where(x < 0, wave, 0), np.nan)).astype(x.dtype)


def sphere(x):
    """sin x / x."""
    return np.where(x == 0, 1, np.where(np.isinf(x), 0, np.sin(x) / x)).astype(x.dtype)


def bessel(name, doc, cpu, example, domain=ABOVE, fn=None):
    """The public function of an operator without gradients."""
    return wide_only(unary(name, f"""{doc}

    >>> import tritorch as torch; torch.special.{name}(torch.tensor([1.0, 5.0]))
    tensor([{example}])
    """, cpu, fn, domain=domain | {"grad": False}))


airy_ai = bessel("airy_ai", "The Airy function Ai: the solution of y″ = input · y that decays.", airy, "1.3529e-01, 1.0834e-04",
                 {"low": -9.0, "high": 4.0})
bessel_j0 = bessel("bessel_j0", "The Bessel function of the first kind of order 0.", from_scipy("j0"), " 0.7652, -0.1776", AROUND)
bessel_j1 = bessel("bessel_j1", "The Bessel function of the first kind of order 1.", from_scipy("j1"), " 0.4401, -0.3276", AROUND)
bessel_y0 = bessel("bessel_y0", "The Bessel function of the second kind of order 0; NaN below 0.", from_scipy("y0"), " 0.0883, -0.3085")
bessel_y1 = bessel("bessel_y1", "The Bessel function of the second kind of order 1; NaN below 0.", from_scipy("y1"), "-0.7812,  0.1479")
modified_bessel_i0 = bessel("modified_bessel_i0", "The modified Bessel function of the first kind of order 0.", from_scipy("i0"),
                            " 1.2661, 27.2399", {"low": -3.0, "high": 3.0}, "i0")
modified_bessel_i1 = bessel("modified_bessel_i1", "The modified Bessel function of the first kind of order 1.", from_scipy("i1"),
                            " 0.5652, 24.3356", {"low": -3.0, "high": 3.0}, "i1")
modified_bessel_k0 = bessel("modified_bessel_k0", "The modified Bessel function of the second kind of order 0; NaN below 0.",
                            from_scipy("k0"), "0.4210, 0.0037")
modified_bessel_k1 = bessel("modified_bessel_k1", "The modified Bessel function of the second kind of order 1; NaN below 0.",
                            from_scipy("k1"), "0.6019, 0.0040")
scaled_modified_bessel_k0 = bessel("scaled_modified_bessel_k0", "exp(input) · modified_bessel_k0(input).", from_scipy("k0e"),
                                   "1.1445, 0.5478")
scaled_modified_bessel_k1 = bessel("scaled_modified_bessel_k1", "exp(input) · modified_bessel_k1(input).", from_scipy("k1e"),
                                   "1.6362, 0.6003")
spherical_bessel_j0 = bessel("spherical_bessel_j0", "The spherical Bessel function of the first kind: sin(input) / input, 1 at 0.",
                             sphere, " 0.8415, -0.1918", AROUND)
