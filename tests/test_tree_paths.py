"""Paths to the leaves of trees: keys of every container, of registered classes, and functions of them."""
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import pytest

from tritorch.utils import _pytree as pytree


def test_paths():
    pair = namedtuple("pair", "u v")
    tree = {"a": [1, (2, 3)], "b": OrderedDict(x=4), "c": pair(5, 6), "d": deque([7]), "e": defaultdict(list, k=8)}
    found, spec = pytree.tree_flatten_with_path(tree)
    assert [(pytree.keystr(path), leaf) for path, leaf in found] == [
        ("['a'][0]", 1), ("['a'][1][0]", 2), ("['a'][1][1]", 3), ("['b']['x']", 4), ("['c'].u", 5), ("['c'].v", 6), ("['d'][0]", 7),
        ("['e']['k']", 8)]
    assert all(pytree.key_get(tree, path) == leaf for path, leaf in found) and spec == pytree.tree_structure(tree)
    assert found[0][0] == (pytree.MappingKey("a"), pytree.SequenceKey(0)) and pytree.tree_leaves_with_path(5) == [((), 5)]
    assert pytree.tree_leaves_with_path({"a": [1]}, is_leaf=lambda x: isinstance(x, list)) == [((pytree.MappingKey("a"),), [1])]


def test_functions_of_them():
    made = pytree.tree_map_with_path(lambda path, x, y: (pytree.keystr(path), x + y), [1, {"q": 2}], [10, {"q": 20}])
    assert made == [("[0]", 11), {"q": ("[1]['q']", 22)}]
    assert pytree.tree_all_only(int, lambda x: x > 0, [1, "a"]) and not pytree.tree_any_only(int, lambda x: x > 1, [1, "a"])
    seen = []
    assert pytree.tree_map_only_(int, seen.append, [1, "a", 2]) == [1, "a", 2] and seen == [1, 2]


def test_paths_through_registered_classes():
    @dataclass
    class Named:
        first: object
        second: object = None

    class Bare:
        pass

    pytree.register_dataclass(Named)
    pytree.register_pytree_node(Bare, lambda x: ([1], None), lambda children, _: Bare())
    try:
        found = pytree.tree_leaves_with_path([Named(1), Named(2, [3])])
        assert [(pytree.keystr(path), leaf) for path, leaf in found] == [("[0].first", 1), ("[1].first", 2), ("[1].second[0]", 3)]
        with pytest.raises(ValueError, match="flatten_with_keys_fn"):
            pytree.tree_leaves_with_path([Bare()])
    finally:
        for kind in (Named, Bare):
            pytree.SUPPORTED_NODES.pop(kind)
            pytree._keyed.pop(kind, None)
