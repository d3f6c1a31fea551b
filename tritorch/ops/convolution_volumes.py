"""Convolution of volumes and sequences by that of images, and PyTorch's `convolution` of any dims.

A volume is a sequence of frames. Those that meet under the kernel become the channels of one image, so that a sum over the depth of the
kernel is one over channels, in the precision of the products; where frames meet several kernels, they are copied.
"""
from math import prod

from tritorch.errors import check, explained, refuse_misuse, whole_numbers
from tritorch.memory_format import contiguous_format, suggested
from tritorch.ops.convolution import (
    batched_input,
    conv1d,
    conv2d,
    conv_transpose1d,
    conv_transpose2d,
    convolution_input,
    convolution_weight,
    numbers,
    padding_and_size,
    transposed_size,
)
from tritorch.ops.convolution import convolution as convolve
from tritorch.ops.padding import pad
from tritorch.ops.shaping import stack


def _images(x, taps, before, after, stride, dilation):
    """(N · count, C · taps, H, W) of (N, C, D, H, W): what so many taps along D read, with frames of zeros before and after (or, where
    negative, frames left out); channels last, where the kernels need no copies."""
    frames = pad(x, (0, 0, 0, 0, before, after)) if before or after else x
    windows = frames.unfold(2, dilation * (taps - 1) + 1, stride)[..., ::dilation].permute(0, 2, 3, 4, 1, 5)
    return windows.flatten(4).flatten(0, 1).movedim(-1, 1)


def _read_by(x, taps, count, padding, stride, dilation):
    """The images that `count` places along D read in a convolution."""
    after = max((count - 1) * stride + dilation * (taps - 1) + 1 - padding - x.shape[2], 0)
    return _images(x, taps, padding, after, stride, dilation)


def _frames(images, n, count):
    """Images (N · count, K, P, Q) as (N, K, count, P, Q)."""
    return images.unflatten(0, (n, count)).transpose(1, 2)


def _format(*volumes):
    """That of the result: channels last if one of the operands is."""
    return next((found for x in volumes if (found := suggested(x.shape, x.strides)) is not contiguous_format), contiguous_format)


def conv3d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation over three dims: (N, C, D, H, W) or (C, D, H, W) with weight (K, C / groups, T, R, S) gives (N, K, O, P, Q).

    O = floor((D + 2 padding - dilation (T - 1) - 1) / stride) + 1, and P and Q alike. padding is also "valid" (none) or "same" (O = D,
    stride 1). Computed as a `conv2d` of O images whose channels are those of the T frames under the kernel: where they overlap, frames
    are copied T times. Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv3d(torch.ones(2, 3, 4, 5, 5), torch.ones(8, 3, 3, 3, 3), padding=(0, 1, 1)).shape
    tritorch.Size([2, 8, 2, 5, 5])
    """
    try:
        x, batched = batched_input("conv3d", input, weight, 3)
        stride, dilation = numbers("conv3d", "stride", stride, 3, 1), numbers("conv3d", "dilation", dilation, 3, 1)
        padding, size = padding_and_size("conv3d", padding, x, weight.shape[2:], stride, dilation)
        check(prod(size) < 1 << 46, "conv3d", "a result of fewer than 2⁴⁶ elements", size)       # before anything is copied for it
        images = _read_by(x, weight.shape[2], size[0], padding[0], stride[0], dilation[0])
        out = convolve(images, weight.flatten(1, 2), bias, size[1:], stride[1:], padding[1:], dilation[1:], groups)
        out = _frames(out, x.shape[0], size[0]).contiguous(memory_format=_format(x, weight))
        return out if batched else out.squeeze(0)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def _phase(first, count, depth, kernel, stride, padding, dilation):
    """What meets `count` frames of a transposed convolution, `stride` apart from frame `first` on, along D alone: (what `_images` takes,
    which taps), or None.

    Frame o + padding = stride a + r is met by the taps t with t · dilation = stride b + r, which read frame a - b of `depth`.
    """
    a, r = divmod(first + padding, stride)
    taps = [t for t in range(kernel) if t * dilation % stride == r]
    steps = [t * dilation // stride for t in taps]
    if not taps or a - steps[-1] >= depth or a + count - 1 < steps[0]:
        return None
    apart, step = (taps[1] - taps[0], steps[1] - steps[0]) if len(taps) > 1 else (1, 1)
    return (len(taps), steps[-1] - a, a + count - steps[0] - depth, 1, step), slice(taps[0], taps[-1] + 1, apart)


def conv3d_input(gradient, weight, size, stride, padding, dilation, groups):
    """The gradient of `conv3d` with respect to an input of `size`: gradient (N, K, O, P, Q) and weight (K, C / groups, T, R, S)."""
    n, count, channels = gradient.shape[0], -(-size[0] // stride[0]), weight.shape[1] * groups
    found = [_phase(first, count, gradient.shape[2], weight.shape[2], stride[0], padding[0], dilation[0]) for first in range(stride[0])]
    filters = [met and weight[:, :, met[1]].flip(2).transpose(1, 2).flatten(0, 1) for met in found]
    rest = size[1:], stride[1:], padding[1:], dilation[1:], groups
    if len(found) > 1 and None not in found and len({read for read, _ in found}) == 1:     # all read the same images: one product
        out = convolution_input(_images(gradient, *found[0][0]), stack(filters, 2).flatten(1, 2), *rest)
        out = _frames(out, n, count).unflatten(1, (channels, stride[0])).transpose(2, 3)
    else:
        phases = [met and _frames(convolution_input(_images(gradient, *met[0]), f, *rest), n, count) for met, f in zip(found, filters)]
        if None in found:
            kind = next((phase.dtype for phase in phases if phase is not None), gradient.dtype)
            zero = gradient.narrow(2, 0, 0).sum(dtype=kind) + weight.narrow(2, 0, 0).sum(dtype=kind)     # whose gradients are zeros
            phases = [zero.expand(n, channels, count, *size[1:]) if phase is None else phase for phase in phases]
        out = stack(phases, 3)
    return out.flatten(2, 3).narrow(2, 0, size[0]).contiguous(memory_format=_format(gradient, weight))


@explained
def conv_transpose3d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution over three dims: (N, C, D, H, W) or (C, D, H, W) with weight (C, K / groups, T, R, S) gives (N, K, O, P, Q).

    The gradient of `conv3d` with respect to its input. O = (D - 1) stride - 2 padding + dilation (T - 1) + output_padding + 1, and P and Q
    alike. Computed as a `conv_transpose2d` for each of the strides along D (or one for all, if they read the same frames) of images whose
    channels are those of the frames that their taps meet. Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_transpose3d(torch.ones(1, 4, 2, 3, 3), torch.ones(4, 2, 3, 3, 3), stride=2).shape
    tritorch.Size([1, 2, 5, 7, 7])
    """
    x, batched = batched_input(name := "conv_transpose3d", input, weight, 3)
    stride, padding, dilation, extra = [numbers(name, what, value, 3, least) for what, value, least in (
        ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1), ("output_padding", output_padding, 0))]
    fits = groups > 0 and x.shape[1] == weight.shape[0] and weight.shape[0] % groups == 0
    check(fits, name, f"an input of {weight.shape[0]} channels in {groups} groups", x.shape)
    size = transposed_size(name, x.shape[2:], weight.shape[2:], stride, padding, dilation, extra)
    check(prod(size) < 1 << 46, name, "a result of fewer than 2⁴⁶ elements", size)
    out = conv3d_input(x, weight, size, stride, padding, dilation, groups)
    if bias is not None:
        fits = bias.shape == out.shape[1:2] and bias.dtype in (input.dtype, weight.dtype)
        check(fits, name, f"a bias of {out.shape[1]} elements of {weight.dtype}", bias.shape, bias.dtype)
        out = out + bias.view(-1, 1, 1, 1).to(out.dtype)
    return out if batched else out.squeeze(0)


