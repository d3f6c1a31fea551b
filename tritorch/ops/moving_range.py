"""The range of numbers that a moving average has seen, and the scale and zero point of integers that stand for it."""
import numpy as np

from tritorch.autograd.modes import no_grad
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops.extremes import amin_amax
from tritorch.ops.fake_quantize import _quantized
from tritorch.ops.normalize import contiguous
from tritorch.ops.rows import half
from tritorch.shape import cdiv
from tritorch.tensor import empty

K = kernels("fake_quantize")
SMALL = np.float64(np.float32(6.1e-5))                                   # no scale is smaller
FACTS = ("min", "max", "scale", "zero_point")


@op(returns=FACTS, aliasable=True)
def moving_range(old_min, old_max, old_scale, old_zero_point, seen_min, seen_max, on, used, constant, quant_min, quant_max,
                 symmetric=False):
    """The moving averages old + constant · (seen - old) of minimum and maximum (the first that is seen, where they are infinite), and
    the scale and the zero point with which quant_min … quant_max stand for that range; the old averages where `on` is 0, the old scale
    and zero point where `used` is 0. With `symmetric` 0 lies in the middle of a range with numbers of both signs."""
    old = old_min, old_max, old_scale, old_zero_point
    shape = old_min.shape
    for x in (*old, seen_min, seen_max):
        check(x.shape == shape and len(shape) == 1, "moving_range", "vectors of one size", tuple(shape), x.shape)
    check(all(x.dtype.is_floating_point for x in old[:3]) and not old_zero_point.dtype.is_floating_point, "moving_range",
          "floating minimum, maximum and scale and whole zero points", *[x.dtype for x in old])
    check(quant_min < quant_max, "moving_range", "quant_min < quant_max", quant_min, quant_max)
    return [(shape, x.dtype, x.device) for x in old]


