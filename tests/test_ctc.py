"""Connectionist temporal classification against all alignments, its gradient against differences, and lengths of every kind."""
import itertools

import numpy as np
import pytest

import tritorch as torch
from tritorch.ops.ctc import ctc_loss


def joined(path, blank):
    return tuple([c for c, _ in itertools.groupby(path) if c != blank])


def by_enumeration(log_probs, target, blank):
    """-log of the sum over all alignments of one sample."""
    T, C = log_probs.shape
    total = sum(np.exp(log_probs[range(T), path].sum()) for path in itertools.product(range(C), repeat=T) if joined(path, blank) == target)
    return -np.log(total) if total else np.inf


def log_probs_of(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


LOGITS = np.random.default_rng(0).standard_normal((5, 4, 3))
TARGETS, STEPS, LABELS = np.array([[1, 1, 2], [2, 1, 1], [1, 2, 0], [2, 2, 2]]), (5, 4, 3, 3), (3, 2, 0, 3)


@pytest.mark.parametrize("where", ["cpu", "simulated"])
@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize("lengths", [tuple, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32).cuda()], ids=["tuple", "cpu", "gpu"])
def test_all_alignments(cuda, where, row, lengths):
    device, x = torch.device("cpu") if where == "cpu" else cuda, log_probs_of(LOGITS)
    targets = np.concatenate([t[:n] for t, n in zip(TARGETS, LABELS)]) if row else TARGETS
    got = ctc_loss(torch.tensor(x, device=device), torch.tensor(targets, dtype=torch.int32, device=device), lengths(STEPS), lengths(LABELS),
                   reduction="none")
    want = [by_enumeration(x[:n, k], tuple(TARGETS[k, :m]), 0) for k, (n, m) in enumerate(zip(STEPS, LABELS))]
    assert np.isinf(want[3]) and not np.isinf(want[:3]).any()            # three equal labels need five steps
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-12)


def loss_of(x, targets, where, **options):
    return ctc_loss(torch.tensor(x, device=where) if isinstance(x, np.ndarray) else x, torch.tensor(targets, device=where), STEPS, LABELS,
                    **options)


def test_reductions_and_blanks():
    x = log_probs_of(LOGITS)
    each = loss_of(x, TARGETS % 2, "cpu", blank=2, reduction="none", zero_infinity=True)
    want = [by_enumeration(x[:n, k], tuple(TARGETS[k, :m] % 2), 2) for k, (n, m) in enumerate(zip(STEPS, LABELS))]
    want = np.where(np.isinf(want), 0, want)
    np.testing.assert_allclose(each.numpy(), want, rtol=1e-12)
    options = dict(blank=2, zero_infinity=True)
    assert loss_of(x, TARGETS % 2, "cpu", reduction="sum", **options).item() == pytest.approx(want.sum())
    assert loss_of(x, TARGETS % 2, "cpu", **options).item() == pytest.approx((want / np.maximum(LABELS, 1)).mean())
    one = ctc_loss(torch.tensor(x[:, 0]), torch.tensor([0, 1]), torch.tensor(5), torch.tensor(2), 2, "none")
    assert one.shape == () and one.item() == pytest.approx(by_enumeration(x[:, 0], (0, 1), 2))


@pytest.mark.parametrize("where", ["cpu", "simulated"])
def test_gradient(cuda, where):
    """Through log_softmax it is the derivative, whatever the part is that a softmax takes out again; and so it is of second order."""
    device = torch.device("cpu") if where == "cpu" else cuda
    weights, direction = torch.tensor([0.5, -1.0, 2.0, 1.0], device=device), torch.tensor(LOGITS[::-1].copy(), device=device)

    def loss(x):
        return (loss_of(x.log_softmax(-1), TARGETS, device, reduction="none", zero_infinity=True) * weights).sum()

    def slope(x, **keep):
        x = x.detach().requires_grad_()
        g, = torch.autograd.grad(loss(x), x, **keep)
        return x, (g * direction).sum()

    x, step = torch.tensor(LOGITS, device=device), 1e-5 * direction
    numeric = (loss(x + step) - loss(x - step)).item() / 2e-5
    assert slope(x)[1].item() == pytest.approx(numeric, rel=1e-7)
    leaf, along = slope(x, create_graph=True)
    assert along.item() == pytest.approx(numeric, rel=1e-7)
    second, = torch.autograd.grad(along, leaf)
    numeric = (slope(x + step)[1] - slope(x - step)[1]).item() / 2e-5
    assert (second * direction).sum().item() == pytest.approx(numeric, rel=1e-6)
    assert torch.func.jvp(loss, (x,), (direction,))[1].item() == pytest.approx(slope(x)[1].item(), rel=1e-9)


