"""Mathematical functions that numpy lacks, vectorised and near float64 accuracy; scipy's where it is installed."""
from __future__ import annotations

import functools
import math

import numpy as np

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): three ranges of |x|
_A = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3)
_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1, 2.98635138197400131e2,
      8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3)
_D = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3, 3.29079923573345963e3,
      4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)
_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
      6.58749161529837803e-4)
_Q = (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3)
_BETWEEN, _FAR = 0.46875, 4.0


def _ratio(p, q, x):
    """The quotient of two polynomials, highest coefficient first."""
    above, below = p[0], q[0]
    for a, b in zip(p[1:], q[1:]):
        above, below = above * x + a, below * x + b
    return above / below


def _scaled_tail(y):
    """exp(y²)·erfc(y) for y above 0.46875."""
    out = np.empty_like(y)
    near = y <= _FAR
    out[near] = _ratio(_C, _D, y[near])
    far = y[~near]
    z = 1 / (far * far)
    out[~near] = (1 / math.sqrt(math.pi) - z * _ratio(_P, _Q, z)) / far
    return out


def _tail(y):
    """erfc(y) for y above 0.46875; the square is split so that its rounding error does not grow in exp."""
    y = np.minimum(y, 30.0)
    coarse = np.trunc(y * 16) / 16
    return np.exp(-coarse * coarse) * np.exp(-(y - coarse) * (y + coarse)) * _scaled_tail(y)


def _erf64(x, complement):
    x = np.asarray(x, np.float64)
    flat = x.ravel()
    y = np.abs(flat)
    inner = ~(y > _BETWEEN)
    out = np.empty_like(flat)
    small = flat[inner] * _ratio(_A, _B, flat[inner] ** 2)
    out[inner] = 1 - small if complement else small
    rest = flat[~inner]
    tail = _tail(y[~inner])
    out[~inner] = np.where(rest < 0, 2 - tail, tail) if complement else np.copysign(1 - tail, rest)
    return out.reshape(x.shape)[()]


def _erf(x):
    return _erf64(x, False).astype(x.dtype)


def _erfc(x):
    return _erf64(x, True).astype(x.dtype)


def _erfcx(x):
    x = np.asarray(x, np.float64)
    flat = x.ravel()
    out = np.exp(flat * flat) * _erf64(flat, True)
    out[flat > _BETWEEN] = _scaled_tail(flat[flat > _BETWEEN])
    return out.reshape(x.shape)[()]


def _erfinv(y):
    """Giles 2010, "Approximating the erfinv function", then four steps of Newton's method in float64."""
    y = np.asarray(y, np.float64)
    w = -np.log((1 - y) * (1 + y))
    inner = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
             1.50140941)
    outer = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
             2.83297682)
    x = y * np.where(w < 5, np.polyval(inner, w - 2.5), np.polyval(outer, np.sqrt(w) - 3))
    for _ in range(4):
        missing = np.where(np.abs(y) < 0.5, _erf64(x, False) - y, np.sign(x) * (1 - np.abs(y) - _erf64(np.abs(x), True)))
        x = x - missing * (math.sqrt(math.pi) / 2) * np.exp(x * x)
    return np.where(np.abs(y) == 1, np.copysign(np.inf, y), x)[()]


def _each(function, at_pole):
    """A function of the math module on every element; poles and overflow give `at_pole`."""
    def one(x):
        try:
            return function(x)
        except (ValueError, OverflowError):
            return at_pole(x)
    vectorised = np.frompyfunc(one, 1, 1)
    return lambda x: np.asarray(vectorised(np.asarray(x, np.float64)), np.float64)[()]


def rsqrt(x):
    return x.dtype.type(1) / np.sqrt(x)


@functools.cache
def scipy():
    """scipy.special; None where it is not installed. Its import is a fourth of the start of a program on the simulated device."""
    try:
        from scipy import special
    except ImportError:
        return None
    return special


def _first_of_scipy(name, ours):
    """scipy's function where it is installed."""
    return lambda x: (getattr(scipy(), name) if scipy() else ours)(x)


erf, erfc, erfcx = _first_of_scipy("erf", _erf), _first_of_scipy("erfc", _erfc), _first_of_scipy("erfcx", _erfcx)
erfcinv = _first_of_scipy("erfcinv", lambda x: _erfinv(1 - np.asarray(x, np.float64)))
normcdf = _first_of_scipy("ndtr", lambda x: _erf64(-np.asarray(x, np.float64) / math.sqrt(2), True) / 2)
normcdfinv = _first_of_scipy("ndtri", lambda p: math.sqrt(2) * _erfinv(2 * np.asarray(p, np.float64) - 1))
_erfinv_unsigned = _first_of_scipy("erfinv", _erfinv)
_gammaln = _first_of_scipy("gammaln", _each(math.lgamma, lambda x: math.inf))
tgamma = _first_of_scipy("gamma", _each(math.gamma, lambda x: math.copysign(math.inf, x) if x == 0 or x > 0 else math.nan))


def erfinv(x):
    return np.copysign(_erfinv_unsigned(x), x)                           # scipy loses the sign of -0


def lgamma(x):
    return np.where(np.isinf(x), np.abs(x), _gammaln(x))                 # scipy says -inf of -inf


def high_product(a, b):
    """Upper 64 bits of the product of two 64-bit integers, by halves of 32 bits."""
    signed = a.dtype.kind == "i"
    x, y = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + (x0 * y0 >> half)
    cross = x0 * y1 + (middle & low)
    out = x1 * y1 + (middle >> half) + (cross >> half)
    if signed:
        out = out - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return out


def philox(c0, c1, c2, c3, k0, k1, rounds):
    """Philox4x32 on words held in uint64 arrays; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(rounds):
        even, odd = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (odd >> half) ^ c1 ^ k0, odd & low
        c2, c3 = (even >> half) ^ c3 ^ k1, even & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return [word.astype(np.uint32) for word in (c0, c1, c2, c3)]
