"""Scaled dot-product attention without storing the scores, after FlashAttention-2 (Dao 2023).

    out = dropout(softmax(scale · q @ kᵀ + mask)) @ v        q: (B, H, L, E)   k: (B, H / group, S, E)   v: (B, H / group, S, EV)

Scores live in units of log 2, so that exp2 is all the softmax needs. `stride_x` is the tuple (batch, head, row, column).
MASK: 0 none, 1 bool (True may attend), 2 additive. In backward every program owns what it writes: no atomics.
"""
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


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
def load_rows(x_ptr, stride, rows, ROWS, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of one head, padded with zeros to BLOCK columns."""
    d = tl.arange(0, BLOCK)
    inside = (rows < ROWS)[:, None]
    if COLUMNS != BLOCK:
        inside = inside & (d < COLUMNS)[None, :]
    return tl.load(x_ptr + (rows[:, None] * stride[2] + d[None, :] * stride[3]), mask=inside, other=0)


@triton.jit
def store_rows(x_ptr, stride, rows, ROWS, x, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The inverse of load_rows."""
    d = tl.arange(0, BLOCK)
    inside = (rows < ROWS)[:, None] & (d < COLUMNS)[None, :]
    tl.store(x_ptr + (rows[:, None] * stride[2] + d[None, :] * stride[3]), x.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b in the given float32 precision."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
def scores(q, k, mask_ptr, stride_mask, rows, columns, L, S, scale, ACC: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
           EDGE: tl.constexpr, PRECISION: tl.constexpr):
    """A tile of scaled and masked scores, in units of log 2: -inf where a row may not attend. EDGE: the tile may cross an edge."""
    s = product(q, tl.trans(k), tl.zeros((q.shape[0], k.shape[0]), ACC), PRECISION) * scale
    if MASK > 0:
        inside = (rows < L)[:, None] & (columns < S)[None, :]
        mask = tl.load(mask_ptr + (rows[:, None] * stride_mask[2] + columns[None, :] * stride_mask[3]), mask=inside, other=0)
        if MASK == 1:
            s = tl.where(mask != 0, s, float("-inf"))
        else:
            s += mask.to(ACC) * LOG2E
    if EDGE:
        seen = (columns < S)[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        s = tl.where(seen, s, float("-inf"))
    return s


@triton.jit
def place(seed, offset, base_ptr):
    """Seed and first counter; under a captured graph they live on the device, and offset counts from there."""
    if base_ptr is not None:
        seed = tl.load(base_ptr)
        offset += tl.load(base_ptr + 1)
    return seed, offset


@triton.jit
def kept(seed, offset, row, n, S, threshold, BLOCK_N: tl.constexpr):
    """Which scores dropout keeps: those whose 24 random bits reach the threshold. Score (row, j) has word j % 4 of counter
    offset + row · ceil(S / 4) + j // 4, row counting over all heads."""
    counter = offset + row[:, None].to(tl.int64) * tl.cdiv(S, 4) + (n // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, low * 0, low * 0)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(row.shape[0], BLOCK_N)
    return (words >> 8).to(tl.int32) >= threshold


@triton.jit
def attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, stride_k, stride_v, stride_mask, rows, first_row, begin, end, L, S, scale,
           threshold, seed, offset, E: tl.constexpr, EV: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
           EDGE: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
           BLOCK_V: tl.constexpr):
    """Take the keys from begin to end into the running maximum, total and weighted sum of values of each row."""
    for n in range(begin, end, BLOCK_N):
        columns = rows_from(n, BLOCK_N, WIDE)
        k = load_rows(k_ptr, stride_k, columns, S, E, BLOCK_D)
        s = scores(q, k, mask_ptr, stride_mask, rows, columns, L, S, scale, acc.dtype, CAUSAL, MASK, EDGE, PRECISION)
        higher = tl.maximum(top, tl.max(s, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)          # a row that sees no key yet
        p = tl.exp2(s - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(p, 1)
        if DROPOUT:
            p = tl.where(kept(seed, offset, first_row + rows, n, S, threshold, BLOCK_N), p, 0.0)
        v = load_rows(v_ptr, stride_v, columns, S, EV, BLOCK_V)
        acc = product(p.to(v.dtype), v, acc * shrink[:, None], PRECISION)
        top = higher
    return acc, top, total


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_kernel(out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, base_ptr, stride_o, stride_lse, stride_q, stride_k, stride_v,
                     stride_mask, H, GROUP, L, S, scale, threshold, keep_scale, seed: tl.int64, offset: tl.int64,
                     E: tl.constexpr, EV: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
                     PRECISION: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                     BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """out and lse = log Σ exp(scores). Grid: row blocks · B · H."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    head, batch = matrix % H, matrix // H
    m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M               # under a causal mask the longest rows start first
    rows = rows_from(m, BLOCK_M, WIDE)
    first_row = matrix.to(tl.int64) * L
    q = load_rows(head_ptr(q_ptr, stride_q, batch, head), stride_q, rows, L, E, BLOCK_D)
    k_ptr = head_ptr(k_ptr, stride_k, batch, head // GROUP)
    v_ptr = head_ptr(v_ptr, stride_v, batch, head // GROUP)
    if MASK > 0:
        mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)
    if DROPOUT:
        seed, offset = place(seed, offset, base_ptr)
    ACC: tl.constexpr = tl.float64 if q_ptr.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BLOCK_M, BLOCK_V), ACC)
    top = tl.full((BLOCK_M,), float("-inf"), ACC)
    total = tl.zeros((BLOCK_M,), ACC)
    end, middle = S, S // BLOCK_N * BLOCK_N                              # whole blocks first, then those that cross an edge
    if CAUSAL:
        end = tl.minimum(S, m + BLOCK_M)
        middle = tl.minimum(middle, m // BLOCK_N * BLOCK_N)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, stride_k, stride_v, stride_mask, rows, first_row, 0, middle,
                             L, S, scale, threshold, seed, offset, E, EV, CAUSAL, MASK, DROPOUT, False, PRECISION, WIDE,
                             BLOCK_N, BLOCK_D, BLOCK_V)
    acc, top, total = attend(acc, top, total, q, k_ptr, v_ptr, mask_ptr, stride_k, stride_v, stride_mask, rows, first_row, middle, end,
                             L, S, scale, threshold, seed, offset, E, EV, CAUSAL, MASK, DROPOUT, True, PRECISION, WIDE,
                             BLOCK_N, BLOCK_D, BLOCK_V)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]              # a row that sees no key gives 0, as in PyTorch
    if DROPOUT:
        acc *= keep_scale
    store_rows(head_ptr(out_ptr, stride_o, batch, head), stride_o, rows, L, acc, EV, BLOCK_V)
    tl.store(head_ptr(lse_ptr, stride_lse, batch, head) + rows * stride_lse[2], (top + tl.log2(total)) * LN2, mask=rows < L)


@triton.jit
def weights_and_slopes(q, k, v, g, mask_ptr, stride_mask, rows, columns, n, first_row, lse, delta, L, S, scale, threshold, keep_scale,
                       seed, offset, CAUSAL: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """A tile of the weights that met v, and of the gradient of the scores."""
    s = scores(q, k, mask_ptr, stride_mask, rows, columns, L, S, scale, lse.dtype, CAUSAL, MASK, True, PRECISION)
    p = tl.exp2(s - lse[:, None])
    slope = product(g, tl.trans(v), tl.zeros((g.shape[0], v.shape[0]), lse.dtype), PRECISION)
    weight = p
    if DROPOUT:
        keep = kept(seed, offset, first_row + rows, n, S, threshold, k.shape[0])
        weight = tl.where(keep, p * keep_scale, 0.0)
        slope = tl.where(keep, slope * keep_scale, 0.0)
    return weight, p * (slope - delta[:, None])


@triton.jit
def load_lse(lse_ptr, stride, batch, head, rows, L):
    """Row shifts in units of log 2, such that rows past the end and rows that see no key get weights of 0."""
    lse = tl.load(head_ptr(lse_ptr, stride, batch, head) + rows * stride[2], mask=rows < L, other=float("inf")) * LOG2E
    return tl.where(lse == float("-inf"), 0.0, lse)


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_backward_q_kernel(gq_ptr, delta_ptr, g_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, lse_ptr, base_ptr, stride_gq, stride_g,
                                stride_q, stride_k, stride_v, stride_mask, stride_o, stride_lse, H, GROUP, L, S, scale, threshold,
                                keep_scale, seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr, CAUSAL: tl.constexpr,
                                MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
                                BLOCK_M: tl.constexpr,
                                BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Gradient of q, and delta = Σ g · out, which the other half needs. Grid: row blocks · B · H."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    head, batch = matrix % H, matrix // H
    m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    rows = rows_from(m, BLOCK_M, WIDE)
    first_row = matrix.to(tl.int64) * L
    q = load_rows(head_ptr(q_ptr, stride_q, batch, head), stride_q, rows, L, E, BLOCK_D)
    g = load_rows(head_ptr(g_ptr, stride_g, batch, head), stride_g, rows, L, EV, BLOCK_V)
    out = load_rows(head_ptr(out_ptr, stride_o, batch, head), stride_o, rows, L, EV, BLOCK_V)
    k_ptr = head_ptr(k_ptr, stride_k, batch, head // GROUP)
    v_ptr = head_ptr(v_ptr, stride_v, batch, head // GROUP)
    if MASK > 0:
        mask_ptr = head_ptr(mask_ptr, stride_mask, batch, head)
    if DROPOUT:
        seed, offset = place(seed, offset, base_ptr)
    lse = load_lse(lse_ptr, stride_lse, batch, head, rows, L)
    delta = tl.sum(g.to(lse.dtype) * out.to(lse.dtype), 1)
    tl.store(delta_ptr + first_row + rows, delta, mask=rows < L)
    gq = tl.zeros((BLOCK_M, BLOCK_D), lse.dtype)
    end = S
    if CAUSAL:
        end = tl.minimum(S, m + BLOCK_M)
    for n in range(0, end, BLOCK_N):
        columns = rows_from(n, BLOCK_N, WIDE)
        k = load_rows(k_ptr, stride_k, columns, S, E, BLOCK_D)
        v = load_rows(v_ptr, stride_v, columns, S, EV, BLOCK_V)
        _, slope = weights_and_slopes(q, k, v, g, mask_ptr, stride_mask, rows, columns, n, first_row, lse, delta, L, S, scale, threshold,
                                      keep_scale, seed, offset, CAUSAL, MASK, DROPOUT, PRECISION)
        gq = product(slope.to(k.dtype), k, gq, PRECISION)
    store_rows(head_ptr(gq_ptr, stride_gq, batch, head), stride_gq, rows, L, gq * (scale * LN2), E, BLOCK_D)


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_backward_kv_kernel(gk_ptr, gv_ptr, g_ptr, q_ptr, k_ptr, v_ptr, mask_ptr, lse_ptr, delta_ptr, base_ptr, stride_gk, stride_gv,
                                 stride_g, stride_q, stride_k, stride_v, stride_mask, stride_lse, H, GROUP, L, S, scale, threshold,
                                 keep_scale, seed: tl.int64, offset: tl.int64, E: tl.constexpr, EV: tl.constexpr, CAUSAL: tl.constexpr,
                                 MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
                                 BLOCK_M: tl.constexpr,
                                 BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr):
    """Gradients of k and v, summed over the group of query heads that share them. Grid: key blocks · B · H / GROUP."""
    blocks = tl.cdiv(S, BLOCK_N)
    matrix = tl.program_id(0) // blocks
    key_head, batch = matrix % (H // GROUP), matrix // (H // GROUP)
    n = tl.program_id(0) % blocks * BLOCK_N
    columns = rows_from(n, BLOCK_N, WIDE)
    k = load_rows(head_ptr(k_ptr, stride_k, batch, key_head), stride_k, columns, S, E, BLOCK_D)
    v = load_rows(head_ptr(v_ptr, stride_v, batch, key_head), stride_v, columns, S, EV, BLOCK_V)
    if DROPOUT:
        seed, offset = place(seed, offset, base_ptr)
    ACC: tl.constexpr = lse_ptr.dtype.element_ty
    gk = tl.zeros((BLOCK_N, BLOCK_D), ACC)
    gv = tl.zeros((BLOCK_N, BLOCK_V), ACC)
    begin = 0
    if CAUSAL:
        begin = n // BLOCK_M * BLOCK_M
    for member in range(0, GROUP):
        head = key_head * GROUP + member
        first_row = (batch * H + head).to(tl.int64) * L
        head_mask = mask_ptr
        if MASK > 0:
            head_mask = head_ptr(mask_ptr, stride_mask, batch, head)
        for m in range(begin, L, BLOCK_M):
            rows = rows_from(m, BLOCK_M, WIDE)
            q = load_rows(head_ptr(q_ptr, stride_q, batch, head), stride_q, rows, L, E, BLOCK_D)
            g = load_rows(head_ptr(g_ptr, stride_g, batch, head), stride_g, rows, L, EV, BLOCK_V)
            lse = load_lse(lse_ptr, stride_lse, batch, head, rows, L)
            delta = tl.load(delta_ptr + first_row + rows, mask=rows < L, other=0)
            weight, slope = weights_and_slopes(q, k, v, g, head_mask, stride_mask, rows, columns, n, first_row, lse, delta, L, S, scale,
                                               threshold, keep_scale, seed, offset, CAUSAL, MASK, DROPOUT, PRECISION)
            gv = product(tl.trans(weight.to(g.dtype)), g, gv, PRECISION)
            gk = product(tl.trans(slope.to(q.dtype)), q, gk, PRECISION)
    store_rows(head_ptr(gk_ptr, stride_gk, batch, key_head), stride_gk, columns, S, gk * (scale * LN2), E, BLOCK_D)
    store_rows(head_ptr(gv_ptr, stride_gv, batch, key_head), stride_gv, columns, S, gv, EV, BLOCK_V)


@triton.jit(do_not_specialize=["seed", "offset"])
def attention_keep_kernel(out_ptr, base_ptr, stride_o, H, L, S, threshold, keep_scale, seed: tl.int64, offset: tl.int64,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The dropout factors themselves, 0 or 1 / (1 - p), for the second-order formula. Grid: (row blocks · B · H, key blocks)."""
    blocks = tl.cdiv(L, BLOCK_M)
    matrix = tl.program_id(0) // blocks
    seed, offset = place(seed, offset, base_ptr)
    rows = (tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N
    columns = n + tl.arange(0, BLOCK_N)
    keep = kept(seed, offset, matrix.to(tl.int64) * L + rows, n, S, threshold, BLOCK_N)
    out_ptrs = head_ptr(out_ptr, stride_o, matrix // H, matrix % H) + (rows[:, None] * stride_o[2] + columns[None, :] * stride_o[3])
    tl.store(out_ptrs, tl.where(keep, keep_scale, 0.0).to(out_ptr.dtype.element_ty), mask=(rows < L)[:, None] & (columns < S)[None, :])
