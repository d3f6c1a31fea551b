"""Operator calls that repeat: what an implementation launched for arguments of one kind is launched again without running it.

An implementation decides on grids and blocks, makes temporary memory and launches, and all of that follows from its arguments' shapes,
strides, dtypes and numbers. So of its first call for a kind of arguments a Trace is taken, and later calls queue the same launches with
the pointers of the arguments at hand and of fresh temporaries: on an idle device layer_norm takes 10 µs instead of 19, a sum 6 instead of
14. Calls that do more than launch (read a value from the device, use memory that is neither an argument nor a temporary) run their
implementation every time.
"""
from importlib import import_module
from operator import itemgetter

from tritorch.cuda import driver, faults
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import Trace, current, passed, traces
from tritorch.device import cpu, device
from tritorch.dtype import default_changed, dtype, float32
from tritorch.shape import Size
from tritorch.storage import device_storage
from tritorch.tensor import Tensor, empty

KEPT, PATIENCE = 256, 4                         # kinds of calls remembered per operator; times that these may overflow
ATOMS = {int, float, bool, str, type(None), dtype, device}
NUMBERS = {int, float}
UNKNOWN = object()
streams = import_module("tritorch.cuda.stream")                          # tritorch.cuda.stream is the function of that name
default_changed.append(driver.forget_calls)     # shape rules ask for the default dtype


def repeating(fn, body=None, passes=()):
    """Two ways to call `fn(outputs…, arguments…)`, an implementation for CUDA devices, without running it where its launches are known:
    `run(outputs…, arguments…)` and `again(arguments)`, which makes the outputs that the shape rule `body` promises. It returns a list of
    them, or None where the call has to go the long way, and whether an argument may have a history. `passes` are the places, from the
    end, of arguments that are numbers which `fn` only hands to its kernels, and their types. Long functions, because a call costs the host
    microseconds and variables of a closure are the quickest to read."""
    calls = {}                                  # of `again` the keys tell of the arguments, of `run` of the outputs in front of them
    driver.call_tables.append(calls)
    overflows, number = 0, passes[0][0] if passes else None

    def run(*values):
        home = values[0].storage.device
        if overflows > PATIENCE or traces and current() is not None:
            return fn(*values)
        key, pointers, kinds, numbers = [home], [], values, []
        if passes and values[number].__class__ in NUMBERS:
            kinds = _withheld(values, passes, numbers)
        if _kind(kinds, home, key, pointers, []) is UNKNOWN:
            return fn(*values)
        key = tuple(key)
        known = calls.get(key, UNKNOWN)
        if known is UNKNOWN:
            learn(key, pointers, values, home, (), values, kinds, numbers)
        elif known is None or not _queue(known, pointers, numbers, home):
            fn(*values)                                                  # which fails again if a launch did, and says with which arguments

    def again(args):
        first = args[0]
        if not isinstance(first, Tensor) or first.storage.device is cpu or overflows > PATIENCE or traces and current() is not None:
            return None, True
        home = first.storage.device
        key, pointers, kinds, numbers = [home], [], args, []
        if passes and args[number].__class__ in NUMBERS:
            kinds = _withheld(args, passes, numbers)
        tracked = _kind(kinds, home, key, pointers, [])
        if tracked is UNKNOWN:
            return None, True
        key = tuple(key)
        known = calls.get(key, UNKNOWN)
        if known is None:
            return None, True
        if known is UNKNOWN:
            promise = body(*args)
            outs = [empty(*p) for p in ([promise] if type(promise) is tuple else promise)]
            pointers += [out.storage.ptr for out in outs]
            learn(key, pointers, (*args, *outs), home, outs, (*outs, *args), (*outs, *kinds), numbers)
            return outs, tracked
        outs = []
        for nbytes, shape, strides, kind in known[0]:
            storage = device_storage(nbytes, home)
            pointers.append(storage.ptr)
            out = Tensor()                                               # as tensor.strided, without the call
            out.storage = storage                                        # one by one: many at once make a tuple, and cost 0.03 µs more
            out.shape = shape
            out.strides = strides
            out.dtype = kind
            out.offset = out.index = 0
            out.node = out.base = out.base_node = out._array = None
            outs.append(out)
        if not _queue(known, pointers, numbers, home):
            fn(*outs, *args)
        return outs, tracked

    def learn(key, pointers, given, home, outs, values, kinds, numbers):
        nonlocal overflows
        nth = iter(range(len(numbers)))
        values = [v if v is kind else passed(numbers[k := next(nth)], k) for v, kind in zip(values, kinds)]
        storages = [x.storage for x in _tensors(given)]
        with Trace(storages, pointers, home) as trace:
            fn(*values)
        if len(calls) >= KEPT:
            calls.clear()
            overflows += 1
        distinct = {s.ptr: s for s in storages}.values()                 # what begins at one address is told by the key
        apart = all(a is b or a.ptr + a.nbytes <= b.ptr or b.ptr + b.nbytes <= a.ptr for a in distinct for b in distinct)
        made = [(out.storage.nbytes, out.shape, out.strides, out.dtype) for out in outs]
        whole = trace.whole and apart and len(trace.passed) == len(numbers)
        constants, ahead = [], len(trace.pointers)
        steps = [_prepared(step, ahead, ahead + len(numbers), constants) for step in trace.steps]
        calls[key] = (made, steps, constants, trace.temporaries, trace.reports) if whole else None

    return run, again


