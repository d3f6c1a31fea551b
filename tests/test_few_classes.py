"""Losses and softmax of few classes, whose rows are in narrow tiles: every way of cross entropy and softmax, in hostile layouts, against
float64; the gradient of the negative log-likelihood."""
import machine_code
import numpy as np
import pytest

import tritorch as torch
from tritorch.cuda import driver, tuner
from tritorch.cuda.compiler import recording
from tritorch.cuda.dry import DryDriver
from tritorch.ops import cross_entropy as cross_entropy_of
from tritorch.ops.cross_entropy import cross_entropy_backward, cross_entropy_rows
from tritorch.ops.nll import nll_backward
from tritorch.ops.rows import FEW, FEW_ACROSS, WHOLE_ACROSS, rows
from tritorch.ops.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward

SHAPES = (130, 2), (131, 3), (70, 10), (9, 50), (5, 257), (2, 21, 7, 9), (1, 3, 130), (1, 64, 9), (2, 150, 33)
LAYOUTS = {
    "as they are": lambda x: x,
    "with gaps": lambda x: torch.cat((x, x, x), 1)[:, x.shape[1]:2 * x.shape[1]],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "one row": lambda x: x[:1].expand(*x.shape),
}
HOW = {"plain": (False, -100, 0.0), "weighted, smoothed": (True, 1, 0.2)}


def in_pairs(shapes, others):
    """Each shape in each layout, which decide between them how a tile lies; of `others`, which are what is computed on it, one in turn, so
    that each meets each shape and each layout."""
    return [pytest.param(shape, layout, others[(i + k) % len(others)], id=f"{shape}-{layout}-{others[(i + k) % len(others)]}")
            for i, shape in enumerate(shapes) for k, layout in enumerate(LAYOUTS)]


def problem(shape, dtype, layout, weighted, place):
    generator = np.random.default_rng(sum(shape))
    x = generator.standard_normal(shape).astype(np.float32) * 4
    x[0, -1], x[-1, 0] = 1e4, float("-inf")
    n = shape[1]
    target = torch.tensor(generator.integers(1, n, (shape[0], *shape[2:])))
    weight = torch.tensor(generator.random(n).astype(np.float32) + 0.5) if weighted else None
    return LAYOUTS[layout](torch.tensor(x).to(dtype).to(place)), target.to(place), weight if weight is None else weight.to(place)


@pytest.mark.parametrize("shape, layout, how", in_pairs(SHAPES, [*HOW]))
def test_every_way_agrees_with_float64(shape, layout, how, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    weighted, ignored, smoothing = HOW[how]
    dtype = torch.bfloat16 if len(layout) % 2 else torch.float32
    x, target, weight = problem(shape, dtype, layout, weighted, cuda)
    g = torch.tensor(np.random.default_rng(1).random(target.shape).astype(np.float32)).to(cuda)
    cpu_weight = weight if weight is None else weight.cpu().double()
    x64, g64 = x.cpu().double(), g.cpu().double()
    want = cross_entropy_rows(x64, target.cpu(), cpu_weight, ignored, smoothing)
    slope = cross_entropy_backward(g64, x64, target.cpu(), want[2], cpu_weight, ignored, smoothing)
    with tuner.trying_all() as met:
        got = cross_entropy_rows(x, target, weight, ignored, smoothing)
        cross_entropy_backward(g, x, target, got[2], weight, ignored, smoothing)
    held = any(c.get("HELD") for family, _, candidates in met if family.startswith("cross_entropy") for c in candidates)
    assert held == (shape[1] <= (WHOLE_ACROSS if rows(shape, (1,), x.strides).across else FEW))
    for family, _, candidates in met:
        for candidate in candidates:
            with tuner.forcing(family, candidate):
                if family == "cross_entropy":
                    for a, b in zip(cross_entropy_rows(x, target, weight, ignored, smoothing), want):
                        np.testing.assert_allclose(a.cpu().array, b.array, rtol=2e-5, atol=2e-5, err_msg=str(candidate))
                elif family == "cross_entropy_backward":
                    gx = cross_entropy_backward(g, x, target, got[2], weight, ignored, smoothing).cpu().float().array
                    rtol = 1e-2 if dtype is torch.bfloat16 else 1e-4
                    np.testing.assert_allclose(gx, slope.array, rtol=rtol, atol=1e-4, err_msg=str(candidate))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 19, 5, 7), (1, 70, 600), (3, 300, 11)], ids=str)
