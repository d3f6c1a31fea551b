"""Gradients of pieces travel as pieces; saved memory that no one else knows is written over; results lie as what they came from."""
import numpy as np
import pytest
from calls import Calls

import tritorch as torch
from tritorch.autograd.parts import empty_alike
from tritorch.nn import functional as F


def gradient(cut, weights):
    """The gradient of Σ weight · piece through a tensor that is not a leaf, and the operators of its backward pass."""
    x = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    pieces = cut(x * 1.0)
    loss = sum((p * w).sum() for p, w in zip(pieces, weights))
    with Calls() as seen:
        loss.backward()
    return x.grad.numpy(), seen.names


CUTS = {
    "split": (lambda x: x.split([1, 3], 2), lambda g: (g[:, :, :1], g[:, :, 1:]), True),
    "unbind": (lambda x: x.unbind(1), lambda g: (g[:, 0], g[:, 1], g[:, 2]), True),
    "gaps": (lambda x: (x[:, :, 2], x[:, :, :1]), lambda g: (g[:, :, 2], g[:, :, :1]), False),
    "overlap": (lambda x: (x[:, :2], x[:, 1:], x[:, 1]), lambda g: (g[:, :2], g[:, 1:], g[:, 1]), False),
    "two dims": (lambda x: (x[1], x[:, 2], x[:, :, 3]), lambda g: (g[1], g[:, 2], g[:, :, 3]), False),
    "and all": (lambda x: (x[:, :1], x, x[:, 2:]), lambda g: (g[:, :1], g, g[:, 2:]), False),
    "steps": (lambda x: (x[:, ::2], x[:, 1]), lambda g: (g[:, ::2], g[:, 1]), False),
    "empty piece": (lambda x: x.split([0, 1, 2], 1), lambda g: (g[:, :0], g[:, :1], g[:, 1:]), True),
}


@pytest.mark.parametrize("name", CUTS)
def test_pieces_sum_up(name):
    cut, places, covers = CUTS[name]
    shapes = [p.shape for p in cut(torch.zeros(2, 3, 4))]
    weights = [np.random.default_rng(k).standard_normal(s).astype("f4") for k, s in enumerate(shapes)]
    want = np.zeros((2, 3, 4), "f4")
    for place, w in zip(places(want), weights):
        place += w
    got, names = gradient(cut, [torch.tensor(w) for w in weights])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not covers or not {"fill", "add"} & set(names[names.index("mul"):]), names


def test_parts_reach_leaves_hooks_and_captures():
    x = torch.arange(6.0).requires_grad_()
    (x[:2].sum() + x[4:].sum()).backward()
    x[1:3].sum().backward()
    assert x.grad.tolist() == [1, 2, 1, 0, 1, 1]
    y, seen = x * 1, []
    y.register_hook(lambda g: seen.append(g.tolist()))
    assert torch.autograd.grad(y[3:].sum() + y[5], y)[0].tolist() == [0, 0, 0, 1, 1, 2] and seen == [[0, 0, 0, 1, 1, 2]]
    y, seen = (x * 1), []
    part = y[:2]
    part.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0].tolist()))
    part.sum().backward()
    assert seen == [[1, 1, 0, 0, 0, 0]]


def test_heads_of_one_projection_get_one_gradient(cuda):
    """q, k and v cut from one tensor: their gradients are written where they belong, and joining the heads is no copy."""
    values = np.random.default_rng(0).standard_normal((2, 5, 3 * 8)).astype("f4")
    grads = {}
    for device in ("cpu", cuda):
        x = torch.tensor(values).to(device).requires_grad_()
        q, k, v = [p.view(2, 5, 2, 4).transpose(1, 2) for p in (x * 1.0).split(8, 2)]
        joined = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        assert joined.is_contiguous()
        loss = joined.reshape(2, 5, 8).square().sum()
        with Calls() as seen:
            loss.backward()
        assert not {"copy_to", "fill", "add", "assign"} & set(seen.names[seen.names.index("attention_backward"):]), seen.names
        grads[str(device)] = x.grad.cpu().numpy()
    first, second = grads.values()
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
    q = torch.tensor(values).requires_grad_()
    parts = [q[:, :, k * 8:][:, :, :8].view(2, 5, 2, 4).transpose(1, 2).contiguous() for k in range(3)]
    F.scaled_dot_product_attention(*parts, is_causal=True).square().sum().backward()
    np.testing.assert_allclose(q.grad.numpy(), first, rtol=1e-5, atol=1e-6)


