"""From a trace to a model: which nodes are needed, what is folded, what inputs and outputs are called."""
from tritorch.errors import sentence
from tritorch.onnx import (  # noqa: F401  (they fill the table of rules)
    rules_layers,
    rules_pointwise,
    rules_reductions,
    rules_sequences,
    rules_shapes,
)
from tritorch.onnx.errors import OnnxExporterError, UnsupportedOperatorError
from tritorch.onnx.graph import Graph, code_of
from tritorch.onnx.rules import RULES, SINCE
from tritorch.tracing.sizes import Varying, leaves
from tritorch.tracing.tracer import Untraceable, Value

IR_VERSIONS = ((23, 11), (21, 10), (20, 9), (0, 8))                      # of the file format: the first that has an opset


def written(onnx, trace, outputs, names, axes, opset, custom, domains, last):
    """(ModelProto, whether more calls have to tell what sizes are made of) of a trace, which is the `last`. `outputs` are Values, `names`
    pairs of lists: of the inputs' and outputs' names."""
    g = Graph(onnx, opset, last)
    for value, name in zip(trace.inputs, names[0]):
        g.names[value], g.types[name] = name, value
        g.quantities.learn(value)
    needed = _needed(trace, outputs)
    for node in trace.nodes:
        if node in needed:
            _write(g, node, custom)
    ends = _ends(g, trace, outputs, names[1])
    _drop_unused(g, ends)
    return _model(g, trace, ends, names[0], axes, domains), g.quantities.guessed


def _folds(value):
    """Whether a value is the same in every call, and of no parameter."""
    return not (value.depends or value.weighs or value.node.chance) and value.same


def _needed(trace, outputs):
    """The nodes that results come from, but for those whose results are constants."""
    values, found = {v for v in outputs if isinstance(v, Value)}, set()
    for node in reversed(trace.nodes):
        if any(out in values and not _folds(out) for out in node.outs):
            found.add(node)
            values.update(leaves(node.args))
    return found


def _write(g, node, custom):
    """The nodes of one call."""
    name = "back" if node.back else node.name
    rule = custom.get(name) or RULES.get(name)
    if node.chance or rule is None:
        if node.chance and rule is None:
            raise OnnxExporterError(sentence("onnx.export", "a program without chance", f"{node.name} at {node.where()}",
                                             use="model.eval()"))
        raise UnsupportedOperatorError(node.name, g.opset, None, node.where())
    if name not in custom and g.opset < SINCE[name]:
        raise UnsupportedOperatorError(node.name, g.opset, SINCE[name], node.where())
    g.current = node
    try:
        made = rule(g, *node.args)
    except (Untraceable, TypeError) as error:
        raise OnnxExporterError(sentence("onnx.export", f"{node.name} with arguments that ONNX can have at {node.where()}",
                                         error)) from error
    made = made if isinstance(made, tuple) else (made,)
    for value, found in zip(node.outs, made):
        if found is not None:
            g.names[value] = found
            if found not in g.odd:
                g.quantities.learn(value)


def _ends(g, trace, outputs, names):
    """[(name, value)] of the results: those of nodes renamed, others behind an Identity."""
    g.current, found, makers = None, [], {n: node for node in g.nodes for n in node.output}
    inputs = {g.names[v] for v in trace.inputs}
    for value, name in zip(outputs, names):
        source, node = g.x(value), None
        node = makers.pop(source, None)
        if node is None or source in inputs or name in g.initializers:
            g.nodes.append(g.onnx.helper.make_node("Identity", [source], [name]))
        else:
            for other in g.nodes:
                other.input[:] = [name if x == source else x for x in other.input]
            node.output[:] = [name if x == source else x for x in node.output]
            for v in [v for v, n in g.names.items() if n == source]:
                g.names[v] = name
        found.append((name, value))
    return found


def _drop_unused(g, ends):
    """Rules write more than is asked for: a mean beside a variance, what a view was before it was overwritten."""
    used, kept = {name for name, _ in ends}, []
    for node in reversed(g.nodes):
        if any(x in used for x in node.output):
            kept.append(node)
            used.update(node.input)
    g.nodes = kept[::-1]
    g.initializers = {name: x for name, x in g.initializers.items() if name in used}


def _model(g, trace, ends, names, axes, domains):
    helper = g.onnx.helper
    inputs = [helper.make_tensor_value_info(name, code_of(v.dtype), _dims(v, axes, name)) for name, v in zip(names, trace.inputs)]
    outputs = [helper.make_tensor_value_info(name, code_of(v.dtype), _dims(v, axes, name)) for name, v in ends]
    graph = helper.make_graph(g.nodes, "main_graph", inputs, outputs, [x for x, _ in g.initializers.values()])
    opsets = [helper.make_opsetid("", g.opset), *[helper.make_opsetid(name, v) for name,
                                                  v in sorted({**g.domains, **dict(domains)}.items())]]
    ir = next(version for since, version in IR_VERSIONS if g.opset >= since)
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, producer_name="tritorch")


def _dims(value, axes, name):
    """Numbers, and names of those that vary: an axis's own, what the caller said of an output, or what it is in all calls."""
    labels = axes.labels()
    return [axes.outputs.get((name, k)) or labels.get(n.values) or f"{name}_dim_{k}" if isinstance(n, Varying) else int(n)
            for k, n in enumerate(value.shape)]
