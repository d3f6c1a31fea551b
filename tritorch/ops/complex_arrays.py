"""Functions of complex numpy arrays that numpy lacks, or has with less accuracy."""
import numpy as np


def log1p(x):
    """log(1 + x); the modulus by (1 + Re)² + Im² - 1 where it is near 1, which of complex64 is exact in float64."""
    re, im = x.real.astype(np.float64), x.imag.astype(np.float64)
    size = np.hypot(re + 1, im)
    near = (size > 0.5) & (size < 2)
    excess = np.where(near, re, 0) * (2 + np.where(near, re, 0)) + np.where(near, im, 0) ** 2
    return parts(np.where(near, 0.5 * np.log1p(excess), np.log(size)), np.arctan2(im, re + 1), x.dtype)


def parts(re, im, kind):
    """An array of a complex dtype from its parts: re + 1j * im would make NaN of 0 · ∞ and lose the sign of zeros."""
    out = np.empty(np.broadcast_shapes(np.shape(re), np.shape(im)), kind)
    out.real, out.imag = re, im
    return out


def expm1(x):
    """e^x - 1; numpy's where that cancels, beyond e^x has the better infinities."""
    whole = np.exp(x)
    near = (x.real < 1) & np.isfinite(x.imag)
    return parts(np.where(near, np.expm1(x).real, whole.real - 1), whole.imag, x.dtype)


def sigmoid(x):
    """1 / (1 + e^-x), left of 0 as e^x / (1 + e^x): the exponential is never large."""
    right = x.real >= 0
    small = np.exp(np.where(right, -x, x))
    return np.where(right, 1, small) / (1 + small)


def logaddexp(x, y):
    """The one with the larger real part, plus log(1 + e^(other - it))."""
    first = np.real(x) >= np.real(y)
    high, low = np.where(first, x, y), np.where(first, y, x)
    rest = np.where((high == low) & np.isinf(high.real), 0, low - high)
    return high + log1p(np.exp(rest))


def power(x, y):
    """numpy's, but 0 to a power with a negative real part is infinite, and infinity to a negative whole power 0."""
    out = np.power(x, y)
    below = np.real(y) < 0
    if np.any(below):
        out = np.where(below & np.equal(x, 0), parts(np.inf, np.nan, out.dtype), out)
        ends = below & np.isfinite(y) & np.isinf(x) & (np.imag(y) == 0) & (np.rint(np.real(y)) == np.real(y))
        out = np.where(ends, 1 / np.power(x, -y), out) if np.any(ends) else out
    return out


def sign(x):
    """x / |x|, 0 for 0."""
    size = np.abs(x)
    size = np.where(size == 0, 1, size)
    return parts(x.real / size, x.imag / size, x.dtype)


def sinc(x):
    """numpy's, but that numpy's quotient of the least numbers is NaN."""
    return np.where(np.abs(x) < 1e-20, 1, np.sinc(x))
