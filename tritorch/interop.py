"""Tensors and other libraries' arrays over the same memory: numpy, DLPack, the CUDA array interface, the buffer protocol."""
from __future__ import annotations

import math
import os
import warnings

import numpy as np

from tritorch import dlpack
from tritorch.autograd.modes import state
from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.cuda.device import device as on_device
from tritorch.cuda.stream import current_handle
from tritorch.cuda.watching import VALUE, elements_read, host_work
from tritorch.device import as_device, cpu, device
from tritorch.dtype import as_dtype, from_numpy_dtype, get_default_dtype, uint8
from tritorch.errors import check
from tritorch.layout import only_strided
from tritorch.ops.create import tensor as new_tensor
from tritorch.shape import contiguous_strides, extent
from tritorch.storage import UntypedStorage, block_storage, written_unseen
from tritorch.tensor import Tensor, from_array, strided


# ------------------------------------------------------------------ numpy
def numpy(x, *, force=False):
    """The tensor as a numpy array over the same memory (bfloat16 and float8 as ml_dtypes types).

    Needs a CPU tensor (TypeError) that does not require grad, unless under `no_grad` (RuntimeError); `force=True` detaches and copies.

    >>> import tritorch as torch
    >>> torch.arange(3).numpy()
    array([0, 1, 2])
    """
    if force:
        x = x.detach().cpu()
    check(x.device is cpu, "numpy", "a CPU tensor", f"one on {x.device}", use="x.cpu().numpy()", error=TypeError)
    check(not (state.grad and x.requires_grad), "numpy", "a tensor that does not require grad", "one that does", use="x.detach().numpy()")
    host_work(VALUE)
    elements_read(x)
    return x.array.view()                            # not the tensor's own view: its shape or flags may be set


def array_protocol(x, dtype=None, copy=None):
    """`__array__`: what numpy.asarray(x) calls."""
    out = numpy(x)
    if dtype is None or np.dtype(dtype) == out.dtype:
        return out.copy() if copy else out
    check(copy is not False, "__array__", f"dtype {out.dtype} without a copy", dtype, error=ValueError)
    return out.astype(dtype)


def array_wrap(x, array, context=None, return_scalar=False):
    """`__array_wrap__`: results of numpy functions on tensors are tensors."""
    return from_numpy(np.asarray(array, dtype=np.bool_ if array.dtype == bool else None))


def from_numpy(ndarray):
    """A CPU tensor over the memory of a numpy array: a write to either is seen by both.

    TypeError for dtypes that tensors do not have, ValueError for negative strides and foreign byte order (make a copy first).

    >>> import numpy as np, tritorch as torch
    >>> a = np.zeros(2); t = torch.from_numpy(a); a[0] = 1; t
    tensor([1., 0.], dtype=tritorch.float64)
    """
    check(isinstance(ndarray, np.ndarray), "from_numpy", "np.ndarray", type(ndarray).__name__, error=TypeError)
    check(ndarray.dtype.isnative, "from_numpy", "the byte order of this machine", ndarray.dtype,
          use="array.astype(array.dtype.newbyteorder('='))", error=ValueError)
    from_numpy_dtype(ndarray.dtype)                  # TypeError before the warning
    if not ndarray.flags.writeable:
        warn_read_only("from_numpy")
    return from_array(ndarray if type(ndarray) is np.ndarray else ndarray.view(np.ndarray))


def warn_read_only(name):
    warnings.warn(f"{name}: the memory is not writable; writing to the tensor will raise ValueError. Copy it if you mean to write",
                  UserWarning, stacklevel=3)


