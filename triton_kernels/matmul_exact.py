"""float32 products at least as accurate as float32's own sums, on the 16-bit matrix units.

A float32 number is the sum of three bfloat16 numbers, x = high + middle + low. Six of the nine products of such parts matter; the other
three are below 2⁻²⁴ of |a| |b|, mostly far below, and of any sign, as high is rounded to nearest. Matrix units cut off what does not fit
when they add up, so the products of BLOCK_K elements are summed apart, the small ones first, and these sums are added as float32 numbers
are. (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance",
2022; Henry et al., "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", 2019.)

The parts cannot say everything: an infinity has no middle, what cuts numbers overflows at 2¹¹², a part below 2⁻¹³³ is lost, a product of
high parts may overflow where the product itself does not. `split_kernel` therefore notes the largest and smallest magnitudes it meets;
where they are out of bounds `matmul_exact_kernel` does nothing but say so, and the tiled kernel of matmul.py, which is queued behind it,
does the work. Small products, for which three kernels take longer than their work, are cut into parts in registers by the tiled kernel
itself (`sum_of_parts`).
"""
import triton
import triton.language as tl

from .matmul import INFINITE, SMALLEST, activated, epilogue, parts_of, tile_of
from .matmul_persistent import load_tile
from .quick import after_the_one_before
from .reduce import even

LARGEST = tl.constexpr(238)                              # the exponent of 2¹¹¹: from the next one on `parts_of` overflows