def _tensors(values):
    """The tensors among the values, those in tuples too."""
    for v in values:
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, tuple):
            yield from _tensors(v)


def _withheld(values, passes, numbers):
    """The values, numbers that are passed on moved to `numbers`: what they are to a kernel takes their places."""
    kinds = [*values]
    for place, kind, home in passes:
        v = values[place]
        if kind is float:
            if v.__class__ in NUMBERS and values[home].dtype.compute is float32:
                kinds[place] = "float"
                numbers.append(float(v))
        elif v.__class__ is int and v != 1:                              # as a launch tells whole numbers apart
            kinds[place] = "wide" if not -0x80000000 <= v < 0x7FF00000 else "odd" if v & 15 else "even"
            numbers.append(v)
    return kinds


def _prepared(step, numbers, start_of_constants, constants):
    """A step of a Trace as `_queue` wants it: what picks the kernel's values out of [pointers…, numbers…, constants…], which begin at the
    places given, and the patches that are more than a pointer as it is. Its constants are appended to `constants`."""
    start, x, y, z, values, patches, passed = step
    values, places = [*values], {place: numbers + nth for place, nth in passed.items()}
    for place, k, distance, moved in patches:
        if k is None:
            values[place] = distance                                     # the word of bad indices, at its address
        elif moved is None:
            places[place] = k
    for place, v in enumerate(values):
        if place not in places:
            places[place] = start_of_constants + len(constants)
            constants.append(v)
    order = [places[place] for place in range(len(values))]
    pick = itemgetter(*order) if len(order) > 1 else lambda found: [found[k] for k in order]
    return start, x, y, z, pick, [(place, *how) for place, *how in patches if how[0] is not None and (how[1] or how[2])]


def _queue(known, pointers, numbers, home):
    """Queue the launches of a known call on the current stream; whether that succeeded. `pointers` are the arguments' (and outputs'),
    `numbers` what it passes on."""
    _, steps, constants, temporaries, reports = known
    if temporaries:
        memory = [device_storage(nbytes, home) for nbytes in temporaries]            # lives until all is queued
        pointers += [storage.ptr for storage in memory]
    found = pointers + numbers + constants if numbers else pointers + constants
    stream = current_handle(home.index) if streams.used else 0
    try:
        for start, x, y, z, pick, moves in steps:
            values = pick(found)
            if moves:
                values = [*values]
                for place, k, distance, moved in moves:
                    pointer = found[k] + distance
                    values[place] = pointer if moved is None else moved(pointer)
            start(x, y, z, stream, values)
    except driver.OutOfMemory:
        raise
    except Exception:
        return False
    if reports:
        faults.unread.add(home.index)
    return True


ODD = [f"+{n}" for n in range(16)]                                       # how far an address is from a multiple of 16, in a key


def _kind(values, home, key, pointers, bases):
    """Append to `key` all that an implementation may look at in its arguments, to `pointers` the tensors' addresses and to `bases` those
    of their memory; UNKNOWN where there is more to them, else whether one of them may have a history."""
    tracked = False
    for v in values:
        kind = v.__class__
        if kind is not Tensor:
            if kind in ATOMS:
                key.append(kind)                                         # 1, 1.0 and True are equal, and so are 0.0 and -0.0
                key.append(v if v or kind is not float else repr(v))
                continue
            if kind is tuple or kind is Size:
                key.append(~len(v))
                inner = _kind(v, home, key, pointers, bases)
                if inner is UNKNOWN:
                    return UNKNOWN
                tracked = tracked or inner
                continue
            if not isinstance(v, Tensor):
                return UNKNOWN
        storage, dtype = v.storage, v.dtype
        if storage.device is not home:
            return UNKNOWN
        if v.node is not None or v.base is not None:
            tracked = True
        base = pointer = storage.ptr
        if v.offset:
            pointer += v.offset * dtype.itemsize
        key.append(v.shape)
        key.append(v.strides)
        key.append(dtype)
        if pointer & 15:
            key.append(ODD[pointer & 15])
        if base in bases:                                                # the same memory: how they lie to each other matters
            k = bases.index(base)
            key += (k, pointer - pointers[k])
        pointers.append(pointer)
        bases.append(base)
    return tracked
