"""Putting tensors behind each other."""
import triton
import triton.language as tl

from .reduce import even


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


@triton.jit
def join_short_kernel(out_ptr, x_ptrs, starts, widths, N, TOTAL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The same where rows of out are short: a program writes whole lines of memory, N elements in all."""
    i = tl.program_id(0)
    i = (i.to(tl.int64) if WIDE else i) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // TOTAL, i % TOTAL
    value = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
    for k in tl.static_range(len(x_ptrs)):
        at = column - starts[k]
        here = (at >= 0) & (at < widths[k])
        value = tl.where(here, tl.load(x_ptrs[k] + row * widths[k] + at, mask=here & (i < N), other=0), value)
    tl.store(out_ptr + i, value, mask=i < N)


@triton.jit
def interleave_kernel(out_ptr, x_ptrs, N, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """out[i, k] = x_k[i] for 2^LOG x_k of N elements: neighbours are put together in the registers of a thread."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    parts = ()
    for k in tl.static_range(len(x_ptrs)):
        parts = parts + (tl.load(x_ptrs[k] + i, mask=i < N),)
    for _ in tl.static_range(LOG):
        pairs = ()
        for k in tl.static_range(len(parts) // 2):
            pairs = pairs + (tl.interleave(parts[k], parts[k + len(parts) // 2]),)
        parts = pairs
    COUNT: tl.constexpr = BLOCK * len(x_ptrs)
    o = first * len(x_ptrs) + tl.arange(0, COUNT)
    tl.store(out_ptr + o, parts[0], mask=o < N * len(x_ptrs))


@triton.constexpr_function
def turned(i, LOG):
    """The number of LOG bits, 2 or 3, in the opposite order."""
    return (i >> 2) + (i & 2) + (i & 1) * 4 if LOG == 3 else (i >> 1) + (i & 1) * 2


@triton.constexpr_function
def source(k, p, LOG):
    """Of the k-th 2^LOG elements that a thread writes, that which halving puts in place p."""
    return (k << LOG) + ((p >> 2) + (p & 2) + (p & 1) * 4 if LOG == 3 else (p >> 1) + (p & 1) * 2)


@triton.jit
def lace_kernel(out_ptr, x_ptrs, N, LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The same for a number of x_k that is no power of two: a thread takes 2^LOG elements of each, which is what it loads at once, and
    stores as many at a time; which goes where is known when this is compiled, and costs no instruction."""
    COUNT: tl.constexpr = len(x_ptrs)
    EACH: tl.constexpr = 1 << LOG
    group = tl.program_id(0)
    group = (group.to(tl.int64) if WIDE else group) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, EACH)[None, :]
    row = group * EACH + lane
    columns = ()
    for k in tl.static_range(COUNT):
        x = tl.load(x_ptrs[k] + row, mask=row < N, other=0)
        pieces = (tl.reshape(x, (BLOCK, 2, 2, 2) if LOG == 3 else (BLOCK, 2, 2)),)
        for _ in tl.static_range(LOG):
            halves = ()
            for p in tl.static_range(len(pieces)):
                a, b = tl.split(pieces[p])
                halves = halves + (a, b)
            pieces = halves
        columns = columns + (pieces,)
    for k in tl.static_range(COUNT):
        parts = ()
        for p in tl.static_range(EACH):
            parts = parts + (columns[source(k, p, LOG) % COUNT][turned(source(k, p, LOG) // COUNT, LOG)],)
        for _ in tl.static_range(LOG):
            pairs = ()
            for p in tl.static_range(len(parts) // 2):
                pairs = pairs + (tl.join(parts[2 * p], parts[2 * p + 1]),)
            parts = pairs
        at = group * (EACH * COUNT) + (k * EACH + lane)
        tl.store(out_ptr + at, tl.reshape(parts[0], (BLOCK, EACH)), mask=at < N * COUNT)
