"""`export`: calls of a module, watched, as a graph."""
import math
import warnings

from tritorch._dynamo.exc import UserError
from tritorch.autograd import places
from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.errors import sentence
from tritorch.export.builder import Builder, drawn_of
from tritorch.export.exported_program import ExportedProgram, ModuleCallEntry, ModuleCallSignature, ValueRanges
from tritorch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from tritorch.export.proof import Proof
from tritorch.export.recorder import DRAW
from tritorch.export.recording import PLAIN, Parts, call, named, results
from tritorch.export.targets import written
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import Node
from tritorch.nn.module import Module
from tritorch.tensor import Tensor
from tritorch.tracing.axes import Axes, input_name
from tritorch.tracing.calls import together
from tritorch.tracing.probes import Fixed
from tritorch.tracing.sizes import Varying, leaves
from tritorch.tracing.tracer import NoRule, Untraceable, Value
from tritorch.utils import _pytree


def export(mod, args, kwargs=None, *, dynamic_shapes=None, strict=False, preserve_module_call_signature=(),
           prefer_deferred_runtime_asserts_over_guards=False):
    """A module as a graph of the operators that a call with these arguments runs: an ExportedProgram.

    The module really runs, on copies of the tensors in `args` and `kwargs`, so whatever Python does on the way is followed; buffers,
    generators and the module are afterwards as before. Tensors among the arguments, also in lists, tuples, dicts and dataclasses (see
    `register_dataclass`), are inputs of the graph, numbers are what they are in this call. The graph has the mode of the module: dropout
    drops and batch norm updates its buffers in training mode. Gradients flow through it as through the module, but for the backward of an
    autograd.Function, of which a warning tells.

    `dynamic_shapes` are the dynamic axes, by parameter or in their order: {dim: Dim, Dim.DYNAMIC, or Dim.AUTO, which may stay} or a list
    with None for axes that stay; below containers as these are nested. Axes of one Dim have one size. The module then runs with other
    sizes, too, and what depends on them is computed in the graph, whose results are then held against the module's at more sizes. The two
    last arguments and `strict` do nothing: there is one way to trace.

    Raises ValueError for what is no module, TypeError for arguments it does not take, UserError for what no graph can hold: a look at
    elements (`if x.sum() > 0`), other operators for other sizes, tensors assigned to attributes that are no buffers. The sentence names
    the line. NotImplementedError for `preserve_module_call_signature`.

    >>> import tritorch as torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> program = torch.export.export(model, (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['aten.linear.default', 'aten.relu.default']
    >>> program.module()(torch.ones(5, 4)).shape
    tritorch.Size([5, 8])
    """
    if not isinstance(mod, Module):
        raise ValueError(sentence("export", "a Module", type(mod).__name__))
    if not isinstance(args, tuple):
        raise UserError(sentence("export", "args as a tuple", type(args).__name__, use="(x,)"))
    if preserve_module_call_signature:
        raise NotImplementedError(sentence("export", "preserve_module_call_signature=()", preserve_module_call_signature))
    if isinstance(dynamic_shapes, (AdditionalInputs, ShapesCollection)):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(mod, args, kwargs)
    return _export(mod, args, dict(kwargs or {}), dynamic_shapes, False)


class Given:
    """The arguments of a call: leaves, their form and their names."""

    def __init__(self, mod, args, kwargs):
        self.args, self.kwargs = args, kwargs
        self.leaves, self.spec = _pytree.tree_flatten((args, kwargs))
        odd = [type(x).__name__ for x in self.leaves if not isinstance(x, (Tensor, dtype, device, *PLAIN))]
        if odd:
            raise UserError(sentence("export", "arguments of tensors, numbers, and containers of them", odd[0],
                                     use="export.register_dataclass"))
        self.top, self.named = named(mod, args, kwargs)
        self.names = [input_name(name, path) for name, path, _ in self.named]
        self.tensor_names = [name for name, x in zip(self.names, self.leaves) if isinstance(x, Tensor)]


def _export(mod, args, kwargs, dynamic_shapes, functional, origin=lambda place: None):
    given, parts, static = Given(mod, args, kwargs), Parts(mod), set()
    while True:
        axes = Axes(given.named, given.tensor_names, "export")
        if dynamic_shapes is not None:
            axes.of_shapes(dynamic_shapes)
        axes.found = {name: axis for name, axis in axes.found.items() if name not in static}
        try:
            return _proven(given, parts, axes, functional, origin)
        except NoRule as error:
            raise UserError(sentence("export", "operators that a graph can call", f"{error.args[0]} at {error.args[1]}")) from error
        except Untraceable as error:                                     # axes of Dim.AUTO may stay as they are
            fixed = [error.axis] if isinstance(error, Fixed) and error.axis.optional else axes.found.values()
            fixed = {axis.name for axis in fixed if axis.optional}
            if not fixed:
                raise UserError(str(error)) from error
            static |= fixed


