"""Scaled dot-product attention without storing the scores, after FlashAttention-2 (Dao 2023).

    out = dropout(softmax(scale · q @ kᵀ + mask)) @ v        q: (B, H, L, E)   k: (B, H / group, S, E)   v: (B, H / group, S, EV)

Scores live in units of log 2, so that exp2 is all the softmax needs. `stride_x` is the tuple (batch, head, row, column).
Row i meets the keys from i + shift - left to i + shift + right where LEFT and RIGHT say that there is a bound; blocks of keys that every
row of a block meets are taken without a look at single scores. MASK: 0 none, 1 bool (True may attend), 2 additive: -inf hides a key,
another number takes its score no lower than the floor. ALIBI: slope · the distance from the diagonal is taken off. With `cu_q_ptr` and
`cu_k_ptr` the sequences of a batch lie one after the other, sequence b in rows cu[b] to cu[b + 1]; shift is then the number of keys less
that of rows, else 0. TMA: q, k and v are descriptors of tiles.
(The kernels are longer than a screen, as they name all that any form of attention needs. Triton's own warp specialisation is not for them:
3.6 gives each of two warp groups half of q by a descriptor that brings all of it, which overruns the buffers and the barrier.)
"""
import triton
import triton.language as tl

from .matmul import rounded_to_tf32
from .scalar import div

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
ROUNDS = tl.constexpr(7)                                                 # of Philox: the fewest that pass Salmon et al.'s tests (2011)
FLOOR = tl.constexpr(-2.0 ** 17)                                         # in units of log 2: lse still holds the logarithm of a count
FLOOR_FP64 = tl.constexpr(-2.0 ** 46)
SPAN = tl.constexpr(1024)                                                # keys whose mask is looked at together


# ------------------------------------------------------------------ places
@triton.jit
def head_ptr(x_ptr, stride, batch, head):
    """First element of one head."""
    return x_ptr + batch.to(tl.int64) * stride[0] + head.to(tl.int64) * stride[1]


