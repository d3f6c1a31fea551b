"""Jacobi's rotations. A sweep over a matrix of N = 2^k rows has N - 1 rounds; in round r rows and columns i and i ^ r are rotated together,
all pairs at once. Larger matrices are cut into blocks of columns, whose pairs meet in the rounds of a tournament."""
import triton
import triton.language as tl

from .scalar import sqrt


@triton.jit
def measure(a, norm, i, j, GRAM: tl.constexpr):
    """How far a symmetric matrix is from a diagonal one: its greatest element off the diagonal, beside `norm`. GRAM, of products of
    columns: beside the length of the longer one of the two times the greatest of all, whose square is `norm`."""
    size = tl.where(i == j, 0, tl.abs(a))
    if GRAM:
        d = tl.sum(tl.where(i == j, a, 0), 1)
        e = tl.sum(tl.where(i == j, a, 0), 0)
        beside = sqrt(norm * tl.maximum(d[:, None], e[None, :]))
    else:
        beside = norm + tl.zeros_like(a)
    return tl.max(tl.max(size / tl.where(beside == 0, 1, beside), 1), 0)


@triton.jit
def rotation(own, other, off, first):
    """(k, h, change): the rotation that makes `off` zero, the element between two of the diagonal: own + k · (other - h · own) is the new
    one, for rows and for columns, which of small angles keeps all digits (Rutishauser). change: that of `own`, the element on the
    diagonal. `first`: the own one is the first of the two."""
    distance = tl.where(first, other - own, own - other)
    theta = distance / (2 * tl.where(off == 0, 1, off))
    t = 1 / (tl.abs(theta) + sqrt(1 + theta * theta))
    t = tl.where(off == 0, 0, tl.where(theta < 0, -t, t))
    c = 1 / sqrt(1 + t * t)
    t = tl.where(first, -t, t)
    return t * c, t * c / (1 + c), t * off


@triton.jit
def sweep(a, q, rounds, N: tl.constexpr):
    """Every two rows and columns of a rotated against each other once, and the columns of q with them."""
    r = tl.arange(0, N)
    i = r[:, None]
    j = r[None, :]
    own = tl.sum(tl.where(i == j, a, 0), 1)
    for k in range(1, rounds + 1):
        p = r ^ k
        across = (i * 0) + p[None, :]
        down = p[:, None] + (j * 0)
        off = tl.sum(tl.where(j == down, a, 0), 1)
        off = tl.where(r < p, off, tl.gather(off, p, 0))             # rounding made the two sides of the diagonal different
        s, h, change = rotation(own, tl.gather(own, p, 0), off, r < p)
        own += change
        q += s[None, :] * (tl.gather(q, across, 1) - h[None, :] * q)
        a += s[None, :] * (tl.gather(a, across, 1) - h[None, :] * a)
        a += s[:, None] * (tl.gather(a, down, 0) - h[:, None] * a)
    return a, q


