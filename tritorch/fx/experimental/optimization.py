"""Models for inference: batch norms computed into the layers before them, no dropout."""
import copy

from tritorch import nn
from tritorch.fx._symbolic_trace import Tracer, symbolic_trace
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.interpreter import Transformer
from tritorch.fx.node import Node
from tritorch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

__all__ = ["extract_subgraph", "fuse", "matches_module_pattern", "optimize_for_inference", "remove_dropout", "replace_node_module"]

FUSED = {(nn.Conv1d, nn.BatchNorm1d): fuse_conv_bn_eval, (nn.Conv2d, nn.BatchNorm2d): fuse_conv_bn_eval,
         (nn.Conv3d, nn.BatchNorm3d): fuse_conv_bn_eval, (nn.Linear, nn.BatchNorm1d): fuse_linear_bn_eval}


def matches_module_pattern(pattern, node, modules):
    """Whether a node calls a module of the second class of a result of one of the first."""
    before = node.args[0] if node.args else None
    return all(isinstance(n, Node) and n.op == "call_module" and type(modules.get(n.target)) is kind
               for kind, n in zip(pattern, (before, node)))


def replace_node_module(node, modules, new_module):
    """Put another module in the place of the one that a node calls; `modules` are those of the model by name."""
    path, _, name = node.target.rpartition(".")
    modules[node.target] = new_module
    setattr(modules[path], name, new_module)


def fuse(model, inplace=False, no_trace=False):
    """The model with batch norms in evaluation mode computed into the convolutions and linear layers before them, as a GraphModule.

    `inplace`: the layers of the model itself are replaced; `no_trace`: a GraphModule is taken as it is.

    >>> import tritorch as torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU()).eval()
    >>> print(fuse(model).code.strip())
    def forward(self, input):
        input_1 = input
        _0 = getattr(self, "0")(input_1);  input_1 = None
        _2 = getattr(self, "2")(_0);  _0 = None
        return _2
    """
    model = model if inplace else copy.deepcopy(model)
    traced = model if no_trace and isinstance(model, GraphModule) else symbolic_trace(model)
    modules, graph = dict(traced.named_modules()), copy.deepcopy(traced.graph)
    for pattern, fused in FUSED.items():
        for node in graph.nodes:
            if matches_module_pattern(pattern, node, modules):
                before, norm = node.args[0], modules[node.target]
                if len(before.users) == 1 and norm.track_running_stats:
                    replace_node_module(before, modules, fused(modules[before.target], norm))
                    node.replace_all_uses_with(before)
                    graph.erase_node(node)
    return GraphModule(traced, graph)


def remove_dropout(model):
    """The model without its `Dropout` modules, as a GraphModule.

    >>> import tritorch as torch
    >>> [node.op for node in remove_dropout(torch.nn.Sequential(torch.nn.Dropout())).graph.nodes]
    ['placeholder', 'output']
    """
    return _DropoutRemover(symbolic_trace(model)).transform()


class _DropoutRemover(Transformer):
    def call_module(self, target, args, kwargs):
        return args[0] if isinstance(self.submodules[target], nn.Dropout) else super().call_module(target, args, kwargs)


def extract_subgraph(orig_module, nodes, inputs, outputs):
    """A GraphModule of some nodes of a module's graph, of these inputs and with these outputs, as a list."""
    graph, made = Graph(), {}
    for node in inputs:
        made[node] = graph.placeholder(node.name)
    for node in nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output([made[node] for node in outputs])
    graph.lint()
    return GraphModule(orig_module, graph)


def optimize_for_inference(model, pass_config=None, tracer=Tracer):
    """`fuse` and `remove_dropout` of a model, unless `pass_config`, {"conv_bn_fuse": …, "remove_dropout": …}, leaves them out. There are
    no layouts of MKL-DNN here, for its key "mkldnn_layout_optimize" to choose."""
    chosen = {"conv_bn_fuse": True, "remove_dropout": True, **(pass_config or {})}
    model = fuse(model) if chosen["conv_bn_fuse"] else model
    model = remove_dropout(model) if chosen["remove_dropout"] else model
    traced = tracer()
    graph = traced.trace(copy.deepcopy(model))
    return GraphModule(traced.root, graph)
