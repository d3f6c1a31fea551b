"""Memory: a run of bytes on a device, with the version that every write in place moves on.

Host memory is a numpy array; device memory is a block of the caching allocator, given back when its last
Storage dies. Storages do not know shapes or gradients.
"""
import contextlib
import ctypes
import os
import threading
from importlib import import_module
from itertools import count

import numpy as np

from tritorch.cuda.allocator import Owner, take
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import current as current_trace
from tritorch.cuda.trace import traces
from tritorch.device import cpu, meta
from tritorch.shape import extent

streams = import_module("tritorch.cuda.stream")  # tritorch.cuda.stream is the function of that name
_UINT8 = np.dtype(np.uint8)
next_seq = count(1).__next__                     # moves on with every node recorded and every look at a version: see Recording.settle


def _keep_freed_memory():
    """Let glibc keep up to 512 MB of freed memory instead of unmapping every large array: a fresh mapping faults on each page,
    which made an elementwise operator on 4 MB 2.5 times slower (1.08 ms for 0.40)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):        # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 28)                                             # M_MMAP_THRESHOLD: only arrays beyond 256 MB are mapped
        mallopt(-1, 1 << 29)                                             # M_TRIM_THRESHOLD


_keep_freed_memory()


class Storage:
    """`nbytes` of memory on `device`: `ptr` is its address, `owner` what keeps it alive, `version` the count of
    writes in place, `writer` (set with the first) the place in the program of the last one."""

    __slots__ = ("device", "nbytes", "owner", "ptr", "version", "_bytes", "writer", "__weakref__")
    there = None                                                         # see Unwritten

    def data_ptr(self):
        return self.ptr

    def __len__(self):
        return self.nbytes

    def __call__(self):
        raise NotImplementedError("storage: expected untyped_storage(), got storage(), which knows a dtype; use x.untyped_storage() for "
                                  "the memory, and a tensor over it, torch.empty(0).set_(memory), for its elements")

    def __repr__(self):
        return f"Storage({self.nbytes} bytes on {self.device})"

    def alias(self):
        """The same memory with a version of its own, as `.data` wants it."""
        owner = self.owner                                               # after which nothing is put off: see Unwritten
        out = Shared() if type(self) is DeviceStorage else type(self)()
        out.device, out.nbytes, out.owner, out._bytes = self.device, self.nbytes, owner, self._bytes
        _set_version(out, 0)                                             # which is no write
        if not isinstance(out, HostStorage):
            out.ptr = self.ptr
        return out


class UntypedStorage:
    """A Storage as PyTorch's programs know it: its size is asked for by calls."""

    __slots__ = ("storage",)

    def __init__(self, storage):
        self.storage = storage

    def nbytes(self):
        """Bytes of memory."""
        return self.storage.nbytes

    size = __len__ = nbytes

    def untyped(self):
        """The storage itself, which is of bytes."""
        return self

    def __getattr__(self, name):
        return getattr(self.storage, name)

    def __repr__(self):
        return repr(self.storage)


class HostStorage(Storage):
    """Memory of a numpy array. Its address is looked up only when asked for: that costs more than the rest of an operator."""

    __slots__ = ()

    @property
    def ptr(self):
        self.bytes                                                       # noqa: B018 who has the address looks unseen: see put_off
        return self.owner.__array_interface__["data"][0]

    @property
    def bytes(self):
        """The memory as a flat uint8 array."""
        if self._bytes is None:
            owner = self.owner
            if not owner.flags.c_contiguous:
                count = sum((n - 1) * s for n, s in zip(owner.shape, owner.strides)) // owner.itemsize + 1 if owner.size else 0
                owner = np.lib.stride_tricks.as_strided(owner, (count,), (owner.itemsize,))
            self._bytes = owner.reshape(-1).view(_UINT8)
        return self._bytes


class Unwritten(HostStorage):
    """Host memory that nobody has looked at since a call that fills all of it: `_bytes` is that call, which is made when somebody does.
    So what a module draws for its parameters costs nothing where the program draws them anew or loads them."""

    __slots__ = ()

    @property
    def owner(self):
        with _filling:
            if type(self) is Unwritten:
                self._bytes(_owner(self))
                self.written()
        return self.owner

    @property
    def bytes(self):
        self.owner                                                       # noqa: B018
        return self.bytes

    @property
    def there(self):
        """What writes the same into the memory of a tensor on a device, given that tensor; None where nothing does."""
        return getattr(self._bytes, "there", None)

    def written(self):
        """From now on it is memory like any other."""
        self._bytes = None
        self.__class__ = HostStorage


class Spread(Storage):
    """Memory of a tensor of which this process has a part, the tensor `local`: `spec` says which (see distributed/tensor). As a whole it
    has no bytes anywhere, so that what would read it as if it had is an error. Versions are counted where the part is."""

    __slots__ = ("local", "spec")
    # functions of who makes them: the class that stands for a class of tensors, what a leaf keeps of a gradient, unset tensors like one, a
    # gradient that came in pieces, what functions make of whole tensors, tensors whose first dim is the one that is cut
    kind = gradient = like = whole = on_whole = rows_first = None
    owner, ptr = property(lambda self: self.local.storage.owner), property(lambda self: self.local.data_ptr())

    @property
    def version(self):
        return self.local.storage.version

    @version.setter
    def version(self, value):
        self.local.storage.version = value

    @property
    def writer(self):
        return self.local.storage.writer

    @writer.setter
    def writer(self, value):
        self.local.storage.writer = value

    @property
    def bytes(self):
        raise RuntimeError("DTensor: expected an operator on whole tensors, got a tensor of which this process has a part; use to_local() "
                           "for the part or full_tensor() for the whole")

    def alias(self):
        return spread(self.local.data, self.spec, self.nbytes)


