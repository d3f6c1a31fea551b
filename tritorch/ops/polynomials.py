"""Orthogonal polynomials: `f(input, n)`, either of which may be a number, elementwise and broadcast.

Degrees are rounded towards 0; a negative one gives 0. All are computed in float64 by their recurrences, Chebyshev's beyond degree 64 by
sines and hyperbolic sines. Hermite's beyond degree 512 and the others' beyond 2²⁰ are NaN. As in PyTorch there are no gradients.
"""
import functools

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.ops import elementwise
from tritorch.ops.elementwise import floating
from tritorch.ops.wide import wide_only

binary = functools.partial(elementwise.binary, functions=kernels("polynomials"), result=floating)
MOST = 64
FOLLOWING = {
    "hermite": lambda x, k, p, before: 2 * (x * p - k * before),
    "probabilist": lambda x, k, p, before: x * p - k * before,
    "laguerre": lambda x, k, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1),
    "legendre": lambda x, k, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1),
    "chebyshev": lambda x, k, p, before: 2 * x * p - before,
}


def climbed(x, degree, first, kind):
    """From the polynomial of degree 1 up to each element's degree; below 0 it is 0."""
    following, p, before = FOLLOWING[kind], np.where(degree < 1, 1.0, first), np.ones_like(x)
    for k in range(1, int(degree.max(initial=0))):
        after, more = following(x, k, p, before), degree > k
        p, before = np.where(more, after, p), np.where(more, p, before)
    return np.where(degree < 0, 0.0, p)


def prepared(x, n):
    """(input as float64, degrees, the dtype of the result) for operands that may be numbers."""
    kind = x.dtype if isinstance(x, np.ndarray) else n.dtype
    v, degree = np.broadcast_arrays(np.asarray(x, np.float64), np.trunc(np.asarray(n, np.float64)))
    return v, degree, kind


def of_degree(kind, first, limit):
    """The numpy function of a family."""
    def function(x, n):
        v, degree, dtype = prepared(x, n)
        fits = degree <= limit
        value = climbed(v, np.where(fits, degree, 0.0), first(v), kind)
        return np.where(fits & (v == v), value, np.nan).astype(dtype)

    return function


def over(half_a, half_b, t):
    """sinh(a t) / sinh(b t) and cosh(a t) / cosh(b t) from 2a and 2b, a ≥ b ≥ 0, without overflow on the way."""
    grown = np.exp((half_a - half_b) / 2 * t)
    sinh = grown * np.expm1(-half_a * t) / np.expm1(-half_b * t)
    return sinh, grown * (1 + np.exp(-half_a * t)) / (1 + np.exp(-half_b * t))


def far(y, d, letter):
    """T, U, V or W of a large degree for y = |x|, whose angle is exact near 1."""
    inside, outside = np.arccos(np.minimum(y, 1)), np.arccosh(np.maximum(y, 1))
    if letter == "t":
        near, beyond, one = np.cos(d * inside), over(2 * d, 0, outside)[1], np.ones_like(d)
    elif letter == "u":
        near, beyond, one = np.sin((d + 1) * inside) / np.sin(inside), over(2 * d + 2, 2, outside)[0], d + 1
    elif letter == "v":
        near, beyond, one = np.cos((d + 0.5) * inside) / np.cos(inside / 2), over(2 * d + 1, 1, outside)[1], np.ones_like(d)
    else:
        near, beyond, one = np.sin((d + 0.5) * inside) / np.sin(inside / 2), over(2 * d + 1, 1, outside)[0], 2 * d + 1
    return np.where(y == 1, one, np.where(y < 1, near, beyond))


MIRRORED = {"t": "t", "u": "u", "v": "w", "w": "v"}                      # of -x, but for the sign of odd degrees


