"""Gradients themselves: whose memory they are, their shapes and dtypes; and the nodes they come through."""
from both import both, leaf
from calls import Calls

import tritorch


# ------------------------------------------------------------------ whose memory a gradient is
@both
def test_gradients_never_share_memory(torch):
    x, y, g = leaf(torch, 1.0, 2.0), leaf(torch, 3.0, 4.0), torch.ones(2, dtype=torch.float64)
    z = x + y
    z.retain_grad()
    z.backward(g, retain_graph=True)
    places = [t.data_ptr() for t in (x.grad, y.grad, z.grad, g)]
    assert len(set(places)) == 4
    z.backward(g)
    x.grad.mul_(100)
    return x.grad, y.grad, z.grad, g


@both
def test_gradients_of_a_leaf_reached_twice(torch):
    x, g = leaf(torch, 1.0, 2.0), torch.ones(2, dtype=torch.float64)
    torch.autograd.backward([x, x], [g, g])
    y, w = leaf(torch, 1.0, 2.0), leaf(torch, 1.0, 2.0)
    (y + y + w).backward(g)
    assert len({y.grad.data_ptr(), w.grad.data_ptr(), g.data_ptr(), x.grad.data_ptr()}) == 4
    return x.grad, y.grad, w.grad, g


@both
def test_a_captured_gradient_is_not_overwritten(torch):
    x, y, kept = leaf(torch, 1.0, 2.0), leaf(torch, 3.0, 4.0), []
    z = x + y
    z.register_hook(lambda g: kept.append(g))
    z.sum().backward()
    before = kept[0].clone()
    (x * 5 + y).sum().backward()
    x.grad.add_(1)
    return before, kept[0], x.grad, y.grad


@both
def test_an_expanded_gradient_gets_memory(torch):
    x = leaf(torch, 1.0, 2.0, 3.0)
    x.sum().backward()
    assert x.grad.is_contiguous() and x.grad.stride() == (1,)
    x.grad[0] = 5.0
    return x.grad


@both
def test_grad_results_survive_another_pass(torch):
    x = leaf(torch, 1.0, 2.0)
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x, retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    return g, x.grad


# ------------------------------------------------------------------ shapes and dtypes of gradients
@both
def test_broadcasts_are_summed(torch):
    a, b, c = leaf(torch, [[1.0], [2.0]]), leaf(torch, 1.0, 2.0, 3.0), leaf(torch, 5.0)
    (a * b + c * b).sum().backward()
    return a.grad, b.grad, c.grad


@both
def test_mixed_dtypes(torch):
    a = torch.tensor([1.0, 2.0], dtype=torch.float32, requires_grad=True)
    b = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    h = torch.tensor([3.0, 4.0], dtype=torch.bfloat16, requires_grad=True)
    (a * b * h).sum().backward()
    assert a.grad.dtype is torch.float32 and b.grad.dtype is torch.float64 and h.grad.dtype is torch.bfloat16
    return a.grad, b.grad, h.grad


# ------------------------------------------------------------------ nodes
@both
def test_nodes(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x.exp()
    z = (y * 3).sum()
    names = []
    node = z.grad_fn
    while node is not None:
        names.append(node.name().rsplit("::")[-1])
        node = node.next_functions[0][0] if node.next_functions else None
    assert y.grad_fn.next_functions[0][0].variable is x
    assert isinstance(z.grad_fn, torch.autograd.graph.Node)
    return names, len(z.grad_fn.next_functions), z.grad_fn.next_functions[0][1]


@both
def test_node_hooks_and_metadata(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 2
    seen = []
    y.grad_fn.register_hook(lambda gi, go: seen.append(("after", gi[0].tolist(), go[0].tolist())))
    y.grad_fn.register_prehook(lambda go: seen.append(("before", go[0].tolist())))
    y.grad_fn.metadata["mine"] = 5
    assert y.grad_fn.metadata == {"mine": 5}
    y.sum().backward()
    return seen


def test_a_gradient_that_nobody_else_holds_is_not_copied():
    torch = tritorch
    x, w, b = torch.randn(4, 3), torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    w2 = torch.randn(5, 5, requires_grad=True)
    loss = torch.nn.functional.linear((x @ w + b).tanh(), w2).sum()
    with Calls() as calls:
        loss.backward()
    assert not {"assign", "copy_to"} & set(calls.names), calls.names
    assert all(p.grad.storage.nbytes == p.grad.nbytes for p in (w, b, w2))
