"""How the parts of a tensor that is spread over several processes make up the whole: values that say so, no more."""
import dataclasses

__all__ = ["Partial", "Placement", "Replicate", "Shard"]


class Placement:
    """What all have in common.

    >>> from tritorch.distributed.tensor import Replicate, Shard
    >>> Shard(1), Shard(1).is_shard(0), Shard(1) == Shard(1), Replicate().is_replicate()
    (Shard(dim=1), False, True, True)
    """

    def is_shard(self, dim=None):
        """Whether each process has a slice (of the dim)."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self):
        """Whether each process has the whole."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op=None):
        """Whether the whole is what the parts are reduced to (by the operation)."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclasses.dataclass(frozen=True)
class Shard(Placement):
    """Each process has a slice along the dim."""

    dim: int

    def __str__(self):
        return f"S({self.dim})"


@dataclasses.dataclass(frozen=True)
class Replicate(Placement):
    """Each process has the whole."""

    def __str__(self):
        return "R"


@dataclasses.dataclass(frozen=True, repr=False)
class Partial(Placement):
    """The whole is the sum of what the processes have, or what else `reduce_op` makes of it."""

    reduce_op: str = "sum"

    def __repr__(self):
        return f"Partial({self.reduce_op})"

    def __str__(self):
        return f"P({self.reduce_op})"
