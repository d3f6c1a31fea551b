"""A recurrent layer as one operator: the input's share of the gates in one product for all steps, then a product and a kernel a step; the
way back likewise, with one product for all steps' gradients of each weight."""
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np

from tritorch.autograd.formula import formula_rule
from tritorch.autograd.modes import again
from tritorch.autograd.parts import needed
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.gemm import gemm
from tritorch.ops.linear import affine_gradients
from tritorch.ops.products import affine_dtype, multiply, one_dtype, with_arrived
from tritorch.ops.recurrent_composed import compose
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, strided

K = kernels("recurrent")
GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}              # rows of the weights, in hidden sizes
KEPT = {"RNN_TANH": 0, "RNN_RELU": 0, "LSTM": 4, "GRU": 4}               # what a step keeps for the way back, beside its output
STEP = {"RNN_TANH": "rnn", "RNN_RELU": "rnn", "LSTM": "lstm", "GRU": "gru"}


class Step(NamedTuple):
    """Where a time step lies: its rows are start … start + n. The state before is that of the rows from `before` on for the first m samples
    and the initial one for the others; the samples from `end` on have no later step."""

    start: int
    n: int
    before: int
    m: int
    end: int


def walk(sizes, reverse):
    """The steps in the order in which they are taken. `sizes`: the batch size at each time, which never grows."""
    starts = [0, *accumulate(sizes)]
    times, found = range(len(sizes))[::-1 if reverse else 1], []
    for k, t in enumerate(times):
        before = times[k - 1] if k else None
        m = 0 if before is None else min(sizes[before], sizes[t])
        end = 0 if k == len(times) - 1 else min(sizes[times[k + 1]], sizes[t])
        found.append(Step(starts[t], sizes[t], 0 if before is None else starts[before], m, end))
    return found


def sizes_of(data, steps):
    return steps if steps is not None else (data.shape[1],) * data.shape[0]


@op(returns=("out", "h_last", "c_last", "cells", "kept"))
def recurrent_layer(data, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h=None, c=None, mode="LSTM", steps=None, reverse=False):
    """One layer of `nn.RNN`, `nn.LSTM` or `nn.GRU` in one direction: the outputs of all steps, the last states of all samples, the cells of
    all steps, and what else the way back needs. c_last and cells are empty but for an LSTM, which alone has a c; only the first three have
    gradients.

    data (T, N, k), or (Σ steps, k) with the batch size of every step, which never grows; weight_ih (gates · H, k), weight_hh
    (gates · H, H), biases (gates · H,) or None; h and c (N, H), None for zeros. `mode` is "LSTM", "GRU", "RNN_TANH" or "RNN_RELU";
    `reverse` goes from the last step to the first. Half types are summed in float32. Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> recurrent_layer(torch.ones(2, 1, 1), torch.ones(1, 1), torch.ones(1, 1), mode="RNN_RELU")[0].tolist()
    [[[1.0]], [[2.0]]]
    """
    name = "recurrent_layer"
    check(mode in GATES, name, f"a mode among {', '.join(GATES)}", repr(mode))
    hidden, rows = weight_hh.shape[-1], GATES[mode] * weight_hh.shape[-1]
    check(data.ndim == (3 if steps is None else 2), name, "data (T, N, k), or (rows, k) with steps", tuple(data.shape), steps)
    check(weight_ih.shape == (rows, data.shape[-1]) and weight_hh.shape == (rows, hidden), name,
          f"weights {(rows, data.shape[-1])} and {(rows, hidden)}", tuple(weight_ih.shape), tuple(weight_hh.shape))
    sizes = sizes_of(data, steps)
    fits = len(sizes) > 0 and sum(sizes) == prod(data.shape[:-1]) and all(a >= b for a, b in zip(sizes, sizes[1:]))
    check(fits, name, "at least one step, and batch sizes that do not grow and sum to the rows", None if fits else (data.shape, steps))
    state = sizes[0], hidden
    for x in (h, c):
        check(x is None or x.shape == state, name, f"a state of shape {state}", None if x is None else tuple(x.shape))
    check(c is None or mode == "LSTM", name, "a c for an LSTM alone", mode)
    check(data.dtype.is_floating_point, name, "floating tensors", data.dtype)
    dtype = one_dtype(name, *[x for x in (data, weight_ih, weight_hh, h, c) if x is not None])
    for bias in (bias_ih, bias_hh):
        check(bias is None or bias.shape == (rows,), name, f"a bias of shape {(rows,)}", None if bias is None else tuple(bias.shape))
        affine_dtype(name, data, weight_ih, bias)
    device, lead = common_device(name, *[x for x in (data, weight_ih, weight_hh, bias_ih, bias_hh, h, c) if x is not None]), data.shape[:-1]
    cells = mode == "LSTM"
    shapes = (*lead, hidden), state, state if cells else (0,), (*lead, hidden) if cells else (0,), (
        (*lead, KEPT[mode] * hidden) if KEPT[mode] else (0,))
    return [(shape, dtype, device) for shape in shapes]


