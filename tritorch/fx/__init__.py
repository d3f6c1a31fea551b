"""Programs as graphs: `symbolic_trace` makes a graph of a function or module, passes change it, a `GraphModule` runs it. As torch.fx;
Reed et al. 2021, arXiv:2112.08429.

>>> import tritorch as torch
>>> class Net(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.linear, self.scale = torch.nn.Linear(4, 5), torch.nn.Parameter(torch.ones(4))
...     def forward(self, x):
...         return torch.relu(self.linear(x * self.scale)).clamp(max=1.0)
>>> traced = torch.fx.symbolic_trace(Net())
>>> print(traced.code.strip())
def forward(self, x):
    scale = self.scale
    mul = x * scale;  x = scale = None
    linear = self.linear(mul);  mul = None
    relu = tritorch.relu(linear);  linear = None
    clamp = relu.clamp(max = 1.0);  relu = None
    return clamp
>>> for node in traced.graph.find_nodes(op="call_function", target=torch.relu):
...     node.target = torch.nn.functional.gelu
>>> _ = traced.recompile()
>>> "tritorch.nn.functional.gelu(linear)" in traced.code
True

It is made of what `__torch_function__` makes of calls with objects of other classes. The first trace of a process has all public functions
ask for such objects from then on.
"""
from tritorch.fx import immutable_collections
from tritorch.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
from tritorch.fx.graph import CodeGen, Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.interpreter import Interpreter, Transformer
from tritorch.fx.node import Node, has_side_effect, map_arg
from tritorch.fx.proxy import Proxy
from tritorch.fx.subgraph_rewriter import replace_pattern

__all__ = ["PH", "CodeGen", "Graph", "GraphModule", "Interpreter", "Node", "Proxy", "ProxyableClassMeta", "Tracer", "Transformer",
           "has_side_effect", "immutable_collections", "map_arg", "replace_pattern", "symbolic_trace", "wrap"]


def __getattr__(name):
    if name in ("experimental", "passes"):
        import importlib

        return importlib.import_module(f"tritorch.fx.{name}")
    raise AttributeError(f"module 'tritorch.fx' has no attribute {name!r}")
