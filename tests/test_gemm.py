"""Matrix products on the device: geometry, every candidate that a table may name, split-K, TMA, fused activations."""

import numpy as np
import pytest
from arrays import draw

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import gemm, gemm_run, products
from tritorch.ops import gemm_choice as choice
from tritorch.ops.linear import linear
from tritorch.tensor import from_array

H200 = (132, 232448, 9)


def number(x):
    return x.detach().cpu().to(T.float32).array


@pytest.fixture
def hardware_tiles(monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)


def problem(m, n, k, dtype=T.bfloat16, precision="ieee", machine=H200, aligned=True, turned=(False, False), compiles=False, batch=(),
            fused=None):
    """The Problem of contiguous (or transposed) operands."""
    def strides(rows, columns, turn):
        inner = (1, rows) if turn else (columns, 1)
        return (*([rows * columns] if batch else []), *inner)

    return gemm.problem((*batch, m, n), strides(m, n, False), (*batch, m, k), strides(m, k, turned[0]), (*batch, k, n),
                        strides(k, n, turned[1]), None, dtype, precision, machine, aligned, False, fused, compiles)


# ------------------------------------------------------------------ layouts
def turned(v):
    return v.mT.contiguous().mT


def gaps(x):
    """The same values, every second column of wider memory."""
    wide = T.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype, device=x.device)
    wide[..., ::2] = x
    return wide[..., ::2]


