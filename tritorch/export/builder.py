"""From a trace to a graph of torch.fx."""
import contextlib
import linecache
import operator
import re

from tritorch.autograd import places
from tritorch.device import meta
from tritorch.errors import sentence
from tritorch.export.arithmetic import Arithmetic, label
from tritorch.export.recorder import DETACH, DRAW, Drawn, Whole
from tritorch.export.targets import Call, written
from tritorch.fx.graph import Graph
from tritorch.ops.namespaces import namespace
from tritorch.tensor import empty_strided
from tritorch.tracing.sizes import Baked, Varying, leaves
from tritorch.tracing.tracer import BACK, Untraceable, Value

SCATTERED = {"select": "select_scatter", "slice_dim": "slice_scatter", "diagonal": "diagonal_scatter"}


class Builder:
    """The graph of a trace. With `functional`, nothing is written in place: what is written to is a new value."""

    def __init__(self, trace, axes, paths, followed, last, functional, origin):
        self.generated = origin                                          # what is known of the node that is a place in generated code
        self.trace, self.axes, self.paths, self.followed, self.functional = trace, axes, paths, followed, functional
        self.graph, self.env, self.plain, self.flowing, self.current, self.first_input = Graph(), {}, {}, {}, None, None
        self.draws, self.parts, self.chance = {}, {}, set()              # nodes of draws, of parts of them, and all that draw
        self.constants, self.lifted, self.named, self.taken = {}, {}, {}, set()
        self.arithmetic = Arithmetic(self, last)

    # -------------------------------------------------------------- inputs
    def placeholder(self, name, value=None, before=None):
        """An input; `before` the input of another name."""
        with self.graph.inserting_before(before) if before is not None else contextlib.nullcontext():
            node = self.graph.placeholder(name)
        if name.isidentifier() and name not in self.taken:
            node.name = name                                             # also one that builtins have, as `input`
        node.target = node.name
        self.taken.add(node.name)
        if value is not None:
            self.tell(node, value)
        return node

    def constant(self, value):
        """The node of a tensor that no node made."""
        if value.elements is not None:
            numbers = [self.arithmetic.node(n, None) if isinstance(n, Varying) else n for n in value.elements]
            numbers = numbers if value.ndim else numbers[0]
            return self.emit("tritorch.numbers.default", (numbers, value.dtype, value.tensor.device), {}, value)
        if not value.same or any(isinstance(n, Varying) for n in value.shape):
            raise Untraceable(sentence("export", "tensors that operators make of sizes", "one made by Python, which is another for other "
                                       "sizes of dynamic axes", use="tensor operators, as arange"))
        name = f"lifted_tensor_{len(self.lifted)}"
        self.lifted[name] = value.tensor
        node = self.placeholder(f"c_{name}", value, self.first_input)
        self.named[name] = node
        return self.emit("aten.lift_fresh_copy.default", (node,), {}, value)

    def node(self, value):
        """The node of a value."""
        found = self.env.get(value)
        if found is None:
            if value.name is None and value.weighs and value.node is None:
                raise Untraceable(sentence("export", "parameters and buffers as they are",
                                           f"a view of one that no operator made, {value.shape}", use="reshape"))
            found = self.env[value] = self.named_node(value) if value.name is not None else self.constant(value)
        return found

    def named_node(self, value):
        if value.name not in self.named:                                 # a tensor that is an attribute of a module
            node = self.placeholder(f"c_{value.name.replace('.', '_')}", value, self.first_input)
            self.named[value.name], self.constants[value.name] = node, value
        return self.named[value.name]

    # -------------------------------------------------------------- nodes
    def emit(self, target, args, kwargs, *values):
        """A call of `namespace.name.overload`, or of a function, whose results are these values."""
        if isinstance(target, str):
            space, name, overload = target.split(".")
            target = getattr(getattr(namespace(space), name), overload)
        stem = getattr(target, "_opname", None) or target.__name__
        node = self.graph.call_function(target, tuple(args), kwargs, name=stem)
        self.tell(node, *values)
        return node

    def number(self, function, args):
        """Arithmetic on sizes."""
        return self.graph.call_function(function, tuple(args))

    def size_of(self, value, dim):
        node = self.emit("aten.sym_size.int", (self.node(value), dim), {})
        node.meta["val"] = value.tensor.shape[dim]
        node.meta["sizes"] = label(value.shape[dim], self.axes)
        return node

    def tell_tensor(self, node, x):
        """What is known of a parameter or buffer."""
        node.meta["val"] = meta_of(x)

    def tell(self, node, *values):
        """What is known of a node."""
        vals = [meta_of(v.tensor) for v in values]
        if vals:
            node.meta["val"] = vals[0] if len(vals) == 1 else tuple(vals)
        if len(values) == 1 and any(isinstance(n, Varying) for n in values[0].shape):
            node.meta["sizes"] = tuple([label(n, self.axes) for n in values[0].shape])
        if node.op == "call_function" and self.current is not None:
            known = self.generated(self.current.place)
            if known is not None:
                node.meta.update({key: known[key] for key in ("stack_trace", "nn_module_stack") if key in known})
                return
            node.meta["stack_trace"] = _stack_trace(self.current.place)
            node.meta["nn_module_stack"] = {f"L__self__{re.sub('[^0-9a-zA-Z]', '_', path)}": (path, self.paths.get(path, ""))
                                            for path in self.current.facts[1]}

    # -------------------------------------------------------------- what autograd sees
    def flows(self, value):
        """Whether a gradient may flow to a value."""
        if value not in self.flowing:
            made = value.node
            if not value.dtype.has_gradients:
                found = False
            elif made is None:
                found = value.depends or value.weighs and (value.name is None or value.name in self.followed)
            elif made.back:
                found = any(map(self.flows, leaves(made.args)))
            else:
                found = made.op is not DETACH and made.facts[0] and any(map(self.flows, leaves(made.args)))
                found = found or any(self.flows(into[0]) for into in made.into if into)
            self.flowing[value] = found
        return self.flowing[value]

    def detached(self, value):
        """The node of a value without its history."""
        node = self.node(value)
        if not self.flows(value):
            return node
        if node not in self.plain:
            self.plain[node] = self.emit("aten.detach.default", (node,), {}, value)
        return self.plain[node]

    # -------------------------------------------------------------- a call
    def words(self, arg):
        """An argument of the call that is being written."""
        if isinstance(arg, Value):
            return self.node(arg) if self.current.facts[0] else self.detached(arg)
        if isinstance(arg, Varying):
            return self.arithmetic.node(arg, self.current)
        if isinstance(arg, Drawn):
            return self.part(arg)
        if isinstance(arg, (tuple, list)):
            return type(arg)([self.words(a) for a in arg])
        return arg

    def part(self, drawn):
        """The seed, the offset or the record of a draw."""
        key = drawn.number, drawn.part, drawn.more
        if key not in self.parts:
            node = self.number(operator.getitem, (self.draws[drawn.number], drawn.part))
            self.parts[key] = self.number(operator.add, (node, drawn.more)) if drawn.more else node
        return self.parts[key]

    def write(self, node, used, alone):
        """The nodes of one call. `alone`: draws that the calls which they are for make by themselves."""
        self.current = node
        try:
            if node.op is DETACH:
                self.env[node.outs[0]] = self.detached(node.args[0])
            elif node.op is DRAW:
                number = len(self.draws)
                self.draws[number] = None if node in alone else self.emit("tritorch.draw.default", self.words(node.args), {})
                self.chance.add(self.draws[number])
            elif node.back:
                self.env[node.outs[0]] = self.brought_back(node) if self.functional else self.env_of_whole(node)
            elif node.into and any(node.into) and not self.functional and not self.is_fill_of_new(node):
                self.write_in_place(node, used)
            else:
                self.write_new(node, used)
        except Baked as error:
            raise Untraceable(sentence("export", f"{node.name} at {node.where()} with numbers that a graph can compute", error)) from error
        for value in node.outs:
            if value in used:
                self.arithmetic.quantities.learn(value)

    def env_of_whole(self, node):
        """What a view shows is the tensor that it was: its memory was written."""
        return self.node(node.args[0])

    def hold_history(self, node):
        """Refuse a write that autograd does not see, to what it follows: the old gradients with the new elements are no new value."""
        if any(self.flows(into[0]) and (into[1] or not node.facts[0]) for into in node.into if into):
            raise Untraceable(sentence("run_decompositions", "writes that autograd sees", f"{node.name} at {node.where()} under no_grad "
                                       "or to a detached tensor, of which the other needs gradients", use="clone"))

    def write_new(self, node, used):
        """A call that makes its results."""
        if self.functional:
            self.hold_history(node)
        if self.is_fill_of_new(node):
            out = node.outs[0]
            made = self.emit("aten.full.default", (self.words(list(out.shape)), self.words(node.args[1])),
                             {"dtype": out.dtype, "device": out.tensor.device}, out)
            self.env[out] = made
            return
        if isinstance(node.op, Whole):
            count, args = node.op.count, self.words(node.args)
            self.results(node, self.emit(node.op.operator, args[:count], dict(zip(node.op.named, args[count:])), *node.outs), used)
            return
        call = written(node, used)
        if call is not None and not call.name.endswith("_") and not (call.draws and self.draws_apart(node)):
            kept = node.outs[:1] if len(node.outs) > 1 and not _several(call) else node.outs
            made = self.emit(f"aten.{call.name}.{call.overload}", self.words(tuple(call.args)), self.words_of(call.kwargs), *kept)
            if call.draws:
                self.chance.add(made)
            self.results(node, made, used, kept)
        else:
            self.results(node, self.emit(f"tritorch.{node.name}.default", self.own(node), {}, *node.outs), used)

    def draws_apart(self, node):
        """Whether the numbers that a node draws are of a draw that is a node, or of none."""
        number = next((drawn.number for drawn in drawn_of(node.args)), None)
        return number is None or self.draws[number] is not None

    def words_of(self, kwargs):
        return {name: self.words(value) for name, value in kwargs.items()}

    def own(self, node):
        """The arguments of one of our operators, without defaults at the end."""
        args, defaults = list(node.args), node.op.defaults
        while args and not isinstance(args[-1], (Value, Varying, Drawn, tuple)) and args[-1] is defaults[len(args) - 1]:
            args.pop()
        return self.words(tuple(args))

    def results(self, node, made, used, outs=None):
        outs = node.outs if outs is None else outs
        if len(outs) == 1:
            self.env[outs[0]] = self.fitted(node, made, outs[0])
            return
        for k, value in enumerate(outs):
            if value in used:
                self.env[value] = self.number(operator.getitem, (made, k))
                self.tell(self.env[value], value)

    def fitted(self, node, made, value):
        """The result of a call that wrote to a destination of another dtype."""
        if not node.into or isinstance(node.op, Whole):
            return made
        promise = node.op.body(*[_tensors(a) for a in node.args])
        if promise[1] is value.dtype:
            return made
        return self.emit("aten._to_copy.default", (made,), {"dtype": value.dtype}, value)

    # -------------------------------------------------------------- writes
    def is_fill_of_new(self, node):
        """Whether a call fills memory that nobody had set."""
        return node.name == "fill" and not node.back and node.args[0].node is None and node.args[0].name is None and not (
            node.args[0].depends or node.args[0].weighs)

    def write_in_place(self, node, used):
        if not all(node.into):
            raise Untraceable(sentence("export", "destinations that are all known", f"some that are new of {node.name} at {node.where()}"))
        targets = []
        for value, cut in node.into:
            targets.append(self.detached(value) if cut or not node.facts[0] else self.node(value))
        call = None if len(targets) > 1 or node.args[0] is not node.into[0][0] else in_place(node, used)
        if call is None:
            self.emit(f"tritorch.{node.name}.out", self.own(node), {"out": targets[0] if len(targets) == 1 else targets}, *node.outs)
        else:
            args = targets[0], *self.words(tuple(call.args[1:]))
            self.emit(f"aten.{call.name}.{call.overload}", args, self.words_of(call.kwargs), node.outs[0])
        for (value, _), out in zip(node.into, node.outs):
            self.env[out] = self.origin(value)

    def origin(self, value):
        """The node of a value, behind what took its history away."""
        while value.node is not None and value.node.op is DETACH:
            value = value.node.args[0]
        return self.node(value)

    def brought_back(self, node):
        """A value of which a part was written, as a new one."""
        old, part, *args = node.args
        whole, piece, out = self.node(old), self.node(part), node.outs[0]
        shape = self.words(list(out.shape))
        if node.name in SCATTERED:
            return self.emit(f"aten.{SCATTERED[node.name]}.default", (whole, piece, *self.words(tuple(args))), {}, out)
        if node.name not in BACK:
            raise Untraceable(sentence("run_decompositions", "a write that is followed through views", f"{node.name} at {node.where()}",
                                       use="clone"))
        if node.name == "permute_dims":
            order = [d % out.ndim for d in args[0]]
            return self.emit("aten.permute.default", (piece, [order.index(d) for d in range(out.ndim)]), {}, out)
        if node.name == "transpose":
            return self.emit("aten.transpose.int", (piece, *args), {}, out)
        return self.emit("aten.reshape.default", (piece, shape), {}, out)


