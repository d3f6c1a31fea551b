"""Convolution: three operators, each the gradient of the others, and PyTorch's functions above them;
those of volumes are in convolution_volumes.py.

Forward, gradient of the input and gradient of the weights are one sum over (n, k, c, p, q, r, s) with different indices left open. It is
linear in each of its three tensors, so the gradients of each operator are the other two, to any order. `size` is the height and width
of the result: with it given, no operator has to guess what a stride rounded away.
"""
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, explained, refuse_misuse, whole_numbers
from tritorch.memory_format import like_image
from tritorch.ops import convolution_cpu, convolution_cuda
from tritorch.ops.lines import as_lines
from tritorch.ops.products import one_dtype
from tritorch.pairs import HOLOMORPHIC
from tritorch.tensor import own


def _check(name, channels, weight, groups, image):
    """Channels of the larger side and groups fit the weights (K, C / groups, R, S)."""
    check(image.ndim == 4 and len(weight) == 4, name, "tensors of 4 dims", image.shape, tuple(weight))
    check(groups > 0 and weight[0] % groups == 0, name, "groups that divide the weights", groups, tuple(weight))
    check(min(weight[2:]) > 0, name, "weights of at least one tap", tuple(weight))
    check(image.shape[1] == channels, name, f"an input of {channels} channels for weights {tuple(weight)} in {groups} groups", image.shape)


def _on_cuda(out):
    """The module of real or of complex convolutions."""
    if out.dtype.is_complex:
        from tritorch.ops import complex_convolution

        return complex_convolution
    return convolution_cuda


