"""Hooks before and after the forward and backward passes."""
import pytest

import tritorch as torch
from tritorch import nn


def test_forward_hooks_change_what_passes():
    net, seen = nn.Linear(2, 2), []
    x = torch.ones(1, 2)
    plain = net(x)
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    handle = net.register_forward_hook(lambda module, args, out: seen.append((args[0].tolist(), out.shape)))
    net(x)
    assert seen == [([[2, 2]], (1, 2))]
    handle.remove()
    with net.register_forward_hook(lambda module, args, out: out * 0):
        assert net(x).tolist() == [[0, 0]]
    assert net(x).shape == plain.shape and len(seen) == 1
    first = net.register_forward_pre_hook(lambda module, args: torch.zeros(1, 2), prepend=True)
    assert (net(x) == net.bias).all()
    first.remove()


def test_hooks_with_kwargs_and_always_call():
    class Scaled(nn.Module):
        def forward(self, x, factor=1):
            if factor is None:
                raise ArithmeticError("no factor")
            return x * factor

    net, seen = Scaled(), []
    pre = net.register_forward_pre_hook(lambda module, args, kwargs: (args, {**kwargs, "factor": 3}), with_kwargs=True)
    net.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    assert net(torch.ones(1)).tolist() == [3] and seen == [{"factor": 3}]
    pre.remove()
    net.register_forward_hook(lambda module, args, out: seen.append(out), always_call=True)
    with pytest.raises(ArithmeticError):
        net(torch.ones(1), factor=None)
    assert seen[-1] is None and len(seen) == 2
    net.register_forward_pre_hook(lambda module, args, kwargs: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="forward pre-hook: expected None or .args, kwargs. as its result, got 3"):
        net(torch.ones(1))


def test_global_hooks():
    from tritorch.nn.modules import module as hooks

    net, seen = nn.Sequential(nn.Identity(), nn.Identity()), []
    with hooks.register_module_forward_hook(lambda module, args, out: seen.append(type(module).__name__)):
        net(torch.ones(1))
    assert seen == ["Identity", "Identity", "Sequential"]
    with hooks.register_module_forward_pre_hook(lambda module, args: (args[0] + 1,)):
        assert net(torch.ones(1)).tolist() == [4]
    with hooks.register_module_parameter_registration_hook(lambda module, name, p: seen.append(name)):
        nn.Linear(1, 1)
    assert seen[-2:] == ["weight", "bias"] and net(torch.ones(1)).tolist() == [1]


def test_full_backward_hooks():
    net, seen = nn.Linear(2, 1, bias=False), []
    net.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 10,))
    net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    x = torch.ones(1, 2, requires_grad=True)
    net(x).sum().backward()
    (grad_input, grad_output), = seen
    assert grad_output[0].tolist() == [[10]] and grad_input[0].tolist() == (net.weight * 10).tolist()
    assert net.weight.grad.tolist() == [[10, 10]] and x.grad.tolist() == (net.weight * 10).tolist()
    net.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] * 0,))
    x.grad = None
    net(x).sum().backward()
    assert x.grad.tolist() == [[0, 0]]
    with pytest.raises(RuntimeError, match="expected one kind of backward hook on a module"):
        net.register_backward_hook(lambda *a: None)


def test_backward_hooks_without_input_gradients_and_with_several_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x, flag):
            return x * self.w, flag, x * self.w * 2

    net, seen = Two(), []
    net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    a, flag, b = net(torch.ones(1), True)
    b.sum().backward()
    (grad_input, grad_output), = seen
    assert flag is True and grad_input == (None, None) and grad_output[1] is None and grad_output[2].tolist() == [1]
    assert net.w.grad.tolist() == [2]
    net.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_output[0], None))
    with pytest.raises(RuntimeError, match="expected None, as no input of the module requires grad, got gradients"):
        net(torch.ones(1), True)[0].sum().backward()


