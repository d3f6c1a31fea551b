"""Cross entropy of logits against class indices, forward and backward, one row a sample.

    logp_c = x_c - lse          loss = (1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c)
    gx_c = scale · (exp(x_c - lse) · ((1 - s) · w_t + s / C · Σ w) - (1 - s) · w_t · [c = t] - s / C · w_c)

with the log-sum-exp lse, the target t, the class weights w and the label smoothing s. The forward pass reads the logits once,
whatever the number of classes, and keeps lse; the backward pass reads them once more. Rows with t = ignore_index are 0.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .indexing import report
from .quick import quick_exp
from .reduce import even, offsets
from .rows import exponentials, held_tiles, online, online_rows
from .scalar import div


@triton.jit
def cross_entropy_kernel(
    loss_ptr, weight_ptr, lse_ptr, word_ptr, x_ptr, target_ptr, w_ptr, shape_m, stride_m, stride_xn, M, N, ignore_index, smoothing, number,
    SMOOTH: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr,
    ALIGN: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
):
    """Loss, weight of the target and log-sum-exp of every row; `stride_m` holds the strides of these, x and the target. A target that is
    no class is reported. HELD: a row is so many tiles wide, all of which are in registers at once; 0: tiles are walked along. It is
    long because both ways have the same beginning and end."""
    RANK: tl.constexpr = len(shape_m)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    x_rows = x_ptr + offsets(m, shape_m, stride_m, 3 * RANK, ALIGN)
    N = even(N, ALIGN)
    target = tl.load(target_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=m < M, other=0).to(tl.int64)
    known = (target >= 0) & (target < N)
    counts = (m < M) & (target != ignore_index)
    report(word_ptr, counts & (known == 0), target, number)
    counts = counts & known
    picked = tl.load(x_rows + target * stride_xn, mask=counts, other=0).to(ACC)      # before the loop, in which it arrives
    hit = tl.where(counts, class_weight(w_ptr, tl.where(counts, target, 0), N, ACC), 0)
    lane = tl.arange(0, BLOCK_N)[None, :]
    if SMOOTH:
        dot = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        weights = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    if HELD:
        x = held_tiles(x_rows[:, None], stride_xn, lane, (m < M)[:, None], N, HELD, ACC)
        top, total = exponentials(x)
        if SMOOTH:
            for k in tl.static_range(HELD):
                w = class_weight(w_ptr, k * BLOCK_N + lane, N, ACC)
                weights += w
                dot += tl.where(k * BLOCK_N + lane < N, w * x[k], 0)
    else:
        top = tl.full((BLOCK_M, LANES), float("-inf"), ACC)
        total = tl.zeros((BLOCK_M, LANES), ACC)
        for j in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            n = j + lane
            valid = (m < M)[:, None] & (n < N)
            x = tl.load(x_rows[:, None] + n.to(tl.int64) * stride_xn, mask=valid, other=float("-inf")).to(ACC)
            top, total = online(top, total, x, LANES, VEC)
            if SMOOTH:
                w = class_weight(w_ptr, n, N, ACC)
                weights += w
                dot += tl.where(n < N, w * x, 0)
        top, total = online_rows(top, total)
    log_total = tl.where(total == 0, 0, tl.log(total))
    loss = hit * (log_total + (top - picked))                             # in this order large logits cancel exactly
    if SMOOTH:
        loss = (1 - smoothing) * loss + smoothing / N * (tl.sum(weights, 1) * (top + log_total) - tl.sum(dot, 1))
    tl.store(loss_ptr + offsets(m, shape_m, stride_m), tl.where(counts, loss, 0), mask=m < M)
    tl.store(weight_ptr + offsets(m, shape_m, stride_m, RANK), hit, mask=m < M)
    tl.store(lse_ptr + offsets(m, shape_m, stride_m, 2 * RANK), top + log_total, mask=m < M)


@triton.jit
def class_weight(w_ptr, n, N, ACC: tl.constexpr):
    """Weights of classes; 1 each where there are none, 0 beyond the last."""
    if w_ptr is not None:
        return tl.load(w_ptr + n, mask=n < N, other=0).to(ACC)
    return tl.where(n < N, 1, 0).to(ACC)


@triton.jit
def cross_entropy_backward_kernel(
    gx_ptr, g_ptr, x_ptr, lse_ptr, target_ptr, w_ptr, sum_w_ptr, shape_m, stride_m, stride_gxn, stride_xn, M, N, chunk,
    ignore_index, smoothing, SMOOTH: tl.constexpr, ACC: tl.constexpr, ACROSS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALIGN: tl.constexpr, STAGES: tl.constexpr,
):
    """g of every row times the formula above. `stride_m` holds the strides of gx, g, x, lse and the target. Of rows that do not count
    nothing is read, g and all that is scaled by it are 0. ACROSS: rows are next to each other in memory, and those too are read, since
    what each row decides for itself is loaded by itself."""
    RANK: tl.constexpr = len(shape_m)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    gx_rows = gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
    x_rows = x_ptr + offsets(m, shape_m, stride_m, 2 * RANK, ALIGN)
    N = even(N, ALIGN)
    target = tl.load(target_ptr + offsets(m, shape_m, stride_m, 4 * RANK), mask=m < M, other=0).to(tl.int64)
    counts = (m < M) & (target != ignore_index) & (target >= 0) & (target < N)
    at = tl.where(counts, target, -1).to(tl.int32)[:, None]
    lse = tl.load(lse_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=m < M, other=0).to(ACC)
    lse = tl.where(counts, lse, 0)[:, None]
    scale = tl.where(counts, tl.load(g_ptr + offsets(m, shape_m, stride_m, RANK), mask=m < M, other=0).to(ACC), 0)
    hit = scale * class_weight(w_ptr, tl.where(counts, target, N), N, ACC)
    mass = hit
    if SMOOTH:
        hit = (1 - smoothing) * hit
        mass = hit + scale * (smoothing / N * tl.load(sum_w_ptr).to(ACC) if sum_w_ptr is not None else smoothing)
        share = (scale * (smoothing / N))[:, None]
    start = tl.program_id(1) * chunk
    for j in tl.range(start, tl.minimum(start + chunk, N), BLOCK_N, num_stages=STAGES):
        n = j + tl.arange(0, BLOCK_N)[None, :]
        valid = (m < M)[:, None] & (n < N)
        there = valid if ACROSS else valid & counts[:, None]
        x = tl.load(x_rows[:, None] + n.to(tl.int64) * stride_xn, mask=there, other=0).to(ACC)
        if ACROSS:
            x = tl.where(counts[:, None], x, 0)
        gx = quick_exp(x - lse) * mass[:, None] - tl.where(n == at, hit[:, None], 0)
        if SMOOTH:
            gx -= share * class_weight(w_ptr, n, N, ACC)
        tl.store(gx_rows[:, None] + n.to(tl.int64) * stride_gxn, gx, mask=valid)


# ------------------------------------------------------------------ the negative log-likelihood
@triton.jit
def weighted_mean_kernel(mean_ptr, total_ptr, loss_ptr, weight_ptr, M, chunk, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of a program's `chunk` of losses and of their weights; with MEAN, for the one program that has all, their quotient first."""
    ACC: tl.constexpr = mean_ptr.dtype.element_ty
    start = tl.program_id(0).to(tl.int64) * chunk
    end = tl.minimum(start + chunk, M)
    losses = tl.zeros((BLOCK,), ACC)
    weights = tl.zeros((BLOCK,), ACC)
    for n in tl.range(start, end, BLOCK):
        m = n + tl.arange(0, BLOCK)
        losses += tl.load(loss_ptr + m, mask=m < end, other=0).to(ACC)
        weights += tl.load(weight_ptr + m, mask=m < end, other=0).to(ACC)
    mean, total = tl.sum(losses, 0), tl.sum(weights, 0)
    if MEAN:
        mean = div(mean, total)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(total_ptr + tl.program_id(0), total)