@triton.jit
def rows_from(start, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """BLOCK row numbers; 64-bit where a head spans 2³¹ elements or more."""
    rows = start + tl.arange(0, BLOCK)
    if WIDE:
        rows = rows.to(tl.int64)
    return rows


@triton.jit
def sequence(cu_ptr, batch, length):
    """(first row in memory, rows) of a sequence."""
    start = 0
    if cu_ptr is not None:
        start = tl.load(cu_ptr + batch).to(tl.int32)
        length = tl.load(cu_ptr + batch + 1).to(tl.int32) - start
    return start, length


@triton.jit
def matrix_ptr(x_ptr, stride, batch, head, start, PACKED: tl.constexpr, TMA: tl.constexpr):
    """First element of the rows of one head of one sequence; a descriptor as it is."""
    if TMA:
        return x_ptr
    elif PACKED:
        return x_ptr + head.to(tl.int64) * stride[1] + start.to(tl.int64) * stride[2]
    else:
        return head_ptr(x_ptr, stride, batch, head)


@triton.jit
def load_rows(x_ptr, stride, rows, ROWS, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Rows of one head, padded with zeros to BLOCK columns. WHOLE: all rows are there."""
    d = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + (rows[:, None] * stride[2] + d[None, :] * stride[3])
    if WHOLE and COLUMNS == BLOCK:
        return tl.load(x_ptrs)
    elif WHOLE:
        return tl.load(x_ptrs, mask=(d < COLUMNS)[None, :], other=0)
    elif COLUMNS == BLOCK:
        return tl.load(x_ptrs, mask=(rows < ROWS)[:, None], other=0)
    else:
        return tl.load(x_ptrs, mask=(rows < ROWS)[:, None] & (d < COLUMNS)[None, :], other=0)


@triton.jit
def load_tile(x_ptr, stride, batch, head, start, rows, ROWS, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
              TMA: tl.constexpr):
    """The rows from `start` on of one head, through its descriptor or its pointer."""
    if TMA:
        return x_ptr.load([batch, head, start, 0]).reshape(rows.shape[0], BLOCK)
    else:
        return load_rows(x_ptr, stride, rows, ROWS, COLUMNS, BLOCK, WHOLE)


@triton.jit
def store_rows(x_ptr, stride, rows, ROWS, x, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The inverse of load_rows."""
    d = tl.arange(0, BLOCK)
    inside = (rows < ROWS)[:, None] & (d < COLUMNS)[None, :]
    tl.store(x_ptr + (rows[:, None] * stride[2] + d[None, :] * stride[3]), x.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def keys_of(m, S, shift, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(begin, whole, rest, end) of the keys for the rows from m on: some row meets keys begin … end, every row those from whole to rest.
    All but end are multiples of BLOCK_N."""
    begin, end, whole, rest = 0, S, 0, S // BLOCK_N * BLOCK_N
    if RIGHT:
        end = tl.minimum(S, m + BLOCK_M + shift + right)
        rest = tl.minimum(rest, tl.maximum(m + shift + right + 1, 0) // BLOCK_N * BLOCK_N)
    if LEFT:
        begin = tl.maximum(m + shift - left, 0) // BLOCK_N * BLOCK_N
        whole = tl.cdiv(tl.maximum(m + BLOCK_M - 1 + shift - left, 0), BLOCK_N) * BLOCK_N
        whole = tl.maximum(tl.minimum(whole, tl.cdiv(end, BLOCK_N) * BLOCK_N), begin)
    return begin, whole, tl.maximum(whole, rest), end


@triton.jit
def end_of_seen(mask_ptr, stride, S, MASK: tl.constexpr, WIDE: tl.constexpr):
    """How many keys there are up to the last one that a mask of all rows shows, at least one: nobody need look at those behind it, as
    where sequences are filled up, or memory is kept for later words. With other masks S."""
    end = S
    if MASK > 0:
        if stride[2] is None:
            last = tl.full((), -1, tl.int32)
            start = last + 1 + tl.cdiv(S, SPAN) * SPAN
            while (last < 0) & (start > 0):
                start -= SPAN
                j = rows_from(start, SPAN, WIDE)
                if MASK == 1:
                    shown = tl.load(mask_ptr + j * stride[3], mask=j < S, other=0) != 0
                else:
                    mask = tl.load(mask_ptr + j * stride[3], mask=j < S, other=float("-inf"))
                    shown = (mask if mask.dtype == tl.float64 else mask.to(tl.float32)) != float("-inf")
                last = tl.max(tl.where(shown, j, -1), 0).to(tl.int32)
            end = tl.minimum(tl.maximum(last + 1, 1), S)
    return end


# ------------------------------------------------------------------ scores
@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b in the given float32 precision."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    elif PRECISION == "tf32":
        return tl.dot(rounded_to_tf32(a), rounded_to_tf32(b), acc, input_precision="tf32")
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def load_mask(mask_ptr, stride, i, j, L, S, MASK: tl.constexpr):
    """The mask of rows i and keys j, if there is one. To be called before their product: what the compiler meets last says how the maxima
    of rows lie, and as the mask does they lie across all lanes (predicted: 3 times the time of a forward pass of 49 rows)."""
    mask = 0
    if MASK > 0:
        if stride[2] is None:                                            # that of all rows, as a line: padding
            mask = tl.load(mask_ptr + j * stride[3], mask=j < S, other=0)
        else:
            mask = tl.load(mask_ptr + (i * stride[2] + j * stride[3]), mask=(i < L) & (j < S), other=0)
    return mask


@triton.jit
def biased(s, mask, i, j, shift, scale, slope, MASK: tl.constexpr, ALIBI: tl.constexpr):
    """Products of rows i and keys j as scores in units of log 2."""
    s = s * scale
    if ALIBI:
        s -= slope * tl.abs(j - i - shift).to(s.dtype)
    if MASK > 0:
        if MASK == 1:
            s = tl.where(mask != 0, s, float("-inf"))
        else:
            floor = FLOOR_FP64 if s.dtype == tl.float64 else FLOOR       # a row of nothing but the lowest number is a mean of values
            mask = mask.to(s.dtype)
            s = tl.maximum(s + mask * LOG2E, tl.where(mask == float("-inf"), mask, floor), propagate_nan=tl.PropagateNan.ALL)
    return s


@triton.jit
def visible(i, j, S, shift, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Whether rows i may meet keys j."""
    end = S
    if RIGHT:
        end = tl.minimum(i + (shift + right + 1), S)
    seen = j < end
    if LEFT:
        seen = seen & (j >= i + (shift - left))
    return seen


@triton.jit
def draws_of(seed, offset, base_ptr, threshold, matrix, L):
    """What `kept` takes for a head of L rows, the `matrix`th of all. Under a captured graph seed and first counter live on the device, and
    offset counts from there."""
    if base_ptr is not None:
        seed = tl.load(base_ptr)
        offset += tl.load(base_ptr + 1)
    return seed, offset, threshold, matrix.to(tl.int64) * (tl.cdiv(L, 16) * 8)


@triton.jit
def kept(draws, rows, n, S, BLOCK_N: tl.constexpr):
    """Which scores dropout keeps: those whose 15 random bits reach the threshold. A counter has those of rows i and i + 8 of 16 and keys
    j, j + 1, j + 8 and j + 9 of 16, which is what one thread, or two, hold of a product either way round. In each head counters go by
    blocks of rows, rows, blocks of keys, keys; in a counter words go by i and i + 8, then j and j + 8, and the lower half is that of j.
    The highest bit of a half is left out, so that both halves of a word can be compared by one subtraction."""
    seed, offset, threshold, first = draws
    pairs = first + (rows // 16 * 8 + rows % 8)
    counter = offset + pairs[:, None].to(tl.int64) * (tl.cdiv(S, 16) * 4) + (n // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, low * 0, low * 0, ROUNDS)
    second = (rows // 8 % 2 == 1)[:, None]
    near, far = tl.where(second, w2, w0), tl.where(second, w3, w1)
    bits = tl.join(tl.join(near & 0x7FFF, far & 0x7FFF), tl.join(near >> 16 & 0x7FFF, far >> 16 & 0x7FFF))
    bits = bits.reshape(rows.shape[0], BLOCK_N // 16, 4, 2, 2).permute(0, 1, 3, 2, 4).reshape(rows.shape[0], BLOCK_N)
    return bits.to(tl.int32) >= threshold


# ------------------------------------------------------------------ forward
@triton.jit
def attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, head, rows, begin, end, bounds, bias, draws, E: tl.constexpr,
           EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr, LATE: tl.constexpr,
           DROPOUT: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Take the keys from begin to end into the running maximum, total and weighted sum of values of each row.

    EDGE: some row may not meet all of them. LATE: the scale waits until the maximum is taken, and costs nothing then.
    """
    L, S, shift, left, right = bounds
    scale, slope = bias
    stride_k, stride_v, stride_mask = strides
    if begin < end:                                                     # ptxas makes the products of a loop that may be skipped wait
        for n in range(begin, end, BLOCK_N):
            columns = rows_from(n, BLOCK_N, WIDE)
            i, j = rows[:, None], columns[None, :]
            mask = load_mask(mask_ptr, stride_mask, i, j, L, S, MASK)
            k = load_tile(k_ptr, stride_k, batch, head, n, columns, S, E, BLOCK_D, not EDGE, TMA)
            s = product(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_N), acc.dtype), PRECISION)
            if not LATE:
                s = biased(s, mask, i, j, shift, scale, slope, MASK, ALIBI)
            if EDGE:
                s = tl.where(visible(i, j, S, shift, left, right, LEFT, RIGHT), s, float("-inf"))
            if LATE:
                higher = tl.maximum(top, tl.max(s, 1) * scale)
            else:
                higher = tl.maximum(top, tl.max(s, 1))
            pivot = tl.where(higher == float("-inf"), 0.0, higher)          # a row that sees no key yet
            if LATE:
                p = tl.exp2(s * scale - pivot[:, None])
            else:
                p = tl.exp2(s - pivot[:, None])
            shrink = tl.exp2(top - pivot)
            total = total * shrink + tl.sum(p, 1)
            if DROPOUT:
                p = tl.where(kept(draws, rows, n, S, BLOCK_N), p, 0.0)
            v = load_tile(v_ptr, stride_v, batch, head, n, columns, S, EV, BLOCK_V, not EDGE, TMA)
            acc = product(p.to(v.dtype), v, acc * shrink[:, None], PRECISION)
            top = higher
    return acc, top, total


@triton.jit
def ended(acc, top, total, keep_scale, DROPOUT: tl.constexpr):
    """(result, lse) of rows that have met all of their keys."""
    total_or_1 = tl.where(total == 0.0, 1.0, total)                      # a row that sees no key gives 0, as in PyTorch
    acc *= div(tl.full(total.shape, 1, total.dtype), total_or_1)[:, None]                  # acc / total costs more, and may be 2 units off
    if DROPOUT:
        acc *= keep_scale
    return acc, (top + tl.log2(total)) * LN2


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_kernel(out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, slopes_ptr, cu_q_ptr, cu_k_ptr, base_ptr, stride_o, stride_lse,
                     stride_q, stride_k, stride_v, stride_mask, stride_slopes, H, GROUP, L, S, left, right, scale, threshold, keep_scale,
                     seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
                     MASK: tl.constexpr, LATE: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
                     TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
                     BLOCK_V: tl.constexpr):
    """out and lse = log Σ exp(scores). Grid: row blocks · B · H. Long, because it places every operand: the work is in `attend`."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    head, batch = matrix % H, matrix // H
    m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M               # under a causal mask the longest rows start first
    rows = rows_from(m, BLOCK_M, WIDE)
    PACKED: tl.constexpr = cu_q_ptr is not None
    ALIBI: tl.constexpr = slopes_ptr is not None
    ACC: tl.constexpr = lse_ptr.dtype.element_ty
    draws = draws_of(seed, offset, base_ptr, threshold, matrix, L)
    start_q, L = sequence(cu_q_ptr, batch, L)
    start_k, S = sequence(cu_k_ptr, batch, S)
    shift, slope = 0, 0.0
    if PACKED:
        shift = S - L
    q_ptr = matrix_ptr(q_ptr, stride_q, batch, head, start_q, PACKED, TMA)
    k_ptr = matrix_ptr(k_ptr, stride_k, batch, head // GROUP, start_k, PACKED, TMA)
    v_ptr = matrix_ptr(v_ptr, stride_v, batch, head // GROUP, start_k, PACKED, TMA)
    q = load_tile(q_ptr, stride_q, batch, head, m, rows, L, E, BLOCK_D, False, TMA)
    if MASK > 0:
        mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)
    if ALIBI:
        slope = tl.load(head_ptr(slopes_ptr, stride_slopes, batch, head)).to(ACC) * LOG2E
    bounds, bias, strides, key_head = (L, S, shift, left, right), (scale, slope), (stride_k, stride_v, stride_mask), head // GROUP
    acc = tl.zeros((BLOCK_M, BLOCK_V), ACC)
    top = tl.full((BLOCK_M,), float("-inf"), ACC)
    total = tl.zeros((BLOCK_M,), ACC)
    seen = end_of_seen(mask_ptr, stride_mask, S, MASK, WIDE)
    begin, whole, rest, end = keys_of(m, seen, shift, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if PACKED:
        if m >= L:                                                       # the sequence is shorter than the longest
            begin, whole, rest, end = 0, 0, 0, 0
    if LEFT:
        acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, begin, whole, bounds, bias,
                                 draws, E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, True, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D,
                                 BLOCK_V)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, whole, rest, bounds, bias, draws,
                             E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, False, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D, BLOCK_V)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, strides, batch, key_head, rows, rest, end, bounds, bias, draws,
                             E, EV, LEFT, RIGHT, MASK, ALIBI, LATE, DROPOUT, True, PRECISION, WIDE, TMA, BLOCK_N, BLOCK_D, BLOCK_V)
    acc, lse = ended(acc, top, total, keep_scale, DROPOUT)
    store_rows(matrix_ptr(out_ptr, stride_o, batch, head, start_q, PACKED, False), stride_o, rows, L, acc, EV, BLOCK_V)
    lse_ptr = matrix_ptr(lse_ptr, stride_lse, batch, head, start_q, PACKED, False)
    tl.store(lse_ptr + rows * stride_lse[2], lse, mask=rows < L)


@triton.jit
def attention_unpacked_kernel(x_ptr, cu_ptr, stride_x, sequences, ROWS, value, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr,
                              BLOCK_D: tl.constexpr):
    """`value` to the rows of x (heads, ROWS, COLUMNS) before the first of the sequences and behind the last. Grid: row blocks · heads."""
    blocks = tl.cdiv(ROWS, BLOCK_M)
    head, m = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_M
    first, last = tl.load(cu_ptr), tl.load(cu_ptr + sequences)
    if (m < first) | (m + BLOCK_M > last):
        rows, d = (m + tl.arange(0, BLOCK_M)).to(tl.int64), tl.arange(0, BLOCK_D)
        there = ((rows < first) | (rows >= last)) & (rows < ROWS)
        x_ptrs = x_ptr + head.to(tl.int64) * stride_x[0] + (rows[:, None] * stride_x[1] + d[None, :] * stride_x[2])
        x = tl.full((BLOCK_M, BLOCK_D), value, tl.float32)
        tl.store(x_ptrs, x.to(x_ptr.dtype.element_ty), mask=there[:, None] & (d < COLUMNS)[None, :])


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_keep_kernel(out_ptr, base_ptr, stride_o, H, L, S, threshold, keep_scale, seed: tl.int64, offset: tl.int64,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The dropout factors themselves, 0 or 1 / (1 - p), for the second-order formula. Grid: row blocks · B · H · key blocks."""
    blocks, across = tl.cdiv(L, BLOCK_M), tl.cdiv(S, BLOCK_N)
    program = tl.program_id(0) // across
    matrix = program // blocks
    draws = draws_of(seed, offset, base_ptr, threshold, matrix, L)
    rows = (program % blocks * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = tl.program_id(0) % across * BLOCK_N
    columns = n + tl.arange(0, BLOCK_N)
    keep = kept(draws, rows, n, S, BLOCK_N)
    out_ptrs = head_ptr(out_ptr, stride_o, matrix // H, matrix % H) + (rows[:, None] * stride_o[2] + columns[None, :] * stride_o[3])
    tl.store(out_ptrs, tl.where(keep, keep_scale, 0.0).to(out_ptr.dtype.element_ty), mask=(rows < L)[:, None] & (columns < S)[None, :])
