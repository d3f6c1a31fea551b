"""Scans against PyTorch: dims, dtypes, ties, nan, zeros, and rows long enough to be cut into chunks."""
from functools import partial

import numpy as np
import pytest
from arrays import draw
from oracle import same as oracle_same
from oracle import torch

import tritorch
from tritorch.cuda import compiler, driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.ops.scan import linear_recurrence, reverse_cumsum

same = partial(oracle_same, rtol=1e-5, atol=1e-5, signs=False)
NAMES = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_dims_and_gradients(name, dim):
    array = draw(3, 4, 5)
    x, y = tritorch.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    ours, theirs = getattr(tritorch, name)(x, dim), getattr(torch, name)(y, dim)
    same(ours, theirs)
    first, second = (ours[0], theirs[0]) if isinstance(ours, tuple) else (ours, theirs)
    weight = draw(3, 4, 5, seed=1)
    (gx,), (gy,) = tritorch.autograd.grad(first, [x], tritorch.tensor(weight)), torch.autograd.grad(second, [y], torch.tensor(weight))
    same(gx, gy, rtol=1e-4)


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16", "int64", "int32", "int8", "bool"])
@pytest.mark.parametrize("name", NAMES[:4])
def test_dtypes(name, kind, cuda):
    array = np.random.default_rng(1).integers(0, 3, (4, 7)).astype(np.float32)
    want = getattr(torch, name)(torch.tensor(array).to(getattr(torch, kind)), 1)
    x = tritorch.tensor(array).to(getattr(tritorch, kind))
    for place in (x, x.to(cuda)):
        same(getattr(tritorch, name)(place, 1), want)


@pytest.mark.parametrize("name", ["cumsum", "cummax", "cummin", "logcumsumexp"])
def test_nan_infinity_and_ties(name, cuda):
    array = np.random.default_rng(2).integers(-2, 3, (6, 9)).astype(np.float32)
    array[1, 3] = array[1, 7] = np.nan
    array[2] = -np.inf
    array[3, 4] = np.inf
    for dim in (0, 1):
        want = getattr(torch, name)(torch.tensor(array), dim)
        for x in (tritorch.tensor(array), tritorch.tensor(array).to(cuda)):
            same(getattr(tritorch, name)(x, dim), want)


