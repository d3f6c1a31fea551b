"""Rules of products: of matrices, of layers, and of what is fused with them."""
from math import prod

from tritorch.dtype import types
from tritorch.func.batching.calls import all_the_same, each_its_own, rule
from tritorch.func.batching.folding import aligned, fold, padded, repeated, unfold
from tritorch.ops import create
from tritorch.ops.compare import where
from tritorch.ops.draws import random_dropout
from tritorch.ops.linear import linear
from tritorch.ops.products import addmm, matmul
from tritorch.ops.shaping import cat


# ------------------------------------------------------------------ matrices
@rule("matmul", "precise_product")
def products(call):
    """Where one matrix multiplies all samples it is one product of more rows; else products of batches of matrices."""
    a, b = call.args
    if call.where == [True, False] and len(b.shape) == 2:
        return call.run(a, b)
    if call.where == [False, True] and len(a.shape) == 2 and b.ndim == 3 and b.shape[-1] == 1:       # vectors: rows of one matrix
        return call.op(b.mT, a.mT).mT
    return call.run(*aligned(call, *call.op.names))


@rule("addmm")
def addmm_rule(call):
    rank, dtype = len(call.promises[0][0]), call.promises[0][1]
    if call.where[:3] == [True, False, False]:                           # one product for all
        added, first, second, beta, alpha, out_dtype = call.args
        made = call.op(None, first, second, beta, alpha, out_dtype)
        return repeated(made, call.size) if beta == 0 else (padded(added, rank).to(dtype) * beta + made).expand(call.size, *made.shape)
    if not call.differs("mat2") and len(call["mat2"].shape) == 2:        # one product of more rows
        return call.run(*[padded(x, rank) if w is True else x for x, w in zip(call.args, call.where)])
    return call.run(*aligned(call, "input", "mat1", "mat2"), *call.args[3:])


@rule("int_product")
def int_product(call):
    """The samples are rows of one matrix or columns of the other; where both differ there is no such operator, and int32 are multiplied."""
    (a, b), size, shape = call.args, call.size, call.promises[0][0]
    if not call.differs("mat2"):
        return unfold(call.op(fold(a), b), size, shape)
    if not call.differs("mat1"):
        return unfold(call.op(a, fold(b, 1)), size, shape, 1)
    return matmul(a.to(types.int32), b.to(types.int32))


@rule("scaled_product")
def scaled_product(call):
    """Likewise; a scale of each sample's own becomes one of each of its rows or columns."""
    (a, b, scale_a, scale_b, bias, out_dtype, fast), size, ((m, n), kind, *_) = call.args, call.size, call.promises[0]
    rows, columns = [any(map(call.differs, names)) for names in (("mat1", "scale_a"), ("mat2", "scale_b", "bias"))]
    if not columns:
        args = _joined(call, "mat1", 0), b, _scales(call, "scale_a", (m, 1), 0), scale_b, bias, out_dtype, fast
        return unfold(call.op(*args), size, (m, n))
    if not rows:
        bias = bias if bias is None else call.all(4).reshape(size * n)
        args = a, _joined(call, "mat2", 1), scale_a, _scales(call, "scale_b", (1, n), 1), bias, out_dtype, fast
        return unfold(call.op(*args), size, (m, n), 1)
    lead = [size if w else 1 for w in call.where]
    scale = scale_a.reshape(lead[2], -1, 1) * scale_b.reshape(lead[3], 1, -1)
    product = matmul(*[x.to(a.dtype.compute) for x in (a, b)]) * scale
    return (product if bias is None else product + bias.reshape(lead[4], 1, -1)).to(kind)


def _joined(call, name, dim):
    x = call[name]
    return fold(x if call.differs(name) else repeated(x, call.size), dim)


def _scales(call, name, shape, dim):
    scale = call[name]
    if not call.differs(name) and scale.numel() == 1:
        return scale
    lead = call.size if call.differs(name) else 1
    return fold(scale.reshape(lead, *shape if call.sample(name).numel() > 1 else (1, 1)).expand(call.size, *shape), dim)


# ------------------------------------------------------------------ layers
@rule("linear")
def linear_rule(call):
    """With one weight for all it is one product of more rows."""
    if call.where[0] and not call.where[1]:
        return call.run(*_tall(call, "bias"))
    return affine(call.size, call.promises[0], *_pairs(call, "input", "weight", "bias"))


def _tall(call, *biases, **changed):
    """The arguments where each sample has rows of its own and the weights are the same for all."""
    rank = len(call.sample("input").shape)
    return call.put(**{name: padded(call[name], rank) for name in biases if call.differs(name)}, **changed)