def test_cross_entropy_of_many_rows_next_to_each_other(shape, dtype, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    monkeypatch.setattr(cross_entropy_of, "MANY_ACROSS", 1)              # the way that is for a quarter of a million
    cross_entropy_of.class_tiles.cache_clear()
    x, target, weight = problem(shape, dtype, "as they are", True, cuda)
    x64, g = x.cpu().double(), torch.ones(target.shape, device=cuda)
    want = cross_entropy_rows(x64, target.cpu(), weight.cpu().double(), 1, 0.2)
    got = cross_entropy_rows(x, target, weight, 1, 0.2)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a.cpu().array, b.array, rtol=2e-5, atol=2e-5)
    slope = cross_entropy_backward(g.cpu().double(), x64, target.cpu(), want[2], weight.cpu(), 1, 0.2).array
    gx = cross_entropy_backward(g, x, target, got[2], weight, 1, 0.2).cpu().float().array
    np.testing.assert_allclose(gx, slope, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-4)
    cross_entropy_of.class_tiles.cache_clear()


def test_pixels_that_do_not_count_are_read_but_not_seen(cuda):
    x = torch.randn(2, 19, 4, 8, device=cuda, dtype=torch.bfloat16)
    target = torch.randint(0, 19, (2, 4, 8), device=cuda)
    target[1, 2, 3] = -100
    x[1, :, 2, 3] = float("nan")
    x[1, 0, 2, 4] = float("inf")                                         # its neighbour's
    x.requires_grad_()
    torch.nn.functional.cross_entropy(x, target, reduction="sum").backward()
    lost = x.grad.isnan().any(1).cpu().array
    assert not x.grad[1, :, 2, 3].count_nonzero().item() and lost[1, 2, 4] and lost.sum() == 1


def test_gradients_of_pixels_load_vectors():
    with driver.using(DryDriver(90)), recording() as record:
        x = torch.empty(4, 19, 512, 1024, dtype=torch.bfloat16, device="cuda").requires_grad_()
        torch.nn.functional.cross_entropy(x, torch.empty(4, 512, 1024, dtype=torch.int64, device="cuda")).backward()
    spec, = [spec for spec in record.values() if spec.kernel.__name__ == "cross_entropy_backward_kernel"]
    assert machine_code.used([spec], 90, texts=["ld.global.b16"])[0]["ld.global.b16"] == 0, "62 us, not 53 (predicted)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["as they are", "with gaps", "transposed"])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 1100), (2100, 17)], ids=str)
