"""Gamma and Dirichlet numbers and their derivatives by the parameters, all in float64. tritorch/ops/gamma.py says how they are made."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .random import NUMBERS, long_word, open_unit, philox_words


@triton.jit
def attempt_words(seed, offset, i, lane, base_ptr):
    """A standard normal of 48 bits for the radius and for the angle, and the logarithm of a uniform of 32."""
    w0, w1, w2, w3 = philox_words(seed, offset, i, lane, base_ptr)
    u = (((w0.to(tl.int64) << 16) | (w2 >> 16).to(tl.int64)).to(tl.float64) + 0.5) * 3.552713678800501e-15
    turn = (((w1.to(tl.int64) << 16) | (w2 & 0xFFFF).to(tl.int64)).to(tl.float64) + 0.5) * 3.552713678800501e-15
    z = tl.sqrt(-2.0 * tl.log(u)) * libdevice.cospi(2.0 * turn)
    return z, tl.log((w3.to(tl.int64).to(tl.float64) + 0.5) * 2.3283064365386963e-10)


@triton.jit(do_not_specialize=NUMBERS)
def gamma_kernel(out_ptr, alpha_ptr, N, least, seed: tl.int64, offset: tl.int64, base_ptr, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """Gamma numbers of shape alpha[i], at least `least`, or their logarithms: Marsaglia and Tsang's rejection, every attempt with words of
    its own."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    alpha = tl.load(alpha_ptr + i, mask=i < N, other=1.0).to(tl.float64)
    pending = (alpha > 0) & (alpha < float("inf"))
    w0, w1, w2, w3 = philox_words(seed, offset, i, 0, base_ptr)
    boost = tl.where(alpha < 1, tl.log(open_unit(long_word(w0, w1))) / alpha, 0.0)
    d = tl.where(pending, tl.where(alpha < 1, alpha + 1.0, alpha), 1.0) - 0.3333333333333333
    c = 1.0 / tl.sqrt(9.0 * d)
    cubed = tl.full((BLOCK,), 1.0, tl.float64)
    lane = 1
    while tl.max(pending.to(tl.int32), 0) > 0:
        z, log_u = attempt_words(seed, offset, i, lane, base_ptr)
        t = c * z
        inside = t > -1.0
        log_cube = 3.0 * libdevice.log1p(tl.where(inside, t, 0.0))
        good = inside & (log_u < 0.5 * z * z + d * (log_cube - t * (3.0 + t * (3.0 + t))))
        cubed = tl.where(pending & good, 1.0 + t, cubed)
        pending = pending & (good == 0)
        lane += 1
    if LOG:
        value = tl.log(d) + 3.0 * tl.log(cubed) + boost
        value = tl.where(alpha == 0, -float("inf"), value)
        value = tl.where(alpha == float("inf"), alpha, value)
    else:
        value = d * cubed * cubed * cubed * tl.exp(boost)
        value = tl.where(alpha == 0, 0.0, tl.where(alpha == float("inf"), alpha, value))
    value = tl.where(alpha >= 0, tl.maximum(value, least.to(tl.float64)), float("nan"))
    tl.store(out_ptr + i, value.to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit
def psi(x):
    """digamma of positive float64: recurrence up to 10, the asymptotic series beyond. With the tangent of its reflection it would spill."""
    shift = tl.zeros_like(x)
    for _ in range(10):
        small = x < 10
        shift = tl.where(small, shift - 1 / x, shift)
        x = tl.where(small, x + 1, x)
    z = 1 / (x * x)
    series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))))
    return shift + libdevice.log(x) - 0.5 / x - series


@triton.jit
def first_node():
    """(eᵗ, e⁻ᵗ) where the trapezoidal rule begins, t = -3.5: its places on [0, ∞) are s = exp(t - e⁻ᵗ). 60 steps of 1/8 give all digits of
    float64, FEW = 37 of 1/5 those of float32."""
    return tl.full((1,), 0.030197383422318501, tl.float64), tl.full((1,), 33.115451958692312, tl.float64)


