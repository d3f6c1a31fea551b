"""Passes over graphs: shapes of values, modules in parts, drawings."""
from tritorch.fx.passes import graph_drawer, shape_prop, split_module, tools_common

__all__ = ["graph_drawer", "shape_prop", "split_module", "tools_common"]
