"""Running graphs node by node, and making others of them."""
import inspect

from tritorch.errors import sentence
from tritorch.fx import traceback as fx_traceback
from tritorch.fx._symbolic_trace import Tracer
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import map_aggregate, map_arg
from tritorch.fx.proxy import Proxy

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs the graph of a module node by node. Subclasses say otherwise what some nodes do: `run_node` for each, or by its op
    `placeholder`, `get_attr`, `call_function`, `call_method`, `call_module` and `output`, of (target, args, kwargs) with values.

    `garbage_collect_values`: values are forgotten after the last node that uses them. `graph`: another than the module's.

    >>> import tritorch as torch
    >>> class Halved(torch.fx.Interpreter):
    ...     def call_function(self, target, args, kwargs):
    ...         return super().call_function(target, args, kwargs) / 2
    >>> Halved(torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)).run(torch.tensor([-1.0, 4.0]))
    tensor([0.5000, 1.5000])
    """

    def __init__(self, module, garbage_collect_values=True, graph=None):
        self.module, self.submodules = module, dict(module.named_modules())
        self.graph = module.graph if graph is None else graph
        self.env, self.name, self.garbage_collect_values, self.extra_traceback = {}, "Interpreter", garbage_collect_values, True
        self.user_to_last_uses, seen = {}, set()
        for user in reversed(self.graph.nodes) if garbage_collect_values else ():
            for node in user._input_nodes:
                if node not in seen:
                    seen.add(node)
                    self.user_to_last_uses.setdefault(user, []).append(node)

    def run(self, *args, initial_env=None, enable_io_processing=True):
        """What the graph returns for these arguments. `initial_env`: values of nodes that are not to be run; without
        `enable_io_processing` containers are not taken apart and put together.

        Errors: those of the nodes, to which the node is added.
        """
        self.env = {} if initial_env is None else initial_env
        self.args_iter = iter(self.graph.process_inputs(*args) if enable_io_processing else args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    _tell(error, node)
                raise
            for gone in self.user_to_last_uses.get(node, ()):
                self.env.pop(gone, None)
            if node.op == "output":
                return self.graph.process_outputs(self.env[node]) if enable_io_processing else self.env[node]
        return None

    def boxed_run(self, args_list):
        """`run` with the values of all placeholders from a list, which is emptied, so that they can be forgotten.

        Errors: RuntimeError for more or fewer of them.
        """
        inputs = self.graph.find_nodes(op="placeholder")
        if len(inputs) != len(args_list):
            raise RuntimeError(sentence("boxed_run", f"{len(inputs)} values", len(args_list)))
        values = dict(zip(inputs, args_list))
        args_list.clear()
        return self.run(initial_env=values)

    def run_node(self, n):
        """The value of a node."""
        with fx_traceback.set_current_meta(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)

    # -------------------------------------------------------------- by op
    def placeholder(self, target, args, kwargs):
        """The next argument; without one the default. Of *args all that are left."""
        if target.startswith("*"):
            return list(self.args_iter)
        found = next(self.args_iter, inspect.Signature.empty)
        if found is inspect.Signature.empty:
            if not args:
                raise RuntimeError(sentence("run", f"an argument for {target}", "none"))
            return args[0]
        return found

    def get_attr(self, target, args, kwargs):
        """What the module has under a dotted name."""
        return self.fetch_attr(target)

    def call_function(self, target, args, kwargs):
        """target(*args, **kwargs)"""
        return target(*args, **kwargs)

    def call_method(self, target, args, kwargs):
        """The method of the first argument, called with the others."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target, args, kwargs):
        """The module of a dotted name, called."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target, args, kwargs):
        """What is returned."""
        return args[0]

    # -------------------------------------------------------------- values
    def fetch_attr(self, target):
        """What the module has under a dotted name.

        Errors: RuntimeError if it has nothing.
        """
        found = self.module
        for k, name in enumerate(target.split(".")):
            if not hasattr(found, name):
                raise RuntimeError(sentence("run", f"a module with {target}", f"none with {'.'.join(target.split('.')[:k + 1])}"))
            found = getattr(found, name)
        return found

    def fetch_args_kwargs_from_env(self, n):
        """(args, kwargs) of a node with the values of the nodes in them."""
        return self.map_nodes_to_values((n.args, n.kwargs), n)

    def map_nodes_to_values(self, args, n):
        """Arguments of a node with the values of the nodes in them.

        Errors: RuntimeError for one that has none.
        """
        def value(node):
            if node not in self.env:
                raise RuntimeError(sentence("run", f"a value of {node} for {n}", "none", use="Graph.lint"))
            return self.env[node]

        return map_arg(args, value)


def _tell(error, node):
    """Add to an error the node where it came up."""
    told = f"at {node.format_node()}" + (f"\nmade at\n{node.stack_trace}" if node.stack_trace else "")
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n\n{told}", *error.args[1:])
    elif not error.args:
        error.args = (told,)


class Transformer(Interpreter):
    """Makes another module by running the graph of one with proxies: what `call_function` and its like return is what is in the place of
    the node.

    >>> import tritorch as torch
    >>> class Smooth(torch.fx.Transformer):
    ...     def call_method(self, target, args, kwargs):
    ...         return super().call_method("sigmoid" if target == "relu" else target, args, kwargs)
    >>> print(Smooth(torch.fx.symbolic_trace(lambda x: x.relu() * 2)).transform().code.strip())
    def forward(self, x):
        sigmoid = x.sigmoid();  x = None
        mul = sigmoid * 2;  sigmoid = None
        return mul
    """

    def __init__(self, module):
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        self.tracer = _TransformerTracer(module, self.new_graph)

    def placeholder(self, target, args, kwargs):
        default = args[0] if args else inspect.Signature.empty
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)

    def get_attr(self, target, args, kwargs):
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        return self.tracer.call_module(module, module.forward, args, kwargs)

    def call_function(self, target, args, kwargs):
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self):
        """The module that was made, with the parameters, buffers and modules of the first."""
        with fx_traceback.preserve_node_meta():
            result = self.run(enable_io_processing=False)
        if result is not None:
            made = self.new_graph.output(map_aggregate(result, lambda a: a.node if isinstance(a, Proxy) else a))
            made.meta.update(self.graph.output_node().meta)
        return GraphModule(self.module, self.new_graph)


class _TransformerTracer(Tracer):
    def __init__(self, root, graph):
        super().__init__()
        self.root, self.graph, self.tensor_attrs = root, graph, {}

    def is_leaf_module(self, m, module_qualified_name):
        return True
