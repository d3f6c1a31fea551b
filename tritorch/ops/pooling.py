"""PyTorch's pooling functions above the operators of avg_pooling.py and max_pooling.py; those of volumes are in volumes.py."""
from math import prod

from tritorch.autograd.modes import state
from tritorch.errors import check, explained, refuse_misuse, sentence, switches, whole_numbers
from tritorch.ops.avg_pooling import avg_pool
from tritorch.ops.max_pooling import max_pool, max_pool_values, places_of
from tritorch.shape import cdiv

# ------------------------------------------------------------------ arguments
_LARGEST = (1 << 31) - 1


def _pair(value, name, what, dims, usual=1):
    """One number or two, as two; for a pooling of one dim those of a picture of one row, whose height is `usual`."""
    if isinstance(value, (tuple, list)):
        check(len(value) in (1, dims), name, f"{what} of one number" if dims == 1 else f"{what} of one or two numbers", value)
        value = whole_numbers(name, what, value)
        if len(value) == 2:
            return value
        value = value[0]
    if value.__class__ is not int:
        value, = whole_numbers(name, what, (value,))
    return value if dims == 2 else usual, value


def _images(name, input, dims):
    """(input as a batch of pictures, whether it was one); an input of no element but for the batch is refused."""
    check(input.ndim in (dims + 1, dims + 2) and 0 not in input.shape[input.ndim - dims - 1:], name,
          f"{dims + 1} or {dims + 2} dims, none empty but for the batch", input.shape)
    x, batched = (input, True) if input.ndim == dims + 2 else (input.unsqueeze(0), False)
    return x if dims == 2 else x.unsqueeze(2), batched


