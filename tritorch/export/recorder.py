"""What `export` notes of a call besides its operators: what autograd is told, chance, what is written to buffers and inputs, and in which
module a call is."""
import contextlib
import sys
import warnings
from dataclasses import dataclass

from tritorch.autograd import places
from tritorch.autograd.modes import no_grad, state
from tritorch.cuda.watching import watched
from tritorch.errors import sentence
from tritorch.generator import Generator, default_generator
from tritorch.nn.module import Module
from tritorch.ops import view
from tritorch.tensor import Tensor
from tritorch.tracing.tracer import Custom, Node, Tracer, Untraceable, copied, home, layout_of


class Pseudo:
    """What is no operator of the dispatcher, but a node."""

    impls = True

    def __init__(self, name, names):
        self.__name__, self.names = name, names


VIEWS = view.__file__
DETACH, DRAW = Pseudo("detach", ("input",)), Pseudo("draw", ("device", "counters"))


@dataclass(frozen=True)
class Drawn:
    """In the arguments of a node: the seed (part 0), the offset and so much more (1), or the device's record (2) of a draw, by number."""

    number: int
    part: int
    more: int = 0


class Whole(Custom):
    """A call of an operator of tritorch.library: `operator` with this many arguments by position, others by these names."""

    def __init__(self, operator, count, named):
        super().__init__(operator.name())
        self.operator, self.count, self.named = operator, count, named


class Recorder(Tracer):
    """A tracer of a module. A node's `facts` are (whether autograd looks, the paths of the modules it is in, whether it is a reshape);
    `draws` are its nodes of chance. `buffers` are the names that may be written."""

    def __init__(self, named, inputs, modules, buffers):
        super().__init__(named, inputs)
        self.modules, self.buffers, self.draws, self.cut, self.detached, self.saved = modules, buffers, [], {}, {}, {}
        self.functions = set()

    @contextlib.contextmanager
    def tracing(self):
        """As a tracer's; `detach()`, `data` and what generators give, which are no operators, are seen, and what is written to is as before
        afterwards."""
        detach, data, take = Tensor.detach, Tensor.data, Generator.take

        def seen(made):
            if watched.tracer is self and made.dtype.has_gradients:      # not in another thread
                self.cut[id(made)] = made
            return made

        def taken(generator, counters):
            seed, offset, base = take(generator, counters)
            if watched.tracer is self:
                self.drawn(generator, counters, seed, offset)
            return seed, offset, base

        Generator.take = taken                                           # to ask in there would cost every draw
        Tensor.detach = lambda x: seen(detach(x))
        Tensor.data = property(lambda x: seen(data.fget(x)), data.fset)
        try:
            with super().tracing():
                yield self
        finally:
            Tensor.detach, Tensor.data, Generator.take = detach, data, take
            with no_grad():
                for x, was in self.saved.values():
                    x.copy_(was)

    # -------------------------------------------------------------- what nodes get
    def note(self, node, tensors):
        node.facts = state.grad, self.path(), node.name == "view_as_shape" and not node.back and self.may_copy()
        return super().note(node, tensors)

    @staticmethod
    def may_copy():
        """Whether a view is one of `reshape`, which copies tensors of other strides than those that it has here. Between the two there
        is what doors go through, and what asks subclasses of tensors."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != VIEWS:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_name == "reshape"

    def path(self):
        """The modules whose forward is running, from the outermost on."""
        frame, found = sys._getframe(2), []
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward" and code.co_argcount and isinstance(owner := frame.f_locals.get(code.co_varnames[0]), Module):
                path = self.modules.get(id(owner))
                if path is not None and path not in found:
                    found.append(path)
            frame = frame.f_back
        return tuple(reversed(found))

    def given(self, arg):
        if isinstance(arg, Tensor) and id(arg) in self.cut:
            return self.without_history(self.value(arg))
        return super().given(arg)

    def without_history(self, value):
        """What `detach()` makes of a value."""
        if value not in self.detached:
            node = Node(DETACH, (value,), places.user_place(3))
            self.detached[value] = self.note(node, [value.tensor])[0]
        return self.detached[value]

    def brought_back(self, view, old, part, whole, place):
        """Graphs that write in place need no way back from a view, so any will do."""
        return self.note(Node(view.op, (old, part, *view.args[1:]), place, back=True), [whole])[0]

    def destinations(self, outs):
        found = []
        for x in outs:
            memory, key = self.memory.get(id(home(x))), layout_of(x)
            known = memory is not None and (key in memory.values or key in memory.views) or id(home(x)) in self.owned
            found.append((self.value(x), id(x) in self.cut) if known else None)
        return tuple(found)

    # -------------------------------------------------------------- chance
    def drawn(self, generator, counters, seed, offset):
        """A generator gave a call these counters."""
        if generator is not default_generator(generator.device):
            line = places.place(*places.user_place(3))
            raise Untraceable(sentence("export", "chance of the default generator", f"a generator of its own at {line}"))
        node = Node(DRAW, (generator.device, counters), places.user_place(3))
        self.note(node, [])
        self.draws.append((node, seed, offset, counters))

    def arguments(self, op, args):
        if self.draws and ("seed" in op.names or "dropout" in op.names):
            args = [self.chance(op, name, arg, args) for name, arg in zip(op.names, args)]
        return super().arguments(op, args)

    def chance(self, op, name, arg, args):
        """An argument, with the draw that it is of in the place of numbers."""
        if name == "dropout":
            found = self.draw_of(*arg[1:])
            return arg if found is None or not arg[0] else (arg[0], *found[:2])
        seed, offset = [args[op.names.index(n)] if n in op.names else args[op.names.index("dropout")][k]
                        for k, n in ((1, "seed"), (2, "offset"))]
        found = self.draw_of(seed, offset)
        return arg if found is None or name not in ("seed", "offset", "base") else found[("seed", "offset", "base").index(name)]

    def draw_of(self, seed, offset):
        """The three parts of the draw that gave a seed and an offset."""
        for number in range(len(self.draws) - 1, -1, -1):
            _, known, start, counters = self.draws[number]
            if seed == known and start <= offset < start + max(counters, 1):
                return Drawn(number, 0), Drawn(number, 1, offset - start), Drawn(number, 2)
        return None

    # -------------------------------------------------------------- what is no operator
    def whole(self, operator, given, named, call):
        if operator._mutates:
            raise Untraceable(sentence("export", "operators that write to no argument",
                                       f"{operator.name()} at {places.place(*places.user_place(3))}"))
        return self.noted(Whole(operator, len(given), tuple(named)), (*given, *named.values()), call)

    def applied(self, function):
        if state.grad and function not in self.functions:
            self.functions.add(function)
            warnings.warn(f"export: expected operators, got the autograd.Function {function.__name__}: the graph has the operators of its "
                          "forward, and nothing of its backward; use library.custom_op with register_autograd for gradients",
                          stacklevel=places.stacklevel())

    def owned_written(self, x, name, op, place):
        if name not in self.buffers:
            raise Untraceable(sentence("export", "a call that leaves parameters, and tensors that are no buffers, alone",
                                       f"{op.__name__} at {places.place(*place)} writing to {name!r}", use="register_buffer"))
        owner = home(x)
        if id(owner) not in self.saved:
            whole = self.buffers[name].detach()
            with self.unseen():
                self.saved[id(owner)] = whole, copied(whole)

    def written(self, x):
        """Whether a tensor holds something else than before the call."""
        memory = self.memory.get(id(home(x)))
        return memory is not None and memory.written
