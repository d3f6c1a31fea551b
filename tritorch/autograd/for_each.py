"""Gradients for many cotangents at once, by `vmap`: it, and operators, lie above this layer and load when first asked for."""
from importlib import import_module


def vmap(func, *args, **kwargs):
    """`tritorch.func.vmap`."""
    return import_module("tritorch.func").vmap(func, *args, **kwargs)


def stacked(tensors):
    """`tritorch.stack`."""
    return import_module("tritorch.ops.shaping").stack(tensors)


def for_each(gradients, cotangents):
    """What the function of a list of cotangents, with None for some, returns for each of a batch of them: None where it gives None."""
    given, found = [k for k, c in enumerate(cotangents) if c is not None], []

    def one(*values):
        row = [None] * len(cotangents)
        for k, v in zip(given, values):
            row[k] = v
        found[:] = gradients(row)
        return [g for g in found if g is not None]

    made = iter(vmap(one)(*[cotangents[k] for k in given]))
    return tuple([None if g is None else next(made) for g in found])
