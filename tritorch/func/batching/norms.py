"""Rules of norms and of what is fused with them.

Layer and RMS norm take samples as more rows, group norm as more images or groups, batch norm as more images or, where samples have
statistics or parameters of their own, as more channels.
"""
import math

from tritorch.func.batching.calls import all_the_same, rule
from tritorch.ops import create
from tritorch.ops.draws import random_dropout
from tritorch.ops.norm_sums import norm_sums
from tritorch.tensor import Tensor


# ------------------------------------------------------------------ parameters of samples
def _beside(call, name, rows, behind=0):
    """A parameter of samples in a shape that broadcasts against samples with so many dims in front of its own and behind them."""
    p = call[name]
    return p.reshape(call.size, *[1] * rows, *p.shape[1:], *[1] * behind) if call.differs(name) else p.reshape(*p.shape, *[1] * behind)


def _own(call):
    """Whether samples have a weight or a bias of their own."""
    return any(call.differs(name) for name in ("weight", "bias") if name in call.op.names)


def _affine(call, out, rows, behind=0):
    """A norm times the weight plus the bias, rounded once more."""
    made = out
    for name in ("weight", "bias"):
        if name in call.op.names and call[name] is not None:
            p = _beside(call, name, rows, behind)
            made = made * p if name == "weight" else made + p
    return made.to(out.dtype)


# ------------------------------------------------------------------ layer norm, RMS norm
@rule("layer_norm_rows", "rms_norm_rows")
def norm_of_rows(call):
    """Parameters of samples come behind a norm without any: one for all samples, if they share the input."""
    rows = len(call.given[0].shape) - len(call["normalized_shape"])
    out, statistics = call.op(*call.put(weight=None, bias=None) if _own(call) else call.args)
    if not call.where[0]:
        statistics = statistics.expand(call.size, *statistics.shape)
    elif call.op.__name__ == "layer_norm_rows":
        statistics = statistics.movedim(1, 0)
    return _affine(call, out, rows) if _own(call) else out, statistics


@rule("residual_norm", table=all_the_same)
@rule("residual_norm")
def residual_norm(call):
    """The same of a sum. What is dropped is told from the place of an element: each sample's own elements are."""
    x, mask, rows = call.all(0), _one_mask(call), len(call.given[0].shape) - len(call["normalized_shape"])
    changed = {"input": x, "residual": call.all(1)}
    if call.differs("input_bias") or mask is not None and call["input_bias"] is not None:
        changed.update(input=(x + _beside(call, "input_bias", rows)).to(x.dtype), input_bias=None)
    if mask is not None:
        changed.update(input=(changed["input"] * mask).to(x.dtype), p=0.0)
    if not _own(call):
        return call.op(*call.put(**changed))
    out, *others = call.op(*call.put(weight=None, bias=None, **changed))
    return _affine(call, out, rows), *others


@rule("layer_norm_backward")
def layer_norm_backward(call):
    """The gradient of the input is that of more rows; those of parameters are sums of a sample's own rows."""
    g, x, statistics = call.everything()[:3]
    statistics = statistics.movedim(1, 0)
    g_rows, weight = _slope(call, g, statistics.ndim - 2)
    return call.op(g_rows, x, statistics, weight)[0], *_sums(call, g, x, *statistics.unbind())


@rule("rms_norm_backward")
def rms_norm_backward(call):
    g, x, rstd = call.everything()[:3]
    g_rows, weight = _slope(call, g, rstd.ndim - 1)
    return call.op(g_rows, x, rstd, weight)[0], _sums(call, g, x, None, rstd)[0]


@rule("residual_norm_backward")
def residual_norm_backward(call):
    g, g_sum, total, mean, rstd = call.everything()[:5]
    center, (g_rows, weight) = call["center"], _slope(call, g, rstd.ndim - 1)
    g_residual = call.op(g_rows, g_sum, total, mean, rstd, weight, center)[0]
    return g_residual, *_sums(call, g, total, mean if center else None, rstd)


def _one_mask(call):
    """What elements are multiplied with where dropout drops the same ones of all samples."""
    if not call["p"] or call.level.draws(call.op, call.given):
        return None
    place = [call[name] for name in ("p", "seed", "offset", "base")]
    return random_dropout(create.ones(call.given[0].shape, dtype=call.args[0].dtype.compute, device=call.args[0].device), *place)


