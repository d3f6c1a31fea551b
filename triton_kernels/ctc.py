"""Connectionist temporal classification: the recursions over time of Graves et al. 2006, one program a sample, and the gradient.

The states of a sample are its labels with blanks between and around them: state s is label s // 2 where s is odd, else a blank. Rows of
alpha and of weights are W states.
"""
import triton
import triton.language as tl

from .indexing import report


@triton.jit
def label_at(target_ptr, first, stride_s, nth, length, classes, blank):
    """The nth label of a sample; the blank where there is none, or one that is no class."""
    label = tl.load(target_ptr + first + nth * stride_s, mask=(nth >= 0) & (nth < length), other=blank).to(tl.int64)
    return tl.where((label >= 0) & (label < classes), label, blank)


@triton.jit
def first_label(start_ptr, n, stride_n, stride_s):
    """Where the labels of sample n begin: a row of their own, or behind those of the samples before."""
    return n * stride_n if start_ptr is None else tl.load(start_ptr + n).to(tl.int64) * stride_s


@triton.jit
def lengths(input_length_ptr, target_length_ptr, start_ptr, n, T, S, total):
    """Steps and labels of sample n, which lie in what there is: `total` labels of all samples."""
    steps = tl.load(input_length_ptr + n).to(tl.int64)
    labels = tl.load(target_length_ptr + n).to(tl.int64)
    if start_ptr is not None:
        S = tl.minimum(S, total - tl.load(start_ptr + n).to(tl.int64))
    return tl.minimum(tl.maximum(steps, 0), T), tl.maximum(tl.minimum(labels, S), 0)


@triton.jit
def added(a, b, c):
    """log(exp a + exp b + exp c)."""
    most = tl.maximum(tl.maximum(a, b), c)
    most = tl.where(most == float("-inf"), 0, most)
    return tl.log(tl.exp(a - most) + tl.exp(b - most) + tl.exp(c - most)) + most


