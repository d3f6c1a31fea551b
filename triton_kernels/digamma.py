"""The derivatives of the logarithm of gamma, of blocks of float32 or float64."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .division import div


@triton.jit
def digamma(x):
    """Reflection below 0, recurrence up to 10, the asymptotic series beyond."""
    negative = x < 0
    reflected = tl.where(negative, 1 - x, x)
    shift = tl.zeros_like(x)
    for _ in tl.static_range(10):
        small = reflected < 10
        shift = tl.where(small, shift - 1 / reflected, shift)
        reflected = tl.where(small, reflected + 1, reflected)
    z = 1 / (reflected * reflected)
    series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))))
    value = shift + libdevice.log(reflected) - 0.5 / reflected - series
    value = tl.where(negative, value - 3.141592653589793 * libdevice.cospi(x) / libdevice.sinpi(x), value)
    value = tl.where(negative & (libdevice.floor(x) == x), float("nan"), value)
    return tl.where(tl.abs(x) < 1e-30, div(tl.full(x.shape, -1.0, x.dtype), x), value).to(x.dtype)


@triton.jit
def trigamma(x):
    """The derivative of digamma, by the derivatives of the same three formulas."""
    negative = x < 0
    reflected = tl.where(negative, 1 - x, x)
    shift = tl.zeros_like(x)
    for _ in tl.static_range(10):
        small = reflected < 10
        shift = tl.where(small, shift + 1 / (reflected * reflected), shift)
        reflected = tl.where(small, reflected + 1, reflected)
    z = 1 / (reflected * reflected)
    series = z * (1.0 / 30 - z * (5.0 / 66 - z * (691.0 / 2730 - z * (7.0 / 6))))
    series = (1 + z * (1.0 / 6 - z * (1.0 / 30 - z * (1.0 / 42 - series)))) / reflected
    value = shift + 0.5 * z + series
    sine = libdevice.sinpi(x)
    return tl.where(negative, 9.869604401089358 / (sine * sine) - value, value).to(x.dtype)


# ------------------------------------------------------------------ extremes
