"""Matrix products of 8- and 16-bit types and in TF32 by TMA on sm_90 and later: programs that stay resident and take tiles in turn.

Descriptors are (batch, rows, columns) of row-major memory; TRANS_A: a lies as (batch, K, M), TRANS_B: b lies as (batch, N, K);
SHARED_A, SHARED_B: one matrix for all of the batch.
Out-of-bounds elements arrive as 0 and are not stored. TMA rounds float32 operands to TF32 on their way. The epilogue is that of matmul.py.
"""
import triton
import triton.language as tl

from .matmul import activated, epilogue, tile_of
from .quick import after_the_one_before


@triton.jit
def load_tile(desc, batch, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr):
    """A (ROWS, COLUMNS) tile of a matrix; TURNED: of a transposed matrix, from memory that holds the matrix itself."""
    if TURNED:
        return desc.load([batch, column, row]).reshape(COLUMNS, ROWS).T
    else:
        return desc.load([batch, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def finish(acc, batch, m, n, out_desc, pre_desc, c_ptr, stride_cb, stride_cm, stride_cn, M, N, alpha, beta, FORM: tl.constexpr,
           SLOPE: tl.constexpr, ACTIVATION: tl.constexpr):
    """The epilogue of a tile at (m, n), stored by TMA."""
    rm, rn = m + tl.arange(0, acc.shape[0]), n + tl.arange(0, acc.shape[1])
    value = epilogue(acc, c_ptr, batch.to(tl.int64) * stride_cb, rm, rn, stride_cm, stride_cn, M, N, alpha, beta, out_desc.dtype, FORM,
                     SLOPE)
    if pre_desc is not None:
        pre_desc.store([batch, m, n], value.reshape(1, acc.shape[0], acc.shape[1]))
    out_desc.store([batch, m, n], activated(value, ACTIVATION).reshape(1, acc.shape[0], acc.shape[1]))


@triton.jit
def matmul_persistent_kernel(out_desc, pre_desc, a_desc, b_desc, c_ptr, stride_cb, stride_cm, stride_cn, BATCH, M, N, K, alpha, beta,
                             TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, SHARED_A: tl.constexpr, SHARED_B: tl.constexpr,
                             FORM: tl.constexpr, SLOPE: tl.constexpr, ACTIVATION: tl.constexpr, PROGRAMS: tl.constexpr,
                             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
                             PIECES: tl.constexpr, APART: tl.constexpr, launch_pdl: tl.constexpr = False):
    """Grid: PROGRAMS. A tile is stored in PIECES (1 or 2) halves of its columns, which take half the shared memory. APART: the matrix units
    sum BLOCK_K products at a time, because they keep fewer bits of sums of fp8 products than float32 has."""
    after_the_one_before(launch_pdl)
    ACC: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    tiles, steps = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles * BATCH, PROGRAMS):
        batch = tile // tiles
        pid_m, pid_n = tile_of(tile % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        at_a = batch * 0 if SHARED_A else batch
        at_b = batch * 0 if SHARED_B else batch
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for i in range(steps):
            k = i * BLOCK_K
            a = load_tile(a_desc, at_a, m, k, BLOCK_M, BLOCK_K, TRANS_A)
            b = load_tile(b_desc, at_b, k, n, BLOCK_K, BLOCK_N, TRANS_B)
            if APART:
                acc += tl.dot(a, b)
            else:
                acc = tl.dot(a, b, acc, input_precision="tf32", out_dtype=ACC)
        if PIECES == 1:
            finish(acc, batch, m, n, out_desc, pre_desc, c_ptr, stride_cb, stride_cm, stride_cn, M, N, alpha, beta, FORM, SLOPE,
                   ACTIVATION)
        else:
            left, right = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
            finish(left, batch, m, n, out_desc, pre_desc, c_ptr, stride_cb, stride_cm, stride_cn, M, N, alpha, beta, FORM, SLOPE,
                   ACTIVATION)
            finish(right, batch, m, n + BLOCK_N // 2, out_desc, pre_desc, c_ptr, stride_cb, stride_cm, stride_cn, M, N, alpha, beta,
                   FORM, SLOPE, ACTIVATION)
