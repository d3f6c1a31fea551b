"""What kernels report of values that only the device knows: targets that are no class, numbers that are no probability."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import functional as F

LOGITS = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
CLASSES = "expected class indices below the number of classes, got "
TARGETS = {
    "rows": lambda x, y: F.cross_entropy(x, y), "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "planes": lambda x, y: F.cross_entropy(x.unsqueeze(2), y.unsqueeze(1)), "half": lambda x, y: F.cross_entropy(x.half(), y),
    "linear": lambda x, y: F.linear_cross_entropy(x.requires_grad_(), torch.eye(3, device=x.device), y),
    "rows of a linear": lambda x, y: F.linear_cross_entropy(x, torch.eye(3, device=x.device), y, reduction="none")}
CHANCE = {
    "bernoulli": (lambda p: torch.bernoulli(p), (1.5, -0.25, np.nan, np.inf)), "in place": (lambda p: p.clone().bernoulli_(p), (1.5,)),
    "float64": (lambda p: torch.bernoulli(p.double()), (-0.25,)), "half": (lambda p: torch.bernoulli(p.half()), (-0.25,)),
    "multinomial": (lambda p: torch.multinomial(p, 1), (-0.25, np.nan, np.inf)),
    "with replacement": (lambda p: torch.multinomial(p, 3, True), (-0.25, np.nan, np.inf)),
    "without replacement": (lambda p: torch.multinomial(p.expand(2, 40), 3), (-0.25, np.inf)),
    "normal": (lambda p: torch.normal(p, p), (-0.25, np.nan))}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("target", [3, -1, 1 << 40])
def test_targets(cuda, name, target):
    def made(*targets):
        return TARGETS[name](torch.tensor(LOGITS).to(cuda), torch.tensor(targets).to(cuda))

    assert np.isfinite(made(0, 2, 1, -100).detach().cpu().numpy()).all()
    bad = made(0, target, 1, -100)
    with pytest.raises(IndexError, match=f"cross_entropy: {CLASSES}{target}"):
        bad.cpu()
    bad.cpu()                                                            # said once


@pytest.mark.parametrize("wait", [torch.cuda.synchronize, lambda: torch.cuda.current_stream().synchronize()])
def test_whoever_waits_is_told(cuda, wait):
    F.cross_entropy(torch.tensor(LOGITS).to(cuda), torch.tensor([0, 7, 1, 0]).to(cuda))
    with pytest.raises(IndexError, match=f"cross_entropy: {CLASSES}7"):
        wait()
    wait()


@pytest.mark.parametrize("name", CHANCE)
def test_chances(cuda, name):
    draw, values = CHANCE[name]
    for value in values:
        p = torch.full((40,), 0.5, device=cuda)
        draw(p).cpu()
        p[17] = value
        made = draw(p)
        with pytest.raises(RuntimeError, match=f"got {value}"):
            made.cpu()


@pytest.mark.parametrize("count, replacement", [(1, False), (2, False), (1, True), (3, True)])
def test_rows_of_zeros_have_no_chances(cuda, count, replacement):
    for device in ("cpu", cuda):
        p = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], device=device)
        assert 0 not in torch.multinomial(p[:1], count, replacement).tolist()[0]
        with pytest.raises(RuntimeError, match="multinomial: expected rows of probabilities with a positive sum"):
            torch.multinomial(p, count, replacement).cpu()


def test_classes_out_of_range(cuda):
    x = torch.tensor(LOGITS)
    for device in ("cpu", cuda):
        for bad in (3, -1):
            with pytest.raises(RuntimeError, match=f"one_hot: expected class values from 0 up and below num_classes, got {bad}"):
                F.one_hot(torch.tensor([0, bad, 1], device=device), 3).cpu()
        for bad in (3, -2):
            with pytest.raises(RuntimeError, match=f"multilabel_margin_loss: expected class indices, or -1 after them, got {bad}"):
                F.multilabel_margin_loss(x[:1].to(device), torch.tensor([[1, -1, bad]], device=device)).cpu()
        assert F.one_hot(torch.tensor([[2, 0]], device=device), 3).tolist() == [[[0, 0, 1], [1, 0, 0]]]


def test_a_captured_step_reports_at_each_replay(cuda):
    x, y, p = torch.tensor(LOGITS).to(cuda), torch.tensor([0, 2, 1, 0]).to(cuda), torch.full((9,), 0.5, device=cuda)
    graph = torch.cuda.CUDAGraph()
    F.cross_entropy(x, y).cpu(), torch.bernoulli(p).cpu()                # what is new compiles outside
    with torch.cuda.graph(graph):
        loss, coins = F.cross_entropy(x, y), torch.bernoulli(p)
    graph.replay()
    assert np.isfinite(loss.item()) and set(coins.tolist()) <= {0, 1}
    for _ in range(2):
        y[1] = 7
        graph.replay()
        with pytest.raises(IndexError, match="got 7"):
            loss.cpu()
        y[1] = 2
        p[3] = -2
        graph.replay()
        with pytest.raises(RuntimeError, match="got -2.0"):
            loss.cpu()
        p[3] = 0.5
    graph.replay()
    assert np.isfinite(loss.item())


def test_the_cpu_says_it_at_once():
    for x, y in ((1.5, 1.0), (np.nan, 1.0), (0.5, -0.25)):
        with pytest.raises(RuntimeError, match="probabilities from 0 to 1"):
            F.binary_cross_entropy(torch.tensor([0.5, x]), torch.tensor([0.0, y]))
    with pytest.raises(RuntimeError, match="rates ≥ 0"):
        torch.poisson(torch.tensor([1.0, np.nan]))
    for f in (F.cross_entropy, F.nll_loss):
        with pytest.raises(IndexError, match=r"class indices in \[0, 2\], got 3"):
            f(torch.tensor(LOGITS), torch.tensor([0, 3, 1, 1]))
    for f in (torch.bernoulli, lambda p: torch.multinomial(p, 1), lambda p: torch.normal(p, p)):
        with pytest.raises(RuntimeError, match="expected"):
            f(torch.tensor([0.5, -0.5]))


@pytest.mark.parametrize("shape, error", [((3,), ValueError), ((4, 1), RuntimeError), ((), ValueError)])
def test_targets_do_not_broadcast(shape, error):
    for f in (F.nll_loss, F.cross_entropy):
        with pytest.raises(error, match=rf"{f.__name__}: expected targets of shape \(4,\)"):
            f(torch.tensor(LOGITS), torch.zeros(shape, dtype=torch.int64))
        x, one = torch.tensor(LOGITS[0]), torch.tensor([1])
        assert f(x, one, reduction="none").shape == () and f(x, one) == f(x, one[0])
        with pytest.raises(ValueError, match=r"expected targets of shape \(\)"):
            f(x, torch.tensor([1, 1]))


def test_a_place_that_is_not_a_number_is_outside_of_the_image(cuda):
    for device in ("cpu", cuda):
        grid = torch.tensor([[[[np.nan, 0.0], [0.0, np.nan], [0.0, 0.0], [np.inf, 0.0]]]], device=device)
        made = F.grid_sample(torch.ones(1, 1, 3, 3, device=device), grid, mode="nearest", align_corners=False)
        assert made.flatten().tolist() == [0, 0, 1, 0]
        made = F.grid_sample(torch.ones(1, 1, 3, 3, device=device), grid, align_corners=False).flatten().tolist()
        assert np.isnan(made[:2]).all() and made[2] == 1
        image = torch.arange(9.0, device=device).view(1, 1, 3, 3).requires_grad_()
        for padding, last in (("border", 5), ("reflection", 3)):         # PyTorch takes NaN to the first place
            for mode in ("nearest", "bilinear"):
                places = grid.detach().requires_grad_()
                made = F.grid_sample(image, places, mode, padding, align_corners=False)
                assert made.flatten().tolist() == [3, 1, 4, last]
                made.sum().backward()
                assert mode == "nearest" or padding == "reflection" or np.isfinite(places.grad.cpu().numpy()).all()
