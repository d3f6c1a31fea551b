"""Hooks on tensors and on nodes: when they run, in which order, what they may change."""
import pytest
from both import both, leaf

import tritorch


# ------------------------------------------------------------------ on tensors
@both
def test_a_hook_sees_the_gradient(torch):
    x, seen = leaf(torch, 1.0, 2.0), []
    y = x * 3
    y.register_hook(lambda g: seen.append(("y", g.tolist())))
    x.register_hook(lambda g: seen.append(("x", g.tolist())))
    (y * y).sum().backward()
    return seen, x.grad


@both
def test_a_hook_replaces_the_gradient(torch):
    x = leaf(torch, 1.0, 2.0)
    y = x * 3
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    return x.grad


@both
def test_hooks_run_in_the_order_of_their_registration(torch):
    x, seen = leaf(torch, 1.0, 2.0), []
    y = x * 3
    for k in range(3):
        y.register_hook(lambda g, k=k: seen.append((k, g.tolist())) or g * 2)
        x.register_hook(lambda g, k=k: seen.append((10 + k, g.tolist())) or g + k)
    y.sum().backward()
    return seen, x.grad


@both
def test_hooks_can_be_removed(torch):
    x, seen = leaf(torch, 1.0, 2.0), []
    y = x * 3
    a, b = y.register_hook(lambda g: seen.append("a")), y.register_hook(lambda g: seen.append("b"))
    c = x.register_hook(lambda g: g * 100)
    a.remove()
    c.remove()
    a.remove()
    with y.register_hook(lambda g: seen.append("c")):
        pass
    y.sum().backward()
    assert b is not a
    return seen, x.grad


@both
def test_a_hook_may_remove_itself(torch):
    x, seen, handles = leaf(torch, 2.0), [], []

    def once(g):
        seen.append(float(g))
        handles[0].remove()

    handles.append(x.register_hook(once))
    (x * 3).backward()
    (x * 3).backward()
    return seen, x.grad


@both
def test_a_leaf_hook_runs_once_with_the_sum(torch):
    x, seen = leaf(torch, 2.0), []
    x.register_hook(lambda g: seen.append(float(g)))
    (x * 3 + x * x + x.exp()).backward()
    assert len(seen) == 1
    (x * 3).backward()
    return seen, x.grad


@both
def test_a_hook_on_a_tensor_with_several_consumers_runs_once(torch):
    x, seen = leaf(torch, 2.0), []
    y = x * 2
    y.register_hook(lambda g: seen.append(float(g)))
    (y * 3 + y * y + y.exp()).backward()
    return seen, x.grad


@both
def test_hooks_on_one_of_several_outputs(torch):
    x, seen = leaf(torch, 3.0, 1.0, 2.0), []
    values, places = x.sort()
    top, where = x.max(0)
    values.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
    top.register_hook(lambda g: seen.append(g.tolist()))
    (values[0] * 5 + top).backward()
    return seen, x.grad


@both
def test_bad_hooks(torch):
    x = leaf(torch, 1.0, 2.0)
    with pytest.raises(RuntimeError, match="requires? grad"):
        torch.ones(1).register_hook(lambda g: g)
    y = x * 2
    y.register_hook(lambda g: 5)
    with pytest.raises(TypeError):
        y.sum().backward()
    z = x * 2
    z.register_hook(lambda g: g[:1])
    with pytest.raises(RuntimeError):
        z.sum().backward()
    w = x * 2
    w.register_hook(lambda g: g.float())
    with pytest.raises(RuntimeError):
        w.sum().backward()
    v = x * 2
    v.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        v.sum().backward()


@both
def test_hooks_and_writes_in_place(torch):
    """A hook stays with the value that the tensor had."""
    x, seen = leaf(torch, 2.0, 3.0), []
    y = x * 1
    y.register_hook(lambda g: seen.append(("old", g.tolist())))
    y.mul_(3)
    y.register_hook(lambda g: seen.append(("new", g.tolist())))
    y.sum().backward()
    return seen, x.grad


@both
def test_retain_grad_follows_a_write_in_place(torch):
    x = leaf(torch, 2.0, 3.0)
    y = x * 1
    y.retain_grad()
    y.mul_(3)
    assert y.retains_grad
    y.sum().backward()
    return y.grad, x.grad


