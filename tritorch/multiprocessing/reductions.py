"""How tensors go through the queues, pipes and arguments of processes: their memory is moved to where all see it, once, and named."""
import gc
import os
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from weakref import WeakValueDictionary

import numpy as np

from tritorch import pickling
from tritorch.device import cpu, meta
from tritorch.errors import check
from tritorch.multiprocessing import device_memory, segments
from tritorch.nn.parameter import Buffer, Parameter
from tritorch.storage import DeviceStorage, HostStorage, Shared, Storage, Unwritten, host_storage
from tritorch.tensor import ALONE, Tensor, swaps


def _unlocked():
    """In a forked process no thread of its parent is moving anything."""
    global _moving
    _moving = threading.RLock()                                          # a finalizer may send something while its own thread does


_unlocked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlocked)
_known = WeakValueDictionary()                                           # (segment, start, bytes) → the storage that shows it here


def segment_of(storage):
    """The shared memory that a storage lies in, or None."""
    owner = storage.owner if storage.device is cpu else None
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, segments.Segment) else None


def share(storage, x=None):
    """Move a storage's memory to where other processes see it, under all tensors that show it; x may be one of them."""
    check(storage.device is not meta, "share_memory_", "memory on the CPU or a GPU", "none: a tensor on meta")
    if storage.device is cpu and not segment_of(storage):
        with _moving:                                                    # the threads that feed queues do so, too
            if not segment_of(storage):
                _move(storage, x)


def _move(storage, x):
    segment = segments.create(storage.nbytes)
    memory = np.asarray(segment)[:storage.nbytes]
    memory[...] = storage.bytes
    storage._bytes = None
    if x is not None:
        x._array = None
    if sys.getrefcount(storage.owner) == ALONE and storage.owner.flags.owndata:
        storage.owner = memory
    else:                                                                # other tensors may have arrays of it: 10 ms to look
        storages = [s for s in gc.get_referrers(storage.owner) if isinstance(s, HostStorage)]
        for other in gc.get_referrers(*storages):
            if isinstance(other, Tensor):
                other._array = None
        for each in storages:
            each.owner, each._bytes = memory, None
    swaps[0] += 1


def reduce_storage(storage):
    """Memory on its way to another process, which will see what is written to it, and the other way round."""
    if not storage.nbytes or storage.device is meta:
        return pickling.reduce_storage(storage)
    if storage.device is not cpu:
        return device_memory.reduce_storage(storage)
    share(storage)
    segment = segment_of(storage)
    start = storage.ptr - segment.address
    _known[segment.identity, start, storage.nbytes] = storage
    return rebuild_storage, (*segment.sent(), start, storage.nbytes)


def rebuild_storage(mapped, sent, start, nbytes):
    """The storage of a message: the one there is, if its memory was made here or has come before."""
    segment = mapped(sent)
    found = _known.get((segment.identity, start, nbytes))
    if found is None:
        found = _known[segment.identity, start, nbytes] = host_storage(np.asarray(segment)[start:start + nbytes])
    return found


def reduce_tensor(x):
    """A tensor on its way to another process: class, layout and attributes, and its memory as `reduce_storage` sends it."""
    check(x.is_leaf, "multiprocessing", "a leaf, or a tensor without history: gradients do not flow between processes",
          f"the result of {x.grad_fn}", use="x.detach()")
    if not x.is_meta:
        share(x.storage, x)
    return x.__reduce_ex__(5)


def init_reductions():
    """Have Python's multiprocessing send tensors this way, in this process."""
    for kind in (Tensor, Parameter, Buffer):
        ForkingPickler.register(kind, reduce_tensor)
    for kind in (DeviceStorage, HostStorage, Shared, Storage, Unwritten):
        ForkingPickler.register(kind, reduce_storage)
