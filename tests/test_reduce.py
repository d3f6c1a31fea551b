"""Reductions against PyTorch: dims, dtypes, nan, empty, ties, and rows long enough to be split over programs."""
import math
from functools import partial

import numpy as np
import pytest
from arrays import draw
from oracle import same as oracle_same
from oracle import torch

import tritorch
from tritorch.cuda import compiler, driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.cuda.launch import sm_count
from tritorch.ops import monoids

same = partial(oracle_same, rtol=1e-5, atol=1e-6, signs=False)
DIMS = [(), (0,), (1,), (-1,), ((0, 2),), ((0, 1, 2),)]
FAMILY = ["sum", "nansum", "mean", "amax", "amin", "any", "all", "var", "std"]


def pair(array, requires_grad=False):
    """The same values in tritorch and in torch."""
    ours, theirs = tritorch.tensor(array), torch.tensor(array)
    return (ours.requires_grad_(), theirs.requires_grad_()) if requires_grad else (ours, theirs)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", FAMILY)
def test_dims_and_gradients(name, dim):
    x, y = pair(draw(3, 4, 5), True)
    for keepdim in (False, True) if dim else (False,):
        keywords = {"keepdim": keepdim} if dim else {}
        ours, theirs = getattr(tritorch, name)(x, *dim, **keywords), getattr(torch, name)(y, *dim, **keywords)
        same(ours, theirs)
    if name not in ("any", "all"):
        weight = draw(*ours.shape)
        (gx,) = tritorch.autograd.grad(ours, [x], tritorch.tensor(weight))
        (gy,) = torch.autograd.grad(theirs, [y], torch.tensor(weight))
        same(gx, gy)


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "count_nonzero", "argmax", "max", "logsumexp"])
def test_dtypes(name, kind):
    if (name, kind) == ("argmax", "bool"):
        pytest.skip("torch has no argmax of bools")
    array = np.random.default_rng(1).integers(0, 4, (6, 7)).astype(np.float32)
    x, y = tritorch.tensor(array).to(getattr(tritorch, kind)), torch.tensor(array).to(getattr(torch, kind))
    same(getattr(tritorch, name)(x, 1), getattr(torch, name)(y, 1), rtol=1e-2 if kind.endswith("float16") else 1e-6)


@pytest.mark.parametrize("name", "sum nansum amax amin argmax argmin max min any all logsumexp aminmax var".split())
def test_nan_and_infinity(name, cuda):
    array = draw(6, 9)
    array[1, 3] = array[1, 7] = np.nan
    array[2] = -np.inf
    array[3, 4] = np.inf
    for dim in (0, 1):
        want = getattr(torch, name)(torch.tensor(array), dim=dim)
        same(getattr(tritorch, name)(tritorch.tensor(array), dim=dim), want)
        same(getattr(tritorch, name)(tritorch.tensor(array).to(cuda), dim=dim), want)


def test_empty():
    for name in ("sum", "prod", "mean", "any", "all", "nansum", "var", "count_nonzero"):
        same(getattr(tritorch, name)(tritorch.zeros(0, 3), dim=0), getattr(torch, name)(torch.zeros(0, 3), dim=0))
        same(getattr(tritorch, name)(tritorch.zeros(3, 0)), getattr(torch, name)(torch.zeros(3, 0)))
    for call in (lambda t: t.zeros(0, 3).amax(0), lambda t: t.zeros(0).max(), lambda t: t.zeros(0, 3).max(0), lambda t: t.zeros(0).argmax(),
                 lambda t: t.zeros(0).aminmax(), lambda t: t.ones(3, dtype=t.int64).mean(), lambda t: t.ones(3, dtype=t.int64).var()):
        with pytest.raises(Exception) as theirs:
            call(torch)
        with pytest.raises(type(theirs.value)):
            call(tritorch)


def test_ties_share_the_gradient_of_amax_and_the_first_gets_that_of_max():
    array = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], np.float32)
    for call in (lambda t, x: t.amax(x, 1), lambda t, x: t.max(x, 1)[0], lambda t, x: t.max(x), lambda t, x: t.amin(x),
                 lambda t, x: t.aminmax(x)[1]):
        x, y = pair(array, True)
        call(tritorch, x).sum().backward()
        call(torch, y).sum().backward()
        same(x.grad, y.grad)


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_prod_with_zeros(dim):
    array = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [1.0, 5.0, 6.0]], np.float32)
    x, y = pair(array, True)
    ours, theirs = (x.prod(), y.prod()) if dim is None else (x.prod(dim), y.prod(dim))
    ours.sum().backward()
    theirs.sum().backward()
    same(x.grad, y.grad)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, 2.5, math.inf, -math.inf, -1])
