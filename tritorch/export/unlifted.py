"""`ExportedProgram.module()`: the graph as a module that has its parameters and buffers and is called as the one that was exported."""
from tritorch.errors import sentence
from tritorch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from tritorch.fx.codegen import _name, _PyTreeCodeGen, _PyTreeInfo
from tritorch.fx.graph import CodeGen, Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import map_arg
from tritorch.nn.module import Module
from tritorch.ops.namespaces import namespace
from tritorch.tensor import Tensor


class CallCodeGen(_PyTreeCodeGen):
    """Writes a forward with the parameters of the module's, whose containers are taken apart."""

    def __init__(self, names, in_spec, out_spec):
        super().__init__(_PyTreeInfo(names, in_spec, out_spec))

    def process_inputs(self, *args):
        positional, named = self.pytree_info.in_spec.children_specs
        count = positional.num_children
        return self.pytree_info.in_spec.flatten_up_to((args[:count], dict(zip(named.context, args[count:]))))

    def gen_fn_def(self, free_vars, maybe_return_annotation, *, expanded_def=False):
        names, (positional, named) = self.pytree_info.orig_args, self.pytree_info.in_spec.children_specs
        head = CodeGen.gen_fn_def(self, names, maybe_return_annotation, expanded_def=expanded_def)
        if not free_vars:
            return head
        args = "".join([f"{name}, " for name in names[:positional.num_children]])
        kwargs = ", ".join([f"{key!r}: {name}" for key, name in zip(named.context, names[positional.num_children:])])
        leaves = ", ".join(map(_name, free_vars))
        return f"{head}\n    {leaves}, = fx_pytree.tree_flatten_spec((({args.strip()}), {{{kwargs}}}), self._in_spec)"


class GuardsFn(Module):
    """Raises AssertionError for inputs of which the graph does not tell the results: other shapes, dtypes and numbers."""

    def __init__(self, wanted, ranges):
        super().__init__()
        self.wanted, self.ranges = wanted, ranges

    def forward(self, *args):
        """Look at all inputs."""
        sizes = {}
        for (name, dtype, shape), x in zip(self.wanted, args):
            if dtype is None:
                if x is not shape and (type(x) is not type(shape) or x != shape):
                    refuse(f"{name} == {shape!r}", repr(x))
            elif not isinstance(x, Tensor):
                refuse(f"{name} is a tensor", type(x).__name__)
            elif x.dtype is not dtype:
                refuse(f"{name}.dtype == {dtype}", x.dtype)
            elif x.ndim != len(shape):
                refuse(f"{name}.dim() == {len(shape)}", x.ndim)
            else:
                for k, (n, want) in enumerate(zip(x.shape, shape)):
                    if want.__class__ is not int:
                        self.look(f"{name}.size()[{k}]", n, *want, sizes)
                    elif n != want:
                        refuse(f"{name}.size()[{k}] == {want}", n)

    def look(self, name, n, axis, factor, sizes):
        """A size that is a number of times that of an axis."""
        low, high = self.ranges[axis]
        known = sizes.setdefault(axis, n // factor)
        if known * factor != n:
            refuse(f"{name} == {known * factor}, {factor} * {axis}", n)
        if not low <= known <= high:
            refuse(f"{low} <= {axis} <= {high}", known)


def refuse(rule, got):
    raise AssertionError(f"Guard failed: {rule}, got {got}")


class ExportedModule(GraphModule):
    """A GraphModule that is in the mode in which it was exported."""

    def train(self, mode=True):
        """NotImplementedError: the graph is that of the mode of the module."""
        raise NotImplementedError(sentence("train", "a module whose forward asks for its mode", "an exported graph",
                                           use="export of the module in train() or eval()"))

    def eval(self):
        """NotImplementedError, as `train`."""
        raise NotImplementedError(sentence("eval", "a module whose forward asks for its mode", "an exported graph",
                                           use="export of the module in train() or eval()"))


    def __reduce__(self):
        """NotImplementedError: programs are what is saved."""
        raise NotImplementedError(sentence("pickle", "an ExportedProgram", "its module", use="export.save, or the state_dict"))


def shape_of(node):
    """Sizes of an input as ints, and (name, factor) of those that are dynamic."""
    found = []
    for n, label in zip(node.meta["val"].shape, node.meta.get("sizes", map(str, node.meta["val"].shape))):
        factor, _, name = label.rpartition("*")
        found.append(int(n) if name.isdigit() else (name, int(factor or 1)))
    return tuple(found)


def wanted_of(program):
    """[(name, dtype, shape)] of the inputs of the user, (name, None, number) of those that are no tensors."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    found = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            node = nodes[spec.arg.name]
            constant = isinstance(spec.arg, ConstantArgument)
            found.append((spec.arg.name, None, spec.arg.value) if constant else (
                spec.arg.name, node.meta["val"].dtype, shape_of(node)))
    return found


def module_of(program, check_guards=True):
    """The module of an ExportedProgram."""
    signature, graph, env = program.graph_signature, Graph(), {}
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    user = [spec for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    for spec in user:
        env[placeholders[spec.arg.name]] = copied = graph.node_copy(placeholders[spec.arg.name])
        copied.name = spec.arg.name
    inputs = list(env.values())
    for spec in signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            node = placeholders[spec.arg.name]
            env[node] = graph.create_node("get_attr", spec.target, name=spec.target.replace(".", "_"))
            env[node].meta = dict(node.meta)
    root = {spec.target: _held(program, spec) for spec in signature.input_specs if spec.kind is not InputKind.USER_INPUT}
    if check_guards and inputs:
        root["_guards_fn"] = GuardsFn(wanted_of(program), program.ranges())
        graph.create_node("call_module", "_guards_fn", tuple(inputs), name="_guards_fn")
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = graph.node_copy(node, env.__getitem__)
    _end(program, graph, env)
    signed = program.module_call_graph[0].signature
    graph.set_codegen(CallCodeGen(list(signed.forward_arg_names), signed.in_spec, signed.out_spec))
    made = ExportedModule(root, graph, "GraphModule")
    for spec in signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR or spec.kind is InputKind.BUFFER and not spec.persistent:
            path, _, name = spec.target.rpartition(".")
            made.get_submodule(path)._non_persistent_buffers_set.add(name)
    return made


def _held(program, spec):
    kept = spec.kind is InputKind.PARAMETER or spec.kind is InputKind.BUFFER and spec.persistent
    return program.state_dict[spec.target] if kept else program.constants[spec.target]


def _end(program, graph, env):
    """The results; before them what buffers and inputs hold is written, if the graph does not write by itself."""
    nodes = {node.name: node for node in program.graph.nodes}
    by_target = {spec.target: nodes[spec.arg.name] for spec in program.graph_signature.input_specs if spec.kind is InputKind.BUFFER}
    results, copy_ = [], namespace("aten").copy_.default
    values = program.graph.output_node().args[0]
    for spec, value in zip(program.graph_signature.output_specs, values):
        if spec.kind is OutputKind.USER_OUTPUT:
            results.append(value)
    written = {}
    for spec, value in zip(program.graph_signature.output_specs, values):
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            into = by_target[spec.target] if spec.kind is OutputKind.BUFFER_MUTATION else nodes[spec.target]
            written[value] = into, graph.call_function(copy_, (env[into], env[value]), name="copy_")
    graph.output(map_arg(tuple(results), env.__getitem__))
