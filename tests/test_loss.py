"""Losses against PyTorch: targets, weights, smoothing, reductions, ignored samples, and vocabularies of every size."""
import itertools

import numpy as np
import pytest
from arrays import draw

import tritorch
from tritorch.ops import loss as ours_f
from tritorch.ops.cross_entropy import weighted_mean

torch = pytest.importorskip("torch")
theirs_f = torch.nn.functional


def classes(n, *shape, seed=5):
    return np.random.default_rng(seed).integers(0, n, shape)


def both(call, *arrays, place="cpu", rtol=1e-4, atol=1e-5):
    """Run a function of the module and the tensors in tritorch and in torch: results and the gradient of the first tensor agree."""
    mine, other = [tritorch.tensor(a).to(place) for a in arrays], [torch.tensor(a) for a in arrays]
    x, y = mine[0].requires_grad_(), other[0].requires_grad_()
    got, want = call(ours_f, *mine), call(theirs_f, *other)
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(got.detach().cpu().array, want.detach().numpy(), rtol=rtol, atol=atol)
    weight = draw(*got.shape, seed=9)
    (g,), (h,) = tritorch.autograd.grad(got, [x], tritorch.tensor(weight).to(place)), torch.autograd.grad(want, [y], torch.tensor(weight))
    np.testing.assert_allclose(g.cpu().array, h.numpy(), rtol=rtol, atol=atol)


OPTIONS = list(itertools.product(["none", "sum", "mean"], [False, True], [0.0, 0.2], [-100, 1]))


@pytest.mark.parametrize("reduction, weighted, smoothing, ignore", OPTIONS)
def test_cross_entropy_of_indices(reduction, weighted, smoothing, ignore, cuda):
    for shape in ((6, 5), (2, 5, 3, 4), (5,)):
        x, t, w = draw(*shape), classes(5, *shape[:max(len(shape) - 1, 0) and 1], *shape[2:]), np.abs(draw(5, seed=2))
        if len(shape) == 1 and t == ignore:
            t = np.asarray(3)
        for place in ("cpu", cuda):
            both(lambda f, x, t, w: f.cross_entropy(x, t, w if weighted else None, ignore_index=ignore, reduction=reduction,
                                                    label_smoothing=smoothing), x, t, w, place=place)


@pytest.mark.parametrize("reduction, weighted, smoothing, _", [o for o in OPTIONS if o[3] == 1])
def test_cross_entropy_of_probabilities(reduction, weighted, smoothing, _, cuda):
    for shape in ((6, 5), (2, 5, 3), (0, 5)):
        t = np.exp(draw(*shape, seed=1))
        t /= t.sum(1, keepdims=True)
        for place in ("cpu", cuda):
            both(lambda f, x, t, w: f.cross_entropy(x, t, w if weighted else None, reduction=reduction, label_smoothing=smoothing),
                 draw(*shape), t, np.abs(draw(5, seed=2)), place=place)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_of_no_classes(reduction):
    made = tritorch.nn.functional.cross_entropy(tritorch.ones(5, 0), tritorch.ones(5, 0), reduction=reduction, label_smoothing=0.1)
    assert made.isnan() if reduction == "mean" else not made.any()


@pytest.mark.parametrize("n", [2, 3, 65, 4097, 50257])
def test_vocabularies(n, cuda, tiles):
    x = draw(3, n) * 5
    both(lambda f, x, t: f.cross_entropy(x, t), x, classes(n, 3), place=cuda)
    both(lambda f, x, t: f.cross_entropy(x, t, label_smoothing=0.1), x, classes(n, 3), place=cuda)


def test_special_logits(cuda):
    x = draw(4, 6)
    x[0], x[1, 2], x[2, :3] = 1e4, -np.inf, -np.inf
    t = np.array([1, 2, 4, 0])
    want = theirs_f.cross_entropy(torch.tensor(x), torch.tensor(t), reduction="none").numpy()
    for place in ("cpu", cuda):
        got = ours_f.cross_entropy(tritorch.tensor(x).to(place), tritorch.tensor(t).to(place), reduction="none")
        np.testing.assert_allclose(got.cpu().array, want, rtol=1e-5)


def test_all_ignored_is_nan():
    assert np.isnan(ours_f.cross_entropy(tritorch.zeros(2, 3), tritorch.tensor([-100, -100])).item())