def _proven(given, parts, axes, functional, origin):
    """The program of calls with other sizes of the axes, and of more if the first do not tell what numbers are made of."""
    for last in (False, True):
        traces, trace = together(axes, lambda inputs: call(parts, given.leaves, given.spec, inputs), _warn, last)
        made = Assembly(given, parts, axes, traces, trace, last, functional, origin)
        if not made.builder.arithmetic.quantities.guessed:
            break
    program = made.program()
    Proof(parts, program, given.leaves, given.spec, axes).ranges()
    program.range_constraints.update(ranges_of(axes))
    return program


def _warn(why, axis):
    axis.low = axis.first()
    warnings.warn(why, stacklevel=places.stacklevel())


class Assembly:
    """The graph of traces and what it needs."""

    def __init__(self, given, parts, axes, traces, trace, last, functional, origin):
        self.given, self.parts, self.axes, self.functional = given, parts, axes, functional
        names = {path: _qualified(type(part)) for path, part in parts.module.named_modules()}
        followed = {name for name, x in parts.named if x.requires_grad}
        self.builder = Builder(trace, axes, names, followed, last, functional, origin)
        self.returned, (self.buffers, self.changed) = results(traces), traces[0][3]
        self.out_spec, self.draws, self.trace = traces[0][2].spec, [node for node, *_ in trace.draws], trace
        self.placeholders()
        used = self.used()
        alone = self.alone(used)
        for node in trace.nodes:
            self.builder.write(node, used, alone)
        self.outputs()
        _drop_unused(self.builder)

    def placeholders(self):
        b, self.specs = self.builder, []
        for kind, letter, tensors in ((InputKind.PARAMETER, "p", self.parts.parameters), (InputKind.BUFFER, "b", self.parts.buffers)):
            for name, x in tensors.items():
                node = b.named[name] = b.placeholder(f"{letter}_{name.replace('.', '_')}")
                b.tell_tensor(node, x)
                self.specs.append((kind, node, name))
        inputs, self.users = iter(self.trace.inputs), []
        for name, leaf in zip(self.given.names, self.given.leaves):
            value = next(inputs) if isinstance(leaf, Tensor) else None
            node = b.placeholder(name, value)
            b.first_input = b.first_input or node
            if value is None:
                node.meta["val"] = leaf
            else:
                b.env[value] = node
                b.arithmetic.quantities.learn(value)
            self.users.append((node, leaf))

    def used(self):
        """The values that somebody asks for."""
        found = set(leaves(tuple(self.returned))) | {*self.buffers.values(), *self.changed.values()}
        for node in self.trace.nodes:
            found.update(leaves(node.args))
            found.update(into[0] for into in node.into if into)
        return found

    def alone(self, used):
        """The draws whose one operator draws by itself: nothing else draws in between."""
        found, order = set(), {node: k for k, node in enumerate(self.draws)}
        takers = {}
        for node in self.trace.nodes:
            for drawn in set(drawn_of(node.args)):
                takers.setdefault(drawn.number, []).append((node, drawn))
        latest = None
        for node in self.trace.nodes:
            if node.op is DRAW:
                latest = node
                continue
            if latest is None:
                continue
            who = takers.get(order[latest], ())
            if who and {n for n, _ in who} == {node} and not any(node.into) and all(d.more == 0 for _, d in who):
                words = None if node.back else written(node, used)
                if words is not None and words.draws:
                    found.add(latest)
        return found

    def outputs(self):
        b, kinds = self.builder, []
        b.current, values = None, []
        ends = [(OutputKind.BUFFER_MUTATION, value, name) for name, value in self.buffers.items()]
        names = [node.name for node, leaf in self.users if isinstance(leaf, Tensor)]
        ends += [(OutputKind.USER_INPUT_MUTATION, value, names[k]) for k, value in self.changed.items()]
        for kind, value, target in [*(ends if self.functional else ()), *[(OutputKind.USER_OUTPUT, x, None) for x in self.returned]]:
            node = b.node(value) if isinstance(value, Value) else b.arithmetic.node(value, None) if isinstance(value, Varying) else value
            kind_of = ConstantArgument("", node) if not isinstance(node, Node) else (
                SymIntArgument if isinstance(value, Varying) else TensorArgument)(node.name)
            kinds.append(OutputSpec(kind, kind_of, target))
            values.append(node)
        self.output_specs = kinds
        b.graph.output(tuple(values))

    def program(self):
        b = self.builder
        own = {name: x for name, x in self.parts.constants.items() if name in b.constants}
        constants = {**own, **b.lifted}
        state = {}
        for kind, _, name in self.specs:
            x = (self.parts.parameters if kind is InputKind.PARAMETER else self.parts.buffers)[name]
            (state if kind is InputKind.PARAMETER or name in self.parts.persistent else constants)[name] = x
        inputs = [InputSpec(kind, TensorArgument(node.name), name, name in self.parts.persistent if kind is InputKind.BUFFER else None)
                  for kind, node, name in self.specs]
        inputs += [InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(b.named[name].name), name) for name in constants
                   if name in own or name in b.lifted]
        order = {node.name: k for k, node in enumerate(b.graph.find_nodes(op="placeholder"))}
        inputs += [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name) if isinstance(leaf, Tensor) else
                             ConstantArgument(node.name, leaf), None) for node, leaf in self.users]
        signature = ExportGraphSignature(sorted(inputs, key=lambda spec: order[spec.arg.name]), self.output_specs)
        signed = ModuleCallSignature([], [], self.given.spec, self.out_spec, self.given.top)
        entries = [ModuleCallEntry("", signed), *[ModuleCallEntry(path) for path, _ in self.parts.module.named_modules() if path]]
        return ExportedProgram(GraphModule({}, b.graph, "GraphModule"), signature, state, ranges_of(self.axes), entries,
                               (self.given.args, self.given.kwargs), constants, "ATEN" if self.functional else "TRAINING")


