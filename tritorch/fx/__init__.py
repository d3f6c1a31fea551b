"""Functions and modules as graphs that programs can look at and change: `symbolic_trace`, `Graph`, `GraphModule`, `Interpreter`."""
from tritorch.fx._symbolic_trace import Tracer, symbolic_trace, wrap
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.interpreter import Interpreter, Transformer
from tritorch.fx.node import Node, map_arg
from tritorch.fx.proxy import Proxy

__all__ = ["Graph", "GraphModule", "Interpreter", "Node", "Proxy", "Tracer", "Transformer", "map_arg", "symbolic_trace", "wrap"]
