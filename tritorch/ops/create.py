"""Making tensors: `tensor`, `empty`, `zeros`, `full`, `arange`, `eye` and their like; see also `linspace`."""
import math

import numpy as np

from tritorch.autograd.modes import state
from tritorch.cuda.launch import kernels, launch, tile
from tritorch.cuda.watching import unset
from tritorch.device import as_device, cpu
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import OtherLayout, answered, check, no_sizes, sentence, whole_numbers
from tritorch.layout import only_strided
from tritorch.layout import strided as strided_layout
from tritorch.memory_format import strides_in
from tritorch.ops import copy
from tritorch.ops.nested import number_dtype, to_array
from tritorch.pairs import Parts
from tritorch.shape import cdiv, ordered_strides
from tritorch.storage import Batched, Spread
from tritorch.tensor import Tensor, alias, empty_strided, from_array
from tritorch.tensor import empty as new_empty

K = kernels("create")


# ------------------------------------------------------------------ operators
@op
def ramp(start, step, count, dtype, device):
    """start + k·step for k < count, computed in float64 (int64 for integers) and rounded once; both parts of complex numbers."""
    return (count,), dtype, device


ramp.complex = Parts(values=("start", "step"))


@ramp.impl("cpu")
def ramp_cpu(out, start, step, count, dtype, device):
    k = np.arange(count, dtype=np.float64 if dtype.is_floating_point else np.int64)
    np.copyto(out, start + k * step, casting="unsafe")


@ramp.impl("cuda")
def ramp_cuda(out, start, step, count, dtype, device):
    block, whole = tile(1024, 8192), not dtype.is_floating_point
    number = np.int64 if whole else np.float64
    launch(K.ramp_kernel, (cdiv(count, block),), out, out.strides[0], count, number(start), number(step), WHOLE=whole, BLOCK=block)


@ramp.samples
def ramp_samples(make):
    place = make(1).device
    yield 0, 1, 7, types.int64, place
    yield -2.5, 0.3, 11, types.float32, place
    yield 5, -2, 4, types.int32, place
    yield 0.0, 1.0, 0, types.float32, place
    yield 1, 1, 5, types.bfloat16, place
    yield 1 + 2j, 0.5 - 1j, 5, types.complex64, place


@ramp.workloads
def ramp_workloads(make):
    place, n = make(1).device, 1 << 24
    yield "16M fp32", lambda: (0.0, 1.0, n, types.float32, place), 4 * n, 2 * n


# ------------------------------------------------------------------ arguments
def _sizes(sizes, size=None):
    size = sizes if size is None else (size,)
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)) and not (isinstance(size[0], Tensor) and size[0].numel() == 1):
        size = size[0]
    elif not size:
        raise TypeError(no_sizes)
    try:
        size = tuple(size)
        return whole_numbers("empty", "sizes", size) if float in map(type, size) else size      # 2.0 is 2 where shapes are looked up
    except TypeError:
        raise TypeError(sentence("empty", "ints or a sequence of ints as sizes", repr(size))) from None


newborn = {}                                     # sets of the memory of tensors that are made, by who wants to know: see vmap


def _finish(out, requires_grad, pin_memory=False):
    if pin_memory:
        out = copy.pin_memory(out)
    out.storage.version = 0                                              # filling it was no write in place
    for made in tuple(newborn.values()) if newborn else ():
        made.add(out.storage)
    if state.inference:
        out._inference = True
        return out
    return out.requires_grad_() if requires_grad else out


def _kind(dtype):
    return types.get_default_dtype() if dtype is None else types.as_dtype(dtype)


# ------------------------------------------------------------------ from sizes
def empty(*sizes, size=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False, memory_format=None):
    """A tensor whose elements are not set, contiguous or in another memory format.

    >>> import tritorch as torch; torch.empty(2, 3).shape
    tritorch.Size([2, 3])
    """
    shape, dtype = _sizes(sizes, size), _kind(dtype)
    if layout is not None and layout is not strided_layout:
        return _without_values(shape, layout, dtype, device, requires_grad)
    strides = None if memory_format is None else strides_in("empty", shape, memory_format)
    if out is not None:
        return copy.deliver(new_empty(shape, out.dtype, out.device), out)
    place = as_device(device)
    made = copy.pinned(shape, dtype, strides) if pin_memory and place is cpu else new_empty(shape, dtype, place, strides)
    return unset(_finish(made, requires_grad, pin_memory))


def _without_values(shape, layout, dtype, device, requires_grad):
    """Zeros in a sparse layout."""
    from tritorch.sparse.construct import zeros

    return _finish(zeros(shape, layout, types.as_dtype(dtype), as_device(device)), requires_grad)


