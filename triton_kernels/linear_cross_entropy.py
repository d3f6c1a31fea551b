"""Cross entropy and its gradient with respect to the logits in one kernel: what `linear_cross_entropy` does to a piece of logits.

    loss = (1 - s) · w_t · (lse - x_t) + s / C · Σ w_c · (lse - x_c)
    gx_c = exp(x_c - lse) · ((1 - s) · w_t + s / C · Σ w) - (1 - s) · w_t · [c = t] - s / C · w_c

with the log-sum-exp lse, the target t, the class weights w and the label smoothing s. A program owns a row: it reads the row from memory
for lse, and once more, from the cache, for the gradient, which may take the place of the logits. Rows with t = ignore_index give 0.
"""
import triton
import triton.language as tl

from triton_kernels.loss import class_weight
from triton_kernels.rows import online, online_rows


@triton.jit
def read_row(x_row, w_ptr, N, SMOOTH: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr):
    """The largest logit, the logarithm of the sum of exponentials relative to it, and with SMOOTH Σ w_c · x_c and Σ w_c."""
    lane = tl.arange(0, BLOCK_N)[None, :]
    top = tl.full((1, LANES), float("-inf"), ACC)
    total = tl.zeros((1, LANES), ACC)
    dot = tl.zeros((1, BLOCK_N if SMOOTH else 1), ACC)
    weights = tl.zeros((1, BLOCK_N if SMOOTH else 1), ACC)
    for j in range(0, N, BLOCK_N):
        n = j + lane
        x = tl.load(x_row + n, mask=n < N, other=float("-inf")).to(ACC)
        top, total = online(top, total, x, LANES, VEC)
        if SMOOTH:
            w = class_weight(w_ptr, n, N, ACC)
            weights += w
            dot += tl.where(n < N, w * x, 0)
    tops, totals = online_rows(top, total)
    top, total = tl.max(tops, 0), tl.sum(totals, 0)                      # of the one row
    return top, tl.where(total == 0, 0, tl.log(total)), tl.sum(dot), tl.sum(weights)


@triton.jit
def loss_and_gradient_kernel(
    loss_ptr, weight_ptr, gx_ptr, x_ptr, target_ptr, w_ptr, sum_w_ptr, stride_gxm, stride_xm, stride_target, N, ignore_index, smoothing,
    SMOOTH: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr,
):
    """Loss, weight of the target and gradient of the row that the program owns; columns lie next to each other."""
    m = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + m * stride_target).to(tl.int64)
    counts = target != ignore_index
    tl.device_assert(~counts | (target >= 0) & (target < N), "cross_entropy: a target is not a class")
    counts = counts & (target >= 0) & (target < N)
    x_row, gx_row = x_ptr + m * stride_xm, gx_ptr + m * stride_gxm
    picked = tl.load(x_row + target, mask=counts, other=0).to(ACC)        # before the gradient is there: the sums between are barriers
    hit = tl.where(counts, class_weight(w_ptr, tl.where(counts, target, 0), N, ACC), 0)
    top, log_total, dot, weights = read_row(x_row, w_ptr, N, SMOOTH, ACC, BLOCK_N, LANES, VEC)
    loss = hit * (log_total + (top - picked))                             # in this order large logits cancel exactly
    tl.store(weight_ptr + m, hit)
    mass = hit
    if SMOOTH:
        loss = (1 - smoothing) * loss + smoothing / N * (weights * (top + log_total) - dot)
        hit = (1 - smoothing) * hit
        mass = hit + (smoothing / N * tl.load(sum_w_ptr).to(ACC) if sum_w_ptr is not None else smoothing)
    tl.store(loss_ptr + m, tl.where(counts, loss, 0))
    lse = top + log_total
    for j in range(0, N, BLOCK_N):
        n = j + tl.arange(0, BLOCK_N)[None, :]
        x = tl.load(x_row + n, mask=n < N, other=0).to(ACC)
        gx = tl.exp(x - lse) * mass - tl.where(n == target, hit, 0)
        if SMOOTH:
            gx -= smoothing / N * class_weight(w_ptr, n, N, ACC)
        tl.store(gx_row + n, tl.where(counts, gx, 0), mask=n < N)