SHAPES = [
    ((70, 50), (50, 90)), ((1, 300), (300, 40)), ((40, 300), (300, 1)), ((1, 900), (900, 1)), ((5, 3, 20), (20, 30)),
    ((3, 20, 17), (3, 17, 33)), ((2, 3, 8, 9), (3, 9, 8)), ((3, 1, 64), (64, 5)), ((2, 2000), (2000, 3)), ((7, 4, 1, 9), (9, 6)),
]


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("a, b", SHAPES)
def test_every_layout_and_epilogue(a, b, tiles, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    x, y, bias = draw(*a), draw(*b, seed=1), draw(b[-1], seed=2)
    want = x.astype(np.float64) @ y
    for f, g in ((T.Tensor.contiguous, T.Tensor.contiguous), (turned, gaps), (gaps, turned)):
        p, q = f(from_array(x).to(cuda)), g(from_array(y).to(cuda))
        np.testing.assert_allclose(number(products.matmul(p, q)), want, atol=1e-3)
        c = from_array(bias).to(cuda)
        np.testing.assert_allclose(number(products.addmm(c, p, q, 0.5, -2.0)), 0.5 * bias - 2 * want, atol=1e-3)


def test_rows_of_a_batch_become_one_tall_matrix():
    rest = (6, 5), (5, 1), None, T.float32, "ieee", H200, True, False, None, False
    made = gemm.problem((8, 4, 5), (20, 5, 1), (8, 4, 6), (24, 6, 1), *rest)
    assert made.batch == (1,) and made.M == 32
    apart = gemm.problem((8, 4, 5), (20, 5, 1), (8, 4, 6), (6, 48, 1), *rest)
    assert apart.batch == (8,) and apart.M == 4 and (apart.out[0], apart.a[0], apart.b[0]) == ((20,), (6,), (0,))


# ------------------------------------------------------------------ candidates
KINDS = {"half": T.bfloat16, "odd": T.float16, "tf32": T.float32, "bf16": T.float32, "ieee": T.float32, "fp64": T.float64, "int8": T.int8,
         "sum": T.int32, "parts": T.float32}


def candidates_for_integers():
    """All that a table may choose for a product with tails in all dims, once cut into one piece and once into several."""
    for kind in ("int8", "sum"):
        seen = {}
        for _, c in choice.plain(kind, 83, 133, 331, 1, KINDS[kind].itemsize, H200):
            seen.setdefault((*[c[f"BLOCK_{d}"] for d in "MNK"], c["splits"] > 1), c)
        yield from (pytest.param(kind, c, id="-".join([kind, *map(str, c.values())])) for c in seen.values())


@pytest.mark.parametrize("kind, candidate", list(candidates_for_integers()))
def test_plain_candidates_for_integers(kind, candidate, cuda, hardware_tiles):
    """Those for floats are held to PyTorch's error in test_error_ratio.py."""
    m, n, k = 83, 133, 331
    x, y = np.round(5 * draw(m, k)), np.round(5 * draw(k, n))
    a, b = [from_array(v).to(KINDS[kind]).to(cuda) for v in (x, y)]
    with tuner.forcing("matmul", candidate):
        got = products.matmul(a, b).cpu().array
    assert (got == (x @ y).astype(got.dtype)).all()


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_vector_candidates(along_k, splits, cuda, hardware_tiles):
    """A row times a matrix and a matrix times a column, in every block."""
    n, k = 77, 2600
    w, x, bias = [from_array(draw(*s, seed=3)).to(cuda) for s in ((n, k), (k,), (n,))]
    w = w if along_k else turned(w)
    want = number(w).astype(np.float64) @ number(x)
    for block_n, block_k, warps in choice.VECTORS + choice.COLUMNS:
        candidate = dict(kernel="vector", BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, splits=splits)
        with tuner.forcing("matmul", candidate):
            row = linear(x, w, bias)
            column = products.addmm(bias.unsqueeze(1), w, x.unsqueeze(1), 0.5, 2.0)
        np.testing.assert_allclose(number(row), want + number(bias), atol=1e-3)
        np.testing.assert_allclose(number(column)[:, 0], 2 * want + 0.5 * number(bias), atol=1e-3)


PERSISTENT = [candidate for _, candidate in choice.persistent(4096, 4096, 4096, 1, H200)]


@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("candidate", PERSISTENT, ids=lambda c: f"{c['BLOCK_M']}-{c['BLOCK_N']}")
def test_persistent_candidates(turned_a, turned_b, batch, candidate, cuda, hardware_tiles, monkeypatch):
    """The kernel by TMA, with more tiles than multiprocessors, tails in every dim, and what is added as a row, a column or a tile."""
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 2)
    m, n, k = 136, 264, 72
    a, b = [from_array(draw(batch, *s)).to(T.bfloat16) for s in ((m, k), (k, n))]
    want = number(a) @ number(b)
    a, b = a.to(cuda), b.to(cuda)
    a, b = turned(a) if turned_a else a, turned(b) if turned_b else b
    for shape in ((n,), (m, 1), (batch, m, n)):
        c = from_array(draw(*shape)).to(T.bfloat16).to(cuda)
        with tuner.forcing("matmul", candidate):
            out = products.addmm(c, a, b, 1, 0.5)
        np.testing.assert_allclose(number(out), 0.5 * want + number(c), rtol=2 ** -7, atol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rows, m, n", [(300, 40, 24), (3, 1, 5), (7, 5, 1), (0, 4, 3), (6, 4, 0)])
def test_sums_of_rows(rows, m, n, dtype, cuda):
    """Of the first operand, in the dtype that it computes in, also where nothing is multiplied."""
    g, x = [from_array(draw(rows, size, seed=size)).to(getattr(T, dtype)) for size in (m, n)]
    out, sums = T.empty(m, n, dtype=g.dtype, device=cuda), T.full((m,), float("nan"), dtype=g.dtype.compute, device=cuda)
    gemm.gemm(out, g.to(cuda).mT, x.to(cuda), row_sums=sums)
    np.testing.assert_allclose(number(sums), number(g).astype(np.float64).sum(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(number(out), number(g).T.astype(np.float64) @ number(x), rtol=1e-2, atol=1e-2)
    before = sums.clone()
    gemm.gemm(out, g.to(cuda).mT, x.to(cuda), out, row_sums=sums)        # with something to add, to what is there
    np.testing.assert_array_equal(number(sums), number(before + before))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shapes", [((1, 136, 72), (3, 72, 40)), ((3, 24, 72), (1, 72, 40))])
def test_one_matrix_for_a_batch(shapes, dtype, cuda, hardware_tiles, monkeypatch):
    """By TMA, with the shared operand read, or copied, once; a shared second operand has turned the batch into rows."""
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 2)
    x, y = [from_array(draw(*s, seed=k)).to(getattr(T, dtype)).to(cuda) for k, s in enumerate(shapes)]
    y = y if shapes[1][0] > 1 else turned(y).expand(3, 72, 40)
    T.set_float32_matmul_precision("high")
    try:
        with tuner.forcing("matmul", choice.persistent(4096, 4096, 4096, 1, H200, x.dtype.itemsize, x.dtype.itemsize)[0][1]):
            out = products.matmul(x, y)
    finally:
        T.set_float32_matmul_precision("highest")
    np.testing.assert_allclose(number(out), number(x) @ number(y), atol=0.1, rtol=1e-2)


@pytest.mark.parametrize("turned_a, turned_b", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [1, 2])
def test_tf32_by_tma(turned_a, turned_b, batch, cuda, hardware_tiles, monkeypatch):
    """Operands that do not lie along K, or whose rows TMA cannot step over, are copied; the others are read where they are."""
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 2)
    for m, n, k in ((136, 260, 72), (52, 36, 99)):
        x, y, c = draw(batch, m, k), draw(batch, k, n, seed=1), draw(m, n, seed=2)
        a, b = from_array(x).to(cuda), from_array(y).to(cuda)
        a, b = turned(a) if turned_a else a, turned(b) if turned_b else b
        want = x.astype(np.float64) @ y + c
        for _, candidate in choice.persistent(m, n, k, batch, H200, 4, 4):
            T.set_float32_matmul_precision("high")
            try:
                with tuner.forcing("matmul", candidate):
                    out = products.addmm(from_array(c).to(cuda), a, b)
            finally:
                T.set_float32_matmul_precision("highest")
            np.testing.assert_allclose(number(out), want, atol=2 ** -9 * k ** 0.5 * 4)
        made = problem(m, n, k, T.float32, "tf32", turned=(turned_a, turned_b), batch=(batch,) if batch > 1 else ())
        assert made.boxes["copied"] == ["a"] * (turned_a or k % 4 > 0) + ["b"] * (not turned_b or k % 4 > 0)


@pytest.mark.parametrize("by_tma", [False, True])
def test_tf32_keeps_what_is_not_finite(by_tma, cuda, hardware_tiles):
    """Also the NaN that GPUs make, whose bits are all ones."""
    x = np.eye(80, dtype=np.float32)
    x[range(4), range(4)] = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32).view(np.float32)
    found = choice.persistent(80, 80, 80, 1, H200, 4, 4) if by_tma else choice.plain("tf32", 80, 80, 80, 1, 4, H200)
    T.set_float32_matmul_precision("high")
    try:
        with tuner.forcing("matmul", found[0][1]), np.errstate(invalid="ignore"):
            out = number(from_array(x).to(cuda) @ T.ones(80, 80, device=cuda))
    finally:
        T.set_float32_matmul_precision("highest")
    np.testing.assert_array_equal(out[:5, 0], [np.nan, np.nan, np.inf, -np.inf, 1])


