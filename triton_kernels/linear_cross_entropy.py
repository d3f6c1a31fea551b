"""Cross entropy and its gradient with respect to the logits in one kernel: what `linear_cross_entropy` does to a piece of logits.

    loss = (1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c)
    gx_c = exp(x_c - lse) · ((1 - s) · w_t + s / C · Σ w) - (1 - s) · w_t · [c = t] - s / C · w_c

with the log-sum-exp lse, the target t, the class weights w and the label smoothing s. A program owns a row: it reads the row from memory
for lse, and once more, from the cache, for the gradient, which may take the place of the logits. Rows with t = ignore_index give 0.
"""
import triton
import triton.language as tl

from .indexing import report
from .loss import class_weight
from .quick import quick_exp
from .rows import online, online_rows


@triton.jit
def read_row(x_row, w_ptr, N, WIDTH, SMOOTH: tl.constexpr, PADDED: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr,
             LANES: tl.constexpr, VEC: tl.constexpr):
    """The largest logit, the logarithm of the sum of exponentials relative to it, and with SMOOTH Σ w_c · x_c and Σ w_c."""
    lane = tl.arange(0, BLOCK_N)[None, :]
    top = tl.full((1, LANES), float("-inf"), ACC)
    total = tl.zeros((1, LANES), ACC)
    dot = tl.zeros((1, BLOCK_N if SMOOTH else 1), ACC)
    weights = tl.zeros((1, BLOCK_N if SMOOTH else 1), ACC)
    for j in range(0, N, BLOCK_N):
        n = j + lane
        x = tl.load(x_row + n, mask=n < WIDTH, other=float("-inf")).to(ACC)
        if PADDED:
            x = tl.where(n < N, x, float("-inf"))
        top, total = online(top, total, x, LANES, VEC)
        if SMOOTH:
            w = class_weight(w_ptr, n, N, ACC)
            weights += w
            dot += tl.where(n < N, w * x, 0)
    tops, totals = online_rows(top, total)
    top, total = tl.max(tops, 0), tl.sum(totals, 0)                      # of the one row
    return top, tl.where(total == 0, 0, tl.log(total)), tl.sum(dot), tl.sum(weights)


@triton.jit
def slope(x, n, lse, mass, w_ptr, N, smoothing, SMOOTH: tl.constexpr):
    """The gradient of classes n that are not the target."""
    gx = quick_exp(x - lse) * mass
    if SMOOTH:
        gx -= smoothing / N * class_weight(w_ptr, n, N, gx.dtype)         # which loads nothing beyond N
    return gx


@triton.jit
def divisor_kernel(divisor_ptr, scale_ptr, target_ptr, w_ptr, stride_target, M, N, ignore_index, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the weights of M targets, by one program, and what divides by it."""
    total = tl.zeros((BLOCK,), ACC)
    for first in range(0, M, BLOCK):
        m = first + tl.arange(0, BLOCK).to(tl.int64)
        target = tl.load(target_ptr + m * stride_target, mask=m < M, other=-1).to(tl.int64)
        counts = (target != ignore_index) & (target >= 0) & (target < N) & (m < M)
        total += tl.where(counts, class_weight(w_ptr, tl.where(counts, target, 0), N, ACC), 0)
    divisor = tl.sum(total, 0)
    tl.store(divisor_ptr, divisor)
    tl.store(scale_ptr, tl.div_rn(1.0, divisor) if ACC == tl.float32 else 1 / divisor)


@triton.jit
def loss_and_gradient_kernel(
    loss_ptr, weight_ptr, gx_ptr, word_ptr, x_ptr, target_ptr, w_ptr, sum_w_ptr, scale_ptr, stride_gxm, stride_xm, stride_target, N, WIDTH,
    ignore_index, smoothing, number, SMOOTH: tl.constexpr, PADDED: tl.constexpr, SCALED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr,
):
    """Loss, weight of the target and gradient of the row that the program owns; columns lie next to each other. With PADDED the rows of x
    and gx have room for WIDTH > N numbers, so that whole vectors are loaded and stored whatever N is. The loss is multiplied by the scale,
    if there is one, and so is the gradient where it is to be SCALED."""
    m = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + m * stride_target).to(tl.int64)
    counts = target != ignore_index
    known = (target >= 0) & (target < N)
    report(word_ptr, tl.full((1,), counts & (known == 0), tl.int1), target, number)
    counts = counts & known
    x_row, gx_row = x_ptr + m * stride_xm, gx_ptr + m * stride_gxm
    picked = tl.load(x_row + target, mask=counts, other=0).to(ACC)        # before the gradient is there: the sums between are barriers
    hit = tl.where(counts, class_weight(w_ptr, tl.where(counts, target, 0), N, ACC), 0)
    top, log_total, dot, weights = read_row(x_row, w_ptr, N, WIDTH, SMOOTH, PADDED, ACC, BLOCK_N, LANES, VEC)
    loss = hit * (log_total + (top - picked))                             # in this order large logits cancel exactly
    tl.store(weight_ptr + m, hit)
    mass = hit
    if SMOOTH:
        loss = (1 - smoothing) * loss + smoothing / N * (weights * (top + log_total) - dot)
        hit = (1 - smoothing) * hit
        mass = hit + (smoothing / N * tl.load(sum_w_ptr).to(ACC) if sum_w_ptr is not None else smoothing)
    loss = tl.where(counts, loss, 0)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
        loss *= scale                                                     # NaN where no row counts
        if SCALED:
            hit *= scale
            mass *= scale
            smoothing *= scale
    tl.store(loss_ptr + m, loss)
    lse = top + log_total
    lane = tl.arange(0, BLOCK_N)[None, :]
    if counts:
        for j in range(0, N, BLOCK_N):
            n = j + lane
            x = tl.load(x_row + n, mask=n < WIDTH, other=0).to(ACC)
            tl.store(gx_row + n, slope(x, n, lse, mass, w_ptr, N, smoothing, SMOOTH), mask=n < WIDTH)
        tl.debug_barrier()                                                # the target's is there: now it is replaced
        tl.store(gx_row + target, slope(picked, target, lse, mass, w_ptr, N, smoothing, SMOOTH) - hit)
    else:
        for j in range(0, N, BLOCK_N):
            tl.store(gx_row + j + lane, tl.zeros((1, BLOCK_N), ACC), mask=j + lane < WIDTH)
