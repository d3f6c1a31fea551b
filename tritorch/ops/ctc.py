"""Connectionist temporal classification: the loss of all alignments of a sequence with its labels. Graves et al., Connectionist Temporal
Classification: Labelling Unsegmented Sequence Data with Recurrent Neural Networks, 2006."""
import numpy as np

from tritorch.autograd.formula import formula_rule
from tritorch.autograd.modes import again
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, tensors
from tritorch.ops import compare, create, shaping
from tritorch.ops.bounds import every
from tritorch.ops.composite import composite
from tritorch.ops.faults import fault_word
from tritorch.ops.indexing import finish, in_order
from tritorch.ops.loss import reduced
from tritorch.ops.normalize import contiguous
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import Tensor, empty

K = kernels("ctc")
NAME = "ctc_loss"
CLASSES, STEPS, LABELS = "targets that are classes", "input_lengths within the log_probs", "target_lengths within the targets"


@op(returns=("loss", "alpha"))
def ctc_rows(log_probs, targets, input_lengths, target_lengths, starts=None, most=0, blank=0, zero_infinity=False):
    """The loss of every sample, -log p(labels), and the log-probabilities alpha of all states at all times, from which its gradient is
    computed; only the loss has one.

    log_probs (T, N, C) of float32 or float64; targets (N, S), or in a row, those of sample n from starts[n] on; lengths (N,) integers, of
    targets up to `most`. The gradient is p - (the share of a class in the alignments), as if log_probs were a softmax's, which takes the
    p out again; with zero_infinity it is 0 where the loss is infinite, not NaN.
    """
    check(log_probs.ndim == 3, NAME, "log_probs of 3 dims", log_probs.shape)
    check(log_probs.dtype in (types.float32, types.float64), NAME, "float32 or float64", log_probs.dtype, error=NotImplementedError)
    check(targets.dtype in (types.int64, types.int32), NAME, "targets of int64 or int32", targets.dtype)
    check(0 <= blank < log_probs.shape[2], NAME, f"a blank in [0, {log_probs.shape[2] - 1}]", blank)
    T, N, _ = log_probs.shape
    device = common_device(NAME, *[x for x in (log_probs, targets, input_lengths, target_lengths, starts) if x is not None])
    return [((N,), log_probs.dtype, device), ((N, T, 2 * most + 1), log_probs.dtype, device)]


# ------------------------------------------------------------------ CPU
def states_of(targets, target_lengths, starts, most, blank, classes):
    """The label of every state (N, states), how many states there are, and which may be entered from two before."""
    lengths = target_lengths.astype(np.int64)[:, None]
    flat, n = targets.reshape(-1), len(lengths)
    first = (np.arange(n) * most if targets.ndim == 1 and starts is None else starts if starts is not None
             else np.arange(n) * targets.shape[1])[:, None]
    at = np.arange(most)[None, :]
    labels = np.where(at < lengths, flat[np.minimum(first + at, max(flat.size - 1, 0))], blank) if flat.size else np.full((n, most), blank)
    bad = labels[(labels < 0) | (labels >= classes)]
    check(not bad.size, NAME, CLASSES, bad[0] if bad.size else None, error=IndexError)
    states = np.full((n, 2 * most + 1), blank)
    states[:, 1::2] = labels
    skips = np.zeros(states.shape, bool)
    skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    return states, 2 * lengths + 1, skips


def shifted(x, by):
    """The states moved up by some, -∞ coming in; down if it is negative."""
    out = np.full_like(x, -np.inf)
    if by > 0:
        out[:, by:] = x[:, :-by]
    else:
        out[:, :by] = x[:, -by:]
    return out


def log_sum(*terms):
    """log Σ exp, elementwise."""
    most = np.maximum.reduce(terms)
    most = np.where(most == -np.inf, 0, most)
    return np.log(sum(np.exp(x - most) for x in terms)) + most