def conv3d_weight(gradient, input, size, stride, padding, dilation, groups):
    """The gradient of `conv3d` with respect to weights with taps of `size`: gradient (N, K, O, P, Q), input (N, C, D, H, W)."""
    images = _read_by(input, size[0], gradient.shape[2], padding[0], stride[0], dilation[0])
    frames = gradient.transpose(1, 2).flatten(0, 1)
    out = convolution_weight(frames, images, size[1:], stride[1:], padding[1:], dilation[1:], groups)
    return out.unflatten(1, (input.shape[1] // groups, size[0]))


@explained
def conv_tbc(input, weight, bias, pad=0):
    """Cross-correlation over time of (T, N, C): with weight (R, C, K) and bias (K,) it gives (T + 2 pad - R + 1, N, K).

    A negative pad leaves out what comes first and last. Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_tbc(torch.ones(3, 1, 2), torch.ones(2, 2, 1), torch.zeros(1)).flatten().tolist()
    [4.0, 4.0]
    """
    check(input.ndim == weight.ndim == 3 and bias.ndim == 1, "conv_tbc", "an input and weight of 3 dims and a bias of 1", input.shape,
          weight.shape, bias.shape)
    pad, = whole_numbers("conv_tbc", "pad", (pad,))
    check(input.shape[0] + 2 * pad >= weight.shape[0], "conv_tbc", f"an input of the length of {weight.shape[0]} taps", input.shape, pad)
    if pad < 0:
        input, pad = input.narrow(0, -pad, input.shape[0] + 2 * pad), 0
    return conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1).contiguous()


@explained
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """A convolution of 1 to 3 dims, transposed or not: `conv1d` to `conv3d`, `conv_transpose1d` to `conv_transpose3d`.

    >>> import tritorch as torch
    >>> torch.convolution(torch.ones(1, 1, 3), torch.ones(1, 1, 2), None, [1], [0], [1], False, [0], 1).tolist()
    [[[2.0, 2.0]]]
    """
    dims = weight.ndim - 2
    fits = dims in (1, 2, 3) and input.ndim == weight.ndim
    check(fits, "convolution", "an input and weight of as many dims, 3 to 5", input.shape, weight.shape)
    if transposed:
        return (conv_transpose1d, conv_transpose2d, conv_transpose3d)[dims - 1](input, weight, bias, stride, padding, output_padding,
                                                                                groups, dilation)
    return (conv1d, conv2d, conv3d)[dims - 1](input, weight, bias, stride, padding, dilation, groups)
