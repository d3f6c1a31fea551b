"""Binomial numbers: how many of some coins fall on one side."""
from __future__ import annotations

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.errors import check, explained
from tritorch.ops import view
from tritorch.ops.draws import place
from tritorch.ops.filling import filled
from tritorch.ops.poisson import log_factorial, two_units
from tritorch.shape import broadcast_shapes

K = kernels("binomial")


@op(aliasable=True)
def random_binomial(count, prob, seed, offset, base=None):
    """out[i] is how often it happens in count[i] trials what has the chance prob[i]. Gradients: zero, as in PyTorch.

    Element i uses counter offset + i; attempt j of the rejection uses j as the third counter word. Means under 10 (of the rarer side) by
    inversion, others by BTRS: Hörmann, "The generation of binomial random variates", 1993.
    """
    check(count.dtype.is_floating_point, "binomial", "a count of a floating dtype", count.dtype, error=ValueError)
    check(prob.dtype is count.dtype, "binomial", f"a prob of {count.dtype}", prob.dtype)
    check(count.shape == prob.shape, "binomial", "count and prob of one shape", count.shape, prob.shape)
    return count.shape, count.dtype, count.device


def tail(k):
    """log k! - (½ log 2π + (k + ½) log(k + 1) - (k + 1)), which is small."""
    step, few = k + 1, np.minimum(k, 10)
    inverse = 1 / (step * step)
    series = (0.08333333333333333 - (0.002777777777777778 - 0.0007936507936507937 * inverse) * inverse) / step
    return np.where(k < 10, log_factorial(few) - (0.9189385332046727 + (few + 0.5) * np.log(few + 1) - (few + 1)), series)


def by_inversion(u, n, p):
    """The smallest k whose cumulative probability reaches u."""
    none = np.where(p < 1e-4, -p * (1 + p * (0.5 + p * (0.3333333333333333 + p * 0.25))), np.log(1 - p))
    k, term, ratio = np.zeros_like(u), np.exp(n * none), p / (1 - p)
    total = term.copy()
    more = u > total
    while more.any():
        k[more] += 1
        term[more] *= (n[more] - k[more] + 1) / k[more] * ratio[more]
        total[more] = np.where(term[more] > 0, total[more] + term[more], 2.0)
        more = u > total
    return k


def by_rejection(u, v, n, p):
    """(candidates, accepted) of one attempt of BTRS."""
    odds, spread = p / (1 - p), np.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    u, m = u - 0.5, np.floor((n + 1) * p)
    us = 0.5 - np.abs(u)
    guess = np.floor((2 * a / us + b) * u + n * p + 0.5)
    k = np.clip(guess, 0, n)
    top = (m + 0.5) * np.log((m + 1) / (odds * (n - m + 1))) + tail(m) + tail(n - m)
    bound = top + (n + 1) * np.log((n - m + 1) / (n - k + 1)) + (k + 0.5) * np.log(odds * (n - k + 1) / (k + 1))
    exact = np.log(v * ((2.83 + 5.1 / b) * spread) / (a / (us * us) + b)) <= bound - tail(k) - tail(n - k)
    quick = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
    return k, (guess >= 0) & (guess <= n) & (quick | exact)


@random_binomial.impl("cpu")
def random_binomial_cpu(out, count, prob, seed, offset, base):
    n, p, size = count.astype(np.float64).reshape(-1), prob.astype(np.float64).reshape(-1), count.size
    known = np.isfinite(n) & ~np.isnan(p)
    n, p = np.where(known & (n > 0), np.floor(n), 0), np.where(known, np.clip(p, 0, 1), 0)
    rare, k = np.where(p > 0.5, 1 - p, p), np.zeros(size)
    small = n * rare < 10
    first, found = two_units(seed, offset, size, 0), np.flatnonzero(small)
    k[found] = by_inversion(first[0][found], n[found], rare[found])
    pending, attempt = np.flatnonzero(~small), 0
    while pending.size:
        u, v = two_units(seed, offset, size, attempt)
        guess, good = by_rejection(u[pending], v[pending], n[pending], rare[pending])
        good |= attempt > 999
        k[pending[good]] = guess[good]
        pending, attempt = pending[~good], attempt + 1
    out[...] = np.where(known, np.where(p > 0.5, n - k, k), np.nan).reshape(out.shape)


@random_binomial.impl("cuda", passes={"seed": int, "offset": int})
def random_binomial_cuda(out, count, prob, seed, offset, base):
    filled(out, K.binomial_kernel, count.contiguous(), prob.contiguous(), out.numel(), seed, offset, base, block=256)


@random_binomial.grad("count", "prob")
def random_binomial_grad(g):
    return g.new_zeros(g.shape), g.new_zeros(g.shape)


@explained
def binomial(count, prob, generator=None):
    """How often it happens in `count` trials what has the chance `prob`: floating tensors of one dtype whose shapes broadcast. Counts are
    rounded down, and 0 if below it; chances outside of [0, 1] are its ends; NaN, or infinite counts, give NaN.

    >>> import tritorch as torch
    >>> torch.binomial(torch.tensor([3.0, 5.0]), torch.tensor([0.0, 1.0]))
    tensor([0., 5.])
    """
    shape = broadcast_shapes("binomial", count.shape, prob.shape)
    count, prob = view.expand_to(count, shape), view.expand_to(prob, shape)
    return random_binomial(count, prob, *place(count.device, generator, 4 * count.numel()))


# ------------------------------------------------------------------ samples and workloads
@random_binomial.samples
def random_binomial_samples(make):
    yield make(3, 5, low=0, high=30, grad=False), make(3, 5, low=0, high=1, grad=False), 7, 0
    yield make(120, low=0, high=900, grad=False), make(120, low=0, high=1, grad=False), -1, 1 << 33
    yield make(low=0, high=9, grad=False), make(low=0, high=1, grad=False), 1, 1
    yield make(0, grad=False), make(0, grad=False), 1, 1


@random_binomial.errors
def random_binomial_errors(make):
    yield (make(3, integer=True, low=0, high=2), make(3), 0, 0), {}, ValueError, "a count of a floating dtype"
    yield (make(3), make(3).double(), 0, 0), {}, RuntimeError, "a prob of tritorch.float32"


@random_binomial.workloads
def random_binomial_workloads(make):
    yield "4M float32", lambda: (make(1 << 22, low=0, high=100), make(1 << 22, low=0, high=1), 7, 0), 12 << 22, 0