def chebyshev(letter, first, shifted):
    """The numpy function of one of Chebyshev's four families, of input or of 2 · input - 1."""
    def function(x, n):
        v, degree, dtype = prepared(x, n)
        v = 2 * v - 1 if shifted else v
        large = degree > MOST
        value = climbed(v, np.where(large | np.isnan(degree), 0.0, degree), first(v), "chebyshev")
        if large.any():
            d, y = np.where(large, degree, 1.0), np.abs(v)
            beyond = np.where(v < 0, far(y, d, MIRRORED[letter]), far(y, d, letter))
            value = np.where(large, np.where((np.fmod(d, 2) != 0) & (v < 0), -beyond, beyond), value)
        return np.where(np.isnan(degree) | np.isnan(v), np.nan, value).astype(dtype)

    return function


def polynomial(name, doc, cpu, example, tame=(-1.0, 1.0), high=70):
    """The public function of a family. Between the numbers in `tame` its polynomial of degree `high` is not too large for half types."""
    return wide_only(binary(name, f"""{doc}

    >>> import tritorch as torch; torch.special.{name}(torch.tensor([0.5, 2.0]), 3)
    tensor([{example}])
    """, cpu, names=("input", "n"), domain={"low": -0.7, "high": 1.5, "grad": False},
                            samples=lambda make: [(make(40, low=-0.7, high=1.5, grad=False), make(40, integer=True, low=-1, high=6)),
                                                  (make(6, low=tame[0], high=tame[1], grad=False), high),
                                                  (0.3, make(7, integer=True, low=0, high=6))]))


hermite_polynomial_h = polynomial("hermite_polynomial_h", "The physicists' Hermite polynomial Hₙ: Hₙ₊₁ = 2x Hₙ - 2n Hₙ₋₁.",
                                  of_degree("hermite", lambda x: 2 * x, 512), "-5., 40.", high=6)
hermite_polynomial_he = polynomial("hermite_polynomial_he", "The probabilists' Hermite polynomial Heₙ: Heₙ₊₁ = x Heₙ - n Heₙ₋₁.",
                                   of_degree("probabilist", lambda x: x, 512), "-1.3750,  2.0000", high=9)
laguerre_polynomial_l = polynomial("laguerre_polynomial_l", "The Laguerre polynomial Lₙ: (n + 1) Lₙ₊₁ = (2n + 1 - x) Lₙ - n Lₙ₋₁.",
                                   of_degree("laguerre", lambda x: 1 - x, 1 << 20), "-0.1458, -0.3333", (0.1, 3.0))
legendre_polynomial_p = polynomial("legendre_polynomial_p", "The Legendre polynomial Pₙ: (n + 1) Pₙ₊₁ = (2n + 1) x Pₙ - n Pₙ₋₁.",
                                   of_degree("legendre", lambda x: x, 1 << 20), "-0.4375, 17.0000")
_FAMILIES = {"t": ("first", "cos nθ, x = cos θ", lambda x: x, "-1., 26.", "-0., 99."),
             "u": ("second", "sin (n+1)θ / sin θ, x = cos θ", lambda x: 2 * x, "-1., 56.", " -0., 204."),
             "v": ("third", "cos (n+½)θ / cos ½θ, x = cos θ", lambda x: 2 * x - 1, "-1., 41.", "  1., 169."),
             "w": ("fourth", "sin (n+½)θ / sin ½θ, x = cos θ", lambda x: 2 * x + 1, "-1., 71.", " -1., 239.")}
for _letter, (_kind, _formula, _first, _example, _shifted) in _FAMILIES.items():
    _name = f"chebyshev_polynomial_{_letter}"
    globals()[_name] = polynomial(_name, f"Chebyshev's polynomial of the {_kind} kind: {_formula}.", chebyshev(_letter, _first, False),
                                  _example)
    globals()["shifted_" + _name] = polynomial("shifted_" + _name, f"Chebyshev's polynomial of the {_kind} kind at 2 · input - 1.",
                                               chebyshev(_letter, _first, True), _shifted, (0.0, 1.0))
