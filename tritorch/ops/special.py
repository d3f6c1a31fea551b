"""Special functions on numpy arrays: scipy's, loaded when first used, and the few that are shorter or faster by hand."""
import numpy as np


def _from_scipy(name):
    def f(*arrays):
        import scipy.special  # 60 ms to import: only when somebody asks

        return getattr(scipy.special, name)(*arrays)

    f.__name__ = name
    return f


erfc, digamma, xlogy = map(_from_scipy, ("erfc", "digamma", "xlogy"))
_erf64, _erfinv, _gammaln, _polygamma = map(_from_scipy, ("erf", "erfinv", "gammaln", "polygamma"))

_ERF_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
          -2.95459980854025e-03, -1.60960333262415e-02)
_ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)
_CHUNK = 16384                                                           # elements whose temporaries stay in the level-1 and level-2 caches


def erf(x):
    """The error function. In float32 a rational function of degree 13/8 (the one in Eigen), 10 times faster than scipy's and within 4
    ulp."""
    x = np.asarray(x)
    if x.dtype != np.float32:
        return _erf64(x)
    return chunked(_erf32, x)


def _erf32(out, x):
    np.clip(x, np.float32(-4), np.float32(4), out=out)
    square = out * out
    p, q = np.full_like(square, _ERF_P[0]), np.full_like(square, _ERF_Q[0])
    for poly, coefficients in ((p, _ERF_P[1:]), (q, _ERF_Q[1:])):
        for c in coefficients:
            poly *= square
            poly += np.float32(c)
    out *= p
    out /= q


def chunked(fn, *arrays, out=None):
    """Run `fn(out, *arrays)` piece by piece, so that its temporaries stay in the cache. Arrays of one shape, any strides."""
    arrays = [np.ascontiguousarray(a) for a in arrays]
    fits = out is not None and out.flags.c_contiguous and out.dtype == arrays[0].dtype
    result = out if fits else np.empty(arrays[0].shape, arrays[0].dtype)
    flat, sources = result.reshape(-1), [a.reshape(-1) for a in arrays]
    for k in range(0, flat.size, _CHUNK):
        fn(flat[k:k + _CHUNK], *[s[k:k + _CHUNK] for s in sources])
    if out is not None and result is not out:
        np.copyto(out, result, casting="unsafe")
    return result


def erfinv(x):
    return np.copysign(_erfinv(x), x)                                    # scipy loses the sign of -0


def lgamma(x):
    return np.where(np.isinf(x), np.abs(x), _gammaln(x))                 # +∞ at -∞, as in C


def trigamma(x):
    return _polygamma(1, x).astype(x.dtype)


def sigmoid(x):
    """1 / (1 + e^-x) by tanh, which cannot overflow."""
    out = np.multiply(x, x.dtype.type(0.5), out=np.empty_like(x))
    np.tanh(out, out=out)
    out *= x.dtype.type(0.5)
    out += x.dtype.type(0.5)
    return out


def logit(x, eps):
    if eps >= 0:
        x = np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))
