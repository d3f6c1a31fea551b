"""Gradients of affine maps: weight and bias by one product, in float32 behind the casts of autocast, and where they meet others."""
import numpy as np
import pytest
from calls import Calls

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def layer_of(device, n=5, k=4, dtype=torch.float32):
    layer = nn.Linear(k, n)
    with torch.no_grad():
        layer.weight.copy_(draw(n, k, seed=1)), layer.bias.copy_(draw(n, seed=2))
    return layer.to(device, dtype)


def exact(x, g):
    """Gradients of weight and bias in float64, of operands that are rounded to bfloat16."""
    x, g = [t.detach().bfloat16().cpu().double().numpy().reshape(-1, t.shape[-1]) for t in (x, g)]
    return g.T @ x, g.sum(0)


def backward(layer, x, g):
    """One pass under autocast; the operators of the way back."""
    with torch.autocast(x.device.type, torch.bfloat16):
        out = layer(x)
    g = g.to(out.dtype)
    with Calls() as calls:
        out.backward(g)
    return calls.names


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parameters_of_autocast_get_sums_that_were_never_rounded(device, request):
    device = request.getfixturevalue("cuda") if device == "cuda" else device
    layer, x, g = layer_of(device), draw(3, 7, 4, seed=3).to(device), draw(3, 7, 5, seed=4).to(device)
    names = backward(layer, x, g)
    assert names.count("linear_gradients") == 1 and not {"copy_to", "sum", "matmul", "addmm"} & set(names)
    for found, want in zip((layer.weight.grad, layer.bias.grad), exact(x, g)):
        assert found.dtype is torch.float32
        np.testing.assert_allclose(found.cpu(), want, rtol=1e-5, atol=1e-5)
    before = [p.grad.data_ptr() for p in layer.parameters()]
    backward(layer, x, g)
    for p, address, want in zip(layer.parameters(), before, exact(x, g)):
        assert p.grad.data_ptr() == address
        np.testing.assert_allclose(p.grad.cpu(), 2 * want, rtol=1e-5, atol=1e-5)


def test_what_a_hook_on_the_cast_or_a_half_weight_wants():
    layer, x, g = layer_of("cpu"), draw(6, 4, seed=3), draw(6, 5, seed=4)
    seen, low = [], layer.weight.to(torch.bfloat16)
    low.register_hook(lambda grad: seen.append(grad.dtype))
    F.linear(x.bfloat16(), low).backward(g.bfloat16())
    assert seen == [torch.bfloat16] and layer.weight.grad.dtype is torch.float32
    half = layer_of("cpu", dtype=torch.bfloat16)
    half(x.bfloat16()).backward(g.bfloat16())
    assert half.weight.grad.dtype is half.bias.grad.dtype is torch.bfloat16
    for found, want in zip((half.weight.grad, half.bias.grad), exact(x, g)):
        np.testing.assert_allclose(found.float(), want, rtol=2 ** -8, atol=1e-6)


def test_a_weight_that_is_used_twice_under_autocast():
    layer, x, g = layer_of("cpu", 4, 4), draw(6, 4, seed=3), draw(6, 4, seed=4)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = layer(x)
        out = layer(hidden)
    out.backward(g.bfloat16())
    first, second = exact(hidden, g)
    inner = g.bfloat16().double().numpy() @ layer.weight.detach().bfloat16().double().numpy()
    inner = torch.from_numpy(inner.astype(np.float32)).bfloat16()
    third, fourth = exact(x, inner)
    assert layer.weight.grad.dtype is torch.float32
    np.testing.assert_allclose(layer.weight.grad, first + third, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(layer.bias.grad, second + fourth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters_cost_nothing(frozen):
    layer, x = layer_of("cpu"), draw(6, 4, seed=3)
    getattr(layer, frozen).requires_grad_(False)
    with Calls() as calls:
        layer(x).sum().backward()
    assert ("matmul" in calls.names) == (frozen == "bias") and "linear_gradients" not in calls.names
    assert getattr(layer, frozen).grad is None
    np.testing.assert_allclose(layer.bias.grad if frozen == "weight" else layer.weight.grad,
                               np.full(5, 6.0) if frozen == "weight" else np.broadcast_to(x.numpy().sum(0), (5, 4)), rtol=1e-5)


def test_a_bias_of_another_shape_and_parts_of_a_graph():
    weight, bias, x = [t.requires_grad_() for t in (draw(7, 2), draw(5, 7, seed=1), draw(3, 5, 2, seed=2))]
    F.linear(x, weight, bias).sum().backward()
    np.testing.assert_allclose(bias.grad, np.full((5, 7), 3.0), rtol=1e-6)
    (only,) = torch.autograd.grad(F.linear(x, weight, bias[0]).sum(), [weight])
    np.testing.assert_allclose(only, np.broadcast_to(x.detach().numpy().sum((0, 1)), (7, 2)), rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_feed_forward_under_autocast(activation, cuda):
    """One product for each weight and its bias; the bits of the separate layers."""
    first, second = layer_of(cuda, 12, 4), layer_of(cuda, 5, 12)
    x, g = draw(3, 7, 4, seed=3).to(cuda), draw(3, 7, 5, seed=4).to(cuda).bfloat16()
    act = F.relu if activation == "relu" else lambda t: F.gelu(t, approximate="tanh")
    results = []
    for fused in (True, False):
        for p in (*first.parameters(), *second.parameters()):
            p.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            out = (F.feed_forward(x, first.weight, first.bias, second.weight, second.bias, activation) if fused
                   else second(act(first(x))))
        with Calls() as calls:
            out.backward(g)
        assert calls.names.count("linear_gradients") == 2
        results.append([p.grad.cpu().numpy() for p in (*first.parameters(), *second.parameters())])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)
