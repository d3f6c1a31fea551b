"""Bessel and Airy functions. All compute in float64, by a Chebyshev series near 0 and one of 1/x beyond, both for every element."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .series import (
    AIRY_ABOVE,
    AIRY_BELOW,
    AIRY_FAR,
    AIRY_P,
    AIRY_Q,
    I0_FAR,
    I0_NEAR,
    I1_FAR,
    I1_NEAR,
    J0,
    J1,
    K0_FAR,
    K0_NEAR,
    K1_FAR,
    K1_NEAR,
    P0,
    P1,
    Q0,
    Q1,
    Y0,
    Y1,
    chebyshev,
)


@triton.jit
def near(y, C: tl.constexpr):
    """A series in y² on [0, 8], for what lies there."""
    return chebyshev(tl.where(y < 8, y * y * 0.03125 - 1.0, 0.0), C)


@triton.jit
def wave(y, P: tl.constexpr, Q: tl.constexpr):
    """(P sin y / √πy, Q sin y / √πy, the same two of cos y) beyond 8: with them all turns by multiples of π/4 are sums."""
    u = 8.0 / tl.where(y < 8, 8.0, y)
    t = 2.0 * u * u - 1.0
    p, q = chebyshev(t, P), chebyshev(t, Q) * u * 0.125
    size = libdevice.sqrt(u * 0.03978873577297384)                       # 1/8π
    sine, cosine = libdevice.sin(y) * size, libdevice.cos(y) * size
    return p * sine, q * sine, p * cosine, q * cosine


@triton.jit
def bessel_j0(x):
    y = tl.abs(x.to(tl.float64))
    p_sine, q_sine, p_cosine, q_cosine = wave(y, P0, Q0)
    far = (p_cosine + p_sine) - (q_sine - q_cosine)
    return tl.where(y < 8, near(y, J0), far).to(x.dtype)


@triton.jit
def bessel_j1(x):
    v = x.to(tl.float64)
    y = tl.abs(v)
    p_sine, q_sine, p_cosine, q_cosine = wave(y, P1, Q1)
    far = tl.where(v < 0, -1.0, 1.0) * ((p_sine - p_cosine) + (q_sine + q_cosine))
    return tl.where(y < 8, v * near(y, J1), far).to(x.dtype)


@triton.jit
def bessel_y0(x):
    y = x.to(tl.float64)
    p_sine, q_sine, p_cosine, q_cosine = wave(y, P0, Q0)
    far = (p_sine - p_cosine) + (q_cosine + q_sine)
    inner = near(y, Y0) + 0.6366197723675814 * libdevice.log(y) * near(y, J0)
    return tl.where(y < 8, inner, far).to(x.dtype)


@triton.jit
def bessel_y1(x):
    y = x.to(tl.float64)
    p_sine, q_sine, p_cosine, q_cosine = wave(y, P1, Q1)
    far = (q_sine - q_cosine) - (p_sine + p_cosine)
    inner = y * near(y, Y1) + 0.6366197723675814 * (libdevice.log(y) * (y * near(y, J1)) - 1.0 / y)
    inner = tl.where(y == 0, -float("inf"), inner)
    return tl.where(y < 8, inner, far).to(x.dtype)


@triton.jit
def spherical_bessel_j0(x):
    v = x.to(tl.float64)
    value = tl.where(v == 0, 1.0, libdevice.sin(v) / v)
    return tl.where(tl.abs(v) == float("inf"), 0.0, value).to(x.dtype)


# ------------------------------------------------------------------ modified
@triton.jit
def scaled_i(y, NEAR: tl.constexpr, FAR: tl.constexpr):
    """(e⁻ʸ I(y) on [0, 8], as the table has it, the same beyond)."""
    outer = tl.where(y < 8, 8.0, y)
    return chebyshev(tl.where(y < 8, y * 0.25 - 1.0, 0.0), NEAR), chebyshev(16.0 / outer - 1.0, FAR) / libdevice.sqrt(outer)


@triton.jit
def grown(value, y):
    """value · eʸ, which may be finite where eʸ is not."""
    half = libdevice.exp(0.5 * y)
    return value * half * half


@triton.jit
def scaled_i0(v):
    y = tl.abs(v)
    inner, outer = scaled_i(y, I0_NEAR, I0_FAR)
    return tl.where(y < 8, inner, outer)


@triton.jit
def scaled_i1(v):
    y = tl.abs(v)
    inner, outer = scaled_i(y, I1_NEAR, I1_FAR)
    value = tl.where(y < 8, y * inner, outer)
    return tl.where(v < 0, -value, value)


@triton.jit
def i0e(x):
    return scaled_i0(x.to(tl.float64)).to(x.dtype)


@triton.jit
def i1e(x):
    return scaled_i1(x.to(tl.float64)).to(x.dtype)


@triton.jit
def i0(x):
    v = x.to(tl.float64)
    return grown(scaled_i0(v), tl.abs(v)).to(x.dtype)


@triton.jit
def i1(x):
    v = x.to(tl.float64)
    return grown(scaled_i1(v), tl.abs(v)).to(x.dtype)


@triton.jit
def inner_k(y, NEAR: tl.constexpr):
    """(the table's function of y² on [0, 2], log(y/2)), for what lies there."""
    return chebyshev(tl.where(y < 2, y * y * 0.5 - 1.0, 0.0), NEAR), libdevice.log(0.5 * y)


@triton.jit
def outer_k(y, FAR: tl.constexpr):
    outer = tl.where(y < 2, 2.0, y)
    return chebyshev(4.0 / outer - 1.0, FAR) / libdevice.sqrt(outer)


@triton.jit
def small_k0(y):
    series, log_half = inner_k(y, K0_NEAR)
    return series - log_half * (scaled_i0(y) * libdevice.exp(y))


@triton.jit
def small_k1(y):
    series, log_half = inner_k(y, K1_NEAR)
    return tl.where(y == 0, float("inf"), series / y + log_half * (scaled_i1(y) * libdevice.exp(y)))


@triton.jit
def modified_bessel_k0(x):
    y = x.to(tl.float64)
    return tl.where(y < 2, small_k0(y), outer_k(y, K0_FAR) * libdevice.exp(-y)).to(x.dtype)


@triton.jit
def modified_bessel_k1(x):
    y = x.to(tl.float64)
    return tl.where(y < 2, small_k1(y), outer_k(y, K1_FAR) * libdevice.exp(-y)).to(x.dtype)


@triton.jit
def scaled_modified_bessel_k0(x):
    y = x.to(tl.float64)
    return tl.where(y < 2, small_k0(y) * libdevice.exp(y), outer_k(y, K0_FAR)).to(x.dtype)


@triton.jit
def scaled_modified_bessel_k1(x):
    y = x.to(tl.float64)
    return tl.where(y < 2, small_k1(y) * libdevice.exp(y), outer_k(y, K1_FAR)).to(x.dtype)


# ------------------------------------------------------------------ Airy
@triton.jit
def airy_ai(x):
    v = x.to(tl.float64)
    y = tl.abs(v)
    far = (v < -7) | (v > 2)
    size = tl.where(far, y, 7.0)
    root = libdevice.sqrt(size)
    zeta = 0.6666666666666666 * size * root
    quarter = libdevice.sqrt(root)
    u = tl.where(far, 12.346839451634104 / zeta, 1.0)                    # ζ(7)/ζ
    t = tl.where(v < 0, 2.0 * u * u - 1.0, 0.0)
    p, q = chebyshev(t, AIRY_P), chebyshev(t, AIRY_Q) / zeta
    sine, cosine = libdevice.sin(zeta), libdevice.cos(zeta)
    below = ((sine + cosine) * p + (sine - cosine) * q) * 0.3989422804014327 / quarter           # 1/√2π
    above = chebyshev(tl.where(v > 2, 3.771236166328254 / zeta - 1.0, 0.0), AIRY_FAR)            # 2 ζ(2)/ζ
    above = above * libdevice.exp(-zeta) * 0.28209479177387814 / quarter                         # 1/2√π
    middle = tl.where(far, 0.0, v)
    left = chebyshev(tl.where(middle < 0, middle / 3.5 + 1.0, 0.0), AIRY_BELOW)
    right = chebyshev(tl.where(middle < 0, 0.0, middle - 1.0), AIRY_ABOVE) * libdevice.exp(-1.25 * middle)
    value = tl.where(far, tl.where(v < 0, below, above), tl.where(v < 0, left, right))
    return tl.where(y < float("inf"), value, float("nan")).to(x.dtype)
