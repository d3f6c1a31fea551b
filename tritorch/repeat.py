"""Operator calls that repeat: what an implementation launched for arguments of one kind is launched again without running it.

An implementation decides on grids and blocks, makes temporary memory and launches, and all of that follows from its arguments' shapes,
strides, dtypes and numbers. So of its first call for a kind of arguments a Trace is taken, and later calls queue the same launches with
the pointers of the arguments at hand and of fresh temporaries. Calls that do more than launch (read a value from the device, use memory
that is neither an argument nor a temporary) run their implementation every time.
"""
from importlib import import_module
from operator import itemgetter
from types import FunctionType

from tritorch.autograd import modes, places
from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.cuda import counters, driver, faults
from tritorch.cuda.allocator import take
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import PassedParts, Trace, current, passed, traces
from tritorch.device import cpu, device
from tritorch.dtype import default_changed, dtype, float32
from tritorch.shape import Size
from tritorch.storage import DeviceStorage, device_storage
from tritorch.tensor import HOST, Tensor, _new, empty

KEPT, PATIENCE = 256, 4                         # kinds of calls remembered per operator; times that these may overflow
FORMS = 1 << 16                                 # kinds of tensors remembered
ATOMS = {int, float, bool, str, dtype, device}
NUMBERS, WHOLE = {int, float}, {int}
UNKNOWN, TRACKED, SHIFTED = -1, 1, 2
streams = import_module("tritorch.cuda.stream")                          # tritorch.cuda.stream is the function of that name
default_changed.append(driver.forget_calls)     # shape rules ask for the default dtype


def repeating(fn, door=None, passes=()):
    """Three ways to call `fn(outputs…, arguments…)`, an implementation for CUDA devices, without running it where its launches are known:
    `run(outputs…, arguments…)`, `again(arguments)` for a call of the operator `door`, whose last arguments may be left to their defaults,
    and `rewrite(output, arguments)` for one in place. `again` returns what the operator does, or None where the call has to go the long
    way, and `rewrite` whether it need not. `passes` has (name, type) of the arguments that are numbers which `fn` only hands to its
    kernels, or for a tuple {place: type} of its own, or for a whole number that kernels get in parts a function that gives these. Long
    functions, because a call of another would cost 0.04 µs and variables of a closure are the quickest to read."""
    calls, overflows = {}, 0                    # of `again` the keys tell of the arguments, of `run` of the outputs in front of them
    driver.call_tables.append(calls)
    ways, lead = {}, 0                          # by place; where the arguments begin among what `run` is given
    if door is not None:
        ways, lead = {door.names.index(name): kind for name, kind in passes}, len(door.returns)
        arity, single, body, complete, tails = len(door.names), lead == 1, door.body, door.complete, door.tails
    ways_of_run = {lead + place: kind for place, kind in ways.items()}

    def run(*values):
        if overflows > PATIENCE or traces and current() is not None:
            return fn(*values)
        key, pointers, numbers = [], [], []
        found = _look(values, ways_of_run, lead, key, pointers, numbers)
        if found == UNKNOWN:
            return fn(*values)
        if found & SHIFTED:
            key += _meetings(values, pointers)
        key = tuple(key)
        known = calls.get(key, UNKNOWN)
        if known is UNKNOWN:
            learn(key, pointers, (), values, numbers)
        elif known is None or not _queue(known, pointers, numbers):
            fn(*values)                                                  # which fails again if a launch did, and says with which arguments

    def again(args):
        """The whole call, therefore long."""
        if overflows > PATIENCE or traces and current() is not None:
            return None
        key, pointers, numbers = [], [], []
        found = _look(args, ways, 0, key, pointers, numbers)
        if found:
            if found == UNKNOWN:
                return None
            if found & SHIFTED and len(pointers) > 1:
                key += _meetings(args, pointers)
        key = tuple(key)
        known = calls.get(key)
        if known is None:
            if key in calls:
                return None
            args = complete(args)
            promise = body(*args)
            outs = [empty(*p) for p in ([promise] if type(promise) is tuple else promise)]
            if not pointers and outs[0].storage.device.type != "cuda":
                return None
            learn(key, [*[out.storage.ptr for out in outs], *pointers], outs, (*outs, *args), numbers)
        else:
            home, made, steps, constants, moved, extras, index = known
            stream, outs = current_handle(index) if streams.used else 0, []
            place = (index, stream) if stream else index
            for nbytes, shape, strides, kind, form in made:
                span = take(nbytes, place)                               # as device_storage and tensor.strided, without the calls
                storage = DeviceStorage()
                storage.span = span
                storage.device = home
                storage.version = 0
                storage.ptr = pointer = span.ptr
                pointers.insert(len(outs), pointer)
                out = _new(Tensor)
                out.storage = storage                                    # one by one: many at once make a tuple, and cost 0.03 µs more
                out.shape = shape
                out.strides = strides
                out.dtype = kind
                out.form = form
                out.offset = out.index = 0
                out.node = out.base = out.base_node = out._array = None
                outs.append(out)
            if extras is None:                                           # as _queue, without the call
                if numbers:
                    pointers += numbers
                pointers += constants
                for place, k, distance in moved:
                    pointers[place] = pointers[k] + distance
                try:
                    for start, x, y, z, pick, _ in steps:
                        start(x, y, z, stream, pick(pointers) if pick else pointers)
                except driver.OutOfMemory:
                    raise
                except Exception:
                    fn(*outs, *complete(args))
            elif not _queue(known, pointers, numbers):
                fn(*outs, *complete(args))
        if found & TRACKED and state.grad:
            record(door, args if len(args) == arity else args + tails[len(args)], outs, 4)
        elif modes.inferred and state.inference:
            for out in outs:
                out._inference = True
        return outs[0] if single else tuple(outs)

    def rewrite(out, args):
        if overflows > PATIENCE or traces and current() is not None:
            return False
        values, key, pointers, numbers = (out, *args) if lead == 1 else (*out, *args), [], [], []
        found = _look(values, ways_of_run, lead, key, pointers, numbers)
        if found == UNKNOWN or found & TRACKED and state.grad:
            return False
        if found & SHIFTED:
            key += _meetings(values, pointers)
        known = calls.get(tuple(key))                                    # `run` was given it, so it passes the checks on destinations
        if known is None or modes.inferred and any(o._inference for o in values[:lead]) or not _queue(known, pointers, numbers):
            return False
        writer = places.user_place(3)
        for o in (out,) if lead == 1 else out:
            storage = o.storage
            storage.version += 1
            storage.writer = writer
        return True

    def learn(key, pointers, outs, values, numbers):
        nonlocal overflows
        tensors = [*_tensors(values)]
        home = tensors[0].storage.device
        if any(x.storage.device is not home for x in tensors):
            calls[key] = None
            fn(*values)
            return
        storages, marked = [x.storage for x in tensors], _marked(values, ways_of_run, lead, enumerate(numbers))
        with Trace(storages, pointers, home) as trace:
            fn(*marked)
        if len(calls) >= KEPT:
            calls.clear()
            overflows += 1
        distinct = {s.ptr: s for s in storages}.values()                 # what begins at one address is told by the key
        apart = all(a is b or a.ptr + a.nbytes <= b.ptr or b.ptr + b.nbytes <= a.ptr for a in distinct for b in distinct)
        made = [(out.storage.nbytes, out.shape, out.strides, out.dtype, form_of(out)) for out in outs]
        whole = trace.whole and apart and len(trace.passed) == len(numbers)
        constants, moved, ahead = [], [], len(trace.pointers)
        steps = [_prepared(step, ahead, ahead + len(numbers), constants, moved) for step in trace.steps]
        in_order = [*range(ahead + len(numbers) + len(constants))]
        steps = [(*start, _picking(places, in_order), patches) for *start, places, patches in steps]
        extras = (trace.temporaries, trace.reports) if trace.temporaries or trace.reports or any(step[5] for step in steps) else None
        calls[key] = (home, made, steps, constants, moved, extras, home.index) if whole else None

    return run, again, rewrite


