"""The kernels that the native device has of its own: digits counted, and bounds walked to, an element at a time."""
import importlib.util
import platform
import sys

import numpy as np
import pytest

import tritorch as torch

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(3, 33), (2, 257), (5, 4096), (1, 4097), (2, 9001)])
def test_rows_are_sorted_stably(native, shape, descending):
    x = np.random.default_rng(0).integers(-40, 40, shape).astype(np.float32) / 8
    x[:, ::7], x[0, 5], x[0, 6] = -0.0, np.nan, np.inf
    values, indices = torch.sort(torch.from_numpy(x).cuda(), 1, descending=descending)
    # NaN is above all, and equal numbers keep their order, in both directions
    keys = np.where(np.isnan(x), 2e9, np.where(np.isinf(x), 1e9, x))
    expected = np.argsort(-keys if descending else keys, 1, kind="stable")
    np.testing.assert_array_equal(indices.cpu().numpy(), expected)
    np.testing.assert_array_equal(values.cpu().numpy(), np.take_along_axis(x, expected, 1))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float16", "bool"])
def test_every_width_of_a_key_is_sorted(native, dtype):
    x = np.random.default_rng(1).integers(0, 200, 5000).astype(dtype)
    np.testing.assert_array_equal(torch.sort(torch.from_numpy(x).cuda())[0].cpu().numpy(), np.sort(x))


@pytest.mark.parametrize("rows, places", [(1, 1), (1, 5000), (7, 4096), (5000, 4097), (9000, 3000), (20000, 40)])
def test_rows_are_added_where_places_say(native, rows, places):
    random = np.random.default_rng(2)
    where, source = random.integers(0, rows, places), random.normal(size=(places, 2))
    where[::3] = where[0]                                       # a long segment, and rows that no place names
    base = random.normal(size=(rows, 2))
    made = torch.from_numpy(base).cuda().index_add(0, torch.from_numpy(where).cuda(), torch.from_numpy(source).cuda())
    expected = base.copy()
    np.add.at(expected, where, source)
    np.testing.assert_allclose(made.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows, places", [(6, 5000), (4500, 9000)])
def test_gradients_of_rows_without_one(native, rows, places):
    random = np.random.default_rng(3)
    where, gradient = random.integers(0, rows, places), random.normal(size=(places, 3))
    weight = torch.zeros(rows, 3, dtype=torch.float64, device="cuda", requires_grad=True)
    torch.nn.functional.embedding(torch.from_numpy(where).cuda(), weight, padding_idx=2).backward(torch.from_numpy(gradient).cuda())
    expected = np.zeros((rows, 3))
    np.add.at(expected, where, gradient)
    expected[2] = 0
    np.testing.assert_allclose(weight.grad.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)
