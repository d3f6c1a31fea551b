"""torch.utils._pytree: leaves, forms and functions of them, PyTorch beside ours."""
import importlib
from collections import OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
from oracle import torch as pytorch

import tritorch

Pair = namedtuple("Pair", "a b")
TREES = [5, None, [], (), {}, [1, [2, (3, None)]], {"b": 1, "a": {"c": (2,)}}, Pair(1, [2]), OrderedDict(y=1, x=[2]),
         deque([1, (2, 3)], maxlen=4), defaultdict(list, k=1, l=[2]), [Pair({}, ()), "text", 2.5]]


def trees(torch):
    return importlib.import_module(f"{torch.__name__}.utils._pytree")


def outcome(act):
    try:
        return act()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_form_and_leaves(tree):
    seen = []
    for P in map(trees, (tritorch, pytorch)):
        leaves, spec = P.tree_flatten(tree)
        back = P.tree_unflatten([("leaf", leaf) for leaf in leaves], spec)
        seen.append((leaves, str(spec), (spec.num_leaves, spec.num_nodes, spec.num_children, spec.is_leaf()), back, type(back),
                     P.tree_unflatten(leaves, spec) == tree, spec == P.tree_structure(tree), P.tree_leaves(tree), list(P.tree_iter(tree)),
                     P.tree_map(str, tree), P.tree_map_only(int, lambda x: -x, tree), P.tree_map_only((str, float), repr, tree),
                     P.tree_map_only(lambda x: x == 2, repr, tree), P.tree_all(lambda x: x == 1, tree), P.tree_any(lambda x: x == 1, tree),
                     P.tree_flatten(tree, is_leaf=lambda x: isinstance(x, tuple))[0], P.tree_map_(repr, tree) is tree))
    assert seen[0] == seen[1]


def test_several_trees():
    pairs = [([1, {"a": 2}], [3, {"a": (4, 5)}]), ({"a": 1, "b": 2}, {"b": 3, "a": 4}), ({"a": 1}, OrderedDict(a=2)), ([1, 2], [1]),
             ([1], (1,)), ({"a": 1}, {"b": 1}), (Pair(1, 2), (1, 2)), (1, [2]), ([1], 1), (deque([1]), deque([2], maxlen=1))]
    for first, second in pairs:
        mine, theirs = (outcome(lambda P=P: P.tree_map(lambda x, y: (x, y), first, second)) for P in map(trees, (tritorch, pytorch)))
        assert mine == theirs
    for P in map(trees, (tritorch, pytorch)):
        with pytest.raises(ValueError, match="2 (items|leaves)"):
            P.tree_unflatten([1], P.tree_structure([1, 2]))
        with pytest.raises(TypeError, match="(?i)treespec"):
            P.tree_unflatten([1], [1])


def test_types_of_ones_own():
    class Box:
        def __init__(self, inside):
            self.inside = inside

    P = trees(tritorch)
    assert P.tree_leaves(Box([1])) != [1]
    P.register_pytree_node(Box, lambda box: ([box.inside], "context"), lambda children, context: Box(children[0]))
    assert P.tree_map(lambda x: x + 1, [Box({"a": 1})])[0].inside == {"a": 2}
    with pytest.raises(ValueError, match="no node yet"):
        P.register_pytree_node(Box, None, None)


def test_handle_of_hooks_under_its_other_name():
    from tritorch.utils.hooks import RemovableHandle

    assert isinstance(tritorch.nn.Linear(1, 1).register_forward_hook(print), RemovableHandle)


def test_collectives_with_gradients():
    from tritorch import distributed as dist

    x = tritorch.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match="init_process_group"):
        dist.nn.all_reduce(x)
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        F = dist.nn.functional
        ways = [F.all_reduce(x), *F.all_gather(x), *F.gather(x), F.broadcast(x, 0), F.reduce(x, 0), F.scatter([x]),
                *F.all_to_all([None], [x]), F.all_to_all_single(tritorch.zeros(1, 2), x)[0], F.reduce_scatter(None, [x])]
        for way in ways:
            x.grad = None
            (way * way).sum().backward()
            assert way is not x and x.grad.tolist() == [2.0, 4.0]
        with pytest.raises(ValueError, match="rank 0"):
            F.broadcast(x, 1)
    finally:
        dist.destroy_process_group()


def test_more_marks_of_compilers():
    from tritorch.jit.annotations import BroadcastingList2, List

    def f(x):
        return x

    jit, compiler = tritorch.jit, tritorch.compiler
    assert jit.script_method(f) is jit._overload_method(f) is compiler.allow_in_graph(f) is compiler.assume_constant_result(f) is f
    assert (BroadcastingList2[int], List[int], jit.Attribute(3, int)) and issubclass(jit.ScriptModule, tritorch.nn.Module)
    assert not compiler.is_exporting() and not compiler.is_dynamo_compiling() and compiler.cudagraph_mark_step_begin() is None
    tritorch._assert(True, "fine")
    with pytest.raises(AssertionError, match="not fine"):
        tritorch._assert(tritorch.tensor(False), "not fine")


def test_detach_as_a_function():
    x = tritorch.ones(2, requires_grad=True)
    y = tritorch.detach(x)
    assert not y.requires_grad and np.shares_memory(y.numpy(), x.detach().numpy())


def test_outputs_that_are_dicts_of_a_class():                            # as transformers and diffusers register theirs
    class Output(OrderedDict):
        pass

    for P in map(trees, (tritorch, pytorch)):
        P.register_pytree_node(Output, P._dict_flatten, lambda values, context, P=P: Output(P._dict_unflatten(values, context)),
                               serialized_type_name=f"{P.__name__}.Output", flatten_with_keys_fn=P._dict_flatten_with_keys)
        made = P.tree_map(lambda x: 2 * x, [Output(a=1, b=2)])[0]
        assert type(made) is Output and list(made.items()) == [("a", 2), ("b", 4)]
        children, keys = P._dict_flatten_with_keys({"a": 1})
        assert [(key.key, value) for key, value in children] == [("a", 1)] and keys == ["a"]


def test_registered_dataclasses():
    from dataclasses import dataclass, field, make_dataclass

    for P in map(trees, (tritorch, pytorch)):
        @dataclass
        class Point:
            x: object
            y: object = None
            name: str = field(default="p", init=False)

        @dataclass
        class Partial:
            x: object
            note: str = "kept"

        class Plain:
            def __init__(self, a):
                self.a = a

        P.register_dataclass(Point)
        P.register_dataclass(Partial, field_names=["x"], drop_field_names=["note"])
        P.register_dataclass(Plain, field_names=["a"])
        leaves, spec = P.tree_flatten([Point(1, {"k": 2}), Point(3), Partial(4, "lost"), Plain(5)])
        assert leaves == [1, 2, 3, 4, 5] and spec.num_leaves == 5
        first, second, partial, plain = spec.unflatten([x * 10 for x in leaves])
        assert (first, second, partial, plain.a) == (Point(10, {"k": 20}), Point(30, None), Partial(40), 50)
        with pytest.raises(ValueError, match="field"):
            P.register_dataclass(make_dataclass("Three", ["x", "y", "z"]), field_names=["x", "y"])
        with pytest.raises(ValueError, match="field_names"):
            P.register_dataclass(type("Bare", (), {}))
        with pytest.raises(ValueError):
            P.tree_map(lambda a, b: a, Point(1), Point(1, 2))            # what is None is no child
