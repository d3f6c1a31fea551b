"""What kernels over rows share: keeping rows in few registers, tiles of gradients, lines of weights, sums of exponentials and of partial
results."""

import triton
import triton.language as tl

from .quick import quick_exp
from .reduce import offsets


@triton.jit
def lanes(BLOCK_N: tl.constexpr, WIDE: tl.constexpr):
    """The columns of a tile, as a line. WIDE: what they lie apart, all together, may pass 2³¹."""
    lane = tl.arange(0, BLOCK_N)[None, :]
    return lane.to(tl.int64) if WIDE else lane


@triton.jit
def again(x, ACC: tl.constexpr):
    """x.to(ACC) a second time. From bfloat16 it goes another way, so that the compiler keeps x until then and not its float32,
    which takes twice the registers (84 become 57 in a gradient of softmax, and two programs fit where one did)."""
    if x.dtype == tl.bfloat16 and ACC == tl.float32:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(ACC)


@triton.jit
def side_by_side(rows, columns, VEC: tl.constexpr):
    """rows + columns, pointers of which a thread takes VEC at once, of each operand. Else, among operands of several widths, the compiler
    would have a thread load eight neighbours, for 16 bits, and store four, for 32, and all would change threads; and what is stored would
    choose in which order a row is summed up. The sum is made here because what is said of an argument is lost."""
    if VEC > 1:
        return tl.max_contiguous(rows + columns, (1, VEC))
    else:
        return rows + columns


@triton.jit
def thread_sums(x, VEC: tl.constexpr):
    """The sums of VEC neighbours, which one thread has: a sum of several tiles then takes one of its registers, not VEC."""
    if VEC > 1:
        return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // VEC, VEC)), 2)
    else:
        return x


@triton.jit
def gradient_tiles(g_ptr, x_ptr, m, n, inside, N, shape_m, stride_m, shape_n, stride_n, EVICT: tl.constexpr, VEC: tl.constexpr,
                   ALIGN: tl.constexpr):
    """Tiles of g and x, the second and third operands; both are 0 outside."""
    RANK_M: tl.constexpr = len(shape_m)
    RANK_N: tl.constexpr = len(shape_n)
    valid = inside & (n < N)
    g_ptrs = side_by_side(g_ptr + offsets(m, shape_m, stride_m, RANK_M, ALIGN), offsets(n, shape_n, stride_n, RANK_N), VEC)
    x_ptrs = side_by_side(x_ptr + offsets(m, shape_m, stride_m, 2 * RANK_M, ALIGN), offsets(n, shape_n, stride_n, 2 * RANK_N), VEC)
    g = tl.load(g_ptrs, mask=valid, other=0, eviction_policy=EVICT)
    return g, tl.load(x_ptrs, mask=valid, other=0, eviction_policy=EVICT)


@triton.jit
def line(w_ptr, start, N, BLOCK_N: tl.constexpr, VEC: tl.constexpr, COPIES: tl.constexpr):
    """The weights of the columns from `start` on: a line for all rows, or a copy for each of the COPIES rows of a tile, which come from
    the cache. Where a row lies on a part of the threads, a line would lie on all: the compiler would move whole tiles there and back."""
    n = tl.broadcast_to(start + tl.arange(0, BLOCK_N)[None, :], (COPIES, BLOCK_N))
    return tl.load(side_by_side(w_ptr, n, VEC), mask=n < N, other=0, eviction_policy="evict_last")


@triton.jit
def lines(w_ptr, N, BLOCK_N: tl.constexpr, HELD: tl.constexpr, VEC: tl.constexpr, COPIES: tl.constexpr):
    """The lines of HELD tiles."""
    found = ()
    for k in tl.static_range(HELD):
        found = found + (line(w_ptr, k * BLOCK_N, N, BLOCK_N, VEC, COPIES),)
    return found


# ------------------------------------------------------------------ rows in narrow tiles
@triton.jit
def held_tiles(rows, stride_n, lane, inside, N, HELD: tl.constexpr, ACC: tl.constexpr, OTHER: tl.constexpr = float("-inf")):
    """All of the rows that begin at `rows`, in HELD tiles, the last of which passes the end, with OTHER there."""
    x = ()
    for k in tl.static_range(HELD):
        n = k * lane.shape[1] + lane
        valid = inside & (n < N) if k == HELD - 1 else inside
        x = x + (tl.load(rows + n.to(tl.int64) * stride_n, mask=valid, other=OTHER).to(ACC),)
    return x


