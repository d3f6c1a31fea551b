"""Fourier transforms of lengths that are products of 2, 3, 5 and 7, in passes of such factors (and of 4 and 8), after Stockham's as in
fft.py. A pass has its numbers in registers; between passes they change threads by way of a piece of memory that each program has for itself
and that stays in the second cache: layouts of registers, by which fft.py does it, are made of powers of 2 alone."""
import triton
import triton.language as tl

from .fft import load_numbers, moved, of_four, over_i, store_numbers, sum_and_difference
from .pairs import load_pair, store_pair
from .pointwise import offset
from .roots import root, times


@triton.jit
def scaled(x, factor: tl.constexpr):
    return x[0] * factor, x[1] * factor


@triton.jit
def plus(x, y):
    return x[0] + y[0], x[1] + y[1]


@triton.jit
def of_three(z):
    both, rest = sum_and_difference(z[1], z[2])
    middle = plus(z[0], scaled(both, -0.5))
    second, third = sum_and_difference(middle, over_i(scaled(rest, 0.8660254037844386)))
    return plus(z[0], both), second, third


@triton.jit
def of_five(z):
    a, b = sum_and_difference(z[1], z[4])
    c, d = sum_and_difference(z[2], z[3])
    first = plus(plus(z[0], scaled(a, 0.30901699437494745)), scaled(c, -0.8090169943749475))
    second = plus(plus(z[0], scaled(a, -0.8090169943749475)), scaled(c, 0.30901699437494745))
    one, four = sum_and_difference(first, over_i(plus(scaled(b, 0.9510565162951535), scaled(d, 0.5877852522924731))))
    two, three = sum_and_difference(second, over_i(plus(scaled(b, 0.5877852522924731), scaled(d, -0.9510565162951535))))
    return plus(plus(z[0], a), c), one, two, three, four


@triton.jit
def of_seven(z):
    a, b = sum_and_difference(z[1], z[6])
    c, d = sum_and_difference(z[2], z[5])
    e, f = sum_and_difference(z[3], z[4])
    c1: tl.constexpr = 0.6234898018587336
    c2: tl.constexpr = -0.22252093395631440
    c3: tl.constexpr = -0.9009688679024191
    s1: tl.constexpr = 0.7818314824680298
    s2: tl.constexpr = 0.9749279121818236
    s3: tl.constexpr = 0.4338837391175581
    first = plus(plus(z[0], scaled(a, c1)), plus(scaled(c, c2), scaled(e, c3)))
    second = plus(plus(z[0], scaled(a, c2)), plus(scaled(c, c3), scaled(e, c1)))
    third = plus(plus(z[0], scaled(a, c3)), plus(scaled(c, c1), scaled(e, c2)))
    one, six = sum_and_difference(first, over_i(plus(scaled(b, s1), plus(scaled(d, s2), scaled(f, s3)))))
    two, five = sum_and_difference(second, over_i(plus(scaled(b, s2), plus(scaled(d, -s3), scaled(f, -s1)))))
    three, four = sum_and_difference(third, over_i(plus(scaled(b, s3), plus(scaled(d, -s1), scaled(f, s2)))))
    return plus(plus(z[0], a), plus(c, e)), one, two, three, four, five, six


@triton.jit
def of_eight(z):
    a0, a1, a2, a3 = of_four(z[0], z[2], z[4], z[6])
    b0, b1, b2, b3 = of_four(z[1], z[3], z[5], z[7])
    half: tl.constexpr = 0.7071067811865476
    b1 = (b1[0] + b1[1]) * half, (b1[1] - b1[0]) * half
    b3 = (b3[1] - b3[0]) * half, (b3[0] + b3[1]) * (-half)
    x0, x4 = sum_and_difference(a0, b0)
    x1, x5 = sum_and_difference(a1, b1)
    x2, x6 = sum_and_difference(a2, over_i(b2))
    x3, x7 = sum_and_difference(a3, b3)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def of_few(z, R: tl.constexpr):
    """The transform of R numbers."""
    if R == 2:
        return sum_and_difference(z[0], z[1])
    elif R == 3:
        return of_three(z)
    elif R == 4:
        return of_four(z[0], z[1], z[2], z[3])
    elif R == 5:
        return of_five(z)
    elif R == 7:
        return of_seven(z)
    else:
        return of_eight(z)


@triton.jit
def power(w1, w2, w4, r: tl.constexpr):
    """w1 to the power r < 8, from those for 1, 2 and 4."""
    if r == 1:
        return w1
    elif r == 2:
        return w2
    elif r == 4:
        return w4
    elif r == 3:
        return times(w1, w2)
    elif r == 5:
        return times(w1, w4)
    elif r == 6:
        return times(w2, w4)
    else:
        return times(times(w1, w2), w4)


