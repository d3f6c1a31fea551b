"""Matrix products: one tiled kernel for every layout, batch, dtype and epilogue, and the second stage of split-K.

    pre = alpha · a @ b + beta · c        a: (batch, M, K)   b: (batch, K, N)   c: anything that broadcasts to (batch, M, N)
    out = ACTIVATION(pre)

`pre` is rounded to out's type before the activation, stored or not, so that fused and separate operators give the same bits. With a SLOPE,
the derivative of an activation, c is where it is taken: pre = SLOPE(alpha · a @ b, c). alpha is a number, None for 1, or
(factors of rows, their stride, factors of columns, their stride), which multiply each other. beta is a number, None for 1, or a tuple that
says what comes behind a layer: pre = residual + dropout(a @ b + c), rounded at every step as the separate operators do (see `behind`).

Strides are free and a stride of 0 broadcasts, so transposed and expanded operands are read where they lie.
"""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .matmul_joined import comes_last, joined, place_in_part
from .quick import after_the_one_before, let_the_next_begin, widened
from .random import long_word, philox_words

INFINITE = tl.constexpr(0x7F800000)                      # the bits of infinity
SMALLEST = tl.constexpr(19 << 23)                        # the bits of 2⁻¹⁰⁸: below it the low part would lose bits that count
AT_ONCE = tl.constexpr(4096)                             # numbers of a tile in parts that a program adds up and stores at a time
OUT, A, B, C = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def batch_offset(batch, batches, operand: tl.constexpr):
    """Offset of matrix `batch` of an operand. `batches`: sizes of the batch dims, then their strides for out, a, b, c; None: one matrix."""
    offset = batch.to(tl.int64) * 0
    if batches is not None:
        rank: tl.constexpr = len(batches) // 5
        left = batch
        for i in tl.static_range(1, rank + 1):                           # no name for the dim: a constexpr is given a value but once
            offset += (left % batches[rank - i]).to(tl.int64) * batches[rank * operand + rank - i]
            left = left // batches[rank - i]
    return offset


