"""Fake quantization: what is rounded how, its gradients straight through, and the range that moves without the host waiting."""
import numpy as np
import pytest

import tritorch as torch


def numbers(device, dtype="float32", grad=False):
    values = torch.tensor([[0.05, 0.15, 0.25, -0.05], [float("nan"), float("inf"), -float("inf"), 3.0]], dtype=getattr(torch, dtype))
    return values.to(device).requires_grad_(grad)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_half_goes_to_even_and_what_is_no_number_to_the_least(cuda, dtype):
    for device in ("cpu", cuda):
        x = numbers(device, dtype, grad=True)
        y = torch.fake_quantize_per_tensor_affine(x, 0.125, 1, -3, 9)
        expected = [[0.0, 0.125, 0.25, 0.0], [-0.5, 1.0, -0.5, 1.0]]
        assert y.tolist() == expected and y.dtype is x.dtype
        y.backward(torch.full_like(y, 3.0))
        assert x.grad.tolist() == [[3.0] * 4, [0.0] * 4]
        scale, zero = torch.tensor(0.125, device=device), torch.tensor([1.9], device=device)          # a float zero is cut off
        assert torch.fake_quantize_per_tensor_affine(x.detach(), scale, zero, -3, 9).tolist() == expected


def test_channels_have_scales_of_their_own(cuda):
    for device in ("cpu", cuda):
        x = torch.tensor([[1.0, 0.3], [-0.6, 0.26]], device=device, requires_grad=True)
        scale, zero = torch.tensor([0.5, 0.125], device=device), torch.tensor([0, 2], dtype=torch.int32, device=device)
        y = torch.fake_quantize_per_channel_affine(x.t(), scale, zero, 0, 0, 3)                      # a transposed view
        assert y.tolist() == [[1.0, 0.0], [0.125, 0.125]] and y.stride() == x.t().stride()
        y.sum().backward()
        assert x.grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
        shifted = torch.fake_quantize_per_channel_affine(x.detach(), scale, zero.float() + 0.5, 1, -9, 9)
        assert shifted.tolist() == [[0.75, 0.3125], [-0.75, 0.3125]]                                  # round(x / scale + zero)


def test_gradients_of_gradients_and_forward_mode():
    x = torch.tensor([0.2, 5.0], requires_grad=True)
    g = torch.autograd.grad((torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7) ** 2).sum(), x, create_graph=True)[0]
    assert torch.autograd.grad(g.sum(), x)[0].tolist() == [2.0, 0.0]
    f = lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)                             # noqa: E731
    tangent = torch.func.jvp(f, (x.detach(),), (torch.tensor([2.0, 3.0]),))[1]
    assert tangent.tolist() == [2.0, 0.0]


def buffers(device, n=1):
    inf = float("inf")
    return [torch.full((n,), inf, device=device), torch.full((n,), -inf, device=device), torch.ones(n, device=device),
            torch.zeros(n, dtype=torch.int32, device=device)]


def test_a_range_that_moves(cuda):
    for device in ("cpu", cuda):
        on, off = (torch.tensor([k], device=device) for k in (1, 0))
        low, high, scale, zero = facts = buffers(device)
        x = torch.tensor([-1.0, 0.3, 1.55], device=device, requires_grad=True)
        y = torch.fused_moving_avg_obs_fake_quant(x, on, on, *facts, 0.5, 0, 255, -1)
        assert [v.item() for v in (low, high, zero)] == [-1.0, np.float32(1.55), 100] and abs(scale.item() - 0.01) < 1e-8
        y.backward(torch.ones_like(y))
        assert x.grad.tolist() == [1, 1, 1]
        torch.fused_moving_avg_obs_fake_quant(x.detach() * 3, on, off, *facts, 0.5, 0, 255, -1)       # watched, and not used
        assert low.item() == -2.0 and zero.item() == 100
        z = torch.fused_moving_avg_obs_fake_quant(x.detach() * 9, off, on, *facts, 0.5, 0, 255, -1)   # used, and not watched
        assert low.item() == -2.0 and z.min().item() == pytest.approx(-2.0, abs=0.03)
        assert torch.fused_moving_avg_obs_fake_quant(x, off, off, *facts, 0.5, 0, 255, -1).tolist() == x.tolist()


