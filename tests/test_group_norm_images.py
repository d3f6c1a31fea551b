"""Group norm of images whose channels, and its gradient of those whose channels or pixels, are next to each other, against float64."""
import math

import numpy as np
import pytest

import tritorch
from tritorch.cuda.compiler import recording
from tritorch.nn import functional as F

LAYOUTS = ["dense", "gapped", "turned"]


def images(array, layout, place, dtype):
    """`array` (N, C, …) with its channels next to each other: dense, channels and samples with others between, or pixels transposed."""
    dims = array.ndim
    last, first = (0, *range(2, dims), 1), (0, dims - 1, *range(1, dims - 1))
    if layout == "turned":
        return images(array.swapaxes(2, dims - 1), "dense", place, dtype).transpose(2, dims - 1)
    if layout == "dense":
        return tritorch.tensor(array.transpose(last).copy()).to(dtype).to(place).permute(*first)
    n, c, *rest = array.shape
    wide = np.full((2 * n, *rest, c + 3), np.nan, array.dtype)
    wide[::2, ..., 1:c + 1] = array.transpose(last)
    return tritorch.tensor(wide).to(dtype).to(place)[::2, ..., 1:c + 1].permute(*first)


def expected(array, groups, w, b, eps):
    rows = array.astype(np.float64).reshape(array.shape[0], groups, -1)
    rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + eps)
    ends = (1, -1, *[1] * (array.ndim - 2))
    out = rows.reshape(array.shape)
    out = out if w is None else out * w.reshape(ends)
    return out if b is None else out + b.reshape(ends)


def parameters(channels, seed=1):
    return np.random.default_rng(seed).standard_normal((2, channels)).astype(np.float32)


@pytest.fixture
def few(monkeypatch):
    """A device so small that programs take several groups, as they do of many samples."""
    monkeypatch.setattr("tritorch.ops.groupnorm.sm_count", lambda: 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape, groups", [((2, 6, 5, 7), 2), ((3, 35, 4, 3), 7), ((2, 12, 3, 3), 12), ((1, 7, 2, 3), 1),
                                           ((2, 80, 6, 5), 4), ((2, 15, 2, 3, 4), 5), ((1, 8, 40, 41), 2), ((2, 9, 5), 3)])
