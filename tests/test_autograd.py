"""backward and grad: what they compute, keep, refuse and leave behind, as PyTorch does."""

import pytest
from both import both, leaf

import tritorch


# ------------------------------------------------------------------ backward
@both
def test_backward_accumulates(torch):
    x = leaf(torch, 1.0, 2.0)
    (x * x).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad is first
    return x.grad


@both
def test_backward_with_a_gradient(torch):
    x = leaf(torch, 1.0, 2.0)
    (x * x).backward(torch.tensor([10.0, 100.0], dtype=torch.float64))
    return x.grad


@both
def test_backward_of_several_tensors(torch):
    x = leaf(torch, 1.0, 2.0)
    torch.autograd.backward([(x * x).sum(), x * 5], [None, torch.ones(2, dtype=torch.float64)])
    return x.grad


@both
def test_backward_of_a_leaf(torch):
    x = leaf(torch, 2.0)
    x.backward()
    x.backward(torch.tensor(4.0, dtype=torch.float64))
    return x.grad


@both
def test_backward_into_inputs_only(torch):
    x, y = leaf(torch, 1.0, 2.0), leaf(torch, 3.0, 4.0)
    z = x * y
    (z * x).sum().backward(inputs=[x])
    assert y.grad is None
    w = x * 2
    (w * w).sum().backward(inputs=[w, x])                                # a tensor that is not a leaf may be an input as well
    return x.grad, w.grad


@both
def test_only_scalars_have_a_gradient_of_their_own(torch):
    x = leaf(torch, 1.0, 2.0)
    with pytest.raises(RuntimeError, match="scalar"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    with pytest.raises(RuntimeError):
        (x * 2).backward(torch.ones(3, dtype=torch.float64))
    (x[:1] * 2).backward()                                               # one element is enough
    return x.grad


@both
def test_no_inputs(torch):
    x = leaf(torch, 1.0)
    with pytest.raises(RuntimeError, match="inputs"):
        (x * x).backward(inputs=[])


@both
def test_the_graph_is_freed(torch):
    x = leaf(torch, 1.0, 2.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()
    z = (x * x).sum()
    z.backward(retain_graph=True)
    z.backward()
    return x.grad


@both
def test_a_graph_that_saved_nothing_may_go_twice(torch):
    x = leaf(torch, 1.0, 2.0)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    return x.grad


@both
def test_part_of_a_freed_graph(torch):
    x = leaf(torch, 2.0)
    y = x * x
    z = y * y
    z.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError):
        z.backward()
    return x.grad


@both
def test_create_graph(torch):
    x = leaf(torch, 1.0, 2.0)
    (x ** 3).sum().backward(create_graph=True)
    g = x.grad
    assert g.requires_grad
    x.grad = None
    (g * g).sum().backward()
    return x.grad


@both
def test_create_graph_accumulates_out_of_place(torch):
    x = leaf(torch, 1.0, 2.0)
    (x ** 3).sum().backward()
    first = x.grad
    (x ** 3).sum().backward(create_graph=True)
    assert x.grad is not first
    return x.grad, first


@both
def test_create_graph_on_a_scalar_leaf_used_twice(torch):
    x = leaf(torch, 3.0)
    y = x * x * x
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g, x, create_graph=True)
    (i,) = torch.autograd.grad(h, x)
    return g, h, i