# ------------------------------------------------------------------ forward
@op
def convolution(input, weight, bias=None, size=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Cross-correlation of images with weights.

        out[n, k, p, q] = bias[k] + Σ over c, r, s of input[n, c, p · stride - padding + r · dilation, …] · weight[k, c, r, s]

    input (N, C, H, W), weight (K, C / groups, R, S) and bias (K,), of one dtype, give (N, K, *size); outside the input are zeros. Group g
    maps its share of the channels to its share of K. Half types are summed in float32, integers wrap around; on a GPU
    `tritorch.set_float32_matmul_precision` says how float32 is multiplied. The result is channels last if input or weight is, which is
    where the kernels need no copies. Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2))
    tensor([[[[4., 4.],
              [4., 4.]]]])
    """
    _check("convolution", weight.shape[1] * groups, weight.shape, groups, input)
    check(weight.shape[0] > 0 and 0 not in input.shape[2:], "convolution", "weights for a channel or more and images that are not empty",
          tuple(weight.shape), input.shape)
    fits = bias is None or bias.shape == weight.shape[:1]
    check(fits, "convolution", f"a bias of shape {tuple(weight.shape[:1])}", None if fits else bias.shape)
    tensors = (input, weight) if bias is None else (input, weight, bias)
    shape = (input.shape[0], weight.shape[0], *size)
    return shape, one_dtype("convolution", *tensors), common_device("convolution", *tensors), like_image(shape, input, weight)


@convolution.impl("cpu")
def convolution_on_cpu(out, input, weight, bias, size, stride, padding, dilation, groups):
    convolution_cpu.convolve(out, input, weight, bias, stride, padding, dilation, groups)


@convolution.impl("cuda")
def convolution_on_cuda(out, input, weight, bias, size, stride, padding, dilation, groups):
    _on_cuda(out).convolve(out, input, weight, bias, stride, padding, dilation, groups)


@convolution.grad("input")
def convolution_grad_input(g, weight, input_shape, stride, padding, dilation, groups):
    return convolution_input(g, weight, tuple(input_shape[2:]), stride, padding, dilation, groups)


@convolution.grad("weight")
def convolution_grad_weight(g, input, weight_shape, stride, padding, dilation, groups):
    return convolution_weight(g, input, tuple(weight_shape[2:]), stride, padding, dilation, groups)


@convolution.grad("bias")
def convolution_grad_bias(g):
    return g.sum((0, 2, 3))


def _cases():
    """(input, weight, size, stride, padding, dilation, groups) that between them take every path."""
    yield (2, 3, 5, 6), (4, 3, 3, 2), (5, 5), (1, 1), (1, 0), (1, 1), 1
    yield (1, 4, 7, 6), (6, 2, 3, 3), (3, 3), (2, 2), (1, 1), (1, 1), 2
    yield (2, 2, 7, 8), (3, 2, 2, 3), (4, 3), (2, 3), (1, 2), (3, 2), 1
    yield (1, 33, 4, 3), (2, 33, 2, 3), (3, 3), (1, 1), (0, 1), (1, 1), 1
    yield (2, 5, 4, 3), (3, 5, 1, 1), (4, 3), (1, 1), (0, 0), (1, 1), 1
    yield (2, 3, 6, 5), (6, 1, 3, 3), (3, 3), (2, 2), (1, 1), (1, 1), 3
    yield (1, 2, 8, 4), (2, 1, 3, 2), (4, 4), (2, 1), (2, 1), (2, 2), 2
    yield (0, 2, 4, 4), (3, 2, 3, 3), (2, 2), (1, 1), (0, 0), (1, 1), 1


@convolution.samples
def convolution_samples(make):
    for k, (x, w, *rest) in enumerate(_cases()):
        yield make(*x), make(*w), make(w[0]) if k % 2 == 0 else None, *rest
    draw = dict(integer=True, low=-9, high=9)
    yield make(1, 2, 4, 4, **draw), make(3, 2, 2, 2, **draw), make(3, **draw), (3, 3)


@convolution.errors
def convolution_errors(make):
    yield (make(1, 3, 4, 4), make(2, 4, 3, 3), None, (2, 2)), {}, RuntimeError, "an input of 4 channels"
    yield (make(1, 3, 4), make(2, 3, 3, 3), None, (2, 2)), {}, RuntimeError, "tensors of 4 dims"
    yield (make(1, 4, 4, 4), make(3, 2, 3, 3), None, (2, 2)), {"groups": 2}, RuntimeError, "groups that divide the weights"
    yield (make(1, 3, 4, 4), make(2, 3, 3, 3), make(3), (2, 2)), {}, RuntimeError, "a bias of shape (2,)"


# N, C, H, W, K, taps, stride, groups: the layers of a ResNet-50, a depthwise one, a patch embedding
_LAYERS = ((64, 3, 224, 224, 64, 7, 2, 1), (64, 64, 56, 56, 64, 1, 1, 1), (64, 64, 56, 56, 64, 3, 1, 1),
           (64, 128, 56, 56, 128, 3, 2, 1), (64, 256, 14, 14, 256, 3, 1, 1), (64, 512, 7, 7, 512, 3, 1, 1),
           (64, 256, 56, 56, 256, 3, 1, 256), (64, 3, 224, 224, 768, 16, 16, 1))


def _timed(arguments):
    """The layers in bf16: `arguments` picks two of (input, weight, output) by shape, and the size of the third."""
    def workloads(make):
        for n, c, h, w, k, taps, stride, groups in _LAYERS:
            padding = (0 if taps == stride else taps // 2,) * 2
            p, q = [(m + 2 * padding[0] - taps) // stride + 1 for m in (h, w)]
            shapes = (n, c, h, w), (k, c // groups, taps, taps), (n, k, p, q)
            moved = 2 * sum([a * b * m * o for a, b, m, o in shapes])
            rest = (stride, stride), padding, (1, 1), groups
            yield (f"bf16 {c}->{k} {h}px k{taps} s{stride} g{groups}",
                   lambda shapes=shapes, rest=rest: (*arguments(*shapes, lambda s: make(*s, dtype=types.bfloat16, grad=False)), *rest),
                   moved, 2 * n * k * p * q * c // groups * taps * taps)

    return workloads


convolution.workloads(_timed(lambda x, w, y, make: (make(x), make(w), None, y[2:])))


# ------------------------------------------------------------------ gradient of the input
@op
def convolution_input(gradient, weight, size, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Transposed convolution: the gradient of `convolution` with respect to its input.

        out[n, c, h, w] = Σ over k, r, s and p, q with h = p · stride - padding + r · dilation of gradient[n, k, p, q] · weight[k, c, r, s]

    gradient (N, K, P, Q) and weight (K, C / groups, R, S), of one dtype, give (N, C, *size).
    Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_transpose2d(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    tensor([[[[1., 2., 1.]]]])
    """
    _check("convolution_input", weight.shape[0], weight.shape, groups, gradient)
    shape = (gradient.shape[0], weight.shape[1] * groups, *size)
    device = common_device("convolution_input", gradient, weight)
    return shape, one_dtype("convolution_input", gradient, weight), device, like_image(shape, gradient, weight)