@pytest.mark.parametrize("where", ["cpu", "simulated"])
def test_convention_and_infinity(cuda, where):
    """The gradient is p - share: 0 behind the last step; NaN, or 0, where no alignment fits."""
    device, x = torch.device("cpu") if where == "cpu" else cuda, log_probs_of(LOGITS)
    for zero in (False, True):
        leaf = torch.tensor(x, device=device).requires_grad_()
        loss_of(leaf, TARGETS, device, reduction="sum", zero_infinity=zero).backward()
        g = leaf.grad.cpu().numpy()
        np.testing.assert_allclose(g[:, :3].sum(-1), 0, atol=1e-12)
        assert not g[3:, 2].any() and not g[3:, 3].any()
        assert not g[:3, 3].any() if zero else np.isnan(g[:3, 3]).all()


def test_long_targets_of_equal_labels(cuda):
    """More states than a warp has threads, more labels than a tile, and classes that come often; in float32 the shares of the classes at a
    time sum to 1, though the loss is of the size of the time."""
    rng = np.random.default_rng(1)
    x, targets = log_probs_of(4 * rng.standard_normal((150, 2, 3))), rng.integers(1, 3, (2, 70))
    grads = []
    for device, kind in ((torch.device("cpu"), torch.float64), (torch.device("cpu"), torch.float32), (cuda, torch.float32)):
        leaf = torch.tensor(x.transpose(1, 2, 0).copy(), dtype=kind, device=device).permute(2, 0, 1).detach().requires_grad_()
        ctc_loss(leaf, torch.tensor(targets, device=device), (150, 140), (70, 65), reduction="sum").backward()
        grads.append(leaf.grad.cpu().numpy())
    for got in grads[1:]:
        np.testing.assert_allclose(got, grads[0], atol=4e-5)
        assert np.abs(got.sum(-1)).max() < 2e-6


def test_errors(cuda):
    x, targets = torch.tensor(log_probs_of(LOGITS)), torch.tensor(TARGETS)
    for change, kind, words in (
        (dict(reduction="max"), ValueError, "a reduction among"), (dict(blank=3), RuntimeError, "a blank in [0, 2]"),
        (dict(input_lengths=(6, 1, 1, 1)), RuntimeError, "input_lengths of at most 5"),
        (dict(target_lengths=(4, 1, 1, 1)), RuntimeError, "target_lengths of at most 3"),
        (dict(target_lengths=(-1, 1, 1, 1)), RuntimeError, "target_lengths of at least 0"),
        (dict(input_lengths=(5, 5)), RuntimeError, "input_lengths for 4 samples"),
        (dict(targets=targets.reshape(-1)), RuntimeError, "expected 8 targets"), (dict(targets=targets + 7), IndexError, "are classes"),
        (dict(log_probs=x.half()), NotImplementedError, "float32 or float64"), (dict(log_probs=x[:0]), RuntimeError, "not empty"),
    ):
        with pytest.raises(kind) as caught:
            ctc_loss(**{**dict(log_probs=x, targets=targets, input_lengths=STEPS, target_lengths=LABELS), **change})
        assert words in str(caught.value)
    with pytest.raises(RuntimeError, match="input_lengths within the log_probs, got 9"):
        ctc_loss(x.cuda(), targets.cuda(), torch.tensor([9, 4, 3, 3]).cuda(), torch.tensor(LABELS).cuda()).item()
