"""Tensors with a number or with values of their own around them, and what comes back to these."""
import triton
import triton.language as tl

from .avg_pooling import place_offsets, plane_pointers, pointers, tile_of, widened
from .reduce import even


@triton.jit
def pad_kernel(out_ptr, x_ptr, shape, sizes, before, strides, M, N, value, OUTER: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A contiguous out of `shape`, whose element i of a dim is i - before of the `sizes` elements of x, value where there is none. Rows
    are all dims but the last: a division a row and dim. EVEN divides N; WIDE: rows, or offsets along the last dim, may pass 2³⁰."""
    N = even(N, EVEN)
    tiles = tl.cdiv(N, BLOCK_N)
    m = tl.program_id(0) // tiles
    m = (m.to(tl.int64) if WIDE else m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        n = n.to(tl.int64)
    row = tl.zeros((BLOCK_M,), tl.int64)
    rest = m
    there = m < M
    for k in tl.static_range(OUTER):
        i = rest % shape[OUTER - 1 - k] - before[OUTER - 1 - k]
        rest = rest // shape[OUTER - 1 - k]
        there = there & (i >= 0) & (i < sizes[OUTER - 1 - k])
        row += i.to(tl.int64) * strides[OUTER - 1 - k]
    column = n - before[OUTER]
    inside = (column >= 0) & (column < sizes[OUTER])
    number = tl.full((BLOCK_M, BLOCK_N), value, out_ptr.dtype.element_ty)
    x = tl.load((x_ptr + row)[:, None] + (column * strides[OUTER])[None, :], mask=there[:, None] & inside[None, :], other=number)
    tl.store((out_ptr + m.to(tl.int64) * N)[:, None] + n[None, :], x, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def source_of(i, n, MODE: tl.constexpr):
    """Which of n elements stands at i, which may lie before or behind them: 1 reflects, 2 repeats the edge, 3 goes round."""
    if MODE == 1:
        i = tl.abs(i)
        return tl.where(i < n, i, 2 * (n - 1) - i)
    elif MODE == 2:
        return tl.minimum(tl.maximum(i, 0), n - 1)
    else:
        return tl.where(i < 0, i + n, tl.where(i < n, i, i - n))


@triton.jit
def edge_pad_kernel(out_ptr, x_ptr, stride_o, stride_x, planes, C, H, W, P, Q, top, left, MODE: tl.constexpr, WIDE: tl.constexpr,
                    EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """out (N, C, P, Q): x (N, C, H, W) with `top` rows above and `left` columns beside it. Tiles are those of avg_pooling.py."""
    some, there, n, c, p, q = tile_of(planes, C, P, Q, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    x = tl.load(pointers(x_ptr, n, c, source_of(p - top, H, MODE), source_of(q - left, W, MODE), stride_x, WIDE))
    tl.store(pointers(out_ptr, n, c, p, q, stride_o, WIDE), x, mask=some)


@triton.jit
def image_of(j, n, size, before, k, MODE: tl.constexpr, BEHIND: tl.constexpr):
    """The k-th other place among `size` of element j of n, in front of or behind the elements, and whether there is one."""
    if MODE == 1:
        i, there = (before + 2 * (n - 1) - j, j < n - 1) if BEHIND else (before - j, j > 0)
    elif MODE == 2:
        i, there = (j * 0 + (before + n - 1 + k), j == n - 1) if BEHIND else (j * 0 + (before - k), j == 0)
    else:
        i, there = (j + (before + n), j >= 0) if BEHIND else (j + (before - n), j >= 0)
    return i, there & (i >= 0) & (i < size)


@triton.jit
def in_row(g_ptrs, p, there, w, W, Q, left, stride_g, MODE: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """What places of row p, if there is one, give to the elements of columns w."""
    inside = there & (w + left >= 0) & (w + left < Q)
    total = widened(tl.load(g_ptrs + place_offsets(p, w + left, stride_g, WIDE), mask=inside[:, None], other=0))
    for k in range(1, COLUMNS + 1):
        for behind in tl.static_range(2):
            q, more = image_of(w, W, Q, left, k, MODE, behind == 1)
            total += widened(tl.load(g_ptrs + place_offsets(p, q, stride_g, WIDE), mask=(there & more)[:, None], other=0))
    return total


@triton.jit
def edge_pad_back_kernel(out_ptr, g_ptr, stride_o, stride_g, planes, C, H, W, P, Q, top, left, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                         MODE: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr, BLOCK_P: tl.constexpr,
                         BLOCK_C: tl.constexpr):
    """out (N, C, H, W): what elements of g (N, C, P, Q) give to the ones that they came from. Beside its own place an element has up to
    ROWS others above and below, COLUMNS to the left and right; most tiles have none of these rows."""
    some, there, n, c, h, w = tile_of(planes, C, H, W, WIDE, EVEN, FLAT, BLOCK_P, BLOCK_C)
    g_ptrs = plane_pointers(g_ptr, n, c, stride_g)
    total = in_row(g_ptrs, h + top, (h + top >= 0) & (h + top < P), w, W, Q, left, stride_g, MODE, COLUMNS, WIDE)
    for k in range(1, ROWS + 1):
        for behind in tl.static_range(2):
            p, more = image_of(h, H, P, top, k, MODE, behind == 1)
            if tl.max(more.to(tl.int32), 0) > 0:
                total += in_row(g_ptrs, p, more, w, W, Q, left, stride_g, MODE, COLUMNS, WIDE)
    tl.store(pointers(out_ptr, n, c, h, w, stride_o, WIDE), total.to(out_ptr.dtype.element_ty), mask=some)
