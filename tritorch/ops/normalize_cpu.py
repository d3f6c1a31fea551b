"""Layer, RMS and group normalization in numpy: x is (rows, N)."""
from functools import lru_cache

import numpy as np

from tritorch.ops.arrays import pieces, single
from tritorch.ops.reduce import sums_along


def matrix(a, columns):
    """An array as (rows, columns), half types as float32."""
    a = single(a)
    return a if a.ndim == 2 and a.shape[1] == columns else a.reshape(a.size // max(columns, 1), columns)


def scratch(out, x):
    """Where the result is computed: in the output itself if its type and layout allow."""
    if out.dtype != x.dtype or not out.flags.c_contiguous:
        return np.empty(x.shape, x.dtype)
    return out if out.shape == x.shape else out.reshape(x.shape)


def deliver(out, work):
    """Round the result into the output, unless it is there already."""
    if work is not out and (out.dtype != work.dtype or not out.flags.c_contiguous):
        out[...] = work.reshape(out.shape)


@lru_cache(maxsize=64)
def constants(n, eps, kind):
    """n and eps as arrays, which numpy takes 0.5 µs quicker than numbers."""
    return np.array(n, kind), np.array(eps, kind)


def normalize_array(work, x, mean, rstd, eps):
    """Normalize the rows of x into `work`; fills mean (unless it is None) and rstd, which have one value a row."""
    n, eps = constants(x.shape[1], eps, x.dtype)
    if mean is None:
        np.copyto(work, x)
    else:
        middle = sums_along(x, 1)
        np.divide(middle, n, middle)
        mean[...] = middle.reshape(mean.shape)
        np.subtract(x, middle, work)
    scale = np.vecdot(work, work)
    np.divide(scale, n, scale)
    np.add(scale, eps, scale)
    np.sqrt(scale, scale)
    np.reciprocal(scale, scale)
    rstd[...] = scale.reshape(rstd.shape)
    np.multiply(work, scale[:, None], work)


def gradient_array(work, g, x, mean, rstd, weight):
    """The gradient of rows into `work`, and x̂; the weight broadcasts."""
    n, rstd = x.dtype.type(x.shape[1]), rstd.reshape(-1, 1)
    xhat = x if mean is None else x - mean.reshape(-1, 1)
    xhat = np.multiply(xhat, rstd, out=None if mean is None else xhat)
    np.multiply(g, 1 if weight is None else weight, out=work)
    slope = np.vecdot(work, xhat)[:, None] / n
    if mean is not None:
        work -= sums_along(work, 1) / n
    work -= xhat * slope
    work *= rstd
    return xhat


def gradients(work, g, x, mean, rstd, weight):
    """The gradient of rows into `work`, piece by piece: 1.5 to 2 times faster than all at once, if they leave the cache. Returns Σ g·x̂ of
    the columns."""
    mean, rstd, weight = [None if v is None else v.reshape(-1) for v in (mean, rstd, weight)]
    total = np.zeros(x.shape[1], x.dtype)
    for part in pieces(x.shape):
        xhat = gradient_array(work[part], g[part], x[part], None if mean is None else mean[part], rstd[part], weight)
        total += np.einsum("ij,ij->j", g[part], xhat)
    return total