recurrent_layer.some_gradients = True                                    # mostly the outputs or the last state are used, not both


# ------------------------------------------------------------------ CPU
def sigmoid(x):
    return 0.5 * np.tanh(0.5 * x) + 0.5


def rows_of(first, start, second, step, kind):
    """The state before a step: `first` holds those of earlier ones, `second` the initial ones."""
    shape = step.n - step.m, first.shape[-1]
    begun = np.zeros(shape, kind) if second is None else second[step.m:step.n].astype(kind)
    return np.concatenate([first[start:start + step.m].astype(kind), begun])


def flat(x):
    return x if x is None or x.ndim < 3 else x.reshape(-1, x.shape[-1])


@recurrent_layer.impl("cpu")
def recurrent_layer_cpu(out, h_last, c_last, cells, kept, data, weight_ih, weight_hh, bias_ih, bias_hh, h, c, mode, steps, reverse):
    kind, hidden = np.promote_types(data.dtype, np.float32), weight_hh.shape[1]
    sizes, rows = sizes_of(data, steps), prod(data.shape[:-1])
    x, states = np.empty((rows, len(weight_ih)), kind), np.empty((rows, hidden), out.dtype)
    multiply(x, flat(data).astype(kind), weight_ih.astype(kind).T, 1, bias_ih)
    memory, more = np.empty((rows if mode == "LSTM" else 0, hidden), out.dtype), np.empty((rows, KEPT[mode] * hidden), out.dtype)
    for step in walk(sizes, reverse):
        here, before = slice(step.start, step.start + step.n), rows_of(states, step.before, h, step, kind)
        share = before @ weight_hh.T.astype(kind)
        if bias_hh is not None:
            share += bias_hh
        if mode == "LSTM":
            i, f, g, o = np.split(x[here] + share, 4, -1)
            i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
            cell = f * rows_of(memory, step.before, c, step, kind) + i * g
            state, more[here], memory[here] = o * np.tanh(cell), np.concatenate([i, f, g, o], -1), cell
            c_last[step.end:step.n] = cell[step.end:]
        elif mode == "GRU":
            (xr, xz, xn), (hr, hz, s) = np.split(x[here], 3, -1), np.split(share, 3, -1)
            r, z = sigmoid(xr + hr), sigmoid(xz + hz)
            n = np.tanh(xn + r * s)
            state, more[here] = n + z * (before - n), np.concatenate([r, z, n, s], -1)
        else:
            state = np.tanh(x[here] + share) if mode == "RNN_TANH" else np.maximum(x[here] + share, 0)
        states[here] = state
        h_last[step.end:step.n] = state[step.end:]
    for target, made in ((out, states), (cells, memory), (kept, more)):
        if target.size:
            target[...] = made.reshape(target.shape)


# ------------------------------------------------------------------ CUDA
def part(x, start, n, columns=None, first=0):
    """Rows of a contiguous tensor, all dims but the last counted as one; some of the columns."""
    wide = x.shape[-1]
    return strided(x.storage, (n, columns or wide), (wide, 1), x.offset + start * wide + first, x.dtype)


