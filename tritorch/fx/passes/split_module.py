"""A module as several, one after another."""
import operator

from tritorch.errors import sentence
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule, _get_attr
from tritorch.fx.node import map_arg
from tritorch.nn.module import Module

__all__ = ["Partition", "split_module"]


class Partition:
    """A part in the making: its nodes, what it takes from before it and gives to others."""

    def __init__(self, name):
        self.name, self.submod_name = name, f"submod_{name}"
        self.node_names, self.inputs, self.outputs, self.dependencies, self.dependents = [], {}, {}, {}, {}
        self.graph, self.environment, self.targets = Graph(), {}, {}

    def __repr__(self):
        return (f"name: {self.name},\n nodes: {self.node_names},\n inputs: {[*self.inputs]},\n outputs: {[*self.outputs]},\n"
                f" partitions depended on: {[*self.dependencies]},\n partition dependents: {[*self.dependents]}")


def split_module(m, root_m, split_callback, qualname_map=None, keep_original_order=False, keep_original_node_name=False,
                 keep_original_input_name=True, *, partition_affix=None, tuple_return=False):
    """A GraphModule that calls modules `submod_…`, each of which has the nodes of `m` for which `split_callback(node)` gives its number.

    `root_m` is not asked. `qualname_map`, a dict, gets the name in `m` of every module and parameter by the new one.
    `keep_original_order`: the parts in the order of their first nodes, otherwise any in which each comes after those it uses;
    `keep_original_node_name`: nodes keep their names; without `keep_original_input_name` inputs of parts are called arg_0, arg_1, …;
    `partition_affix`: is part of the parts' names; `tuple_return`: parts return a tuple even of one value.

    Errors: RuntimeError if parts need one another.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(lambda x: torch.relu(x + 1) * x)
    >>> split = split_module(traced, None, lambda node: int(node.name == "mul"))
    >>> print(split.code.strip())
    def forward(self, x):
        submod_0 = self.submod_0(x)
        submod_1 = self.submod_1(submod_0, x);  submod_0 = x = None
        return submod_1
    >>> split(torch.tensor([1.0, -2.0]))
    tensor([2., -0.])
    """
    part_of, parts = {}, {}
    for node in m.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            name = "_".join([*([partition_affix] if partition_affix is not None else []), str(split_callback(node))])
            part_of[node] = parts.setdefault(name, Partition(name))
            part_of[node].node_names.append(node.name)
    for node in m.graph.nodes:
        for used in node.all_input_nodes:
            _note_use(used, part_of.get(used), part_of.get(node))
    in_order = _in_order(parts)
    for part in in_order:
        _begin(part, m, keep_original_input_name)
    for node, part in part_of.items():
        _copy(node, part, m, qualname_map, keep_original_node_name)
    return _joined(m, [*parts.values()] if keep_original_order else in_order, keep_original_order, keep_original_node_name, tuple_return)


def _note_use(used, source, part):
    if source is not part:
        if source is not None:
            source.outputs.setdefault(used)
            if part is not None:
                source.dependents.setdefault(part.name)
                part.dependencies.setdefault(source.name)
        if part is not None:
            part.inputs.setdefault(used)


def _in_order(parts):
    """The parts in an order in which each comes after those it uses."""
    waiting, found = {name: set(part.dependencies) for name, part in parts.items()}, []
    ready = [name for name, before in waiting.items() if not before]
    while ready:
        name = ready.pop()
        found.append(parts[name])
        for after in parts[name].dependents:
            waiting[after].discard(name)
            if not waiting[after]:
                ready.append(after)
    if len(found) < len(parts):
        left = [part.name for part in parts.values() if part not in found]
        raise RuntimeError(sentence("split_module", "parts that do not need one another", left))
    return found


def _begin(part, m, keep_name):
    """Make the inputs of a part; a module that a node reads it has itself."""
    modules = [node for node in part.inputs if node.op == "get_attr" and isinstance(_get_attr(m, node.target), Module)]
    part.inputs = {node: None for node in part.inputs if node not in modules}
    for k, node in enumerate(part.inputs):
        part.environment[node] = part.graph.placeholder(node.name if keep_name else f"arg_{k}", type_expr=node.type)
    for node in modules:
        part.environment[node] = part.graph.get_attr(node.target)
        part.targets[node.target] = _get_attr(m, node.target)
    for node, made in part.environment.items():
        made.meta = node.meta.copy()


def _copy(node, part, m, qualname_map, keep_name):
    target = node.target
    if node.op == "call_module":
        target = target.replace(".", "_")
        part.targets[target] = _get_attr(m, node.target)
        if qualname_map is not None:
            qualname_map[f"{part.submod_name}.{target}"] = node.target
    args, kwargs = map_arg((node.args, node.kwargs), part.environment.__getitem__)
    made = part.graph.create_node(node.op, target, args, kwargs, node.name if keep_name else None, node.type)
    made.meta = node.meta.copy()
    part.environment[node] = made


def _joined(m, parts, late, keep_name, tuple_return):
    """The module that calls the parts; `late`: what it reads from itself is read where it is first used."""
    graph, values, members = Graph(), {}, {}

    def bring(node):
        if node not in values:
            name = node.name if keep_name or node.op == "get_attr" else None
            values[node] = graph.create_node(node.op, node.target, node.args, name=name, type_expr=node.type)
            values[node].meta = node.meta.copy()
            if node.op == "get_attr":
                members[node.target] = _get_attr(m, node.target)
        return values[node]

    for node in m.graph.nodes:
        if node.op == "placeholder" or node.op == "get_attr" and not late:
            bring(node)
    for part in parts:
        results = tuple([part.environment[node] for node in part.outputs])
        single = len(results) == 1 and not tuple_return
        part.graph.output(results[0] if single else results)
        members[part.submod_name] = GraphModule(part.targets, part.graph)
        call = graph.call_module(part.submod_name, tuple([bring(node) for node in part.inputs]))
        for k, node in enumerate(part.outputs):
            values[node] = call if single else graph.call_function(operator.getitem, (call, k))
    graph.output(map_arg(m.graph.output_node().args[0], bring))
    made = GraphModule(members, graph)
    made.meta["partition_names"] = {part.submod_name for part in parts}
    return made
