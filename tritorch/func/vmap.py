"""vmap: a function of one sample as a function of a batch."""
import functools

from tritorch.device import cpu
from tritorch.errors import NoTensor, check
from tritorch.generator import default_generator
from tritorch.ops.compare import equal
from tritorch.ops.shaping import stack
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_structure


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """`func` over the dim `in_dims` of its arguments (None: the same for all), its results stacked along `out_dims`.

    The function runs once for each sample: the meaning of PyTorch's vmap, at the speed of a loop. It composes with `grad`,
    `jacrev` and the others. With the randomness "same" all samples draw the same numbers, else each its own. `chunk_size` is accepted and
    changes nothing.

    >>> import tritorch as torch
    >>> torch.func.vmap(torch.dot)(torch.ones(3, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    tensor([ 3.,  7., 11.])
    """

    check(callable(func), "vmap", "a function", type(func).__name__, error=NoTensor)
    check(isinstance(randomness, str) and randomness in ("error", "different", "same"), "vmap", "randomness 'error', 'different' or 'same'",
          repr(randomness))
    check(isinstance(in_dims, (int, tuple)), "vmap", "in_dims as an int or a tuple", repr(in_dims), error=ValueError)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        (flat, form), dims = tree_flatten(args), _spread("in_dims", in_dims, args)
        for x, d in zip(flat, dims):
            fits = d is None or isinstance(d, int) and isinstance(x, Tensor) and -x.ndim <= d < x.ndim
            check(fits, "vmap", "in_dims that the arguments have", d, getattr(x, "shape", type(x).__name__), error=ValueError)
        sizes = {x.shape[d] for x, d in zip(flat, dims) if d is not None}
        check(len(sizes) == 1, "vmap", "mapped dims of one size", sorted(sizes) or "none", error=ValueError)
        rows, places = [], {cpu, *[x.device for x in flat if isinstance(x, Tensor) and not x.is_meta]}
        start = [(g, g.get_state()) for g in map(default_generator, places)] if randomness == "same" else []
        for k in range(sizes.pop()):
            for generator, state in start:
                generator.set_state(state)
            sample = form.unflatten([x if d is None else x.select(d, k) for x, d in zip(flat, dims)])
            rows.append(func(*sample, **kwargs))
        check(rows, "vmap", "at least one sample", "none")
        columns = zip(*map(tree_leaves, rows))
        made = [_joined(column, d) for column, d in zip(columns, _spread("out_dims", out_dims, rows[0]))]
        return tree_structure(rows[0]).unflatten(made)

    return wrapped


def _spread(op, dims, tree):
    """One dim for each leaf: a dim given for a container counts for all in it."""
    if dims is None or isinstance(dims, int):
        return [dims] * len(tree_leaves(tree))
    (parts, _), (values, form) = (tree_flatten(x, is_leaf=lambda y, x=x: y is not x) for x in (dims, tree))
    check(not form.is_leaf() and len(parts) == len(values), "vmap", f"{op} of the form of the values", dims, error=ValueError)
    if isinstance(tree, dict):
        parts = [dims[key] for key in tree]
    return [d for part, value in zip(parts, values) for d in _spread(op, part, value)]


def _joined(column, dim):
    """The results of all samples as one tensor; with dim None they are the same for all."""
    check(isinstance(column[0], Tensor), "vmap", "a function that returns tensors", type(column[0]).__name__, error=ValueError)
    if dim is None:
        check(all(x is column[0] or equal(x, column[0]) for x in column), "vmap",
              "a result that is the same for all samples where out_dims is None", "others", error=ValueError)
        return column[0]
    check(isinstance(dim, int), "vmap", "out_dims as an int or a tuple", repr(dim), error=ValueError)
    return stack(list(column), dim)