def _pairs(call, *names):
    return [(call[name], call.differs(name)) for name in names]


def affine(size, promise, input, weight, bias=(None, False)):
    """`linear` of all samples, from (tensor, whether it differs from sample to sample)."""
    (shape, dtype), (x, differs), (w, turns), (b, own) = promise[:2], input, weight, bias
    if turns and not differs and prod(shape[:-1]) == 1 and (b is None or b.shape[own:] == shape[-1:]):   # one product of more columns
        b = b if b is None else (b if own else repeated(b, size)).reshape(size * shape[-1])
        return unfold(linear(x, fold(w), b), size, shape, len(shape) - 1)
    if turns:
        return _of_batches(size, shape, dtype, input, w, bias)
    if differs:
        return linear(x, w, padded(b, len(shape)) if own else b)
    return repeated(linear(x, w, b), size) if not own else (linear(x, w) + padded(b, len(shape))).to(dtype)


def _of_batches(size, shape, dtype, input, w, bias):
    """With a weight for each sample; biases of more dims than one are written out."""
    (x, differs), (b, own), rows = input, bias, prod(shape[:-1])
    lead = size if own else 1
    if b is not None and len(b.shape) - own > 1:
        b = (padded(b, len(shape)) if own else b).expand(lead, *shape).reshape(lead, rows, shape[-1])
    elif own:
        b = b.reshape(lead, 1, prod(b.shape[1:]))
    x = x.reshape(size if differs else 1, rows, x.shape[-1])
    out = matmul(x, w.mT) if b is None else addmm(b, x, w.mT, 1, 1, None if b.dtype is dtype else b.dtype).to(dtype)
    return out.reshape(size, *shape)


@rule("linear_gradients")
def linear_gradients(call):
    """Products of batches of matrices, and sums over rows."""
    g, x, _, weight_total, bias_total = call.args
    (_, wanted, *_), (shape, kept, *_) = call.promises
    g, kind = call.all(0), None if wanted is g.dtype else wanted
    weight = matmul(g.mT, x) if weight_total is kind is None else addmm(weight_total, g.mT, x, 1, 1, kind)
    bias = g.sum(1, dtype=g.dtype.compute) if bias_total is None else (g.sum(1, dtype=g.dtype.compute) + bias_total).to(kept)
    return weight, bias


# ------------------------------------------------------------------ layers and what is fused with them
@rule("linear_activation")
def linear_activation(call):
    if call.where[0] and not call.where[1]:
        return call.run(*_tall(call, "bias"))
    return _activated(call, "weight", "bias", call.promises[0])


def _activated(call, weight, bias, promise):
    from tritorch.ops.feed_forward import ACTIVATIONS

    pre = affine(call.size, promise, *_pairs(call, "input", weight, bias))
    return ACTIVATIONS[call["activation"]][0](pre), pre


@rule("linear_slope")
def linear_slope(call):
    from tritorch.ops.feed_forward import ACTIVATIONS

    if call.where[0] and not call.where[1]:
        return call.run(*call.put(pre=call.all(2)))
    g, (weight, turns) = _pairs(call, "g_out", "weight")
    return ACTIVATIONS[call["activation"]][1](affine(call.size, call.promises[0], g, (weight.mT, turns)), call["pre"])


@rule("feed_forward_layers")
def feed_forward_layers(call):
    if call.where[0] and not call.where[1] and not call.where[3]:
        return call.run(*_tall(call, "bias1", "bias2"))
    hidden, pre = _activated(call, "weight1", "bias1", call.promises[1])
    return affine(call.size, call.promises[0], (hidden, True), *_pairs(call, "weight2", "bias2")), hidden, pre


@rule("linear_residual", table=each_its_own)
def linear_residual(call):
    """Where there is one weight, elements are counted through all samples."""
    if call.where[0] and not call.where[1]:
        return call.run(*_tall(call, "bias", residual=call.all(3)))
    value, p = affine(call.size, call.promises[0], *_pairs(call, "input", "weight", "bias")), call["p"]
    value = random_dropout(value, p, call["seed"], call["offset"], call["base"]) if p else value
    return value if call["residual"] is None else value + call["residual"]


@rule("linear_residual", table=all_the_same)
def one_residual(call):
    """One mask."""
    shape, dtype, device = call.promises[0]
    ones = create.ones(shape, dtype=dtype.compute, device=device)
    value = affine(call.size, call.promises[0], *_pairs(call, "input", "weight", "bias"))
    value = (value * random_dropout(ones, call["p"], call["seed"], call["offset"], call["base"])).to(dtype)
    return value if call["residual"] is None else value + call["residual"]