@triton.jit
def nll_kernel(
    loss_ptr, weight_ptr, word_ptr, x_ptr, target_ptr, w_ptr, shape_m, stride_m, stride_xn, M, N, ignore_index, number, ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """-w_t · x_t and w_t of every row; `stride_m` holds the strides of these, x and the target. A target that is no class is reported."""
    RANK: tl.constexpr = len(shape_m)
    m = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(target_ptr + offsets(m, shape_m, stride_m, 3 * RANK), mask=m < M, other=0).to(tl.int64)
    known = (target >= 0) & (target < N)
    counts = (m < M) & (target != ignore_index)
    report(word_ptr, counts & (known == 0), target, number)
    counts = counts & known
    x = tl.load(x_ptr + offsets(m, shape_m, stride_m, 2 * RANK) + target * stride_xn, mask=counts, other=0).to(ACC)
    hit = tl.where(counts, class_weight(w_ptr, tl.where(counts, target, 0), N, ACC), 0)
    tl.store(loss_ptr + offsets(m, shape_m, stride_m), tl.where(counts, -hit * x, 0), mask=m < M)
    tl.store(weight_ptr + offsets(m, shape_m, stride_m, RANK), hit, mask=m < M)


@triton.jit
def nll_backward_kernel(
    gx_ptr, g_ptr, target_ptr, w_ptr, shape_m, stride_m, stride_gxn, M, N, ignore_index, ACC: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
):
    """-w_t · g at the target of every row, else 0. `stride_m` holds the strides of gx, g and the target."""
    RANK: tl.constexpr = len(shape_m)
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    gx_rows = gx_ptr + offsets(m, shape_m, stride_m, 0, ALIGN)
    N = even(N, ALIGN)
    target = tl.load(target_ptr + offsets(m, shape_m, stride_m, 2 * RANK), mask=m < M, other=0).to(tl.int64)
    counts = (m < M) & (target != ignore_index) & (target >= 0) & (target < N)
    g = tl.load(g_ptr + offsets(m, shape_m, stride_m, RANK), mask=counts, other=0).to(ACC)
    hit = -g * class_weight(w_ptr, tl.where(counts, target, N), N, ACC)
    at = tl.where(counts, target, -1).to(tl.int32)[:, None]
    for k in tl.static_range(TILES):
        n = (tl.program_id(1) * TILES + k) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        gx = tl.where(n == at, hit[:, None], 0)
        tl.store(gx_rows[:, None] + n.to(tl.int64) * stride_gxn, gx, mask=(m < M)[:, None] & (n < N))


# ------------------------------------------------------------------ binary cross entropy, element by element
@triton.jit
def binary_cross_entropy_terms(x, y):
    """-(y log x + (1 - y) log(1 - x)); logarithms stop at -100."""
    log_x, log_rest = tl.log(x), libdevice.log1p(-x)
    return (y - 1) * tl.where(log_rest < -100, -100, log_rest) - y * tl.where(log_x < -100, -100, log_x)


@triton.jit
def binary_cross_entropy_slope(x, y):
    """(x - y) / max(x (1 - x), 1e-12)."""
    spread = (1 - x) * x
    return (x - y) / tl.where(spread < 1e-12, 1e-12, spread)