def shaped(n, hidden):
    """(BLOCK_M, BLOCK_N, warps) of a step: 512 elements a program, whole rows where they are narrow."""
    if tile(0, 1):
        return min(next_power_of_2(max(n, 1)), 256), min(next_power_of_2(hidden), 256), 4
    block_n = min(next_power_of_2(hidden), 256)
    return max(1, min(next_power_of_2(max(n, 1)), 512 // block_n)), block_n, 4


def start_step(kernel, step, hidden, args, mode, acc):
    block_m, block_n, warps = shaped(step.n, hidden)
    more = {"RELU": mode == "RNN_RELU"} if STEP[mode] == "rnn" else {}
    launch(getattr(K, kernel), (cdiv(step.n, block_m), cdiv(hidden, block_n)), *args, ACC=getattr(K.tl, acc.name), BLOCK_M=block_m,
           BLOCK_N=block_n, num_warps=warps, **more)


def dense(x):
    return x if x is None or x.is_contiguous() else x.contiguous()


@recurrent_layer.impl("cuda")
def recurrent_layer_cuda(out, h_last, c_last, cells, kept, data, weight_ih, weight_hh, bias_ih, bias_hh, h, c, mode, steps, reverse):
    given, acc, hidden, gates = (out, h_last, c_last, cells, kept), data.dtype.compute, weight_hh.shape[1], GATES[mode] * weight_hh.shape[1]
    made = [x if x.is_contiguous() else empty(x.shape, x.dtype, x.device) for x in given]
    out, h_last, c_last, cells, kept = made
    h, c, bias_hh, sizes = dense(h), dense(c), dense(bias_hh), sizes_of(data, steps)
    x = kept if KEPT[mode] else out                                      # what comes in there is replaced step by step
    gemm(strided(x.storage, (*data.shape[:-1], gates), x.strides, x.offset, x.dtype), data, weight_ih.mT, bias_ih)
    share = empty((sizes[0], gates), acc, data.device)
    for step in walk(sizes, reverse):
        start, n, before, m, end = step
        if m:
            gemm(part(share, 0, m), part(out, before, m), weight_hh.mT)
        if h is not None and m < n:
            gemm(part(share, m, n - m), part(h, m, n - m), weight_hh.mT)
        earlier = part(out, before, m), h, part(cells, before, m) if mode == "LSTM" else None, c
        args = (part(out, start, n), h_last, c_last, part(cells, start, n) if mode == "LSTM" else None, part(x, start, n), share, bias_hh,
                *earlier, n, hidden, m, m if h is None else n, end)
        start_step(STEP[mode] + "_kernel", step, hidden, args, mode, acc)
    for target, source in zip(given, made):
        if target is not source:
            target.copy_(source)


# ------------------------------------------------------------------ backward
@op(returns=("g_gates", "g_recurrent", "previous", "g_h", "g_c"))
def recurrent_layer_backward(g_out, g_h_last, g_c_last, weight_hh, h, c, out, cells, kept, mode="LSTM", steps=None, reverse=False):
    """What gradients of `recurrent_layer` are made of: the gradient of the gates' sums, in every step; for a GRU that of the state's share
    in them, else empty; the state before every step; the gradients of h and c, in the precision of sums. Those that arrive may be None."""
    rows, hidden, acc = out.shape[:-1], out.shape[-1], out.dtype.compute
    gates, state = (*rows, GATES[mode] * hidden), (sizes_of(out, steps)[0], hidden)
    shapes = gates, gates if mode == "GRU" else (0,), out.shape, state, state if mode == "LSTM" else (0,)
    return [(shape, dtype, out.device) for shape, dtype in zip(shapes, (*[out.dtype] * 3, acc, acc))]


@recurrent_layer_backward.impl("cpu")
def backward_cpu(g_gates, g_recurrent, previous, g_h, g_c, g_out, g_h_last, g_c_last, weight_hh, h, c, out, cells, kept, mode, steps,
                 reverse):
    kind = np.promote_types(out.dtype, np.float32)
    states, memory, more, weight, sizes = flat(out), flat(cells), flat(kept), weight_hh.astype(kind), sizes_of(out, steps)
    inner, outer = np.empty((2, len(states), len(weight)), kind)
    earlier = np.empty(states.shape, kind)
    dh, dc = np.zeros(g_h.shape, kind), np.zeros(g_h.shape, kind)
    for step in reversed(walk(sizes, reverse)):
        here, before = slice(step.start, step.start + step.n), rows_of(states, step.before, h, step, kind)
        for carried, last in ((dh, g_h_last), (dc, g_c_last)):
            carried[step.end:step.n] = 0 if last is None else last[step.end:step.n]
        g, direct = dh[:step.n] + (0 if g_out is None else flat(g_out)[here]), 0
        if mode == "LSTM":
            (i, f, new, o), t = np.split(more[here].astype(kind), 4, -1), np.tanh(memory[here].astype(kind))
            gc = dc[:step.n] + g * o * (1 - t * t)
            old = rows_of(memory, step.before, c, step, kind)
            slopes = gc * new * i * (1 - i), gc * old * f * (1 - f), gc * i * (1 - new * new), g * t * o * (1 - o)
            inner[here] = np.concatenate(slopes, -1)
            dc[:step.n] = gc * f
        elif mode == "GRU":
            r, z, n, s = np.split(more[here].astype(kind), 4, -1)
            gn = g * (1 - z) * (1 - n * n)
            inner[here] = np.concatenate([gn * s * r * (1 - r), g * (before - n) * z * (1 - z), gn], -1)
            direct = g * z
        else:
            inner[here] = np.where(states[here] <= 0, 0, g) if mode == "RNN_RELU" else g * (1 - states[here].astype(kind) ** 2)
        outer[here], earlier[here] = inner[here], before
        if mode == "GRU":
            outer[here, 2 * states.shape[1]:] *= r
        dh[:step.n] = outer[here] @ weight + direct
    for target, made in ((g_gates, inner), (g_recurrent, outer), (previous, earlier), (g_h, dh), (g_c, dc)):
        if target.size:
            target[...] = made.reshape(target.shape)


@recurrent_layer_backward.impl("cuda")
def backward_cuda(g_gates, g_recurrent, previous, g_h, g_c, g_out, g_h_last, g_c_last, weight_hh, h, c, out, cells, kept, mode, steps,
                  reverse):
    given, hidden, acc = (g_gates, g_recurrent, previous, g_h, g_c), out.shape[-1], out.dtype.compute
    made = [x if x.is_contiguous() else empty(x.shape, x.dtype, x.device) for x in given]
    g_gates, g_recurrent, previous, g_h, g_c = made
    g_h_last, g_c_last, h, c, out, cells, kept = [dense(x) for x in (g_h_last, g_c_last, h, c, out, cells, kept)]
    lstm, gru, sizes = mode == "LSTM", mode == "GRU", sizes_of(out, steps)
    for step in reversed(walk(sizes, reverse)):
        start, n, before, m, end = step
        g, stride_n, stride_h = g_out, 0, 0                              # of any strides: those of a sum's gradient are 0
        if g is not None:
            stride_n, stride_h = g.strides[-2:]
            first = g.offset + (start * stride_n if steps is not None else start // max(n, 1) * g.strides[0])
            g = strided(g.storage, (n, hidden), (stride_n, stride_h), first, g.dtype)
        gates = part(g_gates, start, n)
        outer = part(g_recurrent, start, n) if gru else gates
        args = (gates, outer, part(previous, start, n), g_h, g_c, g, g_h_last, g_c_last, part(out, start, n),
                part(cells, start, n) if lstm else None, part(kept, start, n) if lstm or gru else None, part(out, before, m), h,
                part(cells, before, m) if lstm else None, c, stride_n, stride_h, n, hidden, m, end)
        start_step(STEP[mode] + "_backward_kernel", step, hidden, args, mode, acc)
        rows = part(g_h, 0, n)
        gemm(rows, outer, weight_hh, rows if gru else None)
    for target, source in zip(given, made):
        if target is not source:
            target.copy_(source)


@recurrent_layer.grad("data", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h", "c")
def recurrent_layer_grad(g_out, g_h_last, g_c_last, data, weight_ih, weight_hh, bias_ih, bias_hh, h, c, mode, steps, reverse, out, cells,
                         kept):
    if again(data, weight_ih, weight_hh, bias_ih, bias_hh, h, c):
        return _composed(g_out, g_h_last, g_c_last, None, None, data, weight_ih, weight_hh, bias_ih, bias_hh, h, c, mode, steps, reverse)
    g_c_last = g_c_last if mode == "LSTM" else None
    inner, outer, previous, g_h, g_c = recurrent_layer_backward(g_out, g_h_last, g_c_last, weight_hh, h, c, out, cells, kept, mode, steps,
                                                                reverse)
    outer = outer if mode == "GRU" else inner
    shapes = [None if bias is None else bias.shape for bias in (bias_ih, bias_hh)]
    g_data = with_arrived("data", data.shape, inner, weight_ih) if needed("data") else None
    g_weight_ih, g_bias_ih = affine_gradients(inner, data, "weight_ih", "bias_ih", shapes[0])
    g_weight_hh, g_bias_hh = affine_gradients(outer, previous, "weight_hh", "bias_hh", shapes[1])
    return g_data, g_weight_ih, g_weight_hh, g_bias_ih, g_bias_hh, None if h is None else g_h, None if c is None else g_c


def layer_formula(data, weight_ih, weight_hh, bias_ih, bias_hh, h, c, mode, steps, reverse):
    sizes = sizes_of(data, steps)
    state = [data.new_zeros(sizes[0], weight_hh.shape[1]) if x is None else x for x in ((h, c) if mode == "LSTM" else (h,))]
    rows = data if steps is not None else data.reshape(-1, data.shape[-1])
    out, last = compose(mode, rows, (weight_ih, weight_hh, bias_ih, bias_hh, None), tuple(state), list(sizes), reverse)
    return out.reshape(*data.shape[:-1], out.shape[-1]), *last


recurrent_layer.formula(layer_formula)
_composed = formula_rule(recurrent_layer, recurrent_layer.names[:7])


# ------------------------------------------------------------------ samples and workloads
def operands(make, mode, n, k, hidden, lead=(), bias=True, state=True):
    """(data, weights, biases, h, c); `lead`: the data's leading dims."""
    gates = GATES[mode] * hidden
    h, c = [make(n, hidden) if state and (mode == "LSTM" or not j) else None for j in range(2)]
    biases = (make(gates), make(gates)) if bias else (None, None)
    return make(*lead, k), make(gates, k), make(gates, hidden), *biases, h, c


@recurrent_layer.samples
def recurrent_layer_samples(make):
    yield *operands(make, "LSTM", 3, 5, 4, (2, 3)), "LSTM"
    yield *operands(make, "LSTM", 2, 2, 3, (3,)), "LSTM", (2, 1), True
    yield *operands(make, "GRU", 2, 2, 5, (3,)), "GRU", (2, 1)
    yield *operands(make, "GRU", 2, 3, 2, (2, 2), bias=False, state=False), "GRU", None, True
    yield *operands(make, "RNN_TANH", 2, 2, 3, (3,)), "RNN_TANH", (2, 1), True
    yield *operands(lambda *shape: make(*shape, positive=True), "RNN_RELU", 3, 2, 4, (2, 3)), "RNN_RELU"       # away from the kink
    yield *operands(make, "LSTM", 0, 3, 2, (2, 0)), "LSTM"


@recurrent_layer_backward.samples
def recurrent_layer_backward_samples(make):
    for mode, lead, steps, reverse in (("LSTM", (2, 3), None, False), ("LSTM", (4,), (3, 1), True), ("GRU", (4,), (3, 1), False),
                                       ("RNN_TANH", (2, 3), None, True), ("RNN_RELU", (4,), (3, 1), True)):
        lstm = mode == "LSTM"
        rest = make(3, 4), make(3, 4) if lstm else None, make(*lead, 4), make(*lead, 4) if lstm else make(0)
        kept = make(*lead, 16) if KEPT[mode] else make(0)
        yield (make(*lead, 4), make(3, 4), make(3, 4) if lstm else None, make(GATES[mode] * 4, 4), *rest, kept, mode, steps, reverse)
    yield None, make(2, 3), None, make(3, 3), None, None, make(2, 2, 3), make(0), make(0), "RNN_TANH"


@recurrent_layer.errors
def recurrent_layer_errors(make):
    good = operands(make, "GRU", 2, 3, 4, (5, 2))
    yield (*good, "CFC"), {}, RuntimeError, "expected a mode among RNN_TANH, RNN_RELU, LSTM, GRU"
    yield (*good, "LSTM"), {}, RuntimeError, "expected weights (16, 3) and (16, 4)"
    yield (*good, "GRU", (5, 5)), {}, RuntimeError, "data (T, N, k), or (rows, k) with steps"
    yield (make(5, 3), *good[1:], "GRU", (2, 3)), {}, RuntimeError, "batch sizes that do not grow and sum to the rows"
    yield (*good[:5], make(3, 4), None, "GRU"), {}, RuntimeError, "a state of shape (2, 4)"
    yield (*good[:5], make(2, 4), make(2, 4), "GRU"), {}, RuntimeError, "a c for an LSTM alone"
    yield (*good[:3], make(4), None, None, None, "GRU"), {}, RuntimeError, "a bias of shape (12,)"


def sizes_for(make, mode, backward):
    half, (T, N, k) = dict(dtype=types.bfloat16), (128, 64, 1024)
    def call():
        def low(*shape):
            return make(*shape, **half)

        values = operands(low, mode, N, k, k, (T, N))
        if not backward:
            return *values, mode
        cells = low(T, N, k) if mode == "LSTM" else low(0)
        return low(T, N, k), None, None, values[2], *values[5:], low(T, N, k), cells, low(T, N, KEPT[mode] * k), mode

    gates = GATES[mode] * k
    return f"bf16 {mode} {T}x{N}, {k} hidden", call, 2 * T * N * (2 * k + 3 * gates), (1 if backward else 2) * 2 * T * N * gates * k


recurrent_layer.workloads(lambda make: (sizes_for(make, mode, False) for mode in ("LSTM", "GRU")))
recurrent_layer_backward.workloads(lambda make: (sizes_for(make, mode, True) for mode in ("LSTM", "GRU")))
