"""The operators that a call runs, in order: each a `Node` whose arguments are numbers and `Value`s, what tensors hold at one time.

The program really runs, so whatever Python does on the way is followed. Writes in place become new values: who reads the memory later,
by whatever view, gets what is there then. Memory is told by its storage, so that tensors which no operator made (`detach()`, `x.data`)
are known.
"""
import contextlib

from tritorch.autograd import modes, places
from tritorch.autograd.modes import state
from tritorch.cuda.watching import watched
from tritorch.dispatch import Interpreter
from tritorch.errors import sentence
from tritorch.shape import layout
from tritorch.tensor import Tensor, empty, strided

CHANCE = frozenset(["random_race", "draw_one"])                          # besides the operators that have a seed
BACK = {"view_as_shape", "permute_dims", "transpose", "squeeze_dims", "unsqueeze", "select",
        "slice_dim"}    # views that can be written through


class Untraceable(RuntimeError):
    """The call does something that no graph of its operators can hold."""


class Looked(Untraceable):
    """Python looked at elements."""


class NoRule(Untraceable):
    """An operator that nobody can write, with its name and where it is called."""


class Custom:
    """An operator of tritorch.library in a trace."""

    names, impls = (), True

    def __init__(self, name):
        self.__name__ = name


class Value:
    """What a tensor holds. `node` made it as its output `index`; without one it is an input of the call or a constant, of this `name` if
    it is a parameter or buffer. `tensor` has its shape and dtype, and its elements if the value `depends` on no input."""

    __slots__ = ("number", "node", "index", "tensor", "name", "depends", "weighs", "shape", "same", "elements")

    def __init__(self, number, tensor, node=None, index=0, name=None, depends=False, weighs=False):
        self.number, self.node, self.index, self.tensor, self.name = number, node, index, tensor, name
        self.depends = depends                                           # whether an input has a part in it,
        self.weighs = weighs                                             # whether a named parameter or buffer, or chance
        self.shape, self.same, self.elements = tensor.shape, True, None  # until calls of other sizes are compared

    dtype = property(lambda self: self.tensor.dtype)
    ndim = property(lambda self: len(self.tensor.shape))


class Node:
    """A call of an operator: `back` if it brings what was written to a view (the second argument) back to what it shows (the first).
    `into`: what its destinations held, where the tracer asks. `facts` are those of a subclass of the tracer."""

    __slots__ = ("op", "args", "outs", "place", "back", "into", "facts")

    def __init__(self, op, args, place, back=False):
        self.op, self.args, self.place, self.back, self.outs, self.into, self.facts = op, args, place, back, (), (), None

    @property
    def name(self):
        return self.op.__name__

    @property
    def chance(self):
        """Whether it draws random numbers."""
        return draws(self.op, self.args)

    def where(self):
        """file:line of the call."""
        return places.place(*self.place)


def draws(op, args):
    """Whether a call draws random numbers: where it drops with a chance p that is a number, if that is not 0."""
    if "seed" not in op.names:
        return op.__name__ in CHANCE
    p = args[op.names.index("p")] if "p" in op.names else 1
    return isinstance(p, Tensor) or p != 0


class Memory:
    """Storage as the call knows it: what is there by layout, which views were made of it, and what was there once."""

    def __init__(self, owner):
        self.owner, self.values, self.views, self.past, self.written = owner, {}, {}, [], False

    def seen(self, storage, key):
        """What is there now, in a layout."""
        offset, shape, strides, dtype = key
        return strided(storage, shape, strides, offset, dtype)


def layout_of(x):
    """Offset, shape, strides and dtype, alike for all tensors that show the same elements."""
    steps = (0,) * len(x.shape) if 0 in x.shape else tuple([s if n > 1 else 0 for n, s in zip(x.shape, x.strides)])
    return x.offset, tuple(x.shape), steps, x.dtype


def home(x):
    """What two tensors with the same memory have in common."""
    return x.storage if x.storage.owner is None else x.storage.owner


