"""vmap: a function of one sample as a function of a batch."""
import functools

from tritorch.device import cpu
from tritorch.errors import NoTensor, check
from tritorch.func.batching.level import Level
from tritorch.generator import default_generator, drawing
from tritorch.layout import strided
from tritorch.ops.shaping import cat, stack
from tritorch.storage import SampleBySample, Spread
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_structure

RANDOMNESS = "error", "different", "same"


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """`func` over the dim `in_dims` of its arguments (None: the same for all), its results stacked along `out_dims`.

    The function runs once: its operators work on all samples at the same time, `chunk_size` samples where that is given. It composes with
    `grad`, `jacrev` and the others. With the randomness "same" all samples draw the same numbers, with "different" each its own, with
    "error" random operators raise. A function that asks for values of its samples (`x.item()`, `if x > 0`), where PyTorch raises, starts
    over and runs once for each sample; it raises RuntimeError if it has written into tensors of others by then.

    >>> import tritorch as torch
    >>> torch.func.vmap(torch.dot)(torch.ones(3, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    tensor([ 3.,  7., 11.])
    """
    check(callable(func), "vmap", "a function", type(func).__name__, error=NoTensor)
    check(isinstance(randomness, str) and randomness in RANDOMNESS, "vmap", "randomness 'error', 'different' or 'same'", repr(randomness))
    check(isinstance(in_dims, (int, tuple)), "vmap", "in_dims as an int or a tuple", repr(in_dims), error=ValueError)
    check(chunk_size is None or isinstance(chunk_size, int) and chunk_size > 0, "vmap", "chunk_size as a positive int", repr(chunk_size),
          error=ValueError)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        (flat, form), dims = tree_flatten(args), _spread("in_dims", in_dims, args)
        for x, d in zip(flat, dims):
            fits = d is None or isinstance(d, int) and isinstance(x, Tensor) and -x.ndim <= d < x.ndim
            check(fits, "vmap", "in_dims that the arguments have", d, getattr(x, "shape", type(x).__name__), error=ValueError)
        sizes = {x.shape[d] for x, d in zip(flat, dims) if d is not None}
        check(len(sizes) == 1, "vmap", "mapped dims of one size", sorted(sizes) or "none", error=ValueError)
        (size,) = sizes
        wholes = [x if d is None else x.movedim(d, 0) for x, d in zip(flat, dims)]
        mapped = [d is not None for d in dims]

        def of_samples(*values):
            return func(*form.unflatten(values), **kwargs)

        if chunk_size is None or chunk_size >= size:
            return _mapped(of_samples, wholes, mapped, size, out_dims, randomness)
        return _in_pieces(of_samples, wholes, mapped, size, chunk_size, out_dims, randomness)

    return wrapped


def _in_pieces(func, wholes, mapped, size, chunk_size, out_dims, randomness):
    """What `func` makes of so many samples after the other."""
    pieces, start = [], _states(wholes) if randomness == "same" else []
    for k in range(0, size, chunk_size):
        _set_back(start)
        part = [x[k:k + chunk_size] if m else x for x, m in zip(wholes, mapped)]
        pieces.append(_mapped(func, part, mapped, min(chunk_size, size - k), out_dims, randomness))
    joined = [column[0] if d is None else cat(list(column), d)
              for column, d in zip(zip(*map(tree_leaves, pieces)), _spread("out_dims", out_dims, pieces[0]))]
    return tree_structure(pieces[0]).unflatten(joined)


def _states(wholes):
    """The generators of numbers for tensors like these, with their states."""
    places = {cpu, *[x.device for x in wholes if isinstance(x, Tensor) and not x.is_meta]}
    return [(g, g.get_state()) for g in map(default_generator, places)]


def _set_back(states):
    for generator, was in states:
        generator.set_state(was)


def _mapped(func, wholes, mapped, size, out_dims, randomness):
    """What `func` makes of all samples."""
    start = [] if randomness == "error" else _states(wholes)
    if all(type(x.storage) is not Spread and x.layout is strided for x, m in zip(wholes, mapped) if m):
        level = Level(size, randomness)
        try:
            with level:
                made = func(*[level.entered(x) if m else x for x, m in zip(wholes, mapped)])
            leaves = tree_leaves(made)
            for x in leaves:
                check(isinstance(x, Tensor), "vmap", "a function that returns tensors", type(x).__name__, error=ValueError)
            return tree_structure(made).unflatten([_left(level, x, d) for x, d in zip(leaves, _spread("out_dims", out_dims, made))])
        except SampleBySample as found:
            level.start_over(found)
        _set_back(start)
    return _one_by_one(func, wholes, mapped, size, out_dims, randomness, start)


def _left(level, x, dim):
    """A result of all samples."""
    if dim is None:
        check(not level.has(x), "vmap", "a result that is the same for all samples where out_dims is None", "one of each sample",
              error=ValueError)
        return x
    check(isinstance(dim, int), "vmap", "out_dims as an int or a tuple", repr(dim), error=ValueError)
    return level.leave(x, dim)


def _one_by_one(func, wholes, mapped, size, out_dims, randomness, start):
    """The same by a call for each sample."""
    check(size, "vmap", "a function that never asks for values where there are no samples", "one that does")
    rows, drawn = [], drawing.samples
    drawing.samples = 0 if randomness == "error" else drawn
    try:
        for k in range(size):
            _set_back(start if randomness == "same" else ())
            rows.append(func(*[x.select(0, k) if m else x for x, m in zip(wholes, mapped)]))
    finally:
        drawing.samples = drawn
    columns = zip(*map(tree_leaves, rows))
    made = [_joined(column, d) for column, d in zip(columns, _spread("out_dims", out_dims, rows[0]))]
    return tree_structure(rows[0]).unflatten(made)


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
    """The results of all samples as one tensor."""
    check(isinstance(column[0], Tensor), "vmap", "a function that returns tensors", type(column[0]).__name__, error=ValueError)
    if dim is None:
        check(all(x is column[0] for x in column), "vmap", "a result that is the same for all samples where out_dims is None",
              "one of each sample", error=ValueError)
        return column[0]
    check(isinstance(dim, int), "vmap", "out_dims as an int or a tuple", repr(dim), error=ValueError)
    return stack(list(column), dim)
