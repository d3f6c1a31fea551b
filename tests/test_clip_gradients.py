"""Norms and clipping of all gradients at once."""
import numpy as np
import pytest

import tritorch
from tritorch.ops import optimize


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("power", [2.0, 1.0, 3.5, float("inf"), float("-inf"), 0.0])
def test_total_norm(cuda, device, power):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("f4") for s in [(3, 5), (), (400, 300)]]
    arrays[0][1, 1] = 0
    place = cuda if device == "cuda" else "cpu"
    got = optimize.total_norm([tritorch.tensor(a).to(place) for a in arrays], power)
    flat = np.concatenate([a.reshape(-1) for a in arrays]).astype(np.float64)
    assert got.device.type == device
    np.testing.assert_allclose(got.item(), np.linalg.norm(flat, power), rtol=2e-5)
    poisoned = [tritorch.tensor([1.0, float("nan"), 2.0]).to(place), tritorch.ones(3, device=place)]
    assert power == 0 or np.isnan(optimize.total_norm(poisoned, power).item())


@pytest.mark.parametrize("power", [0, -1, -1.5])
def test_norms_that_count_or_shrink(cuda, power):
    """Of order 0 the norm of norms, as in PyTorch: the number of tensors that are not all zeros."""
    for device in ("cpu", cuda):
        weights = [tritorch.zeros(3, device=device, requires_grad=True) for _ in range(3)]
        for w, gradient in zip(weights, ([2.0, 4.0, 8.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0])):
            w.grad = tritorch.tensor(gradient, device=device)
        some = weights if power == 0 else weights[:1]
        norm = sum(x ** power for x in (2, 4, 8)) ** (1 / power) if power else 2
        assert tritorch.nn.utils.clip_grad_norm_(some, 1.0, power).item() == pytest.approx(norm, rel=1e-5)
        np.testing.assert_allclose(weights[0].grad.tolist(), np.array([2.0, 4, 8]) * min(1, 1 / norm), rtol=1e-5)


@pytest.mark.parametrize("power", [-1, -0.5])
def test_infinite_gradients_of_negative_order(cuda, power):
    for place in ("cpu", cuda):
        assert optimize.total_norm([tritorch.tensor([float("inf"), float("-inf")], device=place)], power).item() == float("inf")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_clipping(cuda, device):
    place = cuda if device == "cuda" else "cpu"
    kinds = tritorch.float32, tritorch.float32, tritorch.bfloat16, tritorch.float64
    params = [tritorch.zeros(2, 3, device=place, dtype=k, requires_grad=True) for k in kinds]
    for p in params:
        p.grad = tritorch.full((2, 3), 2.0, device=place, dtype=p.dtype)
    total = optimize.total_norm([p.grad for p in params])
    np.testing.assert_allclose(total.item(), 2 * 24 ** 0.5, rtol=1e-6)
    optimize.clip_by_norm([p.grad for p in params], total, 100.0)
    assert all((p.grad == 2).all().item() for p in params)
    optimize.clip_by_norm([p.grad for p in params], total, 1.0)
    np.testing.assert_allclose(optimize.total_norm([p.grad for p in params]).item(), 1.0, rtol=1e-2)
    optimize.clip_by_norm([p.grad for p in params], tritorch.tensor(float("nan"), device=place), 1.0)
    assert all(p.grad.isnan().all().item() for p in params)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD".split())
def test_infinities_are_results_and_no_accidents(name):
    p = tritorch.nn.Parameter(tritorch.tensor([float("inf"), float("nan"), 1e38, 1.0]))
    optimizer = getattr(tritorch.optim, name)([p], lr=1e3)
    for g in ([float("inf"), 1, 3e38, float("nan")], [float("-inf"), float("inf"), -3e38, 1]):
        p.grad = tritorch.tensor(g)
        tritorch.nn.utils.clip_grad_norm_([p], 1e38)
        p.grad = tritorch.tensor(g)
        optimizer.step()
    assert not p.isfinite().all()
