"""Bags: runs of indices into a table, of whose rows each bag is the sum, the mean or the largest elements."""
import triton
import triton.language as tl

from .indexing import report


@triton.jit
def bounds(word_ptr, offset_ptr, bag, bags, n, length, number):
    """Where bags begin and end among n indices: bags of one length, or one after the other from 0 on, the last up to n. What the offsets
    say besides is reported. Whatever they are, each index then lies in some bag."""
    if offset_ptr is None:
        start = bag * length
        end = start + length
    else:
        given = tl.load(offset_ptr + bag, mask=bag < bags, other=0).to(tl.int64)
        after = tl.load(offset_ptr + bag + 1, mask=bag + 1 < bags, other=0).to(tl.int64)
        after = tl.where(bag + 1 < bags, after, n)
        report(word_ptr, (bag < bags) & ((given < 0) | (given > after) | (given > n) | ((bag == 0) & (given != 0))), given.to(tl.float64),
               number)
        start = tl.where(bag == 0, 0, tl.minimum(tl.maximum(given, 0), n))
        end = tl.minimum(tl.maximum(after, 0), n)
    return start, tl.where(bag < bags, tl.maximum(end, start), start)


@triton.jit
def named(index_ptr, i, there, rows, padding, wrong):
    """Rows that the indices i name, whether they count, and the last index that names none; if all do, `wrong`, 0 at first."""
    given = tl.load(index_ptr + i, mask=there, other=0).to(tl.int64)
    bad = there & ((given < 0) | (given >= rows))
    return given, there & (bad == 0) & (given != padding), tl.where(bad, given, wrong)


@triton.jit
def own(owner_ptr, bag, start, end):
    """Write to which bag each index belongs: apart from the loads of rows, which a store between them would hold up."""
    for first in range(0, tl.max(tl.ravel(end - start), 0), 32):
        i = start + first + tl.arange(0, 32)[None, :]
        tl.store(owner_ptr + i, bag + 0 * i, mask=i < end)


@triton.jit
def bag_sums_kernel(out_ptr, size_ptr, owner_ptr, word_ptr, table_ptr, index_ptr, offset_ptr, factor_ptr, bags, n, length, rows, R,
                    stride_tn, stride_tr, padding, number, offset_number, MEAN: tl.constexpr, AHEAD: tl.constexpr, BLOCK_B: tl.constexpr,
                    BLOCK_R: tl.constexpr):
    """The sum (mean) of the rows of each bag, times factors, in the order of the indices; how many count; to which bag each index belongs.
    AHEAD rows are loaded before the first is added."""
    tiles_r = tl.maximum(tl.cdiv(R, BLOCK_R), 1)                         # rows may have no elements
    tile_r = tl.program_id(0) % tiles_r
    bag = (tl.program_id(0) // tiles_r).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)[:, None]
    r = tile_r.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[None, :]
    wide: tl.constexpr = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32
    start, end = bounds(word_ptr, offset_ptr, bag, bags, n, length, offset_number)
    total = tl.zeros((BLOCK_B, BLOCK_R), wide)
    size, wrong = tl.zeros((BLOCK_B, 1), tl.int64), tl.zeros((BLOCK_B, 1), tl.int64)
    for first in range(0, tl.max(tl.ravel(end - start), 0), AHEAD):
        for k in tl.static_range(AHEAD):
            i = start + first + k
            there = i < end
            row, known, wrong = named(index_ptr, i, there, rows, padding, wrong)
            value = tl.load(table_ptr + row * stride_tn + r * stride_tr, mask=known & (r < R), other=0).to(wide)
            if factor_ptr is not None:
                value *= tl.load(factor_ptr + i, mask=known, other=0).to(wide)
            total += value
            size += known.to(tl.int64)
    report(word_ptr, wrong != 0, wrong.to(tl.float64), number)
    if MEAN:
        total = total / tl.maximum(size, 1).to(wide)
    tl.store(out_ptr + bag * R + r, total.to(out_ptr.dtype.element_ty), mask=(bag < bags) & (r < R))
    if tile_r == 0:
        tl.store(size_ptr + bag, size, mask=bag < bags)
        own(owner_ptr, bag, start, end)


@triton.jit
def bag_maxima_kernel(out_ptr, chosen_ptr, size_ptr, owner_ptr, word_ptr, table_ptr, index_ptr, offset_ptr, bags, n, length, rows, R,
                      stride_tn, stride_tr, padding, number, offset_number, BLOCK_B: tl.constexpr, BLOCK_R: tl.constexpr):
    """The largest element of each column among the rows of a bag, and of which row it is: the first, unless a later one is greater."""
    tiles_r = tl.maximum(tl.cdiv(R, BLOCK_R), 1)                         # rows may have no elements
    tile_r = tl.program_id(0) % tiles_r
    bag = (tl.program_id(0) // tiles_r).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)[:, None]
    r = tile_r.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[None, :]
    wide: tl.constexpr = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32
    start, end = bounds(word_ptr, offset_ptr, bag, bags, n, length, offset_number)
    best, chosen = tl.zeros((BLOCK_B, BLOCK_R), wide), tl.full((BLOCK_B, BLOCK_R), -1, tl.int64)
    size, wrong = tl.zeros((BLOCK_B, 1), tl.int64), tl.zeros((BLOCK_B, 1), tl.int64)
    for k in range(tl.max(tl.ravel(end - start), 0)):
        i = start + k
        there = i < end
        row, known, wrong = named(index_ptr, i, there, rows, padding, wrong)
        value = tl.load(table_ptr + row * stride_tn + r * stride_tr, mask=known & (r < R), other=0).to(wide)
        better = known & ((chosen < 0) | (value > best))
        best, chosen = tl.where(better, value, best), tl.where(better, row, chosen)
        size += known.to(tl.int64)
    report(word_ptr, wrong != 0, wrong.to(tl.float64), number)
    inside = (bag < bags) & (r < R)
    tl.store(out_ptr + bag * R + r, best.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(chosen_ptr + bag * R + r, chosen, mask=inside)
    if tile_r == 0:
        tl.store(size_ptr + bag, size, mask=bag < bags)
        own(owner_ptr, bag, start, end)


@triton.jit
def bag_dots_kernel(out_ptr, table_ptr, index_ptr, row_ptr, owner_ptr, n, rows, R, stride_tn, stride_tr, stride_rn, stride_rr, padding,
                    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):
    """Of each index the product of the row that it names with the row of its bag; 0 for what does not count."""
    i = (tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    wide: tl.constexpr = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32
    row, known, _ = named(index_ptr, i, i < n, rows, padding, 0)
    owner = tl.load(owner_ptr + i, mask=i < n, other=0).to(tl.int64)
    total = tl.zeros((BLOCK_N, BLOCK_R), wide)
    for first in range(0, R, BLOCK_R):
        r = (first + tl.arange(0, BLOCK_R)).to(tl.int64)[None, :]
        inside = known & (r < R)
        x = tl.load(table_ptr + row * stride_tn + r * stride_tr, mask=inside, other=0).to(wide)
        total += x * tl.load(row_ptr + owner * stride_rn + r * stride_rr, mask=inside, other=0).to(wide)
    tl.store(out_ptr + i, tl.sum(total, 1, keep_dims=True).to(out_ptr.dtype.element_ty), mask=i < n)