def test_only_what_fills_a_memory_is_laid_out_alike():
    x = torch.zeros(4, 3, 2)
    assert [p.strides for p in empty_alike(*x.unbind(1))] == [(6, 1)] * 3
    assert empty_alike(*x.unbind(1)[:2]) is None and empty_alike(x[:, 0], x[:, 0]) is None and empty_alike(x, x.clone()) is None


def test_gradients_of_half_types_are_added_to_wider_ones_as_they_are():
    weight, x = torch.ones(3, 3, requires_grad=True), torch.full((2, 3), 0.1)
    grads, casts = [], []
    for _ in range(2):
        with torch.autocast("cpu"):
            loss = (x @ weight).float().sum()
        with Calls() as seen:
            loss.backward()
        grads.append(weight.grad.clone())
        casts.append(seen.names.count("copy_to"))
    assert casts[1] == casts[0] - 1 and torch.equal(grads[1], 2 * grads[0]) and weight.grad.dtype is torch.float32


def residual_block(x, w, b, scale):
    x = x * scale                                                        # not a leaf, and a gradient to see
    return x + F.layer_norm(x, (4,), w, b).sin()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_norm_adds_what_the_stream_it_reads_has_got_already(device, cuda):
    device = device if device == "cpu" else cuda
    leaves = [torch.tensor(np.random.default_rng(k).standard_normal(s).astype("f4"), device=device, requires_grad=True)
              for k, s in enumerate(((3, 4), (4,), (4,), (1,)))]
    with Calls() as seen:
        residual_block(*leaves).square().sum().backward()
    assert "residual_norm_backward" in seen.names and seen.names.count("add") == 1          # the one of the forward pass
    got = [t.grad.cpu().numpy() for t in leaves]
    want = torch.autograd.grad(residual_block(*leaves).square().sum(), leaves, create_graph=True)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w.detach().cpu().numpy(), rtol=2e-5, atol=2e-6)
    some = torch.autograd.grad(residual_block(*leaves).square().sum(), [leaves[0], leaves[2]])
    for g, w in zip(some, (want[0], want[2])):
        np.testing.assert_allclose(g.cpu().numpy(), w.detach().cpu().numpy(), rtol=2e-5, atol=2e-6)


def test_a_norm_reads_gradients_of_half_types_as_they_are():
    x, w = torch.tensor([[0.3, -1.0, 2.0, 0.7]], requires_grad=True), torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu"):
        loss = (F.layer_norm(x * 1.0, (4,)) @ w).float().square().sum()
    with Calls() as seen:
        loss.backward()
    assert seen.names.count("copy_to") == 2                              # of the loss's gradient, and of the weight's
    hooked = []
    with torch.autocast("cpu"):
        y = F.layer_norm(x * 1.0, (4,))
        y.register_hook(lambda g: hooked.append(g.dtype))
        (y @ w).float().square().sum().backward()
    assert hooked == [torch.float32]


# ------------------------------------------------------------------ writing over the logits
def logits_and_loss(device):
    x = torch.tensor([[0.5, 1.0, -1.0], [2.0, 0.0, 0.3]], device=device, requires_grad=True)
    logits = (x * 2).view(2, 3)
    return x, logits, F.cross_entropy(logits, torch.tensor([0, 2], device=device))


@pytest.fixture
def wanted(cuda):
    x, logits, loss = logits_and_loss(cuda)
    loss.backward(retain_graph=True)                                     # nothing may be written over
    return x.grad.tolist()


def test_the_gradient_takes_the_place_of_logits_that_no_one_holds(cuda, wanted):
    x, logits, loss = logits_and_loss(cuda)
    address, seen = logits.data_ptr(), []
    logits.grad_fn.register_prehook(lambda grads: seen.append(grads[0].data_ptr() == address))
    del logits
    loss.backward()
    assert seen == [True] and x.grad.tolist() == wanted


@pytest.mark.parametrize("holder", [lambda x: x, lambda x: x.detach(), lambda x: x[0], lambda x: x.data, lambda x: x.storage.owner])
def test_logits_that_someone_holds_are_left_alone(holder, cuda, wanted):
    x, logits, loss = logits_and_loss(cuda)
    held, address, seen = holder(logits), logits.data_ptr(), []
    logits.grad_fn.register_prehook(lambda grads: seen.append(grads[0].data_ptr() == address))
    del logits
    loss.backward()
    assert held is not None and seen == [False] and x.grad.tolist() == wanted


