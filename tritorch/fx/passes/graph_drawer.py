"""Drawings of graphs, for those who have the package pydot."""
from tritorch.errors import sentence
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import _format_arg
from tritorch.fx.passes.tools_common import get_node_target

try:
    import pydot
except ImportError:
    pydot = None

__all__ = ["FxGraphDrawer"]

COLORS = {"placeholder": "AliceBlue", "get_attr": "LightGrey", "output": "PowderBlue", "call_module": "LemonChiffon1",
          "call_function": "LightCyan", "call_method": "Thistle1"}


class FxGraphDrawer:
    """Drawings of the graph of a GraphModule, and of those below it, as `pydot.Dot`: `get_dot_graph().write_svg("f.svg")`.

    Errors: RuntimeError without the package pydot.
    """

    def __init__(self, graph_module, name, ignore_getattr=False, ignore_parameters_and_buffers=False, skip_node_names_in_args=True):
        if pydot is None:
            raise RuntimeError(sentence("FxGraphDrawer", "the package pydot", "none", use="pip install pydot"))
        self._skip_names = skip_node_names_in_args
        self._dot_graphs = {name: self._drawn(graph_module, name, ignore_getattr, ignore_parameters_and_buffers)}
        for child_name, child in graph_module.named_modules():
            if child_name and isinstance(child, GraphModule):
                self._dot_graphs[f"{name}_{child_name}"] = self._drawn(child, f"{name}_{child_name}", ignore_getattr,
                                                                       ignore_parameters_and_buffers)
        self._name = name

    def get_dot_graph(self, submod_name=None):
        """The drawing of the module, or of one below it, by its name."""
        return self._dot_graphs[self._name if submod_name is None else f"{self._name}_{submod_name}"]

    get_main_dot_graph = get_dot_graph

    def get_submod_dot_graph(self, submod_name):
        """The drawing of a module below it."""
        return self.get_dot_graph(submod_name)

    def get_all_dot_graphs(self):
        """All drawings by name."""
        return self._dot_graphs

    def _drawn(self, module, name, ignore_getattr, ignore_members):
        drawing, modules = pydot.Dot(name, rankdir="TB"), dict(module.named_modules())
        for node in module.graph.nodes:
            if not (ignore_getattr and node.op == "get_attr"):
                drawing.add_node(pydot.Node(node.name, label=self._label(node, modules, ignore_members), shape="record",
                                            style='"filled,rounded"', fillcolor=COLORS[node.op], fontcolor="#000000"))
                for user in node.users:
                    drawing.add_edge(pydot.Edge(node.name, user.name))
        return drawing

    def _label(self, node, modules, ignore_members):
        lines = [f"name=%{node.name}", f"op_code={node.op}"]
        calls = node.op.startswith("call_")
        lines.append(f"target={get_node_target(modules, node) if calls else node.target}")
        if node.op == "call_module" and not ignore_members:
            lines += [f"{key}: {tuple(value.shape)}" for key, value in modules[node.target].state_dict().items()]
        if calls and not self._skip_names:
            lines.append(f"args={_format_arg(node.args, 10)}")
        lines.append(f"num_users={len(node.users)}")
        known = node.meta.get("tensor_meta")
        if hasattr(known, "dtype"):
            lines += [f"dtype={known.dtype}", f"shape={tuple(known.shape)}"]
        text = "\\n".join(lines)
        for sign in "{}<>|":
            text = text.replace(sign, "\\" + sign)
        return "{" + text + "}"