def test_no_gradients_no_backward_hooks():
    net, seen = nn.Linear(2, 1), []
    net.register_full_backward_hook(lambda *a: seen.append(a))
    with torch.no_grad():
        net(torch.ones(1, 2))
    assert seen == []


def test_hooks_of_all_modules_are_where_pytorch_has_them():
    seen, hooks = [], nn.modules.module
    handles = [hooks.register_module_forward_pre_hook(lambda m, x: seen.append("before")),
               hooks.register_module_forward_hook(lambda m, x, y: seen.append("behind"))]
    nn.ReLU()(torch.ones(1))
    for handle in handles:
        handle.remove()
    nn.ReLU()(torch.ones(1))
    assert seen == ["before", "behind"]


def test_outputs_without_a_gradient_have_none():
    class Two(nn.Module):
        def forward(self, x):
            return x * 2, x * 3

    net, seen, x = Two(), [], torch.ones(2, requires_grad=True)
    net.register_full_backward_pre_hook(lambda m, grads: seen.append([g is None for g in grads]))
    net.register_full_backward_hook(lambda m, inputs, outputs: seen.append([g is None for g in (*inputs, *outputs)]))
    net(x)[0].sum().backward()
    assert seen == [[False, True], [False, False, True]] and x.grad.tolist() == [2, 2]


def test_hooks_run_in_order_and_a_new_one_may_come_first():
    net, order = nn.Identity(), []
    for register in net.register_forward_pre_hook, net.register_forward_hook:
        for name, first in (("a", False), ("b", True), ("c", False)):
            register(lambda *_, name=name: order.append(name), prepend=first)
    net(torch.ones(1))
    assert order == ["b", "a", "c"] * 2


def test_a_hook_that_is_always_called_is_called_once():
    def fails(*_):
        raise ValueError("first")

    net, seen = nn.Identity(), []
    net.register_forward_hook(lambda *_: seen.append("always"), always_call=True)
    net.register_forward_hook(fails)
    with pytest.raises(ValueError, match="first"):
        net(torch.ones(1))
    assert seen == ["always"]
    broken = nn.Identity()
    broken.forward = fails
    broken.register_forward_hook(lambda *_: torch.ones(2) + torch.ones(3), always_call=True)
    with pytest.warns(UserWarning, match="failed after another error, which is raised"), pytest.raises(ValueError, match="first"):
        broken(torch.ones(1))


def test_gradients_of_a_backward_hook_are_as_many_as_the_tensors():
    for register in "register_full_backward_hook", "register_full_backward_pre_hook":
        net = nn.Linear(2, 2)
        getattr(net, register)(lambda module, *grads: (grads[0][0], grads[0][0]))
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 2, requires_grad=True)).sum().backward()


def test_backward_hooks_need_tensors():
    class Named(nn.Module):
        def forward(self, x):
            return {"y": x * 3}

    net, seen, x = Named(), [], torch.ones(1, requires_grad=True)
    net.register_full_backward_hook(lambda *_: seen.append("called"))
    with pytest.warns(UserWarning, match="a tensor or a tuple of tensors"):
        net(x)["y"].backward()
    assert seen == [] and x.grad.tolist() == [3]


def test_hooks_of_all_modules_see_what_they_ask_for():
    seen, hooks = [], nn.modules.module
    class Broken(nn.Module):
        def forward(self, x, scale):
            raise ValueError("no")

    with hooks.register_module_forward_hook(lambda m, x, kwargs, y: seen.append(kwargs), with_kwargs=True, always_call=True):
        with pytest.raises(ValueError, match="no"):
            Broken()(torch.ones(1), scale=2)
    with hooks.register_module_full_backward_pre_hook(lambda m, g: seen.append("before")), \
            hooks.register_module_full_backward_hook(lambda m, i, o: seen.append("behind")):
        nn.Linear(2, 1)(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert seen == [{"scale": 2}, "before", "behind"]
