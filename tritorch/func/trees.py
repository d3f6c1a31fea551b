"""Nested tuples, lists and dicts of tensors: what transformations of functions take and return."""
from tritorch.tensor import Tensor


def leaves(tree):
    """Everything in the tree that is no container, in order; dicts by their own order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (tuple, list)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def rebuilt(tree, values):
    """A tree of the same form with other leaves, taken from the iterator `values`."""
    if isinstance(tree, dict):
        return type(tree)((key, rebuilt(value, values)) for key, value in tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[rebuilt(value, values) for value in tree])
    if isinstance(tree, (tuple, list)):
        return type(tree)([rebuilt(value, values) for value in tree])
    return next(values)


def mapped(f, tree, *others):
    """f of the leaves, place by place."""
    return rebuilt(tree, iter([f(*row) for row in zip(leaves(tree), *map(leaves, others))]))


def on_tensors(f, tree):
    """f of the leaves that are tensors, the others as they are."""
    return mapped(lambda x: f(x) if isinstance(x, Tensor) else x, tree)
