"""Scalar functions around the normal distribution and of x log y."""
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def erfcx(x):
    return libdevice.erfcx(x)


@triton.jit
def ndtr(x):
    return libdevice.normcdf(x)


@triton.jit
def ndtri(x):
    return libdevice.normcdfinv(x.to(tl.float64)).to(x.dtype)            # that of float32 takes the smallest numbers for 0


@triton.jit
def log_ndtr(x):
    """Beyond -1 by erfcx, whose logarithm is small beside x²/2: the tail itself would become 0."""
    y = x * 0.7071067811865476
    tail = libdevice.log(libdevice.erfcx(-y) * 0.5) - 0.5 * x * x
    return tl.where(x < -1, tail, libdevice.log1p(-0.5 * libdevice.erfc(y)))


@triton.jit
def entr(x):
    v = x.to(tl.float64)
    return tl.where(v == 0, 0.0, tl.where(v < 0, -float("inf"), -v * libdevice.log(v))).to(x.dtype)


@triton.jit
def xlog1py(x, y):
    return tl.where((x == 0) & (y == y), tl.zeros_like(x), x * libdevice.log1p(y))