def test_norms(p):
    array = draw(4, 6)
    array[0, 0], array[2] = 0, 0
    x, y = pair(array, True)
    for dim in (1, None):
        ours, theirs = tritorch.norm(x, p, dim), torch.norm(y, p, dim)
        same(ours, theirs)
        if p > 0:                                                         # below, a norm with zeros among its elements has no slope
            (gx,), (gy,) = tritorch.autograd.grad(ours.sum(), [x]), torch.autograd.grad(theirs.sum(), [y])
            same(gx, gy)


@pytest.mark.parametrize("keywords", [{}, {"correction": 0}, {"unbiased": False}, {"correction": 2.5}, {"dim": 1},
                                      {"dim": (0, 2), "correction": 3}])
def test_variance_arguments(keywords):
    x, y = pair(draw(3, 4, 5))
    for name in ("var", "std"):
        same(getattr(x, name)(**keywords), getattr(y, name)(**keywords))
    if keywords:
        same(tuple(tritorch.var_mean(x, **keywords)), torch.var_mean(y, **keywords))
    same(x.var(False), y.var(False))


def test_std_of_a_constant_has_gradient_zero():
    x = tritorch.ones(4, requires_grad=True)
    x.std().backward()
    assert x.grad.tolist() == [0.0] * 4


def test_variance_of_large_values_keeps_its_digits(cuda):
    array = (1e4 + draw(2, 4097)).astype(np.float32)
    want = array.astype(np.float64).var(axis=1, ddof=1)
    for x in (tritorch.tensor(array), tritorch.tensor(array).to(cuda)):
        np.testing.assert_allclose(x.var(1).cpu().array, want, rtol=1e-4)


@pytest.mark.parametrize("shape, dim", [((70001,), 0), ((3, 20000), 1), ((20000, 3), 0), ((2, 5000, 3), 1), ((500, 700), None)])
def test_long_rows_are_split_and_deterministic(shape, dim, cuda, tiles):
    array = draw(*shape)
    x = tritorch.tensor(array).to(cuda)
    exact = array.astype(np.float64).sum(axis=dim)
    first = x.sum(dim).cpu().array
    np.testing.assert_allclose(first, exact, rtol=1e-5, atol=2e-4)
    assert (x.sum(dim).cpu().array == first).all()
    if dim is not None:
        assert (x.argmax(dim).cpu().array == array.argmax(axis=dim)).all()
        np.testing.assert_allclose(x.logsumexp(dim).cpu().array, torch.tensor(array).logsumexp(dim).numpy(), rtol=1e-5)


def test_half_types_add_up_in_float32(cuda):
    for kind in (tritorch.float16, tritorch.bfloat16):
        x = tritorch.full((3, 4096), 0.1).to(kind)
        want = float(x[0, 0].float()) * 4096
        for y in (x, x.to(cuda)):
            assert abs(float(y.sum(1)[0]) - want) <= 0.004 * want


def test_sum_keeps_no_memory_of_its_input():
    x = tritorch.ones(3, requires_grad=True) * 2
    total = x.sum()
    with tritorch.no_grad():
        x.mul_(5)
    total.backward()                                                      # the input was written since, and was not needed


@pytest.mark.parametrize("shape, dims", [
    ((5, 37, 4, 43), (0, 2, 3)), ((7, 3, 70), (0, 2)), ((64, 5, 16), (0, 2)), ((3, 4, 5, 300), (0, 1, 3)), ((6, 40, 3, 20), (0, 2)),
    ((20, 3, 30, 2), (1, 3))])
@pytest.mark.parametrize("name", ["sum", "var", "amax", "count_nonzero", "logsumexp"])
def test_several_dims_that_do_not_merge(name, shape, dims, cuda, tiles):
    array = draw(*shape)
    want = getattr(torch, name)(torch.tensor(array).double(), dims)
    got = getattr(tritorch, name)(tritorch.tensor(array).to(cuda), dims)
    np.testing.assert_allclose(got.cpu().array, want.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [tritorch.bfloat16, tritorch.uint8])
