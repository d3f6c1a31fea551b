"""The fused last layer: PyTorch's numbers, the plain chain's gradients, bounded memory, the same bits every time."""
import numpy as np
import pytest
from calls import Calls

import tritorch as torch
from tritorch.cuda import driver, tuner
from tritorch.nn import functional as F
from tritorch.ops import linear_cross_entropy as family
from tritorch.ops import linear_cross_entropy_tiles

RNG = np.random.default_rng(0)
X, W, B = [RNG.standard_normal(shape).astype("f4") for shape in ((13, 6), (11, 6), (11,))]
TARGET, WEIGHT = RNG.integers(0, 11, 13), RNG.uniform(0.5, 2, 11).astype("f4")
TARGET[4] = 3


def run(lib, loss, device="cpu", dtype=None, bias=True, create_graph=False):
    """Loss and gradients of x, w and the bias."""
    arrays = (X, W, B) if bias else (X, W)
    tensors = [lib.tensor(a).to(device) for a in arrays]
    tensors = [(t if dtype is None else t.to(getattr(lib, dtype))).requires_grad_() for t in tensors]
    out = loss(lib.nn.functional, *tensors, lib.tensor(TARGET).to(device), lib.tensor(WEIGHT).to(device))
    grads = lib.autograd.grad(out.sum(), tensors, create_graph=create_graph)
    return [t.detach().cpu().float().numpy() for t in (out, *grads)]


CALLS = {
    "mean": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, t, linear_bias=b),
    "sum": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, t, linear_bias=b, reduction="sum"),
    "none": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, t, linear_bias=b, reduction="none"),
    "weights": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, t, linear_bias=b, weight=c, ignore_index=3),
    "smooth": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, t, linear_bias=b, weight=c, label_smoothing=0.2, ignore_index=3),
    "one row": lambda f, x, w, b, t, c: f.linear_cross_entropy(x[0], w, t[0], linear_bias=b),
    "one row, none": lambda f, x, w, b, t, c: f.linear_cross_entropy(x[0], w, t[0], linear_bias=b, reduction="none"),
    "probabilities": lambda f, x, w, b, t, c: f.linear_cross_entropy(x, w, (x @ w.mT).detach().softmax(1), linear_bias=b),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_pytorch(name, cuda):
    oracle = pytest.importorskip("torch")
    if not hasattr(oracle.nn.functional, "linear_cross_entropy"):
        pytest.skip("an older PyTorch")
    want = run(oracle, CALLS[name])
    for device in ("cpu", cuda):
        for got, expected in zip(run(torch, CALLS[name], device), want):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_losses_of_more_dims():
    x, w, t = torch.tensor(X), torch.tensor(RNG.standard_normal((5, 2, 6)).astype("f4")), torch.tensor(TARGET % 5)
    got = F.linear_cross_entropy(x, w, torch.stack([t, t], 1))
    want = F.cross_entropy((x @ w.reshape(10, 6).mT).view(13, 5, 2), torch.stack([t, t], 1))
    assert got.item() == pytest.approx(want.item())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_as_near_as_the_plain_chain(dtype, device, cuda):
    def plain(f, x, w, b, t, c):
        return f.cross_entropy(f.linear(x, w, b), t, c, label_smoothing=0.1)

    def fused(f, x, w, b, t, c):
        return f.linear_cross_entropy(x, w, t, linear_bias=b, weight=c, label_smoothing=0.1)

    rounded = [torch.tensor(a).to(getattr(torch, dtype)).double().numpy() for a in (X, W, B)]
    exact = [torch.tensor(a).requires_grad_() for a in rounded]
    loss = plain(F, *exact, torch.tensor(TARGET), torch.tensor(WEIGHT).double())
    exact = [loss, *torch.autograd.grad(loss, exact)]
    got, rival = [run(torch, call, device if device == "cpu" else cuda, dtype) for call in (fused, plain)]
    for ours, theirs, want in zip(got, rival, exact):
        want = want.detach().numpy()
        unit = 2.0 ** (-8 if dtype == "bfloat16" else -11) * np.abs(want).max()       # both end with a rounding of their own
        assert np.abs(ours - want).max() <= np.abs(theirs - want).max() + unit


