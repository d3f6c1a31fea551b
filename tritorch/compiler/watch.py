"""Watching a call of a compiled function: which operators it ran on which tensors, and what in it no CUDA graph can hold.

The trace of a call names memory by the order in which it was first met, so that two calls which do the same have equal traces,
though their addresses differ. Two equal warm-up calls in a row are what a capture needs.
"""
from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from math import nan
from typing import NamedTuple

from tritorch.autograd import modes, places
from tritorch.autograd.modes import state
from tritorch.compiler.containers import flatten
from tritorch.cuda import allocator
from tritorch.cuda.device import current_device
from tritorch.cuda.stream import current_handle
from tritorch.cuda.watching import watched
from tritorch.device import device
from tritorch.dispatch import Interpreter
from tritorch.dtype import dtype, float64
from tritorch.layout import strided
from tritorch.nn.hooks import register_module_forward_pre_hook
from tritorch.ops.create import full
from tritorch.optim.optimizer import register_optimizer_step_pre_hook
from tritorch.tensor import Leaf, Tensor

PASSAGES = "tritorch.compiler", "tritorch.dispatch", "tritorch.cuda.watching", "tritorch.overridable"     # which do not say what was called
HOST = "random numbers that Python or numpy draws on the host"
CONSTANTS = frozenset([int, float, bool, str, bytes, type(None), dtype, device])


class Unsupported(RuntimeError):
    """With `fullgraph=True`: the function does something that cannot be part of a CUDA graph."""


class Seen(NamedTuple):
    """A tensor in a trace. `number` stands for its memory."""

    number: object
    shape: tuple
    strides: tuple
    offset: int
    dtype: dtype
    requires_grad: bool


class Refused(RuntimeError):
    """What was queued could not be captured: nothing of it has run."""


def code_of(call):
    """The code of what can be called, if it is Python's."""
    function = call if hasattr(call, "__code__") else getattr(call, "__func__", type(call).__call__)
    return getattr(function, "__code__", None)


