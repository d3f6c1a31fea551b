"""Operator calls that repeat: what an implementation launched for arguments of one kind is launched again without running it.

An implementation decides on grids and blocks, makes temporary memory and launches, and all of that follows from its arguments' shapes,
strides, dtypes and numbers. So of its first call for a kind of arguments a Trace is taken, and later calls queue the same launches with
the pointers of the arguments at hand and of fresh temporaries: on an idle device layer_norm takes 10 µs instead of 19, a sum 6 instead of
14. Calls that do more than launch (read a value from the device, use memory that is neither an argument nor a temporary) run their
implementation every time.
"""
from tritorch.cuda import driver, faults
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import Trace, current, traces
from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.shape import Size
from tritorch.storage import device_storage
from tritorch.tensor import Tensor

KEPT, PATIENCE = 256, 4                         # kinds of calls remembered per operator; times that these may overflow
ATOMS = {int, float, bool, str, type(None), dtype, device}
UNKNOWN = object()


def repeating(fn):
    """`fn(outputs…, arguments…)`, an implementation for CUDA devices, running only where its launches are not known yet. One long
    function, because a call costs the host microseconds and variables of a closure are the quickest to read."""
    calls = {}
    driver.call_tables.append(calls)
    overflows = 0

    def run(*values):
        home = values[0].storage.device
        if overflows > PATIENCE or traces and current() is not None:
            return fn(*values)
        key, pointers, storages = [home], [], []
        if not _kind(values, home, key, pointers, storages):
            return fn(*values)
        key = tuple(key)
        known = calls.get(key, UNKNOWN)
        if known is UNKNOWN:
            return first(key, pointers, storages, home, values)
        if known is None:
            return fn(*values)
        steps, temporaries, reports = known
        if temporaries:
            memory = [device_storage(nbytes, home) for nbytes in temporaries]        # lives until all is queued
            pointers += [storage.ptr for storage in memory]
        stream = current_handle(home.index)
        try:
            for start, x, y, z, given, patches in steps:
                given = given.copy()
                for place, k, distance, moved in patches:
                    pointer = distance if k is None else pointers[k] + distance
                    given[place] = pointer if moved is None else moved(pointer)
                start(x, y, z, stream, given)
        except driver.OutOfMemory:
            raise
        except Exception:
            return fn(*values)                                           # fails again, and says with which arguments
        if reports:
            faults.unread.add(home.index)

    def first(key, pointers, storages, home, values):
        nonlocal overflows
        with Trace(storages, pointers, home) as trace:
            fn(*values)
        if len(calls) >= KEPT:
            calls.clear()
            overflows += 1
        distinct = {id(s): s for s in storages}.values()
        apart = all(a is b or a.ptr + a.nbytes <= b.ptr or b.ptr + b.nbytes <= a.ptr for a in distinct for b in distinct)
        calls[key] = (trace.steps, trace.temporaries, trace.reports) if trace.whole and apart else None

    return run


def _kind(values, home, key, pointers, storages):
    """Append to `key` all that an implementation may look at in its arguments, and the tensors' pointers and storages; False where
    there is more to them."""
    for v in values:
        kind = v.__class__
        if kind is Tensor or isinstance(v, Tensor):
            storage, dtype = v.storage, v.dtype
            if storage.device is not home:
                return False
            pointer = storage.ptr
            if v.offset:
                pointer += v.offset * dtype.itemsize
            if storage in storages:                                      # the same memory: how they lie to each other matters
                k = storages.index(storage)
                key += (v.shape, v.strides, dtype, pointer & 15, k, pointer - pointers[k])
            else:
                key += (v.shape, v.strides, dtype, pointer & 15)
            pointers.append(pointer)
            storages.append(storage)
        elif kind in ATOMS:
            key += (kind, v if v or kind is not float else repr(v))      # 1, 1.0 and True are equal, and so are 0.0 and -0.0
        elif kind is tuple or kind is Size:
            key.append(~len(v))
            if not _kind(v, home, key, pointers, storages):
                return False
        else:
            return False
    return True
