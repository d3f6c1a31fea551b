"""Picking and writing rows by index. Destinations are resolved in a fixed order, so results do not depend on the schedule."""
import triton
import triton.language as tl

from .reduce import even


@triton.jit
def report(word_ptr, bad, value, number):
    """Tell the host of one bad index, or of the bits of a bad float64: the word holds the number of what was expected and the value."""
    if word_ptr is not None:
        if tl.max(tl.ravel(bad.to(tl.int32)), 0) > 0:
            found = value.to(tl.int64, bitcast=True)
            tl.store(word_ptr, number)
            tl.store(word_ptr + 1, tl.max(tl.ravel(tl.where(bad, found, -0x7FFFFFFFFFFFFFFF)), 0))


@triton.jit
def within_kernel(out_ptr, word_ptr, x_ptr, N, low, high, number, BLOCK: tl.constexpr):
    """out[i] = x[i], which is reported unless low ≤ x[i] ≤ high."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < N, other=0)
    wide = x.to(tl.float64)
    report(word_ptr, (i < N) & (((wide >= low) & (wide <= high)) == 0), wide, number)
    tl.store(out_ptr + i, x, mask=i < N)


@triton.jit
def pointed(word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP: tl.constexpr, OUTER: tl.constexpr, EVEN: tl.constexpr,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Of a tile of an index of any rank: its own numbers in row-major order, whether they exist, whether what they name does, and where
    that lies in a tensor of strides `st` (0 along the indexed dim, whose stride is `step`). With WRAP negative indices count from the
    end. EVEN divides N and the strides of rows of the index."""
    N = even(N, EVEN)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_m = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m = ((pid // tiles_n % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = ((pid % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    outer = pid // tiles_n // tiles_m
    row = outer.to(tl.int64)
    from_index = tl.zeros((), tl.int64)
    to_place = tl.zeros((), tl.int64)
    for k in tl.static_range(OUTER):
        at = (outer % shape[OUTER - 1 - k]).to(tl.int64)
        from_index += at * even(si[OUTER - 1 - k], EVEN)
        to_place += at * st[OUTER - 1 - k]
        outer = outer // shape[OUTER - 1 - k]
    mask = (m < M) & (n < N)
    given = tl.load(index_ptr + (from_index + m * even(si[OUTER], EVEN)) + n * si[OUTER + 1], mask=mask, other=0).to(tl.int64)
    index = tl.where(given < 0, given + size, given) if WRAP else given
    known = (index >= 0) & (index < size)
    report(word_ptr, mask & (known == 0), given, number)
    return (row * M + m) * N + n, mask, mask & known, (to_place + m * st[OUTER]) + n * st[OUTER + 1] + index * step


@triton.jit
def places_kernel(out_ptr, word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP: tl.constexpr, OUTER: tl.constexpr,
                  EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Linear places that an index points to; -1 where outside."""
    i, mask, known, place = pointed(word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP, OUTER, EVEN, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + i, tl.where(known, place, -1), mask=mask)


@triton.jit
def joint_places_kernel(out_ptr, word_ptr, index_ptrs, shape, strides, sizes, N, number, WRAP: tl.constexpr, RANK: tl.constexpr,
                        BLOCK: tl.constexpr):
    """Linear places in a tensor of `sizes` that indices, one a dim, of one `shape` name together; -1 where one of them is outside."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place, known = tl.zeros((BLOCK,), tl.int64), i < N
    for k in tl.static_range(len(index_ptrs)):
        rest, at = i, tl.zeros((BLOCK,), tl.int64)
        for d in tl.static_range(RANK - 1):
            at += rest % shape[RANK - 1 - d] * strides[k * RANK + RANK - 1 - d]
            rest = rest // shape[RANK - 1 - d]
        given = tl.load(index_ptrs[k] + (at + rest * strides[k * RANK]), mask=i < N, other=0).to(tl.int64)
        index = tl.where(given < 0, given + sizes[k], given) if WRAP else given
        inside = (index >= 0) & (index < sizes[k])
        report(word_ptr, (i < N) & (inside == 0), given, number)
        place, known = place * sizes[k] + index, known & inside
    tl.store(out_ptr + i, tl.where(known, place, -1), mask=i < N)


@triton.jit
def gather_kernel(out_ptr, word_ptr, x_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP: tl.constexpr, OUTER: tl.constexpr,
                  EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """What an index points to in x; 0 where outside."""
    i, mask, known, place = pointed(word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP, OUTER, EVEN, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + i, tl.load(x_ptr + place, mask=known, other=0), mask=mask)


@triton.jit
def put_number_kernel(out_ptr, word_ptr, value, index_ptr, shape, si, st, step, size, M, N, number, WRAP: tl.constexpr,
                      OUTER: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """One number wherever an index points to: who comes last does not matter."""
    _, _, known, place = pointed(word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP, OUTER, EVEN, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + place, tl.full(place.shape, value, out_ptr.dtype.element_ty), mask=known)


@triton.jit
def put_kernel(out_ptr, word_ptr, src_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP: tl.constexpr, OUTER: tl.constexpr,
               EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The elements of a contiguous src where an index points to, no two of which are the same place."""
    i, _, known, place = pointed(word_ptr, index_ptr, shape, si, st, step, size, M, N, number, WRAP, OUTER, EVEN, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + place, tl.load(src_ptr + i, mask=known, other=0).to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def take_rows_kernel(out_ptr, word_ptr, x_ptr, index_ptr, added_ptr, stride_xp, stride_xn, stride_xr, stride_i, N, K, R, rows, every,
                     number, WRAP: tl.constexpr, EVEN: tl.constexpr, ONE: tl.constexpr, DOWN: tl.constexpr, BLOCK_K: tl.constexpr,
                     BLOCK_R: tl.constexpr):
    """out[p, k, r] = x[p, index[k], r] for `rows` pairs (p, k), without ONE of several p; rows outside are not read and become 0, with
    WRAP negative ones count from the end. EVEN divides R and the strides of p and n. DOWN: all rows of the first BLOCK_R columns come
    before those of the next, so that a row that is named again is still in the cache, which what is written leaves first. Unless
    added_ptr is None, the contiguous rows there are added, after `every` rows the first one again."""
    R, stride_xp, stride_xn = even(R, EVEN), even(stride_xp, EVEN), even(stride_xn, EVEN)
    if DOWN:
        tile_k, tile_r = tl.program_id(0) % tl.cdiv(rows, BLOCK_K), tl.program_id(0) // tl.cdiv(rows, BLOCK_K)
    else:
        tile_k, tile_r = tl.program_id(0) // tl.cdiv(R, BLOCK_R), tl.program_id(0) % tl.cdiv(R, BLOCK_R)
    row = tile_k.to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
    r = tile_r.to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    there = row < rows
    given = tl.load(index_ptr + (row if ONE else row % K) * stride_i, mask=there, other=0).to(tl.int64)
    index = tl.where(given < 0, given + N, given) if WRAP else given
    inside = there[:, None] & (r < R)[None, :]
    report(word_ptr, there & ((index < 0) | (index >= N)), given, number)
    known = ((index >= 0) & (index < N))[:, None]
    at = index * stride_xn if ONE else row // K * stride_xp + index * stride_xn
    x = tl.load(x_ptr + at[:, None] + r[None, :] * stride_xr, mask=inside & known, other=0)
    if added_ptr is not None:
        kind: tl.constexpr = tl.float64 if x.dtype == tl.float64 else tl.float32
        x = x.to(kind) + tl.load(added_ptr + (row % every)[:, None] * R + r[None, :], mask=inside, other=0).to(kind)
    tl.store(out_ptr + row[:, None] * R + r[None, :], x, mask=inside, eviction_policy="evict_first" if DOWN else "")


@triton.jit
def last_writer_kernel(winner_ptr, place_ptr, n, size, BLOCK: tl.constexpr):
    """For each row the greatest position that writes it: integer maxima do not depend on their order."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(place_ptr + i, mask=i < n, other=-1)
    tl.atomic_max(winner_ptr + place, i.to(winner_ptr.dtype.element_ty), mask=(i < n) & (place >= 0) & (place < size), sem="relaxed")


@triton.jit
def place_of(i, shape, stride, RANK: tl.constexpr):
    """Where element i of a tensor of this shape lies."""
    place = tl.zeros_like(i)
    for k in tl.static_range(RANK - 1):
        place += i % shape[RANK - 1 - k] * stride[RANK - 1 - k]
        i = i // shape[RANK - 1 - k]
    return place + i * stride[0]


@triton.jit
def write_rows_kernel(out_ptr, src_ptr, winner_ptr, rows, R, shape_n, stride_on, shape_r, stride_or, stride_sr, stride_sn,
                      RANK_N: tl.constexpr, RANK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):
    """Rows of any strides that somebody writes get the row of their last writer."""
    tiles_r = tl.cdiv(R, BLOCK_R)
    n = (tl.program_id(0) // tiles_r).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    r = (tl.program_id(0) % tiles_r).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    winner = tl.load(winner_ptr + n, mask=n < rows, other=-1).to(tl.int64)
    mask = ((winner >= 0) & (n < rows))[:, None] & (r < R)[None, :]
    value = tl.load(src_ptr + winner[:, None] * stride_sn + place_of(r, shape_r, stride_sr, RANK_R)[None, :], mask=mask)
    to = place_of(n, shape_n, stride_on, RANK_N)[:, None] + place_of(r, shape_r, stride_or, RANK_R)[None, :]
    tl.store(out_ptr + to, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def count_kernel(count_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """How many elements of each block are not zero."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(count_ptr + tl.program_id(0), tl.sum((x != 0).to(tl.int64), 0))


@triton.jit
def compact_kernel(out_ptr, x_ptr, before_ptr, n, BLOCK: tl.constexpr):
    """The places of the elements that are not zero, in order; `before` counts those of the blocks before."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    kept = (x != 0).to(tl.int64)
    at = tl.load(before_ptr + tl.program_id(0)) + tl.cumsum(kept, 0) - kept
    tl.store(out_ptr + at, i, mask=kept != 0)
