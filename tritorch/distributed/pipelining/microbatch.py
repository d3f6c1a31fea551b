"""Batches cut into microbatches, and results put together again."""
from tritorch.errors import check
from tritorch.ops.shaping import cat
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_unflatten


class TensorChunkSpec:
    """That a tensor is cut along `split_dim`.

    >>> from tritorch.distributed.pipelining.microbatch import TensorChunkSpec
    >>> TensorChunkSpec.from_tuple((0, 1))
    (TensorChunkSpec(0), TensorChunkSpec(1))
    """

    def __init__(self, split_dim):
        self.split_dim = split_dim

    def __repr__(self):
        return f"TensorChunkSpec({self.split_dim})"

    @staticmethod
    def from_tuple(chunk_dims):
        """A spec for each of several arguments."""
        return tuple(map(TensorChunkSpec, chunk_dims))

    @staticmethod
    def from_dict(chunk_dims):
        """The same for keyword arguments."""
        return {name: TensorChunkSpec(dim) for name, dim in chunk_dims.items()}


class Reducer:
    """That the outputs of microbatches become one value: `reduce_fn(value so far, output)`, from `init_value` on."""

    def __init__(self, init_value, reduce_fn):
        self.init_value, self.reduce_fn = init_value, reduce_fn


def split_args_kwargs_into_chunks(args, kwargs, chunks, args_chunk_spec=None, kwargs_chunk_spec=None):
    """([arguments of each microbatch], [their keyword arguments]). Tensors are cut along dim 0 unless a spec, of the form of the arguments,
    names another dim, or None, which leaves them whole; other values go to all. A batch that `chunks` does not divide gives larger ones
    first, as `tensor_split` does.

    Errors: ValueError for a tensor of fewer rows than chunks, or a spec of another form.

    >>> import tritorch as torch
    >>> from tritorch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks
    >>> args, kwargs = split_args_kwargs_into_chunks((torch.arange(5),), {"causal": True}, 2)
    >>> args, kwargs
    ([(tensor([0, 1, 2]),), (tensor([3, 4]),)], [{'causal': True}, {'causal': True}])
    """
    return _split(tuple(args), args_chunk_spec, chunks), _split(dict(kwargs or {}), kwargs_chunk_spec, chunks)


def _split(values, spec, chunks):
    leaves, form = tree_flatten(values)
    if spec is None:
        dims = [TensorChunkSpec(0) if isinstance(x, Tensor) else None for x in leaves]
    else:
        dims, given = tree_flatten(spec)
        check(len(dims) == len(leaves), "pipelining", f"a chunk spec of the form of its {len(leaves)} arguments", f"one of {len(dims)}",
              error=ValueError)
    columns = [cut(x, dim, chunks) for x, dim in zip(leaves, dims)]
    return [tree_unflatten([column[k] for column in columns], form) for k in range(chunks)]


def cut(x, spec, chunks):
    """A value for each of `chunks` microbatches."""
    if not isinstance(spec, TensorChunkSpec):
        return [x] * chunks
    check(isinstance(x, Tensor), "pipelining", "a tensor where there is a TensorChunkSpec", type(x).__name__, error=TypeError)
    rows = x.shape[spec.split_dim] if x.ndim else 0
    check(rows >= chunks, "pipelining", f"a batch of at least {chunks} rows, one for each microbatch", rows, error=ValueError)
    return x.tensor_split(chunks, spec.split_dim)


def merge_chunks(chunks, chunk_spec=None):
    """The outputs of microbatches as those of the batch: joined along dim 0, or as `chunk_spec`, of an output's form, says.

    >>> import tritorch as torch
    >>> from tritorch.distributed.pipelining.microbatch import TensorChunkSpec, merge_chunks, sum_reducer
    >>> merge_chunks([(torch.ones(1), torch.tensor(2.0)), (torch.zeros(1), torch.tensor(3.0))], (TensorChunkSpec(0), sum_reducer))
    (tensor([1., 0.]), tensor(5.))
    """
    columns, form = list(zip(*[tree_flatten(chunk)[0] for chunk in chunks])), tree_flatten(chunks[0])[1]
    specs = [TensorChunkSpec(0)] * len(columns) if chunk_spec is None else tree_flatten(chunk_spec)[0]
    check(len(specs) == len(columns), "merge_chunks", f"a spec of the form of {len(columns)} outputs", len(specs), error=ValueError)
    return tree_unflatten([_merged(column, spec) for column, spec in zip(columns, specs)], form)


def _merged(column, spec):
    if isinstance(spec, TensorChunkSpec):
        return cat(list(column), spec.split_dim)
    if isinstance(spec, Reducer):
        value = spec.init_value
        for x in column:
            value = spec.reduce_fn(value, x)
        return value
    first = column[0]
    alike = all(x is first or (x.equal(first) if isinstance(first, Tensor) else x == first) for x in column)
    check(alike, "merge_chunks", "the same value from all microbatches, or a TensorChunkSpec", "values that differ", error=ValueError)
    return first


sum_reducer = Reducer(0.0, lambda value, x: value + x)

__all__ = ["Reducer", "TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks", "sum_reducer"]
