"""What happens around a backward pass: functions that it calls at its end, hooks that outlive freezing, gradients that are views."""
import pytest
from both import both, leaf

import tritorch


@both
def test_callbacks_come_last(torch):
    x, seen = leaf(torch, 2.0), []

    def later():
        seen.append(("callback", x.grad.item()))

    def hook(_):
        seen.append("hook")
        torch.autograd.Variable._execution_engine.queue_callback(later)

    def first():
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("a callback's callback"))

    x.register_post_accumulate_grad_hook(hook)
    x.register_post_accumulate_grad_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(first))
    x.register_post_accumulate_grad_hook(lambda _: seen.append("another hook"))
    (x * x).backward()
    (x * 3).backward()
    return seen


@both
def test_callbacks_may_queue_callbacks_and_are_forgotten_after_an_error(torch):
    x, seen, engine = leaf(torch, 2.0), [], torch.autograd.Variable._execution_engine
    handle = x.register_hook(lambda g: engine.queue_callback(lambda: seen.append("lost")))
    bad = x.register_post_accumulate_grad_hook(lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        (x * x).backward()
    handle.remove()
    bad.remove()
    x.register_hook(lambda g: engine.queue_callback(lambda: seen.append("found")))
    (x * x).backward()
    torch.autograd.grad(x * x, x)
    return seen


def test_callbacks_wait_for_the_outermost_pass():
    x, seen = tritorch.tensor(2.0, requires_grad=True), []

    def inner(v):
        if v.is_leaf:                                                    # the second run, with a graph of its own
            v.register_hook(lambda g: tritorch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("callback")))
        return v.sin()

    y = tritorch.utils.checkpoint.checkpoint(inner, x * 1, use_reentrant=True)
    x.register_hook(lambda g: seen.append("leaf"))
    y.backward()
    assert seen == ["leaf", "callback"]
    with pytest.raises(RuntimeError, match="a backward pass that runs"):
        tritorch.autograd.Variable._execution_engine.queue_callback(print)


@both
def test_hooks_outlive_freezing(torch):
    x, seen = leaf(torch, 1.0), []
    x.register_hook(lambda g: seen.append("tensor"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    x.requires_grad_(False)
    assert not (x * 2).requires_grad
    x.requires_grad_(True)
    (x * 2).sum().backward()
    return seen, x.grad


def test_copies_have_no_hooks_of_a_frozen_tensor():
    import copy

    x, seen = tritorch.ones(2, requires_grad=True), []
    x.register_hook(seen.append)
    y = copy.deepcopy(x.requires_grad_(False)).requires_grad_(True)
    y.sum().backward()
    assert not seen and y.grad.tolist() == [1, 1]


@both
def test_gradients_that_are_views_can_be_zeroed(torch):
    net, flat = torch.nn.Linear(2, 1), torch.ones(3)
    net.weight.grad, net.bias.grad = flat[:2].view(1, 2), flat[2:]
    net.zero_grad(set_to_none=False)
    net(torch.ones(1, 2)).sum().backward()
    return flat