# ------------------------------------------------------------------ the cross entropy of a layer
@rule("linear_cross_entropy_rows")
def linear_cross_entropy_rows(call):
    """With one weight for all the samples are rows; else their logits are stored."""
    if not any(map(call.differs, ("linear_weight", "linear_bias", "weight"))):
        rows = [fold(call.all(k)) for k in (0, 3)]
        return tuple([unfold(x, call.size, call.promises[0][0]) for x in call.op(*call.put(input=rows[0], target=rows[1]))])
    return call.composed(_rows)


def _rows(input, linear_weight, linear_bias, target, weight, ignore_index, label_smoothing):
    from tritorch.ops.cross_entropy import cross_entropy_rows

    return cross_entropy_rows(linear(input, linear_weight, linear_bias), target, weight, ignore_index, label_smoothing)


@rule("linear_cross_entropy_backward")
def linear_cross_entropy_backward(call):
    return call.composed(call.op.formula_body)


@rule("linear_cross_entropy_sum")
def linear_cross_entropy_sum(call):
    """Each sample has a sum of its own, and a gradient of the weight: logits are stored, which are fewer numbers than these gradients where
    samples have few rows."""
    return call.composed(_sum)


def _sum(input, linear_weight, linear_bias, target, weight, ignore_index, label_smoothing, mean, grad_dtype):
    from tritorch.ops.cross_entropy import cross_entropy_backward, cross_entropy_rows
    from tritorch.ops.linear_cross_entropy import is_scaled

    logits = linear(input, linear_weight, linear_bias)
    losses, weights, lse = cross_entropy_rows(logits, target, weight, ignore_index, label_smoothing)
    divisor, total = weights.sum(), losses.sum()
    factor = divisor.new_ones(()) if not mean or not is_scaled(input.dtype) else divisor.reciprocal()
    g = cross_entropy_backward(factor.expand(losses.shape), logits, target, lse, weight, ignore_index, label_smoothing)
    in_dtype = None if grad_dtype in (None, input.dtype) else grad_dtype
    gradients = matmul(g, linear_weight), addmm(None, g.mT, input, 1, 1, in_dtype), g.new_zeros(0) if linear_bias is None else g.sum(0)
    return total * divisor.reciprocal() if mean else total, divisor, *gradients


# ------------------------------------------------------------------ groups of rows
@rule("grouped_rows")
def grouped_rows(call):
    """Groups that are the same for all samples get more rows, or more columns; else the samples' groups follow each other."""
    (x, mat, offs), (rows, apart, cut), size, shape = call.args, call.where, call.size, call.promises[0][0]
    if not cut and not apart:                                            # the samples of a row side by side
        x = x.movedim(0, 1)
        return call.op(x.reshape(x.shape[0] * size, x.shape[2]), mat, offs * size).reshape(shape[0], size, shape[1]).movedim(1, 0)
    if not cut and not rows:
        return unfold(call.op(x, fold(mat, 2), offs), size, shape, 1)
    x, offs, length = fold(call.all(0)), call.all(2), shape[0]
    row = create.arange(length, device=x.device)
    if apart:
        made = unfold(call.op(x, fold(mat), _ends(offs, length).reshape(-1)), size, shape)
        return where((row < offs.amax(1, keepdim=True)).unsqueeze(-1), made, 0) if offs.shape[1] else made      # others: of the next sample
    order = (row.unsqueeze(-1) >= offs.unsqueeze(1)).sum(-1).reshape(-1).argsort(stable=True)        # all rows of a group together
    made = call.op(x.index_select(0, order), mat, offs.sum(0, dtype=offs.dtype))
    return unfold(made.index_select(0, order.argsort()), size, shape)


def _ends(offs, length):
    """The ends of the groups of all samples, which follow each other."""
    return offs + (create.arange(offs.shape[0], device=offs.device) * length).to(offs.dtype).unsqueeze(-1)


@rule("grouped_sums")
def grouped_sums(call):
    (x, mat, offs), (rows, columns, cut), size, shape = call.args, call.where, call.size, call.promises[0][0]
    if not cut and not columns:
        return unfold(call.op(fold(x), mat, offs), size, shape, 1)
    if not cut and not rows:
        return unfold(call.op(x, fold(mat, 1), offs), size, shape, 2)
    length = call.given[1].shape[0]
    ends = _ends(cat([call.all(2), offs.new_full((size, 1), length)], 1), length)    # one more group of what is in none
    made = call.op(fold(call.all(0), 1), fold(call.all(1)), ends.reshape(-1))
    return made.reshape(size, shape[0] + 1, *shape[1:])[:, :shape[0]]