@convolution_input.impl("cpu")
def convolution_input_on_cpu(out, gradient, weight, size, stride, padding, dilation, groups):
    convolution_cpu.convolve_input(out, gradient, weight, stride, padding, dilation, groups)


@convolution_input.impl("cuda")
def convolution_input_on_cuda(out, gradient, weight, size, stride, padding, dilation, groups):
    _on_cuda(out).convolve_input(out, gradient, weight, stride, padding, dilation, groups)


@convolution_input.grad("gradient")
def convolution_input_grad_gradient(g, weight, gradient_shape, stride, padding, dilation, groups):
    return convolution(g, weight, None, tuple(gradient_shape[2:]), stride, padding, dilation, groups)


@convolution_input.grad("weight")
def convolution_input_grad_weight(g, gradient, weight_shape, stride, padding, dilation, groups):
    return convolution_weight(gradient, g, tuple(weight_shape[2:]), stride, padding, dilation, groups)


@convolution_input.samples
def convolution_input_samples(make):
    for x, w, size, *rest in _cases():
        yield make(x[0], w[0], *size), make(*w), x[2:], *rest
    yield make(1, 2, 3, 2), make(2, 3, 1, 1), (5, 4), (2, 2)
    yield make(1, 2, 2, 2, integer=True), make(2, 3, 2, 2, integer=True), (3, 3)


@convolution_input.errors
def convolution_input_errors(make):
    yield (make(1, 3, 4, 4), make(2, 3, 3, 3), (6, 6)), {}, RuntimeError, "an input of 2 channels"
    yield (make(3, 4, 4), make(3, 3, 3, 3), (6, 6)), {}, RuntimeError, "tensors of 4 dims"


convolution_input.workloads(_timed(lambda x, w, y, make: (make(y), make(w), x[2:])))


