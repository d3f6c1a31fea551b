"""Jacobians and Hessians of functions, by reverse and by forward mode, one row or column at a time."""
import functools

from tritorch.errors import check
from tritorch.func.transforms import jvp, picked_arguments, vjp
from tritorch.ops.shaping import stack
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_structure


def _units(x):
    """The unit tensors of x's shape, one an element."""
    for k in range(x.numel()):
        unit = x.new_zeros(x.numel())
        unit[k] = 1
        yield unit.reshape(x.shape)


def _all_real(name, what, tree):
    for x in tree_leaves(tree):
        check(not x.dtype.is_complex, name, f"real {what}", x.dtype, use="view_as_real and view_as_complex")


def jacrev(func, argnums=0, *, has_aux=False, chunk_size=None, _preallocate_and_copy=False):
    """A function that returns the Jacobian, output dims first, by one reverse pass for each element of the output.

    Outputs and arguments may be nested: the result then has the outputs' form, each with the arguments' form inside.

    >>> import tritorch as torch
    >>> torch.func.jacrev(lambda x: x * x)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        of_picked, given = picked_arguments("jacrev", func, args, argnums, kwargs)
        _all_real("jacrev", "inputs", given)
        made, pull, *aux = vjp(of_picked, *given, has_aux=has_aux)
        _all_real("jacrev", "outputs", made)
        outs, form = tree_flatten(made)

        def row(i, out):
            """The derivative of one output by every argument."""
            pulled = []
            for unit in _units(out):
                weights = [unit if j == i else o.new_zeros(o.shape) for j, o in enumerate(outs)]
                pulled.append(tree_leaves(pull(form.unflatten(weights))))
            parts = []
            for k, x in enumerate(tree_leaves(given)):
                shape = (*out.shape, *x.shape)
                parts.append(stack([p[k] for p in pulled]).reshape(shape) if pulled else x.new_zeros(shape))
            tree = tree_structure(given).unflatten(parts)
            return tree[0] if isinstance(argnums, int) else tree

        out = form.unflatten([row(i, o) for i, o in enumerate(outs)])
        return (out, aux[0]) if has_aux else out

    return wrapped


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error"):
    """A function that returns the Jacobian, output dims first, by one forward pass for each element of the input.

    >>> import tritorch as torch
    >>> torch.func.jacfwd(lambda x: x ** 2)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        of_picked, given = picked_arguments("jacfwd", func, args, argnums, kwargs)
        _all_real("jacfwd", "inputs", given)
        flat, form = tree_flatten(given)
        columns, aux = [], None                                          # for each argument, by its elements, the tangents of all outputs
        for k, x in enumerate(flat):
            columns.append([])
            for unit in _units(x):
                directions = form.unflatten([unit if j == k else v.new_zeros(v.shape) for j, v in enumerate(flat)])
                made, moved, *rest = jvp(of_picked, tuple(given), tuple(directions), has_aux=has_aux)
                aux = rest[0] if rest else None
                columns[-1].append(tree_leaves(moved))
        if not any(columns):
            made, *rest = of_picked(*given) if has_aux else (of_picked(*given), None)
            aux = rest[0]

        def row(i, out):
            parts = [stack([c[i] for c in column], -1).reshape((*out.shape, *x.shape)) if column else x.new_zeros((*out.shape, *x.shape))
                     for x, column in zip(flat, columns)]
            tree = tree_structure(given).unflatten(parts)
            return tree[0] if isinstance(argnums, int) else tree

        _all_real("jacfwd", "outputs", made)
        outs, form_made = tree_flatten(made)
        out = form_made.unflatten([row(i, o) for i, o in enumerate(outs)])
        return (out, aux) if has_aux else out

    return wrapped


def hessian(func, argnums=0):
    """A function that returns the second derivatives of a scalar function: forward over reverse.

    >>> import tritorch as torch
    >>> torch.func.hessian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)
