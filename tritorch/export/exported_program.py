"""What `export` returns."""
import copy
import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from tritorch.errors import sentence
from tritorch.export.graph_signature import ExportGraphSignature
from tritorch.export.unlifted import module_of, wanted_of
from tritorch.fx.graph_module import GraphModule

__all__ = ["CallSpec", "ExportedProgram", "ModuleCallEntry", "ModuleCallSignature", "ValueRanges"]


@dataclass(frozen=True)
class ValueRanges:
    """The sizes that a dynamic axis may have."""

    lower: int
    upper: float

    def __repr__(self):
        return f"VR[{self.lower}, {'int_oo' if self.upper == math.inf else self.upper}]"


@dataclass
class ModuleCallSignature:
    """How a module is called: the forms of (args, kwargs) and of what it returns, and the names of its parameters."""

    inputs: list[Any]
    outputs: list[Any]
    in_spec: Any
    out_spec: Any
    forward_arg_names: list[str] | None = None


@dataclass
class ModuleCallEntry:
    """A module by its path, and how it is called, which is known of the outermost one."""

    fqn: str
    signature: ModuleCallSignature | None = None


@dataclass
class CallSpec:
    """The forms of (args, kwargs) and of what is returned."""

    in_spec: Any
    out_spec: Any


@dataclass
class ExportedProgram:
    """The graph of a module with its parameters and buffers: see `export`.

    `graph_module`, a GraphModule of `graph`, takes them all as inputs, then the leaves of the arguments; `graph_signature` says which are
    which, `module()` is called as the module was. `state_dict` are the parameters and buffers, the same tensors as the module's,
    `constants` what else the graph reads, `range_constraints` {name of a dynamic axis: its sizes}, `example_inputs` (args, kwargs).

    >>> import tritorch as torch
    >>> program = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(3, 2),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    >>> print(program.graph)
    graph():
        %p_weight : [num_users=1] = placeholder[target=p_weight]
        %p_bias : [num_users=1] = placeholder[target=p_bias]
        %input : [num_users=1] = placeholder[target=input]
        %linear : [num_users=1] = call_function[target=tritorch.ops.aten.linear.default](args = (%input, %p_weight, %p_bias), kwargs = {})
        return (linear,)
    >>> program.range_constraints, program.module()(torch.ones(7, 2)).shape
    ({'rows': VR[0, int_oo]}, tritorch.Size([7, 1]))
    """

    graph_module: GraphModule
    graph_signature: ExportGraphSignature
    state_dict: dict
    range_constraints: dict
    module_call_graph: list
    example_inputs: tuple | None = None
    constants: dict = field(default_factory=dict)
    dialect: str = "TRAINING"

    def __repr__(self):
        return str(self)

    def __str__(self):
        text = textwrap.indent(self.graph_module.print_readable(print_output=False), "    ")
        return f"ExportedProgram:\n{text}\n\nGraph signature: {self.graph_signature}\nRange constraints: {self.range_constraints}\n"

    def __call__(self, *args, **kwargs):
        """RuntimeError: `module()` is what is called."""
        raise RuntimeError(sentence("ExportedProgram", "a call of exported_program.module()", "one of the program itself"))

    @property
    def graph(self):
        """The graph."""
        return self.graph_module.graph

    @property
    def call_spec(self):
        """The forms of (args, kwargs) and of what is returned."""
        signed = self.module_call_graph[0].signature
        return CallSpec(signed.in_spec, signed.out_spec)

    @property
    def tensor_constants(self):
        """`constants`."""
        return self.constants

    def ranges(self):
        """{name of a dynamic axis: (smallest, largest size)}."""
        return {name: (found.lower, found.upper) for name, found in self.range_constraints.items()}

    # -------------------------------------------------------------- parameters and buffers
    def parameters(self):
        """The parameters."""
        for _, x in self.named_parameters():
            yield x

    def named_parameters(self):
        """The parameters with their names."""
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]

    def buffers(self):
        """The buffers."""
        for _, x in self.named_buffers():
            yield x

    def named_buffers(self):
        """The buffers with their names."""
        for name in self.graph_signature.buffers:
            yield name, self.constants[name] if name in self.graph_signature.non_persistent_buffers else self.state_dict[name]

    # -------------------------------------------------------------- other forms
    def module(self, check_guards=True):
        """A module that is called as the one that was exported, and trains as it did, in the mode in which it was: `train()` and `eval()`
        raise NotImplementedError. It has the same parameters and buffers as the program, whose values change with it. It raises
        AssertionError for inputs of other shapes and dtypes and for other numbers, unless check_guards=False.

        >>> import tritorch as torch
        >>> model = torch.nn.Linear(2, 2)
        >>> module = torch.export.export(model, (torch.ones(1, 2),)).module()
        >>> module(torch.ones(1, 2)).sum().backward()
        >>> model.bias.grad
        tensor([1., 1.])
        """
        return module_of(self, check_guards)

    def run_decompositions(self, decomp_table=None):
        """The same program without writes in place: buffers and inputs that are written to are results of the graph, of the kinds
        BUFFER_MUTATION and USER_INPUT_MUTATION, and `module()` writes them. `decomp_table` is {operator, as nodes have it: function that
        is called in its place}.

        >>> import tritorch as torch
        >>> program = torch.export.export(torch.nn.BatchNorm1d(2), (torch.ones(3, 2),)).run_decompositions()
        >>> sorted(program.graph_signature.buffers_to_mutate.values())
        ['num_batches_tracked', 'running_mean', 'running_var']
        """
        from tritorch.export.exporter import again

        return again(self, dict(decomp_table or {}))

    def dynamic_shapes(self):
        """The dynamic axes of the inputs by parameter, as `export` takes them."""
        from tritorch.tracing.dims import Dim

        signed, ranges = self.module_call_graph[0].signature, self.ranges()
        leaves = []
        for _, dtype, shape in wanted_of(self):
            spec = {}
            for k, size in enumerate(shape if dtype is not None else ()):
                if not isinstance(size, int):
                    low, high = ranges[size[0]]
                    spec[k] = Dim(size[0], min=low, max=None if high == math.inf else high) * size[1]
            leaves.append(spec)
        args, kwargs = signed.in_spec.unflatten(leaves)
        return dict(zip(signed.forward_arg_names, [*args, *kwargs.values()]))

    def __deepcopy__(self, memo):
        made = copy.copy(self)
        memo[id(self)] = made
        for name in ("graph_module", "graph_signature", "state_dict", "constants", "example_inputs"):
            setattr(made, name, copy.deepcopy(getattr(self, name), memo))
        for old, new in zip(self.graph.nodes, made.graph.nodes):
            new.name = old.name
        made.graph_module.recompile()
        return made
