"""Fake quantization: floating tensors rounded to what integers of a scale and a zero point can stand for, as training sees them.

Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018. Gradients go
straight through where nothing was cut off (Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013).
"""
import numpy as np

from tritorch.autograd.modes import state
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.memory_format import elementwise as in_order
from tritorch.ops.bounds import every
from tritorch.ops.normalize import scalar
from tritorch.shape import cdiv, is_dense
from tritorch.tensor import Tensor, empty

K = kernels("fake_quantize")
NAME = "fake_quantize"


def _promise(input, scale, zero_point, axis, quant_min, quant_max, on=None):
    if not input.dtype.is_floating_point or input.dtype.itemsize < 2:
        raise NotImplementedError(f"{NAME}: expected a floating dtype, got {input.dtype}")
    check(quant_min <= quant_max, NAME, "quant_min ≤ quant_max", quant_min, quant_max)
    if isinstance(scale, Tensor):
        count = 1 if axis is None else input.shape[axis]
        check(scale.numel() == count and zero_point.numel() == count, NAME, f"{count} scales and zero points", scale.numel(),
              zero_point.numel())
    else:
        check(quant_min <= zero_point <= quant_max, NAME, "zero_point from quant_min to quant_max", zero_point)
    return input.shape, input.dtype, input.device, input.strides, in_order