@pytest.mark.parametrize("change", ["nothing", "offset", "rows", "arch", "dtype"])
def test_tma_is_left_alone_where_it_cannot(change):
    made = problem(1 << 31 if change == "rows" else 4096, 4096, 4096,
                   T.float32 if change == "dtype" else T.bfloat16, machine=(132, 232448, 8 if change == "arch" else 9),
                   aligned=change != "offset", compiles=True)
    assert (change == "nothing") == any(c["kernel"] == "gluon" for c in made.candidates)
    by_tma = any(c["kernel"] in ("gluon", "parts_gluon") for c in made.candidates)
    assert (made.boxes is not None) == (change in ("nothing", "dtype")) == by_tma


def test_parts_of_float32_are_left_alone_beyond_the_reach_of_tma():
    for rows, near in ((4096, True), (1 << 31, False)):
        found = {c["kernel"] for c in problem(rows, 4096, 4096, T.float32, compiles=True).candidates}
        assert ("exact" in found) == ("exact_gluon" in found) == near


@pytest.mark.parametrize("turned_a, turned_b, n", [(False, False, 4096), (True, False, 4096), (False, True, 4096), (False, False, 4095)])
def test_tf32_computes_transposes_where_b_would_be_copied(turned_a, turned_b, n):
    """And TMA can read it; elsewhere, and for other kinds, it is copied or read as it is."""
    made = problem(4096, n, 4096, T.float32, "tf32", turned=(turned_a, turned_b), compiles=True)
    across = [c for c in made.candidates if c.get("ACROSS")]
    assert bool(across) == (n == 4096 and not turned_b) and not any(c.get("ACROSS") for c in problem(n, n, n, compiles=True).candidates)
    assert not across or made.boxes["copied"] == ["a"] * turned_a + ["b"] and made.candidates[0] in across
    assert {c["kernel"] for c in made.candidates} >= {"plain", "gluon", "persistent"}