def ranges_of(axes):
    """{name: ValueRanges} of dynamic axes."""
    return {axis.name: ValueRanges(axis.low, math.inf if axis.high is None else axis.high) for axis in axes.found.values()}


def _qualified(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _drop_unused(builder):
    """Nodes whose results nobody uses, unless they write or draw."""
    for node in reversed(builder.graph.nodes):
        if node.op == "call_function" and not node.users and not node.is_impure() and node not in builder.chance:
            builder.graph.erase_node(node)


def again(program, table):
    """A program exported anew, without writes in place, with functions of the table in the place of operators."""
    module = program.module(check_guards=False)
    if program.example_inputs is None:
        raise UserError(sentence("run_decompositions", "a program with example_inputs", "none"))
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in table:
            node.target = table[node.target]
    module.recompile()
    args, kwargs = program.example_inputs
    shapes = program.dynamic_shapes() if program.range_constraints else None
    nodes, code = list(module.graph.nodes), type(module).forward.__code__

    def origin(place):
        if place[0] is not code:
            return None
        line = int(places.place(*place).rpartition(":")[2])
        number = module._lineno_map.get(line - module._prologue_start)
        return None if number is None else nodes[number].meta

    made = _export(module, tuple(args), dict(kwargs), shapes, True, origin)
    made.module_call_graph = [made.module_call_graph[0], *program.module_call_graph[1:]]
    return made


class ShapesCollection:
    """Dynamic axes by tensor: `shapes[x] = {0: Dim("batch")}`, and `export(…, dynamic_shapes=shapes)`.

    >>> import tritorch as torch
    >>> x, shapes = torch.ones(2, 3), torch.export.ShapesCollection()
    >>> shapes[x] = {0: torch.export.Dim("batch")}
    >>> torch.export.export(torch.nn.ReLU(), (x,), dynamic_shapes=shapes).range_constraints
    {'batch': VR[0, int_oo]}
    """

    def __init__(self):
        self._shapes = {}

    def __setitem__(self, t, shape):
        if not isinstance(t, Tensor):
            raise TypeError(sentence("ShapesCollection", "a tensor", type(t).__name__))
        self._shapes[id(t)] = t, shape

    def __getitem__(self, t):
        return self._shapes[id(t)][1]

    def __len__(self):
        return len(self._shapes)

    def dynamic_shapes(self, m, args, kwargs=None):
        """What `export` takes for a call with these arguments."""
        return _tree_of(m, args, kwargs, lambda k, x: self._shapes[id(x)][1] if id(x) in self._shapes else None)


class AdditionalInputs:
    """Other arguments of a module: axes whose sizes differ are dynamic. `inputs.add(args, kwargs)`, `export(…, dynamic_shapes=inputs)`.

    >>> import tritorch as torch
    >>> inputs = torch.export.AdditionalInputs()
    >>> inputs.add((torch.ones(5, 3),))
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=inputs)
    >>> program.module()(torch.ones(9, 3)).shape
    tritorch.Size([9, 3])
    """

    def __init__(self):
        self._examples = []

    def add(self, args, kwargs=None):
        """Another call."""
        self._examples.append((args, dict(kwargs or {})))

    def dynamic_shapes(self, m, args, kwargs=None):
        """What `export` takes for a call with these arguments."""
        others = [_pytree.tree_leaves((a, k)) for a, k in self._examples]

        def spec(k, x):
            from tritorch.tracing.dims import Dim

            return [Dim.DYNAMIC if any(other[k].shape[d] != n for other in others) else None for d, n in enumerate(x.shape)]

        return _tree_of(m, args, kwargs, spec)


def _tree_of(m, args, kwargs, spec):
    """{parameter: its dynamic axes}, where `spec(number of the leaf, tensor)` says them."""
    given = Given(m, args, dict(kwargs or {}))
    found = [spec(k, x) if isinstance(x, Tensor) else None for k, x in enumerate(given.leaves)]
    args, kwargs = given.spec.unflatten(found)
    return dict(zip(given.top, [*args, *kwargs.values()]))