def test_extremes_of_many_rows(dtype, cuda, monkeypatch):
    """Rows enough that each may have a warp; equal elements and NaN among them."""
    monkeypatch.setattr(tritorch.cuda.driver, "hardware_tiles", True)
    x = np.random.default_rng(0).integers(0, 99, (8 * sm_count() + 3, 1030)).astype(np.float32)
    if dtype is tritorch.bfloat16:
        x[5, 700:], x[6, :], x[7, 3] = np.nan, -np.inf, np.nan
    x = tritorch.tensor(x).to(dtype)
    want = [t.float().array for t in (*x.max(1), *x.min(1))]
    with tuner.trying_all() as met:
        x.to(cuda).max(1)
    ways = [c for family, _, candidates in met if family == "reduce" for c in candidates]
    assert ways[0]["BLOCK_M"] == ways[0]["num_warps"] == 4
    for way in ways[:2]:
        with tuner.forcing("reduce", way):
            there = x.to(cuda)
            for got, expect in zip((*there.max(1), *there.min(1)), want):
                np.testing.assert_array_equal(got.cpu().float().array, expect, err_msg=str(way))


@pytest.mark.parametrize("itemsize, states", [(1, 2), (2, 2), (2, 3), (4, 2), (4, 1), (1, 1)])
@pytest.mark.parametrize("M", [1, 64])
def test_cut_rows_have_enough_bytes_on_their_way(M, itemsize, states):
    way = monoids.tiles(M, (1 << 28) // itemsize // M, 0, False, itemsize, states, 132)[0]
    assert M * way["pieces"] * way["BLOCK_N"] * itemsize >= 132 * 12000                  # each multiprocessor waits for its share


@pytest.mark.parametrize("name", ["argmax", "argmin", "aminmax", "logsumexp", "var"])
@pytest.mark.parametrize("kind", ["bool", "uint8", "float16"])
def test_cut_rows_of_small_elements(name, kind, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    if kind != "float16" and name in ("logsumexp", "var"):
        pytest.skip("of floating numbers alone")
    n = 8 * 4096 + 1001
    table = {"bool": np.zeros((2, n + 3), bool), "uint8": np.random.default_rng(0).integers(1, 250, (2, n + 3)).astype(np.uint8),
             "float16": draw(2, n + 3, dtype=np.float16)}[kind]
    table[0, n - 5:n - 2] = table[1, 5000:5003] = 1 if kind == "bool" else 251 if kind == "uint8" else 9
    table[:, n:] = 1 if kind == "bool" else 255 if kind == "uint8" else np.nan           # behind the rows
    whole = tritorch.tensor(table).to(cuda)
    for x, y in ((whole[:, :n], table[:, :n]), (whole[0, :n], table[0, :n]), (whole[:, 1:n:2], table[:, 1:n:2])):
        wanted = {"argmax": lambda y: y.argmax(-1), "argmin": lambda y: y.argmin(-1), "aminmax": lambda y: (y.min(-1), y.max(-1)),
                  "logsumexp": lambda y: np.log(np.exp(y.astype(float)).sum(-1)), "var": lambda y: y.astype(float).var(-1, ddof=1)}[name](y)
        found = tritorch.aminmax(x, dim=-1) if name == "aminmax" else getattr(x, name)(-1)
        for ours, true in zip(found, wanted) if name == "aminmax" else [(found, wanted)]:
            np.testing.assert_allclose(ours.cpu().numpy().astype(float), np.asarray(true, float), rtol=2e-3)


@pytest.mark.parametrize("shape, dim", [((7, 3001), 0), ((3, 5, 701), 1), ((13, 2050), 0), ((16, 999), 0)])
def test_few_columns_of_many_rows(shape, dim, cuda, monkeypatch):
    """Rows next to each other in memory, of which a thread has whole ones."""
    monkeypatch.setattr(driver, "hardware_tiles", True)
    array = draw(*shape)
    array[..., 5], array[:, ..., 7] = -np.inf, np.nan
    wide = tritorch.tensor(np.repeat(array, 2, axis=-1)).to(cuda)[..., ::2]
    with np.errstate(invalid="ignore"):
        wants = {"sum": array.astype(np.float64).sum(dim), "argmax": array.argmax(dim), "amin": array.min(dim)}
        wants |= {name: getattr(torch.tensor(array).double(), name)(dim).numpy() for name in ("logsumexp", "var")}
    for name, want in wants.items():
        for x in (tritorch.tensor(array).to(cuda), wide):
            with tuner.trying_all() as met:
                getattr(x, name)(dim)
            for way in next(candidates for family, _, candidates in met if family == "reduce")[:3]:
                with tuner.forcing("reduce", way):
                    got = getattr(x, name)(dim).cpu().array
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} {way}")


@pytest.mark.parametrize("shape, dtype", [((7, 10_000_000), tritorch.float32), ((3, 20_000_000), tritorch.bfloat16)])
def test_few_columns_of_many_rows_are_added_up_in_threads(shape, dtype):
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        tritorch.empty(shape, dtype=dtype, device="cuda").sum(0)
    assert [code["shfl"] for code in machine_code.used(record.values(), 90, texts=["shfl"], added=added_in_shared_memory)] == [0]
    assert [code["added"] for code in machine_code.used(record.values(), 90, added=added_in_shared_memory)] == [0]


def added_in_shared_memory(compiled):
    """Whether what was read from shared memory is added up."""
    after = compiled.ptx.rpartition("ld.shared")
    return bool(after[1]) and "add.f32" in after[2]


def test_states_of_pieces_with_infinities_nan_and_large_means(cuda, tiles):
    array = draw(7, 20_011)
    array[0], array[1, :12_000], array[2, 5_000:], array[3, 9_000], array[4, 7] = -np.inf, -np.inf, -np.inf, np.inf, np.nan
    array[5], array[6] = 3e38, -3e38
    exact, x = torch.tensor(array).double(), tritorch.tensor(array).to(cuda)
    np.testing.assert_allclose(x.logsumexp(1).cpu().array, exact.logsumexp(1).numpy(), rtol=1e-6)
    np.testing.assert_allclose(x[:5].var(1).cpu().array, exact[:5].var(1).numpy(), rtol=1e-5)
    assert (x.t().contiguous().logsumexp(0) == x.logsumexp(1)).cpu().array[[0, 3, 5, 6]].all()


@pytest.mark.parametrize("dtype", [tritorch.float32, tritorch.bfloat16])
def test_short_rows_exchange_little(dtype):
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        tritorch.empty(128, 2048, 7, 7, dtype=dtype, device="cuda").mean((2, 3))
    code, = machine_code.used(record.values(), 90, texts=["shfl"])
    assert 0 < code["shfl"] <= 24, "three steps for each row that a lane has"


@pytest.mark.parametrize("columns", [9, 25, 49, 63])
def test_short_rows(columns, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    array = draw(259, columns)
    array[3, 5], array[7, columns - 1], array[8, 0] = np.nan, np.inf, -np.inf
    x, want = tritorch.tensor(array).to(cuda), torch.tensor(array)
    with tuner.forcing("reduce", {"BLOCK_M": 128, "BLOCK_N": 8, "pieces": 1, "num_warps": 4}):
        np.testing.assert_allclose(x.sum(1).cpu().array, want.double().sum(1).numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(x.t().contiguous().t().mean(1).cpu().array, want.double().mean(1).numpy(), rtol=1e-5, atol=1e-5)
        values, places = x.max(1)
    np.testing.assert_array_equal(values.cpu().array, want.max(1)[0].numpy())
    np.testing.assert_array_equal(places.cpu().array, want.max(1)[1].numpy())


@pytest.mark.parametrize("columns", [1, 3, 7, 31, 32, 100, 333, 700, 1000])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
def test_rows_held_in_narrow_tiles(columns, kind, cuda, monkeypatch):
    """Of every layout; NaN behind the rows, infinities and NaN in some of them."""
    monkeypatch.setattr(driver, "hardware_tiles", True)
    monkeypatch.setattr(monoids, "sm_count", lambda: 2)
    array = 3 * draw(37, columns) + 100
    array[1, 0], array[2], array[3, -1], array[4, columns // 2] = np.inf, -np.inf, np.nan, 1e38
    table = np.full((37, 2 * columns + 8), np.nan)
    table[:, :2 * columns:2], table[:, 1:2 * columns:2] = array, array
    wide = tritorch.tensor(table).to(getattr(tritorch, kind)).to(cuda)
    for x in (wide[:, :2 * columns:2].contiguous(), wide[:, :2 * columns:2], wide[:, :columns], wide[:, 1:columns + 1],
              wide[:1, :columns].expand(37, columns), wide[:, :2 * columns:2].t().contiguous().t()):
        exact = torch.tensor(x.cpu().double().array)
        with tuner.trying_all() as met:
            x.sum(1)
        if columns > 1 and x.stride(0) > x.stride(1):
            assert next(candidates for family, _, candidates in met if family == "reduce")[0].get("HELD")
        for name in ("sum", "amax", "argmin", "any", "logsumexp", "var", "count_nonzero"):
            if name == "var" and columns == 1:
                continue
            want, got = getattr(exact, name)(1).double().numpy(), getattr(x, name)(1).cpu().double().array
            if name == "var":                                            # squares of 1e38 are beyond float32
                want, got = np.delete(want, 4), np.delete(got, 4)
            np.testing.assert_allclose(got, want, rtol={"float32": 1e-4, "float64": 1e-12, "bfloat16": 1e-2}[kind], atol=1e-6)


@pytest.mark.parametrize("kind", ["bool", "uint8", "int8"])
@pytest.mark.parametrize("columns", [1024, 3000, 4095, 4096])
def test_long_rows_of_bytes_are_held(columns, kind, cuda, monkeypatch):
    """Of every layout; what lies behind the rows would change every result."""
    monkeypatch.setattr(driver, "hardware_tiles", True)
    monkeypatch.setattr(monoids, "sm_count", lambda: 1)
    table = np.full((19, 4112), 1)
    table[:, 16:16 + columns] = draw(19, columns) > 1.5
    table[0, 16:16 + columns], table[1, 16:16 + columns], table[2, 15 + columns] = 0, 1, 1
    wide = tritorch.tensor(table).to(getattr(tritorch, kind)).to(cuda)
    x = wide[:, 16:16 + columns]
    with tuner.trying_all() as met:
        x.sum(1)
    held = next(candidates for family, _, candidates in met if family == "reduce")[0].get("HELD")
    assert (held is None) == (columns % 8 > 0)                           # columns one by one would be too many tiles
    with tuner.trying_all() as met:
        x.max(1)
    assert not any(way.get("HELD") for family, _, candidates in met if family == "reduce" for way in candidates)   # a warp has a row
    for layout in (x, x.contiguous(), x.t().contiguous().t(), x[:1].expand(19, columns)):
        exact = torch.tensor(layout.cpu().double().array)
        for name in ("sum", "amax", "any", "all", "count_nonzero"):
            np.testing.assert_array_equal(getattr(layout, name)(1).cpu().double().array, getattr(exact, name)(1).double().numpy(), name)


@pytest.mark.parametrize("name", ["sum", "any", "all", "amax", "count_nonzero"])
def test_cut_rows_of_bytes(name, cuda, monkeypatch):
    monkeypatch.setattr(driver, "hardware_tiles", True)
    monkeypatch.setattr(monoids, "sm_count", lambda: 4)
    array = draw(3, 16421) > 1.5
    array[0], array[1] = False, True
    x, want = tritorch.tensor(array).to(cuda), torch.tensor(array)
    way = monoids.tiles(3, 16421, 0, False, 1, 1, 4)[0]
    assert way["pieces"] > 1 and way["BLOCK_N"] == 2048
    np.testing.assert_array_equal(getattr(x, name)(1).cpu().array, getattr(want, name)(1).numpy())


@pytest.mark.parametrize("name", ["sum", "argmax", "var", "logsumexp"])
def test_a_thread_has_rows_of_7_columns_to_itself(name):
    machine_code = pytest.importorskip("machine_code")
    with driver.using(DryDriver(90)), compiler.recording() as record:
        getattr(tritorch.empty(10_000_000, 7, device="cuda"), name)(1)
    code, = machine_code.used(record.values(), 90, texts=["shfl", "ld.shared", "ld.global"])
    assert (code["shfl"], code["ld.global"], code["spills"]) == (0, 7, 0)


@pytest.mark.parametrize("shape", [(65536, 4096), (70001, 700), (1 << 20,), (3, 1_000_001)])
@pytest.mark.parametrize("name", ["logsumexp", "var", "argmax", "aminmax"])
def test_states_keep_their_shape_from_tile_to_tile(name, shape):
    """Of tiles that are whole what is alike for all elements has one value alone: the compiler wants that of all tiles or of none."""
    machine_code = pytest.importorskip("machine_code")
    for dtype in tritorch.float32, tritorch.bfloat16:
        with driver.using(DryDriver(90)), compiler.recording() as record:
            x = tritorch.empty(shape, dtype=dtype, device="cuda")
            tritorch.aminmax(x, dim=-1) if name == "aminmax" else getattr(x, name)(-1)
        assert not any(code["spills"] for code in machine_code.used(record.values(), 90))
