"""Copies: between layouts, dtypes and devices, and filling with one value."""
from math import prod

import numpy as np

from tritorch.cuda import memory
from tritorch.cuda.stream import current_stream
from tritorch.cuda.trace import spoil, traces
from tritorch.device import as_device, cpu, meta
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import NO_NUMBERS, answered, check, no_values, sentence, tensors
from tritorch.memory_format import contiguous_format, dense_strides, preserve_format, strides_in, suggested
from tritorch.ops.arrays import store_rounded
from tritorch.ops.loops import SCALAR, convert, launch_elementwise
from tritorch.pairs import OWN
from tritorch.quiet import quietly
from tritorch.repeat import repeating
from tritorch.shape import broadcast_shapes, broadcast_strides, is_dense, layout, same_strides
from tritorch.tensor import Tensor, empty, from_array, overwritten, strided


def broadcast_view(x, shape):
    """x seen in a larger shape, without history: for implementations."""
    return x if x.shape == shape else strided(x.storage, shape, broadcast_strides(x.shape, x.strides, shape), x.offset, x.dtype)


def transfer(out, x, non_blocking=False):
    """Fill `out` with x, of the same shape, whatever the two layouts, dtypes and devices are. With `non_blocking` copies between
    pinned memory and a device are only queued."""
    if (out.storage.device is not x.storage.device and not x.is_contiguous() and is_dense(out.shape, out.strides)
            and same_strides(x.shape, x.strides, out.strides)):
        out, x = [strided(t.storage, (t.numel(),), (1,), t.offset, t.dtype) for t in (out, x)]         # one order of elements
    if out.storage.device is cpu and x.storage.device is cpu:
        quietly(store_rounded, out.array, x.array)
    elif out.storage.device is x.storage.device:
        convert(out, x)
    elif x.storage.device is cpu:
        _to_device(out, x, non_blocking)
    elif x.storage.device is meta:
        raise no_values("copy", "to_empty() of its module, or empty_like(x, device=...)")
    elif out.storage.device is cpu:
        _to_host(out, x, non_blocking)
    elif out.storage.device is not meta:
        _between_devices(out, x)


def _to_device(out, x, non_blocking):
    fill = x.storage.there if x.is_contiguous() and x.nbytes == x.storage.nbytes else None
    if x.is_contiguous():
        packed = x
    else:
        packed = empty(x.shape, x.dtype, cpu)
        np.copyto(packed.array, x.array)
    direct = out.dtype is x.dtype and out.is_contiguous()
    landing = out if direct else empty(x.shape, x.dtype, out.device)
    if fill is not None:                                                 # for GPT-2 it would be 3 s of a core and a copy of 0.5 GB
        if traces:
            spoil()                                                      # another tensor of this kind is filled otherwise
        fill(landing)
    else:
        memory.upload(packed.array, landing.data_ptr(), out.device.index, memory.pinned_owner(packed.array), non_blocking)
    if not direct:
        transfer(out, landing)


def _to_host(out, x, non_blocking):
    if not x.is_contiguous() or x.dtype is not out.dtype:                # cast where the kernels are
        packed = empty(x.shape, out.dtype, x.device)
        transfer(packed, x)
        x = packed
    if out.is_contiguous():
        memory.download_into(out.array, x.data_ptr(), x.device.index, memory.pinned_owner(out.array), non_blocking)
    else:
        data = memory.download(x.data_ptr(), x.nbytes, x.device.index)
        np.copyto(out.array, data.view(out.dtype.numpy).reshape(x.shape))


def _between_devices(out, x):
    packed = x
    if not x.is_contiguous() or x.dtype is not out.dtype:
        packed = empty(x.shape, out.dtype, x.device)
        transfer(packed, x)
    landing = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
    theirs, ours = current_stream(x.device.index), current_stream(out.device.index)
    theirs.wait_stream(ours)                                             # the copy runs on the source's stream, between the two
    memory.copy(landing.data_ptr(), packed.data_ptr(), packed.nbytes, "p2p", x.device.index)
    ours.wait_stream(theirs)
    if landing is not out:
        transfer(out, landing)


