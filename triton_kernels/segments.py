"""Rows joined where their places are equal, in the order in which they came. Rows of one place are a segment of the sorted places."""
import triton
import triton.language as tl

from .scalar import maximum, minimum, mul, plus


@triton.jit
def sum_all(x):
    return tl.reduce(x, 0, plus, keep_dims=True)


@triton.jit
def prod_all(x):
    return tl.reduce(x, 0, mul, keep_dims=True)


@triton.jit
def amax_all(x):
    return tl.reduce(x, 0, maximum, keep_dims=True)


@triton.jit
def amin_all(x):
    return tl.reduce(x, 0, minimum, keep_dims=True)


@triton.jit
def before(sorted_ptr, n, place, kind: tl.constexpr, STEPS: tl.constexpr):
    """How many of n sorted places, of which those of -1 lie at the end, come before some places; a number of this kind."""
    low = (place * 0).to(kind)
    high = (low + n).to(kind)                                            # a count of nearly 2³¹ comes in 64 bits
    for _ in range(STEPS):
        middle = low + (high - low) // 2
        other = tl.load(sorted_ptr + middle, mask=low < high, other=-1)
        below = (other >= 0) & (other < place) & (low < high)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, tl.minimum(middle, high))
    return low


@triton.jit
def bounds_kernel(bounds_ptr, sorted_ptr, n, rows, HEADS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Where the segment of each row begins in the sorted places; one number more than rows. HEADS: rows are the n places themselves, and
    the segment is that of the first of equal ones."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kind: tl.constexpr = bounds_ptr.dtype.element_ty
    if HEADS:
        place = tl.load(sorted_ptr + row, mask=row < n, other=-1).to(tl.int64)
        last = tl.load(sorted_ptr + row - 1, mask=(row > 0) & (row <= n), other=-1).to(tl.int64)
        end = before(sorted_ptr, n, tl.where(place >= 0, place + 1, 0x7FFFFFFFFFFFFFFF), kind, STEPS)
        low = tl.where((place >= 0) & (place != last), row.to(kind), end)
    else:
        low = before(sorted_ptr, n, tl.minimum(row, rows), kind, STEPS)
    tl.store(bounds_ptr + row, low, mask=row <= rows)


@triton.jit
def walked_bounds_kernel(bounds_ptr, sorted_ptr, n, rows, PIECE: tl.constexpr):
    """The same of all rows, from place to place: for a program that is one thread, as those of the host are. Each has PIECE places, and
    writes the bounds between the one before them and its last; the last program those behind, too."""
    first = tl.program_id(0).to(tl.int64) * PIECE
    end = tl.minimum(first + PIECE, n)
    before = tl.load(sorted_ptr + first - 1, mask=first > 0, other=0).to(tl.int64)
    written = tl.where(first > 0, tl.where(before < 0, rows, before) + 1, 0)
    for i in range(first, end):
        place = tl.load(sorted_ptr + i).to(tl.int64)
        place = tl.where(place < 0, rows, place)
        for row in range(written, place + 1):
            tl.store(bounds_ptr + row, i.to(bounds_ptr.dtype.element_ty))
        written = place + 1
    if end == n:
        for row in range(written, rows + 1):
            tl.store(bounds_ptr + row, n)


@triton.jit
def source(src_ptr, weight_ptr, owner_ptr, i, r, there, inside, stride_n, stride_r, TAPS: tl.constexpr, wide: tl.constexpr):
    """Rows i of the source that are there, or rows i // TAPS of it, or those that the owners name; with weights, times weights i."""
    row = i // TAPS if owner_ptr is None else tl.load(owner_ptr + i, mask=there, other=0).to(tl.int64)
    value = tl.load(src_ptr + row * stride_n + r * stride_r, mask=there & inside, other=0).to(wide)
    if weight_ptr is not None:
        value *= tl.load(weight_ptr + i, mask=there, other=0).to(wide)
    return value


@triton.jit
def walked_sum_kernel(out_ptr, src_ptr, weight_ptr, owner_ptr, place_ptr, n, R, stride_sn, stride_sr, alpha, skip, TAPS: tl.constexpr,
                      BLOCK_R: tl.constexpr):
    """Adds alpha times each row to what is at its place, in order and without sorting, for programs that are threads: each has some columns
    of all rows. The place `skip`, and -1, get nothing."""
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    wide: tl.constexpr = out_ptr.dtype.element_ty
    for i in range(n):
        place = tl.load(place_ptr + i).to(tl.int64)
        if (place >= 0) & (place != skip):
            value = source(src_ptr, weight_ptr, owner_ptr, i.to(tl.int64), r, place >= 0, r < R, stride_sn, stride_sr, TAPS, wide)
            if alpha is not None:
                value = value * alpha.to(wide)
            at = out_ptr + place * R + r
            tl.store(at, tl.load(at, mask=r < R, other=0) + value, mask=r < R)


@triton.jit
def pieces_kernel(piece_ptr, src_ptr, weight_ptr, owner_ptr, sorted_ptr, order_ptr, bounds_ptr, n, R, stride_sn, stride_sr,
                  JOIN: tl.constexpr, ALL: tl.constexpr, IDENTITY: tl.constexpr, LONG: tl.constexpr, TAPS: tl.constexpr,
                  STEPS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):
    """What LONG consecutive places add to segments of more than LONG: to one that begins before (0) and one that begins here (1). Without
    bounds of the rows they are looked for."""
    tiles_r = tl.cdiv(R, BLOCK_R)
    piece = (tl.program_id(0) // tiles_r).to(tl.int64)
    r = (tl.program_id(0) % tiles_r).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[None, :]
    low = piece * LONG
    high = tl.minimum(low + LONG, n)
    for slot in tl.static_range(2):
        place = tl.load(sorted_ptr + (low if slot == 0 else high - 1)).to(tl.int64)
        if bounds_ptr is None:
            start = before(sorted_ptr, n, tl.maximum(place, 0), order_ptr.dtype.element_ty, STEPS)
            end = before(sorted_ptr, n, tl.maximum(place, 0) + 1, order_ptr.dtype.element_ty, STEPS)
        else:
            start = tl.load(bounds_ptr + tl.maximum(place, 0))
            end = tl.load(bounds_ptr + tl.maximum(place, 0) + 1)
        if (place >= 0) & (end - start > LONG) & ((start < low) == (slot == 0)):
            total = tl.full((BLOCK_N, BLOCK_R), IDENTITY, piece_ptr.dtype.element_ty)
            for first in range(tl.maximum(start, low), tl.minimum(end, high), BLOCK_N):
                i = first + tl.arange(0, BLOCK_N)[:, None]
                inside = i < tl.minimum(end, high)
                row = tl.load(order_ptr + i, mask=inside, other=0).to(tl.int64)
                value = source(src_ptr, weight_ptr, owner_ptr, row, r, inside, r < R, stride_sn, stride_sr, TAPS, total.dtype)
                total = tl.where(inside, JOIN(total, value), total)
            tl.store(piece_ptr + (piece * 2 + slot) * R + r, ALL(total), mask=r < R)


@triton.jit
def segments_kernel(out_ptr, base_ptr, src_ptr, weight_ptr, owner_ptr, order_ptr, bounds_ptr, piece_ptr, row_ptr, rows, R, stride_bn,
                    stride_br, stride_sn, stride_sr, alpha, skip, JOIN: tl.constexpr, IDENTITY: tl.constexpr, TOUCHED: tl.constexpr,
                    LONG: tl.constexpr, TAPS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):
    """out[n] = base[n] (without base: 0) joined with alpha times the segment of n, whose long ones lie in pieces. The row `skip` has no
    segment. TOUCHED: out is base, rows without a segment stay as they are; row_ptr may tell which rows the segments are of. AHEAD rows of
    a segment are under way together."""
    tiles_r = tl.cdiv(R, BLOCK_R)
    n = (tl.program_id(0) // tiles_r).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    r = (tl.program_id(0) % tiles_r).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[None, :]
    wide: tl.constexpr = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else (tl.float32 if out_ptr.dtype.element_ty.is_floating()
                                                                                    else tl.int64)
    start = tl.load(bounds_ptr + n, mask=n < rows, other=0)
    count = tl.where(n == skip, 0, tl.load(bounds_ptr + n + 1, mask=n < rows, other=0) - start)
    inside = (n < rows) & (r < R)
    total = tl.full((BLOCK_N, BLOCK_R), IDENTITY, wide)
    near = tl.where(count > LONG, 0, count)
    for first in range(0, tl.max(tl.ravel(near), 0), AHEAD):
        values = ()
        for k in tl.static_range(AHEAD):
            there = first + k < near
            row = tl.load(order_ptr + start + first + k, mask=there, other=0).to(tl.int64)
            values = values + (source(src_ptr, weight_ptr, owner_ptr, row, r, there, inside, stride_sn, stride_sr, TAPS, wide),)
        for k in tl.static_range(AHEAD):
            total = tl.where(first + k < near, JOIN(total, values[k]), total)
    if piece_ptr is not None:
        first = start // LONG
        pieces = tl.where(count > LONG, (start + count - 1) // LONG - first + 1, 0)
        for j in range(tl.max(tl.ravel(pieces), 0)):
            at = ((first + j).to(tl.int64) * 2 + (j == 0)) * R + r
            total = tl.where(j < pieces, JOIN(total, tl.load(piece_ptr + at, mask=(j < pieces) & inside, other=0)), total)
    if alpha is not None:
        total = total * alpha.to(wide)
    if row_ptr is not None:
        n = tl.load(row_ptr + n, mask=count > 0, other=0).to(tl.int64)
    if base_ptr is None:
        total = tl.where(count > 0, total, 0)
    else:
        base = tl.load(base_ptr + n * stride_bn + r * stride_br, mask=inside & (count > 0) if TOUCHED else inside, other=0)
        total = tl.where(count > 0, JOIN(base.to(wide), total), base.to(wide))
    kept = inside & (count > 0) if TOUCHED else inside
    tl.store(out_ptr + n * R + r, total.to(out_ptr.dtype.element_ty), mask=kept)