def test_rows_and_symmetric_ranges(cuda):
    r = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found = []
    for device in ("cpu", cuda):
        on, facts = torch.tensor([1], device=device), buffers(device, 0)
        y = torch.fused_moving_avg_obs_fake_quant(torch.tensor(r, device=device), on, on, *facts, 0.01, -128, 127, 0, True, True)
        assert facts[0].tolist() == r.min(1).tolist() and facts[3].tolist() == [0, 0, 0] and facts[2].shape == (3,)
        assert np.abs(y.cpu().numpy() - r).max() <= np.abs(r).max() / 254 + 1e-6
        found.append((y.tolist(), [f.tolist() for f in facts]))
    assert found[0] == found[1]
    with pytest.raises(RuntimeError, match="rows along dim 0"):
        torch.fused_moving_avg_obs_fake_quant(torch.ones(2, 3), on, on, *buffers("cpu", 3), 0.01, 0, 255, 1, True)


def test_what_is_refused():
    x, scale, zero = torch.ones(2, 3), torch.ones(3), torch.zeros(3, dtype=torch.int32)
    per = torch.fake_quantize_per_channel_affine
    for wrong, error in ((lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 256, 0, 255), RuntimeError),
                         (lambda: torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255), RuntimeError),
                         (lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 1.5, 0, 255), TypeError),
                         (lambda: torch.fake_quantize_per_tensor_affine(x, scale[:1].requires_grad_(), zero[:1], 0, 255), RuntimeError),
                         (lambda: torch.fake_quantize_per_tensor_affine(x.int(), 0.1, 0, 0, 255), NotImplementedError),
                         (lambda: per(x, scale.double(), zero, 1, 0, 255), RuntimeError),
                         (lambda: per(x, scale, zero.long(), 1, 0, 255), RuntimeError),
                         (lambda: per(x, scale, zero, 0, 0, 255), RuntimeError), (lambda: per(x, scale, zero, 2, 0, 255), IndexError),
                         (lambda: per(x, scale, zero, -1, 0, 255), RuntimeError),
                         (lambda: per(x, scale, zero - 1, 1, 0, 255), RuntimeError)):
        with pytest.raises(error):
            wrong()


def test_scales_that_are_trained(cuda):
    for device in ("cpu", cuda):
        x = torch.tensor([[0.6, 9.0], [-0.3, 0.26]], device=device, requires_grad=True)
        scale, zero = (torch.tensor(v, device=device, requires_grad=True) for v in ([0.5, 0.125], [0.0, 1.6]))
        y = torch._fake_quantize_learnable_per_channel_affine(x, scale, zero, 0, -4, 3, 2.0)
        assert y.tolist() == [[0.5, 1.5], [-0.25, 0.125]]
        y.backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device))
        assert x.grad.tolist() == [[1, 0], [3, 0]] and zero.grad.tolist() == [-2.0, -1.0]
        np.testing.assert_allclose(scale.grad.tolist(), [2 * (-0.2 + 6), 2 * (3 * 0.4 + 4)], rtol=1e-5)
    one, none = torch.ones(1), torch.zeros(1)
    for wrong in (lambda: torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -4, 3),
                  lambda: torch._fake_quantize_learnable_per_tensor_affine(x, one, none, 1, 3),
                  lambda: torch._fake_quantize_learnable_per_tensor_affine(x, one, none.int(), -4, 3),
                  lambda: torch._fake_quantize_learnable_per_channel_affine(x, one, none, 2, -4, 3)):
        with pytest.raises(RuntimeError):
            wrong()
