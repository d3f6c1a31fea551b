"""What the optimizers do to an element, and to the numbers that depend on the step.

A rule takes the parameter p, its gradient g, up to three things remembered of it (x, y, z; those that an optimizer lacks are p), the
learning rate, coefficients of this step (c0, c1, c2), numbers, and a KIND; it returns p, x, y, z. A counter takes the step t and two
more numbers remembered of the tensor (u, v), and returns the coefficients, u and v; it computes in float64, one program a tensor.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .scalar import maximum


@triton.jit
def root(x):
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


# ------------------------------------------------------------------ rules
@triton.jit
def sgd(p, g, m, y, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    momentum, intake = numbers
    if KIND == "first":
        m = g
    elif KIND != "plain":
        m = momentum * m + intake * g
    if KIND == "nesterov":
        g += momentum * m
    elif KIND != "plain":
        g = m
    return p - lr * g, m, y, z


@triton.jit
def adam(p, g, m, v, top, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    beta2, rest1, rest2, eps = numbers
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    size = v
    if KIND == "amsgrad":
        top = maximum(v, top)
        size = top
    return p - lr / c0 * (m / (root(size) / c1 + eps)), m, v, top


@triton.jit
def adamax(p, g, m, u, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    beta2, rest1, rest2, eps = numbers
    m += rest1 * (g - m)
    u = maximum(tl.abs(g) + eps, beta2 * u)
    return p - lr / c0 * (m / u), m, u, z


@triton.jit
def nadam(p, g, m, v, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    beta2, rest1, rest2, eps = numbers
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    return p - lr * ((c0 * g + c1 * m) / (root(v) / c2 + eps)), m, v, z


@triton.jit
def radam(p, g, m, v, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    beta2, rest1, rest2, eps = numbers
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    move = lr / c0 * m
    if c1 > 0:
        move *= c1 / (root(v) + eps)
    return p - move, m, v, z


@triton.jit
def adagrad(p, g, s, y, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    s += g * g
    return p - lr / c0 * (g / (root(s) + numbers[0])), s, y, z


@triton.jit
def rmsprop(p, g, s, y, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    alpha, rest, eps, momentum = numbers
    s = alpha * s + rest * g * g
    square = s
    if KIND == "centered" or KIND == "centered momentum":
        y += rest * (g - y)
        square = s - y * y
    g = g / (root(square) + eps)
    if KIND == "momentum":
        y = momentum * y + g
        g = y
    elif KIND == "centered momentum":
        z = momentum * z + g
        g = z
    return p - lr * g, s, y, z


@triton.jit
def adadelta(p, g, s, u, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    rho, rest, eps = numbers
    s = rho * s + rest * g * g
    move = root(u + eps) / root(s + eps) * g
    u = rho * u + rest * move * move
    return p - lr * move, s, u, z


@triton.jit
def asgd(p, g, mean, y, z, lr, eta, mu, c2, numbers, KIND: tl.constexpr):
    p = p * (1 - numbers[0] * eta) - eta * g
    mean = tl.where(mu == 1, p, mean + mu * (p - mean))
    return p, mean, y, z


@triton.jit
def rprop(p, g, before, size, z, lr, c0, c1, c2, numbers, KIND: tl.constexpr):
    shrink, grow, least, most = numbers
    agree = g * before
    size *= tl.where(agree > 0, grow, tl.where(agree < 0, shrink, 1.0))
    size = tl.where(size < least, least, tl.where(size > most, most, size))
    g = tl.where(agree < 0, 0.0, g)
    return p - tl.where(g > 0, size, tl.where(g < 0, -size, g)), g, size, z        # where g is NaN, so is p


# ------------------------------------------------------------------ counters
@triton.jit
def plain_counter(t, u, v, lr, constants):
    return 0.0, 0.0, 0.0, u, v


@triton.jit
def adam_counter(t, u, v, lr, constants):
    """1 - beta1 ** t and the root of 1 - beta2 ** t, by expm1 without the cancellation; the constants begin with the betas' logarithms."""
    return -libdevice.expm1(t * constants[0]), tl.sqrt(-libdevice.expm1(t * constants[1])), 0.0, u, v


@triton.jit
def nadam_counter(t, product, v, lr, constants):
    log_beta1, log_beta2, decay = constants
    beta1 = tl.exp(log_beta1)
    mu, following = beta1 * (1 - 0.5 * tl.exp(decay * t)), beta1 * (1 - 0.5 * tl.exp(decay * (t + 1)))
    product *= mu
    return (1 - mu) / (1 - product), following / (1 - product * following), tl.sqrt(-libdevice.expm1(t * log_beta2)), product, v


@triton.jit
def radam_counter(t, u, v, lr, constants):
    """The first is Adam's; the second damps the step, or is 0 where v says nothing yet."""
    log_beta1, log_beta2, longest = constants
    correction2 = -libdevice.expm1(t * log_beta2)
    length = longest - 2 * t * (1 - correction2) / correction2
    damped = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return -libdevice.expm1(t * log_beta1), tl.where(length > 5, tl.sqrt(tl.abs(damped) * correction2), 0.0), 0.0, u, v


@triton.jit
def adagrad_counter(t, u, v, lr, constants):
    return 1 + (t - 1) * constants[0], 0.0, 0.0, u, v


@triton.jit
def asgd_counter(t, eta, mu, lr, constants):
    """This step takes the numbers that the one before left."""
    lambd, alpha, t0 = constants
    later = lr * libdevice.pow(1 + lambd * lr * t, -alpha)
    return eta, mu, 0.0, later, 1 / tl.where(t - t0 > 1, t - t0, 1.0)
