"""What generated code takes its arguments apart with, where a trace was told that they are containers."""


def tree_flatten_spec(pytree, spec):
    """The leaves of a tree of the form `spec`, which says how deep to look: what is below its leaves stays whole.

    >>> from tritorch.utils._pytree import tree_structure
    >>> tree_flatten_spec({"a": [1], "b": 2}, tree_structure({"a": 0, "b": 0}))
    [[1], 2]
    """
    return spec.flatten_up_to(pytree)
