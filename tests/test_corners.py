"""Corners that random calls found: tensors of no dims, numbers that a dtype does not hold, masks that broadcast. Against PyTorch."""
import numpy as np
import pytest
from oracle import agree, draw

ZERO, TRUTH = np.array([0]), np.array([True, False, True])


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return request.param


def test_no_dims(device):
    for f in (lambda lib, x, i: (x.flip(0), x.flip(-1)), lambda lib, x, i: x.roll(1, 0), lambda lib, x, i: x.unbind(0),
              lambda lib, x, i: x.unflatten(0, (1, 1)), lambda lib, x, i: x.repeat_interleave(2, dim=0), lambda lib, x, i: x.unique(dim=0),
              lambda lib, x, i: lib.trapezoid(x), lambda lib, x, i: x.take_along_dim(i[0], 0),
              lambda lib, x, i: (x.quantile(0.5, 0), x.quantile(x.new_tensor([0.2, 0.5]), -1), x.nanquantile(0.5, 0, True)),
              lambda lib, x, i: (x.index_fill(0, i, 2.0), x.index_fill(-1, i[0], 2), x.clone().index_fill_(0, i, 3.0)),
              lambda lib, x, i: (x.index_copy(0, i, x[None] * 2), x.index_copy(0, i, x * 3), x.clone().index_copy_(0, i, x * 2)),
              lambda lib, x, i: x.index_fill(0, i + 1, 2.0) if device == "cpu" else x):
        agree(f, draw(), ZERO, grad=[0], device=device, what=str(f.__code__.co_names))


def test_index_fill_takes_numbers_of_any_dtype(device):
    agree(lambda lib, x, i: (x.index_fill(0, i, lib.tensor(2)), (x * 1).index_fill_(0, i, lib.tensor(2.5, dtype=lib.float64))),
          draw(3), ZERO, grad=[0], device=device)
    agree(lambda lib, x, i: x.index_fill(0, i, lib.tensor(2.5)), np.arange(3), ZERO, device=device)
    agree(lambda lib, x, i: x.index_fill(0, i, x[:1]), draw(3), ZERO, device=device)


def test_masks(device):
    for value in (1, 0, 10, 0.5, True):
        agree(lambda lib, m, v=value: (m.masked_fill(~m, v), m.clone().masked_fill_(m, v)), TRUTH, device=device, what=str(value))
    agree(lambda lib, x, m, s: (x.masked_scatter(m, s), x[0].masked_scatter(m, s), x.clone().masked_scatter_(m, s)), draw(2, 3), TRUTH,
          draw(6, seed=1), grad=[0, 2], device=device)
    for m in (np.array([[True, False, True]]), TRUTH[:2], np.array([1, 0, 1])):
        agree(lambda lib, x, m: x.clone().masked_scatter_(m, x), draw(3), m, device=device, what=str(m))
    agree(lambda lib, x, m: x.masked_scatter(m, x.double()), draw(3), TRUTH, device=device)


def test_covariance_of_one_variable(device):
    agree(lambda lib, x: (lib.cov(x), lib.cov(x[:1]), lib.corrcoef(x[:1]), lib.corrcoef(x[0]), lib.cov(x[0])), draw(2, 5), grad=True,
          device=device, signs=False)
    for weights in (np.array([1, 2, 0, 1, 3]), np.array([1, 2, 0, -1, 3]), draw(5) ** 2):
        agree(lambda lib, x, w: lib.cov(x, fweights=w), draw(2, 5), weights, device=device, what=str(weights))
    agree(lambda lib, x, w: lib.cov(x, aweights=w), draw(2, 5), draw(5), device=device)