def test_the_first_candidates():
    """What is likeliest: resident programs for large products, pieces of K where tiles are few, vectors for a row."""
    kernels = {size: [c["kernel"] for c in problem(*size, compiles=True, turned=(False, True)).candidates]
               for size in ((8192, 8192, 8192), (64, 4096, 4096), (1, 4096, 4096))}
    assert kernels[8192, 8192, 8192][0] == "gluon" and {"plain", "persistent"} <= set(kernels[8192, 8192, 8192])
    assert kernels[64, 4096, 4096][0] in ("plain", "small") and set(kernels[1, 4096, 4096]) == {"vector"}
    assert problem(64, 256, 4096).candidates[0]["splits"] > 1
    gradient = problem(768, 3072, 32768, compiles=True, turned=(True, False)).candidates        # 72 tiles for 132 multiprocessors
    assert gradient[0]["kernel"] == "gluon" and gradient[0]["STREAM"] and not all(c.get("STREAM") for c in gradient) and len(gradient) <= 16
    assert all(len(found) <= 24 for found in kernels.values())
    assert problem(1024, 1024, 1024, compiles=True).candidates[0]["kernel"] == "gluon"      # as long by TMA as without, counted so
    assert problem(32768, 2304, 768, compiles=True, turned=(False, True)).candidates[0]["PARTS"] == 3   # the second cache decides
    for activation in ("gelu_tanh", "gelu_tanh_backward"):               # two consumers, of which one multiplies meanwhile
        assert problem(32768, 3072, 768, compiles=True, turned=(False, True), fused=activation).candidates[0]["CONSUMERS"] == 2
    for size in ((4736, 768, 50304), (4352, 768, 50304), (768, 768, 32768)):                # less than a wave of tiles
        assert problem(*size, compiles=True).candidates[0]["STREAM"]
    for size in ((4096, 4096, 4096), (2048, 2048, 2048)):                # one consumer where waves are few
        first = problem(*size, compiles=True).candidates[0]
        assert (first["BLOCK_M"], first["BLOCK_N"], first["BLOCK_K"], first["PARTS"], first["STREAM"]) == (128, 256, 64, 1, False)


def test_what_a_size_in_a_table_stands_for():
    """Those of few tiles for what has the same powers of two; those of a large product for others up to four times as large."""
    def key(*size):
        return tuner.plain(problem(*size, compiles=True).key)

    apart = ((512, 512, 512), (1024, 1024, 1024)), ((64, 4096, 4096), (128, 4096, 4096)), ((64, 65536, 512), (128, 65536, 512))
    alike = ((1000, 1000, 1000), (1024, 1024, 3000)), ((4096, 4096, 4096), (4096, 8192, 2048)), ((8, 4096, 4096), (16, 4096, 4096))
    assert all(tuner.distance(key(*one), key(*other)) is None for one, other in apart)
    assert all(tuner.distance(key(*one), key(*other)) is not None for one, other in alike)


