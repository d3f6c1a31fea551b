"""How a tensor lies along one dim of a mesh: cut (Shard), whole on each process (Replicate), or as values still to be reduced (Partial).

>>> from tritorch.distributed.tensor import Partial, Replicate, Shard
>>> Shard(1), Replicate(), Partial()
(Shard(dim=1), Replicate(), Partial(sum))
"""
from tritorch.errors import check

__all__ = ["Partial", "Placement", "Replicate", "Shard"]


class Placement:
    """What Shard, Replicate and Partial have in common. They never change, and there is one object for all that say the same."""

    __slots__ = ()

    def is_shard(self, dim=None):
        """Whether the tensor is cut, along `dim` if that is given."""
        return False

    def is_replicate(self):
        """Whether each process has the whole tensor."""
        return False

    def is_partial(self, reduce_op=None):
        """Whether the values of the processes are still to be reduced, by `reduce_op` if that is given."""
        return False

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def _one(cls, made, key, **values):
    """The object of a class for a key."""
    found = made.get((cls, key))
    if found is None:
        found = object.__new__(cls)
        for name, value in values.items():
            setattr(found, name, value)
        made[cls, key] = found
    return found


_placements = {}


class Shard(Placement):
    """Each process has a piece of dim `dim`, as `torch.chunk` cuts it: all of ceil(n / processes) rows, but for the last ones.

    >>> from tritorch.distributed.tensor import Shard
    >>> Shard.local_shard_size_and_offset(5, 2, 1)
    (2, 3)
    """

    __slots__ = ("dim",)

    def __new__(cls, dim):
        check(isinstance(dim, int) and not isinstance(dim, bool), "Shard", "an int as dim", repr(dim), error=TypeError)
        return _one(cls, _placements, dim, dim=dim)

    def __reduce__(self):
        return Shard, (self.dim,)

    def is_shard(self, dim=None):
        return dim is None or dim == self.dim

    @staticmethod
    def local_shard_size_and_offset(curr_local_size, num_chunks, rank):
        """(rows, first row) of the piece of `rank` where `curr_local_size` rows are cut into `num_chunks`."""
        most = -(-curr_local_size // num_chunks)
        first = min(most * rank, curr_local_size)
        return min(most, curr_local_size - first), first

    def __repr__(self):
        return f"Shard(dim={self.dim})"

    def __str__(self):
        return f"S({self.dim})"


class _StridedShard(Placement):
    """PyTorch's piece of a dim in several rows of pieces. No tensor here lies so: the name is there to be asked for, and cannot be made."""

    __slots__ = ()

    def __new__(cls, dim, *, split_factor):
        raise NotImplementedError(f"_StridedShard: expected Shard, Replicate or Partial, got pieces of dim {dim} in {split_factor} rows")


class Replicate(Placement):
    """Each process has the whole tensor, and all have the same values."""

    __slots__ = ()

    def __new__(cls):
        return _one(cls, _placements, None)

    def __reduce__(self):
        return Replicate, ()

    def is_replicate(self):
        return True

    def __repr__(self):
        return "Replicate()"

    def __str__(self):
        return "R"


class Partial(Placement):
    """Each process has values of the whole shape, and the tensor is what `reduce_op` makes of them: "sum", "avg", "max", "min" or
    "product"."""

    __slots__ = ("reduce_op",)
    ALL_REDUCE_OPS = ("sum", "avg", "max", "min", "product")
    LINEAR_REDUCE_OPS = ("sum", "avg")

    def __new__(cls, reduce_op="sum"):
        check(reduce_op in cls.ALL_REDUCE_OPS, "Partial", f"one of {', '.join(cls.ALL_REDUCE_OPS)}", repr(reduce_op), error=ValueError)
        return _one(cls, _placements, reduce_op, reduce_op=reduce_op)

    def __reduce__(self):
        return Partial, (self.reduce_op,)

    def is_partial(self, reduce_op=None):
        return reduce_op is None or reduce_op == self.reduce_op

    def __repr__(self):
        return f"Partial({self.reduce_op})"

    def __str__(self):
        return f"P({self.reduce_op})"