@triton.jit
def twiddled(z, j, L: tl.constexpr, R: tl.constexpr, FLOAT: tl.constexpr):
    """Number r of R times exp(-2πi r (j mod L) / (L R))."""
    p = j % L
    w1 = root(p, L * R, FLOAT)
    w2 = root(p * 2 % (L * R), L * R, FLOAT)
    w4 = root(p * 4 % (L * R), L * R, FLOAT) if R > 4 else w2
    made = (z[0],)
    for r in tl.static_range(1, R):
        made = made + (times(z[r], power(w1, w2, w4, r)),)
    return made


@triton.jit
def mixed_kernel(out_ptr, x_ptr, work_ptr, shape, out_outer, x_outer, tiles, inner, out_inner, x_inner, out_step, x_step, out_pair, x_pair,
                 have, want, scale, middle, LOAD: tl.constexpr, STORE: tl.constexpr, BACK: tl.constexpr, MIDDLE: tl.constexpr,
                 CONJ: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, OUTER: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
                 PASSES: tl.constexpr, COMPUTE: tl.constexpr):
    """As lines_kernel, of lines of N numbers. PASSES: of each its factor, the product of those before, and a block that holds all of its
    small transforms. Every program does some of the tiles of C lines, one after the other."""
    work_ptr = moved(work_ptr, tl.program_id(0).to(tl.int64) * (C * N), COMPUTE)
    across = tl.cdiv(inner, C)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        outer = tile // across
        x_here = moved(x_ptr, offset(outer, shape, x_outer, OUTER, 1), COMPUTE)
        out_here = moved(out_ptr, offset(outer, shape, out_outer, OUTER, 1), COMPUTE)
        begin = (tile % across) * C
        for k in tl.static_range(len(PASSES)):
            z, line, j = loaded(x_here, work_ptr, begin, inner, x_inner, x_step, x_pair, have, middle, LOAD, BACK, MIDDLE, CONJ, CUT, WIDE,
                                C, N, PASSES[k][0], PASSES[k][1], PASSES[k][2], COMPUTE)
            tl.debug_barrier()
            stored(out_here, work_ptr, z, line, j, begin, inner, out_inner, out_step, out_pair, want, scale, middle, STORE, BACK, MIDDLE,
                   CONJ, CUT, WIDE, C, N, PASSES[k][0], PASSES[k][1], COMPUTE)
            tl.debug_barrier()


@triton.jit
def loaded(x_ptr, work_ptr, begin, inner, x_inner, x_step, x_pair, have, middle, LOAD: tl.constexpr, BACK: tl.constexpr,
           MIDDLE: tl.constexpr, CONJ: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
           R: tl.constexpr, L: tl.constexpr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    """The R numbers of every small transform of a pass, and their line and place."""
    FLOAT: tl.constexpr = tl.float32 if COMPUTE == "c64" else tl.float64
    b = tl.arange(0, BLOCK)
    line, j = b // (N // R), b % (N // R)
    c = begin + line
    there = (line < C) & (c < inner)
    z = ()
    for r in tl.static_range(R):
        e = j + r * (N // R)
        if L > 1:
            z = z + (load_pair(work_ptr, line * N + e, there, COMPUTE),)
        elif CUT:
            i = (e.to(tl.int64) if WIDE else e) * inner + c
            z = z + (load_numbers(x_ptr, i, 0, x_step, x_pair, there, N * inner, have, middle, LOAD, BACK, MIDDLE, CONJ, COMPUTE),)
        else:
            side = (c.to(tl.int64) if WIDE else c) * x_inner
            e = e.to(tl.int64) if WIDE else e
            z = z + (load_numbers(x_ptr, e, side, x_step, x_pair, there, N, have, middle, LOAD, BACK, MIDDLE, CONJ, COMPUTE),)
    if L > 1:
        z = twiddled(z, j, L, R, FLOAT)
    return of_few(z, R), line, j


@triton.jit
def stored(out_ptr, work_ptr, z, line, j, begin, inner, out_inner, out_step, out_pair, want, scale, middle, STORE: tl.constexpr,
           BACK: tl.constexpr, MIDDLE: tl.constexpr, CONJ: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
           N: tl.constexpr, R: tl.constexpr, L: tl.constexpr, COMPUTE: tl.constexpr):
    """The results of a pass, sequences of L R in order, or of the last one where they are wanted."""
    c = begin + line
    there = (line < C) & (c < inner)
    for r in tl.static_range(R):
        k = j // L * (L * R) + j % L + r * L
        if L * R < N:
            store_pair(work_ptr, line * N + k, z[r][0], z[r][1], there)
        else:
            c = c.to(tl.int64) if WIDE else c
            k = k.to(tl.int64) if WIDE else k
            x = z[r]
            if CUT:
                x = times(x, root(tl.where(there, k * c, 0), inner * N, x[0].dtype))
            store_numbers(out_ptr, k, c * out_inner, out_step, out_pair, x[0], x[1], there, N, want, scale, middle, STORE, BACK, MIDDLE,
                          CONJ)
