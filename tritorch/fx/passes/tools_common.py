"""Small questions about graphs."""
import collections

from tritorch.errors import sentence
from tritorch.fx.graph import Graph
from tritorch.fx.node import _get_qualified_name

__all__ = ["CALLABLE_NODE_OPS", "get_acc_ops_name", "get_node_target", "is_node_output_tensor", "legalize_graph"]

CALLABLE_NODE_OPS = {"call_module", "call_function", "call_method"}


def get_acc_ops_name(k):
    """The name of a class or function; for those of files `acc_ops` as "acc_ops.name"."""
    return k if isinstance(k, str) else _get_qualified_name(k)


def get_node_target(submodules, node):
    """What a node calls, as text: the class of its module, the name of its function or method.

    >>> import tritorch as torch
    >>> traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    >>> get_node_target(dict(traced.named_modules()), list(traced.graph.nodes)[1])
    'tritorch.nn.activation.ReLU'
    """
    if node.op not in CALLABLE_NODE_OPS:
        raise AssertionError(sentence("get_node_target", f"a node of {sorted(CALLABLE_NODE_OPS)}", node.op))
    if node.op == "call_module":
        kind = type(submodules[node.target])
        return f"{kind.__module__}.{kind.__name__}"
    return node.target if node.op == "call_method" else _get_qualified_name(node.target)


def is_node_output_tensor(node):
    """Whether `ShapeProp` found that a node is a tensor."""
    from tritorch.tensor import Tensor

    return issubclass(node.meta.get("type", object), Tensor)


def legalize_graph(gm):
    """Put the nodes of a GraphModule's graph into an order in which each comes after those it uses; the module.

    Errors: RuntimeError if there is none.
    """
    graph, made = Graph(tracer_cls=gm.graph._tracer_cls), {}
    waiting = {node: len(node.all_input_nodes) for node in gm.graph.nodes}
    ready = collections.deque([node for node, count in waiting.items() if not count])
    while ready:
        node = ready.popleft()
        made[node] = graph.node_copy(node, made.__getitem__)
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                (ready.append if user.op == "output" or user.op != "get_attr" else ready.appendleft)(user)
    if len(made) < len(waiting):
        raise RuntimeError(sentence("legalize_graph", "a graph without cycles", [node for node in waiting if node not in made]))
    graph._codegen = gm.graph._codegen
    gm.graph = graph
    return gm
