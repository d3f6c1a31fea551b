"""Hurwitz's zeta function and the derivatives of digamma, in float64."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

# B₂ⱼ / (2j)! of Euler and Maclaurin's formula
BERNOULLI = tl.constexpr((
    0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07, 2.08767569878681e-08, -5.284190138687493e-10,
    1.3382536530684679e-11, -3.3896802963225827e-13, 8.586062056277845e-15, -2.174868698558062e-16, 5.509002828360229e-18,
    -1.3954464685812522e-19))


@triton.jit
def hurwitz(s, q):
    """Σ (q + k)⁻ˢ over k ≥ 0 for s > 1 and q > 0: ten terms, and Euler and Maclaurin's formula for the others."""
    total = tl.zeros_like(q)
    for k in range(10):
        total += libdevice.pow(q + k, -s)
    w = q + 10.0
    power = libdevice.pow(w, -s)
    total += power * (w / (s - 1.0) + 0.5)
    factor = s / w
    for j in tl.static_range(12):
        total += tl.where(power == 0, 0.0, BERNOULLI[j] * factor * power)
        factor = factor * ((s + (2 * j + 1)) / w) * ((s + (2 * j + 2)) / w)
    return tl.where(w == float("inf"), 0.0, total)


@triton.jit
def zeta_of(s, q):
    """The same for every q. Below 0 the powers of negative numbers, s whole, are those from 1 - r on without those from 1 - q on."""
    whole = libdevice.floor(q)
    left = q < 0
    value = hurwitz(s, tl.where(left, q - whole, q))
    if tl.max(left.to(tl.int32)) > 0:
        near, beyond = hurwitz(s, tl.where(left, (whole + 1.0) - q, 1.0)), hurwitz(s, tl.where(left, 1.0 - q, 2.0))
        odd = libdevice.fmod(s, tl.full(s.shape, 2.0, tl.float64)) != 0
        value = tl.where(left, tl.where(odd, (value - near) + beyond, (value + near) - beyond), value)
        value = tl.where(left & (libdevice.floor(s) != s), float("nan"), value)
    value = tl.where((q <= 0) & (whole == q), float("inf"), value)
    value = tl.where((s > 1) & (s < float("inf")) & (q == q), value, tl.where((s == float("inf")) & (q == 1), 1.0, float("nan")))
    return tl.where(s == 1, float("inf"), value)


@triton.jit
def zeta(x, q):
    return zeta_of(x.to(tl.float64), q.to(tl.float64)).to(q.dtype)


@triton.jit
def polygamma(x, n):
    """(-1)ⁿ⁺¹ n! ζ(n + 1, x) for n ≥ 1."""
    v = x.to(tl.float64)
    order = tl.full(v.shape, 0.0, tl.float64) + n
    value = libdevice.tgamma(order + 1.0) * zeta_of(order + 1.0, v)
    odd = libdevice.fmod(order, tl.full(v.shape, 2.0, tl.float64)) != 0
    return tl.where(odd, value, -value).to(x.dtype)