@rule("residual_norm_dropped_backward", table=all_the_same)
@rule("residual_norm_dropped_backward")
def residual_norm_dropped_backward(call):
    g, g_sum, total, mean, rstd = call.everything()[:5]
    center, (g_rows, weight), mask = call["center"], _slope(call, g, rstd.ndim - 1), _one_mask(call)
    drawn = call.args[7:-1] if mask is None else (0.0,)
    g_residual, g_input = call.op(g_rows.to(g.dtype), g_sum, total, mean, rstd, weight, center, *drawn)[:2]
    if mask is not None:
        g_input = (g_residual * mask).to(g.dtype)
    kind, dims = mean.dtype, tuple(range(1, rstd.ndim))
    if not call["biased"]:
        g_input_bias = g.new_zeros((call.size, 0), dtype=kind)
    else:
        g_input_bias = g_input.sum(dims, dtype=kind) if dims else g_input.to(kind)
    return g_residual, g_input, *_sums(call, g, total, mean if center else None, rstd), g_input_bias


def _slope(call, g, rows):
    """The gradient of the norm before weights, where samples have some of their own, and the weight that is left."""
    return (g * _beside(call, "weight", rows), None) if call.differs("weight") else (g, call["weight"])


def _sums(call, g, x, mean, rstd):
    """The gradients of weight and bias."""
    kind = call.promises[call.op.returns.index("g_weight")][1]
    if rstd.ndim > 1:
        return [s.to(kind) for s in norm_sums(g, x, mean, rstd, 1)]
    mean, rstd = [None if v is None else v.reshape(call.size, *[1] * (x.ndim - 1)) for v in (mean, rstd)]
    xhat = (x if mean is None else x - mean) * rstd
    return (g * xhat).to(kind), (g if mean is not None else g.new_zeros(g.shape)).to(kind)


@rule("norm_sums")
def sums(call):
    return call.run(*dict(zip(call.op.names, call.everything()), lead=call["lead"] + 1).values())


# ------------------------------------------------------------------ group norm
@rule("group_norm_rows")
def group_norm_rows(call):
    """Images of samples one after the other; with parameters of their own all images are one, of which each has channels of its own."""
    x, groups, weight, bias, eps = call.args
    sample, own = call.given[0].shape, _own(call)
    if own and call.where[0] and call.size * sample[0]:
        weight, bias = [None if call[name] is None else _of_images(call, name, sample[0]) for name in ("weight", "bias")]
        made = call.op(_as_one(x), call.size * sample[0] * groups, weight, bias, eps)
        return [y.reshape(call.size, *promise[0]) for y, promise in zip(made, call.promises)]
    made = call.op(x.flatten(0, 1) if call.where[0] else x, groups, *(None, None) if own else (weight, bias), eps)
    if call.where[0]:
        made = [y.reshape(call.size, *promise[0]) for y, promise in zip(made, call.promises)]
    out, *statistics = made if call.where[0] else [y.expand(call.size, *y.shape) for y in made]
    return _affine(call, out, 1, len(sample) - 2) if own else out, *statistics


@rule("group_norm_backward")
def group_norm_backward(call):
    """Each image of each sample has channels of its own, over which the gradients of a sample's parameters are summed."""
    g, x, mean, rstd = call.everything()[:4]
    images, kind = x.shape[1], call.promises[1][1]
    if not call.size * images:
        return x.new_zeros(x.shape), *[x.new_zeros((call.size, x.shape[2]), dtype=kind) for _ in range(2)]
    weight = None if call["weight"] is None else _of_images(call, "weight", images)
    g_input, *parameters = call.op(*map(_as_one, (g, x, mean, rstd)), weight)
    parameters = [p.reshape(call.size, images, -1) for p in parameters]
    return g_input.reshape(x.shape), *[p.select(1, 0) if images == 1 else p.sum(1, dtype=kind.compute).to(kind) for p in parameters]


def _as_one(x):
    """(samples, images, channels, …) as one image: (1, samples · images · channels, …)."""
    return x.reshape(1, math.prod(x.shape[:3]), *x.shape[3:])


def _of_images(call, name, images):
    """One value a channel for every channel of every image of every sample."""
    return _repeated(call[name] if call.differs(name) else call[name].expand(call.size, *call[name].shape), images)