@triton.jit
def ctc_alpha_kernel(loss_ptr, alpha_ptr, word_ptr, log_prob_ptr, target_ptr, start_ptr, input_length_ptr, target_length_ptr, T, S,
                     total, classes, stride_t, stride_n, stride_c, stride_tn, stride_ts, blank, class_number, step_number, label_number, W,
                     BLOCK: tl.constexpr):
    """alpha[n, t, s]: the log-probability of all ways to be in state s at time t; the loss is minus that of the two last states at the last
    time. The log-probabilities of a step are loaded before the step in front of it is computed."""
    n = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    given, wanted = tl.load(input_length_ptr + n).to(tl.int64), tl.load(target_length_ptr + n).to(tl.int64)
    report(word_ptr, (s == 0) & ((given < 0) | (given > T)), (given + 0 * s).to(tl.float64), step_number)
    report(word_ptr, (s == 0) & ((wanted < 0) | (wanted > S)), (wanted + 0 * s).to(tl.float64), label_number)
    steps, count = lengths(input_length_ptr, target_length_ptr, start_ptr, n, T, S, total)
    first, odd = first_label(start_ptr, n, stride_tn, stride_ts), s % 2 == 1
    raw = tl.load(target_ptr + first + s // 2 * stride_ts, mask=odd & (s // 2 < count), other=blank).to(tl.int64)
    report(word_ptr, (raw < 0) | (raw >= classes), raw, class_number)
    label = tl.where(odd, label_at(target_ptr, first, stride_ts, s // 2, count, classes, blank), blank)
    skips = odd & (s >= 3) & (label != label_at(target_ptr, first, stride_ts, s // 2 - 1, count, classes, blank))
    states, low = 2 * count + 1, float("-inf")
    here = log_prob_ptr + n * stride_n + label * stride_c
    alive = s < states
    now = tl.load(here, mask=alive & (T > 0), other=0)
    alpha, last = tl.full((BLOCK,), low, now.dtype), tl.full((BLOCK,), low, now.dtype)
    for t in range(T):
        here += stride_t                                                 # t · stride_t may pass 2³¹
        then = tl.load(here, mask=alive & (t + 1 < T), other=0)
        one = tl.where(s >= 1, tl.gather(alpha, tl.maximum(s - 1, 0), 0), low)
        two = tl.where(skips, tl.gather(alpha, tl.maximum(s - 2, 0), 0), low)
        alpha = tl.where(t == 0, tl.where(s < 2, 0, low), added(alpha, one, two)) + now
        alpha = tl.where(alive & (t < steps), alpha, low)
        tl.store(alpha_ptr + (n * T + t) * W + s, alpha, mask=s < W)
        last = tl.where(t == steps - 1, alpha, last)
        now = then
    end = tl.where((s == states - 1) | (s == states - 2), last, low)
    end = tl.where((steps == 0) & (count == 0) & (s == 0), 0, end)       # nothing said in no time
    most = tl.max(tl.where(end == end, end, float("inf")), 0)
    most = tl.where((most == low) | (most == float("inf")), 0, most)
    tl.store(loss_ptr + n, -(tl.log(tl.sum(tl.exp(end - most), 0)) + most))


@triton.jit
def ctc_weights_kernel(weight_ptr, log_prob_ptr, target_ptr, start_ptr, input_length_ptr, target_length_ptr, loss_ptr, alpha_ptr, T, S,
                       total, classes, stride_t, stride_n, stride_c, stride_tn, stride_ts, stride_l, blank, W, BLOCK: tl.constexpr):
    """weights[n, t, s]: the probability of being in state s at time t, given the labels. It goes back in time with beta, the
    log-probability of all that follows."""
    n = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK)
    steps, count = lengths(input_length_ptr, target_length_ptr, start_ptr, n, T, S, total)
    first, odd = first_label(start_ptr, n, stride_tn, stride_ts), s % 2 == 1
    label = tl.where(odd, label_at(target_ptr, first, stride_ts, s // 2, count, classes, blank), blank)
    after = label_at(target_ptr, first, stride_ts, s // 2 + 1, count, classes, blank)
    states, low = 2 * count + 1, float("-inf")
    alive, skips = s < states, odd & (s + 2 < states) & (label != after)
    loss = tl.load(loss_ptr + n * stride_l)
    here, row = log_prob_ptr + n * stride_n + label * stride_c, alpha_ptr + n * T * W + s
    now = tl.load(here + (steps - 1) * stride_t, mask=alive & (steps > 0), other=0)
    alpha = tl.load(row + (steps - 1) * W, mask=alive & (steps > 0), other=0)
    beta = tl.full((BLOCK,), low, now.dtype)
    for k in range(steps):
        t = steps - 1 - k
        then = tl.load(here + (t - 1) * stride_t, mask=alive & (t > 0), other=0)
        earlier = tl.load(row + (t - 1) * W, mask=alive & (t > 0), other=0)
        one = tl.where(s + 1 < states, tl.gather(beta, tl.minimum(s + 1, BLOCK - 1), 0), low)
        two = tl.where(skips, tl.gather(beta, tl.minimum(s + 2, BLOCK - 1), 0), low)
        beta = tl.where(k == 0, tl.where(s >= states - 2, 0, low), added(beta, one, two)) + now
        beta = tl.where(alive, beta, low)
        tl.store(weight_ptr + (n * T + t) * W + s, tl.exp(alpha + beta + loss - now), mask=alive)
        now, alpha = then, earlier


@triton.jit
def ctc_dense_kernel(out_ptr, g_ptr, log_prob_ptr, input_length_ptr, loss_ptr, T, N, classes, stride_ot, stride_on, stride_oc, stride_t,
                     stride_n, stride_c, stride_g, stride_l, ZERO: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """The gradient of classes that a sample does not name: g times the probability; 0 after its last step, and with ZERO where the loss is
    infinite, where it is NaN else, as it is for a class of probability 0."""
    tiles = tl.cdiv(classes, BLOCK_C)
    m = ((tl.program_id(0) // tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    c = ((tl.program_id(0) % tiles).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    t, n = m // N, m % N
    there = m < T * N
    loss, g = tl.load(loss_ptr + n * stride_l, mask=there, other=0), tl.load(g_ptr + n * stride_g, mask=there, other=0)
    alive = there & (t < tl.load(input_length_ptr + n, mask=there, other=0).to(tl.int64))
    if ZERO:
        alive &= loss != float("inf")
    x = tl.load(log_prob_ptr + t * stride_t + n * stride_n + c * stride_c, mask=alive & (c < classes), other=0)
    slope = (tl.exp(x) - tl.exp(float("-inf") + loss - x)) * g
    tl.store(out_ptr + t * stride_ot + n * stride_on + c * stride_oc, tl.where(alive, slope, 0), mask=there & (c < classes))


@triton.jit
def ctc_labels_kernel(out_ptr, g_ptr, weight_ptr, log_prob_ptr, target_ptr, start_ptr, input_length_ptr, target_length_ptr, loss_ptr, T, S,
                      total, N, classes, stride_ot, stride_on, stride_oc, stride_t, stride_n, stride_c, stride_tn, stride_ts, stride_g,
                      stride_l, blank, W, ZERO: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr):
    """The gradient of the classes that a sample names, and of the blank, at one time: less the weights of all their states, over the sum of
    all, which is 1 but for rounding: in float32 that makes a tenth of the error. It is written by the first state of each class. Tile 0
    also writes the blank's."""
    tiles = tl.cdiv(S, BLOCK_S) if S > 0 else 1
    tile = tl.program_id(0) % tiles
    t, n = (tl.program_id(0) // tiles // N).to(tl.int64), (tl.program_id(0) // tiles % N).to(tl.int64)
    steps, count = lengths(input_length_ptr, target_length_ptr, start_ptr, n, T, S, total)
    loss, g = tl.load(loss_ptr + n * stride_l), tl.load(g_ptr + n * stride_g)
    alive = t < steps
    if ZERO:
        alive &= loss != float("inf")
    if alive:
        first, row = first_label(start_ptr, n, stride_tn, stride_ts), weight_ptr + (n * T + t) * W
        x, to = log_prob_ptr + t * stride_t + n * stride_n, out_ptr + t * stride_ot + n * stride_on
        j = tile * BLOCK_S + tl.arange(0, BLOCK_S)[:, None]
        label = label_at(target_ptr, first, stride_ts, j, count, classes, blank)
        share = tl.zeros((BLOCK_S, BLOCK_K), loss.dtype)
        repeats = tl.zeros((BLOCK_S, BLOCK_K), tl.int32)
        blanks, whole = tl.zeros((1, BLOCK_K), loss.dtype), tl.zeros((1, BLOCK_K), loss.dtype)
        for start in range(0, S + 1, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)[None, :]
            other = label_at(target_ptr, first, stride_ts, k, count, classes, blank)
            weight = tl.load(row + 2 * k + 1, mask=k < count, other=0)
            same = (k < count) & (other == label)
            share += tl.where(same, weight, 0)
            repeats += (same & (k < j)).to(tl.int32)
            between = tl.load(row + 2 * k, mask=k <= count, other=0)
            blanks += between + tl.where((k < count) & (other == blank), weight, 0)
            whole += tl.where(weight == weight, weight, 0) + tl.where(between == between, between, 0)
        named = (j < count) & (label != blank) & (tl.sum(repeats, 1, keep_dims=True) == 0)
        scale = 1.0 / tl.sum(tl.ravel(whole), 0)
        slope = (tl.exp(tl.load(x + label * stride_c, mask=named, other=0)) - tl.sum(share, 1, keep_dims=True) * scale) * g
        tl.store(to + label * stride_oc, slope, mask=named)
        if tile == 0:
            tl.store(to + blank * stride_oc, (tl.exp(tl.load(x + blank * stride_c)) - tl.sum(tl.ravel(blanks), 0) * scale) * g)