@both
def test_hooks_under_create_graph(torch):
    x, seen = leaf(torch, 2.0), []
    y = x * x
    y.register_hook(lambda g: seen.append(g.requires_grad) or g * x)
    (g,) = torch.autograd.grad(y * y, x, create_graph=True)
    return seen, g, torch.autograd.grad(g, x)


@both
def test_hooks_in_grad(torch):
    x, w, seen = leaf(torch, 2.0), leaf(torch, 5.0), []
    y = x * w
    y.register_hook(lambda g: seen.append("y") or g * 2)
    x.register_hook(lambda g: seen.append("x") or g * 3)
    w.register_hook(lambda g: seen.append("w"))
    found = torch.autograd.grad(y * y, x, retain_graph=True)
    found += torch.autograd.grad(y * y, y)
    return found, seen


# ------------------------------------------------------------------ after accumulation
@both
def test_post_accumulate_hooks(torch):
    x, w, seen = leaf(torch, 2.0), leaf(torch, 3.0), []
    h = x.register_post_accumulate_grad_hook(lambda t: seen.append((t is x, float(t.grad))))
    (x * w + x * 2).backward()
    (x * w).backward()
    h.remove()
    (x * w).backward()
    for bad in (x * 2, torch.ones(1)):
        with pytest.raises(RuntimeError):
            bad.register_post_accumulate_grad_hook(lambda t: None)
    return seen, x.grad


@both
def test_an_optimizer_in_the_backward_pass(torch):
    """The gradient of a layer can be used and let go before the next one comes."""
    ws, most = [leaf(torch, 1.0 + k / 10, 0.5) for k in range(5)], []

    def update(w):
        most.append(sum(v.grad is not None for v in ws))
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None

    for w in ws:
        w.register_post_accumulate_grad_hook(update)
    h = torch.ones(2, dtype=torch.float64)
    for w in ws:
        h = (h * w).sin()
    h.sum().backward()
    return most, ws


@both
def test_post_accumulate_hooks_with_inputs(torch):
    x, w, seen = leaf(torch, 2.0), leaf(torch, 3.0), []
    x.register_post_accumulate_grad_hook(lambda t: seen.append("x"))
    w.register_post_accumulate_grad_hook(lambda t: seen.append("w"))
    (x * w).backward(inputs=[x])
    torch.autograd.grad(x * w, [x, w])
    return seen, x.grad, w.grad is None


@both
def test_leaf_hooks_and_post_accumulate_hooks_in_order(torch):
    x, seen = leaf(torch, 2.0), []
    x.register_post_accumulate_grad_hook(lambda t: seen.append(("post", float(t.grad))))
    x.register_hook(lambda g: seen.append(("hook", float(g))) or g * 2)
    y = x * 1
    node = y.grad_fn.next_functions[0][0]
    node.register_prehook(lambda gs: seen.append(("pre", float(gs[0]))))
    node.register_hook(lambda gi, go: seen.append(("after", len(gi), float(go[0]))))
    y.backward()
    return seen, x.grad


# ------------------------------------------------------------------ on nodes
@both
def test_node_hooks_replace(torch):
    x, w = leaf(torch, 2.0), leaf(torch, 3.0)
    y = x * w
    y.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else g * 10 for g in gi))
    z = y.exp()
    z.grad_fn.register_prehook(lambda go: (go[0] * 100,))
    z.backward()
    return x.grad, w.grad


@both
def test_order_of_tensor_and_node_hooks(torch):
    x, seen = leaf(torch, 2.0), []
    y = x * 3
    y.grad_fn.register_prehook(lambda go: seen.append("pre"))
    y.grad_fn.register_hook(lambda gi, go: seen.append("post"))
    y.register_hook(lambda g: seen.append("tensor"))
    y.backward()
    return seen


@both
def test_node_hooks_see_every_input(torch):
    x, c, seen = leaf(torch, 2.0), torch.tensor(3.0, dtype=torch.float64), []
    for y in (x * c, c * x, x * x, x - c):
        y.grad_fn.register_hook(lambda gi, go: seen.append([None if g is None else float(g) for g in gi]))
        y.backward()
    return seen