# ------------------------------------------------------------------ batch norm
@rule("batch_norm_add_relu", "batch_norm_add_relu_backward", "batch_norm_moments", "batch_norm_slopes", "batch_norm_sums")
def of_channels(call):
    """Samples have channels of their own: where they lie (images, samples, channels, …) in memory, or have one image, without a copy."""
    made = call.op(*[_channels(a) if isinstance(a, Tensor) else a for a in call.everything()])
    return [_samples(y, call.size, promise[0]) for y, promise in zip(made if type(made) is tuple else (made,), call.promises)]


def _channels(x):
    """(samples, images, channels, …) as (images, samples · channels, …), and one value a channel of each."""
    return x.reshape(-1) if x.ndim == 2 else x.movedim(0, 1).flatten(1, 2)


def _samples(y, size, shape):
    return y.reshape(size, *shape) if y.ndim == 1 else y.unflatten(1, (size, shape[1])).movedim(1, 0)


def _in_place(x):
    """Whether channels of images are to be told apart where they lie: what is found of them is put together for samples."""
    images, channels, *pixels = x.shape[1:]
    return x.numel() and images > 1 and math.prod(pixels) > 1 and x.stride(0) != channels * x.stride(2)


@rule("batch_norm_apply")
def batch_norm_apply(call):
    """With the same values for all samples these are more images."""
    x = call.all(0)
    if not any(call.where[1:5]):
        return call.op(x.flatten(0, 1), *call.args[1:]).reshape(x.shape)
    if not _in_place(x):
        return of_channels(call)
    values = [None if call[name] is None else _of_images(call, name, x.shape[1]) for name in call.op.names[1:5]]
    return call.op(_as_one(x), *values, *call.args[5:]).reshape(x.shape)


@rule("batch_norm_train")
def batch_norm_train(call):
    """The moments of images are put together for samples, unless a graph around wants the gradient of all this."""
    from tritorch.ops.batchnorm import batch_norm_apply
    from tritorch.ops.batchnorm_parts import batch_norm_moments

    if not call.where[0]:
        out, *moments = call.op(call.args[0], None, None, call["eps"], False)
        out = _affine(call, out, 1, out.ndim - 2)
        return out.relu() if call["relu"] else out, *[m.expand(call.size, *m.shape) for m in moments]
    x, weight, bias, eps, relu = call.everything()
    if not _in_place(x) or any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return of_channels(call)
    means, squares = [m.reshape(x.shape[:3]) for m in batch_norm_moments(_as_one(x))]
    mean = means.mean(1)
    var = (squares + (means - mean.unsqueeze(1)).square()).mean(1)
    values = [_repeated(v, x.shape[1]) for v in (mean, var, weight, bias)]
    return batch_norm_apply(_as_one(x), *values, eps, relu).reshape(x.shape), mean, var


@rule("batch_norm_backward")
def batch_norm_backward(call):
    """The sums of images likewise."""
    from tritorch.ops.batchnorm import batch_norm_apply
    from tritorch.ops.batchnorm_parts import batch_norm_slopes, batch_norm_sums

    g, x, mean, var, weight, bias, eps, training, relu = call.everything()
    if not _in_place(x) or any(t is not None and t.requires_grad for t in (g, x, mean, var, weight, bias)):
        return of_channels(call)
    images, kind = x.shape[1], call.promises[1][1]
    rows, mean, var, weight, bias = _as_one(x), *[_repeated(v, images) for v in (mean, var, weight, bias)]
    g = _as_one(g)
    if relu:
        g = g.masked_fill(batch_norm_apply(rows, mean, var, weight, bias, eps) <= 0, 0)
    sums = [s.reshape(x.shape[:3]).sum(1) for s in batch_norm_sums(g, rows, mean, var, eps)]
    slope, shift = [_repeated(s / images if training else s * 0, images) for s in sums]
    g_input = batch_norm_slopes(g, rows, mean, var, weight, slope, shift, eps)
    return g_input.reshape(x.shape), *[s.to(kind) for s in sums]


def _repeated(values, images):
    """One value a channel of every sample for each of its images."""
    return None if values is None else values.unsqueeze(1).expand(values.shape[0], images, values.shape[1]).reshape(-1)


@rule("running_statistics")
def running_statistics(call):
    """Vectors of all samples as one."""
    args = [a.reshape(-1) if isinstance(a, Tensor) else a for a in call.everything()]
    return [x.reshape(call.size, *promise[0]) for x, promise in zip(call.op(*args), call.promises)]