def out_size(name, input, kernel, stride, padding, dilation, ceil_mode):
    """Number of windows along each dim. With ceil_mode a last one may stick out, if it begins inside the input or the left padding."""
    if ceil_mode.__class__ is not bool:
        switches(name, ceil_mode=ceil_mode)
    least = min(*kernel, *stride, *dilation)
    check(least > 0, name, "kernel_size, stride and dilation of at least 1", kernel, stride, dilation)
    out = []
    for n, k, s, p, d in zip(input.shape[2:], kernel, stride, padding, dilation):
        reach = d * (k - 1) + 1
        check(0 <= p <= reach // 2, name, f"padding of at most half the window of {reach}", p)
        free = n + 2 * p - reach
        if reach > _LARGEST:
            raise RuntimeError(sentence(name, f"a window of at most {_LARGEST} elements", reach))
        count = (cdiv(free, s) if ceil_mode else free // s) + 1
        out.append(count - 1 if ceil_mode and (count - 1) * s >= n + p else count)
    check(min(out) > 0, name, f"an input of at least the size of the window {kernel}", input.shape)
    return tuple(out)


def deliver(result, batched, row):
    """The result without the dims that were added: a batch, a height of 1."""
    if isinstance(result, tuple):
        return tuple([deliver(x, batched, row) for x in result])
    result = result.squeeze(-2) if row else result
    return result if batched else result.squeeze(0)


# ------------------------------------------------------------------ windows of a given size
@explained
def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest of every kernel_size neighbours of (N, C, L) or (C, L), `stride` (default: kernel_size) apart.

    Out (N, C, M) with M = floor((L + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1, rounded up with ceil_mode. Padding, at
    most half a window, never wins; NaN does. With return_indices also their places along L, int64.
    Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_pool1d(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[3., 2.]])
    """
    return _max("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest of every window of (N, C, H, W) or (C, H, W), `stride` (default: kernel_size) apart.

    Out (N, C, P, Q) with P = floor((H + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1, rounded up with ceil_mode, and Q alike.
    Padding, at most half a window, never wins; NaN does. With return_indices also their places h · W + w, int64.
    Raises RuntimeError when the arguments do not fit, NotImplementedError for bool.

    >>> import tritorch as torch
    >>> values, places = torch.nn.functional.max_pool2d(torch.arange(16.0).view(1, 4, 4), 2, return_indices=True)
    >>> places
    tensor([[[ 5,  7],
             [13, 15]]])
    """
    try:
        return _max("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def _max(name, dims, input, kernel, stride, padding, dilation, ceil_mode, return_indices):
    x, batched = _images(name, input, dims)
    stride = kernel if stride is None or isinstance(stride, (tuple, list)) and not stride else stride
    kernel, stride = _pair(kernel, name, "kernel_size", dims), _pair(stride, name, "stride", dims)
    padding, dilation = _pair(padding, name, "padding", dims, 0), _pair(dilation, name, "dilation", dims)
    size = out_size(name, x, kernel, stride, padding, dilation, ceil_mode)
    return _largest(x, size, return_indices, batched, dims == 1, kernel, stride, padding, dilation)


def _largest(x, size, return_indices, batched, row, *window):
    if not return_indices and not (state.grad and x.requires_grad):
        return deliver(max_pool_values(x, size, *window), batched, row)
    values, taps = max_pool(x, size, *window)
    return deliver((values, places_of(taps, size, tuple(x.shape[2:]), *window)) if return_indices else values, batched, row)


@explained
def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """The mean of every kernel_size neighbours of (N, C, L) or (C, L), `stride` (default: kernel_size) apart.

    The length is that of `max_pool1d`. Padding counts as zeros, or, without count_include_pad, not at all.
    Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.avg_pool1d(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[2., 1.]])
    """
    return _avg("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """The mean of every window of (N, C, H, W) or (C, H, W), `stride` (default: kernel_size) apart.

    The size is that of `max_pool2d`. Padding counts as zeros, or, without count_include_pad, not at all; divisor_override stands in
    for the count. Raises RuntimeError when the arguments do not fit.

    >>> import tritorch as torch
    >>> torch.nn.functional.avg_pool2d(torch.arange(4.0).view(1, 2, 2), 2)
    tensor([[[1.5000]]])
    """
    try:
        check(divisor_override != 0, "avg_pool2d", "a divisor_override that is not 0", divisor_override)
        return _avg("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def _avg(name, dims, input, kernel, stride, padding, ceil_mode, include, divisor=None):
    x, batched = _images(name, input, dims)
    stride = kernel if stride is None or isinstance(stride, (tuple, list)) and not stride else stride
    kernel, stride, padding = (_pair(kernel, name, "kernel_size", dims), _pair(stride, name, "stride", dims),
                               _pair(padding, name, "padding", dims, 0))
    size = out_size(name, x, kernel, stride, padding, (1, 1), ceil_mode)
    if include.__class__ is not bool:
        switches(name, count_include_pad=include)
    if kernel == x.shape[2:] and size == (1, 1) and padding == (0, 0) and divisor is None and x.dtype.is_floating_point:
        return deliver(x.mean((-2, -1), keepdim=True), batched, dims == 1)          # spreads one large window over many threads
    return deliver(avg_pool(x, size, kernel, stride, padding, bool(include), divisor), batched, dims == 1)


# ------------------------------------------------------------------ windows that divide the input
def parts(name, input, output_size, dims=2):
    """Sizes of the result; None keeps the input's."""
    value = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    check(len(value) == dims, name, f"an output_size of one or {'two' if dims == 2 else 'three'} numbers", output_size)
    size = whole_numbers(name, "output_size", [n if m is None else m for m, n in zip(value, input.shape[-dims:])])
    check(min(size) >= 0, name, "sizes that are not negative", output_size)
    return size


def whole(name, input, dims, output_size=None):
    """As `_images`, but channels may be missing. Where `output_size` has several numbers, too few dims are a ValueError, as in PyTorch."""
    fits = input.ndim in (dims + 1, dims + 2) and 0 not in input.shape[-dims:]
    check(fits, name, f"{dims + 1} or {dims + 2} dims, the last {dims} not empty", input.shape,
          error=ValueError if input.ndim <= dims and isinstance(output_size, (tuple, list)) else RuntimeError)
    return (input, True) if input.ndim == dims + 2 else (input.unsqueeze(0), False)


def split(x, size):
    """How to divide x into so many parts: as plain windows where they have one size, whose kernels know where each begins."""
    step = tuple([n // max(count, 1) for n, count in zip(x.shape[2:], size)])
    return (size, step, step) if all(n and n == k * count for n, k, count in zip(x.shape[2:], step, size)) else (size,)


@explained
def adaptive_avg_pool1d(input, output_size):
    """The means of output_size parts of (N, C, L) or (C, L). Part p reaches from floor(p L / output_size) to ceil((p + 1) L / output_size).

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_avg_pool1d(torch.arange(4.0).view(1, 4), 2)
    tensor([[0.5000, 2.5000]])
    """
    name = "adaptive_avg_pool1d"
    x, batched = whole(name, input, 1)
    x = x.unsqueeze(2)
    return deliver(avg_pool(x, *split(x, _pair(output_size, name, "output_size", 1))), batched, True)


@explained
def adaptive_avg_pool2d(input, output_size):
    """The means of parts of (N, C, H, W) or (C, H, W), output_size of them along H and W; None keeps the size.

    Part p of P reaches from floor(p H / P) to ceil((p + 1) H / P).

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_avg_pool2d(torch.arange(6.0).view(1, 2, 3), (1, None))
    tensor([[[1.5000, 2.5000, 3.5000]]])
    """
    name = "adaptive_avg_pool2d"
    x, batched = whole(name, input, 2, output_size)
    size = parts(name, x, output_size)
    if size == (1, 1) and input.dtype.is_floating_point:                 # the reduction spreads one large window over many threads
        return input.mean((-2, -1), keepdim=True)
    return deliver(avg_pool(x, *split(x, size)), batched, False)


@explained
def adaptive_max_pool1d(input, output_size, return_indices=False):
    """The largest of output_size parts of (N, C, L) or (C, L), and with return_indices their places along L.

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_max_pool1d(torch.arange(4.0).view(1, 4), 2)
    tensor([[1., 3.]])
    """
    name = "adaptive_max_pool1d"
    x, batched = whole(name, input, 1)
    x = x.unsqueeze(2)
    size, *window = split(x, _pair(output_size, name, "output_size", 1))
    return _largest(x, size, return_indices, batched, True, *window)


@explained
def adaptive_max_pool2d(input, output_size, return_indices=False):
    """The largest of parts of (N, C, H, W) or (C, H, W), output_size of them along H and W; None keeps the size.

    With return_indices also their places h · W + w, int64.

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_max_pool2d(torch.arange(6.0).view(1, 2, 3), 1)
    tensor([[[5.]]])
    """
    name = "adaptive_max_pool2d"
    x, batched = whole(name, input, 2, output_size)
    size = parts(name, x, output_size)
    if size == (1, 1) and x.dtype.is_floating_point and not return_indices:            # a reduction: no window of hundreds to walk through
        return deliver(x.flatten(2).max(2)[0][:, :, None, None], batched, False)
    size, *window = split(x, size)
    return _largest(x, size, return_indices, batched, False, *window)


# ------------------------------------------------------------------ back to the places of the largest
@explained
def max_unpool1d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the values of `max_pool1d` back where its indices say. Zeiler et al., 2010.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_unpool1d(torch.tensor([[3.0]]), torch.tensor([[1]]), 2)
    tensor([[0., 3.]])
    """
    size = None if output_size is None else _pair(tuple(output_size)[-1], "max_unpool1d", "output_size", 1)
    return _unpool("max_unpool1d", 1, input.unsqueeze(-2), indices.unsqueeze(-2), kernel_size, stride, padding, size).squeeze(-2)


@explained
def max_unpool2d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the values of `max_pool2d` back where its indices say; output_size where the size of the pooled image is ambiguous.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_unpool2d(torch.tensor([[[3.0]]]), torch.tensor([[[2]]]), 2)
    tensor([[[0., 0.],
             [3., 0.]]])
    """
    size = None if output_size is None else tuple(output_size)[-2:]
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, size)


def _unpool(name, dims, input, indices, kernel, stride, padding, size):
    stride = kernel if stride is None else stride
    kernel, stride, padding = (_pair(kernel, name, "kernel_size", dims), _pair(stride, name, "stride", dims),
                               _pair(padding, name, "padding", dims, 0))
    return unpool(name, input, indices, kernel, stride, padding, size)


def unpool(name, input, indices, kernel, stride, padding, size):
    """Zeros with the input at its indices, of a size or, where that is None, the usual one for such windows."""
    check(input.shape == indices.shape, name, "input and indices of one shape", input.shape, indices.shape)
    dims = len(kernel)
    usual = tuple([(n - 1) * s - 2 * p + k for n, k, s, p in zip(input.shape[-dims:], kernel, stride, padding)])
    size = usual if size is None else size
    near = all(abs(n - m) < s or n == m for n, m, s in zip(size, usual, stride))
    check(near, name, f"an output_size within a stride of {usual}", size, error=ValueError)
    zeros = input.new_zeros((*input.shape[:-dims], prod(size)))
    return zeros.scatter(-1, indices.flatten(-dims), input.flatten(-dims)).view(*input.shape[:-dims], *size)
