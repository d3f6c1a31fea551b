"""Fake quantization whose scale and zero point are trained: Esser et al., "Learned step size quantization", ICLR 2020, and Jain et al.,
"Trained quantization thresholds", MLSys 2020."""
from tritorch.autograd.function import Function
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops.compare import where
from tritorch.ops.fake_quantize import fake_quantize_values

NAME = "fake_quantize_learnable"


class FakeQuantizeLearnable(Function):
    """The gradient of the scale is that of the rounded value, rounding taken for the identity; the zero point has one where values are
    cut off."""

    @staticmethod
    def forward(ctx, input, scale, zero_point, axis, low, high, factor):
        zero = zero_point.round().clamp(low, high).to(types.int32)
        ctx.save_for_backward(input, scale, zero)
        ctx.facts = axis, low, high, factor, zero_point.dtype
        return fake_quantize_values(input, scale, zero, axis, low, high)

    @staticmethod
    def backward(ctx, g):
        x, scale, zero = ctx.saved_tensors
        axis, low, high, factor, zero_kind = ctx.facts
        rows = [-1 if d == axis else 1 for d in range(x.ndim)] if axis is not None else []
        step, zero = (v.to(x.dtype.compute).reshape(rows) for v in (scale, zero))
        wide, g_wide = x.to(x.dtype.compute), g.to(x.dtype.compute)
        exact = wide / step
        q = exact.round() + zero
        below, above = q < low, q > high
        inside = ~(below | above)
        slope = where(below, low - zero, where(above, high - zero, q - zero - exact))
        g_scale = (g_wide * slope).sum_to_size(step.shape).reshape(scale.shape) * factor
        g_zero = where(inside, 0.0, -g_wide * step).sum_to_size(step.shape).reshape(scale.shape) * factor
        return g * inside, g_scale.to(scale.dtype), g_zero.to(zero_kind), None, None, None, None


def _apply(input, scale, zero_point, axis, low, high, factor):
    check(low <= high and low <= 0 <= high, NAME, "quant_min ≤ 0 ≤ quant_max", low, high)
    check(scale.dtype.is_floating_point and zero_point.dtype.is_floating_point, NAME, "a floating scale and zero point", scale.dtype,
          zero_point.dtype)
    return FakeQuantizeLearnable.apply(input, scale, zero_point, axis, low, high, factor)


@explained
def _fake_quantize_learnable_per_tensor_affine(input, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    """`fake_quantize_per_tensor_affine` whose scale and zero point, tensors of one element, have gradients, times `grad_factor`. The zero
    point is rounded and held from quant_min to quant_max.

    >>> import tritorch as torch
    >>> scale, zero = torch.tensor([0.5], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    >>> torch._fake_quantize_learnable_per_tensor_affine(torch.tensor([0.6, 9.0]), scale, zero, -4, 3).sum().backward()
    >>> scale.grad, zero.grad                                             # (1 - 1.2) + 3, and -0.5 for the one that is cut off
    (tensor([2.8000]), tensor([-0.5000]))
    """
    check(scale.numel() == 1 and zero_point.numel() == 1, NAME, "a scale and a zero point of one element", scale.shape, zero_point.shape)
    return _apply(input, scale, zero_point, None, quant_min, quant_max, grad_factor)


@explained
def _fake_quantize_learnable_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    """The same with vectors of scales and zero points, one for each place along `axis`."""
    check(0 <= axis < input.ndim, NAME, f"an axis from 0 to {input.ndim - 1}", axis)
    check(scale.ndim == zero_point.ndim == 1 and scale.shape == zero_point.shape == input.shape[axis:axis + 1], NAME,
          f"{input.shape[axis]} scales and zero points", scale.shape, zero_point.shape)
    return _apply(input, scale, zero_point, axis, quant_min, quant_max, grad_factor)
