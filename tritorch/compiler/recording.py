"""A recording: one captured call of a compiled function, what must hold so that a replay does what the call would do, and the replay."""
from __future__ import annotations

import itertools
import weakref
from operator import attrgetter, is_, itemgetter

from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad, state
from tritorch.compiler.checks import Checks, unchanged
from tritorch.compiler.containers import flatten
from tritorch.compiler.left import Left, moved_out
from tritorch.compiler.reads import RUN, hooks_in, leaf_hooks
from tritorch.compiler.report import operators
from tritorch.compiler.watch import home
from tritorch.cuda import driver
from tritorch.cuda.stream import current_handle, current_stream
from tritorch.nn.hooks import everywhere
from tritorch.optim.optimizer import step_hooks
from tritorch.shape import is_dense, layout
from tritorch.storage import device_storage, next_seq, streams
from tritorch.tensor import Tensor, empty_like, empty_strided, strided, swaps

_grad, FREE, SOME, KEPT = attrgetter("_grad"), object(), object(), object()    # a gradient that may be anything before, or not None; stays
_asked = itertools.count(1).__next__


class Recording:
    """`watch` saw the captured call, `before` are the gradients that the parameters `watch.known` had before it, `result` is what it
    returned, `reads` what Python read, `places` what it assigned. `inputs` is the memory that the graph reads arguments from."""

    def __init__(self, owner, watch, before, result, reads, places):
        self.reads, self.left = reads, Left(places, watch.inputs) if places else None
        self.graph, self.index, self.order, self.inputs, self.moved = watch.capture.graph, watch.index, owner.order, watch.inputs, False
        self.kept = [storage for _, storage, _ in watch.externals.values()]            # what the graph touches must live as long as it
        self.landings = [(x.data_ptr(), x.nbytes, x.itemsize, None) if is_dense(x.shape, x.strides) else (0, 0, 0, x) for x in self.inputs]
        self.driver, self.operators, self.number = driver.current(), operators(watch.events), self.order.enter(self)
        self.fused = watch.plan.replaced() if watch.plan is not None else []
        self.copies = [kept.copies for kept in watch.plan.kept if kept.copies is not None] if watch.plan is not None else []
        self.replaced = [match.pattern for match in self.fused]
        self._note_gradients(watch, before)
        self._note_program(watch)
        self._note_result(watch, result)
        self.written = sorted(n[1] for n in watch.written if n.__class__ is tuple and n[0] == "input")
        self.places = {storage.ptr for n, (_, storage, _) in watch.externals.items() if self.written or n in watch.written}

    used = False                                                         # whether it was ever replayed

    # -------------------------------------------------------------- what was so when it was captured
    def _note_gradients(self, watch, before):
        """What every parameter's gradient must be before a replay (None, FREE or its memory), and is after it."""
        self.leaves, self.needs, self.after = list(watch.known.values()), [], []
        looked = {id(ref()) for k, ref in enumerate(watch.leaves) if k in watch.looked}
        for leaf in self.leaves:
            old, new = before.get(id(leaf)), leaf._grad
            blind = old is not None or not (watch.backward or watch.optimizers)          # nobody asked whether there was one
            asked = old is not None and "grad" in self.reads.attributes
            self.needs.append(home(old) if id(leaf) in looked else SOME if asked else FREE if blind else None)
            self.after.append(KEPT if old is new is not None else new)
        self.changed = [(leaf, g) for leaf, g in zip(self.leaves, self.after) if g is not KEPT and g is not before.get(id(leaf))]
        self.settled = [leaf._grad for leaf in self.leaves]
        self.steady, self.looks = all(map(self._admits, self.needs, self.settled)), (0, 0)
        self.written_leaves = [leaf.storage for leaf in self.leaves if watch.numbers.get(home(leaf)) in watch.written]

    def _admits(self, need, g):
        return need is FREE or (g is None if need is None else g is not None and (need is SOME or home(g) is need))

    def _note_program(self, watch):
        """The modules, optimizers and parameters that Python would look at."""
        self.swaps = swaps[0]
        self.roots = [(ref, place, ref().requires_grad) for place, _, ref in watch.externals.values() if ref() is not None]
        modules = {id(m): m for module in (*watch.modules.values(), *self.reads.modules) for m in module.modules()}
        members = [x for m in modules.values() for x in (*m._parameters.values(), *m._buffers.values()) if x is not None]
        named = {id(x): x for x in (*members, *[ref() for ref in self.reads.tensors]) if x is not None}
        self.roots += [(weakref.ref(x), home(x), x.requires_grad) for x in named.values()]
        self.nodes = [(x, x.node) for x in (*self.leaves, *[p for m in modules.values() for p in m._parameters.values() if p is not None])]
        self.replaced_buffers = self.left.buffers() if self.left is not None else {}
        self.modules = [(m, self._members(m)) for m in modules.values()]
        self.optimizers = [*watch.optimizers.values()]
        state = [x for o in watch.optimizers.values() for entry in o.state.values() for x in entry.values() if isinstance(x, Tensor)]
        self.gone: list = []                                             # tensors of the state in the place of which there is another
        self.state = [weakref.ref(x, self.gone.append) for x in state]
        self.hooks = self._hooks()
        self.optimizers_hold, self.reads_hold = self._checks(watch), unchanged(self.reads, self.reads.quick)

    def _checks(self, watch):
        """A function that says whether the optimizers are what they were: their groups, and of their state the first entry and the last:
        what is deleted and made anew comes last, and costs no look at all of them."""
        checks = Checks()
        for optimizer in self.optimizers:
            o, known = checks.name(optimizer), checks.name(optimizer.state)
            checks.same(f"{o}.state", optimizer.state)
            checks.terms.append(f"len({known}) == {len(optimizer.state)}")
            checks.terms.append(f"len({o}.param_groups) == {len(optimizer.param_groups)}")
            for way, entry in zip(("iter", "reversed"), [*optimizer.state.values()][::max(len(optimizer.state) - 1, 1)]):
                checks.same(f"next({way}({known}.values()))", entry)
                checks.terms.append(f"len({checks.name(entry)}) == {len(entry)}")
                for key, value in entry.items():
                    checks.same(f"{checks.name(entry)}[{checks.name(key)}]", value)
            for k, group in enumerate(optimizer.param_groups):
                checks.same(f"{o}.param_groups[{k}]", group)
                self._check_group(checks, group, id(group) in watch.groups)
        return checks.function()

    def _check_group(self, checks, group, followed):
        """Numbers and others, tensors, parameters. A rate that is `followed` may change."""
        g, params = checks.name(group), group["params"]
        skip = {"params", "lr", "initial_lr"} if followed and not self.reads.rates else {"params", "initial_lr"}
        names = [n for n, v in group.items() if n not in skip and not isinstance(v, Tensor)]
        options = itemgetter(*names) if names else tuple                 # where all are tensors: what they are called
        checks.terms.append(f"{checks.name(options)}({g}) == {checks.name(options(group))}")
        for n in [n for n, v in group.items() if n not in skip and isinstance(v, Tensor)]:
            checks.same(f"{g}[{n!r}]", group[n])
        checks.same(f"{g}['params']", params)
        checks.terms.append(f"len({checks.name(params)}) == {len(params)}")
        for k in [0, -1] if params else ():
            checks.same(f"{checks.name(params)}[{k}]", params[k])

    def _members(self, module):
        """What a module is, and who its members are, but for buffers that the call replaces."""
        replaced = self.replaced_buffers.get(id(module), ())
        buffers = [x for name, x in module._buffers.items() if name not in replaced] if replaced else module._buffers.values()
        return [module.__class__, *module._parameters.values(), *buffers, *module._modules.values()]

    def _hooks(self):
        """The user's functions that modules, steps of optimizers and gradients of leaves call."""
        found = [getattr(owner, name) for owner in (everywhere, *[m for m, _ in self.modules]) for name in RUN]
        return hooks_in([*found, *step_hooks(self.optimizers), *leaf_hooks(self.leaves)])

    def _note_result(self, watch, result):
        """How to make each part of the result: a copy of memory of the graph, an argument itself, or the same object every time."""
        (leaves, self.form), self.parts, ours = flatten(result), [], {id(x): k for k, x in enumerate(self.inputs)}
        for x in leaves:
            if not isinstance(x, Tensor) or id(x) in ours:
                self.parts.append((None, x) if id(x) not in ours else (ours[id(x)], None))
            elif watch.capture.owns(home(x)) or any(x.storage is mine.storage for mine in self.inputs):
                static = x.detach()
                static._inference = x._inference
                self.parts.append((-1, static))
            else:
                self.parts.append((None, x))
        self.statics = [x for k, x in self.parts if k == -1]
        self.single = isinstance(result, Tensor) and self.parts[0][0] == -1

    # -------------------------------------------------------------- before a replay
    def holds(self):
        """Whether Python would do now what it did when this was captured."""
        if swaps[0] != self.swaps:
            if not self._unchanged():
                return False
            self.swaps = swaps[0]
        if self.gone:
            return False
        if not self.optimizers_hold() or not self.reads_hold() and self.reads.changed(self.reads.quick):
            return False
        if self.steady and swaps[1] == self.gradients:                   # as the last replay of this recording left them
            self.moved = False
            return True
        self.moved = not all(map(is_, map(_grad, self.leaves), self.settled))
        return self.steady and not self.moved or all(map(self._admits, self.needs, map(_grad, self.leaves)))

    def _unchanged(self):
        """The longer look at what hardly ever changes."""
        for ref, place, tracked in self.roots:
            x = ref()
            if x is not None and (home(x) is not place or x.requires_grad != tracked):
                return False
        if any(x.node is not node for x, node in self.nodes):            # frozen since, or no longer
            return False
        if any(len(now := self._members(m)) != len(known) or not all(map(is_, now, known)) for m, known in self.modules):
            return False
        hooks = self._hooks()
        return len(hooks) == len(self.hooks) and all(map(is_, hooks, self.hooks)) and not self.reads.changed(self.reads.slow)

    # -------------------------------------------------------------- the replay
    def __call__(self, given, play=None):
        """A call. `play(given)` runs it in the place of a replay."""
        rooms = [*map(self.room, self.statics)]                          # before it: where they do not fit, nothing has run
        (play or self.play)(given)
        return self.deliver(given, rooms)

    def play(self, given):
        """Bring the arguments to where the graph reads them, and run it."""
        index, copy = self.index, self.driver.copy
        self.used, stream = True, current_handle(index) if streams.used else 0
        self.order.follow(index, stream)
        if self.order.latest != self.number:
            self.order.turn(self)
        for x, (pointer, nbytes, itemsize, mine) in zip(given, self.landings):
            if nbytes:
                copy(pointer, x.storage.ptr + x.offset * itemsize, nbytes, "d2d", stream)
            elif mine is not None:
                _land(mine, x)
        self.graph.queue(stream)
        for k in self.written:
            given[k].detach().copy_(self.inputs[k].detach())

    def deliver(self, given, rooms):
        """The result, in `rooms`."""
        self.settle(given)
        made = self.filled(rooms)
        if self.single:
            return made[0]
        made = iter(made)
        return self.form.unflatten([next(made) if k == -1 else x if k is None else given[k] for k, x in self.parts])

    def meets(self, given):
        """Whether a replay would overwrite what is still needed: an argument lies in memory that it writes, or reads while it writes
        arguments, which a copy would not show."""
        places = self.places
        for x in given:
            if x.storage.ptr in places:
                return True
        return bool(self.written) and len({x.storage.ptr for x in given}) < len(given)

    def settle(self, given, made=()):
        """Leave everything as Python would have."""
        if self.left is not None:
            self.left.put(given, made)
        if self.moved and self.changed:
            swaps[1] += 1
            for leaf, g in self.changed:
                leaf._grad = g
        self.gradients = swaps[1]
        looks = next_seq() - _asked()                                    # each recorded node and each look at a version is one
        if looks != self.looks[0]:                                       # else nobody could tell another version: 25 µs less for 1000
            for storage in self.written_leaves:
                storage.version += 1
        for copies in self.copies:
            copies.note()
        self.looks = self.looks[1], looks                                # a thread may take its number before the replay, and look after it

    def save(self, other, private):
        """Have copies of what was left in memory of the graphs' pool, before `other` is replayed, which may write there."""
        if self.left is not None:
            self.left.save(other.left, private)
        for leaf, g in self.changed:
            if leaf._grad is g is not None and (copy := moved_out(g, private)) is not g:
                leaf._grad = copy
                swaps[1] += 1

    def versions(self):
        """Changes when a parameter is written."""
        return sum([leaf.storage.version for leaf in self.leaves])

    def room(self, static):
        """Memory for a result of the caller's own, and how `filled` copies it there."""
        shape, strides, dtype = static.shape, static.strides, static.dtype
        _, usual, count = layout(shape)
        if strides == usual or is_dense(shape, strides):                 # as empty_like and copy_, without what they look at
            memory, itemsize = static.storage, dtype.itemsize
            nbytes = count * itemsize
            fresh = device_storage(nbytes, memory.device)
            room = strided(fresh, shape, strides, 0, dtype), fresh.ptr, memory.ptr + static.offset * itemsize, nbytes, None
        else:
            room = empty_like(static), 0, 0, 0, static
        if static._inference:
            room[0]._inference = True
        return room

    def filled(self, rooms):
        """The results."""
        made, copy, stream = [], self.driver.copy, current_handle(self.index) if streams.used else 0
        for out, pointer, source, nbytes, static in rooms:
            if static is None:
                copy(pointer, source, nbytes, "d2d", stream)
            else:
                out.copy_(static)
            made.append(out)
        return made