def _tensors(values):
    """The tensors among the values, those in tuples too."""
    for v in values:
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, tuple):
            yield from _tensors(v)


def _marked(values, ways, lead, numbers):
    """The values, those in `numbers` marked for the Trace."""
    out = [*values]
    for place, way in sorted(ways.items()):
        if type(way) is dict:
            out[place] = tuple(_marked(out[place], way, 0, numbers))
        elif _what(out[place], way, values[lead]) is not None and (found := next(numbers, None)):
            if type(way) is FunctionType:
                parts = [found[1], *[next(numbers)[1] for _ in way(out[place])[1:]]]
                out[place] = PassedParts(out[place], parts, found[0])
            else:
                out[place] = passed(found[1], found[0])
    return out


def _what(v, way, first):
    """What a number is to a kernel that `way` says it is only handed to; None where the implementation may look at it."""
    if v.__class__ not in NUMBERS:
        return None
    if way is float:
        return "float" if first.dtype.compute is float32 else None
    if type(way) is FunctionType:
        return "parts" if v.__class__ is int and v else None
    if v.__class__ is float or v in (0, 1):                              # as a launch tells whole numbers apart; 0 says that nobody asks
        return None
    return "wide" if not -0x80000000 <= v < 0x7FF00000 else "odd" if v & 15 else "even"


