"""PyTorch's pooling functions of volumes (N, C, D, H, W), above the operators of volume_pooling.py."""
from tritorch.autograd.modes import state
from tritorch.errors import check, explained, switches, whole_numbers
from tritorch.ops.pooling import deliver, out_size, parts, split, unpool, whole
from tritorch.ops.volume_pooling import ONES, avg_pool_volume, max_pool_volume, max_pool_volume_values


def triple(value, name, what):
    """One number or three, as three."""
    value = value if isinstance(value, (tuple, list)) else (value,)
    check(len(value) in (1, 3), name, f"{what} of one or three numbers", value)
    value = whole_numbers(name, what, value)
    return value if len(value) == 3 else value * 3


def _volumes(name, input):
    """(input as a batch of volumes, whether it was one); an input of no element but for the batch is refused."""
    check(input.ndim in (4, 5) and 0 not in input.shape[input.ndim - 4:], name, "4 or 5 dims, none empty but for the batch", input.shape)
    return (input, True) if input.ndim == 5 else (input.unsqueeze(0), False)


def _window(name, kernel, stride, padding):
    stride = kernel if stride is None or isinstance(stride, (tuple, list)) and not stride else stride
    return triple(kernel, name, "kernel_size"), triple(stride, name, "stride"), triple(padding, name, "padding")


def _largest(x, size, return_indices, batched, *window):
    if not return_indices and not (state.grad and x.requires_grad):
        return deliver(max_pool_volume_values(x, size, *window), batched, False)
    values, places = max_pool_volume(x, size, *window)
    return deliver((values, places.long()) if return_indices else values, batched, False)


# ------------------------------------------------------------------ windows of a given size
@explained
def max_pool3d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest of every window of (N, C, D, H, W) or (C, D, H, W), `stride` (default: kernel_size) apart.

    Out (N, C, O, P, Q) with O = floor((D + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1, rounded up with ceil_mode, and P and
    Q alike. Padding, at most half of kernel_size, never wins; NaN does. With return_indices also their places (d · H + h) · W + w, int64.
    Raises RuntimeError when the arguments do not fit, NotImplementedError for bool.

    >>> import tritorch as torch
    >>> values, places = torch.nn.functional.max_pool3d(torch.arange(16.0).view(1, 2, 2, 4), 2, return_indices=True)
    >>> values.tolist(), places.tolist()
    ([[[[13.0, 15.0]]]], [[[[13, 15]]]])
    """
    name = "max_pool3d"
    x, batched = _volumes(name, input)
    kernel, stride, padding = _window(name, kernel_size, stride, padding)
    window = kernel, stride, padding, triple(dilation, name, "dilation")
    size = out_size(name, x, *window, ceil_mode)
    check(all(p <= k // 2 for k, p in zip(kernel, padding)), name, "padding of at most half of kernel_size", padding, kernel)
    return _largest(x, size, return_indices, batched, *window)


@explained
def avg_pool3d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """The mean of every window of (N, C, D, H, W) or (C, D, H, W), `stride` (default: kernel_size) apart.

    The size is that of `max_pool3d`. Padding counts as zeros, or, without count_include_pad, not at all; divisor_override stands in
    for the count. Raises RuntimeError when the arguments do not fit, NotImplementedError for dtypes that are not floating.

    >>> import tritorch as torch
    >>> torch.nn.functional.avg_pool3d(torch.arange(8.0).view(1, 2, 2, 2), 2).tolist()
    [[[[3.5]]]]
    """
    name = "avg_pool3d"
    check(divisor_override != 0, name, "a divisor_override that is not 0", divisor_override)
    x, batched = _volumes(name, input)
    kernel, stride, padding = _window(name, kernel_size, stride, padding)
    check(all(n >= k for n, k in zip(x.shape[2:], kernel)), name, "an input of at least the size of the window", x.shape, kernel)
    size = out_size(name, x, kernel, stride, padding, ONES, ceil_mode)
    switches(name, count_include_pad=count_include_pad)
    if kernel == x.shape[2:] and size == ONES and not any(padding) and divisor_override is None and x.dtype.is_floating_point:
        return deliver(x.mean((-3, -2, -1), keepdim=True), batched, False)   # spreads one large window over many threads
    return deliver(avg_pool_volume(x, size, kernel, stride, padding, count_include_pad, divisor_override), batched, False)


# ------------------------------------------------------------------ windows that divide the input
def _divided(name, input, output_size):
    """(input as a batch of volumes, whether it was one, sizes of the result)."""
    x, batched = whole(name, input, 3, output_size)
    check(not batched or x.shape[1] > 0, name, "one channel or more", input.shape)
    check(output_size is not None, name, "an output_size", output_size, error=TypeError)
    return x, batched, parts(name, x, output_size, 3)


@explained
def adaptive_avg_pool3d(input, output_size):
    """The means of parts of (N, C, D, H, W) or (C, D, H, W), output_size of them along D, H and W; None keeps the size.

    Part p of P reaches from floor(p D / P) to ceil((p + 1) D / P).

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_avg_pool3d(torch.arange(12.0).view(1, 2, 2, 3), (1, 1, None)).tolist()
    [[[[4.5, 5.5, 6.5]]]]
    """
    name = "adaptive_avg_pool3d"
    x, batched, size = _divided(name, input, output_size)
    if size == ONES and x.dtype.is_floating_point:                       # the reduction spreads one large window over many threads
        return input.mean((-3, -2, -1), keepdim=True)
    return deliver(avg_pool_volume(x, *split(x, size)), batched, False)


@explained
def adaptive_max_pool3d(input, output_size, return_indices=False):
    """The largest of parts of (N, C, D, H, W) or (C, D, H, W), output_size of them along D, H and W; None keeps the size.

    With return_indices also their places (d · H + h) · W + w, int64.

    >>> import tritorch as torch
    >>> torch.nn.functional.adaptive_max_pool3d(torch.arange(12.0).view(1, 2, 2, 3), (2, 1, 1)).flatten().tolist()
    [5.0, 11.0]
    """
    name = "adaptive_max_pool3d"
    x, batched, size = _divided(name, input, output_size)
    check(x.dtype.is_floating_point, name, "a floating dtype", x.dtype, error=NotImplementedError)
    if size == ONES and not return_indices:                              # a reduction: no window of thousands to walk through
        return deliver(x.flatten(2).max(2)[0][:, :, None, None, None], batched, False)
    size, *window = split(x, size)
    found = _largest(x, size, return_indices, batched, *window)          # contiguous, as in PyTorch, whatever the input's order
    return tuple([out.contiguous() for out in found]) if return_indices else found.contiguous()


# ------------------------------------------------------------------ back to the places of the largest
@explained
def max_unpool3d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the values of `max_pool3d` back where its indices say; output_size where the size of the pooled volume is ambiguous.

    >>> import tritorch as torch
    >>> torch.nn.functional.max_unpool3d(torch.tensor([[[[3.0]]]]), torch.tensor([[[[6]]]]), 2).flatten().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    """
    name = "max_unpool3d"
    window = _window(name, kernel_size, stride, padding)
    check(min(window[1]) > 0, name, "a stride of at least 1", stride)
    check(input.ndim in (4, 5) and 0 not in input.shape[input.ndim - 4:], name, "4 or 5 dims, none empty but for the batch", input.shape)
    size = None if output_size is None else whole_numbers(name, "output_size", output_size)
    check(size is None or len(size) in (3, 5), name, "an output_size of three or five numbers", output_size, error=ValueError)
    return unpool(name, input, indices, *window, size and size[-3:])
