"""Random numbers: Philox4x32-10 by counter, so that element i of a call depends on (seed, offset, i) alone.

The words are those of tritorch/philox.py, bit for bit. `base_ptr`, where given, holds (seed, offset) in device memory: a captured
graph draws fresh numbers at each replay because the host moves these two numbers on, not the arguments frozen into the graph.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .indexing import report

SHORT_ROUNDS = tl.constexpr(7)                                      # of Philox, for normal numbers of 16 bits
NUMBERS = ["seed", "offset", "low", "span", "threshold"]            # these differ from call to call: one compilation for all


@triton.jit
def halves(x):
    """The upper and the lower 32 bits of an int64. Shifted and cut off, LLVM would compute with all 64 from there on."""
    pair = x.to(tl.float64, bitcast=True)
    return libdevice.double2hiint(pair).to(tl.uint32, bitcast=True), libdevice.double2loint(pair).to(tl.uint32, bitcast=True)


@triton.jit
def philox(seed, c0, c1, c2, c3, ROUNDS: tl.constexpr = 10):
    """The four words of `tl.philox`. Its two products of 32 bits are each made at once here, not their halves one after the other: half
    the multiplications."""
    k1, k0 = halves(seed)
    for _ in tl.static_range(ROUNDS):
        a1, a0 = halves(c0.to(tl.uint64) * 0xD2511F53)
        b1, b0 = halves(c2.to(tl.uint64) * 0xCD9E8D57)
        c0, c1, c2, c3 = b1 ^ c1 ^ k0, b0, a1 ^ c3 ^ k1, a0
        k0, k1 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False), tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def philox_words(seed, offset, index, lane, base_ptr, ROUNDS: tl.constexpr = 10):
    """The four uint32 words of counters offset + index; `lane` is the third counter word."""
    if base_ptr is not None:
        seed = tl.load(base_ptr)
        offset += tl.load(base_ptr + 1)
    high, low = halves(offset + index)
    zero = low * 0
    return philox(seed, low, high, zero + lane, zero, ROUNDS)


@triton.jit
def long_word(high, low):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def words_of(seed, offset, first, base_ptr, COUNT: tl.constexpr, PAIRS: tl.constexpr):
    """The words of COUNT counters from `first` on, as four blocks. PAIRS: a thread draws two neighbours, for the eight elements of 16 bits
    that it loads or stores at once; drawn apart they would change threads through shared memory."""
    if PAIRS and COUNT > 1:
        index = 2 * tl.arange(0, COUNT // 2)
        w0, w1, w2, w3 = philox_words(seed, offset + first, index, 0, base_ptr)
        v0, v1, v2, v3 = philox_words(seed, offset + first, index + 1, 0, base_ptr)
        w0, w1, w2, w3 = tl.interleave(w0, v0), tl.interleave(w1, v1), tl.interleave(w2, v2), tl.interleave(w3, v3)
    else:
        w0, w1, w2, w3 = philox_words(seed, offset + first, tl.arange(0, COUNT), 0, base_ptr)
    return w0, w1, w2, w3


@triton.jit
def bits_of(seed, offset, start, base_ptr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
            dtype: tl.constexpr = tl.float32):
    """The bits of elements start … start + BLOCK, of `dtype`, as four blocks of every fourth: uint32, or uint64 where WIDE."""
    w0, w1, w2, w3 = words_of(seed, offset, start // 4, base_ptr, BLOCK // 4, dtype.primitive_bitwidth == 16)
    if WIDE:
        v0, v1, v2, v3 = philox_words(seed, offset + start // 4, tl.arange(0, BLOCK // 4), 1, base_ptr)
        w0, w1, w2, w3 = long_word(w0, v0), long_word(w1, v1), long_word(w2, v2), long_word(w3, v3)
    return w0, w1, w2, w3


@triton.jit
def in_order(w0, w1, w2, w3):
    """Four blocks of one value per counter as one block in element order."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def unit(bits):
    """[0, 1): 24 bits of a uint32 in float32, 53 bits of a uint64 in float64."""
    if bits.dtype == tl.uint32:
        u = (bits >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
    else:
        u = (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    return u


@triton.jit
def open_unit(bits):
    """(0, 1), neither end: the midpoints of 2²³ (2⁵²) equal cells."""
    if bits.dtype == tl.uint32:
        u = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    else:
        u = ((bits >> 12).to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return u


# A draw takes two words and two parameters and gives two values.
@triton.jit
def uniform_one(bits, low, high):
    return low + unit(bits).to(tl.float64) * (high - low)      # in float64 the product is exact: fused or not, the same bits


@triton.jit
def uniform(x, y, low, high):
    return uniform_one(x, low, high), uniform_one(y, low, high)


@triton.jit
def unit_uniform(x, y, low, high):
    return unit(x), unit(y)


@triton.jit
def minus_log_squared(u):
    """-log u² for float32 in (0, 1]: the GPU's own logarithm, whose error is absolute, but near 1 two terms of the series."""
    v = 1.0 - u
    return tl.where(v < 0.0078125, v * (v + 2.0), -1.3862943611198906 * libdevice.fast_log2f(u))


@triton.jit
def standard_normal(x, y):
    """Box and Muller, 1958; in float32 by the GPU's own sine and cosine, within 3e-6."""
    if x.dtype == tl.uint32:
        u = x.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10                  # (0, 1], to 6.7 sigma
        radius = tl.sqrt(minus_log_squared(u))
        angle = y.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09             # 2π · 2⁻³², from -π to π
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)
    else:
        radius, turn = tl.sqrt(-2.0 * tl.log(open_unit(x))), 2.0 * unit(y)
        return radius * libdevice.cospi(turn), radius * libdevice.sinpi(turn)      # unlike cos and sin these need no stack


@triton.jit
def circle(radius, half):
    """radius times cosine and sine of twice the angle `half`, from -π/2 to π/2, within 1e-6, without the unit for special functions."""
    s = half * half
    sine = half * (1.41420872 + s * (-0.235676263 + s * (0.0117469178 + s * -0.000259701288)))          # √2 times that of `half`
    cosine = 1.41421350 + s * (-0.707105442 + s * (0.0589211266 + s * (-0.00195920966 + s * 3.27446036e-05)))
    reach = radius * sine
    return radius - reach * sine, reach * cosine


@triton.jit
def short_normal(word, MULTIPLY: tl.constexpr, INVERSE: tl.constexpr):
    """Two normals for results of 16 bits from one word. Of one radius in millions, those near 0, the logarithm is worth 6e-4 only."""
    u = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    log = libdevice.fast_log2f(u)
    if INVERSE:
        square = -1.3862943611198906 * log + 1e-30                                              # 0 times infinity would be no number
        radius = square * tl.rsqrt(tl.abs(square))
    else:
        radius = tl.sqrt(tl.abs(1.3862943611198906 * log))
    turned = tl.mul(word, 0x9E3779B9, sanitize_overflow=False).to(tl.int32, bitcast=True).to(tl.float32)
    if MULTIPLY:
        return circle(radius, turned * 7.314590396335798e-10)
    else:
        angle = turned * 1.4629180792671596e-09
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)


@triton.jit
def normals_of(seed, offset, start, base_ptr, dtype: tl.constexpr, SHORT: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """The standard normals of elements start … start + BLOCK, in order. Where SHORT eight take a counter, and of its four words so many
    are turned by multiplications, as with all of them the unit for special functions would have more to do than any other."""
    if SHORT:
        w0, w1, w2, w3 = philox_words(seed, offset + start // 8, tl.arange(0, BLOCK // 8), 0, base_ptr, SHORT_ROUNDS)
        x0, y0 = short_normal(w0, True, INVERSE)
        x1, y1 = short_normal(w1, SHORT > 2, INVERSE)
        x2, y2 = short_normal(w2, SHORT > 1, INVERSE)
        x3, y3 = short_normal(w3, False, INVERSE)
        return tl.interleave(in_order(x0, x1, x2, x3), in_order(y0, y1, y2, y3))
    else:
        w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, dtype == tl.float64, BLOCK, dtype)
        x0, y0 = standard_normal(w0, w1)
        x1, y1 = standard_normal(w2, w3)
        return in_order(x0, y0, x1, y1)


# Numbers made of a standard normal z and two parameters.
@triton.jit
def unit_normal(z, mean, std):
    return z


@triton.jit
def normal(z, mean, std):
    return mean.to(z.dtype) + std.to(z.dtype) * z


@triton.jit
def log_normal(z, mean, std):
    return tl.exp(normal(z, mean, std))


@triton.jit
def exponential(x, y, rate, unused):
    u, v = open_unit(x), open_unit(y)
    return -tl.log(u) / rate.to(u.dtype), -tl.log(v) / rate.to(u.dtype)


@triton.jit
def geometric(x, y, log_failure, unused):
    u, v = open_unit(x), open_unit(y)
    return tl.ceil(tl.log(u) / log_failure.to(u.dtype)), tl.ceil(tl.log(v) / log_failure.to(u.dtype))


@triton.jit
def cauchy_one(u, median, sigma):
    return median.to(u.dtype) - sigma.to(u.dtype) * libdevice.cospi(u) / libdevice.sinpi(u)


@triton.jit
def cauchy(x, y, median, sigma):
    return cauchy_one(open_unit(x), median, sigma), cauchy_one(open_unit(y), median, sigma)


@triton.jit
def bernoulli(x, y, p, unused):
    return (unit(x).to(tl.float64) < p).to(tl.float32), (unit(y).to(tl.float64) < p).to(tl.float32)


@triton.jit(do_not_specialize=NUMBERS)
def fill_kernel(out_ptr, N, a, b, below, seed: tl.int64, offset: tl.int64, base_ptr, DRAW: tl.constexpr, WIDE: tl.constexpr,
                CLAMP: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = draw(bits of i; a, b); where CLAMP at most `below`, the largest value of out's type under the open end."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, WIDE, BLOCK, out_ptr.dtype.element_ty)
    v0, v1 = DRAW(w0, w1, a, b)
    v2, v3 = DRAW(w2, w3, a, b)
    value = in_order(v0, v1, v2, v3)
    if not WIDE:
        value = value.to(tl.float32)
    if CLAMP:
        value = tl.minimum(value, below.to(value.dtype))
    i = start + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, value.to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit(do_not_specialize=NUMBERS)
def fill_normal_kernel(out_ptr, N, a, b, seed: tl.int64, offset: tl.int64, base_ptr, DRAW: tl.constexpr, BLOCK: tl.constexpr,
                       SHORT: tl.constexpr = 0, INVERSE: tl.constexpr = False):
    """out[i] = draw(z_i; a, b), z standard normal, block after block, so that some programs multiply integers while others are at sines.
    For SHORT and INVERSE see `normals_of`."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    i = tl.arange(0, BLOCK)
    for block in tl.range(tl.program_id(0), (N - 1) // BLOCK + 1, tl.num_programs(0)):         # cdiv would pass 2³¹ on the way
        start = block.to(tl.int64) * BLOCK
        z = normals_of(seed, offset, start, base_ptr, dtype, SHORT, INVERSE, BLOCK)
        tl.store(out_ptr + start + i, DRAW(z, a, b).to(dtype), mask=i < N - block * BLOCK)


@triton.jit(do_not_specialize=NUMBERS)
def integers_kernel(out_ptr, N, low: tl.int64, span: tl.int64, seed: tl.int64, offset: tl.int64, base_ptr, BLOCK: tl.constexpr):
    """out[i] = low + floor(uint64 bits · span / 2⁶⁴)."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, True, BLOCK)
    bits = in_order(w0, w1, w2, w3)
    value = tl.umulhi(bits, tl.full((BLOCK,), 0, tl.uint64) + span.to(tl.int64).to(tl.uint64)).to(tl.int64)
    i = start + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, (value + low.to(tl.int64)).to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit(do_not_specialize=NUMBERS)
def bernoulli_kernel(out_ptr, word_ptr, p_ptr, N, seed: tl.int64, offset: tl.int64, base_ptr, number, BLOCK: tl.constexpr):
    """out[i] = 1 where a uniform is under p[i], which is reported if it is no probability."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, False, BLOCK, out_ptr.dtype.element_ty)
    i = start + tl.arange(0, BLOCK)
    p = tl.load(p_ptr + i, mask=i < N, other=0.0).to(tl.float64)
    report(word_ptr, ((p >= 0) & (p <= 1)) == 0, p, number)
    hit = unit(in_order(w0, w1, w2, w3)).to(tl.float64) < p
    tl.store(out_ptr + i, hit.to(tl.float32).to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit(do_not_specialize=NUMBERS)
def race_kernel(out_ptr, word_ptr, p_ptr, N, seed: tl.int64, offset: tl.int64, base_ptr, number, BLOCK: tl.constexpr):
    """out[i] = p[i] divided by an exponential number of rate 1; p[i] is reported if it is negative, infinite or NaN."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, p_ptr.dtype.element_ty == tl.float64, BLOCK)
    i = start + tl.arange(0, BLOCK)
    e = in_order(-tl.log(open_unit(w0)), -tl.log(open_unit(w1)), -tl.log(open_unit(w2)), -tl.log(open_unit(w3)))
    p = tl.load(p_ptr + i, mask=i < N, other=0.0)
    report(word_ptr, ((p >= 0) & (p < float("inf"))) == 0, p.to(tl.float64), number)
    tl.store(out_ptr + i, (p.to(e.dtype) / e).to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit
def first_above(sums, target, parts, i, SIZE: tl.constexpr):
    """The first i whose sum is above the target and whose part is not 0; the last such part if rounding leaves none."""
    first = tl.min(tl.where((sums > target) & (parts > 0), i, SIZE), 0)
    return tl.where(first < SIZE, first, tl.maximum(tl.max(tl.where(parts > 0, i, -1), 0), 0))


@triton.jit
def draw_one_kernel(out_ptr, word_ptr, p_ptr, u_ptr, stride_n, stride_k, K, chances, positive, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """out[n]: where the running sum of row n of p (N, K) passes u[n] times the whole, every WIDTH-th element coming first, then every
    WIDTH-th from the second on, …: so the row is read once, and sums of threads need no other thread. Reported are an element that is
    negative, infinite or NaN, and a row of zeros."""
    wide: tl.constexpr = tl.float64 if p_ptr.dtype.element_ty == tl.float64 else tl.float32
    row = p_ptr + tl.program_id(0).to(tl.int64) * stride_n
    j = tl.arange(0, WIDTH)
    total, least = tl.zeros((WIDTH,), wide), tl.zeros((WIDTH,), wide)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=4):
        p = tl.load(row + (first + j).to(tl.int64) * stride_k, mask=first + j < K, other=0).to(wide)
        total, least = total + p, tl.minimum(least, p)
    total = total.to(tl.float64)
    whole = tl.sum(total, 0)
    if (tl.min(least, 0) < 0) | ((whole < float("inf")) == 0):           # which one it was
        for first in range(0, K, WIDTH):
            p = tl.load(row + (first + j).to(tl.int64) * stride_k, mask=first + j < K, other=0).to(tl.float64)
            report(word_ptr, ((p >= 0) & (p < float("inf"))) == 0, p, chances)
    report(word_ptr, (j == 0) & (((whole > 0) & (whole < float("inf"))) == 0), whole + j * 0.0, positive)
    target = tl.load(u_ptr + tl.program_id(0)) * whole
    sums = tl.cumsum(total, 0)
    column = first_above(sums, target, total, j, WIDTH)
    before = tl.sum(tl.where(j == column, sums - total, 0.0), 0)
    i = tl.arange(0, COUNT) * WIDTH + column
    p = tl.load(row + i.to(tl.int64) * stride_k, mask=i < K, other=0).to(tl.float64)
    place = first_above(before + tl.cumsum(p, 0), target, p, tl.arange(0, COUNT), COUNT)
    tl.store(out_ptr + tl.program_id(0), (place * WIDTH + column).to(tl.int64))


@triton.jit(do_not_specialize=NUMBERS)
def dropout_kernel(out_ptr, x_ptr, N, threshold: tl.int64, scale, seed: tl.int64, offset: tl.int64, base_ptr, BLOCK: tl.constexpr):
    """out[i] = x[i] · scale where word i ≥ threshold, x[i] · 0 elsewhere (so that NaN stays)."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N, other=0.0)
    if x_ptr.dtype.element_ty != tl.float64:
        x = x.to(tl.float32)
    w0, w1, w2, w3 = bits_of(seed, offset, start, base_ptr, False, BLOCK, out_ptr.dtype.element_ty)
    keep = in_order(w0, w1, w2, w3) >= threshold.to(tl.uint32)
    value = x * tl.where(keep, scale.to(x.dtype), 0.0)
    tl.store(out_ptr + i, value.to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit(do_not_specialize=NUMBERS)
def normal_around_kernel(out_ptr, word_ptr, mean_ptr, std_ptr, N, seed: tl.int64, offset: tl.int64, base_ptr, number, BLOCK: tl.constexpr):
    """out[i] = mean[i] + std[i] z[i]; std[i] is reported if it is negative or NaN."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    z = normals_of(seed, offset, start, base_ptr, out_ptr.dtype.element_ty, False, False, BLOCK)
    mean = tl.load(mean_ptr + i, mask=i < N, other=0.0).to(z.dtype)
    std = tl.load(std_ptr + i, mask=i < N, other=0.0).to(z.dtype)
    report(word_ptr, (std >= 0) == 0, std.to(tl.float64), number)
    tl.store(out_ptr + i, (mean + std * z).to(out_ptr.dtype.element_ty), mask=i < N)


@triton.jit
def log_factorial(k):
    """log k! in float64: Stirling's series at k + 8, stepped down by (k + 1) … (k + 7)."""
    z = k + 8.0
    series = (z - 0.5) * tl.log(z) - z + 0.9189385332046727 + 1 / (12 * z) - 1 / (360 * z * z * z) + 1 / (1260 * z * z * z * z * z)
    return series - tl.log((k + 1) * (k + 2) * (k + 3) * (k + 4) * (k + 5) * (k + 6) * (k + 7))


@triton.jit(do_not_specialize=NUMBERS)
def poisson_kernel(out_ptr, rate_ptr, N, seed: tl.int64, offset: tl.int64, base_ptr, BLOCK: tl.constexpr):
    """Poisson numbers: by inversion for rates under 10, else by Hörmann's PTRS, every attempt with words of its own."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rate = tl.load(rate_ptr + i, mask=i < N, other=0.0).to(tl.float64)
    small, finite = rate < 10.0, rate - rate == 0.0
    w0, w1, w2, w3 = philox_words(seed, offset, i, 0, base_ptr)
    u = open_unit(long_word(w0, w1))
    k = tl.zeros((BLOCK,), tl.float64)
    term = tl.where(small, tl.exp(-rate), 2.0)
    total = term
    while tl.max((u > total).to(tl.int32), 0) > 0:
        more = u > total
        k = tl.where(more, k + 1.0, k)
        term = tl.where(more, term * rate / k, term)
        total = tl.where(more & (term > 0.0), total + term, tl.where(more, 2.0, total))

    mu = tl.where((rate >= 10.0) & finite, rate, 10.0)
    b = 0.931 + 2.53 * tl.sqrt(mu)
    a = -0.059 + 0.02483 * b
    quick = 0.9277 - 3.6224 / (b - 2.0)
    log_alpha = tl.log(1.1239 + 1.1328 / (b - 3.4))
    pending = (rate >= 10.0) & finite
    attempt = 0
    while tl.max(pending.to(tl.int32), 0) > 0:
        w0, w1, w2, w3 = philox_words(seed, offset, i, attempt, base_ptr)
        u = open_unit(long_word(w0, w1)) - 0.5
        v = open_unit(long_word(w2, w3))
        us = 0.5 - tl.abs(u)
        guess = tl.floor((2.0 * a / us + b) * u + mu + 0.43)
        safe = tl.maximum(guess, 0.0)
        exact = tl.log(v) + log_alpha - tl.log(a / (us * us) + b) <= safe * tl.log(mu) - mu - log_factorial(safe)
        good = ((us >= 0.07) & (v <= quick)) | ((guess >= 0.0) & ((us >= 0.013) | (v <= us)) & exact)
        k = tl.where(pending & good, guess, k)
        pending = pending & (good == 0)
        attempt += 1
    tl.store(out_ptr + i, tl.where(finite, k, rate).to(out_ptr.dtype.element_ty), mask=i < N)
