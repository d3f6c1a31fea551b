"""The ways rows are sorted on a GPU: one program a row, and radix passes over many tiles."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import EVERY, FLOATS, SPECIAL

import tritorch as torch
from tritorch.cuda import driver
from tritorch.cuda.launch import launch
from tritorch.ops import ordering, selection
from tritorch.ops.sorting import order_of

LIMITS = {"int64": [2**63 - 1, -2**63, 2**32, -2**32, 0, -1], "int32": [2**31 - 1, -2**31, 0, -1], "int16": [2**15 - 1, -2**15],
          "int8": [127, -128], "uint8": [255, 0]}


def drawn(kind, *shape, seed=0, spread=None):
    """Random values of a dtype over all its range, with ties, NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(seed)
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in FLOATS:
        x = rng.standard_normal(shape).astype("float64" if kind == "float64" else "float32")
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x)
        return x.astype(x.dtype if kind == "float64" else "float32")
    limits = np.iinfo(kind)
    x = rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    return np.where(rng.random(shape) < 0.3, rng.choice(np.array(LIMITS[kind], kind), shape), x)


def check(x, cuda, descending=False, k=None, dim=-1):
    """sort on the device against numpy's stable order; the values bit by bit, so that zeros keep their signs."""
    on_device = x.to(cuda)
    host = x.array
    n = host.shape[dim]
    values, indices = torch.sort(on_device, dim, descending) if k is None else torch.ops.sorting.sorted_first(on_device, k, dim, descending)
    want = np.take(order_of(host, dim, descending), range(n if k is None else k), axis=dim)
    np.testing.assert_array_equal(indices.cpu().numpy(), want)
    assert values.cpu().array.tobytes() == np.take_along_axis(host, want, dim).tobytes()


def made(kind, array):
    return torch.tensor(array).to(getattr(torch, kind))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_every_length(cuda, kind, descending):
    """Rows of one program (up to 512 on the simulator) and of several tiles with an odd tail."""
    for shape in ((3, 1), (5, 2), (7, 33), (2, 512), (3, 513), (2, 1031)):
        check(made(kind, drawn(kind, *shape)), cuda, descending)
    check(made(kind, drawn(kind, 700, 2)), cuda, descending, dim=0)


@pytest.mark.parametrize("array", [np.zeros(2000), np.arange(2000.0), np.arange(2000.0)[::-1].copy(), np.full(1500, np.nan),
                                   np.tile([0.0, -0.0, 1.0], 400), np.repeat(np.arange(5.0), 300)], ids=str)
def test_patterns(cuda, array):
    for x in (torch.tensor(array), torch.tensor(array).view(-1, 100)):
        for descending in (False, True):
            check(x, cuda, descending)


def test_first_of_long_rows(cuda):
    x = made("float32", drawn("float32", 3, 1500))
    for k in (1, 7, 600, 1500):
        check(x, cuda, True, k)


def test_layouts(cuda):
    x = made("float32", drawn("float32", 40, 30))
    host = x.array
    for view, array in ((lambda t: t.t(), host.T), (lambda t: t[::2, 3:], host[::2, 3:]), (lambda t: t[:1].expand(4, 30), host[[0] * 4]),
                        (lambda t: t[:3, :1].expand(3, 600), host[:3, [0] * 600])):
        for dim in (0, 1):
            got = torch.sort(view(x.to(cuda)), dim).indices.cpu().numpy()
            np.testing.assert_array_equal(got, order_of(array, dim, False))


@pytest.mark.parametrize("choice", ordering.RADIX + ordering.FEW_TILES, ids=str)
def test_radix_passes_of_the_gpu(cuda, choice):
    """The configurations that a GPU runs, on a row of three tiles of which the last is short."""
    n = (2 << choice["LOG"]) + 77
    for kind, raw in (("float32", None), ("bfloat16", None), ("int64", 13)):
        x = made(kind, drawn(kind, 1, n)) if raw is None else torch.randint(-1, 2**13 - 1, (1, n))
        values, indices = torch.empty(1, n, dtype=x.dtype, device=cuda), torch.empty(1, n, dtype=torch.int64, device=cuda)
        bits = 8 * x.dtype.itemsize if raw is None else raw
        ordering._passes(values, indices, x.to(cuda), 1, n, bits, choice, {"FALLING": False, "RAW": raw is not None})
        key = x.array if raw is None else x.array % 2**13
        np.testing.assert_array_equal(indices.cpu().numpy(), order_of(key, 1, False))
        assert values.cpu().array.tobytes() == np.take_along_axis(x.array, order_of(key, 1, False), 1).tobytes()


