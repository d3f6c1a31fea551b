"""The optimizers' arithmetic on the host: what a step does to arrays, in place, and the numbers that depend on the step.

A rule is `fn(p, g, remembered, spare, lr, coefficients, numbers, kind)`; it may overwrite `spare`, an array such as p. A counter is
`fn(t, u, v, lr, constants) -> (c0, c1, c2), u, v`: the coefficients of step t, and two more numbers that are remembered of a tensor.
triton_kernels/optimizers.py has the same under the same names.
"""
import math

import numpy as np


# ------------------------------------------------------------------ rules
def sgd(p, g, remembered, spare, lr, coefficients, numbers, kind):
    momentum, intake = numbers
    if kind != "plain":
        (m,) = remembered
        if kind == "first":
            m[...] = g
        else:
            m *= momentum
            m += np.multiply(g, intake, out=spare)
        g = np.add(g, np.multiply(m, momentum, out=spare), out=spare) if kind == "nesterov" else m
    p -= np.multiply(g, lr, out=spare)


def _moments(m, v, g, spare, numbers):
    beta2, rest1, rest2, _ = numbers
    np.subtract(g, m, out=spare)
    spare *= rest1
    m += spare
    np.multiply(g, g, out=spare)
    spare *= rest2
    v *= beta2
    v += spare


def adam(p, g, remembered, spare, lr, coefficients, numbers, kind):
    m, v, *top = remembered
    _moments(m, v, g, spare, numbers)
    if kind == "amsgrad":
        v = np.maximum(top[0], v, out=top[0])
    np.sqrt(v, out=spare)
    spare /= coefficients[1]
    spare += numbers[3]
    np.divide(m, spare, out=spare)
    spare *= lr / coefficients[0]
    p -= spare


def adamax(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (m, u), (beta2, rest1, _, eps) = remembered, numbers
    m += rest1 * (g - m)
    u *= beta2
    np.maximum(u, np.abs(g) + eps, out=u)
    p -= lr / coefficients[0] * (m / u)


def nadam(p, g, remembered, spare, lr, coefficients, numbers, kind):
    m, v = remembered
    _moments(m, v, g, spare, numbers)
    p -= lr * ((coefficients[0] * g + coefficients[1] * m) / (np.sqrt(v) / coefficients[2] + numbers[3]))


def radam(p, g, remembered, spare, lr, coefficients, numbers, kind):
    m, v = remembered
    _moments(m, v, g, spare, numbers)
    np.multiply(m, lr / coefficients[0], out=spare)
    if coefficients[1] > 0:
        spare *= coefficients[1] / (np.sqrt(v) + numbers[3])
    p -= spare


def adagrad(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (s,) = remembered
    s += np.multiply(g, g, out=spare)
    np.sqrt(s, out=spare)
    spare += numbers[0]
    p -= lr / coefficients[0] * (g / spare)


def rmsprop(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (s, *more), (alpha, rest, eps, momentum) = remembered, numbers
    s *= alpha
    s += rest * np.multiply(g, g, out=spare)
    square = s
    if kind.startswith("centered"):
        mean = more.pop(0)
        mean += rest * (g - mean)
        square = s - mean * mean
    np.sqrt(square, out=spare)
    spare += eps
    g = np.divide(g, spare, out=spare)
    if more:
        (m,) = more
        m *= momentum
        m += g
        g = m
    p -= lr * g


def adadelta(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (s, u), (rho, rest, eps) = remembered, numbers
    s *= rho
    s += rest * np.multiply(g, g, out=spare)
    move = np.sqrt(u + eps) / np.sqrt(s + eps) * g
    u *= rho
    u += rest * (move * move)
    p -= lr * move


def asgd(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (mean,), (eta, mu, _) = remembered, coefficients
    p *= 1 - numbers[0] * eta
    p -= eta * g
    if mu == 1:
        mean[...] = p
    else:
        mean += mu * (p - mean)


def rprop(p, g, remembered, spare, lr, coefficients, numbers, kind):
    (before, size), (shrink, grow, least, most) = remembered, numbers
    np.multiply(g, before, out=spare)
    size[spare > 0] *= grow
    size[spare < 0] *= shrink
    np.clip(size, least, most, out=size)
    before[...] = g
    before[spare < 0] = 0
    p -= np.sign(before) * size


# ------------------------------------------------------------------ counters
def plain_counter(t, u, v, lr, constants):
    return (0.0, 0.0, 0.0), u, v


def adam_counter(t, u, v, lr, constants):
    return (-math.expm1(t * constants[0]), math.sqrt(-math.expm1(t * constants[1])), 0.0), u, v


def nadam_counter(t, product, v, lr, constants):
    log_beta1, log_beta2, decay = constants
    mu, following = [math.exp(log_beta1) * (1 - 0.5 * math.exp(decay * k)) for k in (t, t + 1)]
    product *= mu
    return ((1 - mu) / (1 - product), following / (1 - product * following), math.sqrt(-math.expm1(t * log_beta2))), product, v


def radam_counter(t, u, v, lr, constants):
    log_beta1, log_beta2, longest = constants
    correction2 = -math.expm1(t * log_beta2)
    length = longest - 2 * t * (1 - correction2) / correction2           # of the average that v is, in steps
    damped = 0.0
    if length > 5:
        damped = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length) * correction2)
    return (-math.expm1(t * log_beta1), damped, 0.0), u, v


def adagrad_counter(t, u, v, lr, constants):
    return (1 + (t - 1) * constants[0], 0.0, 0.0), u, v


def asgd_counter(t, eta, mu, lr, constants):
    lambd, alpha, t0 = constants
    return (eta, mu, 0.0), lr / (1 + lambd * lr * t) ** alpha, 1 / max(1.0, t - t0)
