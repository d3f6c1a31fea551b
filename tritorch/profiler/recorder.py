"""What is written down while a profiler runs: the operators of its thread, marked blocks, nodes of backward passes."""
import contextlib
import functools
import sys
import threading
import weakref

from tritorch.autograd import modes, observed, places
from tritorch.autograd.modes import state
from tritorch.cuda import allocator, measuring
from tritorch.dispatch import Interpreter
from tritorch.profiler.devices import Devices
from tritorch.profiler.events import Event, now
from tritorch.profiler.operators import flops_of, name_of, shapes_of
from tritorch.tensor import Tensor

running = None                                                           # the Recorder at work
_nothing = contextlib.nullcontext()


class Recorder(Interpreter):
    """Writes `events` from start() to stop(). `cpu` and `cuda` say what is looked at, the others what is kept of every operator."""

    looks_on = True

    def __init__(self, cpu, cuda, shapes=False, memory=False, stack=False, flops=False):
        self.cpu, self.cuda, self.shapes, self.memory, self.stack, self.flops = cpu, cuda, shapes, memory, stack, flops
        self.thread, self.number = threading.get_ident(), threading.get_native_id()
        self.events, self.inner, self.storages = [], None, {}            # the innermost of the open events; weakly, with their bytes
        self.devices, self.fresh = None, False                           # fresh: whether this thread had never an interpreter

    # -------------------------------------------------------------- coming and going
    def start(self):
        """Look on from here."""
        global running
        running = self
        if self.cpu:
            self.fresh = "interpreter" not in vars(state)
            self.link(self, None)
            modes.interpreted, observed.around = True, self.around
        if self.memory:
            allocator.listener = self.moved
            allocator.watch()
        if self.cuda:
            self.devices = Devices(self)
            measuring.begin(self.devices.meter)

    def stop(self):
        """Look no longer, and leave nothing behind; the events."""
        self.leave()
        measuring.end()
        devices, self.devices = self.devices, None
        self.events += devices.collected() if devices is not None else ()
        return self.events

    def leave(self):
        """Look no longer at the host."""
        global running
        while self.inner is not None:
            self.close(self.inner)
        running = observed.around = allocator.listener = None
        self.link(self.outer, self)
        self.storages.clear()
        allocator.watch()

    def link(self, interpreter, place):
        """Put an interpreter where another one is in the chain of this thread's: at its end, below all others, that is None."""
        holder, slot = state, "interpreter"
        while (found := getattr(holder, slot)) is not place:
            if found is None:
                return                                                   # whoever was around has left with it
            holder, slot = found, "outer"
        setattr(holder, slot, interpreter)
        if interpreter is None and holder is state and self.fresh:
            del state.interpreter                                        # as compiled functions know this thread: see Surroundings.fitting

    # -------------------------------------------------------------- the host
    def open(self, name, kind):
        """An event begins."""
        event = Event(name, kind, self.number, self.inner)
        if self.inner is not None:
            self.inner.cpu_children.append(event)
        if self.stack:
            event.stack = user_stack()
        self.events.append(event)
        self.inner = event
        event.start = now()
        return event

    def close(self, event):
        """An event ends, and those inside with it that an error has left open."""
        end = now()
        while event.end is None:
            self.inner.end = end
            self.inner = self.inner.cpu_parent

    def around(self, node):
        """A node of a backward pass."""
        return Block(self, node.name()) if threading.get_ident() == self.thread else _nothing

    def __call__(self, op, args, out):
        event = self.open(name_of(op, args, out), "cpu_op")
        try:
            made = self.proceed(op, args, out)
        finally:
            self.close(event)
        if self.shapes:
            event.input_shapes = shapes_of(args)
        if self.flops:
            event.flops = flops_of(op, args, made)
        if self.memory and out is None:
            self.count(event, args, made)
        return made

    # -------------------------------------------------------------- memory
    def count(self, event, args, made):
        """The host memory that an operator made for its results."""
        given = {id(x.storage) for a in args for x in (a if type(a) is tuple else (a,)) if isinstance(x, Tensor)}
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, Tensor) and x.storage.device.type == "cpu" and id(x.storage) not in given:
                ref = weakref.ref(x.storage, self.freed)
                if ref not in self.storages:
                    self.storages[ref] = x.storage.nbytes
                    event.self_cpu_memory_usage += x.storage.nbytes

    def freed(self, ref):
        nbytes, inner = self.storages.pop(ref, 0), self.inner
        if inner is not None and threading.get_ident() == self.thread:
            inner.self_cpu_memory_usage -= nbytes

    def moved(self, span, live):
        """The allocator gives device memory to somebody, or gets it back."""
        inner = self.inner
        if inner is not None and threading.get_ident() == self.thread:
            inner.self_device_memory_usage += span.size if live else -span.size


class Block:
    """An event for what is done inside."""

    __slots__ = ("recorder", "name", "event")

    def __init__(self, recorder, name):
        self.recorder, self.name = recorder, name

    def __enter__(self):
        self.event = self.recorder.open(self.name, "cpu_op")

    def __exit__(self, *exception):
        self.recorder.close(self.event)


def user_stack():
    """The calls that lead here, the innermost of the user's first: file(line): function."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        if not places.inside[code.co_filename]:
            found.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back
    return found


class record_function:
    """Name what is done inside a `with` block, or in a function that is decorated with it, for a profiler that runs in this thread; where
    none does, nothing happens. `args` is a text that goes with the event into traces.

    >>> import tritorch as torch
    >>> from tritorch.profiler import profile, record_function
    >>> with profile() as prof:
    ...     with record_function("twice"):
    ...         y = torch.ones(3).mul(2)
    >>> [e.name for e in prof.events() if e.cpu_parent is not None and e.cpu_parent.name == "twice"]
    ['aten::fill_', 'aten::mul']
    """

    def __init__(self, name, args=None):
        self.name, self.args, self.event = name, args, None

    def __enter__(self):
        recorder = self.recorder = running
        if recorder is not None and recorder.thread == threading.get_ident():
            self.event = recorder.open(self.name, "user_annotation")
            self.event.note = self.args
        return self

    def __exit__(self, *exception):
        if self.event is not None:
            self.recorder.close(self.event)
        self.recorder = self.event = None

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with record_function(self.name, self.args):
                return function(*args, **kwargs)

        return wrapped