def test_gradient_of_nll(shape, layout, dtype, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    x, target, weight = problem(shape, dtype, layout, True, cuda)
    target[0] = 9999                                                     # is ignored
    g = torch.tensor(np.random.default_rng(1).random(target.shape).astype(np.float32)).to(dtype).to(cuda)
    want = nll_backward(g.cpu().double(), target.cpu(), weight.cpu(), 9999, shape[1]).array
    for out in (x.fill_(float("nan")), torch.full(shape, float("nan"), dtype=dtype, device=cuda)):
        got = nll_backward(g, target, weight, 9999, shape[1], out=out)
        np.testing.assert_allclose(got.cpu().float().array, want, rtol=5e-3 if dtype is torch.bfloat16 else 1e-6)


def test_gradient_of_nll_is_of_the_dtype_of_its_input(cuda):
    x = torch.randn(5, 7, device=cuda, dtype=torch.bfloat16).requires_grad_()
    loss = torch.nn.functional.nll_loss(x, torch.arange(5, device=cuda))
    with recording() as record:
        loss.backward()
    kernel, = [spec for spec in record.values() if spec.kernel.__name__ == "nll_backward_kernel"]
    assert kernel.signature["gx_ptr"] == "*bf16", "a gradient of float32 would be rounded by one more kernel, in five times the time"
    assert x.grad.dtype is torch.bfloat16 and x.grad.sum().item() == -1


def logits(shape, dtype, layout, place):
    """Some rows with nan, an infinity, nothing but -inf and one large value: others must not see them."""
    x = np.random.default_rng(sum(shape)).standard_normal((shape[0], shape[1], int(np.prod(shape[2:])))).astype(np.float32) * 4
    x[0, -1, 0], x[-1, :, -1] = 1e4, float("-inf")
    if len(shape) == 2:
        x[1, 1], x[2, 0] = float("inf"), float("nan")
    else:
        x[0, 1, 1], x[0, 0, 2] = float("inf"), float("nan")
    return LAYOUTS[layout](torch.tensor(x.reshape(shape)).to(dtype).to(place))


@pytest.mark.parametrize("shape, layout, log", in_pairs([*SHAPES, (1, 70, 35)], [False, True]))
def test_every_way_of_softmax_agrees_with_float64(shape, layout, log, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    dtype, n = torch.bfloat16 if (len(layout) + log) % 2 else torch.float32, shape[1]
    x, f = logits(shape, dtype, layout, cuda), log_softmax if log else softmax
    want = f(x.cpu().double(), 1).array
    room = torch.full((shape[0], 3 * n, *shape[2:]), 7.0, dtype=dtype, device=cuda)
    room = LAYOUTS["transposed"](room) if layout == "transposed" else room
    out = room[:, n:2 * n]
    with tuner.trying_all() as met:
        f.into(out, x, 1)
    ways = [(family, candidate) for family, _, candidates in met for candidate in candidates]
    assert any(candidate.get("HELD") for _, candidate in ways) == (layout != "transposed" or n <= FEW_ACROSS)
    bound = 1e-2 if dtype is torch.bfloat16 else 2e-5
    for family, candidate in ways:
        out.fill_(7)
        with tuner.forcing(family, candidate):
            f.into(out, x, 1)
        np.testing.assert_allclose(out.cpu().float().array, want, rtol=bound, atol=bound, err_msg=str(candidate))
        around = room.cpu().float().array                                # on the simulated GPU to ask of all took nine tenths of this test
        assert (around[:, :n] == 7).all() and (around[:, 2 * n:] == 7).all(), candidate


@pytest.mark.parametrize("shape, layout, log", in_pairs(SHAPES, [False, True]))
def test_every_way_of_the_gradient_of_softmax_agrees_with_float64(shape, layout, log, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    dtype, f = torch.bfloat16 if (len(layout) + log) % 2 else torch.float32, log_softmax_backward if log else softmax_backward
    g = LAYOUTS[layout](torch.tensor(np.random.default_rng(2).standard_normal(shape)).to(dtype).to(cuda))
    y = (log_softmax if log else softmax)(logits(shape, dtype, layout, cuda), 1)
    want = f(g.cpu().double(), y.cpu().double(), 1).array
    out = torch.empty_like(g)
    with tuner.trying_all() as met:
        f.into(out, g, y, 1)
    ways = [(family, candidate) for family, _, candidates in met for candidate in candidates]
    assert any(candidate.get("HELD") for _, candidate in ways) == (layout != "transposed" or shape[1] <= FEW_ACROSS)
    bound = 1e-2 if dtype is torch.bfloat16 else 2e-5
    for family, candidate in ways:
        out.fill_(7)
        with tuner.forcing(family, candidate):
            f.into(out, g, y, 1)
        np.testing.assert_allclose(out.cpu().float().array, want, rtol=bound, atol=bound, err_msg=str(candidate))