@ctc_rows.impl("cpu")
def ctc_rows_cpu(loss, alpha, log_probs, targets, input_lengths, target_lengths, starts, most, blank, zero_infinity):
    T, N, classes = log_probs.shape
    states, count, skips = states_of(targets, target_lengths, starts, most, blank, classes)
    s, steps, low = np.arange(2 * most + 1)[None, :], input_lengths.astype(np.int64)[:, None], log_probs.dtype.type(-np.inf)
    row, alive = np.full(states.shape, low), s < count
    last = row
    for t in range(T):
        ways = np.where(s < 2, 0, low) if t == 0 else log_sum(row, shifted(row, 1), np.where(skips, shifted(row, 2), low))
        row = np.where(alive & (t < steps), ways + log_probs[t, np.arange(N)[:, None], states], low)
        alpha[:, t] = row
        last = np.where(t == steps - 1, row, last)
    last = np.where((s == count - 1) | (s == count - 2), last, low)
    last = np.where((steps == 0) & (count == 1) & (s == 0), 0, last)     # nothing said in no time
    most = np.where(np.isfinite(last), last, low).max(1, keepdims=True)
    most = np.where(most == -np.inf, 0, most)
    loss[...] = -(np.log(np.exp(last - most).sum(1)) + most[:, 0])


@op
def ctc_backward(gradient, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most=0, blank=0, zero_infinity=False):
    """The gradient of `ctc_rows` with respect to log_probs."""
    return log_probs.shape, log_probs.dtype, log_probs.device


@ctc_backward.impl("cpu")
def ctc_backward_cpu(out, g, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most, blank, zero_infinity):
    T, N, classes = log_probs.shape
    states, count, skips = states_of(targets, target_lengths, starts, most, blank, classes)
    s, steps, low = np.arange(2 * most + 1)[None, :], input_lengths.astype(np.int64)[:, None], log_probs.dtype.type(-np.inf)
    row, n = np.full(states.shape, low), np.arange(N)[:, None]
    onward = np.concatenate([skips[:, 2:], np.zeros((N, min(2, states.shape[1])), bool)], 1)[:, :states.shape[1]] & (s + 2 < count)
    for t in reversed(range(T)):
        here = log_probs[t, n, states]
        ways = log_sum(row, np.where(s + 1 < count, shifted(row, -1), low), np.where(onward, shifted(row, -2), low))
        ways = np.where(t == steps - 1, np.where(s >= count - 2, 0, low), ways)
        row = np.where((s < count) & (t < steps), ways + here, low)
        weights = np.where(s < count, np.exp(alpha[:, t] + row + loss[:, None] - here), 0)
        weights /= np.nansum(weights, 1, keepdims=True)                  # 1 but for rounding: in float32 that makes a tenth of the error
        slope = np.exp(log_probs[t]) - np.exp(low + loss[:, None] - log_probs[t])
        used = np.zeros_like(slope)
        np.add.at(used, (n, states), weights)
        alive = (t < steps) & ~(zero_infinity & (loss[:, None] == np.inf))
        out[t] = np.where(alive, (slope - used) * g[:, None], 0)