@triton.jit
def store_tiles(rows, stride_n, y, lane, inside, N):
    """Tiles y of held rows, as columns of rows that begin at `rows`."""
    for k in tl.static_range(len(y)):
        n = k * lane.shape[1] + lane
        valid = inside & (n < N) if k == len(y) - 1 else inside
        tl.store(rows + n.to(tl.int64) * stride_n, y[k], mask=valid)


@triton.jit
def exponentials(x):
    """(largest, sum of exponentials relative to it) of rows in tiles: values leave their thread once, not at every tile."""
    high = x[0]
    for k in tl.static_range(1, len(x)):
        high = tl.maximum(high, x[k])
    high = tl.max(high, 1)
    shift = finite(high)[:, None]
    total = quick_exp(x[0] - shift)
    for k in tl.static_range(1, len(x)):
        total += quick_exp(x[k] - shift)
    return high, tl.sum(total, 1)


# ------------------------------------------------------------------ sums of exponentials, online
@triton.jit
def online(top, total, x, LANES: tl.constexpr, VEC: tl.constexpr):
    """(largest, sum of exponentials relative to it) of LANES lanes a row, both (rows, LANES), after a tile x (rows, columns).

    Element (r · LANES + lane) · VEC + v of a row belongs to `lane`. Where a thread loads VEC elements at a time and a row of the tile
    lies on LANES threads, no value leaves its thread, and a lane costs one exponential more than it has elements.
    """
    x = tl.reshape(x, (x.shape[0], x.shape[1] // (LANES * VEC), LANES, VEC))
    high = tl.maximum(top, tl.max(tl.max(x, 3), 1))
    shift = finite(high)
    total = total * quick_exp(top - shift) + tl.sum(tl.sum(quick_exp(x - shift[:, None, :, None]), 3), 1)
    return high, total


@triton.jit
def online_rows(top, total):
    """The same of every row, (rows,), from that of its lanes."""
    high = tl.max(top, 1)
    return high, tl.sum(total * quick_exp(top - finite(high)[:, None]), 1)


@triton.jit
def finite(high):
    """What exponentials are taken relative to: 0 where all there is so far is -inf, whose difference to itself is nan."""
    return tl.where(high == float("-inf"), 0, high)


# ------------------------------------------------------------------ two stages
@triton.jit
def store_line(ptr, x, N, VEC: tl.constexpr):
    """ptr[n] = Σ x[:, n] for n < N. Where a thread holds 8 neighbours it stores them as 2 times 4: a tile of float32 stored in one
    piece would lie 4 to a thread, and the compiler would move all that goes into it, at each step of the loop before, instead."""
    x = tl.sum(x, 0)
    BLOCK: tl.constexpr = x.shape[0]
    if VEC == 8 and BLOCK >= 8:
        low, high = tl.split(tl.permute(tl.reshape(x, (BLOCK // 8, 2, 4)), (0, 2, 1)))
        n = 8 * tl.arange(0, BLOCK // 8)[:, None] + tl.arange(0, 4)[None, :]
        tl.store(ptr + n, low, mask=n < N)
        tl.store(ptr + n + 4, high, mask=n + 4 < N)
    else:
        n = tl.arange(0, BLOCK)
        tl.store(ptr + n, x, mask=n < N)


@triton.jit
def zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HELD: tl.constexpr, ACC: tl.constexpr):
    """HELD tiles of zeros, to sum up rows that are held."""
    tiles = ()
    for _ in tl.static_range(HELD):
        tiles = tiles + (tl.zeros((BLOCK_M, BLOCK_N), ACC),)
    return tiles


@triton.jit
def store_lines(ptr, tiles, N, VEC: tl.constexpr):
    """What a program has summed up in tiles, as its line of (programs, N)."""
    for k in tl.static_range(len(tiles)):
        start = k * tiles[0].shape[1]
        store_line(ptr + tl.program_id(0) * N + start, tiles[k], N - start, VEC)


@triton.jit
def sum_lines_kernel(out_ptrs, part_ptrs, P, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """out = Σ of the P lines of parts (P, N), for each of a few tensors; always in the same order."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for k in tl.static_range(len(out_ptrs)):
        if tl.program_id(1) == k:
            total = tl.zeros((BLOCK_P, BLOCK_N), part_ptrs[k].dtype.element_ty)
            for j in range(0, P, BLOCK_P):
                p = j + tl.arange(0, BLOCK_P)[:, None]
                total += tl.load(part_ptrs[k] + p.to(tl.int64) * N + n, mask=(p < P) & (n < N), other=0)
            tl.store(out_ptrs[k] + n, tl.sum(total, 0, keep_dims=True), mask=n < N)
