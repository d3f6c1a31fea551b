"""The ways of the CPU that small samples do not reach: blocks of columns, phases of a stride, orders by packed numbers, choices by bits."""
import itertools

import numpy as np
import pytest

import tritorch as T
from tritorch.ops import convolution_cpu, special
from tritorch.ops.arrays import either
from tritorch.ops.indexing import WIDE, add_slices
from tritorch.ops.ordering_cpu import order_of, place_of
from tritorch.tensor import from_array

RNG = np.random.default_rng(0)


# ------------------------------------------------------------------ convolution
def sums(x, weight, size, stride, padding, dilation, groups):
    """Yield (filter, which of the padded input it reads, with which of the weights, the padded input)."""
    (K, C, R, S), padded = weight.shape, np.pad(x, [(0, 0), (0, 0), *[(p, p + 99) for p in padding]])
    for k, c, r, s in itertools.product(range(K), range(C), range(R), range(S)):
        rows = slice(r * dilation[0], r * dilation[0] + (size[0] - 1) * stride[0] + 1, stride[0])
        columns = slice(s * dilation[1], s * dilation[1] + (size[1] - 1) * stride[1] + 1, stride[1])
        yield k, (k // (K // groups) * C + c, rows, columns), (k, c, r, s), padded


@pytest.mark.parametrize("block", [1, 200, 1 << 19])
@pytest.mark.parametrize("shape, weight, stride, padding, dilation, groups", [
    ((3, 4, 7, 5), (4, 4, 3, 2), (1, 1), (1, 0), (1, 1), 1),             # the input's gradient is one convolution
    ((3, 4, 7, 6), (6, 2, 3, 3), (2, 3), (1, 2), (1, 1), 2),             # or one for each pixel of a stride, some without taps
    ((2, 4, 9, 8), (4, 1, 3, 2), (2, 2), (0, 3), (2, 3), 4),             # depthwise, padded beyond what its taps reach back
    ((3, 2, 6, 5), (8, 2, 3, 3), (2, 1), (1, 1), (1, 2), 1),             # columns that are added: more filters than channels
    ((3, 2, 5, 5), (9, 2, 4, 4), (1, 1), (0, 0), (1, 1), 1),             # by places, which are fewer than taps
    ((4, 3, 2, 2), (64, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1)])           # all images in one matrix
def test_convolution_in_blocks(monkeypatch, block, shape, weight, stride, padding, dilation, groups):
    monkeypatch.setattr(convolution_cpu, "BLOCK", block)
    x, w, bias = RNG.standard_normal(shape), RNG.standard_normal(weight), RNG.standard_normal(weight[0])
    size = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(shape[2:], padding, dilation, weight[2:], stride)]
    want, g = np.zeros((shape[0], weight[0], *size)), RNG.standard_normal((shape[0], weight[0], *size))
    gx, gw = np.zeros((*shape[:2], *[n + 2 * p + 99 for n, p in zip(shape[2:], padding)])), np.zeros(weight)
    for k, (c, rows, columns), at, padded in sums(x, w, size, stride, padding, dilation, groups):
        want[:, k] += padded[:, c, rows, columns] * w[at]
        gx[:, c, rows, columns] += g[:, k] * w[at]
        gw[at] = (g[:, k] * padded[:, c, rows, columns]).sum()
    tensors = [from_array(a).requires_grad_() for a in (x, w, bias)]
    out = T.nn.functional.conv2d(*tensors, stride, padding, dilation, groups)
    out.backward(from_array(g))
    inside = gx[:, :, padding[0]:padding[0] + shape[2], padding[1]:padding[1] + shape[3]]
    for got, right in ((out.detach(), want + bias[:, None, None]), (tensors[0].grad, inside), (tensors[1].grad, gw)):
        np.testing.assert_allclose(got.array, right, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------ order
def numbers(kind, shape):
    if kind.startswith("f"):
        x = np.round(RNG.standard_normal(shape) * 2).astype(kind)
        for value in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
            x[RNG.random(shape) < 0.1] = value
        return x
    if kind == "bool":
        return RNG.random(shape) < 0.5
    x, ends = RNG.integers(0, 5, shape).astype(kind), np.iinfo(kind)
    x[..., :2] = ends.min, ends.max
    return x


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "bool", "u1", "i2", "i4", "u4", "i8"])
def test_order_is_stable(kind):
    x = numbers(kind, (3, 40, 2)) if kind == "bool" or kind[0] == "f" else np.moveaxis(numbers(kind, (3, 2, 40)), 1, 2)
    for narrow in (x, x[:, 2:]):                                         # without the ends whole numbers of 64 bits fit in 32
        up, n = np.argsort(narrow, axis=1, kind="stable"), narrow.shape[1]
        down = n - 1 - np.argsort(narrow[:, ::-1], axis=1, kind="stable")[:, ::-1]
        for want, descending in ((up, False), (down, True)):
            for k in (0, 1, 7, n - 1, n):
                np.testing.assert_array_equal(order_of(narrow, 1, descending, k), want[:, :k])
        np.testing.assert_array_equal(place_of(narrow, -2, 9), up[:, 8:9])


# ------------------------------------------------------------------ elementwise
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "c8", "c16", "i1", "i8", "bool"])
def test_choices_by_bits(kind):
    x, y, mask = *[(RNG.standard_normal((5, 7)) * 3).astype(kind) for _ in range(2)], RNG.random((5, 7)) < 0.5
    if kind[0] in "fc":
        x[0], y[1] = np.nan, -np.inf
    for a, b, m in ((x, y, mask), (x[:, ::2], y[:, ::2], mask[:, ::2]), (x.T, y.T, mask.T), (x[0], y, mask), (x[0, 0], y, mask),
                    (x, y[0], mask)):
        np.testing.assert_array_equal(either(m, a, b), np.where(m, a, b))
    assert either(mask, x, y).dtype == x.dtype


@np.errstate(all="ignore")
def test_whole_powers():
    x = np.array([-2.0, -1.5, -0.0, 0.0, 1.5, np.inf, -np.inf, np.nan], np.float32)
    for y in (0, 1, 2, 3, 5, -1, -2, -3, 7.0):
        got, want = special.power(x, y), np.power(x, np.float32(y))
        np.testing.assert_allclose(got, want, rtol=1e-6)
        np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(want[:-1]))
    assert np.isnan(special.power(x, 0.5)[0])


# ------------------------------------------------------------------ sums of slices
@pytest.mark.parametrize("width", [1, 3, WIDE])
def test_slices_are_added_in_order(width):
    for dim in (0, 1):
        made = RNG.standard_normal((width, 6) if dim else (6, width))
        source, index = RNG.standard_normal((width, 20) if dim else (20, width)), RNG.integers(0, 6, 20)
        want = np.moveaxis(made.copy(), dim, 0)
        np.add.at(want, index, np.moveaxis(source, dim, 0) * 2)
        add_slices(made, dim, index, source, 2)
        np.testing.assert_allclose(np.moveaxis(made, dim, 0), want, rtol=1e-12)


# ------------------------------------------------------------------ whole numbers
@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "i8"])
def test_products_of_whole_numbers_wrap(kind):
    ends = np.iinfo(kind)
    for low, high in ((0, 9), (ends.min, ends.max)):                     # by BLAS, and beyond its precision
        a, b = [RNG.integers(low, high, shape, endpoint=True).astype(kind) for shape in ((3, 50), (50, 4))]
        want = (a.astype(object) @ b.astype(object)) % (1 << ends.bits)
        got = (from_array(a) @ from_array(b)).array
        np.testing.assert_array_equal(got.astype(f"u{a.itemsize}").astype(object), want)