@triton.jit
def next_node(up, down, FEW: tl.constexpr):
    """(place, weight, eᵗ, e⁻ᵗ of the next step)."""
    s = up * tl.exp(-down)
    if FEW:
        return s, s * (1.0 + down) * 0.2, up * 1.2214027581601699, down * 0.8187307530779818
    else:
        return s, s * (1.0 + down) * 0.125, up * 1.1331484530668263, down * 0.8824969025845955


@triton.jit
def standard_gamma_grad(alpha, x):
    """The derivative of a gamma number x by its shape alpha."""
    a, v = alpha.to(tl.float64), x.to(tl.float64)
    log_v = libdevice.log(v)
    above = log_v - psi(tl.where(a < 1, a + 1.0, a))
    step = (a < 1) & (above < 0)
    shape = tl.where(step, a + 1.0, a)
    apart = tl.where((a < 1) & (step == 0), above + 1.0 / a, above)
    low = apart < 0
    more = tl.maximum(shape - 1.0, 0.0)
    slope = tl.maximum(tl.where(low, shape - v, 1.0 - more / v), 0.0)
    bend = tl.where(low, v, more / (v * v))
    scale = 2.0 / (slope + tl.sqrt(slope * slope + 2.0 * bend))
    apart = tl.abs(apart)
    total = tl.zeros_like(v)
    up, down = first_node()
    FEW: tl.constexpr = x.dtype != tl.float64
    for _ in range(37 if FEW else 60):
        place, weight, up, down = next_node(up, down, FEW)
        s = scale * place
        p = libdevice.log1p(s / v)
        power = tl.where(low, -shape * s - v * libdevice.expm1(-s), (shape - 1.0) * p - s)
        total += weight * (apart + tl.where(low, s, p)) * tl.exp(power)
    value = scale * total * tl.where(low, v, 1.0)
    value = tl.where(step, v / a * (value - above), value)
    return tl.where((v == 0) & (a > 0), 0.0, tl.where(a < 0, float("nan"), value)).to(x.dtype)


@triton.jit
def dirichlet_grad(x, alpha, total):
    """The derivative of a beta number x by alpha, over 1 - x: of parameters alpha and total - alpha."""
    v, a, sum = x.to(tl.float64), alpha.to(tl.float64), total.to(tl.float64)
    b, rest, log_v = sum - a, 1.0 - v, libdevice.log(v)
    above = psi(a + 1.0) - psi(sum)
    step = (a < 1) & (log_v < above)
    shape = tl.where(step, a + 1.0, a)
    apart = log_v - above + tl.where(step, 1.0 / sum, 1.0 / a)
    low = apart < 0
    odds = tl.where(low, v / rest, rest / v)
    rate, power = tl.where(low, shape, b), tl.where(low, b, shape) - 1.0
    more = tl.maximum(power, 0.0)
    slope = tl.maximum(rate - more * odds, 0.0)
    scale = 2.0 / (slope + tl.sqrt(slope * slope + 2.0 * more * odds * (1.0 + odds)))
    scale = tl.where(scale < 1, scale, tl.maximum(scale, 1.0 / rate))
    apart = tl.abs(apart)
    whole = tl.zeros_like(v)
    up, down = first_node()
    FEW: tl.constexpr = x.dtype != tl.float64
    for _ in range(37 if FEW else 60):
        place, weight, up, down = next_node(up, down, FEW)
        s = scale * place
        p = libdevice.log1p(-odds * libdevice.expm1(-s))
        whole += weight * (apart + tl.where(low, s, p)) * tl.exp(power * p - rate * s)
    value = scale * whole * tl.where(low, odds, 1.0)
    value = tl.where(step, v * (sum * value + above - log_v) / a, value)
    return tl.where((v == 0) | (b <= 0), 0.0, value).to(x.dtype)