def test_images(shape, groups, layout, cuda, tiles, few):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 1
    w, b = parameters(shape[1])
    x, (weight, bias) = images(array, layout, cuda, tritorch.float32), [tritorch.tensor(p).to(cuda) for p in (w, b)]
    with recording() as record:
        out, mean, rstd = tritorch.ops.groupnorm.group_norm_rows(x, groups, weight, bias, 1e-3)
    assert [spec.kernel.__name__ for spec in record.values()] == ["image_norm_kernel" if out.stride(1) == 1 else "norm_kernel"]
    assert out.stride(1) == 1 or layout == "turned" or len(shape) == 3
    rows = array.astype(np.float64).reshape(shape[0], groups, -1)
    np.testing.assert_allclose(out.cpu().numpy(), expected(array, groups, w, b, 1e-3), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean.cpu().numpy(), rows.mean(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rstd.cpu().numpy(), 1 / np.sqrt(rows.var(2) + 1e-3), rtol=1e-5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("given", [(True, False), (False, True), (False, False)])
def test_dtypes_and_what_is_not_given(kind, given, cuda, tiles, few):
    dtype, (w, b) = getattr(tritorch, kind), [p if there else None for p, there in zip(parameters(20), given)]
    wide = tritorch.float64 if kind == "float64" else tritorch.float32
    array = tritorch.tensor(np.random.default_rng(0).standard_normal((2, 20, 5, 6))).to(dtype).double().numpy()       # rounded
    out = F.group_norm(images(array, "gapped", cuda, dtype), 4, *[None if p is None else tritorch.tensor(p).to(cuda, wide) for p in (w, b)])
    digits = {"float16": 11, "bfloat16": 8, "float64": 22}[kind]
    np.testing.assert_allclose(out.cpu().double().numpy(), expected(array, 4, w, b, 1e-5), rtol=2.0 ** -digits, atol=2.0 ** -digits)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_group(value, cuda, tiles, few):
    array = np.random.default_rng(0).standard_normal((2, 6, 5, 7)).astype(np.float32)
    want = expected(array, 3, None, None, 1e-5)
    array[1, 2, 3, 4] = value
    out = F.group_norm(images(array, "dense", cuda, tritorch.float32), 3).cpu().numpy()
    assert np.isnan(out[1, 2:4]).sum() >= 35
    want[1, 2:4] = out[1, 2:4]
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_large_means_keep_digits(cuda, tiles, few):
    array = (1e3 + np.random.default_rng(0).standard_normal((1, 10, 30, 31))).astype(np.float32)
    out = F.group_norm(images(array, "dense", cuda, tritorch.float32), 2).cpu().numpy()
    np.testing.assert_allclose(out, expected(array, 2, None, None, 1e-5), atol=1e-3)


# ------------------------------------------------------------------ gradients
def slopes(array, g, groups, w, eps):
    """(gx, gw, gb) in float64."""
    n, c = array.shape[:2]
    rows = array.astype(np.float64).reshape(n, groups, -1)
    rstd = 1 / np.sqrt(rows.var(2, keepdims=True) + eps)
    normal = (rows - rows.mean(2, keepdims=True)) * rstd
    scaled = (g if w is None else g * w.reshape(1, -1, *[1] * (g.ndim - 2))).astype(np.float64).reshape(rows.shape)
    gx = rstd * (scaled - scaled.mean(2, keepdims=True) - normal * (scaled * normal).mean(2, keepdims=True))
    flat = g.astype(np.float64).reshape(n, c, -1)
    return gx.reshape(array.shape), (flat * normal.reshape(flat.shape)).sum((0, 2)), flat.sum((0, 2))


def backward(x, g, groups, weight, eps):
    """group_norm_backward, and the names of the kernels that take the whole images."""
    rows = x.cpu().double().numpy().reshape(x.shape[0], groups, -1)
    kind = x.dtype.compute
    mean, rstd = [tritorch.tensor(s).to(kind).to(x.device) for s in (rows.mean(2), 1 / np.sqrt(rows.var(2) + eps))]
    with recording() as record:
        found = tritorch.ops.groupnorm.group_norm_backward(g, x, mean, rstd, weight)
    return found, {spec.kernel.__name__ for spec in record.values()}


def close(found, want, digits):
    for ours, right in zip(found, want):
        scale = max(1, np.abs(right).max())
        np.testing.assert_allclose(ours.cpu().double().numpy(), right, rtol=2.0 ** -digits, atol=scale * 2.0 ** -digits)


@pytest.mark.parametrize("layout", [*LAYOUTS, "planes", "gapped planes"])
@pytest.mark.parametrize("shape, groups", [((2, 6, 5, 7), 2), ((3, 35, 4, 3), 7), ((2, 12, 3, 3), 12), ((1, 7, 2, 3), 1),
                                           ((2, 80, 6, 5), 4), ((2, 15, 2, 3, 4), 5), ((1, 8, 40, 41), 2), ((2, 9, 5), 3)])
def test_gradients_of_images(shape, groups, layout, cuda, tiles, few):
    draw = np.random.default_rng(0).standard_normal
    array, given, (w, _) = draw(shape).astype(np.float32) + 1, draw(shape).astype(np.float32), parameters(shape[1])
    if "planes" in layout:                                               # contiguous, or every second channel of wider rows
        step = 2 if layout == "gapped planes" else 1
        wide = [np.full((shape[0], step * shape[1], *shape[2:-1], shape[-1] + step - 1), np.nan, np.float32) for _ in range(2)]
        for whole, part in zip(wide, (array, given)):
            whole[:, ::step, ..., :shape[-1]] = part
        x, g = [tritorch.tensor(a).to(cuda)[:, ::step, ..., :shape[-1]] for a in wide]
    else:
        x, g = [images(a, layout, cuda, tritorch.float32) for a in (array, given)]
    found, names = backward(x, g, groups, tritorch.tensor(w).to(cuda), 1e-3)
    close(found, slopes(array, given, groups, w, 1e-3), 16)
    assert layout != "dense" or len(shape) == 3 or "image_backward_kernel" in names and "norm_backward_kernel" not in names


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_gradients_of_other_dtypes_without_a_weight(kind, last, cuda, tiles, few):
    dtype, draw = getattr(tritorch, kind), np.random.default_rng(0).standard_normal
    array, given = [tritorch.tensor(draw((2, 20, 5, 6))).to(dtype).double().numpy() for _ in range(2)]                # rounded
    x, g = [images(a, "dense", cuda, dtype) if last else tritorch.tensor(a).to(dtype).to(cuda) for a in (array, given)]
    found, names = backward(x, g, 4, None, 1e-5)
    assert "image_backward_kernel" in names
    close(found, slopes(array, given, 4, None, 1e-5), {"float16": 10, "bfloat16": 7, "float64": 40}[kind])


def test_gradients_of_what_is_not_finite_stay_in_their_group(cuda, tiles, few):
    draw = np.random.default_rng(0).standard_normal
    array, given = draw((2, 6, 5, 7)).astype(np.float32), draw((2, 6, 5, 7)).astype(np.float32)
    want = slopes(array, given, 3, None, 1e-5)[0]
    given[1, 2, 3, 4] = math.nan
    (gx, gw, gb), _ = backward(*[images(a, "dense", cuda, tritorch.float32) for a in (array, given)], 3, None, 1e-5)
    gx, lost = gx.cpu().numpy(), np.arange(6) == 2
    assert np.isnan(gx[1, 2:4]).all() and (np.isnan(gw.cpu().numpy()) == lost).all() and (np.isnan(gb.cpu().numpy()) == lost).all()
    want[1, 2:4] = gx[1, 2:4]
    np.testing.assert_allclose(gx, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pixels, kernel", [(8, "norm_backward_kernel"), (16, "image_backward_kernel")])
def test_small_groups_of_planes_share_programs(pixels, kernel, cuda, tiles, few):
    draw = np.random.default_rng(0).standard_normal
    array, given = draw((2, 4, 8, pixels)).astype(np.float32), draw((2, 4, 8, pixels)).astype(np.float32)
    found, names = backward(*[tritorch.tensor(a).to(cuda) for a in (array, given)], 4, None, 1e-5)
    assert kernel in names
    close(found, slopes(array, given, 4, None, 1e-5), 16)