# ------------------------------------------------------------------ gradient of the weights
@op
def convolution_weight(gradient, input, size, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The gradient of `convolution` with respect to its weights.

        out[k, c, r, s] = Σ over n, p, q of gradient[n, k, p, q] · input[n, c, p · stride - padding + r · dilation, …]

    gradient (N, K, P, Q) and input (N, C, H, W), of one dtype, give (K, C / groups, *size). Sums have a fixed order.
    Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch; from tritorch.ops.convolution import convolution_weight
    >>> convolution_weight(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 3, 2), (2, 1)).tolist()
    [[[[4.0], [4.0]]]]
    """
    name = "convolution_weight"
    check(gradient.ndim == 4 and input.ndim == 4, name, "tensors of 4 dims", gradient.shape, input.shape)
    check(gradient.shape[0] == input.shape[0], name, "as many gradients as inputs", gradient.shape, input.shape)
    fits = groups > 0 and gradient.shape[1] % groups == 0 and input.shape[1] % groups == 0
    check(fits, name, f"channels that {groups} groups divide", gradient.shape, input.shape)
    shape = (gradient.shape[1], input.shape[1] // groups, *size)
    return shape, one_dtype(name, gradient, input), common_device(name, gradient, input), like_image(shape, gradient, input)


@convolution_weight.impl("cpu")
def convolution_weight_on_cpu(out, gradient, input, size, stride, padding, dilation, groups):
    convolution_cpu.convolve_weight(out, gradient, input, stride, padding, dilation, groups)


@convolution_weight.impl("cuda")
def convolution_weight_on_cuda(out, gradient, input, size, stride, padding, dilation, groups):
    _on_cuda(out).convolve_weight(out, gradient, input, stride, padding, dilation, groups)


@convolution_weight.grad("gradient")
def convolution_weight_grad_gradient(g, input, gradient_shape, stride, padding, dilation, groups):
    return convolution(input, g, None, tuple(gradient_shape[2:]), stride, padding, dilation, groups)


@convolution_weight.grad("input")
def convolution_weight_grad_input(g, gradient, input_shape, stride, padding, dilation, groups):
    return convolution_input(gradient, g, tuple(input_shape[2:]), stride, padding, dilation, groups)


@convolution_weight.samples
def convolution_weight_samples(make):
    for x, w, size, *rest in _cases():
        yield make(x[0], w[0], *size), make(*x), w[2:], *rest
    yield make(1, 2, 2, 2, integer=True), make(1, 3, 3, 3, integer=True), (2, 2)


@convolution_weight.errors
def convolution_weight_errors(make):
    yield (make(1, 3, 4, 4), make(2, 3, 4, 4), (3, 3)), {}, RuntimeError, "as many gradients as inputs"
    yield (make(1, 3, 4, 4), make(1, 4, 4, 4), (3, 3)), {"groups": 2}, RuntimeError, "channels that 2 groups divide"


convolution_weight.workloads(_timed(lambda x, w, y, make: (make(y), make(x), w[2:])))


convolution.complex = convolution_input.complex = convolution_weight.complex = HOLOMORPHIC


# ------------------------------------------------------------------ PyTorch's functions
def numbers(name, what, value, dims, least):
    """One number or one for each dim, as a tuple."""
    value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    check(len(value) in (1, dims), name, f"{what} of one or {dims} numbers", value)
    value = whole_numbers(name, what, value * dims if len(value) == 1 else value)
    check(min(value) >= least, name, f"{what} of at least {least}", value)
    return value


def batched_input(name, input, weight, dims):
    """The input with a batch, and whether it had one."""
    try:
        check(weight.ndim == dims + 2 and input.ndim in (dims + 1, dims + 2), name,
              f"weight of {dims + 2} dims and input of {dims + 1} or {dims + 2}", weight.shape, input.shape)
        return (input, True) if input.ndim == dims + 2 else (input.unsqueeze(0), False)
    except AttributeError as error:
        if answer := refuse_misuse(error, name, batched_input, (name, input, weight, dims)):
            return answer[0]
        raise


def padding_and_size(name, padding, input, kernel, stride, dilation):
    """(zeros before each dim, size of the result)."""
    dims = len(kernel)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    if padding == "same":
        check(set(stride) == {1}, name, "stride 1 with padding 'same'", stride)
        return tuple([(n - 1) // 2 for n in reach]), tuple(input.shape[2:])
    check(padding == "valid" or not isinstance(padding, str), name, "padding 'same', 'valid' or numbers", repr(padding))
    padding = numbers(name, "padding", 0 if padding == "valid" else padding, dims, 0)
    fits = all(n <= m + 2 * p for n, m, p in zip(reach, input.shape[2:], padding))
    check(fits, name, f"a kernel {tuple(kernel)}, dilated {dilation}, no larger than the input padded by {padding}", input.shape)
    return padding, tuple([(m + 2 * p - n) // s + 1 for n, m, p, s in zip(reach, input.shape[2:], padding, stride)])


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation over one dim: (N, C, L) or (C, L) with weight (K, C / groups, R) gives (N, K, L_out).

    L_out = floor((L + 2 padding - dilation (R - 1) - 1) / stride) + 1. padding is also "valid" (none) or "same" (L_out = L, stride 1).
    Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv1d(torch.arange(4.0).view(1, 4), torch.ones(1, 1, 2))
    tensor([[1., 3., 5.]])
    """
    try:
        x, batched = batched_input("conv1d", input, weight, 1)
        (stride,), (dilation,) = numbers("conv1d", "stride", stride, 1, 1), numbers("conv1d", "dilation", dilation, 1, 1)
        (left,), (size,) = padding_and_size("conv1d", padding, x, weight.shape[2:], (stride,), (dilation,))
        out = convolution(as_lines(x), weight.unsqueeze(2), bias, (1, size), (1, stride), (0, left), (1, dilation), groups).squeeze(2)
        return own(out if batched else out.squeeze(0))
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation over two dims: (N, C, H, W) or (C, H, W) with weight (K, C / groups, R, S) gives (N, K, P, Q).

    P = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1, and Q alike. padding is also "valid" (none) or "same" (P = H, stride 1).
    Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv2d(torch.ones(2, 3, 5, 5), torch.ones(8, 3, 3, 3), padding="same").shape
    tritorch.Size([2, 8, 5, 5])
    """
    try:
        x, batched = batched_input("conv2d", input, weight, 2)
        stride, dilation = numbers("conv2d", "stride", stride, 2, 1), numbers("conv2d", "dilation", dilation, 2, 1)
        padding, size = padding_and_size("conv2d", padding, x, weight.shape[2:], stride, dilation)
        out = convolution(x, weight, bias, size, stride, padding, dilation, groups)
        return out if batched else out.squeeze(0)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def transposed_size(name, input, kernel, stride, padding, dilation, extra):
    """Size of the result of a transposed convolution."""
    fits = all(e < max(s, d) for e, s, d in zip(extra, stride, dilation))
    check(fits, name, "output_padding smaller than stride or dilation", extra, stride, dilation)
    size = tuple([(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in zip(input, kernel, stride, padding, dilation, extra)])
    check(min(size) > 0 and 0 not in input, name, "an image and a result that are not empty", input, size)
    return size


@explained
def conv_transpose1d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution over one dim: (N, C, L) or (C, L) with weight (C, K / groups, R) gives (N, K, L_out).

    L_out = (L - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1. Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_transpose1d(torch.ones(1, 2), torch.ones(1, 1, 2), stride=2)
    tensor([[1., 1., 1., 1.]])
    """
    x, batched = batched_input(name := "conv_transpose1d", input, weight, 1)
    stride, padding, extra, dilation = [(one, *numbers(name, what, value, 1, one)) for what, value, one in (
        ("stride", stride, 1), ("padding", padding, 0), ("output_padding", output_padding, 0), ("dilation", dilation, 1))]
    out = conv_transpose2d(as_lines(x), weight.unsqueeze(2), bias, stride, padding, extra, groups, dilation).squeeze(2)
    return out if batched else out.squeeze(0)


@explained
def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution over two dims: (N, C, H, W) or (C, H, W) with weight (C, K / groups, R, S) gives (N, K, P, Q).

    The gradient of `conv2d` with respect to its input. P = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1, and Q alike.
    Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.conv_transpose2d(torch.ones(1, 4, 5, 5), torch.ones(4, 2, 3, 3), stride=2, padding=1, output_padding=1).shape
    tritorch.Size([1, 2, 10, 10])
    """
    x, batched = batched_input(name := "conv_transpose2d", input, weight, 2)
    stride, padding, dilation, extra = [numbers(name, what, value, 2, least) for what, value, least in (
        ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1), ("output_padding", output_padding, 0))]
    size = transposed_size(name, x.shape[2:], weight.shape[2:], stride, padding, dilation, extra)
    out = convolution_input(x, weight, size, stride, padding, dilation, groups)
    if bias is not None:
        fits = bias.shape == out.shape[1:2] and bias.dtype in (input.dtype, weight.dtype)
        check(fits, name, f"a bias of {out.shape[1]} elements of {weight.dtype}", bias.shape, bias.dtype)
        out = out + bias.view(-1, 1, 1).to(out.dtype)
    return out if batched else out.squeeze(0)
