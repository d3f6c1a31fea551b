"""Transformations of functions: each takes a function of tensors and gives one that computes its derivative. They nest to any order.

Arguments may be nested tuples, lists and dicts of tensors; derivatives have their form.
"""
import functools

from tritorch.autograd import forward
from tritorch.autograd.engine import grad as differentiate
from tritorch.autograd.modes import enable_grad, state
from tritorch.autograd.ways import reachable
from tritorch.errors import check
from tritorch.ops import create
from tritorch.tensor import Leaf, Tensor
from tritorch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_structure


def positions(op, args, argnums):
    """argnums as indices into args."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    check(isinstance(numbers, (tuple, list)) and numbers and all(isinstance(k, int) for k in numbers), op, "an int or ints as argnums",
          repr(argnums))
    check(all(-len(args) <= k < len(args) for k in numbers), op, f"argnums below {len(args)}", argnums)
    found = [k % len(args) for k in numbers]
    check(len(set(found)) == len(found), op, "argnums of different arguments", argnums)
    return found


def picked_arguments(op, func, args, argnums, kwargs):
    """(func of the arguments `argnums` alone, those arguments)."""
    picked = positions(op, args, argnums)

    def of_picked(*values):
        full = list(args)
        for k, v in zip(picked, values):
            full[k] = v
        return func(*full, **kwargs)

    return of_picked, tuple([args[k] for k in picked])


def _tracked(op, tree):
    """The tensors of a tree as starts of a graph, still connected to the one around."""
    for x in tree_leaves(tree):
        check(isinstance(x, Tensor), op, "tensors to differentiate by", type(x).__name__)

    def start(x):
        fresh = x.view_as(x)
        if not x.requires_grad:
            fresh = fresh.detach().requires_grad_()
            fresh._tangents = x._tangents
        return fresh

    return tree_map(start, tree)


def _watched(outs, fresh):
    """Whether somebody outside differentiates as well: through what the function was given, or through a tensor that it knows."""
    if any(type(x.node) is not Leaf for x in fresh):
        return True
    mine = {x.node for x in fresh}
    reached = reachable([o.node for o in outs if isinstance(o, Tensor) and o.requires_grad])
    return any(type(node) is Leaf and node not in mine for node in reached)


def grad_and_value(func, argnums=0, has_aux=False):
    """A function that returns (gradient, value) of a scalar function with respect to its arguments `argnums`.

    >>> import tritorch as torch
    >>> torch.func.grad_and_value(lambda x: (x * x).sum())(torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        of_picked, given = picked_arguments("grad", func, args, argnums, kwargs)
        recording = state.grad
        with enable_grad():
            fresh = _tracked("grad", given)
            flat = tree_leaves(fresh)
            made = of_picked(*fresh)
            check(not has_aux or isinstance(made, tuple) and len(made) == 2, "grad", "a function that returns (value, aux)",
                  type(made).__name__)
            value, aux = made if has_aux else (made, None)
            check(isinstance(value, Tensor) and value.numel() == 1, "grad", "a function that returns one number (a scalar tensor)",
                  getattr(value, "shape", type(value).__name__))
            deep = recording and _watched([value], flat)
            found = map(create.zeros_like, flat)
            if value.requires_grad:
                found = differentiate(value, flat, create_graph=deep, materialize_grads=True)
        gradient = tree_structure(given).unflatten(found)
        gradient = gradient[0] if isinstance(argnums, int) else gradient
        value, aux = (value, aux) if deep else (_cut(value), tree_map_only(Tensor, _cut, aux))
        return (gradient, (value, aux)) if has_aux else (gradient, value)

    return wrapped


def _cut(x):
    """x without the graph of this transformation; tangents of the levels around stay."""
    out = x.detach()
    out._tangents = x._tangents
    return out


def grad(func, argnums=0, has_aux=False):
    """A function that returns the gradient of a scalar function with respect to its arguments `argnums`.

    >>> import tritorch as torch
    >>> torch.func.grad(torch.func.grad(lambda x: x ** 3))(torch.tensor(2.0))
    tensor(12.)
    >>> torch.func.grad(lambda p: (p["w"] * p["b"]).sum())({"w": torch.ones(2), "b": torch.tensor([3.0, 4.0])})
    {'w': tensor([3., 4.]), 'b': tensor([1., 1.])}
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(func, *primals, has_aux=False):
    """(func(*primals), a function that maps a cotangent of the output to those of the primals; None stands for one of zeros).

    >>> import tritorch as torch
    >>> y, pull = torch.func.vjp(torch.sin, torch.zeros(2)); pull(torch.ones(2))
    (tensor([1., 1.]),)
    """
    recording = state.grad
    with enable_grad():
        fresh = _tracked("vjp", primals)
        flat = tree_leaves(fresh)
        made = func(*fresh)
        value, aux = made if has_aux else (made, None)
    outs = tree_leaves(value)
    check(outs and all(isinstance(o, Tensor) for o in outs), "vjp", "a function that returns tensors", type(value).__name__)
    watched = _watched(outs, flat)
    deep = recording and watched

    def pull(*cotangents):
        given = tree_leaves(cotangents)
        check(len(given) == len(outs), "vjp", f"{len(outs)} cotangents, one an output", len(given))
        for o, c in zip(outs, given):
            check(c is None or isinstance(c, Tensor) and c.shape == o.shape, "vjp", f"a cotangent of shape {tuple(o.shape)}",
                  getattr(c, "shape", type(c).__name__))
        pairs = [(o, c) for o, c in zip(outs, given) if o.requires_grad and c is not None]
        if not pairs:
            return tree_map(create.zeros_like, primals)
        follow = state.grad and (watched or any(c.requires_grad or c._tangents for _, c in pairs))
        with enable_grad():
            found = differentiate([o for o, _ in pairs], flat, [c for _, c in pairs], retain_graph=True, create_graph=follow,
                                  materialize_grads=True)
        return tree_structure(primals).unflatten(found)

    value, aux = (value, aux) if deep else (tree_map(_cut, value), tree_map_only(Tensor, _cut, aux))
    return (value, pull, aux) if has_aux else (value, pull)


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """(func(*primals), its derivative along the tangents), by forward mode.

    >>> import tritorch as torch
    >>> torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.tensor([1.0, 2.0]),))
    (tensor([0., 0.]), tensor([1., 2.]))
    """
    for name, x in (("primals", primals), ("tangents", tangents)):
        check(isinstance(x, (tuple, list)), "jvp", f"{name} as a tuple", type(x).__name__)
    (flat, form), directions, kept = tree_flatten(tuple(primals)), tree_leaves(tuple(tangents)), []

    def main(*values):
        made = func(*form.unflatten(values))
        made, aux = made if has_aux else (made, None)
        outs, made = tree_flatten(made)
        kept.extend((made, aux))
        return tuple(outs)

    values, moved = forward.jvp(main, tuple(flat), tuple(directions))
    made, aux = kept
    out = made.unflatten(values), made.unflatten(moved)
    return (*out, aux) if has_aux else out


def linearize(func, *primals):
    """(func(*primals), a function that maps tangents of the primals to the tangent of the output).

    >>> import tritorch as torch
    >>> y, push = torch.func.linearize(torch.sin, torch.zeros(2)); push(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    return func(*primals), lambda *tangents: jvp(func, primals, tangents)[1]