def from_file(filename, shared=None, size=0, *, dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False):
    """A vector of `size` elements over the memory of a file. With `shared` what is written goes to the file, which is made, or made longer,
    as needed; else it does not, and the file has to be long enough. On the CPU. Raises RuntimeError where it is not.

    >>> import tempfile, tritorch as torch
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = torch.from_file(file.name, shared=True, size=2).copy_(torch.tensor([1.0, 2.0]))
    ...     torch.from_file(file.name, size=2)
    tensor([1., 2.])
    """
    only_strided("from_file", layout)
    check(isinstance(filename, (str, os.PathLike)), "from_file", "a path as filename", repr(filename), error=TypeError)
    kind = get_default_dtype() if dtype is None else as_dtype(dtype)
    check(isinstance(size, int) and size >= 0, "from_file", "a whole number of at least 0 as size", repr(size), error=TypeError)
    check(as_device(device).type == "cpu", "from_file", "the CPU as device", device)
    need = size * kind.itemsize
    try:
        with open(filename, "ab" if shared else "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if shared and found < need:
                file.truncate(need)
    except OSError as error:
        raise RuntimeError(f"from_file: expected a file that can be opened, got {error}") from None
    check(shared or found >= need, "from_file", f"a file of at least {need} bytes", found)
    memory = np.memmap(filename, kind.numpy, "r+" if shared else "c", shape=(size,)).view(np.ndarray) if size else np.empty(0, kind.numpy)
    out = from_array(memory)
    out = out.pin_memory() if pin_memory else out
    return out.requires_grad_() if requires_grad else out


def frombuffer(buffer, *, dtype, count=-1, offset=0, requires_grad=False):
    """A 1-dim CPU tensor over the memory of an object with the buffer protocol. ValueError where `count` and `offset` do not fit.

    >>> import tritorch as torch
    >>> torch.frombuffer(bytearray([1, 0, 2, 0]), dtype=torch.int16)
    tensor([1, 2], dtype=tritorch.int16)
    """
    data = memoryview(buffer)
    dtype = as_dtype(dtype)
    size, total = dtype.itemsize, data.nbytes
    check(total > 0 and count != 0, "frombuffer", "a buffer and a count that are not empty", total, count, error=ValueError)
    check(0 <= offset < total, "frombuffer", f"an offset from 0 to {total - 1}", offset, error=ValueError)
    rest = total - offset
    check(count >= 0 or rest % size == 0, "frombuffer", f"a multiple of {size} bytes after the offset", rest, error=ValueError)
    check(count * size <= rest, "frombuffer", f"at most {rest // size} elements after the offset", count, error=ValueError)
    if data.readonly:
        warn_read_only("frombuffer")
    array = np.frombuffer(data, np.uint8, rest // size * size if count < 0 else count * size, offset).view(dtype.numpy)
    return from_array(array).requires_grad_(requires_grad)


def as_tensor(data, dtype=None, device=None):
    """`data` as a tensor, sharing memory (and, for tensors, history) when dtype and device allow it.

    >>> import tritorch as torch
    >>> x = torch.ones(2); torch.as_tensor(x) is x
    True
    """
    if not isinstance(data, Tensor):
        data = shared(data)
        if not isinstance(data, Tensor):
            return new_tensor(data, dtype=dtype, device=device)
        if device is None and data.device is cpu:
            device = as_device()
    return data.to(device=device, dtype=dtype)


def asarray(obj, *, dtype=None, device=None, copy=None, requires_grad=False):
    """`obj` as a tensor: tensors, numpy and DLPack arrays, CUDA arrays, buffers, numbers and nested sequences.

    `copy` True always copies, False raises ValueError where memory cannot be shared, None shares where possible.

    >>> import numpy as np, tritorch as torch
    >>> torch.asarray(np.zeros(1, np.float32), copy=True)
    tensor([0.])
    """
    source = obj if isinstance(obj, Tensor) else shared(obj, dtype)
    if not isinstance(source, Tensor):
        check(copy is not False, "asarray", "an object whose memory can be shared", type(obj).__name__, error=ValueError)
        return new_tensor(source, dtype=dtype, device=device, requires_grad=requires_grad)
    out = source.to(device=source.device if device is None else device, dtype=dtype)
    check(copy is not False or out is source, "asarray", "the same dtype and device, or copy", (out.dtype, out.device), error=ValueError)
    if copy and out is source:
        out = source.clone()
    if requires_grad:
        return (out if out.is_leaf else out.detach()).requires_grad_()
    return out.detach() if out.requires_grad else out


def shared(obj, dtype=None):
    """A tensor over the memory of an array, or the object itself if there is no protocol to share it by."""
    if isinstance(obj, np.ndarray):
        return from_numpy(obj)
    if isinstance(obj, np.generic):
        return obj
    if hasattr(obj, "__cuda_array_interface__"):
        return from_cuda_array(obj)
    if hasattr(obj, "__dlpack__"):
        return from_dlpack(obj)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        return from_numpy(np.asarray(obj))
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return frombuffer(obj, dtype=dtype or get_default_dtype())
    if isinstance(obj, UntypedStorage):
        return strided(obj.storage, (obj.storage.nbytes,), (1,), 0, uint8).view(dtype or uint8)
    return obj


# ------------------------------------------------------------------ DLPack
def dlpack_device(x):
    """`__dlpack_device__`: (device type, index) as DLPack numbers them."""
    check(not x.is_meta, "__dlpack_device__", "a tensor on the CPU or on CUDA", x.device, error=BufferError)
    return (dlpack.CPU, 0) if x.device is cpu else (dlpack.CUDA, x.device.index)


def to_dlpack(x, *, stream=None, max_version=None, dl_device=None, copy=None):
    """`__dlpack__`: a capsule over the tensor's memory, for another library's from_dlpack.

    stream: the consumer's CUDA stream (None or 1 the default one, -1 no waiting), which waits for what the current stream holds.
    copy: True always, False never, None if `dl_device` asks for another device. BufferError where it cannot be had.

    >>> import numpy as np, tritorch as torch
    >>> np.from_dlpack(torch.arange(3))
    array([0, 1, 2])
    """
    check(not x.requires_grad, "__dlpack__", "a tensor that does not require grad", "one that does", use="x.detach()", error=BufferError)
    check(not x.is_meta, "__dlpack__", "a tensor on the CPU or on CUDA", x.device, error=BufferError)
    target = x.device if dl_device is None else place(*dl_device)
    if target is not x.device:
        check(copy is not False, "__dlpack__", f"a copy, or device {x.device}", target, error=BufferError)
        x, stream = x.to(target), stream if x.device is cpu else None        # a copy to the host has waited
    elif copy:
        x = x.clone()
    if x.device is cpu:
        check(stream in (None, -1), "__dlpack__", "no stream for a CPU tensor", stream, error=BufferError)
    else:
        check(stream is None or type(stream) is int, "__dlpack__", "a stream that is an int or None", stream, error=TypeError)
        check(stream not in (0, 2), "__dlpack__", "stream 1, a handle, -1 or None", stream, error=BufferError)
        driver.share()
        if stream != -1:
            wait_for(x.device.index, 0 if stream in (None, 1) else stream, current_handle(x.device.index))
    return dlpack.export(x, max_version)


def place(kind, index):
    kind = int(kind)
    check(kind in (dlpack.CPU, dlpack.CUDA), "__dlpack__", "a CPU or CUDA device", kind, error=BufferError)
    return cpu if kind == dlpack.CPU else device("cuda", int(index))


def wait_for(index, waiting, stream):
    """Work queued on the stream `waiting` from now on waits for what `stream` holds."""
    if waiting == stream:
        return
    use = driver.current()
    with on_device(index):
        event = use.event_create(False)
        use.event_record(event, stream)
        use.stream_wait_event(waiting, event)
        use.event_destroy(event)


def from_dlpack(ext_tensor, *, device=None, copy=None):
    """A tensor over the memory of any object with `__dlpack__` (or of a capsule): numpy, PyTorch, CuPy, JAX, …

    The memory is given back to its owner when the last tensor over it dies. BufferError for types and devices that tensors do not have.

    >>> import numpy as np, tritorch as torch
    >>> torch.from_dlpack(np.arange(3))
    tensor([0, 1, 2])
    """
    target = None if device is None else as_device(device)
    if hasattr(ext_tensor, "__dlpack__"):
        ext_tensor = capsule_of(ext_tensor, target, copy)
    out = dlpack.Imported(ext_tensor).tensor()
    if target is not None and out.device is not target:
        check(copy is not False, "from_dlpack", f"a copy, or device {out.device}", target, error=BufferError)
        return out.to(target)
    return out


def capsule_of(ext, target, copy):
    """Ask a producer for a capsule, in the words of DLPack 1 or, if it does not know them, of older versions."""
    kind, index = ext.__dlpack_device__()
    stream = {}
    if int(kind) == dlpack.CUDA:
        check(driver.available(), "from_dlpack", "a CUDA device", "none")
        driver.share()
        stream["stream"] = current_handle(index) or 1
    asked = {"max_version": (1, 0)}
    if target is not None:
        asked["dl_device"] = (dlpack.CPU, 0) if target is cpu else (dlpack.CUDA, target.index)
    if copy is not None:
        asked["copy"] = copy
    try:
        return ext.__dlpack__(**stream, **asked)
    except TypeError:
        check(copy is None, "from_dlpack", "a producer that knows copy=", type(ext).__name__, error=BufferError)
        return ext.__dlpack__(**stream)


# ------------------------------------------------------------------ CUDA array interface
def cuda_array_interface(x):
    """`__cuda_array_interface__` (version 3) of a CUDA tensor: AttributeError on others, RuntimeError if it requires grad.

    https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
    """
    check(x.is_cuda, "__cuda_array_interface__", "a CUDA tensor", f"one on {x.device}", error=AttributeError)
    check(not x.requires_grad, "__cuda_array_interface__", "a tensor that does not require grad", "one that does", use="x.detach()")
    strides = None if x.is_contiguous() else tuple(s * x.itemsize for s in x.strides)
    driver.share()
    written_unseen(x.storage, math.nan)
    return {"version": 3, "shape": tuple(x.shape), "strides": strides, "typestr": x.dtype.numpy.str,
            "data": (x.data_ptr() if x.numel() else 0, False), "stream": current_handle(x.device.index) or 1}


class Foreign:
    """Device memory of another library's object, which it keeps alive."""

    def __init__(self, owner, ptr):
        self.owner, self.ptr = owner, ptr


def from_cuda_array(obj):
    """A tensor over the memory of an object with `__cuda_array_interface__`."""
    face = obj.__cuda_array_interface__
    driver.share()
    kind, shape = from_numpy_dtype(np.dtype(face["typestr"])), tuple(face["shape"])
    index = current_device()
    if face.get("stream") is not None:
        wait_for(index, current_handle(index), 0 if face["stream"] == 1 else face["stream"])
    steps = face.get("strides")
    steps = [s * kind.itemsize for s in contiguous_strides(shape)] if steps is None else steps
    whole = all(s >= 0 and s % kind.itemsize == 0 for s in steps)
    check(whole, "__cuda_array_interface__", "strides of whole elements, not negative", steps, use="a copy", error=ValueError)
    strides = tuple([s // kind.itemsize for s in steps])
    storage = block_storage(Foreign(obj, face["data"][0]), extent(shape, strides) * kind.itemsize, device("cuda", index))
    return strided(storage, shape, strides, 0, kind)


