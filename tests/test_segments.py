"""Sums over equal indices: many tiles, hot and missing indices, every dtype, results in place, and the same bits each time."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import EVERY, draw

import tritorch as torch
from tritorch.ops import segments
from tritorch.ops.embedding import table_gradient

INDICES = {
    "any": lambda rng, n, rows: rng.integers(0, rows, n),
    "hot": lambda rng, n, rows: np.where(rng.random(n) < 0.8, rows // 2, rng.integers(0, rows, n)),
    "one": lambda rng, n, rows: np.full(n, rows - 1),
    "sorted": lambda rng, n, rows: np.sort(rng.integers(0, rows, n)),
}


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("rows, n, width", [(7, 50, 3), (40, 700, 70), (1300, 900, 1), (3, 1500, 2), (5000, 900, 3)])
def test_index_add(cuda, kind, rows, n, width):
    index, x, source = INDICES[kind](np.random.default_rng(n), n, rows), draw(rows, width), draw(n, width, seed=1)
    want = x.astype("float64")
    np.add.at(want, index, source.astype("float64") * 0.5)
    i, s = torch.tensor(index).to(cuda), torch.tensor(source).to(cuda)
    got = torch.tensor(x).to(cuda).index_add(0, i, s, alpha=0.5)
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-5, atol=1e-4)
    in_place = torch.tensor(x).to(cuda)
    assert in_place.index_add_(0, i, s, alpha=0.5) is in_place
    assert in_place.cpu().array.tobytes() == got.cpu().array.tobytes()


def test_gradient_of_picked_rows(cuda):
    """x[i], whose indices may count from the end, and x[i] += … in place, along the first dim and another."""
    index, x, g = np.random.default_rng(0).integers(-40, 40, 700), draw(40, 70, dtype="float64"), draw(700, 70, seed=1, dtype="float64")
    want = np.zeros_like(x)
    np.add.at(want, index, g)
    for turned in (False, True):
        leaf = torch.tensor(x.T.copy() if turned else x).to(cuda).requires_grad_()
        i, source = torch.tensor(index).to(cuda), torch.tensor(g.T.copy() if turned else g).to(cuda)
        picked = leaf[:, i] if turned else leaf[i]
        picked.backward(source)
        got = leaf.grad.cpu().numpy()
        np.testing.assert_allclose(got.T if turned else got, want, rtol=1e-12, atol=1e-12)
        summed = leaf.detach().index_put_((slice(None), i) if turned else (i,), source, accumulate=True).cpu().numpy()
        np.testing.assert_allclose(summed.T if turned else summed, x + want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_dtypes_with_long_segments(cuda, kind):
    index = INDICES["hot"](np.random.default_rng(0), 300, 9)
    x, source = [torch.tensor(draw(n, 5, dtype=kind, seed=n)).to(getattr(torch, kind)) for n in (9, 300)]
    want = x.double() if x.is_floating_point() else x
    source_wide = source.double() if x.is_floating_point() else source
    want = want.index_add(0, torch.tensor(index), source_wide)
    got = x.to(cuda).index_add(0, torch.tensor(index).to(cuda), source.to(cuda)).cpu()
    rtol = 1e-2 if kind in ("bfloat16", "float16") else 1e-5
    np.testing.assert_allclose(got.double().numpy(), want.to(x.dtype).double().numpy(), rtol=rtol, atol=1e-5)


def test_layouts_and_aliases(cuda):
    index = torch.tensor([2, 0, 2, 2]).to(cuda)
    square = torch.tensor(draw(4, 4))
    for dim in (0, 1):
        for view in (lambda t: t, lambda t: t.t(), lambda t: t[:, :1].expand(4, 4)):
            want = view(square).index_add(dim, torch.tensor([2, 0, 2, 2]), view(square))
            got = view(square.to(cuda)).index_add(dim, index, view(square.to(cuda)))
            np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), rtol=1e-6)
    itself = square.to(cuda)
    itself.index_add_(0, index, itself)
    np.testing.assert_allclose(itself.cpu().numpy(), square.index_add(0, torch.tensor([2, 0, 2, 2]), square).numpy(), rtol=1e-6)
    turned = square.to(cuda).t()
    turned.index_add_(0, index, square.to(cuda))
    np.testing.assert_allclose(turned.cpu().numpy(), square.t().index_add(0, torch.tensor([2, 0, 2, 2]), square).numpy(), rtol=1e-6)
    flat = square.to(cuda).reshape(-1)
    flat.scatter_add_(0, torch.tensor([1] * 16).to(cuda), flat)
    np.testing.assert_allclose(flat.cpu().numpy()[1], square.numpy().reshape(-1)[1] + square.numpy().sum(), rtol=1e-5)


def test_rows_that_no_index_names_stay_as_they_are(cuda):
    x = torch.tensor([-0.0, float("nan"), -0.0, 1.0]).to(cuda)
    got = x.index_add(0, torch.tensor([3]).to(cuda), torch.tensor([1.0]).to(cuda))
    assert got.cpu().array.tobytes() == np.array([-0.0, np.nan, -0.0, 2.0], "float32").tobytes()
    assert x.scatter_reduce(0, torch.tensor([3]).to(cuda), torch.tensor([9.0]).to(cuda), "amax").tolist()[3] == 9


@pytest.mark.parametrize("padding", [-1, 0, 5])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
def test_gradient_of_a_table(cuda, padding, kind):
    for n, width in ((900, 33), (1, 1), (0, 4), (40, 300)):
        index = INDICES["hot"](np.random.default_rng(n), n, 11)
        rows = torch.tensor(draw(n, width)).to(getattr(torch, kind))
        want = np.zeros((11, width))
        np.add.at(want, index, rows.double().numpy())
        if padding >= 0:
            want[padding] = 0
        got = table_gradient(rows.to(cuda), torch.tensor(index).to(cuda), 11, padding)
        np.testing.assert_allclose(got.cpu().double().numpy(), want, rtol=1e-2 if kind == "bfloat16" else 1e-5, atol=1e-4)


def test_the_sum_is_in_order(cuda):
    """A sum that only one order of the terms gives."""
    source = torch.tensor([1e8, 1.0, -1e8, 1.0]).to(cuda)
    assert torch.zeros(1, device=cuda).index_add(0, torch.tensor([0, 0, 0, 0]).to(cuda), source).item() == 1.0


@pytest.mark.parametrize("choice", segments.TILES, ids=str)
def test_tiles_of_the_gpu(cuda, choice, monkeypatch):
    monkeypatch.setattr(segments, "SIMULATED", [choice])
    index = INDICES["hot"](np.random.default_rng(0), 300, 50)
    x, source = draw(50, 1100), draw(300, 1100, seed=1)
    want = x.astype("float64")
    np.add.at(want, index, source.astype("float64"))
    got = torch.tensor(x).to(cuda).index_add(0, torch.tensor(index).to(cuda), torch.tensor(source).to(cuda))
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-5, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=200), st.integers(1, 40), st.sampled_from(["sum", "prod", "amax", "amin"]))
def test_any_reduction(index, width, kind):
    with torch.cuda.simulate(seed=0):
        rng = np.random.default_rng(width)
        rows, source = rng.integers(-3, 4, (21, width)), rng.integers(-3, 4, (len(index), width))
        want = rows.copy()
        {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[kind].at(want, np.array(index, np.int64), source)
        out, places = torch.tensor(rows).cuda(), torch.tensor(np.array(index, np.int64)).cuda()
        segments.join_rows(out, out, places, torch.tensor(source).cuda(), kind)
        np.testing.assert_array_equal(out.cpu().numpy(), want)
