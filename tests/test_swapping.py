"""Tensors that exchange all they are, and what of that parameters of modules do when they are converted or loaded."""
import weakref

import pytest

import tritorch as torch
from tritorch import nn
from tritorch.utils import swap_tensors


class Slotted(torch.Tensor):
    __slots__ = ("unit",)


@pytest.fixture
def switches():
    yield torch.__future__
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_all_is_exchanged():
    a, b = torch.ones(2), torch.arange(6).view(2, 3)[:, 1:]
    a.tag = "a"
    swap_tensors(a, b)
    assert a.tolist() == [[1, 2], [4, 5]] and b.tolist() == [1.0, 1.0] and b.tag == "a" and not hasattr(a, "tag") and a._base is not None
    leaf, product = torch.ones(2, requires_grad=True), torch.full((1,), 3.0, requires_grad=True) * 2
    loss = (leaf * 2).sum()
    swap_tensors(leaf, product)
    assert leaf.tolist() == [6.0] and not leaf.is_leaf and product.is_leaf
    loss.backward()                                                      # its gradient goes where the values went
    assert product.grad.tolist() == [2.0, 2.0] and (leaf * 1).grad_fn is not None
    (product * 3).sum().backward()
    assert product.grad.tolist() == [5.0, 5.0]
    c, d = torch.ones(1).as_subclass(Slotted), torch.zeros(1).as_subclass(Slotted)
    c.unit = "m"
    swap_tensors(c, d)
    assert d.unit == "m" and not hasattr(c, "unit") and torch.Tensor(c).item() == 0
    swap_tensors(c, c)


def test_what_cannot_be_swapped():
    a, b = torch.ones(2), torch.zeros(2)
    with pytest.raises(RuntimeError, match="same slots"):
        swap_tensors(a, torch.ones(2).as_subclass(Slotted))
    with pytest.raises(TypeError, match="a tensor as t2"):
        swap_tensors(a, 3)
    ref = weakref.ref(b)
    with pytest.raises(RuntimeError, match="t2 that nobody holds weakly"):
        swap_tensors(a, b)
    assert ref() is b and a.tolist() == [1, 1]


def test_parameters_that_are_swapped(switches):
    linear = nn.Linear(2, 1)
    linear(torch.ones(1, 2)).sum().backward()
    weight, grad = linear.weight, linear.weight.grad
    switches.set_swap_module_params_on_conversion(True)
    linear.double()
    assert linear.weight is weight and weight.grad is grad and weight.dtype is grad.dtype is torch.float64 and weight.is_leaf
    optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
    linear.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    assert linear.weight is weight and weight.tolist() == [[1, 1]] and weight.grad is None and weight.requires_grad
    linear(torch.ones(1, 2, dtype=weight.dtype)).sum().backward()
    optimizer.step()
    assert weight.tolist() == [[0, 0]] and isinstance(weight, nn.Parameter)

    class Scaled(torch.Tensor):
        pass

    linear._apply(lambda t: t.as_subclass(Scaled))
    assert linear.weight is weight and type(weight) is Scaled and isinstance(weight, nn.Parameter)
    held = weakref.ref(linear.bias)
    with pytest.raises(RuntimeError, match="a parameter bias that can be swapped"):
        linear.float()
    assert held() is linear.bias


def test_parameters_that_are_overwritten(switches):
    linear = nn.Linear(2, 1)
    weight = linear.weight
    switches.set_overwrite_module_params_on_conversion(True)
    assert switches.get_overwrite_module_params_on_conversion() and linear.double().weight is not weight
    assert linear.weight is linear._parameters["weight"] and linear.weight.dtype is torch.float64 and weight.dtype is torch.float32


def test_old_states():
    x = torch.zeros(3)
    x.__setstate__((torch.arange(4.0).untyped_storage(), 1, (2,), (1,)))
    assert x.tolist() == [1, 2]
    x.__setstate__((torch.ones(3), None, {}, True, False))
    assert x.tolist() == [1, 1, 1] and x.requires_grad
    x.__setstate__((False, False, None))
    assert not x.requires_grad
    for error, state in [(ValueError, (1, 2)), (ValueError, (True,))]:
        with pytest.raises(error):
            x.__setstate__(state)
    with pytest.raises(RuntimeError, match="a leaf"):
        (torch.ones(1, requires_grad=True) * 2).__setstate__((True, False, None))


@pytest.mark.parametrize("call, value, dtype", [
    (lambda: torch.add(2, 3), 5, torch.int64), (lambda: torch.sub(2, 3.5), -1.5, torch.float32),
    (lambda: torch.mul(True, False), False, torch.bool),
    (lambda: torch.add(2, 3, alpha=2), 8, torch.int64), (lambda: torch.add(2, 3, out=torch.empty(())), 5, torch.float32),
    (lambda: torch.add(input=2, other=3), 5, torch.int64), (lambda: torch.floor_divide(-7.0, 2), -4, torch.float32),
    (lambda: torch.add(2j, 3), 3 + 2j, torch.complex64), (lambda: torch.div(1, 4), 0.25, torch.float32),
    (lambda: torch.multiply(2, other=3), 6, torch.int64)])
def test_two_numbers(call, value, dtype):
    result = call()
    assert result.shape == () and result.item() == value and result.dtype is dtype


def test_two_of_other_kinds():
    for call in (lambda: torch.add(1, "a"), lambda: torch.add(1, None), lambda: torch.pow(2, 3), lambda: torch.eq(2, 3),
                 lambda: torch.add([1], 2)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RuntimeError):
        torch.sub(2.0, True)
    with pytest.raises(RuntimeError):
        torch.floor_divide(1, 0)
