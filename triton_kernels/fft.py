"""Discrete Fourier transforms. A program has whole lines in registers, a tile of lines × elements of real and one of imaginary parts.

A length that is a power of 2 goes by passes of 8 (at last 4, 2) points whose results lie in order in the end: T. Stockham, "High-speed
convolution and correlation", 1966. Between them numbers change threads by way of shared memory, 16 bytes an element and pass, which has
ten times the rate of the memory from which an element comes and to which it goes. Other lengths are a convolution with a chirp: L.
Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", 1970. Longer ones are cut in two, a · b, with a
twiddle between: W. Gentleman and G. Sande, "Fast Fourier transforms: for fun and profit", 1966. Roots of unity are computed, from angles
that are reduced as whole numbers: no table has to be made, kept or read. All transforms run forwards: for backward ones (BACK) real and
imaginary parts change places before and after.
"""
import triton
import triton.language as tl

from .pairs import load_pair, store_pair
from .pointwise import offset
from .roots import chirp, root, short_root, times


# ------------------------------------------------------------------ passes
# Points come first and lines last: so every thread has all points of what it works on, whatever the compiler makes of layouts.
@triton.jit
def two(x):
    """Both halves along the first dim, of size 2."""
    if len(x.shape) == 3:
        return tl.split(tl.permute(x, (1, 2, 0)))
    elif len(x.shape) == 4:
        return tl.split(tl.permute(x, (1, 2, 3, 0)))
    else:
        return tl.split(tl.permute(x, (1, 2, 3, 4, 0)))


@triton.jit
def four(x):
    low, high = two(x)
    a, b = two(low)
    c, d = two(high)
    return a, b, c, d


@triton.jit
def both(x, y):
    """Two blocks along a new first dim."""
    if len(x.shape) == 2:
        return tl.permute(tl.join(x, y), (2, 0, 1))
    elif len(x.shape) == 3:
        return tl.permute(tl.join(x, y), (3, 0, 1, 2))
    else:
        return tl.permute(tl.join(x, y), (4, 0, 1, 2, 3))


@triton.jit
def all_four(a, b, c, d):
    return both(both(a, b), both(c, d))


@triton.jit
def sum_and_difference(x, y):
    return (x[0] + y[0], x[1] + y[1]), (x[0] - y[0], x[1] - y[1])


@triton.jit
def over_i(x):
    """-i x."""
    return x[1], -x[0]


@triton.jit
def of_four(a, b, c, d):
    """The transform of four numbers."""
    a, c = sum_and_difference(a, c)
    b, d = sum_and_difference(b, d)
    d = over_i(d)
    first, third = sum_and_difference(a, b)
    second, fourth = sum_and_difference(c, d)
    return first, second, third, fourth