@pytest.mark.gpu
@pytest.mark.parametrize("classes, weighted, reduction", [(1300, False, "mean"), (515, True, "sum"), (515, True, "mean")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_wait_in_shared_memory(dtype, classes, weighted, reduction, cuda, monkeypatch):
    """More rows than programs, of six tiles or three, the last not whole; one row does not count: as rows that are read twice."""
    if driver.current().device_properties(0).major != 9:
        pytest.skip("a kernel for Hopper")
    monkeypatch.setattr(linear_cross_entropy_tiles, "sm_count", lambda: 2)
    numbers = [RNG.standard_normal(shape).astype("f4") for shape in ((7, 64), (classes, 64), (classes,))]
    target, weight = torch.tensor([5, 0, -100, 300, 511, 77, classes - 1]), torch.tensor(RNG.uniform(0.5, 2, classes).astype("f4"))
    tensors = [torch.tensor(a).to(getattr(torch, dtype)).to(cuda).requires_grad_() for a in numbers]
    found = []
    for way in (dict(BLOCK_N=512, num_warps=4), dict(kernel="gluon", BLOCK_N=256, PER_SM=1, num_warps=1)):
        with tuner.forcing("linear_cross_entropy", way):
            loss = F.linear_cross_entropy(tensors[0], tensors[1], target.to(cuda), linear_bias=tensors[2], reduction=reduction,
                                          weight=weight.to(tensors[0]) if weighted else None)
        found.append([t.detach().cpu().double().numpy() for t in (loss, *torch.autograd.grad(loss, tensors))])
    for want, got in zip(*found):
        assert np.abs(want).max() > 0 and np.abs(got - want).max() <= 2.0 ** (-7 if dtype == "bfloat16" else -10) * np.abs(want).max()


def test_second_order():
    def penalty(call):
        def loss(f, x, w, b, t, c):
            grads = torch.autograd.grad(call(f, x, w, b, t, c).sum(), [x, w, b], create_graph=True)
            return sum(g.square().sum() for g in grads)

        return loss

    want = run(torch, penalty(lambda f, x, w, b, t, c: f.cross_entropy(f.linear(x, w, b), t, c, label_smoothing=0.1)))
    for reduction in ("mean", "none"):
        got = run(torch, penalty(lambda f, x, w, b, t, c, r=reduction: f.linear_cross_entropy(
            x, w, t, linear_bias=b, weight=c, label_smoothing=0.1, reduction=r)))
        if reduction == "mean":
            for ours, theirs in zip(got, want):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert np.isfinite(got[0]).all()


def test_autocast_casts_the_operands_and_raises_the_loss(cuda):
    for device in ("cpu", cuda):
        x, w, b = [torch.tensor(a).to(device).requires_grad_() for a in (X, W, B)]
        t, c = torch.tensor(TARGET).to(device), torch.tensor(WEIGHT).to(device)
        with torch.autocast("cpu" if device == "cpu" else "cuda", torch.bfloat16):
            loss = F.linear_cross_entropy(x, w, t, linear_bias=b, weight=c)
            plain = F.cross_entropy(F.linear(x, w, b), t, c)
        assert loss.dtype is torch.float32 and abs(loss.item() - plain.item()) < 2e-2
        with Calls() as calls:
            loss.backward()
        assert {v.grad.dtype for v in (x, w, b)} == {torch.float32} and "copy_to" not in calls.names
        halves = [v.detach().bfloat16().requires_grad_() for v in (x, w, b)]
        halves[1].register_hook(lambda g: seen.append(g.dtype))
        seen, total = [], F.linear_cross_entropy(*halves[:2], t, linear_bias=halves[2], weight=c, reduction="sum")
        for v, g in zip((x, w, b), torch.autograd.grad(total, halves)):  # of a mean they are scaled before they are rounded
            want = g.cpu().float().numpy() / c.cpu().numpy()[TARGET].sum()
            np.testing.assert_allclose(v.grad.cpu().numpy(), want, rtol=0, atol=2 ** -7 * np.abs(want).max())
        assert seen == [torch.bfloat16] and not torch.equal(w.grad, w.grad.bfloat16().float())       # that of the weight never is


@pytest.mark.parametrize("dtype, weighted", [("float32", True), ("bfloat16", False), ("float16", True)])
def test_gradients_of_a_mean_need_no_pass_of_their_own(cuda, dtype, weighted):
    """Where the pass begins at the loss, and nobody has had its gradient of 1. Of many rows float16 cannot hold the parts of a mean."""
    low, copies = getattr(torch, dtype), 8

    def run(device, change):
        x = torch.tensor(np.concatenate([X] * copies)).to(device).to(low).requires_grad_()
        w, t = torch.tensor(W).to(device).requires_grad_(), torch.tensor(np.concatenate([TARGET] * copies)).to(device)
        with torch.autocast(x.device.type, low if dtype != "float32" else None, enabled=dtype != "float32"):
            loss = F.linear_cross_entropy(x, w, t, weight=torch.tensor(WEIGHT).to(x) if weighted else None, ignore_index=3)
        loss = loss * 2.0 if change == "double" else loss
        if change == "hook":
            loss.register_hook(lambda g: g.mul_(2.0))
        with Calls() as calls:
            loss.backward(torch.full((), 2.0, device=device) if change == "given" else None)
        return calls.names.count("mul"), [g.cpu().double().numpy() * (0.5 if change else 1) for g in (x.grad[:13], w.grad)]

    exact = [torch.tensor(a).to(low).double().requires_grad_() for a in (X, W)]
    weight = torch.tensor(WEIGHT).to(low).double() if weighted else None
    wanted = torch.autograd.grad(F.cross_entropy(exact[0] @ exact[1].mT, torch.tensor(TARGET), weight, ignore_index=3), exact)
    for device, change in [("cpu", None), ("cpu", "given"), *[(cuda, change) for change in (None, "double", "hook", "given")]]:
        count, found = run(device, change)
        assert device == "cpu" or (count == 0) == (change is None and dtype != "float16")
        for g, want, share in zip(found, wanted, (copies, 1)):
            near = np.abs(want.numpy()).max() * (2 ** -18 if dtype == "float32" else 2 ** -7)
            np.testing.assert_allclose(g * share, want.numpy(), rtol=0, atol=near)


def test_a_mean_of_nothing_is_nan_and_has_no_slope(cuda):
    """As in PyTorch."""
    for device in ("cpu", cuda):
        x, w = [torch.tensor(a).to(device).requires_grad_() for a in (X, W)]
        loss = F.linear_cross_entropy(x, w, torch.full((13,), -100, device=device))
        loss.backward()
        assert np.isnan(loss.item()) and not x.grad.any() and not w.grad.any()


def test_memory_is_bounded_and_gradients_are_scaled_in_place(cuda, monkeypatch):
    """In pieces, more than the two of the simulated device; the logits, 4 MiB, never exist as a whole."""
    rows, classes, width = 256, 4096, 16
    monkeypatch.setattr(family, "tile", lambda hardware, simulated: {family.BUFFER: 1 << 19, 128: 32}.get(hardware, simulated))
    x = torch.tensor(RNG.standard_normal((rows, width)).astype("f4")).to(cuda).requires_grad_()
    w = torch.tensor(RNG.standard_normal((classes, width)).astype("f4")).to(cuda).requires_grad_()
    target = torch.tensor(RNG.integers(0, classes, rows)).to(cuda)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    F.linear_cross_entropy(x, w, target).backward()
    parts = (torch.cuda.get_device_properties(cuda).multi_processor_count + 8) << 13     # of products whose sums are split among programs
    assert torch.cuda.max_memory_allocated() - before < (1 << 19) + 2 * w.nbytes + max(parts, 1 << 18) + (1 << 16)
    first = [x.grad, w.grad]
    plain = torch.autograd.grad(F.cross_entropy(x @ w.mT, target), [x, w])
    again = torch.autograd.grad(F.linear_cross_entropy(x, w, target), [x, w], retain_graph=False)
    for one, two, other in zip(first, again, plain):
        assert torch.equal(one, two)
        np.testing.assert_allclose(one.cpu().numpy(), other.cpu().numpy(), rtol=1e-4, atol=1e-7)


def test_twice_through_a_retained_graph(cuda):
    x, w = [torch.tensor(a).to(cuda).requires_grad_() for a in (X, W)]
    loss = F.linear_cross_entropy(x, w, torch.tensor(TARGET).to(cuda))
    one, two = [torch.autograd.grad(loss * factor, [x, w], retain_graph=True) for factor in (1, 2)]
    for a, b in zip(one, two):
        np.testing.assert_allclose(2 * a.cpu().numpy(), b.cpu().numpy(), rtol=1e-6)


def test_captured(cuda):
    x, w = [torch.tensor(a).to(cuda).requires_grad_() for a in (X, W)]
    target = torch.tensor(TARGET).to(cuda)

    def step():
        loss = F.linear_cross_entropy(x, w, target)
        return loss.detach(), *torch.autograd.grad(loss, [x, w])

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = step()
    with torch.no_grad():
        x.mul_(0.5)
    graph.replay()
    for got, want in zip(outs, step()):
        assert torch.equal(got, want)


def test_bad_targets_are_named():
    with pytest.raises(IndexError, match=r"expected class indices in \[0, 10\]"):
        F.linear_cross_entropy(torch.tensor(X), torch.tensor(W), torch.tensor(TARGET + 11))


def test_too_few_dims_are_named():
    for x, w in (X[0, 0], W), (X[0], W[0]):
        with pytest.raises(RuntimeError, match="an input of one or two dims and a weight of at least two"):
            F.linear_cross_entropy(torch.tensor(x), torch.tensor(w), torch.tensor(TARGET[0]))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradients_of_several_passes(device, cuda):
    """Added to what is there as they are scaled: no sum of its own."""
    there = cuda if device == "cuda" else "cpu"
    x, w, b = leaves = [torch.tensor(a, device=there, requires_grad=True) for a in (X, W, B)]
    target = torch.tensor(TARGET, device=there)
    alone = torch.autograd.grad(F.linear_cross_entropy(x, w, target, linear_bias=b) * 0.5, leaves)
    for _ in range(3):
        with Calls() as calls:
            (F.linear_cross_entropy(x, w, target, linear_bias=b) * 0.5).backward()
    assert calls.names.count("addcmul_value") == 3 and "add" not in calls.names
    for leaf, g in zip(leaves, alone):
        np.testing.assert_allclose(leaf.grad.cpu(), 3 * g.cpu().numpy(), rtol=1e-5, atol=1e-7)
    with torch.autocast(torch.device(there).type, torch.bfloat16):
        F.linear_cross_entropy(x, w, target, linear_bias=b).backward()
    for leaf, g in zip(leaves, alone):
        np.testing.assert_allclose(leaf.grad.cpu(), 5 * g.cpu().numpy(), rtol=2e-2, atol=2e-3)
