"""Programs before a class with a `__torch_function__` is met, the call that meets one, and compiled functions around such classes."""
import inspect
import subprocess
import sys

import pytest
from asking import disarmed

import tritorch as torch
from tritorch import nn, overridable, protocol
from tritorch.nn import functional as F
from tritorch.overrides import TorchFunctionMode

early_add, X, LINEAR = torch.add, torch.arange(6.0).reshape(2, 3), nn.Linear(3, 2)


class Plain(torch.Tensor):
    pass


class Answers:
    """No tensor, but asked like one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "answer", func, types, args, kwargs or {}


class Log(TorchFunctionMode):
    def __init__(self, found):
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


CALLS = [lambda d: torch.add(d, 1), lambda d: torch.add(X, d), lambda d: X + d, lambda d: d + X, lambda d: torch.mean(d),
         lambda d: F.relu(d),
         lambda d: F.linear(d, X), lambda d: F.softmax(d, dim=1), lambda d: torch.stack([X, d]), lambda d: torch.sum(d, dim=1),
         lambda d: torch.div(d, 2), lambda d: torch.mm(d, d), lambda d: d @ X, lambda d: torch.zeros_like(d), lambda d: X.mul_(d),
         lambda d: torch.clone(d), lambda d: torch.permute(d, (1, 0)), lambda d: X[d], lambda d: X.__setitem__(0, d), lambda d: X == d,
         lambda d: torch.linalg.det(d), lambda d: torch.linalg.norm(d), lambda d: torch.special.airy_ai(d), lambda d: torch.is_complex(d),
         lambda d: F.embedding(d, X), lambda d: F.cross_entropy(d, X), lambda d: LINEAR(d), lambda d: torch.einsum("i", d)]


@pytest.mark.smoke                                                       # which looks at Python's bytecode
@pytest.mark.parametrize("k", range(len(CALLS)))
def test_the_first_call_with_a_foreign_object(k):
    """It fails, and is made anew with functions that ask."""
    class Foreign(Answers):
        __add__ = __matmul__ = lambda self, other: torch.add(self, other)

    foreign = Foreign()
    answer, func, types, args, kwargs = CALLS[k](foreign)
    with disarmed():
        again = CALLS[k](foreign)
        assert again[:3] == ("answer", func, (Foreign,)) and protocol.armed
        bind = inspect.signature(func).bind                              # which were given by name is not known any more
        assert bind(*again[3], **again[4]) == bind(*args, **kwargs)


def test_misuse_keeps_its_sentence():
    with disarmed():
        for call in (lambda: torch.add(X, None), lambda: F.relu("x"), lambda: torch.mm(X, 3), lambda: torch.add(X, object())):
            with pytest.raises(TypeError, match="expected"):
                call()
        assert not protocol.armed


def test_nothing_asks_in_programs_without():
    code = """if True:
        import tritorch, tritorch.nn, tritorch.optim, tritorch.utils.data, sys
        class Weight(tritorch.nn.Parameter): pass
        net = tritorch.nn.Sequential(tritorch.nn.Linear(2, 2), tritorch.nn.ReLU())
        net(tritorch.ones(1, 2)).sum().backward()
        assert not tritorch.protocol.armed and "tritorch.overridable" not in sys.modules
        assert tritorch.add.__code__.co_varnames[:1] == ("args",) and "tritorch.overrides" not in sys.modules
        class M(tritorch.Tensor): pass
        assert tritorch.protocol.armed and type(M([1.0]) + 1) is M"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arming_once():
    with disarmed():
        code = torch.add.__code__
        with Log([]):
            torch.ones(1)
        changed = torch.add.__code__
        protocol.arm()
        assert code is not changed is torch.add.__code__ and torch.add is early_add and len(overridable.public) > 800
    assert torch.add.__code__ is not code


def test_compiled_functions(cuda):
    w = torch.ones(3, device="cuda").as_subclass(Plain)
    compiled = torch.compile(lambda x: x * w + 1)
    x = torch.arange(3.0, device="cuda")
    with pytest.warns(UserWarning, match="a call that a __torch_function__ sees"):
        results = [compiled(x + k) for k in range(4)]
    assert {type(r) for r in results} == {Plain} and results[3].tolist() == [4, 5, 6]
    other, found = torch.compile(lambda x: x * 3), []
    with Log(found):
        for _ in range(4):
            other(x)
    assert found == ["mul"] * 4 and [type(other(x)) for _ in range(4)] == [torch.Tensor] * 4