class Tracer(Interpreter):
    """Notes the operators of this thread inside `with tracer.tracing():`.

    `named` are pairs (name, parameter or buffer), `inputs` the tensors that the graph gets. `instead(op)` gives, for an operator of
    which others are to be noted, the function that calls them; `wholes` are the operators of tritorch.library that are nodes. Afterwards:
    `nodes`, and `value(x)` is the value of a tensor that the call returned.
    """

    def __init__(self, named, inputs, instead=lambda op: None, wholes=()):
        self.nodes, self.values, self.memory, self.instead, self.wholes = [], [], {}, instead, wholes
        self.names = {}
        for name, x in named:
            self.names.setdefault((id(home(x)), layout_of(x)), name)
        self.owned = {place for place, _ in self.names}
        self.inputs = [self.entered(x) for x in inputs]

    def entered(self, x):
        value = self.made(x, depends=True)
        self.home(x).values[layout_of(x)] = value
        return value

    def made(self, tensor, **facts):
        value = Value(len(self.values), tensor, **facts)
        self.values.append(value)
        return value

    @contextlib.contextmanager
    def tracing(self):
        """Below all other interpreters, so that what autocast makes of a call is seen."""
        holder, name = state, "interpreter"
        while getattr(holder, name) is not None:
            holder, name = getattr(holder, name), "outer"
        modes.interpreted = True
        setattr(holder, name, self)
        watched.tracer = self
        try:
            yield self
        finally:
            setattr(holder, name, None)
            watched.tracer = None

    # -------------------------------------------------------------- what tensors hold
    def home(self, x):
        owner = home(x)
        found = self.memory.get(id(owner))
        if found is None:
            found = self.memory[id(owner)] = Memory(owner)               # it keeps the owner, so that the number stays its own
        return found

    def value(self, x):
        """What x holds now."""
        return self.at(self.home(x), layout_of(x), x)

    def at(self, memory, key, x):
        found = memory.values.get(key)
        if found is None and key in memory.views:                        # a view of what was written since
            source, node = memory.views[key]
            found = self.note(Node(node.op, (self.at(memory, source, x), *node.args[1:]), node.place),
                              [memory.seen(x.storage, key)])[0]
        elif found is None:
            if memory.written or any(v.depends for v in memory.values.values()):
                raise Untraceable(sentence("export", "views made by operators",
                                           f"memory of the call read in another layout, {x.shape} with "
                                           f"strides {x.strides}", use="reshape or clone"))
            place = id(memory.owner)
            found = self.made(memory.seen(x.storage, key), name=self.names.get((place, key)), weighs=place in self.owned)
        memory.values[key] = found
        memory.past.append(found)
        return found

    def note(self, node, tensors):
        """A node and the values it makes."""
        given = [v for arg in node.args for v in (arg if isinstance(arg, tuple) else (arg,)) if isinstance(v, Value)]
        depends, weighs = any(v.depends for v in given), node.chance or any(v.weighs for v in given)
        node.outs = tuple([self.made(x, node=node, index=k, depends=depends, weighs=weighs) for k, x in enumerate(tensors)])
        self.nodes.append(node)
        return node.outs

    # -------------------------------------------------------------- calls
    def __call__(self, op, args, out):
        body = None if draws(op, args) else self.instead(op)
        if body is not None:
            with self.again():
                made = body(*args)
                return made if out is None else out.copy_(made)
        place = places.user_place(3)
        if out is not None:
            return self.write(op, args, out, place)
        node = Node(op, self.arguments(op, args), place)
        with self.unseen():
            made = self.proceed(op, args, None)
        if not op.impls and isinstance(args[0], Tensor):
            memory, key = self.home(made), layout_of(made)
            if key not in memory.values:                                 # else it is a way back to what is known
                memory.views.setdefault(key, (layout_of(args[0]), node))
        return self.hold(node, made)

    def hold(self, node, made):
        """What a node made, and where it is."""
        tensors = made if isinstance(made, (tuple, list)) else (made,)
        for x, value in zip(tensors, self.note(node, [x.detach() for x in tensors])):
            memory = self.home(x)
            memory.values[layout_of(x)] = value
            memory.past.append(value)
        return made

    def noted(self, op, args, call):
        """What `call()` makes, as one node of something that is no operator of the dispatcher: it has `__name__`, `names` and `impls`."""
        place = places.user_place(3)
        node = Node(op, tuple([self.given(a) for a in args]), place)
        before, state.interpreter = state.interpreter, self.outer
        try:
            with self.unseen():
                made = call()
        finally:
            state.interpreter = before
        return self.hold(node, made)

    def whole(self, operator, given, named, call):
        """A call of an operator of tritorch.library: one node if it has a rule, else what it is made of."""
        name = operator.name().removesuffix(".default")
        if name in self.wholes:
            if operator._mutates:
                raise Untraceable(sentence("export", "operators that write to no argument",
                                           f"{name} at {places.place(*places.user_place(3))}"))
            return self.noted(Custom(name), (*given, *named.values()), call)
        try:
            return call()
        except Looked as error:
            raise NoRule(name, places.place(*places.user_place(3))) from error

    def arguments(self, op, args):
        """What a node has for the arguments of a call."""
        return tuple([self.given(a) for a in args])

    def given(self, arg):
        if isinstance(arg, Tensor):
            return self.value(arg)
        return tuple([self.given(a) for a in arg]) if isinstance(arg, (tuple, list)) else arg

    @contextlib.contextmanager
    def again(self):
        """The operators inside are seen, too."""
        outer, state.interpreter = state.interpreter, self
        try:
            yield
        finally:
            state.interpreter = outer

    @contextlib.contextmanager
    def unseen(self):
        """An implementation may read whatever it likes."""
        watched.tracer = None
        try:
            yield
        finally:
            watched.tracer = self

    def write(self, op, args, out, place):
        """A call with a destination: its memory holds something new, and so do all views of it."""
        outs = out if isinstance(out, (tuple, list)) else (out,)
        for x in outs:
            if id(home(x)) in self.owned:
                name = next(n for (owner, _), n in self.names.items() if owner == id(home(x)))
                self.owned_written(x, name, op, place)
        node = Node(op, self.arguments(op, args), place)
        node.into = self.destinations(outs)
        chains = [self.chain(x, self.home(x), layout_of(x)) for x in outs]
        for x in outs:
            self.protect(self.home(x))
        with self.unseen():
            made = self.proceed(op, args, out)
        for x, chain, value in zip(outs, chains, self.note(node, [x.detach() for x in outs])):
            memory, key = self.home(x), layout_of(x)
            if not chain and any(k != key for k in memory.values if k not in memory.views):
                raise Untraceable(sentence("export", "views made by operators", f"{op.__name__} at {node.where()} writing to another"))
            memory.values, memory.written = {key: value}, True
            memory.past.append(value)
            for key, old, view in chain:
                value = self.brought_back(view, old, value, memory.seen(x.storage, key), place)
                memory.values[key] = value
                memory.past.append(value)
        return made

    def owned_written(self, x, name, op, place):
        """Memory of a parameter or buffer is about to be written."""
        raise Untraceable(sentence("export", "a call that leaves parameters and buffers alone",
                                   f"{op.__name__} at {places.place(*place)} writing to {name!r}", use="model.eval()"))

    def destinations(self, outs):
        """What is known of destinations before they are written."""
        return ()

    def brought_back(self, view, old, part, whole, place):
        """What a view shows, after the view was written."""
        if view.name in BACK:
            return self.note(Node(view.op, (old, part, *view.args[1:]), place, back=True), [whole])[0]
        if old.depends or part.depends or old.weighs or part.weighs:
            raise Untraceable(sentence("export", "a write that is followed through views", f"{view.name} at {view.where()}", use="clone"))
        return self.made(whole)                                          # constants are what they are

    def chain(self, x, memory, key):
        """[layout, value and view of what a view shows, up to the memory as a whole]."""
        found = []
        while key in memory.views:
            source, node = memory.views[key]
            found.append((source, self.at(memory, source, x), node))
            key = source
        return found

    def protect(self, memory):
        """Before memory is written: what was there stays with the values that need it."""
        with self.unseen():
            for value in memory.past:
                if not value.depends:
                    value.tensor = copied(value.tensor)
        memory.past = []

    def applied(self, function):
        """A Function of autograd is called: what its backward does no operator shows."""

    def unset(self, x):
        """Memory that nobody has set: zeros, so that it is the same in every call."""
        x.detach().fill_(0)

    def read(self, x):
        """Python looks at the elements of a tensor."""
        if self.value(x).depends:
            line = places.place(*places.user_place(3))
            raise Looked(sentence("export", "a program that does not look at elements of what depends on its inputs",
                                       f"a look at {line}, where later calls may see others", use="operators (where, masks)"))


def copied(x):
    """The elements in memory of their own."""
    out = empty(layout(x.shape)[0], x.dtype, x.device)
    out.copy_(x)
    return out