def test_leaves_and_hooked_values_are_left_alone(cuda, wanted):
    leaf = torch.tensor([[0.5, 1.0, -1.0]], device=cuda, requires_grad=True)
    F.cross_entropy(leaf, torch.tensor([0], device=cuda)).backward()
    assert leaf.tolist() == [[0.5, 1.0, -1.0]]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or len(kept) - 1, lambda k: kept[k]):
        x, logits, loss = logits_and_loss(cuda)
    before = [t.tolist() for t in kept]
    del logits
    loss.backward()
    assert [t.tolist() for t in kept] == before and x.grad.tolist() == wanted


def test_logits_are_not_cast_under_autocast():
    logits = torch.tensor([[0.5, 1.0, -1.0]]).bfloat16().requires_grad_()
    with Calls() as seen, torch.autocast("cpu"):
        loss = F.cross_entropy(logits, torch.tensor([0]))
    assert loss.dtype is torch.float32 and "copy_to" not in seen.names
    assert loss.item() == pytest.approx(F.cross_entropy(logits.detach().float(), torch.tensor([0])).item())


def test_the_gradient_of_a_slice_is_added_to_that_slice_of_what_a_leaf_has(cuda):
    for device in ("cpu", cuda):
        for kind in (torch.float32, torch.float64):
            x = torch.ones(3, 4, dtype=kind, device=device, requires_grad=True)
            x.grad = torch.arange(12.0, dtype=kind, device=device).view(4, 3).t()              # of another layout, and kept
            kept, version, want = x.grad, x.grad._version, x.grad.cpu().numpy().copy()
            row, g = x[1], torch.full((4,), 2.0, dtype=kind, device=device)
            with Calls() as seen:
                row.backward(g)
            assert seen.names[-1] == "add" and not {"fill", "assign"} & set(seen.names)
            want[1] += 2
            x[:, 1:3].backward(torch.full((3, 2), 3.0, dtype=kind, device=device))
            want[:, 1:3] += 3
            (x[0].sum() + x[:2].sum()).backward()                        # two pieces that meet
            want[0] += 1
            want[:2] += 1
            assert x.grad is kept and kept._version > version
            np.testing.assert_array_equal(kept.cpu().numpy(), want)


def test_slices_of_leaves_with_hooks_create_graph_and_none():
    x, seen = torch.ones(3, 2, requires_grad=True), []
    x[0].sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    x[1].sum().backward()
    handle.remove()
    assert seen == [[[0, 0], [1, 1], [0, 0]]] and x.grad.tolist() == [[1, 1], [1, 1], [0, 0]]
    (x * x)[2].sum().backward(create_graph=True)
    assert x.grad.requires_grad and x.grad.tolist() == [[1, 1], [1, 1], [2, 2]]
    assert torch.autograd.grad(x[1].sum(), x)[0].tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("dim, keepdim", [(0, False), (-1, True), ((0, 2), False), ((0, 2), True), (None, False), ((), True)])
def test_gradients_of_sums_are_views(dim, keepdim):
    x = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    out = x.sum(dim, keepdim)
    g = torch.arange(float(max(out.numel(), 1))).reshape(out.shape) + 1
    given, want = g.clone(), np.broadcast_to(g.numpy() if keepdim or dim is None else np.expand_dims(g.numpy(), dim), x.shape)
    out.backward(g, retain_graph=True)
    np.testing.assert_array_equal(x.grad.numpy(), want)
    (slope,) = torch.autograd.grad(out, x, g, retain_graph=True)
    assert slope.storage is g.storage
    x.grad.add_(1)
    assert torch.equal(g, given)
    (twice,) = torch.autograd.grad(out, x, g.requires_grad_(), create_graph=True)
    (back,) = torch.autograd.grad((twice * x).sum(), g)
    np.testing.assert_array_equal(back.numpy(), x.detach().sum(dim, keepdim).numpy())


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_gradient_of_what_is_cut_up_lies_as_that_does(cuda, need_weights):
    """The projections of attention are cut up along a dim that was brought to the front: joined, their gradients are read in place."""
    x = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    turned = (x * 1.0).permute(2, 0, 1)
    turned.retain_grad()
    sum((p * (k + 1)).sum() for k, p in enumerate(turned.unbind())).backward()
    assert turned.grad.strides == turned.strides and x.grad.tolist() == [[[1, 2, 3, 4]] * 3] * 2
    layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(cuda), torch.ones(2, 5, 8, device=cuda)
    with Calls() as seen:
        out, _ = layer(x, x, x, need_weights=need_weights)
        forward = len(seen.names)
        out.backward(torch.ones(2, 5, 8, device=cuda))
    assert forward <= 13 + 6 * need_weights and seen.names[forward:].count("copy_to") <= 2, seen.names       # batches come second inside