def _prepared(step, numbers, start_of_constants, constants, moved):
    """A step of a Trace as `_queue` wants it: where the kernel's values are in [pointers…, numbers…, constants…], the latter beginning at
    the places given, and the patches that make descriptors. Its constants are appended to `constants`, its pointers behind another to
    `moved` as (where they belong in that list, where that other is, distance)."""
    start, x, y, z, values, patches, passed = step
    values, places, descriptors = [*values], {place: numbers + nth for place, nth in passed.items()}, []
    for place, k, distance, make in patches:
        if k is None:
            values[place] = distance                                     # the word of bad indices, at its address
        elif make is not None:
            descriptors.append((place, k, distance, make))
        elif distance:
            moved.append((start_of_constants + len(constants), k, distance))
            places[place] = start_of_constants + len(constants)
            constants.append(None)
        else:
            places[place] = k
    for place, v in enumerate(values):
        if place not in places:
            places[place] = start_of_constants + len(constants)
            constants.append(v)
    return start, x, y, z, [places[place] for place in range(len(values))], descriptors


def _picking(places, in_order):
    """What picks the values of a kernel out of a list; None where they are the list, as they mostly are: outputs, inputs, numbers."""
    return None if places == in_order else itemgetter(*places) if len(places) > 1 else lambda found: [found[k] for k in places]


def _queue(known, pointers, numbers):
    """Queue the launches of a known call on the current stream; whether that succeeded. `pointers` are the arguments' (and outputs'),
    `numbers` what it passes on."""
    home, _, steps, constants, moved, extras, index = known
    temporaries, reports = extras or ((), False)
    if temporaries:
        memory = [counters.here(index) if nbytes is None else device_storage(nbytes, home) for nbytes in temporaries]
        pointers += [storage.ptr for storage in memory]                  # which live until all is queued
    found = pointers + numbers + constants if numbers else pointers + constants
    for place, k, distance in moved:
        found[place] = found[k] + distance
    stream = current_handle(index) if streams.used else 0
    try:
        for start, x, y, z, pick, descriptors in steps:
            values = pick(found) if pick else found
            if descriptors:
                values = [*values]
                for place, k, distance, make in descriptors:
                    values[place] = make(found[k] + distance)
            start(x, y, z, stream, values)
    except driver.OutOfMemory:
        raise
    except Exception:
        return False
    if reports:
        faults.unread.add(index)
    return True


def _look(values, ways, lead, key, pointers, numbers):
    """Append to `key` all that an implementation may look at in its arguments, to `pointers` the tensors' addresses, to `numbers` those
    that it only passes on; UNKNOWN where there is more to them, else whether one of them may have a history (TRACKED) or begin behind
    the beginning of its memory (SHIFTED). Long, because it looks at every argument of every call."""
    found, place = 0, -1
    for v in values:
        place += 1
        kind = v.__class__
        if kind is Tensor or kind in subclasses:
            form = v.form or form_of(v)
            if form is HOST:
                return UNKNOWN
            key.append(form)
            pointer = v.storage.ptr
            if v.offset:
                pointer += v.offset * v.dtype.itemsize
                found |= SHIFTED
            elif pointer in pointers:
                key.append(pointers.index(pointer))
            pointers.append(pointer)
            if v.node is not None or (base := v.base) is not None and (base.node is not None or v.base_node is not None):
                found |= TRACKED                                         # a view of what has no history has none either
        elif v is None:
            key.append(None)
        elif kind in ATOMS:
            if ways and place in ways and (what := _what(v, ways[place], values[lead])) is not None:
                key.append(what)
                if what == "parts":
                    numbers += ways[place](v)
                else:
                    numbers.append(float(v) if ways[place] is float else v)
            elif v is cpu:
                return UNKNOWN
            else:
                key.append(kind)                                         # 1, 1.0 and True are equal, and so are 0.0 and -0.0
                key.append(v if v or kind is not float else repr(v))
        elif kind is tuple or kind is Size:
            if WHOLE.issuperset(map(type, v)) and not (ways and place in ways):
                key.append(int)                                          # sizes, strides: all at once
                key.append(v)
                continue
            key.append(~len(v))
            inner = _look(v, ways and ways.get(place), 0, key, pointers, numbers)
            if inner == UNKNOWN:
                return UNKNOWN
            found |= inner
        elif isinstance(v, Tensor):
            subclasses.add(kind)
            return UNKNOWN                                               # this time
        else:
            return UNKNOWN
    return found


def _meetings(values, pointers):
    """Which of the tensors lie in memory that begins where another's does, and how far apart they are: for a key."""
    bases = [x.storage.ptr for x in _tensors(values)]
    return [(k, first, pointers[k] - pointers[first]) for k, base in enumerate(bases) if (first := bases.index(base)) != k]


subclasses = set()                                                       # of Tensor, as they are met
forms = {}


def form_of(x):
    """What an implementation may look at in one tensor, as an object: the same for all tensors on a device that have one shape, strides,
    dtype and alignment, so that a key holds it by identity. HOST on the CPU and on meta."""
    storage, dtype = x.storage, x.dtype
    if storage.device.type != "cuda":
        x.form = HOST
        return HOST
    about = storage.device, x.shape, x.strides, dtype, storage.ptr + x.offset * dtype.itemsize & 15
    form = forms.get(about)
    if form is None:
        if len(forms) >= FORMS:
            forms.clear()
        form = forms.setdefault(about, object())
    x.form = form
    return form