def parameters(low, high, first, last, symmetric):
    """(scale, zero point) in float64 of ranges of numbers, for the integers first … last."""
    both, steps = (low < 0) & (high > 0), last - first
    if symmetric:
        below, above = -(steps // 2 + 1), steps // 2
        widest = np.maximum(np.abs(low / low.dtype.type(below)), np.abs(high / low.dtype.type(above)))
        low, high = np.where(both, widest * low.dtype.type(below), low), np.where(both, widest * low.dtype.type(above), high)
    low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
    scale = (high - low) / steps
    narrow = scale.astype(np.float32)
    scale = np.where((narrow == 0) | np.isinf(1 / narrow), 0.1, scale)
    wider = np.where(scale < SMALL, SMALL / scale.astype(np.float32), 1.0)
    scale, low, high = np.maximum(scale, SMALL), low * wider, high * wider
    nearer = abs(first) - np.abs(low / scale) < abs(last) - np.abs(high / scale)
    zero = np.where(nearer, first - low / scale, last - high / scale)
    zero = np.where(both, (first + last) / 2, zero) if symmetric else zero
    return scale, np.rint(np.clip(zero, first, last))


@moving_range.impl("cpu")
def moving_range_cpu(low, high, scale, zero, *args):
    old_low, old_high, old_scale, old_zero, seen_low, seen_high, on, used, constant, first, last, symmetric = args
    low_now, high_now, kept = old_low, old_high, (old_scale, old_zero)
    if on.reshape(-1)[0]:
        kind = np.float64 if old_low.dtype == np.float64 else np.float32
        low_now, high_now = (np.where(np.isinf(old), seen, old + np.float32(constant) * (seen - old)) for old, seen in (
            (old.astype(kind), seen.astype(kind)) for old, seen in ((old_low, seen_low), (old_high, seen_high))))
    if used.reshape(-1)[0]:
        kept = parameters(low_now, high_now, first, last, symmetric)
    for target, value in zip((low, high, scale, zero), (low_now, high_now, *kept)):
        target[...] = value


@moving_range.impl("cuda")
def moving_range_cuda(low, high, scale, zero, *args):
    *tensors, constant, first, last, symmetric = args
    M, outs = low.numel(), (low, high, scale, zero)
    block = tile(128, half(M))
    targets = [t if t.is_contiguous() else empty(t.shape, t.dtype, t.device) for t in outs]
    launch(K.moving_range_kernel, (cdiv(M, block),), *targets, *[contiguous(t) for t in tensors], M, np.float64(constant),
           np.float64(first), np.float64(last), SYMMETRIC=symmetric, BLOCK=block)
    for t, target in zip(outs, targets):
        if t is not target:
            t.copy_(target)


@moving_range.samples
def moving_range_samples(make):
    def of(size, **more):
        return make(size, grad=False, dtype=types.float32, **more)

    for size, on, used, values in ((1, 1, 1, (0.01, 0, 255)), (5, 1, 1, (0.3, -128, 127, True)), (5, 0, 1, (0.3, -8, 7)),
                                   (5, 1, 0, (0.3, -8, 7)), (0, 1, 1, (0.3, -8, 7))):
        yield (of(size, low=-1, high=0.5), of(size, low=0.5, high=2), of(size, positive=True), make(size, integer=True, dtype=types.int32),
               of(size, low=-2, high=0.5), of(size, low=0.5, high=3), make(1, integer=True, low=on, high=on + 1),
               make(1, integer=True, low=used, high=used + 1), *values)


moving_range.errors(lambda make: [((*[make(2)] * 3, make(3), *[make(2)] * 2, make(1), make(1), 0.1, 0, 255), {}, RuntimeError,
                                   "vectors of one size")])
moving_range.workloads(lambda make: [("4096 channels", lambda: (
    *[make(4096, positive=True, grad=False) for _ in range(3)], make(4096, integer=True), *[make(4096, grad=False) for _ in range(2)],
    *[make(1, integer=True, low=1, high=2) for _ in range(2)], 0.01, 0, 255), 4096 * 40, 4096 * 40)])


@explained
def fused_moving_avg_obs_fake_quant(x, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min,
                                    quant_max, ch_axis, per_row_fake_quant=False, symmetric_quant=False):
    """Watch the range of x and fake-quantize x to it, without waiting for the device.

    Where the tensor `observer_on` is not 0, `running_min` and `running_max` move by `averaging_const` towards the extremes of x (of each
    row of dim 0 with `per_row_fake_quant`). Where `fake_quant_on` is 0, x is returned; else `scale` and `zero_point` become those of the
    averages. All six are tensors, and the buffers are written in place; empty ones of rows take their size. Gradients are those of
    `fake_quantize_per_tensor_affine`. Raises RuntimeError for rows along another dim than 0.

    >>> import tritorch as torch
    >>> on, low, high = torch.ones(1, dtype=torch.int64), torch.tensor([float("inf")]), torch.tensor([-float("inf")])
    >>> scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    >>> torch.fused_moving_avg_obs_fake_quant(torch.tensor([0.0, 1.23, 2.55]), on, on, low, high, scale, zero, 0.01, 0, 255, 0)
    tensor([0.0000, 1.2300, 2.5500])
    >>> low, high, scale
    (tensor([0.]), tensor([2.5500]), tensor([0.0100]))
    """
    name = "fused_moving_avg_obs_fake_quant"
    check(ch_axis < x.ndim, name, f"a ch_axis below {x.ndim}", ch_axis)
    if x.numel() == 0:
        return x.clone()
    facts = running_min, running_max, scale, zero_point
    if per_row_fake_quant:
        check(ch_axis == 0, name, "rows along dim 0", ch_axis)
        for fact, first in zip(facts, (float("inf"), -float("inf"), 1, 0)):
            if fact.numel() == 0 or fact.numel() == 1 != x.shape[0]:
                fact.resize_(x.shape[0]).fill_(first)
    with no_grad():
        rows = x.detach()
        seen = amin_amax(rows, tuple(range(1, x.ndim)) if per_row_fake_quant else tuple(range(x.ndim)))
        views = tuple([fact.view(-1) for fact in facts])
        moving_range.into(views, *views, *[v.view(-1) for v in seen], observer_on, fake_quant_on, averaging_const, quant_min, quant_max,
                          symmetric_quant)
    return _quantized(x, scale, zero_point, 0 if per_row_fake_quant else None, quant_min, quant_max, fake_quant_on)