def _cpu(x, scale, zero_point, axis, low, high, on):
    """(y, mask) of arrays."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    whole = not np.issubdtype(getattr(zero_point, "dtype", np.dtype(int)), np.floating) or axis is None
    scale, zero = (np.asarray(v).reshape(-1) for v in (scale, zero_point))
    zero = np.trunc(zero).astype(kind) if whole else zero.astype(kind)
    scale = scale.astype(np.float32)
    if axis is not None:
        scale, zero = (v.reshape(-1, *[1] * (x.ndim - 1 - axis)) for v in (scale, zero))
    elif scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    q = x.astype(kind) * (np.float32(1) / scale).astype(kind)
    q = np.rint(q) + zero if whole else np.rint(q + zero)
    kept = (q >= low) & (q <= high)
    q = np.where(q > low, np.minimum(q, kind(high)), kind(low))
    last = np.float32 if axis is None else kind                          # as in PyTorch, on every device
    y = ((q - zero).astype(last) * scale.astype(last)).astype(x.dtype)
    return (y, kept) if on is None or on.reshape(()) else (x, np.ones_like(kept))


def _cuda(y, mask, x, scale, zero_point, axis, low, high, on):
    shape, order = y.shape, y.strides if is_dense(y.shape, y.strides) else in_order(x.shape, x.strides)
    if x.strides != order:
        x = empty(shape, x.dtype, x.device, order).copy_(x)
    targets = [t if t is None or t.strides == order else empty(shape, t.dtype, t.device, order) for t in (y, mask)]
    many, n = isinstance(scale, Tensor), x.numel()
    count, inner = (1, 1) if axis is None or shape[axis] == 1 else (shape[axis], order[axis])
    last = many and axis is not None and zero_point.dtype.is_floating_point
    if many and axis is None and zero_point.dtype.is_floating_point:
        zero_point = zero_point.to(types.int32)
    pair = [v.reshape(-1).contiguous() for v in (scale, zero_point)] if many else [None, None]
    acc, block = x.dtype.compute, tile(1024, 1 << 18)
    numbers = (1.0, 0.0) if many else (float(scale), float(zero_point))
    if n:
        launch(K.fake_quantize_kernel, (cdiv(n, block),), *targets, x, *pair, on, n, count, inner, numbers[0], scalar(numbers[1], acc),
               scalar(low, acc), scalar(high, acc), ROUND_LAST=last, NARROW=axis is None, WIDE=n > 2**31 - 2**20, BLOCK=block)
    for t, target in zip((y, mask), targets):
        if t is not target:
            t.copy_(target)


@op
def fake_quantize_values(input, scale, zero_point, axis, quant_min, quant_max, on=None):
    """(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) · scale. `scale` and `zero_point` are numbers, tensors
    of one element or, along `axis`, of as many as that dim; where there is a tensor `on` with 0 in it, the result is the input. Half to
    even, NaN becomes quant_min. 1 / scale is float32, as in PyTorch; zero points that are no integers are added before rounding."""
    return _promise(input, scale, zero_point, axis, quant_min, quant_max, on)


@op(returns=("out", "mask"))
def fake_quantize_masked(input, scale, zero_point, axis, quant_min, quant_max, on=None):
    """`fake_quantize_values` and where nothing was cut off."""
    shape, dtype, *rest = _promise(input, scale, zero_point, axis, quant_min, quant_max, on)
    return [(shape, dtype, *rest), (shape, types.bool, *rest)]


@fake_quantize_values.impl("cpu")
def fake_quantize_values_cpu(out, *args):
    out[...] = _cpu(*args)[0]


@fake_quantize_masked.impl("cpu")
def fake_quantize_masked_cpu(out, mask, *args):
    out[...], mask[...] = _cpu(*args)


@fake_quantize_values.impl("cuda")
def fake_quantize_values_cuda(out, *args):
    _cuda(out, None, *args)


fake_quantize_masked.impl("cuda")(_cuda)


@fake_quantize_masked.grad("input")
def fake_quantize_masked_grad(g_out, mask):
    return g_out * mask.detach()                                         # a result of the call itself, of which there is no gradient


def _samples(make):
    """Without gradients: those that go straight through are not the derivatives, which are 0."""
    def of(*shape, **more):
        return make(*shape, grad=False, **more)

    yield of(3, 5), 0.3, 3, None, -4, 5
    yield of(2, 3, 4), of(3, positive=True, dtype=types.float32), make(3, integer=True, low=-4, high=4), 1, -4, 5
    yield of(4, 3), of(positive=True, dtype=types.float32), make(integer=True, low=0, high=1, dtype=types.int32), None, 0, 9
    yield of(2, 3), of(3, positive=True, dtype=types.float32), of(3, dtype=types.float32), 1, -8, 7, make(1, integer=True, low=1, high=2)
    yield of(2, 3), of(2, positive=True, dtype=types.float32), of(2, dtype=types.float32), 0, -8, 7, make(integer=True, low=0, high=1)
    yield of(0, 2), 0.5, 0, None, 0, 255


def _workloads(make):
    n = 1 << 24
    yield "16M float32", lambda: (make(n, grad=False), 0.01, 0, None, -128, 127), 8 * n, 5 * n
    yield "4096 channels of 4096", lambda: (make(4096, 4096, grad=False), make(4096, positive=True, grad=False),
                                            make(4096, integer=True), 0, -128, 127), 8 * n, 5 * n


for _card in (fake_quantize_values, fake_quantize_masked):
    _card.samples(_samples)
    _card.workloads(_workloads)
    _card.errors(lambda make: [((make(3), 0.1, 300, None, 0, 255), {}, RuntimeError, "expected zero_point from quant_min to quant_max"),
                               ((make(3), 0.1, 5, None, 6, 5), {}, RuntimeError, "expected quant_min ≤ quant_max"),
                               ((make(3, integer=True), 0.1, 0, None, 0, 5), {}, NotImplementedError, "expected a floating dtype")])


def _quantized(input, *args):
    """With the mask where gradients are wanted."""
    if input.requires_grad and state.grad or input._tangents:
        return fake_quantize_masked(input, *args)[0]
    return fake_quantize_values(input, *args)


# ------------------------------------------------------------------ PyTorch's functions
@explained
def fake_quantize_per_tensor_affine(input, scale, zero_point, quant_min, quant_max):
    """(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) · scale, for a floating tensor of any shape.

    `scale` and `zero_point` are a float and an int, or tensors of one element, which stay on the device. The gradient is that of the
    result where nothing was clamped, else 0. Raises RuntimeError unless quant_min ≤ zero_point ≤ quant_max.

    >>> import tritorch as torch
    >>> x = torch.tensor([0.12, 0.26, 3.0], requires_grad=True)
    >>> y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7); y.sum().backward(); y.detach(), x.grad
    (tensor([0.1000, 0.3000, 0.7000]), tensor([1., 1., 0.]))
    """
    tensors = [isinstance(v, Tensor) for v in (scale, zero_point)]
    if any(tensors):
        scale, zero_point = (v if isinstance(v, Tensor) else empty((), kind, input.device).fill_(v)
                             for v, kind in ((scale, types.float32), (zero_point, types.int32)))
        check(scale.numel() == 1 and zero_point.numel() == 1, NAME, "a scale and a zero point of one element", scale.shape,
              zero_point.shape)
        _fixed(scale, zero_point)
    else:
        check(isinstance(zero_point, int), NAME, "a whole number as zero_point", type(zero_point).__name__, error=TypeError)
    return _quantized(input, scale, zero_point, None, quant_min, quant_max)


@explained
def fake_quantize_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max):
    """`fake_quantize_per_tensor_affine` with a scale and a zero point for each place along `axis`.

    `scale` is a vector of float32 or bfloat16, `zero_point` one of int32, or of float32 or float16; those that are no integers are added
    before rounding. Raises RuntimeError for others, and on the CPU for whole zero points that are not from quant_min to quant_max.

    >>> import tritorch as torch
    >>> scale, zero = torch.tensor([0.5, 0.1]), torch.zeros(2, dtype=torch.int32)
    >>> torch.fake_quantize_per_channel_affine(torch.full((2, 2), 0.33), scale, zero, 0, -8, 7)
    tensor([[0.5000, 0.5000],
            [0.3000, 0.3000]])
    """
    check(scale.dtype in (types.float32, types.bfloat16), NAME, "a scale of float32 or bfloat16", scale.dtype)
    check(zero_point.dtype in (types.int32, types.float32, types.float16), NAME, "zero points of int32, float32 or float16",
          zero_point.dtype)
    check(scale.ndim == zero_point.ndim == 1, NAME, "scale and zero_point of 1 dim", scale.ndim, zero_point.ndim)
    check(axis < input.ndim, NAME, f"an axis below {input.ndim}", axis, error=IndexError)
    check(axis >= 0, NAME, "an axis of at least 0", axis)
    _fixed(scale, zero_point)
    points = every(zero_point)
    if points.dtype is types.int32 and points.device.type == "cpu" and points.numel():
        check(quant_min <= points.array.min() and points.array.max() <= quant_max, NAME,
              "zero points from quant_min to quant_max", points.tolist())
    return _quantized(input, scale, zero_point, axis, quant_min, quant_max)


def _fixed(*parameters):
    check(not any(v.requires_grad for v in parameters), NAME, "a scale and a zero point that do not require grad", "others")
