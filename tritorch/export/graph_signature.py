"""What the inputs and outputs of an exported graph are: `ep.graph_signature`."""
import enum
from dataclasses import dataclass, field
from typing import Any

from tritorch.errors import sentence

__all__ = ["ArgumentSpec", "ConstantArgument", "ExportGraphSignature", "InputKind", "InputSpec", "OutputKind", "OutputSpec",
           "SymIntArgument", "TensorArgument"]


@dataclass
class TensorArgument:
    """A tensor, by the name of its node."""

    name: str


@dataclass
class SymIntArgument:
    """A number that depends on dynamic axes, by the name of its node."""

    name: str


@dataclass
class ConstantArgument:
    """A number, text or None, which is always this one."""

    name: str
    value: Any


ArgumentSpec = TensorArgument | SymIntArgument | ConstantArgument


class InputKind(enum.Enum):
    """What an input is."""

    USER_INPUT, PARAMETER, BUFFER, CONSTANT_TENSOR = 1, 2, 3, 4


class OutputKind(enum.Enum):
    """What an output is: a result, or what a buffer or an input holds after the call."""

    USER_OUTPUT, LOSS_OUTPUT, BUFFER_MUTATION, USER_INPUT_MUTATION = 1, 2, 3, 6


@dataclass
class InputSpec:
    """An input: `target` is the name in the module of a parameter, buffer or constant, `persistent` whether a buffer is saved."""

    kind: InputKind
    arg: ArgumentSpec
    target: str | None
    persistent: bool | None = None

    def __str__(self):
        return _line(self.arg.name, self.kind, self.target) + ("" if self.persistent is None else f" persistent={self.persistent}")


@dataclass
class OutputSpec:
    """An output: `target` is the buffer or input that has its value afterwards."""

    kind: OutputKind
    arg: ArgumentSpec
    target: str | None

    def __str__(self):
        return _line(self.arg.name, self.kind, self.target)


def _line(name, kind, target):
    return f"{name}: {kind.name}" + ("" if target is None else f" target={target!r}")


@dataclass
class ExportGraphSignature:
    """The inputs and outputs of a graph in their order.

    >>> import tritorch as torch
    >>> print(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).graph_signature)
    <BLANKLINE>
    # inputs
    p_weight: PARAMETER target='weight'
    p_bias: PARAMETER target='bias'
    input: USER_INPUT
    <BLANKLINE>
    # outputs
    linear: USER_OUTPUT
    <BLANKLINE>
    """

    input_specs: list[InputSpec] = field(default_factory=list)
    output_specs: list[OutputSpec] = field(default_factory=list)

    def _targets(self, kind):
        return tuple([spec.target for spec in self.input_specs if spec.kind is kind])

    def _by_name(self, *kinds, specs=None):
        return {spec.arg.name: spec.target for spec in specs or self.input_specs if spec.kind in kinds}

    def _user(self, specs, kind):
        return tuple([spec.arg.value if isinstance(spec.arg, ConstantArgument) else spec.arg.name for spec in specs if spec.kind is kind])

    @property
    def parameters(self):
        """The names of the parameters in the module."""
        return self._targets(InputKind.PARAMETER)

    @property
    def buffers(self):
        """The names of the buffers in the module."""
        return self._targets(InputKind.BUFFER)

    @property
    def non_persistent_buffers(self):
        """The names of the buffers that are not saved."""
        return tuple([spec.target for spec in self.input_specs if spec.kind is InputKind.BUFFER and spec.persistent is False])

    @property
    def lifted_tensor_constants(self):
        """The names of the constants."""
        return self._targets(InputKind.CONSTANT_TENSOR)

    @property
    def user_inputs(self):
        """The names of the inputs of the user, of those that are numbers the numbers."""
        return self._user(self.input_specs, InputKind.USER_INPUT)

    @property
    def user_outputs(self):
        """The names of the results, of those that are numbers the numbers."""
        return self._user(self.output_specs, OutputKind.USER_OUTPUT)

    @property
    def inputs_to_parameters(self):
        """{name of an input: name of the parameter}."""
        return self._by_name(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self):
        """{name of an input: name of the buffer}."""
        return self._by_name(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self):
        """{name of an input: name of the constant}."""
        return self._by_name(InputKind.CONSTANT_TENSOR)

    @property
    def buffers_to_mutate(self):
        """{name of an output: name of the buffer that has its value after the call}, of graphs without writes in place."""
        return self._by_name(OutputKind.BUFFER_MUTATION, specs=self.output_specs)

    @property
    def user_inputs_to_mutate(self):
        """{name of an output: name of the input that has its value after the call}, of graphs without writes in place."""
        return self._by_name(OutputKind.USER_INPUT_MUTATION, specs=self.output_specs)

    backward_signature = None
    assertion_dep_token = None

    def replace_all_uses(self, old, new):
        """Call a node by another name."""
        if not isinstance(old, str) or not isinstance(new, str):
            raise TypeError(sentence("replace_all_uses", "names", old, new))
        for spec in [*self.input_specs, *self.output_specs]:
            if spec.arg.name == old:
                spec.arg.name = new

    def __str__(self):
        return "\n".join(["", "# inputs", *map(str, self.input_specs), "", "# outputs", *map(str, self.output_specs), ""])
