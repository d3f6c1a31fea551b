"""Lists and dicts that stay as they are: what the arguments of nodes are made of.

>>> from tritorch.fx.immutable_collections import immutable_list
>>> immutable_list([1, 2]).append(3)
Traceback (most recent call last):
    ...
TypeError: immutable_list: expected no change of a node's arguments, got one; use a changed copy, as in node.args = new_args
"""
from tritorch.errors import sentence
from tritorch.utils._pytree import _dict_flatten, register_pytree_node

__all__ = ["immutable_dict", "immutable_list"]


def _unchanged(self, *args, **kwargs):
    raise TypeError(sentence(type(self).__name__, "no change of a node's arguments", "one",
                             use="a changed copy, as in node.args = new_args"))


class immutable_list(list):
    """A list that cannot be changed and can be hashed."""

    __delitem__ = __iadd__ = __imul__ = __setitem__ = _unchanged  # type: ignore[assignment]
    append = clear = extend = insert = pop = remove = reverse = sort = _unchanged

    def __hash__(self):  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self):
        return type(self), (tuple(self),)


class immutable_dict(dict):
    """A dict that cannot be changed and can be hashed."""

    __delitem__ = __ior__ = __setitem__ = _unchanged  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _unchanged

    def __hash__(self):  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self):
        return type(self), (tuple(self.items()),)


register_pytree_node(immutable_list, lambda x: (list(x), None), lambda children, _: immutable_list(children))
register_pytree_node(immutable_dict, _dict_flatten, lambda children, keys: immutable_dict(zip(keys, children)))