@pytest.mark.parametrize("choice", ordering.GLUON, ids=str)
def test_radix_passes_by_votes(cuda, choice):
    """Rows of three tiles of which the last is short, whole and their first few."""
    if driver.current().name in ("simulated", "native"):
        pytest.skip("Gluon has neither an interpreter nor TTIR")
    n = (2 << choice["LOG"]) + 77
    for kind, rows, k, falling in (("float32", 1, n, False), ("float32", 1, 5000, True), ("int32", 2, n, False)):
        x = made(kind, drawn(kind, rows, n))
        values, indices = torch.empty(rows, k, dtype=x.dtype, device=cuda), torch.empty(rows, k, dtype=torch.int64, device=cuda)
        ordering._passes(values, indices, x.to(cuda), rows, n, 32, choice, {"FALLING": falling, "RAW": False})
        want = order_of(x.array, 1, falling)[:, :k]
        np.testing.assert_array_equal(indices.cpu().numpy(), want)
        assert values.cpu().array.tobytes() == np.take_along_axis(x.array, want, 1).tobytes()


@pytest.mark.parametrize("few, piece", [(0, 2), (0, 256), (64, 256)])
def test_tiles_beside_each_other(cuda, monkeypatch, few, piece):
    """Rows of eight tiles: in several pieces, in one, and so few that each program adds up their counts."""
    monkeypatch.setattr(ordering, "FEW", few)
    monkeypatch.setattr(ordering, "PIECE", piece)
    for kind in ("int16", "bool"):
        check(made(kind, drawn(kind, 2, 1800)), cuda)


@pytest.mark.parametrize("n", [5, 1000, 4096, 8000])
def test_short_rows_as_a_gpu_sorts_them(cuda, n, monkeypatch):
    if driver.current().name != "simulated":
        pytest.skip("the suite has run this on the device")
    monkeypatch.setattr(driver, "hardware_tiles", True)
    for kind in ("float32", "int64", "bfloat16"):
        check(made(kind, drawn(kind, 3, n)), cuda, True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=700), st.booleans(), st.integers(1, 3))
def test_any_floats(values, descending, rows):
    with torch.cuda.simulate(seed=0):
        x = torch.tensor(np.array(values, "float32")).expand(rows, len(values))
        check(x, torch.device("cuda:0"), descending)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-2**63, 2**63 - 1), min_size=1, max_size=700), st.booleans())
def test_any_integers(values, descending):
    with torch.cuda.simulate(seed=0):
        check(torch.tensor(np.array(values)), torch.device("cuda:0"), descending)


# ------------------------------------------------------------------ selection
@pytest.mark.parametrize("kind", [k for k in EVERY if k != "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_first_few(cuda, kind, descending):
    """Rows of one program and of several chunks, one of which has fewer elements than are asked for."""
    for rows, n, k in ((5, 40, 3), (3, 512, 128), (2, 700, 60), (2, 1030, 20)):
        check(made(kind, drawn(kind, rows, n)), cuda, descending, k)


def test_first_few_of_many_chunks(cuda):
    check(made("float32", drawn("float32", 1, 20000)), cuda, True, 100)


@pytest.mark.parametrize("array", [np.zeros(2000), np.arange(2000.0), np.full(1500, np.nan), np.tile([0.0, -0.0, np.nan], 400),
                                   np.repeat(np.arange(5.0), 300)], ids=["zeros", "rising", "nan", "three", "few"])
def test_first_few_of_patterns(cuda, array):
    for k in (1, 2, 100):
        for descending in (False, True):
            check(torch.tensor(array), cuda, descending, k)
            check(torch.tensor(array).view(-1, 100), cuda, descending, min(k, 25))


@pytest.mark.parametrize("kind", [k for k in EVERY if k != "bool"])
def test_order_statistics(cuda, kind):
    for rows, n in ((4, 1), (9, 7), (3, 300), (2, 900)):
        x = made(kind, drawn(kind, rows, n))
        order = order_of(x.array, 1, False)
        for k in {1, 2, (n + 1) // 2, n}:
            if k <= n:
                values, indices = x.to(cuda).kthvalue(k, 1)
                np.testing.assert_array_equal(indices.cpu().numpy(), order[:, k - 1])
                assert values.cpu().array.tobytes() == np.take_along_axis(x.array, order[:, k - 1:k], 1).tobytes()


@pytest.mark.parametrize("choice", selection.TILES, ids=str)
def test_selection_as_a_gpu_does_it(cuda, choice, monkeypatch):
    monkeypatch.setattr(selection, "TILES", [choice])
    for n, k in ((300, 7), (512, 64)):
        check(made("float32", drawn("float32", 3, n)), cuda, True, k)


def test_candidates_select_the_same(cuda):
    """A row's choice does not depend on how many rows are beside it in a program."""
    x = torch.randn(16, 512).to(cuda)
    found = []
    for rows in (1, 4, 16):
        order = torch.empty(16, 64, dtype=torch.int32, device=cuda)
        launch(selection.K.select_kernel, (16 // rows,), order, x, None, 512, 16, 512, 10, 64, 64, FALLING=True, FILL=64, ROWS=rows,
               LEN=512, GROUPS=16, num_warps=4)
        found.append(order.cpu().numpy())
    assert len(set((found[0] >= 0).sum(1))) > 1                  # rows do not end at the same step
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0]), min_size=32, max_size=600), st.booleans(), st.data())
def test_first_of_any_floats(values, descending, data):
    k = data.draw(st.integers(1, len(values) // 4))
    with torch.cuda.simulate(seed=0):
        check(torch.tensor(np.array(values, "float32")), torch.device("cuda:0"), descending, k)