@triton.jit
def jacobi_kernel(d_ptr, q_ptr, worst_ptr, g_ptr, norm_ptr, n, rounds, sweeps, each, stop, GRAM: tl.constexpr, N: tl.constexpr):
    """Eigenvalues (count, n) and eigenvectors (count, n, n) of symmetric matrices, each n by n and contiguous, in no order, after sweeps
    until `measure` says at most `stop`, or so many. worst: what it said at first. The lower triangles are read. `norm` is one for `each`
    matrices that follow each other; None: it is taken from the matrix, and of one with numbers that are none no result is a number."""
    place = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, N)
    i = r[:, None]
    j = r[None, :]
    at = place * n * n + i * n + j
    inside = (i < n) & (j < n)
    a = tl.load(g_ptr + place * n * n + tl.maximum(i, j) * n + tl.minimum(i, j), mask=inside, other=0)
    scale = tl.max(tl.max(tl.abs(a), 1), 0)
    if norm_ptr is not None:
        norm = tl.load(norm_ptr + place // each)
    elif GRAM:
        norm = tl.max(tl.max(tl.where(i == j, a, 0), 1), 0)
    else:
        scale = tl.where(scale == 0, 1, scale)
        a = a / scale                                                    # squares would overflow, or vanish
        norm = sqrt(tl.sum(tl.sum(a * a, 1), 0))
    q = tl.where(i == j, 1, 0).to(a.dtype)
    far = measure(a, norm, i, j, GRAM)
    tl.store(worst_ptr + place, far)
    left = tl.where(far > stop, sweeps, 0)
    while left > 0:
        a, q = sweep(a, q, rounds, N)
        far = measure(a, norm, i, j, GRAM)
        left = tl.where(far > stop, left - 1, 0)
    d = tl.sum(tl.where(i == j, a, 0), 1)
    if norm_ptr is None and not GRAM:
        d = d * scale + norm * 0                                         # adds NaN, or nothing
        q = q + norm * 0
    tl.store(q_ptr + at, q, mask=inside)
    tl.store(d_ptr + place * n + r, d, mask=r < n)


@triton.jit
def players(slot, turn, blocks):
    """The two blocks that meet at a table in a turn of a tournament of `blocks`, an even number: one stays, the others go round."""
    ring = blocks - 1
    first = tl.where(slot == 0, ring, (turn + slot) % ring)
    second = tl.where(slot == 0, turn, (turn - slot + ring) % ring)
    return first, second


@triton.jit(do_not_specialize=["turn"])
def pairs_kernel(g_ptr, x_ptr, stride_b, stride_m, stride_n, rows, n, blocks, turn, GRAM: tl.constexpr, B: tl.constexpr,
                 BLOCK_M: tl.constexpr):
    """For each pair of blocks of B columns that meet in a turn: what a symmetric matrix x has where these columns meet; or, GRAM, the
    products of these columns of x with each other."""
    pairs = blocks // 2
    batch = (tl.program_id(0) // pairs).to(tl.int64)
    first, second = players(tl.program_id(0) % pairs, turn, blocks)
    r = tl.arange(0, 2 * B)
    column = tl.where(r < B, first * B + r, second * B + r - B)
    x_ptr += batch * stride_b
    if GRAM:
        m = tl.arange(0, BLOCK_M)
        acc = tl.zeros((2 * B, 2 * B), x_ptr.dtype.element_ty)
        for start in range(0, rows, BLOCK_M):
            row = (start + m).to(tl.int64)
            x = tl.load(x_ptr + row[:, None] * stride_m + column[None, :].to(tl.int64) * stride_n,
                        mask=(row < rows)[:, None] & (column < n)[None, :], other=0)
            acc = tl.dot(tl.trans(x), x, acc, input_precision="ieee", out_dtype=acc.dtype)
    else:
        acc = tl.load(x_ptr + column[:, None].to(tl.int64) * stride_m + column[None, :].to(tl.int64) * stride_n,
                      mask=(column < n)[:, None] & (column < n)[None, :], other=0)
    tl.store(g_ptr + tl.program_id(0).to(tl.int64) * 4 * B * B + r[:, None] * 2 * B + r[None, :], acc)


@triton.jit(do_not_specialize=["turn"])
def rotate_kernel(x_ptr, q_ptr, stride_b, stride_m, stride_n, rows, n, blocks, turn, B: tl.constexpr, BLOCK_M: tl.constexpr):
    """The two blocks of columns of each pair times its rotations q, in place."""
    pairs = blocks // 2
    tiles = tl.cdiv(rows, BLOCK_M)
    table = tl.program_id(0) // tiles
    batch = (table // pairs).to(tl.int64)
    first, second = players(table % pairs, turn, blocks)
    r = tl.arange(0, B)
    row = (tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    left = first * B + r
    right = second * B + r
    x_ptr += batch * stride_b
    q_ptr += table.to(tl.int64) * 4 * B * B + r[:, None] * 2 * B + r[None, :]
    at_left = x_ptr + row[:, None] * stride_m + left[None, :].to(tl.int64) * stride_n
    at_right = x_ptr + row[:, None] * stride_m + right[None, :].to(tl.int64) * stride_n
    on_left = (row < rows)[:, None] & (left < n)[None, :]
    on_right = (row < rows)[:, None] & (right < n)[None, :]
    x = tl.load(at_left, mask=on_left, other=0)
    y = tl.load(at_right, mask=on_right, other=0)
    new = tl.dot(x, tl.load(q_ptr), input_precision="ieee", out_dtype=x.dtype)
    new = tl.dot(y, tl.load(q_ptr + 2 * B * B), new, input_precision="ieee", out_dtype=x.dtype)
    tl.store(at_left, new, mask=on_left)
    new = tl.dot(x, tl.load(q_ptr + B), input_precision="ieee", out_dtype=x.dtype)
    new = tl.dot(y, tl.load(q_ptr + 2 * B * B + B), new, input_precision="ieee", out_dtype=x.dtype)
    tl.store(at_right, new, mask=on_right)