@triton.jit
def smaller(smallest, x):
    """The lesser of what `smallest` and the magnitudes of x, but zeros, are as bits."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.minimum(smallest, tl.where(bits == 0, INFINITE, bits))


@triton.jit
def split_rows(part_ptr, x_ptr, first, programs, stride_xb, stride_xr, stride_xc, stride_pr, BATCH, ROWS, COLUMNS, EVEN: tl.constexpr,
               BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Parts (3, BATCH, ROWS, stride_pr) of x (BATCH, ROWS, COLUMNS); the bits of its largest and smallest magnitude but zero. EVEN divides
    COLUMNS and the strides of rows and matrices, 8 that of the parts' rows."""
    stride_xb, stride_xr, COLUMNS, stride_pr = even(stride_xb, EVEN), even(stride_xr, EVEN), even(COLUMNS, EVEN), even(stride_pr, 8)
    across = tl.cdiv(COLUMNS, BLOCK_C)
    tiles = tl.cdiv(ROWS, BLOCK_R) * across
    plane = tl.full((), ROWS, tl.int64) * stride_pr * BATCH
    largest = tl.zeros((BLOCK_R, BLOCK_C), tl.int32)
    smallest = tl.full((BLOCK_R, BLOCK_C), INFINITE, tl.int32)
    for tile in range(first, tiles * BATCH, programs):
        batch = (tile // tiles).to(tl.int64)
        r = (tile % tiles // across * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)[:, None]
        c = (tile % tiles % across * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[None, :]
        mask = (r < ROWS) & (c < COLUMNS)
        x = tl.load(x_ptr + batch * stride_xb + r * stride_xr + c * stride_xc, mask=mask, other=0)
        largest = tl.maximum(largest, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        smallest = smaller(smallest, x)
        high, middle, low = parts_of(x)
        part_ptrs = part_ptr + (batch * ROWS + r) * stride_pr + c
        tl.store(part_ptrs, high.to(tl.bfloat16), mask=mask)
        tl.store(part_ptrs + plane, middle.to(tl.bfloat16), mask=mask)
        tl.store(part_ptrs + 2 * plane, low.to(tl.bfloat16), mask=mask)
    return tl.max(tl.max(largest, 1), 0), tl.min(tl.min(smallest, 1), 0)


@triton.jit
def split_kernel(a_part_ptr, b_part_ptr, range_ptr, a_ptr, b_ptr, stride_ab, stride_ar, stride_ac, stride_apr, BATCH_A, ROWS_A, COLUMNS_A,
                 stride_bb, stride_br, stride_bc, stride_bpr, BATCH_B, ROWS_B, COLUMNS_B, EVEN_A: tl.constexpr, EVEN_B: tl.constexpr,
                 PROGRAMS_A: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
                 launch_pdl: tl.constexpr = False):
    """Grid: PROGRAMS, the first PROGRAMS_A of them for a. range_ptr (2, PROGRAMS): the largest magnitudes, as bits, then how far the
    smallest lie below infinity: zeros for a program that has met no number."""
    after_the_one_before(launch_pdl)
    pid = tl.program_id(0)
    if pid < PROGRAMS_A:
        largest, smallest = split_rows(a_part_ptr, a_ptr, pid, PROGRAMS_A, stride_ab, stride_ar, stride_ac, stride_apr, BATCH_A, ROWS_A,
                                       COLUMNS_A, EVEN_A, BLOCK_R, BLOCK_C)
    else:
        largest, smallest = split_rows(b_part_ptr, b_ptr, pid - PROGRAMS_A, PROGRAMS - PROGRAMS_A, stride_bb, stride_br, stride_bc,
                                       stride_bpr, BATCH_B, ROWS_B, COLUMNS_B, EVEN_B, BLOCK_R, BLOCK_C)
    tl.store(range_ptr + pid, largest)
    tl.store(range_ptr + PROGRAMS + pid, INFINITE - smallest)


@triton.jit
def in_range(range_ptr, i, bits_k, PROGRAMS_A: tl.constexpr, PROGRAMS: tl.constexpr):
    """Whether the parts say all about both operands and no sum of 2 ** bits_k products can overflow; i: 0 … PROGRAMS and more."""
    largest = tl.load(range_ptr + i, mask=i < PROGRAMS, other=0)
    below = tl.load(range_ptr + PROGRAMS + i, mask=i < PROGRAMS, other=0)
    of_a = tl.max(tl.where(i < PROGRAMS_A, largest, 0), 0) >> 23
    of_b = tl.max(tl.where(i < PROGRAMS_A, 0, largest), 0) >> 23
    room = of_a + of_b - 254 + 2 + bits_k < 127
    return room & (of_a < LARGEST) & (of_b < LARGEST) & (tl.max(below, 0) <= INFINITE - SMALLEST)


@triton.jit
def matmul_exact_kernel(out_ptr, pre_ptr, verdict_ptr, a_desc, b_desc, c_ptr, range_ptr, stride_ob, stride_om, stride_on, stride_cb,
                        stride_cm, stride_cn, BATCH, M, N, K, bits_k, alpha, beta, TRANS_A: tl.constexpr, TRANS_B: tl.constexpr,
                        SHARED_A: tl.constexpr, SHARED_B: tl.constexpr, FORM: tl.constexpr, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr,
                        PROGRAMS_A: tl.constexpr, PROGRAMS_SPLIT: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK_M: tl.constexpr,
                        BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, launch_pdl: tl.constexpr = False):
    """Grid: PROGRAMS, which take tiles in turn. Descriptors are (3 · batch, rows, columns) of parts; SHARED: one matrix for all of the
    batch. verdict_ptr: 1 where this kernel leaves the product to the one behind it, else 0."""
    after_the_one_before(launch_pdl)
    good = in_range(range_ptr, tl.arange(0, 1024), bits_k, PROGRAMS_A, PROGRAMS_SPLIT)
    if tl.program_id(0) == 0:
        tl.store(verdict_ptr, 1 - good.to(tl.int32))
    step_a = 1 if SHARED_A else BATCH
    step_b = 1 if SHARED_B else BATCH
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.where(good, tiles * BATCH, 0), PROGRAMS):
        batch = tile // tiles
        pid_m, pid_n = tile_of(tile % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        at_a = 0 if SHARED_A else batch
        at_b = 0 if SHARED_B else batch
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a_high = load_tile(a_desc, at_a, m, k, BLOCK_M, BLOCK_K, TRANS_A)
            a_middle = load_tile(a_desc, at_a + step_a, m, k, BLOCK_M, BLOCK_K, TRANS_A)
            a_low = load_tile(a_desc, at_a + 2 * step_a, m, k, BLOCK_M, BLOCK_K, TRANS_A)
            b_high = load_tile(b_desc, at_b, k, n, BLOCK_K, BLOCK_N, TRANS_B)
            b_middle = load_tile(b_desc, at_b + step_b, k, n, BLOCK_K, BLOCK_N, TRANS_B)
            b_low = load_tile(b_desc, at_b + 2 * step_b, k, n, BLOCK_K, BLOCK_N, TRANS_B)
            some = tl.dot(a_low, b_high)
            some = tl.dot(a_high, b_low, some)
            some = tl.dot(a_middle, b_middle, some)
            some = tl.dot(a_middle, b_high, some)
            some = tl.dot(a_high, b_middle, some)
            acc += tl.dot(a_high, b_high, some)
        rm, rn = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
        value = epilogue(acc, c_ptr, batch.to(tl.int64) * stride_cb, rm, rn, stride_cm, stride_cn, M, N, alpha, beta, tl.float32, FORM,
                         SLOPE)
        mask = (rm < M)[:, None] & (rn < N)[None, :]
        offsets = batch.to(tl.int64) * stride_ob + (rm.to(tl.int64)[:, None] * stride_om + rn.to(tl.int64)[None, :] * stride_on)
        if pre_ptr is not None:
            tl.store(pre_ptr + offsets, value, mask=mask)
        tl.store(out_ptr + offsets, activated(value, ACTIVATION), mask=mask)