class Landing(Function):
    """An argument that requires grad, and its copy."""

    @staticmethod
    def forward(ctx, x):
        return landing(x.detach())

    @staticmethod
    def backward(ctx, g):
        return g


def landing(x):
    """A copy of an argument, of the same layout and with its place in the gradient graph."""
    if x.requires_grad and state.grad:
        return Landing.apply(x)
    out = strided(empty_strided(_distinct(x), x.strides, x.dtype, x.device).storage, x.shape, x.strides, 0, x.dtype)
    _land(out, x)
    out._inference = x._inference
    return out.requires_grad_(x.requires_grad)


def _distinct(x):
    """The shape of what has memory of its own: one element of what is expanded."""
    return tuple([n if step else 1 for n, step in zip(x.shape, x.strides)])


def _land(mine, x):
    shape = _distinct(x)
    with no_grad():
        strided(mine.storage, shape, mine.strides, 0, mine.dtype).copy_(strided(x.storage, shape, x.strides, x.offset, x.dtype))


class Order:
    """Replays of graphs that share memory run one after the other, on whichever streams they are queued."""

    def __init__(self):
        self.stream, self.count, self.latest, self.leaving = None, 0, None, weakref.WeakSet()

    def enter(self, recording):
        """Its number."""
        self.count += 1
        self.latest = self.count
        self.leaving.add(recording)
        return self.count

    def turn(self, recording):
        """Another recording comes: it writes to memory that it no longer needed when later ones were captured."""
        private = recording.graph.private
        for other in [*self.leaving]:
            if other.number > recording.number and other.graph.private is private:
                other.save(recording, private)
        self.latest = recording.number                                   # last: where a copy does not fit, the next call saves the rest

    def follow(self, index, handle):
        """What is queued from now on on the current stream, which has this handle, comes after the replays so far."""
        if self.stream is None or self.stream.handle != handle:
            stream = current_stream(index)
            if self.stream is not None:
                stream.wait_stream(self.stream)
            self.stream = stream