def test_half_logits_give_a_half_loss_as_exact_as_float32(cuda):
    x = tritorch.tensor(draw(64, 100)).to(tritorch.bfloat16)
    t = classes(100, 64)
    want = theirs_f.cross_entropy(torch.tensor(x.float().array), torch.tensor(t)).item()
    for place in ("cpu", cuda):
        got = ours_f.cross_entropy(x.to(place), tritorch.tensor(t).to(place))
        assert got.dtype is tritorch.bfloat16 and abs(got.item() - want) <= 0.004 * want


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_nll_loss(reduction):
    for shape in ((6, 5), (2, 5, 3)):
        x, t, w = draw(*shape), classes(5, shape[0], *shape[2:]), np.abs(draw(5, seed=2))
        both(lambda f, x, t, w: f.nll_loss(x, t, w, ignore_index=2, reduction=reduction), x, t, w)
        both(lambda f, x, t: f.nll_loss(x, t, reduction=reduction), x, t)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_elementwise_losses(reduction, cuda):
    x, y, w = draw(4, 5), draw(4, 5, seed=1), np.abs(draw(4, 5, seed=2))
    x[0, 0] = y[0, 0]
    y[1] = x[1] + 1
    p, q = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(-y))
    p[0, :2] = 0, 1
    hard = (y > 0).astype(np.float32)
    zero = x.copy()
    zero[2] = 0
    for place in ("cpu", cuda):
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            both(lambda f, x, y: getattr(f, name)(x, y, reduction=reduction), x, y, place=place)
        both(lambda f, x, y: f.smooth_l1_loss(x, y, reduction=reduction, beta=0.3), x, y, place=place)
        both(lambda f, x, y: f.huber_loss(x, y, reduction=reduction, delta=0.3), x, y, place=place)
        both(lambda f, p, q, w: f.binary_cross_entropy(p, q, w, reduction=reduction), p, q, w, place=place, atol=1e-3)
        both(lambda f, p, h: f.binary_cross_entropy(p, h, reduction=reduction), p, hard, place=place, atol=1e-3)
        both(lambda f, x, q, w: f.binary_cross_entropy_with_logits(x, q, w, reduction=reduction), zero, q, w, place=place)
        both(lambda f, x, q, w: f.binary_cross_entropy_with_logits(x * 100, q, reduction=reduction, pos_weight=w[0]), x, q, w, place=place)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_kl_div(reduction):
    x, q = draw(4, 5), np.abs(draw(4, 5, seed=1))
    q[0, 0] = 0
    both(lambda f, x, q: f.kl_div(x, q, reduction=reduction), x, q)
    both(lambda f, x, q: f.kl_div(x, q, reduction=reduction, log_target=True), x, draw(4, 5, seed=1))


@pytest.mark.parametrize("n", [0, 1, 5000, 70001])                      # none, one program, the sums of several programs
def test_the_mean_of_losses(n, cuda, monkeypatch):
    monkeypatch.setattr(tritorch.cuda.driver, "hardware_tiles", True)
    loss, weight = draw(2 * n).astype(np.float32), np.abs(draw(n, seed=1)).astype(np.float32)
    x, w = tritorch.tensor(loss).to(cuda)[::2], tritorch.tensor(weight).to(cuda)
    mean, total = weighted_mean(x, w)
    np.testing.assert_allclose(mean.item(), loss[::2].sum(dtype=np.float64) / weight.sum(dtype=np.float64) if n else np.nan, rtol=1e-5)
    np.testing.assert_allclose(total.item(), weight.sum(dtype=np.float64), rtol=1e-6)


def test_a_mean_of_half_losses_is_float32():
    mean, total = weighted_mean(tritorch.full((3000,), 0.5, dtype=tritorch.bfloat16), tritorch.ones(3000, dtype=tritorch.bfloat16))
    assert mean.dtype is total.dtype is tritorch.float32 and (mean.item(), total.item()) == (0.5, 3000.0)


def test_errors():
    with pytest.raises(ValueError, match="a reduction among"):
        ours_f.mse_loss(tritorch.ones(2), tritorch.ones(2), reduction="all")
    with pytest.warns(UserWarning, match="rarely what a loss is meant to do"):
        ours_f.mse_loss(tritorch.ones(2), tritorch.ones(3, 2))
    with pytest.raises(IndexError, match=r"class indices in \[0, 2\], got 3"):
        ours_f.cross_entropy(tritorch.zeros(2, 3), tritorch.tensor([0, 3]))


def test_older_flags_say_how_to_reduce():
    x, y = tritorch.tensor([1.0, 3.0]), tritorch.zeros(2)
    assert ours_f.mse_loss(x, y, size_average=False).item() == 10.0
    assert ours_f.mse_loss(x, y, reduce=False).tolist() == [1.0, 9.0]