@both
def test_keyword_arguments_of_backward(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * x
    y.backward(gradient=torch.ones(2, dtype=torch.float64), retain_graph=True)
    torch.autograd.backward(tensors=y, grad_tensors=torch.ones(2, dtype=torch.float64), retain_graph=None, create_graph=False, inputs=x)
    return x.grad


# ------------------------------------------------------------------ grad
@both
def test_grad(torch):
    x, y = leaf(torch, 1.0, 2.0), leaf(torch, 3.0, 4.0)
    found = torch.autograd.grad((x * y).sum(), [x, y])
    assert type(found) is tuple and x.grad is None
    return found


@both
def test_grad_of_an_intermediate(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    z = (y ** 3).sum()
    return torch.autograd.grad(z, [y, x])


@both
def test_grad_of_an_output(torch):
    x = leaf(torch, 2.0)
    y = x * x
    return torch.autograd.grad(y, [y, x])


@both
def test_grad_twice_the_same_input(torch):
    x = leaf(torch, 2.0)
    return torch.autograd.grad(x * x, [x, x])


@both
def test_grad_of_one_of_several_outputs(torch):
    x = leaf(torch, 3.0, 1.0, 2.0)
    values, places = torch.sort(x)
    a, b, c = values.unbind()
    (gb,) = torch.autograd.grad(b * b, b, retain_graph=True)
    return gb, torch.autograd.grad((values * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)).sum() + b, [values, x])


@both
def test_unused_inputs(torch):
    x, y = leaf(torch, 2.0), leaf(torch, 3.0)
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad(x * x, [x, y])
    z = x * x
    assert torch.autograd.grad(z, [x, y], allow_unused=True, retain_graph=True)[1] is None
    with pytest.raises(ValueError):
        torch.autograd.grad(z, [x, y], allow_unused=False, materialize_grads=True)
    return torch.autograd.grad(z, [x, y], materialize_grads=True)


@both
def test_grad_refuses_what_has_no_gradient(torch):
    x, c = leaf(torch, 2.0), torch.ones(())
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(x * x, c)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(c, x)


@both
def test_grad_leaves_other_leaves_alone(torch):
    x, w = leaf(torch, 2.0), leaf(torch, 3.0)
    seen = []
    w.register_hook(lambda g: seen.append(float(g)))
    found = torch.autograd.grad(x * w, x)
    assert w.grad is None and x.grad is None and not seen
    return found


@both
def test_batched_gradients(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * x
    return torch.autograd.grad(y, x, torch.eye(2, dtype=torch.float64), is_grads_batched=True)


@both
def test_gradients_with_a_graph_of_their_own(torch):
    x, v = leaf(torch, 1.0, 2.0), leaf(torch, 1.0, 1.0)
    (g,) = torch.autograd.grad(x * x, x, v, create_graph=True)
    return torch.autograd.grad((g * g).sum(), [x, v])


@both
def test_the_gradient_of_an_expanded_leaf_is_dense(torch):
    x = torch.ones(1).expand(3).requires_grad_()
    (x * torch.arange(3.0)).sum().backward()
    return x.grad, x.grad.stride()


# ------------------------------------------------------------------ detach, requires_grad
@both
def test_detach(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    d = y.detach()
    assert not d.requires_grad and d.is_leaf and d.data_ptr() == y.data_ptr()
    d[0] = 7.0
    seen = [y, y._version == d._version]
    z = x * 3
    z.detach_()
    assert z.is_leaf and not z.requires_grad
    with pytest.raises(RuntimeError):
        (x * 3)[0].detach_()
    return seen


@both
def test_requires_grad(torch):
    x = torch.zeros(2)
    seen = [x.requires_grad, x.is_leaf, x.grad_fn is None]
    x.requires_grad_()
    seen += [x.requires_grad, x.is_leaf, x.grad_fn is None]
    y = x * 2
    seen += [y.requires_grad, y.is_leaf, y.grad_fn is None]
    x.requires_grad = False
    seen += [x.requires_grad]
    for value in (True, False):
        with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
            y.requires_grad = value
    with pytest.raises(RuntimeError):
        y.requires_grad_(False)
    assert y.requires_grad_() is y
    for bad in (torch.int64, torch.bool):
        with pytest.raises(RuntimeError, match="floating"):
            torch.zeros(2, dtype=bad).requires_grad_()
        with pytest.raises(RuntimeError, match="floating"):
            torch.zeros(2, dtype=bad, requires_grad=True)
    seen += [torch.ones(2, requires_grad=True).requires_grad, torch.tensor([1.0], requires_grad=True).is_leaf]
    return seen


@both
def test_results_that_have_no_gradient(torch):
    x = leaf(torch, 1.0, 2.0)
    return [(x > 1).requires_grad, x.argmax().requires_grad, x.long().requires_grad, x.sort()[1].requires_grad,
            torch.zeros_like(x).requires_grad,
            x.to(torch.float32).requires_grad, x.sign().requires_grad, x.floor().requires_grad]


@both
def test_grad_can_be_assigned(torch):
    x = leaf(torch, 1.0, 2.0)
    g = torch.ones(2, dtype=torch.float64)
    x.grad = g
    assert x.grad is g
    (x * 2).sum().backward()
    assert x.grad is g
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(3, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        x.grad = torch.ones(2, dtype=torch.float32)
    with pytest.raises(TypeError):
        x.grad = 5
    with pytest.raises(RuntimeError):
        x.grad = x
    seen = [x.grad]
    del x.grad
    assert x.grad is None
    return seen


@both
def test_retain_grad(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    assert not y.retains_grad
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad and not x.retains_grad
    z = (y * y).sum()
    z.backward(retain_graph=True)
    seen = [y.grad.clone()]
    z.backward()
    x.retain_grad()
    assert not x.retains_grad
    with pytest.raises(RuntimeError):
        torch.ones(1).retain_grad()
    return seen, y.grad, x.grad


@both
def test_retain_grad_sees_what_hooks_made(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    return y.grad, x.grad


def test_the_users_line_is_looked_up_only_for_what_can_be_overwritten():
    """0.15 of the instructions of a layer's forward pass went into that for views, which save numbers."""
    torch = tritorch
    x, index = torch.ones(4, 4, requires_grad=True), torch.tensor([0, 1])
    for y in (x.view(16), x.t(), x[1:], x + 1, x.sum(0), torch.cat([x, x])):
        assert not hasattr(y.grad_fn, "frame"), y.grad_fn
    for y in (x * x, x.exp(), x[index], torch.nn.functional.linear(x, x)):
        assert y.grad_fn.frame[0].co_filename == __file__, y.grad_fn
