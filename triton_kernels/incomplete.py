"""The incomplete gamma functions in float64, by the integrals that tritorch/ops/gamma.py explains, here without the logarithm."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .gamma import first_node, next_node
from .series import LGAMMA1P, chebyshev


@triton.jit
def log_less(x, a):
    """log(x/a) - m with m = x/a - 1, to its last digits near 0: with r = m / (2 + m) it is 2 (r³/3 + r⁵/5 + …) - m r."""
    m = (x - a) / a
    r = m / (2.0 + m)
    z = r * r
    total = tl.zeros_like(m)
    for k in tl.static_range(14):
        total = total * z + 1.0 / (29 - 2 * k)
    return tl.where(tl.abs(m) < 0.4, 2.0 * r * z * total - m * r, libdevice.log(x / a) - m)


@triton.jit
def front(a, x):
    """xᵃ e⁻ˣ / Γ(a): for large a by Stirling's series, so that only the distance of x from a is taken to a high power."""
    large = tl.where(a >= 10, a, 10.0)
    z = 1.0 / (large * large)
    series = 1.0 / 1188 - z * (691.0 / 360360 - z * (1.0 / 156))
    series = (1.0 / 12 - z * (1.0 / 360 - z * (1.0 / 1260 - z * (1.0 / 1680 - z * series)))) / large
    far = libdevice.exp(large * log_less(x, large) - series) * libdevice.sqrt(large * 0.15915494309189535)
    small = tl.where(a >= 10, 1.0, a)
    return tl.where(a >= 10, far, libdevice.pow(x, small) * libdevice.exp(-x) / libdevice.tgamma(small))


@triton.jit
def for_small(a, x):
    """Q(a, x) for a and x up to 1: 1 - xᵃ/Γ(1 + a) · (1 + a Σ (-x)ⁿ / ((a + n) n!)), where no digits cancel."""
    term, total = a, tl.zeros_like(x)
    for n in tl.static_range(1, 20):
        term = term * (-x / n)
        total += term / (a + n)
    power = a * libdevice.log(x) - a * chebyshev(2.0 * a - 1.0, LGAMMA1P)
    return -libdevice.expm1(power) - libdevice.exp(power) * total


@triton.jit
def regularized(a, x, UPPER: tl.constexpr, FEW: tl.constexpr):
    """P(a, x), or Q = 1 - P where UPPER: P by the integral below x where x < a, else Q by that above, or by its series."""
    few = (a <= 1) & (x <= 1)
    low = x < a
    if UPPER:
        low = low & (few == 0)
    step = low & (a < 1)                                                 # P(a, x) = P(a + 1, x) + xᵃ e⁻ˣ / Γ(a + 1)
    shape = tl.where(step, a + 1.0, a)
    more = tl.maximum(shape - 1.0, 0.0)
    slope = tl.maximum(tl.where(low, shape - x, 1.0 - more / x), 0.0)
    bend = tl.where(low, x, more / x / x)
    scale = 2.0 / (slope + libdevice.sqrt(slope * slope + 2.0 * bend))
    total = tl.zeros_like(x)
    up, down = first_node()
    for _ in range(37 if FEW else 60):
        place, weight, up, down = next_node(up, down, FEW)
        s = scale * place
        total += weight * libdevice.exp(tl.where(low, -shape * s - x * libdevice.expm1(-s), (shape - 1.0) * libdevice.log1p(s / x) - s))
    total = total * scale
    size = front(tl.where(low | (few == 0), shape, 1.0), x)
    below = tl.where(step, (libdevice.pow(x, a) * libdevice.exp(-x) / libdevice.tgamma(a + 1.0)) * (1.0 + x * total), size * total)
    above = tl.where(few, for_small(tl.where(few, a, 1.0), tl.where(few, x, 1.0)), size * total / x)
    value = tl.where(low, 1.0 - below, above) if UPPER else tl.where(low, below, 1.0 - above)
    value = tl.where(a > 1e30, tl.where(x == a, 0.5, tl.where((x < a) == UPPER, 1.0, 0.0)), tl.minimum(tl.maximum(value, 0.0), 1.0))
    value = tl.where((x == 0) | (a == float("inf")), 1.0 if UPPER else 0.0, value)
    value = tl.where((x == float("inf")) | ((a == 0) & (x > 0)), 0.0 if UPPER else 1.0, value)
    wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | ((a == float("inf")) & (x == float("inf"))) | (a != a) | (x != x)
    return tl.where(wrong, float("nan"), value)


@triton.jit
def igamma(a, x):
    return regularized(a.to(tl.float64), x.to(tl.float64), False, x.dtype != tl.float64).to(x.dtype)


@triton.jit
def igammac(a, x):
    return regularized(a.to(tl.float64), x.to(tl.float64), True, x.dtype != tl.float64).to(x.dtype)
