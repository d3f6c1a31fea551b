"""Putting tensors behind each other."""
import triton
import triton.language as tl

from triton_kernels.reduce import even


@triton.jit
def join_tile(out_ptr, x_ptr, start, width, total, rows, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    start, width, total = even(start, EVEN), even(width, EVEN), even(total, EVEN)
    tiles = tl.cdiv(width, BLOCK_N)
    m = ((tl.program_id(0) // tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = ((tl.program_id(0) % tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (m < rows) & (n < width)
    tl.store(out_ptr + (start + m * total) + n, tl.load(x_ptr + m * width + n, mask=mask), mask=mask)


@triton.jit
def join_kernel(out_ptr, x_ptrs, starts, widths, total, rows, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out[r, starts[k] + c] = x_k[r, c] for contiguous x_k of (rows, widths[k]) and rows of `total` in out; program (i, k) copies tile i of
    x_k. EVEN divides all starts and widths and the total."""
    for k in tl.static_range(len(x_ptrs)):
        if tl.program_id(1) == k:
            if tl.program_id(0) < tl.cdiv(widths[k], BLOCK_N) * tl.cdiv(rows, BLOCK_M):
                join_tile(out_ptr, x_ptrs[k], starts[k], widths[k], total, rows, EVEN, BLOCK_M, BLOCK_N)