@pytest.mark.parametrize("zeros", [[], [2], [1, 4]])
def test_cumprod_gradient_where_factors_are_zero(zeros):
    array = draw(2, 6)
    array[0, zeros] = 0
    x, y = tritorch.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    x.cumprod(1).sum().backward()
    y.cumprod(1).sum().backward()
    same(x.grad, y.grad, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape, dim", [((20011,), 0), ((2, 9001), 1), ((9001, 2), 0), ((300, 41), 1)])
def test_long_rows(name, shape, dim, cuda, tiles):
    array = np.abs(draw(*shape)) * 0 + 1 + 1e-3 * draw(*shape)          # products of these neither vanish nor explode
    want = getattr(torch, name)(torch.tensor(array).double(), dim)
    got = getattr(tritorch, name)(tritorch.tensor(array).to(cuda), dim)
    if isinstance(got, tuple):
        assert (got[1].cpu().array == want[1].numpy()).all()
        got, want = got[0], want[0]
    np.testing.assert_allclose(got.cpu().array, want.numpy(), rtol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence_is_a_loop(reverse, cuda):
    a, b = draw(3, 700, seed=1) * 0.9, draw(3, 700, seed=2)
    want, state = np.empty_like(b), np.zeros(3)
    for i in range(699, -1, -1) if reverse else range(700):
        state = a[:, i] * state + b[:, i]
        want[:, i] = state
    for place in ("cpu", cuda):
        got = linear_recurrence(tritorch.tensor(a).to(place), tritorch.tensor(b).to(place), 1, reverse)
        np.testing.assert_allclose(got.cpu().array, want, rtol=1e-3, atol=1e-4)


def test_in_place():
    x = tritorch.tensor([1.0, 2.0, 3.0])
    x.cumsum_(0)
    assert x.tolist() == [1.0, 3.0, 6.0]


@pytest.mark.parametrize("shape, dim", [((1_000_000, 64), 0), ((10_000_000, 7), 0), ((64, 1_000_000), 1), ((3, 700_001), 1)])
def test_blocks_of_a_scan_in_pieces_are_powers_of_two(shape, dim):
    """As many pieces as there happen to be tiles: 131 of 64 rows once gave blocks of 15 rows, which do not compile."""
    pytest.importorskip("triton")
    with driver.using(DryDriver(90)), compiler.recording() as record, tuner.trying_all():
        tritorch.empty(shape, device="cuda").cumsum(dim)
    sizes = [(spec.kernel.__name__, n) for spec in record.values() for (i, *_), n in spec.constexprs.items()
             if list(spec.signature)[i] in ("BLOCK_M", "BLOCK_N", "PIECES")]
    assert "prefix_kernel" in dict(sizes)
    assert [(name, n) for name, n in sizes if n & (n - 1)] == []


@pytest.mark.parametrize("shape, dim", [((70, 1000), 1), ((5, 4100), 1), ((3, 999), 1), ((33, 150), 0), ((2, 90, 37), 1), ((600, 64), 0)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_gpu_tiles_there_and_back(shape, dim, kind, cuda, monkeypatch):
    """Rows of which a thread takes several columns at once, or has all; from both ends, in all layouts."""
    monkeypatch.setattr(driver, "hardware_tiles", True)
    array = draw(*shape, seed=3)
    wide = tritorch.tensor(np.repeat(array, 2, axis=-1)).to(getattr(tritorch, kind)).to(cuda)
    swapped = wide[..., ::2].transpose(0, -1).contiguous().transpose(0, -1)
    for x in (wide[..., ::2].contiguous(), wide[..., ::2], swapped, wide[..., 1:-1]):
        exact = x.cpu().double().array
        bound = 2e-5 * np.abs(exact).cumsum(dim) + (2 ** -8 * 2 * np.abs(exact.cumsum(dim)) if kind == "bfloat16" else 1e-6)
        assert (np.abs(x.cumsum(dim).cpu().double().array - exact.cumsum(dim)) <= bound).all()
        back = np.flip(np.flip(exact, dim).cumsum(dim), dim)
        bound = 2e-5 * np.abs(exact).sum(dim, keepdims=True) + (2 ** -7 * np.abs(back) if kind == "bfloat16" else 0)
        assert (np.abs(reverse_cumsum(x, dim).cpu().double().array - back) <= bound).all()
        a = tritorch.tensor(0.5 + 0.25 * np.tanh(exact)).to(x.dtype)
        for reverse in (False, True):
            want = linear_recurrence(a.double(), x.cpu().double(), dim, reverse).array
            got = linear_recurrence(a.to(cuda), x, dim, reverse).cpu().double().array
            np.testing.assert_allclose(got, want, rtol=1e-4 if kind == "float32" else 1e-2, atol=1e-4 if kind == "float32" else 2e-2)


@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("shape, dim", [((4, 2500), 1), ((2500, 40), 0), ((1, 9000), 1)])
def test_infinities_and_nan_of_gpu_tiles(name, shape, dim, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    array = np.moveaxis(draw(*shape), dim, 0)
    array[:700, 0] = -np.inf
    if shape != (1, 9000):
        array[1800, 1], array[2100, 1], array[600, 2], array[:, 3] = np.inf, np.nan, 3e38, -np.inf
        array[2049, 3] = -3e38
    array = np.ascontiguousarray(np.moveaxis(array, 0, dim))
    x, want = tritorch.tensor(array).to(cuda), getattr(torch, name)(torch.tensor(array).double(), dim)
    got = getattr(tritorch, name)(x, dim)
    if isinstance(got, tuple):
        assert (got.indices.cpu().array == want.indices.numpy()).all()
        got, want = got.values, want.values
    np.testing.assert_allclose(got.cpu().array, want.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype, wide", [(tritorch.float32, "v4"), (tritorch.bfloat16, "v4"), (tritorch.float64, "v2")])
@pytest.mark.parametrize("scan", [tritorch.cumsum, reverse_cumsum, tritorch.cummax])
def test_rows_of_1000_are_loaded_16_bytes_at_a_time(scan, dtype, wide):
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        scan(tritorch.empty(3000, 1000, dtype=dtype, device="cuda"), 1)
    found = machine_code.used(record.values(), 90, texts=[f"ld.global.{wide}", "ld.global.b"])
    assert all(code[f"ld.global.{wide}"] and not code["ld.global.b"] for code in found)


@pytest.mark.parametrize("shape, dtype", [((64, 1000, 512), tritorch.float32), ((64, 1000, 512), tritorch.bfloat16),
                                          ((2, 10_000, 1001), tritorch.float32)])
def test_threads_that_have_whole_rows_exchange_nothing(shape, dtype):
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        tritorch.empty(shape, dtype=dtype, device="cuda").cumsum(1)
    scans = [spec for spec in record.values() if spec.kernel.__name__ == "scan_kernel"]
    found = machine_code.used(scans, 90, texts=["shfl", "ld.shared"])
    assert found and not any(code["shfl"] or code["ld.shared"] for code in found)
