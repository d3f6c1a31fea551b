"""Passes as objects."""
import abc
from typing import NamedTuple

from tritorch.fx.graph_module import GraphModule

__all__ = ["PassBase", "PassResult"]


class PassResult(NamedTuple):
    """What a pass made, and whether that differs from what it was given."""

    graph_module: GraphModule
    modified: bool


class PassBase(abc.ABC):
    """A pass: subclasses say in `call` what becomes of a GraphModule, a `PassResult` or None, and in `requires` and `ensures` what has to
    hold before and after, by errors.

    >>> import tritorch as torch
    >>> class NoDeadCode(PassBase):
    ...     def call(self, graph_module):
    ...         return PassResult(graph_module, graph_module.graph.eliminate_dead_code())
    >>> NoDeadCode()(torch.fx.symbolic_trace(lambda x: (x + 1, x)[1])).modified
    True
    """

    def __call__(self, graph_module):
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    @abc.abstractmethod
    def call(self, graph_module):
        """What becomes of it."""

    def requires(self, graph_module):                                    # noqa: B027 (nothing unless a subclass says so)
        """Called before."""

    def ensures(self, graph_module):                                     # noqa: B027
        """Called after."""
