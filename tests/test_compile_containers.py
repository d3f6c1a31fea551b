"""Containers that go into compiled functions and come out of them: every type as it was, told apart by its form, changes not lost."""
import collections
import dataclasses
import warnings

import pytest
from test_compile import captured, kinds

import tritorch as torch
from tritorch.utils import _pytree

Pair = collections.namedtuple("Pair", "x y")


class Output(collections.OrderedDict):                                   # as the outputs of transformers: items are attributes too
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Rows(list):
    pass


class Triple(tuple):
    pass


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "batch"


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    x: torch.Tensor
    y: torch.Tensor


class Box:
    def __init__(self, x, y, scale):
        self.x, self.y, self.scale = x, y, scale


_pytree.register_pytree_node(Box, lambda box: ([box.x, box.y], [box.scale]), lambda children, context: Box(*children, *context))


@dataclasses.dataclass
class Registered:
    x: torch.Tensor
    y: torch.Tensor = None
    z: torch.Tensor = None


_pytree.register_dataclass(Registered)


def made(kind, x, y):
    """A container of two tensors."""
    if kind is collections.defaultdict:
        return collections.defaultdict(list, x=x, y=y)
    if kind is Box:
        return Box(x, y, 3)
    by_item = kind in (list, tuple, Rows, Triple, collections.deque)
    return kind([x, y]) if by_item else kind(x=x, y=y)


def items(box):
    """The two tensors of it."""
    if isinstance(box, dict):
        return box["x"], box["y"]
    return tuple(box) if isinstance(box, (list, tuple, collections.deque)) else (box.x, box.y)


KINDS = [list, tuple, dict, collections.OrderedDict, collections.defaultdict, collections.deque, Pair, Output, Rows, Triple, Batch, Frozen,
         Box, Registered]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "differentiable"])
def test_every_type_as_it_was(cuda, kind, grad):
    weight = torch.full((2,), 3.0, device=cuda, requires_grad=grad)

    @torch.compile
    def f(given):
        x, y = items(given)
        return made(kind, x * weight, [y + 1, made(kind, x, None if kind is Registered else 5)])

    for k in range(6):
        x, y = (torch.full((2,), v, device=cuda) for v in (float(k), 10.0 + k))
        out = f(made(kind, x, y))
        product, (more, inner) = items(out)
        assert type(out) is kind is type(inner) and product.tolist() == [3 * k] * 2 and more.tolist() == [11 + k] * 2
        assert items(inner)[0].tolist() == [k] * 2 and items(inner)[1] == (None if kind is Registered else 5)
        if kind is Output:
            assert out.x is out["x"]
        if kind is collections.defaultdict:
            assert out.default_factory is list
        if grad:
            weight.grad = None
            product.sum().backward()
            assert weight.grad.tolist() == [k] * 2
    assert captured(f) == 1


def test_other_forms_are_other_kinds(cuda):
    @torch.compile
    def f(given):
        if type(given) is Box:
            return given.x * given.scale
        if type(given) is Registered:
            return given.x * 1 if given.z is None else given.x + given.z
        return items(given)[0] * (10 if type(given) is Output else 100)

    x = torch.ones(2, device=cuda)
    for _ in range(5):
        given = [Box(x, x, 2), Box(x, x, 4), Registered(x), Registered(x, z=x), Output(x=x, y=x), {"x": x, "y": x}, Batch(x, x),
                 Batch(x, x, "b")]
        assert [f(g)[0].item() for g in given] == [2, 4, 1, 2, 10, 100, 100, 100]
    assert captured(f) == len(kinds(f)) == 8


def test_changed_arguments(cuda):
    def append(x, rows):
        rows.append(x * 2)
        return x + 1

    def replace(x, table):
        table["x"], table["y"] = table["x"] + x, x
        return x + 1

    def write(x, batch):
        batch.x = batch.x + x
        return x + 1

    def take(x, table):
        table["y"] = table.pop("y") + x
        table.pop("x", None)
        return x + 1

    def inside(x, rows):
        rows[0].append(x * 2)
        return x + 1

    x = torch.ones(2, device=cuda)
    for function, fresh in [(append, list), (append, collections.deque), (replace, lambda: {"x": x}), (replace, lambda: Output(x=x)),
                            (write, lambda: Batch(x, x)), (take, lambda: {"x": x, "y": x}), (inside, lambda: Triple(([x], x, x)))]:
        seen = []
        for compiled in (False, True):
            f = torch.compile(function) if compiled else function
            given = fresh()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(5):
                    f(x, given)
            seen.append([t.tolist() for t in _pytree.tree_leaves(items(given) if isinstance(given, Batch) else list(
                given.values() if isinstance(given, dict) else given))])
        assert seen[0] == seen[1] and "a change of a list" in str(caught[0].message) and len(caught) == 1
        with pytest.raises(torch.compiler.Unsupported, match="a change of a list"):
            torch.compile(function, fullgraph=True)(x, fresh())


def test_a_table_that_is_filled_once(cuda):
    @torch.compile
    def f(x, row):
        row[0].mul_(2)                                                   # written in place: no other tensor is in the list
        return x + row[0]

    x, row = torch.ones(2, device=cuda), [torch.ones(2, device=cuda)]
    assert [f(x, row)[0].item() for _ in range(6)] == [3, 5, 9, 17, 33, 65] and captured(f) == 1


def test_objects_are_known_by_identity(cuda):
    @dataclasses.dataclass
    class Config:
        scale: float

    @torch.compile
    def f(x, config):
        return x * config.scale

    x, configs = torch.ones(2, device=cuda), [Config(2.0), Config(3.0)]
    for _ in range(5):
        assert [f(x, c)[0].item() for c in configs] == [2, 3]
    assert captured(f) == 2