@both
def test_wrong_counts_from_node_hooks(torch):
    x = leaf(torch, 2.0)
    y = x * x
    y.grad_fn.register_hook(lambda gi, go: (gi[0],))
    with pytest.raises(RuntimeError):
        y.backward()


# ------------------------------------------------------------------ on several tensors
@both
def test_multi_grad_hooks(torch):
    x, y, z, seen = leaf(torch, 2.0), leaf(torch, 3.0), leaf(torch, 4.0), []
    handle = torch.autograd.graph.register_multi_grad_hook((x, y, z), lambda gs: seen.append([None if g is None else float(g) for g in gs]))
    (x * y * z).backward()
    (x * y).backward()
    handle.remove()
    (x * y).backward()
    first = torch.autograd.graph.register_multi_grad_hook((x, y), lambda g: seen.append(float(g)), mode="any")
    (x * 5).backward()
    first.remove()
    return seen


@both
def test_gradient_edges(torch):
    x = leaf(torch, 2.0)
    y = x * x
    edge = torch.autograd.graph.get_gradient_edge(y)
    assert edge.node is y.grad_fn and edge.output_nr == 0
    z = y * 3
    grads = torch.autograd.grad([edge, z], [x, edge], [torch.ones_like(y), None], retain_graph=True)
    torch.autograd.backward([edge, x * 5], [torch.ones_like(y) * 7, None])
    return grads, x.grad


@both
def test_only_nodes_on_the_way_to_an_input_run(torch):
    x, w, seen = leaf(torch, 2.0), leaf(torch, 3.0), []
    a, b = x * 2, w * 3
    for name, t in (("a", a), ("b", b)):
        t.grad_fn.register_hook(lambda *g, name=name: seen.append(name))
    (a * b).backward(inputs=[x])
    return seen


@pytest.mark.parametrize("where", ["leaf", "result"])
@both
def test_what_a_hook_keeps_does_not_change_with_the_gradient(torch, where):
    x, kept = leaf(torch, 1.0, 2.0), []
    y = x + 1                                                            # hands its gradient on as it is
    (x if where == "leaf" else y).register_hook(lambda g: kept.append(g))
    (y * y).sum().backward()
    x.grad.zero_()
    return kept


# ------------------------------------------------------------------ on saved tensors
@both
def test_saved_tensors_by_name(torch):
    x = leaf(torch, 0.5, 1.0)
    y = x.exp()
    z = y.sin()
    saved = y.grad_fn._saved_result, z.grad_fn._saved_self
    with pytest.raises(AttributeError):
        print(z.grad_fn._saved_nothing)
    z.sum().backward()
    with pytest.raises(RuntimeError):
        print(z.grad_fn._saved_self)
    return saved


@both
def test_saved_tensors_pass_hooks_that_may_be_forbidden(torch):
    hooks = torch.autograd.graph
    x = leaf(torch, 0.5, 1.0)
    with hooks.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = x.exp().sin() * x
        with pytest.raises(RuntimeError), hooks.disable_saved_tensors_hooks("not here"):
            pass
    with hooks.disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"), hooks.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            pass
        z = x.exp()
    with hooks.save_on_cpu():
        z = z * x
    return torch.autograd.grad([y.sum(), z.sum()], x)


def test_tensors_saved_on_the_cpu_come_back(cuda):
    x = tritorch.arange(1.0, 4.0, device=cuda, requires_grad=True)
    for pin in (False, True):
        with tritorch.autograd.graph.save_on_cpu(pin_memory=pin):
            y = x * 1
            node = (y * y).grad_fn
        device, held = node.saved[0].value
        assert device == x.device and held.device.type == "cpu" and held.is_pinned() is pin
        assert node.saved_tensors[0].device == x.device and node.saved_tensors[0].tolist() == [1, 2, 3]


def test_hooks_see_a_gradient_once_per_pass_in_every_thread():
    import threading

    torch = tritorch
    x, seen = torch.ones(3, requires_grad=True), []
    x.register_hook(lambda g: seen.append(g.tolist()))
    threads = [threading.Thread(target=lambda: (x * 2).sum().backward()) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [[2.0] * 3] * 4 and x.grad.tolist() == [8.0] * 3
