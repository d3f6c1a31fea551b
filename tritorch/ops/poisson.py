"""Poisson numbers: the one random operator that draws until it accepts."""
from __future__ import annotations

import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops.filling import filled
from tritorch.ops.normals import open_unit
from tritorch.philox import words

K = kernels("random")


@op(aliasable=True)
def random_poisson(rate, seed, offset, base=None):
    """out[i] is a Poisson number of mean rate[i]. Gradient: zero, as in PyTorch.

    Element i uses counter offset + i; attempt j of the rejection uses j as the third counter word. Rates under 10 by inversion,
    others by PTRS: Hörmann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    check(rate.dtype.is_floating_point, "poisson", "a floating dtype", rate.dtype)
    return rate.shape, rate.dtype, rate.device


def two_units(seed, offset, n, attempt):
    """Two float64 in (0, 1) for each of n elements."""
    four = words(seed, offset, 4 * n, attempt).reshape(n, 4).astype(np.uint64)
    return open_unit(four[:, 0] << np.uint64(32) | four[:, 1]), open_unit(four[:, 2] << np.uint64(32) | four[:, 3])


def by_inversion(u, rate):
    """The smallest k whose cumulative probability reaches u."""
    k, term = np.zeros_like(u), np.exp(-rate)
    total = term.copy()
    more = u > total
    while more.any():
        k[more] += 1
        term[more] *= rate[more] / k[more]
        total[more] = np.where(term[more] > 0, total[more] + term[more], 2.0)
        more = u > total
    return k


def log_factorial(k):
    """Stirling's series at k + 8, stepped down."""
    z = k + 8
    series = (z - 0.5) * np.log(z) - z + 0.9189385332046727 + 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5)
    return series - np.log((k + 1) * (k + 2) * (k + 3) * (k + 4) * (k + 5) * (k + 6) * (k + 7))


def by_rejection(u, v, mu):
    """(candidates, accepted) of one attempt of PTRS."""
    b = 0.931 + 2.53 * np.sqrt(mu)
    a, u = -0.059 + 0.02483 * b, u - 0.5
    us = 0.5 - np.abs(u)
    guess = np.floor((2 * a / us + b) * u + mu + 0.43)
    safe = np.maximum(guess, 0)
    exact = np.log(v) + np.log(1.1239 + 1.1328 / (b - 3.4)) - np.log(a / (us * us) + b) <= safe * np.log(mu) - mu - log_factorial(safe)
    quick = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    return guess, quick | (guess >= 0) & ((us >= 0.013) | (v <= us)) & exact


@random_poisson.impl("cpu")
def random_poisson_cpu(out, rate, seed, offset, base):
    flat = rate.astype(np.float64).reshape(-1)
    check(bool((flat >= 0).all()), "poisson", "rates ≥ 0", "others")
    k, n = np.where(np.isfinite(flat), 0.0, flat), flat.size
    small = np.flatnonzero(flat < 10)
    if small.size:
        k[small] = by_inversion(two_units(seed, offset, n, 0)[0][small], flat[small])
    pending, attempt = np.flatnonzero((flat >= 10) & np.isfinite(flat)), 0
    while pending.size:
        u, v = two_units(seed, offset, n, attempt)
        guess, good = by_rejection(u[pending], v[pending], flat[pending])
        k[pending[good]] = guess[good]
        pending, attempt = pending[~good], attempt + 1
    out[...] = k.reshape(out.shape)


@random_poisson.impl("cuda", passes={"seed": int, "offset": int})
def random_poisson_cuda(out, rate, seed, offset, base):
    filled(out, K.poisson_kernel, rate.contiguous(), out.numel(), seed, offset, base, block=256)      # float64 spills at 1024


@random_poisson.grad("rate")
def random_poisson_grad(g):
    return g.new_zeros(g.shape)


@random_poisson.samples
def random_poisson_samples(make):
    yield make(3, 5, low=0, high=9, grad=False), 7, 0
    yield make(120, low=0, high=300, grad=False), -1, 1 << 33
    yield make(low=0, high=9, grad=False), 1, 1
    yield make(0, grad=False), 1, 1


@random_poisson.errors
def random_poisson_errors(make):
    yield (make(3, integer=True, low=0, high=2), 0, 0), {}, RuntimeError, "floating dtype"


@random_poisson.workloads
def random_poisson_workloads(make):
    yield "4M float32", lambda: (make(1 << 22, low=0, high=100), 7, 0), 8 << 22, 0
