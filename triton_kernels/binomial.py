"""Binomial numbers, drawn until they are accepted."""
import triton
import triton.language as tl

from .random import log_factorial, long_word, open_unit, philox_words

NUMBERS = ["seed", "offset"]                                             # these differ from call to call: one compilation for all


@triton.jit
def tail(k):
    """log k! - (½ log 2π + (k + ½) log(k + 1) - (k + 1)), which is small."""
    step = k + 1.0
    inverse = 1.0 / (step * step)
    series = (0.08333333333333333 - (0.002777777777777778 - 0.0007936507936507937 * inverse) * inverse) / step
    few = tl.minimum(k, 10.0)
    exact = log_factorial(few) - (0.9189385332046727 + (few + 0.5) * tl.log(few + 1.0) - (few + 1.0))
    return tl.where(k < 10.0, exact, series)


@triton.jit
def by_inversion(u, n, p, wanted):
    """Where it is wanted, the smallest number whose cumulative probability reaches u."""
    ratio = p / (1.0 - p)
    none = tl.where(p < 1e-4, -p * (1.0 + p * (0.5 + p * (0.3333333333333333 + p * 0.25))), tl.log(1.0 - p))
    k, term = u * 0.0, tl.where(wanted, tl.exp(n * none), 2.0)
    total = term
    while tl.max((u > total).to(tl.int32), 0) > 0:
        more = u > total
        k = tl.where(more, k + 1.0, k)
        term = tl.where(more, term * ((n - k + 1.0) / k * ratio), term)
        total = tl.where(more & (term > 0.0), total + term, tl.where(more, 2.0, total))
    return k


@triton.jit
def by_rejection(k, pending, n, p, seed, offset, i, base_ptr):
    """Numbers of Hörmann's BTRS in the place of those that are pending; after a thousand attempts what then comes."""
    odds, spread = p / (1.0 - p), tl.sqrt(n * p * (1.0 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    m = tl.floor((n + 1.0) * p)
    top = (m + 0.5) * tl.log((m + 1.0) / (odds * (n - m + 1.0))) + tail(m) + tail(n - m)
    attempt = 0
    while tl.max(pending.to(tl.int32), 0) > 0:
        w0, w1, w2, w3 = philox_words(seed, offset, i, attempt, base_ptr)
        u = open_unit(long_word(w0, w1)) - 0.5
        v = open_unit(long_word(w2, w3))
        us = 0.5 - tl.abs(u)
        guess = tl.floor((2.0 * a / us + b) * u + n * p + 0.5)
        safe = tl.minimum(tl.maximum(guess, 0.0), n)
        left = n - safe
        bound = top + (n + 1.0) * tl.log((n - m + 1.0) / (left + 1.0)) + (safe + 0.5) * tl.log(odds * (left + 1.0) / (safe + 1.0))
        exact = tl.log(v * ((2.83 + 5.1 / b) * spread) / (a / (us * us) + b)) <= bound - tail(safe) - tail(left)
        quick = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
        good = ((guess >= 0.0) & (guess <= n) & (quick | exact)) | (attempt > 999)
        k = tl.where(pending & good, safe, k)
        pending = pending & (good == 0)
        attempt += 1
    return k


@triton.jit(do_not_specialize=NUMBERS)
def binomial_kernel(out_ptr, count_ptr, chance_ptr, N, seed: tl.int64, offset: tl.int64, base_ptr, BLOCK: tl.constexpr):
    """Binomial numbers: by inversion for means under 10, of the rarer side, else by rejection, every attempt with words of its own."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(count_ptr + i, mask=i < N, other=0.0).to(tl.float64)
    chance = tl.load(chance_ptr + i, mask=i < N, other=0.0).to(tl.float64)
    known = (count - count == 0.0) & (chance == chance)
    n = tl.where(known & (count > 0.0), tl.floor(count), 0.0)
    chance = tl.where(known, tl.minimum(tl.maximum(chance, 0.0), 1.0), 0.0)
    p = tl.where(chance > 0.5, 1.0 - chance, chance)
    small = n * p < 10.0
    w0, w1, w2, w3 = philox_words(seed, offset, i, 0, base_ptr)
    k = by_inversion(open_unit(long_word(w0, w1)), n, p, small)
    size, half = tl.where(small, 40.0, n), tl.where(small, 0.5, p)       # any numbers for which there is no trouble
    k = by_rejection(k, small == 0, size, half, seed, offset, i, base_ptr)
    k = tl.where(chance > 0.5, n - k, k)
    tl.store(out_ptr + i, tl.where(known, k, float("nan")).to(out_ptr.dtype.element_ty), mask=i < N)