@triton.jit
def tile_of(pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a tile. Tiles run down GROUP_M rows before the next column, so that neighbours share operands in L2."""
    columns = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * columns
    first = pid // in_group * GROUP_M
    rows = tl.minimum(tl.cdiv(M, BLOCK_M) - first, GROUP_M)
    return first + pid % in_group % rows, pid % in_group // rows


@triton.jit
def step_of(stride, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """BLOCK · stride, of 64 bits if WIDE."""
    if WIDE:
        return tl.full((), BLOCK, tl.int64) * stride
    else:
        return BLOCK * stride


@triton.jit
def parts_of(x):
    """float32 as high, middle and low parts, 8 bits each (see matmul_exact.py), still float32. The high part is rounded (Veltkamp's way;
    not finite from 2¹¹² on), of the rest the middle is cut off. Conversions would do it too, but where one is not of a pair it takes
    eight times as long as one that is: 9.6 µs for the parts of 2 · 1024², not 5.6, are predicted."""
    high = tl.fma(x, -65536.0, x * 65537.0)
    rest = x - high
    middle = (rest.to(tl.int32, bitcast=True) & -0x10000).to(tl.float32, bitcast=True)
    return high, middle, rest - middle


@triton.jit
def marked_parts(x):
    """The parts in bfloat16; NaN for a number so small that they would not say all about it."""
    high, middle, low = parts_of(x)
    bits = x.to(tl.uint32, bitcast=True)
    low = tl.where(bits + bits - 1 < 2 * SMALLEST - 1, float("nan"), low)        # zero, twice which is zero, wraps around
    return high.to(tl.bfloat16), middle.to(tl.bfloat16), low.to(tl.bfloat16)


@triton.jit
def rounded_to_tf32(x):
    """x, so that what matrix units cut off it, the last 13 bits of float32, rounds it: to nearest, halves away from zero, as cuBLAS does.
    Cut alone it would be off by twice as much, and always toward zero. Two instructions; NaN stays, as its bits could overflow."""
    return tl.where(x == x, (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True), x)


@triton.jit
def multiply(a, b, acc, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a @ b: on the matrix units, or as a sum of products where they lack the type or the tile is a vector. An fp8 number is a
    float16 number; products of these are exact."""
    if DOT:
        if PRECISION == "fp8":
            acc = tl.dot(a.to(tl.float16), b.to(tl.float16), acc)
        elif PRECISION == "bf16":
            acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
        elif PRECISION == "tf32":
            acc = tl.dot(rounded_to_tf32(a), rounded_to_tf32(b), acc, input_precision="tf32")
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        acc += tl.sum(a.to(acc.dtype)[:, :, None] * b.to(acc.dtype)[None, :, :], 1)
    return acc


@triton.jit
def load_pair(a_ptrs, b_ptrs, k, end, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Tiles of a and b from element k of K on. Rows and columns past the edge wrap around: only k needs a mask."""
    if EVEN_K:
        return tl.load(a_ptrs), tl.load(b_ptrs)
    else:
        inside = k + tl.arange(0, BLOCK_K) < end                         # 0 would not become fp8
        return tl.load(a_ptrs, mask=inside[None, :], other=0.0), tl.load(b_ptrs, mask=inside[:, None], other=0.0)


@triton.jit
def sum_of_products(a_ptrs, b_ptrs, acc, start, end, step_a, step_b, DOT: tl.constexpr, PRECISION: tl.constexpr, EVEN_K: tl.constexpr,
                    BLOCK_K: tl.constexpr):
    for k in range(start, end, BLOCK_K):
        a, b = load_pair(a_ptrs, b_ptrs, k, end, EVEN_K, BLOCK_K)
        acc = multiply(a, b, acc, DOT, PRECISION)
        a_ptrs += step_a
        b_ptrs += step_b
    return acc


@triton.jit
def added(acc, some, lost, CAREFUL: tl.constexpr):
    """acc + some, and with CAREFUL what is lost there, to be added with the next block of K or at the end (Kahan). Knuth's two-sum loses
    nothing where a block is larger than all before it, either, in seven instructions, not four; test_exact.py needs no more than this."""
    if CAREFUL:
        some += lost
    total = acc + some
    if CAREFUL:
        lost = some - (total - acc)
    return total, lost


@triton.jit
def sum_of_parts(a_ptrs, b_ptrs, acc, start, end, step_a, step_b, CAREFUL: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The same of float32 numbers cut into parts (see matmul_exact.py), and where these cannot tell, or something is not finite, as float32
    units do it. CAREFUL: see `added`."""
    first_a, first_b, nothing, lost = a_ptrs, b_ptrs, acc, acc
    for k in range(start, end, BLOCK_K):
        a, b = load_pair(a_ptrs, b_ptrs, k, end, EVEN_K, BLOCK_K)
        a_high, a_middle, a_low = marked_parts(a)
        b_high, b_middle, b_low = marked_parts(b)
        some = tl.dot(a_low, b_high)
        some = tl.dot(a_high, b_low, some)
        some = tl.dot(a_middle, b_middle, some)
        some = tl.dot(a_middle, b_high, some)
        some = tl.dot(a_high, b_middle, some)
        some = tl.dot(a_high, b_high, some)
        acc, lost = added(acc, some, lost, CAREFUL)
        a_ptrs += step_a
        b_ptrs += step_b
    if CAREFUL:
        acc += lost
    largest = tl.max(tl.max(acc.to(tl.int32, bitcast=True) & INFINITE, 1), 0)
    if largest == INFINITE:
        acc = sum_of_products(first_a, first_b, nothing, start, end, step_a, step_b, True, "ieee", EVEN_K, BLOCK_K)
    return acc


@triton.jit
def load_c(c_ptr, offset, rm, rn, stride_cm, stride_cn, M, N, FORM: tl.constexpr):
    """What is added to rows rm and columns rn: a "row" that all rows share, a "column", or a "tile"; or c_ptr, if that is it already."""
    if len(c_ptr.shape) > 0:
        return c_ptr
    elif FORM == "row":
        return tl.load(c_ptr + offset + rn.to(tl.int64) * stride_cn, mask=rn < N, other=0)[None, :]
    elif FORM == "column":
        return tl.load(c_ptr + offset + rm.to(tl.int64) * stride_cm, mask=rm < M, other=0)[:, None]
    else:
        c_ptrs = c_ptr + offset + (rm.to(tl.int64)[:, None] * stride_cm + rn.to(tl.int64)[None, :] * stride_cn)
        return tl.load(c_ptrs, mask=(rm < M)[:, None] & (rn < N)[None, :], other=0)


@triton.jit
def scaled(acc, alpha, rm, rn, M, N):
    """alpha · acc, whose rows and columns are rm and rn."""
    if isinstance(alpha, tl.tuple):
        of_rows = tl.load(alpha[0] + rm.to(tl.int64) * alpha[1], mask=rm < M, other=0).to(acc.dtype)
        acc *= of_rows * tl.load(alpha[2] + rn.to(tl.int64) * alpha[3], mask=rn < N, other=0).to(acc.dtype)
    elif alpha is not None:
        acc = acc * alpha.to(acc.dtype)
    return acc


@triton.jit
def combined(acc, c, beta, T: tl.constexpr, SLOPE: tl.constexpr):
    """acc + beta · c, or SLOPE(acc rounded to T, c)."""
    c = c.to(acc.dtype)
    if SLOPE is not None:
        return SLOPE(widened(acc.to(T), acc.dtype), c)
    if isinstance(beta, tl.tuple):
        pass
    elif beta is not None:
        c = c * beta.to(acc.dtype)
    return acc + c


@triton.jit
def paired(x):
    """The elements of x in even places of its last dim, and those in odd ones; this moves nothing between threads that hold neighbours."""
    if len(x.shape) == 1:
        return x.reshape((x.shape[0] // 2, 2)).split()
    else:
        return x.reshape((x.shape[0], x.shape[1] // 2, 2)).split()


@triton.jit
def dropped(value, i, last, ACC: tl.constexpr):
    """value · keep / (1 - p), as its even and odd elements; i: their places, even where value's are. Element i keeps by word i of the
    Philox stream, as in `dropout_kernel`; the other half of a counter belongs to another thread, which draws it again."""
    AT: tl.constexpr = len(last) % 2
    even, odd = paired(value)
    at, _ = paired(i)
    seed = long_word(last[AT].to(tl.int64), last[AT + 1].to(tl.int64)).to(tl.int64, bitcast=True)
    offset = long_word(last[AT + 2].to(tl.int64), last[AT + 3].to(tl.int64)).to(tl.int64, bitcast=True)
    if len(last) >= 8:
        w0, w1, w2, w3 = philox_words(seed, offset, at // 4, 0, last[AT + 6])
    else:
        w0, w1, w2, w3 = philox_words(seed, offset, at // 4, 0, None)
    threshold, factor, low = last[AT + 4].to(tl.int64).to(tl.uint32), last[AT + 5].to(ACC), at % 4 == 0
    factor_even = tl.where(tl.where(low, w0, w2) >= threshold, factor, 0.0)
    factor_odd = tl.where(tl.where(low, w1, w3) >= threshold, factor, 0.0)
    if value.dtype == ACC:                   # rounded by itself: with an addition behind it a product of float32 would become one fma
        return libdevice.mul_rn(even, factor_even), libdevice.mul_rn(odd, factor_odd)
    else:
        return widened(even, ACC) * factor_even, widened(odd, ACC) * factor_odd


@triton.jit
def residual_at(residual, i, inside):
    """What is at these places of the residual, unless it is that already."""
    if len(residual.shape) > 0:
        return residual
    else:
        return tl.load(residual + i, mask=inside, other=0)


@triton.jit
def behind(value, last, i, inside):
    """residual + dropout(value), each rounded to value's type; i: where value's elements are in contiguous memory. `last`, in which there
    can be no None: the residual, unless its length is even; if it is longer than that, halves of seed and offset, threshold and factor,
    as floats, so that no value of theirs is compiled for; if it is 8 or longer, where seed and offset are in memory, and a number."""
    T: tl.constexpr = value.dtype
    ACC: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    if len(last) > 1:
        even, odd = dropped(value, i, last, ACC)
        if len(last) % 2:
            first, second = paired(residual_at(last[0], i, inside))
            even, odd = first.to(ACC) + widened(even.to(T), ACC), second.to(ACC) + widened(odd.to(T), ACC)
        return tl.join(even, odd).reshape(value.shape).to(T)
    else:
        return (residual_at(last[0], i, inside).to(ACC) + widened(value, ACC)).to(T)


@triton.jit
def epilogue(acc, c_ptr, offset, rm, rn, stride_cm, stride_cn, M, N, alpha, beta, T: tl.constexpr, FORM: tl.constexpr,
             SLOPE: tl.constexpr):
    """What is stored before the activation, of type T; the matrix to add is at c_ptr + offset, None: nothing is added. Instead of pointers
    c_ptr and the residual may be the numbers."""
    acc = scaled(acc, alpha, rm[:, None], rn[None, :], M, N)
    if c_ptr is not None:
        acc = combined(acc, load_c(c_ptr, offset, rm, rn, stride_cm, stride_cn, M, N, FORM), beta, T, SLOPE)
    value = acc.to(T)
    if isinstance(beta, tl.tuple):
        places = rm.to(tl.int64)[:, None] * N + rn[None, :]
        value = behind(value, beta, places, (rm < M)[:, None] & (rn < N)[None, :])
    return value


@triton.jit
def activated(value, ACTIVATION: tl.constexpr):
    """ACTIVATION(value), computed in float32 at least and rounded once more."""
    T: tl.constexpr = value.dtype
    if ACTIVATION is not None:
        value = ACTIVATION(widened(value, tl.float64 if T == tl.float64 else tl.float32)).to(T)
    return value


@triton.jit
def store_tile(out_ptr, pre_ptr, acc, c_ptr, batches, batch, split, rm, rn, stride_os, stride_om, stride_on, stride_cm, stride_cn, M, N,
               alpha, beta, FORM: tl.constexpr, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr):
    """The epilogue of a tile."""
    value = epilogue(acc, c_ptr, batch_offset(batch, batches, C), rm, rn, stride_cm, stride_cn, M, N, alpha, beta,
                     out_ptr.dtype.element_ty, FORM, SLOPE)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    offsets = batch_offset(batch, batches, OUT) + split.to(tl.int64) * stride_os + (rm[:, None] * stride_om + rn[None, :] * stride_on)
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, value, mask=mask)
    tl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)


@triton.jit
def store_joined(out_ptr, pre_ptr, part_ptr, c_ptr, batches, batch, rm, pid_n, stride_om, stride_on, stride_cm, stride_cn, M, N, alpha,
                 beta, FORM: tl.constexpr, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 JOINED: tl.constexpr):
    """The same of the sum of a tile's parts, some columns at a time."""
    WIDTH: tl.constexpr = min(AT_ONCE // BLOCK_M, BLOCK_N)
    for i in tl.static_range(BLOCK_N // WIDTH):
        columns = i * WIDTH + tl.arange(0, WIDTH)
        rn = pid_n * BLOCK_N + columns
        part_ptrs = part_ptr + place_in_part(tl.arange(0, BLOCK_M)[:, None], columns[None, :], BLOCK_N)
        acc = joined(part_ptrs, (rm < M)[:, None] & (rn < N)[None, :], BLOCK_M * BLOCK_N, JOINED)
        store_tile(out_ptr, pre_ptr, acc, c_ptr, batches, batch, batch * 0, rm, rn, 0, stride_om, stride_on, stride_cm, stride_cn, M, N,
                   alpha, beta, FORM, SLOPE, ACTIVATION)


@triton.jit
def matmul_kernel(out_ptr, pre_ptr, a_ptr, b_ptr, c_ptr, verdict_ptr, part_ptr, counter_ptr, batches, stride_os, stride_om, stride_on,
                  stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, M, N, K, K_SPAN, alpha, beta, FORM: tl.constexpr,
                  SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, EVEN_K: tl.constexpr,
                  WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
                  JOINED: tl.constexpr, launch_pdl: tl.constexpr = False):
    """Grid: (tiles · batch, splits). Split s sums over K_SPAN elements of K and writes its part at s · stride_os, or the splits, JOINED of
    them, are added up by the last of a tile (see matmul_joined.py). With a verdict_ptr it does the work only if there is a 1 (see
    matmul_exact.py)."""
    T: tl.constexpr = a_ptr.dtype.element_ty
    FLOAT: tl.constexpr = tl.float64 if T == tl.float64 else tl.float32
    INTEGER: tl.constexpr = tl.int64 if T == tl.int64 else tl.int32
    ACC: tl.constexpr = FLOAT if T.is_floating() or PRECISION == "fp8" else INTEGER
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = tl.program_id(0) // tiles
    split = tl.program_id(1)
    pid_m, pid_n = tile_of(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:                                             # some operand spans 2³¹ elements or more
        rm, rn, split = rm.to(tl.int64), rn.to(tl.int64), split.to(tl.int64)
    rk = split * K_SPAN + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + batch_offset(batch, batches, A) + ((rm % M)[:, None] * stride_am + rk[None, :] * stride_ak)
    b_ptrs = b_ptr + batch_offset(batch, batches, B) + (rk[:, None] * stride_bk + (rn % N)[None, :] * stride_bn)
    after_the_one_before(launch_pdl)
    if verdict_ptr is not None:
        if tl.load(verdict_ptr) == 0:
            return
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    end = tl.minimum(split * K_SPAN + K_SPAN, K)
    step_a, step_b = step_of(stride_ak, BLOCK_K, WIDE), step_of(stride_bk, BLOCK_K, WIDE)
    if PRECISION == "parts" or PRECISION == "careful parts":
        acc = sum_of_parts(a_ptrs, b_ptrs, acc, split * K_SPAN, end, step_a, step_b, PRECISION == "careful parts", EVEN_K, BLOCK_K)
    else:
        acc = sum_of_products(a_ptrs, b_ptrs, acc, split * K_SPAN, end, step_a, step_b, DOT, PRECISION, EVEN_K, BLOCK_K)
    let_the_next_begin(launch_pdl)
    if JOINED == 1:
        store_tile(out_ptr, pre_ptr, acc, c_ptr, batches, batch, split, rm, rn, stride_os, stride_om, stride_on, stride_cm, stride_cn, M, N,
                   alpha, beta, FORM, SLOPE, ACTIVATION)
    else:
        rows, columns = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
        part_ptr += tl.program_id(0) * (JOINED * BLOCK_M * BLOCK_N)
        part_ptrs = part_ptr + (tl.program_id(1) * (BLOCK_M * BLOCK_N) + place_in_part(rows[:, None], columns[None, :], BLOCK_N))
        if comes_last(part_ptrs, acc, (rm < M)[:, None] & (rn < N)[None, :], counter_ptr + tl.program_id(0), JOINED):
            store_joined(out_ptr, pre_ptr, part_ptr, c_ptr, batches, batch, rm, pid_n, stride_om, stride_on, stride_cm, stride_cn, M, N,
                         alpha, beta, FORM, SLOPE, ACTIVATION, BLOCK_M, BLOCK_N, JOINED)
            tl.store(counter_ptr + tl.program_id(0), 0)


@triton.jit
def store_each(out_ptr, pre_ptr, acc, c_ptr, i, mask, batches, stride_om, stride_on, stride_cm, stride_cn, M, N, alpha, beta,
               SLOPE: tl.constexpr, ACTIVATION: tl.constexpr):
    """The epilogue of elements i of a (batch, M, N) result."""
    n, m, batch = i % N, i // N % M, i // N // M
    TO: tl.constexpr = out_ptr.dtype.element_ty
    acc = scaled(acc, alpha, m, n, M, N)
    if c_ptr is not None:
        c = tl.load(c_ptr + batch_offset(batch, batches, C) + m * stride_cm + n * stride_cn, mask=mask, other=0)
        acc = combined(acc, c, beta, TO, SLOPE)
    value = acc.to(TO)
    if isinstance(beta, tl.tuple):
        value = behind(value, beta, i, mask)
    offsets = batch_offset(batch, batches, OUT) + m * stride_om + n * stride_on
    if pre_ptr is not None:
        tl.store(pre_ptr + offsets, value, mask=mask)
    tl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)


@triton.jit
def split_sum_kernel(out_ptr, pre_ptr, part_ptr, c_ptr, batches, stride_om, stride_on, stride_cm, stride_cn, M, N, total, alpha, beta,
                     SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
                     launch_pdl: tl.constexpr = False):
    """Second stage of split-K: add the parts (SPLITS, batch, M, N) in order, then the epilogue."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < total
    part_ptrs = part_ptr + i
    after_the_one_before(launch_pdl)
    acc = tl.load(part_ptrs, mask=mask, other=0)
    for _ in tl.static_range(1, SPLITS):
        part_ptrs += total
        acc += tl.load(part_ptrs, mask=mask, other=0)
    store_each(out_ptr, pre_ptr, acc, c_ptr, i, mask, batches, stride_om, stride_on, stride_cm, stride_cn, M, N, alpha, beta, SLOPE,
               ACTIVATION)
