"""Running a graph node by node, to see or change what each of them does."""
from tritorch.errors import check
from tritorch.fx.graph import Graph
from tritorch.fx.graph_module import GraphModule
from tritorch.fx.node import map_arg
from tritorch.fx.proxy import Proxy, TracerBase


class Interpreter:
    """Runs a GraphModule. Subclasses see and change each step: `run_node`, and a method for every op.

    >>> import tritorch as torch
    >>> class Shapes(torch.fx.Interpreter):
    ...     def run_node(self, n):
    ...         result = super().run_node(n)
    ...         print(n.name, tuple(result.shape))
    ...         return result
    >>> _ = Shapes(torch.fx.symbolic_trace(lambda x: x.sum(0) + 1)).run(torch.ones(2, 3))
    x (2, 3)
    sum_1 (3,)
    add (3,)
    output (3,)
    """

    def __init__(self, module, garbage_collect_values=True, graph=None):
        self.module, self.submodules = module, dict(module.named_modules())
        self.graph = module.graph if graph is None else graph
        self.garbage_collect_values, self.env = garbage_collect_values, {}
        last = {node: user for user in self.graph.nodes for node in user.all_input_nodes}
        self.user_to_last_uses = {}
        for node, user in last.items():
            self.user_to_last_uses.setdefault(user, []).append(node)

    def run(self, *args, initial_env=None, enable_io_processing=True):
        """What the module returns for these arguments. `initial_env`: results of nodes that are not run."""
        self.env, self.args_iter = dict(initial_env or {}), iter(args)
        for node in self.graph.nodes:
            if node not in self.env:
                self.env[node] = self.run_node(node)
            if node.op == "output":
                return self.env[node]
            for gone in self.user_to_last_uses.get(node, ()) if self.garbage_collect_values else ():
                del self.env[gone]
        return None

    def run_node(self, n):
        """The result of a node."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target, args, kwargs):
        """The next argument."""
        if target.startswith("*"):
            return list(self.args_iter)
        found = next(self.args_iter, *args[:1]) if args else next(self.args_iter, self)
        check(found is not self, "run", f"a value for the argument {target}", "none")
        return found

    def get_attr(self, target, args, kwargs):
        """The attribute."""
        return self.fetch_attr(target)

    def call_function(self, target, args, kwargs):
        """What the function returns."""
        return target(*args, **kwargs)

    def call_method(self, target, args, kwargs):
        """What the method of the first argument returns."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target, args, kwargs):
        """What the module returns."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target, args, kwargs):
        """What is returned."""
        return args[0]

    def fetch_attr(self, target):
        """An attribute of the module by its dotted name."""
        found = self.module
        for part in target.split("."):
            check(hasattr(found, part), "run", f"an attribute {target}", f"none called {part}")
            found = getattr(found, part)
        return found

    def fetch_args_kwargs_from_env(self, n):
        """The values of a node's arguments."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args, n):
        """The values of nodes in containers."""
        return map_arg(args, self.env.__getitem__)


class Transformer(Interpreter):
    """Makes another GraphModule of one: each method gives, for proxies of its arguments, the proxy to take instead.

    >>> import tritorch as torch
    >>> class Smooth(torch.fx.Transformer):
    ...     def call_function(self, target, args, kwargs):
    ...         return super().call_function(torch.sigmoid if target is torch.relu else target, args, kwargs)
    >>> Smooth(torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)).transform()(torch.tensor(0.0))
    tensor(1.5000)
    """

    def __init__(self, module):
        super().__init__(module)
        self.new_graph = Graph()
        self.tracer = _Writing(self.new_graph)

    def placeholder(self, target, args, kwargs):
        """A placeholder of the new graph."""
        return Proxy(self.new_graph.placeholder(target, default_value=args[0] if args else ...), self.tracer)

    def get_attr(self, target, args, kwargs):
        """An attribute in the new graph."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target, args, kwargs):
        """A call of the module in the new graph."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def call_function(self, target, args, kwargs):
        """A call of the function in the new graph."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target, args, kwargs):
        """A call of the method in the new graph."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def transform(self):
        """The new GraphModule."""
        result = self.run()
        if result is not None:
            self.new_graph.output(self.tracer.create_arg(result))
        return GraphModule(self.module, self.new_graph)


class _Writing(TracerBase):
    def __init__(self, graph):
        self.graph = graph