def test_few_rows_go_by_tma_in_joined_pieces():
    """64 x 4096 x 4096 in tiles of 32 columns was predicted to take 12.2 µs, each of which reads all rows, in two pieces of K 10.7."""
    for rows in (16, 32, 64, 128):
        first = problem(rows, 4096, 4096, compiles=True, turned=(False, True)).candidates[0]
        tiles, block = choice.tiles_of(rows, 4096, 1, first["BLOCK_M"], first["BLOCK_N"]), first["BLOCK_M"] * first["BLOCK_N"]
        assert first["kernel"] == "small" and 1 < first["splits"] and choice.joins(first["splits"], tiles, block)


def test_what_stores_more_than_it_multiplies():
    """Ways that store a tile beside the next one are tried; three consumers are not at a slope, where they are slow."""
    found = [problem(32768, 3072, 768, compiles=True, fused=fused).candidates for fused in (None, "gelu_tanh_backward")]
    for kind in (dict(CONSUMERS=2, BLOCK_M=64), dict(CONSUMERS=2, BLOCK_M=128), dict(WHOLE=True, PARTS=1)):
        assert all(any(kind.items() <= c.items() for c in candidates) for candidates in found)
    assert any(c.get("PARTS") == 3 for c in found[0]) and not any(c.get("PARTS") == 3 for c in found[1])


def test_sums_of_rows_leave_the_largest_tiles_alone():
    """ptxas has no registers for them there, and would wait for each product before the next."""
    with_sums, without = [problem(50304, 768, 32768, compiles=True, turned=(True, False), fused=fused).candidates
                          for fused in ("sums", None)]
    assert without[0]["PARTS"] == 3 and with_sums[0]["kernel"] == "gluon" and all(choice.leaves_room(c, "sums") for c in with_sums)


def test_candidates_fit_small_devices():
    for machine in (H200, (108, 166912, 8), (40, 101376, 8)):
        for kind, dtype in KINDS.items():
            for m, n, k in ((4096, 4096, 4096), (64, 4096, 512), (4096, 16, 4096), (17, 17, 17)):
                found = choice.plain(kind, m, n, k, 1, dtype.itemsize, machine)
                assert found or kind == "parts" and k < choice.LEAST_EXACT
                for _, c in found:
                    held = choice.held(c["num_stages"], machine)                     # as compiled: test_small_shared_memory.py
                    assert (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] * dtype.itemsize * held <= machine[1]


def test_split_k_is_deterministic_and_right(cuda, hardware_tiles):
    x, y = draw(20, 4000), draw(4000, 24, seed=1)
    first, second = [number(from_array(x).to(cuda) @ from_array(y).to(cuda)) for _ in range(2)]
    assert (first == second).all()
    np.testing.assert_allclose(first, x.astype(np.float64) @ y, atol=1e-3)


@pytest.mark.parametrize("candidate", [dict(kernel="plain", BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, num_warps=4, num_stages=3, splits=2),
                                       *[c for _, c in choice.persistent(4096, 4096, 4096, 1, H200, 2, 4)]], ids=lambda c: c["kernel"])
def test_a_wider_result(candidate, cuda, hardware_tiles):
    """Sums over pieces are kept in float32 beside 16-bit operands: out = a @ b + out."""
    a, b, start = [from_array(draw(*s)).to(cuda) for s in ((48, 64), (64, 32), (48, 32))]
    a, b, out = a.bfloat16(), b.bfloat16(), start.clone()
    with tuner.forcing("matmul", candidate):
        gemm.gemm(out, a, b, out)
    np.testing.assert_allclose(number(out), number(a) @ number(b) + number(start), rtol=1e-5, atol=1e-5)


def test_trials_leave_what_is_added_to_alone(cuda, hardware_tiles):
    """While candidates are timed, out = a @ b + out happens once."""
    a, b, start = [from_array(draw(*s)).to(cuda) for s in ((48, 64), (64, 32), (48, 32))]
    out = start.clone()

    def measure(family, key, candidates, run, *rest):
        for candidate in candidates:
            run(candidate)
        return candidates[0]

    with tuner.measuring(measure):
        gemm.gemm(out, a, b, out)
    np.testing.assert_allclose(number(out), number(a) @ number(b) + number(start), rtol=1e-5, atol=1e-5)