# ------------------------------------------------------------------ operators
@op(aliasable=True)
def assign(input, src, non_blocking=False):
    """`src`, broadcast to the shape of `input` and cast to its dtype and device: `input.copy_(src)`. With `non_blocking` the host
    does not wait for copies from and to pinned memory.

    >>> import tritorch as torch; torch.zeros(2, 2).copy_(torch.tensor([1.0, 2.0]))
    tensor([[1., 2.],
            [1., 2.]])
    """
    if input.shape != src.shape and broadcast_shapes("copy_", input.shape, src.shape) != input.shape:
        raise RuntimeError(sentence("copy_", f"a source that broadcasts to {input.shape}", src.shape))
    return input.shape, input.dtype, input.storage.device


def _assign(out, input, src, non_blocking):
    if src.storage is not out.storage:
        overwritten(out)
    transfer(out, broadcast_view(src, out.shape), non_blocking)


assign.impl("cpu", raw=True)(_assign)
_run, _, _rewrite = repeating(_assign, assign)
assign.impl("cuda", raw=True)(_run)
assign.repeat(None, _rewrite)


@assign.grad("src")
def assign_grad_src(g, src_device):
    return g.to(src_device)


@assign.grad("input")
def assign_grad_input(g):                                                # zeros, not None: the old values were there, as in PyTorch
    return fill(g, 0)


@assign.samples
def assign_samples(make):
    yield make(3, 4), make(3, 4)
    yield make(3, 4), make(4)
    yield make(2, 0), make(1)
    yield make(), make()
    yield make(5), make(5, integer=True, low=-9, high=9)
    yield make(4, dtype=types.bfloat16), make(4)


def check_fits(name, value, dtype):
    """A number must lie in the range of an integer dtype; negative ones may wrap in an unsigned one, as in PyTorch."""
    limits = types.iinfo_of(dtype)
    if not (limits.min or -limits.max) <= value <= limits.max:
        raise RuntimeError(sentence(name, f"a number in the range of {dtype}", value))


@op(aliasable=True)
def fill(input, value):
    """Every element the number `value`: `input.fill_(value)`.

    >>> import tritorch as torch; torch.empty(2).fill_(3)
    tensor([3., 3.])
    """
    if value.__class__ in NO_NUMBERS:
        raise TypeError(sentence("fill", "a number as value", repr(value)))
    if input.dtype.category == 1 and not isinstance(value, bool):
        check_fits("fill_", value, input.dtype)
    return input.shape, input.dtype, input.storage.device


@fill.impl("cpu", raw=True)
def fill_cpu(out, input, value):
    value = np.asarray(value)
    overwritten(out)
    quietly(store_rounded, out.array, value)


@fill.impl("cuda")
def fill_cuda(out, input, value):
    launch_elementwise(out, (value,), SCALAR.identity, out.dtype.compute)


@fill.grad("input")
def fill_grad(g):
    return fill(g, 0)


@fill.samples
def fill_samples(make):
    yield make(3, 4), 2.5
    yield make(), -1
    yield make(0, 2), 1
    yield make(5, integer=True, low=0, high=9), 7
    yield make(3, grad=False).to(types.bool), True


@op
def copy_to(input, dtype, device, strides=None, non_blocking=False):
    """The values in fresh memory of a dtype and device: what `to` and `clone` do. Without `strides` a dense input keeps its own, and
    another becomes contiguous or channels last. With `non_blocking` the host does not wait for copies from pinned memory.

    >>> import tritorch as torch; torch.tensor([1.7, -2.2]).to(torch.int32)
    tensor([ 1, -2], dtype=tritorch.int32)
    """
    if strides is None:
        return input.shape, dtype, device, input.strides, dense_strides
    return input.shape, dtype, device, strides