@triton.jit
def points(x, C: tl.constexpr, N: tl.constexpr, R: tl.constexpr):
    """The R parts of each line as the first dims, of size 2."""
    x = tl.permute(tl.reshape(x, (C, R, N // R)), (1, 0, 2))
    if R == 2:
        return x
    elif R == 4:
        return tl.reshape(x, (2, 2, C, N // R))
    else:
        return tl.reshape(x, (2, 2, 2, C, N // R))


@triton.jit
def woven(x, C: tl.constexpr, N: tl.constexpr, R: tl.constexpr, L: tl.constexpr):
    """Lines of the R results of a pass: sequences of L before become sequences of R L."""
    return tl.reshape(tl.permute(tl.reshape(x, (R, C, N // (R * L), L)), (1, 2, 0, 3)), (C, N))


@triton.jit
def pass_of_two(re, im, C: tl.constexpr, N: tl.constexpr, LOG: tl.constexpr):
    a, b = two(points(re, C, N, 2))
    p, q = two(points(im, C, N, 2))
    p = a, p
    j = tl.arange(0, N // 2)[None, :] & ((1 << LOG) - 1)
    first, second = sum_and_difference(p, times((b, q), short_root(j, LOG + 1, re.dtype)))
    return (woven(both(first[0], second[0]), C, N, 2, 1 << LOG), woven(both(first[1], second[1]), C, N, 2, 1 << LOG))


@triton.jit
def pass_of_four(re, im, C: tl.constexpr, N: tl.constexpr, LOG: tl.constexpr):
    a, b, c, d = four(points(re, C, N, 4))
    p, q, r, s = four(points(im, C, N, 4))
    first, second, third, fourth = (a, p), (b, q), (c, r), (d, s)
    if LOG > 0:
        j = tl.arange(0, N // 4)[None, :] & ((1 << LOG) - 1)
        w, v = short_root(j, LOG + 2, re.dtype), short_root(j, LOG + 1, re.dtype)
        second, third, fourth = times(second, w), times(third, v), times(fourth, times(w, v))
    first, second, third, fourth = of_four(first, second, third, fourth)
    return (woven(all_four(first[0], second[0], third[0], fourth[0]), C, N, 4, 1 << LOG),
            woven(all_four(first[1], second[1], third[1], fourth[1]), C, N, 4, 1 << LOG))


@triton.jit
def pass_of_eight(re, im, C: tl.constexpr, N: tl.constexpr, LOG: tl.constexpr):
    low, high = two(points(re, C, N, 8))
    x0, x1, x2, x3 = four(low)
    x4, x5, x6, x7 = four(high)
    low, high = two(points(im, C, N, 8))
    y0, y1, y2, y3 = four(low)
    y4, y5, y6, y7 = four(high)
    z0, z1, z2, z3, z4, z5, z6, z7 = (x0, y0), (x1, y1), (x2, y2), (x3, y3), (x4, y4), (x5, y5), (x6, y6), (x7, y7)
    if LOG > 0:
        j = tl.arange(0, N // 8)[None, :] & ((1 << LOG) - 1)
        w1, w2, w4 = short_root(j, LOG + 3, re.dtype), short_root(j, LOG + 2, re.dtype), short_root(j, LOG + 1, re.dtype)
        w3 = times(w1, w2)
        z1, z2, z3, z4 = times(z1, w1), times(z2, w2), times(z3, w3), times(z4, w4)
        z5, z6, z7 = times(z5, times(w1, w4)), times(z6, times(w2, w4)), times(z7, times(w3, w4))
    z0, z2, z4, z6 = of_four(z0, z2, z4, z6)                             # of the even and of the odd ones
    z1, z3, z5, z7 = of_four(z1, z3, z5, z7)
    half: tl.constexpr = 0.7071067811865476
    z3 = (z3[0] + z3[1]) * half, (z3[1] - z3[0]) * half
    z5 = over_i(z5)
    z7 = (z7[1] - z7[0]) * half, (z7[0] + z7[1]) * (-half)
    z0, z1 = sum_and_difference(z0, z1)
    z2, z3 = sum_and_difference(z2, z3)
    z4, z5 = sum_and_difference(z4, z5)
    z6, z7 = sum_and_difference(z6, z7)
    return (woven(both(all_four(z0[0], z2[0], z4[0], z6[0]), all_four(z1[0], z3[0], z5[0], z7[0])), C, N, 8, 1 << LOG),
            woven(both(all_four(z0[1], z2[1], z4[1], z6[1]), all_four(z1[1], z3[1], z5[1], z7[1])), C, N, 8, 1 << LOG))


@triton.jit
def passes(re, im, C: tl.constexpr, LOG: tl.constexpr):
    """The transform of each of C lines of 2^LOG numbers."""
    for k in tl.static_range((LOG + 2) // 3):
        if LOG - 3 * k >= 3:
            re, im = pass_of_eight(re, im, C, 1 << LOG, 3 * k)
        elif LOG - 3 * k == 2:
            re, im = pass_of_four(re, im, C, 1 << LOG, 3 * k)
        else:
            re, im = pass_of_two(re, im, C, 1 << LOG, 3 * k)
    return re, im


# ------------------------------------------------------------------ from memory and to it
@triton.jit
def moved(ptr, start, COMPUTE: tl.constexpr):
    """A pointer moved by so many numbers, real or complex."""
    if ptr.dtype.element_ty == tl.uint64 and COMPUTE == "c128":
        return ptr + start * 2
    else:
        return ptr + start


@triton.jit
def weighted(x, ends, middle, MIDDLE: tl.constexpr):
    """Numbers of half a spectrum: those that stand for two as well are multiplied."""
    if MIDDLE:
        factor = tl.where(ends, 1, middle).to(x[0].dtype)
        return x[0] * factor, x[1] * factor
    else:
        return x


@triton.jit
def of_half(x_ptr, k, side, step, mask, n, have, middle, MIDDLE: tl.constexpr, CONJ: tl.constexpr, COMPUTE: tl.constexpr):
    """Number k of half the spectrum of n real numbers; what is at its ends is real, and 0 what lies behind."""
    re, im = load_pair(x_ptr, side + k * step, mask & (k < have), COMPUTE)
    ends = (k == 0) | (2 * k == n)
    re, im = tl.where(k < have, re, 0), tl.where(ends | (k >= have), 0, im)
    return weighted((re, -im if CONJ else im), ends, middle, MIDDLE)


@triton.jit
def load_numbers(x_ptr, i, side, step, pair, mask, n, have, middle, LOAD: tl.constexpr, BACK: tl.constexpr, MIDDLE: tl.constexpr,
                 CONJ: tl.constexpr, COMPUTE: tl.constexpr):
    """Number i of n that a transform begins with, at `side`. LOAD: "all" as they are; "pairs" of real numbers; from "half" the
    spectrum of real numbers that of their pairs; from half of it the "whole"."""
    place = side + i * step
    if LOAD == "all":
        re, im = load_pair(x_ptr, place, mask & (i < have), COMPUTE)
        re, im = tl.where(i < have, re, 0), tl.where(i < have, im, 0)
    elif LOAD == "pairs":
        re = tl.load(x_ptr + place, mask=mask & (2 * i < have), other=0)
        im = tl.load(x_ptr + place + pair, mask=mask & (2 * i + 1 < have), other=0)
    elif LOAD == "half":
        x = of_half(x_ptr, i, side, step, mask, 2 * n, have, middle, MIDDLE, CONJ, COMPUTE)
        y = of_half(x_ptr, n - i, side, step, mask & (i <= n), 2 * n, have, middle, MIDDLE, CONJ, COMPUTE)
        total, rest = sum_and_difference(x, (y[0], -y[1]))
        w = root(tl.where(i < n, i, 0), tl.zeros((), i.dtype) + 2 * n, x[0].dtype)
        turned = times(rest, (w[0], -w[1]))
        re, im = total[0] - turned[1], total[1] + turned[0]
    else:
        mirrored = 2 * i > n
        re, im = of_half(x_ptr, tl.where(mirrored, n - i, i), side, step, mask, n, have, middle, MIDDLE, CONJ, COMPUTE)
        im = tl.where(mirrored, -im, im)
    if BACK:
        return im, re
    else:
        return re, im


@triton.jit
def store_numbers(out_ptr, k, side, step, pair, re, im, mask, n, want, scale, middle, STORE: tl.constexpr, BACK: tl.constexpr,
                  MIDDLE: tl.constexpr, CONJ: tl.constexpr):
    """Result k of n, at `side`. STORE: "all" as they are; their "real" parts; as "pairs" of real numbers; "half" of them."""
    place = side + k * step
    x = re * scale, im * scale
    if BACK:
        x = x[1], x[0]
    if STORE == "real":
        tl.store(out_ptr + place, x[0], mask=mask & (k < want))
    elif STORE == "pairs":
        tl.store(out_ptr + place, x[0], mask=mask & (2 * k < want))
        tl.store(out_ptr + place + pair, x[1], mask=mask & (2 * k + 1 < want))
    else:
        if STORE == "half":
            x = weighted(x, (k == 0) | (2 * k == n), middle, MIDDLE)
            if CONJ:
                x = x[0], -x[1]
        store_pair(out_ptr, place, x[0], x[1], mask & (k < want))


@triton.jit
def store_halved(out_ptr, k, side, step, x, y, mask, n, want, scale, middle, MIDDLE: tl.constexpr, CONJ: tl.constexpr):
    """Numbers k and, where k = 0, n of the spectrum of 2n real numbers, from x, number k of the spectrum of their pairs, and y, n - k."""
    place = side + k * step
    total, rest = sum_and_difference(x, (y[0], -y[1]))
    turned = times(over_i(rest), root(tl.where(k < n, k, 0), tl.zeros((), k.dtype) + 2 * n, x[0].dtype))
    half = scale * 0.5
    z = weighted(((total[0] + turned[0]) * half, (total[1] + turned[1]) * half), k == 0, middle, MIDDLE)
    store_pair(out_ptr, place, z[0], -z[1] if CONJ else z[1], mask & (k < want))
    last = (x[0] - x[1]) * scale
    store_pair(out_ptr, place + n * step, last, tl.zeros_like(last), mask & (k == 0) & (n < want))


# ------------------------------------------------------------------ kernels
@triton.jit
def lines_kernel(out_ptr, x_ptr, spectrum_ptr, shape, out_outer, x_outer, inner, out_inner, x_inner, out_step, x_step, out_pair, x_pair, n,
                 have, want, scale, middle, LOAD: tl.constexpr, STORE: tl.constexpr, BACK: tl.constexpr, MIDDLE: tl.constexpr,
                 CONJ: tl.constexpr, CUT: tl.constexpr, CHIRP: tl.constexpr, WIDE: tl.constexpr, OUTER: tl.constexpr, C: tl.constexpr,
                 LOG: tl.constexpr, COMPUTE: tl.constexpr):
    """Transforms of lines of n numbers, C that lie side by side along the inner dim at a time. CUT: each of n · inner numbers is cut into
    `inner` lines, one of every `inner`-th number, and what comes out gets its twiddles. WIDE: places and angles need 64 bits."""
    tiles = tl.cdiv(inner, C)
    outer = tl.program_id(0) // tiles
    c = (tl.program_id(0) % tiles) * C + tl.arange(0, C)[:, None]
    e = tl.arange(0, 1 << LOG)[None, :]
    if WIDE:
        c, e = c.to(tl.int64), e.to(tl.int64)
    mask = (c < inner) & (e < n)
    x_ptr = moved(x_ptr, offset(outer, shape, x_outer, OUTER, 1), COMPUTE)
    out_ptr = moved(out_ptr, offset(outer, shape, out_outer, OUTER, 1), COMPUTE)
    if CUT:
        i, whole = e * inner + c, n * inner
        re, im = load_numbers(x_ptr, i, 0, x_step, x_pair, mask, whole, have, middle, LOAD, BACK, MIDDLE, CONJ, COMPUTE)
    else:
        re, im = load_numbers(x_ptr, e, c * x_inner, x_step, x_pair, mask, n, have, middle, LOAD, BACK, MIDDLE, CONJ, COMPUTE)
    re, im = tl.where(mask, re, 0), tl.where(mask, im, 0)
    if CHIRP:
        w = chirp(tl.where(e < n, e, 0), n, re.dtype)
        re, im = times((re, im), w)
        re, im = passes(re, im, C, LOG)
        re, im = times((re, im), load_pair(spectrum_ptr, e, e < 1 << LOG, COMPUTE))
        im, re = passes(im, re, C, LOG)
        re, im = times((re, im), w)
    else:
        re, im = passes(re, im, C, LOG)
    if CUT:
        re, im = times((re, im), root(tl.where(mask, e * c, 0), n * inner, re.dtype))
    side = c * out_inner
    if STORE == "halved":                                                # numbers meet their mirror images in the destination: in registers
        store_pair(out_ptr, side + e * out_step, re, im, mask)           # a gather of Triton's has a line in one warp, and spills
        tl.debug_barrier()
        y = load_pair(out_ptr, side + tl.where(e == 0, 0, n - e) * out_step, mask, COMPUTE)
        tl.debug_barrier()
        store_halved(out_ptr, e, side, out_step, (re, im), y, mask, n, want, scale, middle, MIDDLE, CONJ)
    else:
        store_numbers(out_ptr, e, side, out_step, out_pair, re, im, mask, n, want, scale, middle, STORE, BACK, MIDDLE, CONJ)


@triton.jit
def spectrum_kernel(out_ptr, n, LOG: tl.constexpr, COMPUTE: tl.constexpr):
    """The transform of the chirp with which lines of n numbers are convolved, over 2^LOG."""
    FLOAT: tl.constexpr = tl.float32 if COMPUTE == "c64" else tl.float64
    e = tl.arange(0, 1 << LOG)[None, :]
    re, im = wrapped_chirp(e, n, 1 << LOG, FLOAT)
    re, im = passes(re, im, 1, LOG)
    store_pair(out_ptr, e, re * (1 / (1 << LOG)), im * (1 / (1 << LOG)), e < 1 << LOG)


@triton.jit
def wrapped_chirp(e, n, N, FLOAT: tl.constexpr):
    """exp(iπ j² / n) for |j| < n, negative j from the end of N numbers, and 0 between."""
    j = tl.minimum(e, N - e)
    re, im = chirp(tl.where(j < n, j, 0), n, FLOAT)
    return tl.where(j < n, re, 0), tl.where(j < n, -im, 0)


# ------------------------------------------------------------------ steps of long transforms
@triton.jit
def into_chirp_kernel(out_ptr, x_ptr, shape, x_outer, lines, x_step, x_pair, n, N, have, middle, LOAD: tl.constexpr, BACK: tl.constexpr,
                      MIDDLE: tl.constexpr, CONJ: tl.constexpr, OUTER: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """Lines of n numbers times the chirp, as lines of N, and behind the last one the chirp with which they are convolved."""
    FLOAT: tl.constexpr = tl.float32 if COMPUTE == "c64" else tl.float64
    blocks = tl.cdiv(N, BLOCK)
    line = tl.program_id(0) // blocks
    e = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    out_ptr = moved(out_ptr, line.to(tl.int64) * N, COMPUTE)
    if line == lines:
        re, im = wrapped_chirp(e, n, N, FLOAT)
        store_pair(out_ptr, e, re, im, e < N)
    else:
        mask = e < n
        x_ptr = moved(x_ptr, offset(line, shape, x_outer, OUTER, 1), COMPUTE)
        x = load_numbers(x_ptr, e, 0, x_step, x_pair, mask, n, have, middle, LOAD, BACK, MIDDLE, CONJ, COMPUTE)
        x = times((tl.where(mask, x[0], 0), tl.where(mask, x[1], 0)), chirp(tl.where(mask, e, 0), n, FLOAT))
        store_pair(out_ptr, e, x[0], x[1], e < N)


@triton.jit
def finish_kernel(out_ptr, x_ptr, shape, out_outer, out_step, out_pair, n, N, want, scale, middle, STORE: tl.constexpr, BACK: tl.constexpr,
                  MIDDLE: tl.constexpr, CONJ: tl.constexpr, CHIRP: tl.constexpr, OUTER: tl.constexpr, BLOCK: tl.constexpr,
                  COMPUTE: tl.constexpr):
    """What is wanted of lines of n numbers that begin every N numbers in x, with CHIRP times the chirp."""
    blocks = tl.cdiv(n, BLOCK)
    line = tl.program_id(0) // blocks
    k = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = k < n
    x_ptr = moved(x_ptr, line.to(tl.int64) * N, COMPUTE)
    out_ptr = moved(out_ptr, offset(line, shape, out_outer, OUTER, 1), COMPUTE)
    x = load_pair(x_ptr, k, mask, COMPUTE)
    if STORE == "halved":
        y = load_pair(x_ptr, tl.where(k == 0, 0, n - k), mask, COMPUTE)
        store_halved(out_ptr, k, 0, out_step, x, y, mask, n, want, scale, middle, MIDDLE, CONJ)
    else:
        if CHIRP:
            x = times(x, chirp(tl.where(mask, k, 0), n, x[0].dtype))
        elif BACK:
            x = x[1], x[0]
        store_numbers(out_ptr, k, 0, out_step, out_pair, x[0], x[1], mask, n, want, scale, middle, STORE, BACK, MIDDLE, CONJ)