def meta_of(x):
    """A tensor like x without memory."""
    return empty_strided(x.shape, x.strides, x.dtype, meta)


def drawn_of(args):
    """The draws among arguments."""
    for a in args:
        if isinstance(a, Drawn):
            yield a
        elif isinstance(a, tuple):
            yield from drawn_of(a)


def in_place(node, used):
    """How PyTorch writes a call whose destination is its first argument, or None."""
    if node.name == "fill":
        return Call("fill_", "Tensor" if isinstance(node.args[1], Value) else "Scalar", *node.args)
    call = written(node, used)
    if call is None or call.draws or not call.args or call.args[0] is not node.args[0]:
        return None
    call.name += "" if call.name.endswith("_") else "_"
    return call if getattr(namespace("aten"), call.name, None) is not None else None


def _several(call):
    return call.overload == "dim" and call.name in ("max", "min")


def _tensors(arg):
    return arg.tensor if isinstance(arg, Value) else tuple([_tensors(a) for a in arg]) if isinstance(arg, tuple) else (
        arg.values[0] if isinstance(arg, Varying) else 0 if isinstance(arg, Drawn) else arg)


def _stack_trace(place):
    """As Python's tracebacks have it."""
    file, _, line = places.place(*place).rpartition(":")
    text = linecache.getline(file, int(line)).strip()
    return f'  File "{file}", line {line}, in {place[0].co_name}\n    {text}\n'