class Watch(Interpreter):
    """Sees one call, from below all other interpreters, so that it meets what they make of the operators.

    `inputs` are the tensors among the arguments, `leaves` weak references to the parameters known so far (new ones are added),
    `expected` is the watch of the warm-up call before, `plan` what is to be fused. Afterwards `events` is the trace, `lines` where
    each event was, `met` the memory by number (weakly), `dead` the event before which memory was free again, `looked` the gradients
    from before the call that an operator touched, `written` what was written in place, `returned` what the result has, `why` the reason
    against a capture.
    """

    repeats, tries = False, 1                                            # whether the call before did the same; how many were compared
    passing = False                                                      # whether later calls will not do what this one does
    matches = None                                                       # what can be fused, once somebody has looked
    usual: dict = {}                                                     # the numbers that a call left which others do as

    def __init__(self, owner, inputs, expected=None, capture=None, plan=None, lenient=False):
        self.owner, self.inputs, self.expected, self.capture, self.plan = owner, inputs, expected, capture, plan
        self.leaves, self.index, self.had_none = owner.leaves, current_device(), []
        self.events, self.lines, self.met, self.dead, self.externals, self.inside = [], [], [], {}, {}, []
        self.numbers = weakref.WeakKeyDictionary()                       # memory -> number, or ("input", k), or ("grad", k)
        self.looked, self.written, self.modules, self.optimizers, self.groups = set(), set(), {}, {}, {}
        self.why = self.operator = self.result = None
        self.counts = {}                                                 # numbers in the state of optimizers before their first step
        self.backward, self.hooks, self.handles, self.known = False, [], [], {}
        self.moved, self.lenient = False, lenient                        # whether the world is not that of the warm-up; may it be
        self.codes, self.ran = {}, []                                    # {the user's code that ran: its globals}; modules, when it is over
        self.profiles = False                                            # whether Python tells of every function
        self.collectors = {code_of(f) for f in gc.callbacks}             # these run whenever memory is collected,
        self.aside = None                                                # as does now the one of this frame
        for k, x in enumerate(inputs):
            self.numbers.setdefault(home(x), ("input", k))
        for k, ref in enumerate(self.leaves):
            self.know(k, ref())

    def know(self, k, leaf):
        """A parameter, and by its number the gradient that it has now."""
        self.had_none.append(leaf is None or leaf._grad is None)
        if leaf is not None:
            self.known[id(leaf)] = leaf
            if leaf._grad is not None:
                self.numbers.setdefault(home(leaf._grad), ("grad", k))

    # -------------------------------------------------------------- coming and going
    @contextlib.contextmanager
    def watching(self):
        """What this thread does inside is the call."""
        self.looks = self.capture is None or self.capture.later          # who captures the forward pass has seen its functions before
        self.profiles = self.looks and sys.getprofile() is None
        try:                                                             # an interrupt may come at any line
            self.handles += [register_module_forward_pre_hook(self.on_module), register_optimizer_step_pre_hook(self.on_step)]
            modes.interpreted = True
            setattr(*self.slot(), self)
            watched.watcher = self
            self.listen()
            yield self
        finally:
            self.leave()

    def slot(self):
        """Where the interpreter below all others is, or this one: (object, name of the attribute)."""
        holder, name = state, "interpreter"
        while getattr(holder, name) not in (None, self):
            holder, name = getattr(holder, name), "outer"
        return holder, name

    def leave(self):
        """Watch no more. A second time it makes good what an interrupt left undone."""
        self.listen(False)
        watched.watcher = None
        setattr(*self.slot(), None)
        while self.handles:
            self.handles.pop().remove()
        self.flush()

    def over(self):
        """The call has ended: whatever interrupt came meanwhile, it is neither watched nor captured any more."""
        self.leave()
        if self.capture is not None:
            self.capture.close()

    def flush(self):
        """Bring about what was put off."""
        if self.plan is not None:
            self.plan.flush(self)
        while self.hooks:
            hook = self.hooks.pop(0)
            hook.generator.advance(hook.used)

    @contextlib.contextmanager
    def unseen(self):
        """Our own work on behalf of the call."""
        slot, state.interpreter, watched.watcher = state.interpreter, None, None
        try:
            yield
        finally:
            state.interpreter, watched.watcher = slot, self

    def listen(self, on=True):
        """Have Python tell of functions that are called, but for those of operators."""
        if self.profiles:
            sys.setprofile(self.on_call if on else None)

    def on_call(self, frame, event, what):
        if event == "call" and self.aside is None:
            if frame.f_code in self.collectors:
                self.aside = frame
            else:
                self.note_code(frame)
        elif event == "return" and frame is self.aside:
            self.aside = None

    def on_module(self, module, args):
        if watched.watcher is self:
            self.modules[id(module)] = module

    def on_step(self, optimizer, args, kwargs):
        if watched.watcher is self:
            self.optimizers[id(optimizer)] = optimizer
            self.counts.setdefault(id(optimizer), counts(optimizer))

    # -------------------------------------------------------------- the trace
    def __call__(self, op, args, out):
        name, outer, line = op.__name__, self.operator, places.user_place()
        self.operator = name
        event = name, tuple([self.token(a) for n, a in zip(op.names, args) if n != "base"]), self.token(out)
        self.backward |= state.run is not None
        written = [out] if out is not None else [args[k] for k in getattr(op, "writes", ())]
        self.written.update(self.numbers[home(x)] for x in tensors_in(written))
        if self.looks and not self.profiles:
            self.note_functions()
        self.listen(False)
        self.inside.append(name)                                         # what is freed now was there when the operator began
        try:
            made = self.proceed(op, args, out) if self.plan is None else self.plan.run(self, event, op, args, out)
        finally:
            self.listen()
            self.operator = outer
            self.inside.pop()
        self.events.append((*event, self.token(made)))
        self.lines.append(line)
        return made

    def note_functions(self):
        """Where somebody else is told of calls: those of the user on the way to an operator."""
        frame, last = sys._getframe(2), self.owner.run.__func__.__code__
        while frame is not None and frame.f_code is not last:
            self.note_code(frame)
            frame = frame.f_back

    def note_code(self, frame):
        code = frame.f_code
        if code not in self.codes and not places.inside[code.co_filename]:
            self.codes[code] = frame.f_globals

    def token(self, x):
        """What of an argument or result is the same in a call that does the same."""
        if isinstance(x, Tensor):
            if x.layout is not strided:
                return self.blocked("a sparse tensor")
            number = self.number(x)
            offset = x.offset - self.inputs[number[1]].offset if number.__class__ is tuple and number[0] == "input" else x.offset
            return Seen(number, x.shape, x.strides, offset, x.dtype, x.node is not None)
        if isinstance(x, (tuple, list)):
            return tuple([self.token(item) for item in x])
        if x.__class__ is float and x != x:
            return nan                                                   # every one is equal to this one, which is the same object
        return x if x.__class__ in CONSTANTS else type(x).__name__

    def number(self, x):
        place = home(x)
        found = self.numbers.get(place)
        if found is None:
            found = self.numbers[place] = len(self.met)
            self.meet(found, x, place)
        elif found.__class__ is tuple and found[0] == "grad":
            self.looked.add(found[1])
        return found

    def meet(self, number, x, place):
        """Memory that the call has not touched before."""
        if not x.is_cuda:
            self.blocked("work on tensors of the CPU")
        elif x.device.index != self.index:
            self.blocked("a second device")
        dead, events, inside = self.dead, self.events, self.inside       # the callback must not know the watch: no cycle
        self.met.append(weakref.ref(place, lambda _: dead.setdefault(number, len(events) + len(inside))))
        if type(x.node) is Leaf and id(x) not in self.known:
            self.leaves.append(weakref.ref(x))
            self.know(len(self.leaves) - 1, x)
        if self.capture is not None and self.capture.open and not self.capture.owns(place):
            self.externals[number] = place, x.storage, weakref.ref(x if x.base is None else x.base)
            known = self.capture.later or number < len(self.expected.met) and self.expected.met[number]() is place
            if not known:
                self.moved = True
                self.blocked("memory that an earlier call made; pass it as an argument, or write one tensor in place")

    # -------------------------------------------------------------- what the layers below ask for and tell
    def blocked(self, what):
        """`what` cannot be part of a graph: the call goes on eagerly, after all that was recorded of it has been queued."""
        code, instruction, name = self.origin()
        place = places.place(code, instruction)
        why = f"{what} at {place}" if name is None else f"{name} at {place} ({what})"
        self.why = self.why or why
        self.flush()
        if self.capture is not None:
            if self.capture.later:
                raise Refused(why)
            with self.unseen():
                self.capture.play()
        if self.owner.fullgraph and not (self.moved and self.lenient):
            raise Unsupported(f"compile: expected a function that can be captured as a whole with fullgraph=True, got {why}")

    def origin(self):
        """The user's line, as code and instruction, and what it called."""
        frame, name = sys._getframe(2), None
        while places.inside[frame.f_code.co_filename] and frame.f_back is not None:
            called = frame.f_code.co_name
            if called[0] not in "_<" and called != "wrapped" and not frame.f_globals["__name__"].startswith(PASSAGES):
                name = called
            frame = frame.f_back
        return frame.f_code, frame.f_lasti, name or self.operator

    def note(self, text):
        """Something that the report shall say."""
        self.owner.notes[text] = None

    def rate(self, group, like):
        """The learning rate of a group as a tensor on the device, set anew before every call."""
        key = id(group)
        found = self.owner.rates.get(key)
        if found is None and self.capture is not None:
            self.blocked("a parameter group that is new")
        with self.unseen():
            if found is None:
                found = self.owner.rates[key] = Rate(group, like)
            if self.capture is None or not self.capture.open:
                found.refresh()
            elif found.refresh not in self.capture.graph.hooks:
                self.capture.graph.before_replay(found.refresh)
        self.groups[id(group)] = group
        return found.tensor

    def as_graph(self):
        """What a generator takes for the graph in a warm-up call, so that it starts the kernels that will be captured."""
        return self if self.capture is None and self.why is None else None

    def before_replay(self, hook):
        self.hooks.append(hook)
        with self.unseen():
            hook.place(hook.generator._seed, hook.generator._offset)

    def keep(self, block):
        allocator.record_use(block, self.index, current_handle(self.index))

    # -------------------------------------------------------------- the trace as a whole
    def conclude(self, result, host_drew, gave_gradients, changed):
        """The call is over: `result` is what it returned, the rest what only a look at all of it shows."""
        found, self.form = flatten(result)
        odd = [type(x).__name__ for x in found if not isinstance(x, Tensor) and x.__class__ not in CONSTANTS]
        self.result = [x.requires_grad if isinstance(x, Tensor) else x for x in found]
        self.returned = {self.numbers.get(home(x)) for x in found if isinstance(x, Tensor)}
        self.differentiable = not self.backward and any(isinstance(x, Tensor) and x.requires_grad for x in found)
        for bad, why in [(host_drew, HOST),
                         (odd, f"a result of type {''.join(odd[:1])}"),
                         (gave_gradients, "the gradient of an argument, which would go to a copy of it"),
                         (changed, "a change of a list, a dict or another container that is an argument"),
                         (any(isinstance(x, Tensor) and not x.is_cuda for x in found), "a result on the CPU"),
                         (not self.events, "a call without work on a CUDA device")]:
            self.why = self.why or (why if bad else None)
        if self.capture is not None and self.why is None:
            self.why = self.difference(self.expected)
            self.moved = self.why is not None

    def copy_back(self, given):
        """What was written to copies of arguments goes to the arguments."""
        for k in sorted(n[1] for n in self.written if n.__class__ is tuple and n[0] == "input"):
            given[k].detach().copy_(self.inputs[k].detach())

    def rest(self):
        """Keep what later calls are compared with, and nothing that a call should not keep alive."""
        self.ran = [weakref.ref(m) for m in self.modules.values()]
        self.inputs, self.known, self.owner, self.expected, self.modules, self.optimizers, self.groups = [], {}, None, None, {}, {}, {}
        self.plan = None

    def difference(self, other):
        """Where two calls did not do the same: a sentence, or None."""
        for mine, theirs, line in zip(self.events, other.events, self.lines):
            if mine != theirs:
                return f"{mine[0]} at {places.place(*line)} (another call had {_contrast(mine, theirs)})"
        if len(self.events) != len(other.events):
            longer, k = max(self, other, key=lambda watch: len(watch.events)), min(len(self.events), len(other.events))
            return f"{longer.events[k][0]} at {places.place(*longer.lines[k])} (not in every call)"
        same = (self.result, self.form) == (other.result, other.form)
        return None if same else "the result (another call returned other values that are not tensors)"


