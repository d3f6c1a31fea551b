"""Jacobians and Hessians of functions, by reverse and by forward mode: one pass for all unit vectors, by `vmap`."""
import functools

from tritorch.errors import check
from tritorch.func.transforms import jvp, picked_arguments, vjp
from tritorch.func.vmap import vmap
from tritorch.ops import create
from tritorch.ops.shaping import cat
from tritorch.storage import Batched
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_structure


def _units(x, first, last, before=0):
    """The unit tensors from number `first` on, below `last`, of a list in which x's own begin at `before`; zeros elsewhere."""
    shape = (last - first, x.numel())
    alike = type(x.storage) is Batched                                   # the same for all samples of a vmap around
    out = create.zeros(shape, dtype=x.dtype, device=x.device) if alike else x.new_zeros(shape)
    low, high = max(first, before), min(last, before + x.numel())
    if low < high:
        out[low - first:high - first, low - before:high - before].diagonal().fill_(1)
    return out.reshape(last - first, *x.shape)


def _all_real(name, what, tree):
    for x in tree_leaves(tree):
        check(not x.dtype.is_complex, name, f"real {what}", x.dtype, use="view_as_real and view_as_complex")


def _checked_chunk(name, chunk_size):
    check(chunk_size is None or isinstance(chunk_size, int) and chunk_size > 0, name, "chunk_size as a positive int", repr(chunk_size),
          error=ValueError)


def jacrev(func, argnums=0, *, has_aux=False, chunk_size=None, _preallocate_and_copy=False):
    """A function that returns the Jacobian, output dims first, by one reverse pass for all elements of an output.

    Outputs and arguments may be nested: the result then has the outputs' form, each with the arguments' form inside. The pass takes memory
    for each element of the output at the same time; with `chunk_size` there are passes for so many of them, one after the other.

    >>> import tritorch as torch
    >>> torch.func.jacrev(lambda x: x * x)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    _checked_chunk("jacrev", chunk_size)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        of_picked, given = picked_arguments("jacrev", func, args, argnums, kwargs)
        _all_real("jacrev", "inputs", given)
        made, pull, *aux = vjp(of_picked, *given, has_aux=has_aux)
        _all_real("jacrev", "outputs", made)
        outs, form = tree_flatten(made)

        def row(i, out):
            """The derivatives of one output by every argument."""
            def pulled(unit):
                return tree_leaves(pull(form.unflatten([unit if j == i else None for j in range(len(outs))])))

            tree = tree_structure(given).unflatten(by_units(pulled, out, tree_leaves(given), chunk_size, _preallocate_and_copy))
            return tree[0] if isinstance(argnums, int) else tree

        out = form.unflatten([row(i, o) for i, o in enumerate(outs)])
        return (out, aux[0]) if has_aux else out

    return wrapped


def by_units(pulled, out, inputs, chunk_size=None, in_place=False):
    """For each input the tensor (*out.shape, *input.shape) of what `pulled`, a function of a tensor like `out`, gives for its unit tensors,
    for all at once, or for `chunk_size`, whose results are written into it piece by piece where `in_place` says so."""
    count = out.numel()
    step = chunk_size or max(count, 1)
    wholes = [x.new_zeros((count, *x.shape)) for x in inputs] if in_place and step < count or not count else None
    pieces = []
    for k in range(0, count, step):
        units = _units(out, k, min(k + step, count))
        made = vmap(pulled)(units) if len(units) > 1 else [x.unsqueeze(0) for x in pulled(units[0])]
        if wholes is None:
            pieces.append(made)
            continue
        for whole, part in zip(wholes, made):
            whole[k:k + step] = part
    if wholes is None:
        wholes = [column[0] if len(column) == 1 else cat(list(column)) for column in zip(*pieces)]
    return [whole.reshape((*out.shape, *x.shape)) for whole, x in zip(wholes, inputs)]


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error"):
    """A function that returns the Jacobian, output dims first, by one forward pass for all elements of the inputs. `randomness` is that of
    `vmap`: what a function draws is drawn once ("same"), or for each of the elements ("different").

    >>> import tritorch as torch
    >>> torch.func.jacfwd(lambda x: x ** 2)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        of_picked, given = picked_arguments("jacfwd", func, args, argnums, kwargs)
        _all_real("jacfwd", "inputs", given)

        def of_real(*values):
            made = of_picked(*values)
            _all_real("jacfwd", "outputs", made[0] if has_aux and isinstance(made, tuple) else made)
            return made

        out, aux = by_columns(of_real, given, has_aux, randomness, isinstance(argnums, int))
        return (out, aux) if has_aux else out

    return wrapped


def by_columns(func, given, has_aux=False, randomness="error", single=False):
    """(the derivatives by the tuple `given`, or by its one part: `single`, in the form of the function's result, what else it returns)."""
    flat, form = tree_flatten(given)
    starts = [sum(x.numel() for x in flat[:k]) for k in range(len(flat) + 1)]
    seen = []

    def pushed(*directions):
        made, moved, *rest = jvp(func, tuple(given), tuple(form.unflatten(directions)), has_aux=has_aux)
        leaves, aux_form = tree_flatten(rest)
        seen[:] = tree_structure(made), leaves, aux_form
        return tree_leaves(moved), [x for x in leaves if isinstance(x, Tensor)]

    if starts[-1]:
        units = [_units(x, 0, starts[-1], before) for x, before in zip(flat, starts)]
        moved, kept = vmap(pushed, out_dims=(-1, 0), randomness=randomness)(*units)
    else:
        moved, kept = [[x.unsqueeze(d) for x in column] for column, d in zip(pushed(*map(create.zeros_like, flat)), (-1, 0))]
    form_made, leaves, aux_form = seen
    first = iter(kept)                                                   # what is not differentiated is the same for all units
    aux = aux_form.unflatten([next(first)[0] if isinstance(x, Tensor) else x for x in leaves])

    def row(columns):
        parts = [columns[..., low:high].reshape((*columns.shape[:-1], *x.shape)) for x, low, high in zip(flat, starts, starts[1:])]
        tree = tree_structure(given).unflatten(parts)
        return tree[0] if single else tree

    return form_made.unflatten(map(row, moved)), aux[0] if has_aux else None


def hessian(func, argnums=0):
    """A function that returns the second derivatives of a scalar function: forward over reverse.

    >>> import tritorch as torch
    >>> torch.func.hessian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)