copy_to.impl("cpu", raw=True)(lambda out, input, *how: transfer(out, input))
_run, *_again = repeating(lambda out, input, dtype, device, strides, non_blocking: transfer(out, input, non_blocking), copy_to)
copy_to.impl("cuda", raw=True)(_run)                                     # raw: what is copied may be on another device
copy_to.repeat(*_again)


@copy_to.grad("input")
def copy_to_grad(g, input_device):
    return g.to(input_device)


copy_to.reads_any_gradient = copy_to.casts = True                        # a gradient in the dtype of the input needs no cast


@copy_to.samples
def copy_to_samples(make):
    for kind in (types.float64, types.float32, types.bfloat16, types.float16, types.int32, types.bool):
        x = make(3, 5)
        yield x, kind, x.device
    x = make(4, integer=True, low=-100, high=100)
    yield x, types.uint8, x.device
    x = make(2, 3, 4)
    yield x, types.float32, x.device, (1, 8, 2)
    x = make(0, 2)
    yield x, types.float32, x.device
    x = make()
    yield x, types.float32, x.device


for _made in (assign, fill, copy_to):
    _made.complex = OWN
    _made.impl("meta", raw=True)(lambda *values: None)                   # raw, as above: operands may be on another device

    @_made.workloads
    def _workloads(make, _made=_made):
        x = make(1 << 24, grad=False)
        rest = {"assign": (x,), "fill": (1.0,), "copy_to": (x.dtype, x.device)}[_made.__name__]
        yield "16M fp32", lambda: (x, *rest), x.nbytes * (1 if _made.__name__ == "fill" else 2), 0


# ------------------------------------------------------------------ PyTorch's names above them
def copy_(input, src, non_blocking=False):
    """Write the values of `src` (a tensor or a number) here; returns the tensor. With `non_blocking` the host does not wait for copies
    between pinned memory and a device: pinned memory must stay as it is, or is only valid, once the current stream is through."""
    if not isinstance(src, Tensor):
        return fill.into(input, input, src)
    return assign.into(input, input, src, non_blocking)


def deliver(made, out, exact=False):
    """What a function with `out=` returns: `made`, or `out` holding its values; an empty `out` takes its shape, as in PyTorch. Where
    PyTorch does not cast, `out` must have the dtype: `exact`."""
    if out is None:
        return made
    check(isinstance(out, Tensor), "out", "a tensor as destination", type(out).__name__, error=TypeError)
    fits = out.dtype is made.dtype if exact else made.dtype.category <= out.dtype.category
    check(fits, "out", f"a destination of {made.dtype}" if exact else f"a destination that {made.dtype} can be cast to", out.dtype)
    if out.shape == made.shape:
        return copy_(out, made)
    return assign.into(out, empty(made.shape, out.dtype, out.device), made)


def fill_(input, value):
    """Write the number (or 0-dim tensor) `value` into every element."""
    if isinstance(value, Tensor):
        check(not value.shape, "fill_", "a number or a 0-dim tensor", value.shape)
        return assign.into(input, input, value, False)
    if input.dtype is types.bool:
        value = bool(value)
    elif isinstance(value, complex) and not input.dtype.is_complex:
        raise RuntimeError(sentence("fill_", f"a number that {input.dtype} can hold", value))
    elif input.dtype.category < 2 and isinstance(value, float):
        check_fits("fill_", value, input.dtype)
        value = int(value)
    return fill.into(input, input, value)


def zero_(input):
    """Write 0 into every element."""
    return fill.into(input, input, 0)


def clone(input, *, memory_format=None):
    """A copy with history, in fresh memory, its dims in the same order, or as a memory format has them.

    >>> import tritorch as torch; x = torch.ones(2); y = x.clone(); y[0] = 5; x
    tensor([1., 1.])
    """
    try:
        return copy_to(input, input.dtype, input.storage.device, like_strides("clone", input, memory_format))
    except Exception as error:
        return answered(error)