# ------------------------------------------------------------------ CUDA
def threads(states):
    """(BLOCK, num_warps) of a program that has all states of a sample."""
    block = next_power_of_2(states)
    return {"BLOCK": block, "num_warps": min(max(block // 128, 1), 16)}


def described(log_probs, targets, input_lengths, target_lengths, starts, most):
    """The tensors that all kernels of a sample read, and their sizes and strides."""
    tensors = log_probs, targets, contiguous(starts), input_lengths.contiguous(), target_lengths.contiguous()
    along = targets.strides if starts is None else (0, *targets.strides)
    return tensors, (log_probs.shape[0], most, targets.numel()), (*log_probs.strides, *along)


@ctc_rows.impl("cuda")
def ctc_rows_cuda(loss, alpha, log_probs, targets, input_lengths, target_lengths, starts, most, blank, zero_infinity):
    T, N, classes = log_probs.shape
    if not N:
        return
    word, number = fault_word(log_probs.device, NAME, CLASSES)
    more = [fault_word(log_probs.device, NAME, expected, RuntimeError)[1] for expected in (STEPS, LABELS)]
    made, memory = in_order(loss), in_order(alpha)
    tensors, sizes, strides = described(log_probs, targets, input_lengths, target_lengths, starts, most)
    launch(K.ctc_alpha_kernel, (N,), made, memory, word, *tensors, *sizes, classes, *strides, blank, number, *more, 2 * most + 1,
           **threads(2 * most + 1))
    finish(loss, made)
    finish(alpha, memory)


@ctc_backward.impl("cuda")
def ctc_backward_cuda(out, g, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most, blank, zero_infinity):
    (T, N, classes), width = log_probs.shape, 2 * most + 1
    if not out.numel():
        return
    tensors, sizes, strides = described(log_probs, targets, input_lengths, target_lengths, starts, most)
    weights, alpha = empty((N, T, width), log_probs.dtype, log_probs.device), alpha.contiguous()
    launch(K.ctc_weights_kernel, (N,), weights, *tensors, loss, alpha, *sizes, classes, *strides, *loss.strides, blank, width,
           **threads(width))
    block_c = min(next_power_of_2(classes), 1024)
    block_m = min(max(tile(1024, 16384) // block_c, 1), next_power_of_2(T * N))
    launch(K.ctc_dense_kernel, (cdiv(T * N, block_m) * cdiv(classes, block_c),), out, g, log_probs, tensors[3], loss, T, N, classes,
           *out.strides, *log_probs.strides, *g.strides, *loss.strides, ZERO=zero_infinity, BLOCK_M=block_m, BLOCK_C=block_c)
    block_s, block_k = min(next_power_of_2(max(most, 1)), 32), min(next_power_of_2(most + 1), 64)
    launch(K.ctc_labels_kernel, (T * N * max(cdiv(most, block_s), 1),), out, g, weights, *tensors, loss, *sizes, N, classes, *out.strides,
           *strides, *g.strides, *loss.strides, blank, width, ZERO=zero_infinity, BLOCK_S=block_s, BLOCK_K=block_k)


# ------------------------------------------------------------------ gradients
LOW = -1e30                                                              # for -∞, of which differences are NaN


def ctc_formula(log_probs, targets, input_lengths, target_lengths, starts, most, blank, zero_infinity):
    """The loss step by step; -1e30 stands for a probability of 0."""
    (T, N, _), device = log_probs.shape, log_probs.device
    s = create.arange(2 * most + 1, device=device)
    nth, count = (s // 2).clamp(max=max(most - 1, 0)).expand(N, -1), 2 * target_lengths.unsqueeze(1) + 1
    labels = targets.gather(1, nth) if starts is None and most else targets.reshape(-1)[(starts.unsqueeze(1) + nth).clamp(
        max=targets.numel() - 1)] if most else nth
    labels = compare.where((s % 2 == 1) & (s < count), labels, blank).long()
    before = shaping.cat([labels.new_full((N, min(2, 2 * most + 1)), -1), labels[:, :-2]], 1)
    skips = (s % 2 == 1) & (s >= 3) & (labels != before)
    known = log_probs.gather(2, labels.expand(T, N, -1)).clamp(min=LOW)
    row = compare.where((s < 2) & (s < count), known[0], LOW)
    for t in range(1, T):
        one, two = [shaping.cat([row.new_full((N, k), LOW), row[:, :-k]], 1)[:, :2 * most + 1] for k in (1, 2)]
        ways = shaping.stack([row, one, compare.where(skips, two, LOW)]).logsumexp(0)
        row = compare.where(t < input_lengths.unsqueeze(1), (ways + known[t]).clamp(min=LOW), row)
    end = compare.where((s == count - 1) | (s == count - 2), row, LOW).logsumexp(1)
    return compare.where(input_lengths > 0, -end, 0)


_composed = formula_rule(ctc_rows, ("log_probs",))


@ctc_rows.grad("log_probs")
def ctc_rows_grad(g_loss, log_probs, targets, input_lengths, target_lengths, starts, most, blank, zero_infinity, loss, alpha):
    if not again(log_probs):
        return ctc_backward(g_loss, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most, blank, zero_infinity)
    share = _composed(g_loss, None, log_probs, targets, input_lengths, target_lengths, starts, most, blank, zero_infinity)
    alive = create.arange(log_probs.shape[0], device=log_probs.device).unsqueeze(1) < input_lengths
    if zero_infinity:
        alive = alive & (loss != float("inf"))
    return compare.where(alive.unsqueeze(2), log_probs.exp() * g_loss.unsqueeze(1) + share, 0)


ctc_rows.formula(ctc_formula)


# ------------------------------------------------------------------ the public function
def host_lengths(name, lengths, n, most):
    """Lengths as an array, if the host has them without waiting for a device and they are the same for all samples of vmap."""
    if isinstance(lengths, Tensor):
        check(lengths.dtype.category == 1, NAME, f"whole numbers as {name}", lengths.dtype)
        check(lengths.numel() == n, NAME, f"{name} for {n} samples", lengths.numel())
        if lengths.device.type != "cpu":
            return None
        found = every(lengths).array.reshape(-1).astype(np.int64)
    else:
        check(isinstance(lengths, (tuple, list)), NAME, f"a tensor or a tuple as {name}", type(lengths).__name__, error=TypeError)
        check(len(lengths) == n, NAME, f"{name} for {n} samples", len(lengths))
        found = np.array(lengths, np.int64).reshape(-1)
    check(bool((found >= 0).all()), NAME, f"{name} of at least 0", found)
    check(most is None or bool((found <= most).all()), NAME, f"{name} of at most {most}", found)
    return found if len(found) == n else None


def on_device(lengths, found, device):
    return create.tensor(found, device=device) if found is not None else lengths.reshape(-1).to(device)


@composite
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """-log of the probability that some alignment gives the targets; "mean" first divides each by its target's length.

    log_probs (T, N, C) or (T, C), logarithms of probabilities, float32 or float64; targets (N, S), or all in a row (Σ lengths,), of int64
    or int32; lengths (N,), tensors or tuples. An alignment names a class at each time; repeats are joined, then blanks taken out. With
    zero_infinity losses of targets that do not fit in the time are 0, and so are their gradients. Lengths in a tensor of the GPU are
    checked there, and no host waits for them if the targets are padded. Raises RuntimeError for lengths and targets that do not fit.
    Graves et al., Connectionist Temporal Classification, 2006.

    >>> import tritorch as torch; from tritorch.ops.ctc import ctc_loss
    >>> even = torch.full((3, 1, 2), 0.5).log()
    >>> ctc_loss(even, torch.tensor([[1]]), (3,), (1,)).exp()             # 6 of the 8 alignments give one 1
    tensor(1.3333)
    """
    tensors(NAME, log_probs=log_probs, targets=targets)
    check(reduction in ("none", "mean", "sum"), NAME, "a reduction among none, mean, sum", repr(reduction), error=ValueError)
    batched = log_probs.ndim == 3
    x = log_probs if batched else log_probs.unsqueeze(1)
    check(x.ndim == 3, NAME, "log_probs of 2 or 3 dims", log_probs.shape)
    check(x.numel() > 0, NAME, "log_probs that are not empty", log_probs.shape)
    check(targets.ndim in (1, 2), NAME, "targets of 1 or 2 dims", targets.shape)
    n = x.shape[1]
    steps = host_lengths("input_lengths", input_lengths, n, x.shape[0])
    labels = host_lengths("target_lengths", target_lengths, n, targets.shape[1] if targets.ndim == 2 else None)
    starts, most = None, targets.shape[1] if labels is None and targets.ndim == 2 else None
    if targets.ndim == 1:
        labels = target_lengths.reshape(-1).cpu().numpy() if labels is None else labels
        check(targets.numel() == labels.sum(), NAME, f"{labels.sum()} targets, as the lengths say", targets.numel())
        starts = create.tensor(np.cumsum(labels) - labels, device=x.device)
    else:
        check(targets.shape[0] == n, NAME, f"targets for {n} samples", targets.shape)
    most = int(labels.max()) if most is None else most
    lengths = on_device(target_lengths, labels, x.device)
    loss, _ = ctc_rows(x, targets.to(x.device), on_device(input_lengths, steps, x.device), lengths, starts, most, blank, zero_infinity)
    if zero_infinity:
        loss = loss.masked_fill(loss == float("inf"), 0)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    return reduced(loss if batched else loss.squeeze(0), reduction)


# ------------------------------------------------------------------ samples and workloads
def sequences(make, T, N, C, S, row=False):
    """log_probs, targets and lengths of some samples. The gradient is not the derivative: it is tested by hand."""
    x = (make(T, N, C, grad=False, dtype=make.dtype.compute) * 0.5).log_softmax(-1)
    steps, labels = make.rng.integers(T // 2, T + 1, N), make.rng.integers(S // 2, S + 1, N)
    labels[:1] = S
    count = (labels.sum(),) if row else (N, S)
    targets = make(*count, integer=True, low=0, high=C)
    starts = create.tensor(np.cumsum(labels) - labels) if row else None
    return x, targets, create.tensor(steps), create.tensor(labels), starts, S


@ctc_rows.samples
def ctc_rows_samples(make):
    yield *sequences(make, 7, 3, 4, 2), 1
    yield *sequences(make, 6, 2, 3, 3, True), 0, True
    yield *sequences(make, 2, 2, 3, 0), 2


@ctc_backward.samples
def ctc_backward_samples(make):
    for sample in ctc_rows_samples(make):
        x, targets, steps, labels, starts, most, blank, *zero = sample
        loss, alpha = ctc_rows(x, targets, steps, labels, starts, most, blank)
        yield make(x.shape[1], dtype=x.dtype), x, targets, steps, labels, starts, loss.detach(), alpha.detach(), most, blank, *zero


@ctc_backward.grad("gradient")
def ctc_backward_grad(g, gradient, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most, blank, zero_infinity):
    one = create.ones_like(gradient)
    return (g * ctc_backward(one, log_probs, targets, input_lengths, target_lengths, starts, loss, alpha, most, blank,
                             zero_infinity)).sum((0, 2))


ctc_rows.errors(lambda make: [
    ((make(3, 2), *sequences(make, 2, 2, 3, 1)[1:]), {}, RuntimeError, "expected log_probs of 3 dims"),
    ((*sequences(make, 2, 2, 3, 1), 3), {}, RuntimeError, "expected a blank in [0, 2]"),
    ((sequences(make, 2, 2, 3, 1)[0].half(), *sequences(make, 2, 2, 3, 1)[1:]), {}, NotImplementedError, "expected float32 or float64")])


def speech(make):
    """A batch of speech: 32 samples of 800 steps, 100 labels of 64 classes."""
    x = make(800, 32, 64, grad=False).log_softmax(-1)
    full = create.full((32,), 800, device=x.device), create.full((32,), 100, device=x.device)
    return x, make(32, 100, integer=True, low=1, high=64), *full, None, 100


def backward_workload(make):
    sample = speech(make)
    loss, alpha = ctc_rows(*sample)
    return loss, *sample[:5], loss, alpha, 100


ctc_rows.workloads(lambda make: [("800x32x64, 100 labels", lambda: speech(make), 4 * 800 * 32 * 201 * 2, 800 * 32 * 201 * 8)])
ctc_backward.workloads(lambda make: [("800x32x64, 100 labels", lambda: backward_workload(make), 4 * 800 * 32 * (201 * 4 + 256), 0)])