class Rate:
    """A learning rate in device memory that follows the number in a parameter group, as exact as that."""

    def __init__(self, group, like):
        self.group, self.value = group, None
        self.tensor = full((), 0.0, dtype=float64, device=like.device)

    def refresh(self):
        lr = self.group["lr"]
        if isinstance(lr, Tensor) and lr.is_cuda:
            self.tensor.copy_(lr)
            self.value = None
        elif (lr := float(lr)) != self.value:
            self.value = lr
            self.tensor.fill_(lr)


def home(x):
    """What stands for the memory of a tensor, whichever of its Storages the tensor has."""
    owner = x.storage.owner
    return owner if isinstance(owner, allocator.Owner) else x.storage


def counts(optimizer):
    """The numbers in the state of an optimizer, by parameter and name."""
    return {(id(p), key): x for p, entry in optimizer.state.items() for key, x in entry.items() if type(x) in (int, float, bool)}


def tensors_in(tree):
    """The tensors in nested lists and tuples."""
    for item in tree:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors_in(item)


def _contrast(mine, theirs):
    if mine[0] != theirs[0]:
        return theirs[0]
    for a, b in zip(mine[1], theirs[1]):
        if a != b:
            return "other tensors" if isinstance(a, tuple) else f"{b!r} where this one has {a!r}"
    return "another result"