def like_strides(name, x, wanted):
    """The strides in a memory format of what is like x. None and `preserve_format` keep x's order of dims."""
    tensors(name, input=x)
    if wanted is None or wanted is preserve_format:
        return x.strides if x.strides is layout(x.shape)[1] else dense_strides(x.shape, x.strides)
    return strides_in(name, x.shape, wanted)


def contiguous(input, memory_format=contiguous_format):
    """The tensor itself if its elements lie without gaps in row-major order, or in that of another memory format, else a copy that does.

    >>> import tritorch as torch; torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).stride()
    (60, 1, 15, 3)
    """
    if input.is_contiguous(memory_format):
        return input
    return copy_to(input, input.dtype, input.storage.device, strides_in("contiguous", input.shape, memory_format))


def to(input, *args, device=None, dtype=None, non_blocking=False, copy=False, memory_format=None):
    """The values in another dtype, on another device, or as another tensor has them: `x.to(torch.float16)`, `x.to("cuda", torch.half)`,
    `x.to(y)`; or in a memory format, `x.to(memory_format=torch.channels_last)`.

    Returns the tensor itself where nothing changes, unless `copy`.

    >>> import tritorch as torch; torch.ones(2).to(torch.int64)
    tensor([1, 1])
    """
    for k, a in enumerate(args):
        if isinstance(a, Tensor):
            device, dtype = a.storage.device, a.dtype
        elif isinstance(a, (types.dtype, type)):
            dtype = a
        elif isinstance(a, bool):
            non_blocking, copy = (a, copy) if k == len(args) - 1 or not isinstance(args[k + 1], bool) else (a, args[k + 1])
            break
        elif a is not None:
            device = a
    target = input.storage.device if device is None else as_device(device)
    dtype = input.dtype if dtype is None else types.as_dtype(dtype)
    kept = memory_format is None or memory_format is preserve_format
    same = target is input.storage.device and dtype is input.dtype and not copy
    if same and (kept or suggested(input.shape, input.strides) is memory_format):
        return input
    strides = None if kept else strides_in("to", input.shape, memory_format)
    if not non_blocking or target is input.storage.device:
        return copy_to(input, dtype, target, strides)
    if target is not cpu or input.storage.device is meta:
        return copy_to(input, dtype, target, strides, True)
    out = pinned(input.shape, dtype, strides or dense_strides(input.shape, input.strides))
    return assign.into(out, out, input, True)


def pinned(shape, dtype, strides=None):
    """An unset CPU tensor in page-locked memory, contiguous unless it is given strides."""
    made = from_array(memory.pinned_empty(prod(shape) * dtype.itemsize).view(dtype.numpy).reshape(tuple(shape)))
    return made if strides is None else strided(made.storage, made.shape, strides, 0, dtype)


def pin_memory(input, device=None):
    """The values in page-locked memory, from which copies to a GPU are asynchronous."""
    check(input.storage.device is cpu, "pin_memory", "a tensor on the CPU", input.device)
    return input if is_pinned(input) else copy_(pinned(input.shape, input.dtype, dense_strides(input.shape, input.strides)), input)


def is_pinned(input, device=None):
    """Whether the memory is page-locked."""
    return input.storage.device is cpu and memory.pinned_owner(input.storage.owner) is not None


def type_as(input, other):
    """The values in the dtype and device of `other`."""
    return to(input, other)


def cpu_(input, memory_format=None):
    """The values on the CPU."""
    return to(input, cpu, memory_format=memory_format)


def cuda_(input, device=None, non_blocking=False, memory_format=None):
    """The values on a CUDA device (default: the current one)."""
    return to(input, "cuda" if device is None else device, non_blocking=non_blocking, memory_format=memory_format)


def as_type(kind):
    """`x.float()`, `x.half()`, …"""

    def cast(input, memory_format=None):
        return to(input, kind, memory_format=memory_format)

    cast.__doc__ = f"The values as {kind.name}."
    return cast