def spread(local, spec, nbytes):
    """The memory of a tensor of so many bytes of which `local` is this process's part."""
    out = Spread()
    out.local, out.spec, out.device, out.nbytes, out._bytes = local, spec, local.storage.device, nbytes, None
    return out


class SampleBySample(BaseException):
    """What runs inside of vmap asked for what the samples do not have together, such as the value of a number: its function is called for
    each sample. It is no Exception, so that the function does not take it for an error of its own."""


class Batched(Storage):
    """Memory of a tensor inside of vmap. The tensor is like one sample, the tensor `whole` has all of them along its first dim: strides and
    offset are those of the first sample in its memory, and each further one lies whole.stride(0) later. `level` is the call of vmap."""

    __slots__ = ("whole", "level")
    # functions of who makes them: a tensor of each sample's own; a call by a rule of the user's, of an autograd.Function so; its node in
    # the graph around, and tangents and hooks there; what is printed of it
    like = by_rule = forward = around = remember_tangents = hooked = shown = None
    owner = property(lambda self: self.whole.storage.owner)

    @property
    def ptr(self):
        raise self.level.no_values()

    bytes = ptr

    def alias(self):
        return batched(self.whole.data, self.level)


def batched(whole, level):
    """The memory of a sample of `whole`."""
    out, home = Batched(), whole.storage
    out.whole, out.level, out.device, out._bytes, out.version = whole, level, home.device, None, 0
    if whole.shape[0]:
        out.nbytes = home.nbytes - (whole.shape[0] - 1) * whole.strides[0] * whole.dtype.itemsize
    else:                                                                # as much as one would have
        out.nbytes = (whole.offset + extent(whole.shape[1:], whole.strides[1:])) * whole.dtype.itemsize
    return out


def _unlocked():
    """In a forked process no thread of its parent is filling anything."""
    global _filling
    _filling = threading.RLock()                                         # a finalizer may look while its own thread is filling


_unlocked()
_owner = Storage.owner.__get__
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlocked)


def host_storage(array):
    """The memory that a numpy array (strides not negative) looks at, from its first element on."""
    out = HostStorage()
    out.device, out.nbytes, out.owner, out.version, out._bytes = cpu, array.nbytes, array, 0, None
    if not array.flags.c_contiguous:
        out.nbytes = out.bytes.nbytes
    return out


class DeviceStorage(Storage, Owner):
    """Memory of the caching allocator: it has the span itself, and gives it back when it dies. `others`, which is there once somebody wants
    to know, counts the writes that `version` does not: see counts_writes."""

    __slots__ = ("others", "span")
    nbytes, owner, _bytes = property(lambda self: self.span.nbytes), property(lambda self: self), None


class Shared(Storage):
    """Memory of a DeviceStorage, its `owner`, or a run of it, with a version of its own. Its writes are counted by the owner too."""

    __slots__ = ()

    @property
    def version(self):
        return _version(self)

    @version.setter
    def version(self, value):
        _set_version(self, value)
        written_unseen(self.owner)


_version, _set_version = Storage.version.__get__, Storage.version.__set__


def written_unseen(memory, count=1):
    """Count a write to memory that no `version` of its own tells of; NaN: from now on nobody counts all of them."""
    memory = memory.owner                                                # of a run of shared memory
    if type(memory) is DeviceStorage and (count != count or hasattr(memory, "others")):
        memory.others = getattr(memory, "others", 0) + count


def counts_writes(memory):
    """Have all writes to memory counted: `memory.version + memory.others` moves on with each. False where that cannot be."""
    if type(memory) is DeviceStorage and not hasattr(memory, "others"):
        memory.others = 0
    return type(memory) is DeviceStorage and memory.others == memory.others


def device_storage(nbytes, device):
    """Fresh memory of a CUDA device, on its current stream."""
    place = device.index
    if streams.used and (handle := current_handle(place)):
        place = place, handle
    span = take(nbytes, place)
    out = DeviceStorage()
    out.span = span
    out.device = device                                                  # one by one: many at once make a tuple, 0.03 µs more
    out.ptr = span.ptr
    out.version = 0
    if traces and current_trace() is not None:
        current_trace().made(out)
    return out


def meta_storage(nbytes):
    """What stands for memory on the device meta: it has a size and no address. The owner tells which of them stand for the same memory."""
    out = Storage()
    out.device = meta
    out.nbytes = nbytes
    out.owner = object()
    out.ptr = out.version = 0
    out._bytes = None
    return out


def block_storage(block, nbytes, device):
    """A Storage over an owner that has a device pointer `ptr` (an imported tensor)."""
    out = Storage()
    out.device, out.nbytes, out.owner, out.ptr, out.version, out._bytes = device, nbytes, block, block.ptr, 0, None
    return out


def part(storage, start, nbytes):
    """A run of a storage's bytes as a storage, with a version of its own."""
    if storage.device is cpu:
        return host_storage(storage.bytes[start:start + nbytes])
    out = Shared()
    out.device, out.nbytes, out.owner, out._bytes = storage.device, nbytes, storage, None
    _set_version(out, 0)
    out.ptr = storage.ptr + start if storage.ptr else 0                  # on meta there are no addresses
    return out


def exchange(a, b):
    """Two storages of one device change memory: tensors of the one show what those of the other have shown. Versions stay where they are,
    so that what is saved for a gradient counts as it did. Tensors on the CPU that remember their array (`_array`) have to be told."""
    if type(a) is DeviceStorage:
        a.span, b.span = b.span, a.span
        a.ptr, b.ptr = b.ptr, a.ptr
    else:
        (a.owner, a.nbytes), (b.owner, b.nbytes) = (b.owner, b.nbytes), (a.owner, a.nbytes)
        a._bytes = b._bytes = None