def zeros(*sizes, size=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A tensor of zeros.

    >>> import tritorch as torch; torch.zeros(2)
    tensor([0., 0.])
    """
    if layout is not None and layout is not strided_layout:
        return _without_values(_sizes(sizes, size), layout, _kind(dtype), device, requires_grad)
    return full(_sizes(sizes, size), 0, out=out, dtype=_kind(dtype), layout=layout, device=device, requires_grad=requires_grad,
                pin_memory=pin_memory)


def ones(*sizes, size=None, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A tensor of ones.

    >>> import tritorch as torch; torch.ones(2, dtype=torch.int64)
    tensor([1, 1])
    """
    return full(_sizes(sizes, size), 1, out=out, dtype=_kind(dtype), layout=layout, device=device, requires_grad=requires_grad,
                pin_memory=pin_memory)


def full(size, fill_value, *, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A tensor of one value; its dtype follows the value unless given.

    >>> import tritorch as torch; torch.full((2,), 7)
    tensor([7, 7])
    """
    only_strided("full", layout)
    fill_value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    if out is not None:
        return copy.deliver(full(size, fill_value, dtype=out.dtype, device=out.device), out)
    dtype = number_dtype(fill_value) if dtype is None else types.as_dtype(dtype)
    return _finish(copy.fill_(new_empty(_sizes((size,)) if not isinstance(size, int) else (size,), dtype, as_device(device)), fill_value),
                   requires_grad, pin_memory)


def empty_like(input, *, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None, pin_memory=False):
    """An unset tensor of the same shape, dtype and device, dims in the same order in memory, or as a memory format has them.

    >>> import tritorch as torch; torch.empty_like(torch.empty(3, 2).t()).stride()
    (1, 2)
    """
    if layout is not None and layout is not strided_layout and layout is not input.layout:
        return _without_values(input.shape, layout, dtype or input.dtype, device or input.device, requires_grad)
    try:
        strides = copy.like_strides("empty_like", input, memory_format)
        place = input.device if device is None else as_device(device)
        if type(input.storage) is Spread:
            return _finish(Spread.like(input, types.chosen(dtype, input.dtype), place), requires_grad)
        if type(input.storage) is Batched:
            return _finish(Batched.like(input, input.shape, types.chosen(dtype, input.dtype), place, strides), requires_grad)
        return unset(_finish(new_empty(input.shape, types.chosen(dtype, input.dtype), place, strides), requires_grad, pin_memory))
    except OtherLayout as other:
        return _finish(other.instead(empty_like, (input, dtype, layout, device)), requires_grad)
    except Exception as error:
        return answered(error)


def full_like(input, fill_value, *, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None, pin_memory=False):
    """One value in the shape, dtype and device of `input`.

    >>> import tritorch as torch
    >>> torch.full_like(torch.ones(2), 7.0)
    tensor([7., 7.])
    """
    if fill_value.__class__ is not int or fill_value:                    # zeros have all layouts
        only_strided("full_like", layout)
    try:
        made = copy.fill_(empty_like(input, dtype=dtype, layout=layout, device=device, memory_format=memory_format), fill_value)
        return _finish(made, requires_grad, pin_memory)
    except Exception as error:
        return answered(error)


def zeros_like(input, *, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None, pin_memory=False):
    """Zeros in the shape, dtype and device of `input`.

    >>> import tritorch as torch
    >>> torch.zeros_like(torch.tensor([1, 2]))
    tensor([0, 0])
    """
    return full_like(input, 0, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad, memory_format=memory_format)


def ones_like(input, *, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None, pin_memory=False):
    """Ones in the shape, dtype and device of `input`.

    >>> import tritorch as torch
    >>> torch.ones_like(torch.tensor([1, 2]), dtype=torch.float32)
    tensor([1., 1.])
    """
    return full_like(input, 1, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad, memory_format=memory_format)


def strided_empty(size, stride, *, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """An unset tensor with strides of its own."""
    only_strided("empty_strided", layout)
    size, stride, fits = tuple(size), tuple(stride), "as many strides as sizes, none negative"
    check(len(size) == len(stride) and min((*size, *stride), default=0) >= 0, "empty_strided", fits, size, stride)
    return _finish(empty_strided(size, stride, _kind(dtype), as_device(device)), requires_grad)


def empty_permuted(size, physical_layout, *, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """An unset tensor without gaps whose dims lie in memory in the order of `physical_layout`, outermost first.

    >>> import tritorch as torch; torch.empty_permuted((2, 3, 5), (1, 2, 0)).stride()
    (1, 10, 2)
    """
    only_strided("empty_permuted", layout)
    size, order = tuple(size), tuple(physical_layout)
    fits = sorted(order) == list(range(len(size)))
    check(fits, "empty_permuted", f"each dim from 0 to {len(size) - 1} once as physical_layout", None if fits else order)
    return _finish(empty_strided(size, ordered_strides(size, order[::-1]), _kind(dtype), as_device(device)), requires_grad, pin_memory)


# ------------------------------------------------------------------ sequences
def arange(start=0, end=None, step=1, *, out=None, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """The numbers from `start` up to, not including, `end`, every `step`.

    >>> import tritorch as torch; torch.arange(1, 2, 0.25)
    tensor([1.0000, 1.2500, 1.5000, 1.7500])
    """
    only_strided("arange", layout)
    start, end = (0, start) if end is None else (start, end)
    start, end, step = [v.item() if isinstance(v, Tensor) else v for v in (start, end, step)]
    check(not any(isinstance(v, complex) for v in (start, end, step)), "arange", "real numbers", start, end, step)
    check(step != 0, "arange", "a step other than 0", step)
    check(math.isfinite(start) and math.isfinite(end), "arange", "finite bounds", (start, end))
    check((end - start) * step >= 0, "arange", "bounds in the direction of the step", (start, end), step)
    whole = all(isinstance(v, (int, np.integer)) for v in (start, end, step))
    if out is not None:
        dtype = out.dtype
    dtype = (types.int64 if whole else types.get_default_dtype()) if dtype is None else types.as_dtype(dtype)
    if dtype.is_complex:
        raise NotImplementedError(f"arange: expected a real dtype, got {dtype}; use arange(...).to({dtype})")
    if dtype is types.int64:                                             # rounded before they are counted, as in PyTorch
        start, end, step, whole = int(start), int(end), int(step), True
        check(step != 0, "arange", "a step other than 0", step)
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if not dtype.is_floating_point:
        start, step = int(start), int(step)
    return _into(out, ramp(start, step, count, dtype, as_device(device)), requires_grad, pin_memory)


def eye(n, m=None, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """Ones on the diagonal, zeros elsewhere.

    >>> import tritorch as torch; torch.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    only_strided("eye", layout)
    made = zeros(n, n if m is None else m, dtype=dtype, layout=layout, device=device)
    copy.fill_(made.diagonal(), 1)
    return _into(out, made, requires_grad)


def _into(out, made, requires_grad=False, pin_memory=False):
    return _finish(made, requires_grad, pin_memory) if out is None else copy.deliver(made, out)


# ------------------------------------------------------------------ from data
def tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False):
    """A tensor with the values of nested lists, numbers, numpy arrays or tensors, always copied.

    >>> import tritorch as torch; torch.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    if isinstance(data, Tensor):
        made = copy.copy_to(data.detach(), types.chosen(dtype, data.dtype), data.device if device is None else as_device(device))
        return _finish(made, requires_grad, pin_memory)
    array = to_array(data, dtype)
    made = alias(from_array(array), Tensor)
    place = as_device(device)
    return _finish(made if place is cpu else copy.copy_to(made, made.dtype, place), requires_grad, pin_memory)


def scalar_tensor(s, *, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A 0-dim tensor of the default floating type."""
    return full((), s, dtype=_kind(dtype), layout=layout, device=device, requires_grad=requires_grad)


# ------------------------------------------------------------------ as methods: the dtype and device of a tensor
def new_tensor(input, data, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """`tensor(data)` with this tensor's dtype and device."""
    only_strided("new_tensor", layout)
    return tensor(data, dtype=types.chosen(dtype, input.dtype), device=device or input.device, requires_grad=requires_grad)


def new_full(input, size, fill_value, *, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """`full` with this tensor's dtype and device."""
    if type(input.storage) is Spread:
        return input.new_full(size, fill_value, dtype=dtype, device=device, requires_grad=requires_grad)
    if type(input.storage) is Batched:
        return _finish(copy.fill_(new_empty_method(input, size, dtype=dtype, device=device), fill_value), requires_grad)
    dtype, device = types.chosen(dtype, input.dtype), device or input.device
    return full(size, fill_value, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def new_zeros(input, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """`zeros` with this tensor's dtype and device."""
    return new_full(input, _sizes(sizes, size), 0, dtype=dtype, device=device, requires_grad=requires_grad, layout=layout)


def new_ones(input, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """`ones` with this tensor's dtype and device."""
    return new_full(input, _sizes(sizes, size), 1, dtype=dtype, device=device, requires_grad=requires_grad, layout=layout)


def new_empty_method(input, *sizes, size=None, dtype=None, device=None, requires_grad=False, layout=None, pin_memory=False):
    """`empty` with this tensor's dtype and device."""
    if type(input.storage) is Spread:
        return input.new_empty(_sizes(sizes, size), dtype=dtype, device=device, requires_grad=requires_grad)
    dtype, device = types.chosen(dtype, input.dtype), device or input.device
    if type(input.storage) is Batched:
        return _finish(Batched.like(input, _sizes(sizes, size), dtype, as_device(device)), requires_grad)
    return empty(_sizes(sizes, size), dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def new_empty_strided(input, size, stride, dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False):
    """`empty_strided` with this tensor's dtype and device."""
    dtype, device = types.chosen(dtype, input.dtype), device or input.device
    if type(input.storage) is Batched:
        return _finish(Batched.like(input, size, dtype, as_device(device), stride), requires_grad)
    return strided_empty(size, stride, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)
