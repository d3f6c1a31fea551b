"""One dim of a tensor at other places, between two neighbours each, and what comes back to the neighbours."""
import triton
import triton.language as tl


@triton.jit
def between(i, L, scale, CORNERS: tl.constexpr, ACC: tl.constexpr):
    """Of place i of the result: its two neighbours among L, and how near it is to the second."""
    if CORNERS:
        place = i.to(ACC) * scale.to(ACC)
    else:
        place = tl.maximum((i.to(ACC) + 0.5) * scale.to(ACC) - 0.5, 0.0)
    low = tl.floor(place)
    first = low.to(i.dtype)
    return tl.minimum(first, L - 1), tl.minimum(first + 1, L - 1), place - low


@triton.jit
def tile_along(P, S, R, ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile of (P, S, R) as rows × columns: offsets, mask; p, s and r of rows and columns as far as they vary there. Rows are (P, S) with
    ROWS, else P: so a division is that of a row or a column, never of an element. WIDE: offsets may pass 2³¹."""
    M, N = (P * S, R) if ROWS else (P, S * R)
    tiles = tl.cdiv(N, BLOCK_N)
    row, column = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if WIDE:
        row, column = row.to(tl.int64), column.to(tl.int64)
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (m < M)[:, None] & (n < N)[None, :]
    at = (m * N)[:, None] + n[None, :]
    if ROWS:
        return at, mask, m // S, m % S, n
    else:
        return at, mask, m, n // R, n % R


@triton.jit
def offsets_along(p, s, r, S, R, ROWS: tl.constexpr):
    """Where p, s and r lie in (P, S, R)."""
    if ROWS:
        return ((p * S + s) * R)[:, None] + r[None, :]
    else:
        return (p * S * R)[:, None] + (s * R + r)[None, :]


@triton.jit
def resize_kernel(out_ptr, x_ptr, P, L, S, R, scale, CORNERS: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out (P, S, R) from x (P, L, R)."""
    at, mask, p, i, r = tile_along(P, S, R, ROWS, WIDE, BLOCK_M, BLOCK_N)
    low, high, t = between(i, L, scale, CORNERS, ACC)
    a = tl.load(x_ptr + offsets_along(p, low, r, L, R, ROWS), mask=mask).to(ACC)
    b = tl.load(x_ptr + offsets_along(p, high, r, L, R, ROWS), mask=mask).to(ACC)
    t = t[:, None] if ROWS else t[None, :]
    tl.store(out_ptr + at, (a * (1 - t) + b * t).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def resize_back_kernel(out_ptr, g_ptr, P, L, S, R, scale, count, spare, CORNERS: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
                       WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """out (P, L, R): what g (P, S, R) gives to each place, in the order of S. At most `count` places of S in a row have it as neighbour,
    with `spare` of them at the beginning, as places are rounded."""
    at, mask, p, j, r = tile_along(P, L, R, ROWS, WIDE, BLOCK_M, BLOCK_N)
    half: tl.constexpr = 0.0 if CORNERS else 0.5
    first = tl.maximum(tl.floor((j.to(tl.float64) - 1 + half) / scale - half).to(j.dtype) - spare, 0) if scale > 0 else j * 0
    total = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(count):
        i = first + k
        low, high, t = between(i, L, scale, CORNERS, ACC)
        near = ((low == j) | (high == j)) & (i < S)
        weight = tl.where(low == j, 1 - t, 0.0) + tl.where(high == j, t, 0.0)
        near, weight = (near[:, None], weight[:, None]) if ROWS else (near[None, :], weight[None, :])
        g = tl.load(g_ptr + offsets_along(p, i, r, S, R, ROWS), mask=mask & near, other=0).to(ACC)
        total += tl.where(near, weight * g, 0.0)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=mask)
