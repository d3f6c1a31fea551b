"""Matrix products of unusual sizes: rows that TMA cannot step over, products smaller than a tile, sums of many parts."""
import numpy as np
import pytest
from arrays import draw
from test_gemm import H200, gaps, number, problem, turned

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import gemm
from tritorch.ops import gemm_choice as choice
from tritorch.tensor import from_array


@pytest.fixture
def hardware_tiles(monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)


@pytest.mark.parametrize("dtype, m, n, k", [(T.bfloat16, 77, 99, 101), (T.float32, 77, 99, 101), (T.bfloat16, 72, 99, 104),
                                            (T.bfloat16, 77, 96, 101)])
@pytest.mark.parametrize("f, g", [(T.Tensor.contiguous, T.Tensor.contiguous), (turned, gaps), (gaps, turned)])
def test_rows_that_tma_cannot_step_over(dtype, m, n, k, f, g, cuda, hardware_tiles):
    """Operands are copied to where it can, a result is copied from there, with all that is fused behind the sums."""
    x, y, c = [from_array(v).to(dtype) for v in (draw(m, k), draw(k, n, seed=1), draw(m, n, seed=2))]
    a, b, added = f(x.to(cuda)), g(y.to(cuda)), g(c.to(cuda))
    want = number(x).astype(np.float64) @ number(y) + number(c)
    size = dtype.itemsize
    T.set_float32_matmul_precision("high")
    try:
        for _, candidate in choice.persistent(m, n, k, 1, H200, size, size):
            with tuner.forcing("matmul", candidate):
                out, pre = T.empty(m, n, dtype=dtype, device=cuda), T.empty(m, n, dtype=dtype, device=cuda)
                gemm.gemm(out, a, b, added, activation="relu", pre=pre)
            np.testing.assert_allclose(number(pre), want, atol=0.15, rtol=1e-2)
            np.testing.assert_array_equal(number(out), np.maximum(number(pre), 0))
    finally:
        T.set_float32_matmul_precision("highest")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, across", [(T.bfloat16, False), (T.float32, False), (T.float32, True)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_results_that_tma_cannot_store(dtype, across, batch, cuda):
    """Rows of odd length, of a matrix that holds more: nothing beside them is touched."""
    m, n, k, size = 150, 299, 72, dtype.itemsize
    x, y, c = [from_array(v).to(dtype) for v in (draw(*batch, m, k), draw(*batch, k, 300, seed=1), draw(n, seed=2))]
    a, b, added = x.to(cuda), (y.to(cuda) if across else turned(y.to(cuda)))[..., :n], c.to(cuda)
    want = number(x).astype(np.float64) @ number(y)[..., :n] + number(c)
    T.set_float32_matmul_precision("high")
    try:
        found = [c for _, c in choice.gluon(m, n, k, 2, H200, size, size, across=across) if not c["STREAM"]]
        for candidate in {(c["CONSUMERS"], c["PARTS"]): c for c in found}.values():
            wide, pre = [T.full((*batch, m, n + 2), 7.0, dtype=dtype, device=cuda) for _ in range(2)]
            with tuner.forcing("matmul", candidate):
                gemm.gemm(wide[..., :n], a, b, added, activation="relu", pre=pre[..., :n])
            np.testing.assert_allclose(number(pre)[..., :n], want, atol=0.15, rtol=1e-2)
            np.testing.assert_array_equal(number(wide)[..., :n], np.maximum(number(pre)[..., :n], 0))
            assert (number(wide)[..., n:] == 7).all() and (number(pre)[..., n:] == 7).all()
    finally:
        T.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("layout", [(False, False), (False, True), (True, False)])
def test_large_products_of_odd_rows_go_by_tma(layout):
    """Which reads each number twice more, where otherwise one is loaded at a time."""
    made = problem(8192, 768, 50257, compiles=True, turned=layout)
    assert made.candidates[0]["kernel"] == "gluon" and made.boxes["copied"] == ["a"] * (not layout[0]) + ["b"] * layout[1]
    assert not made.boxes["leaves"] and problem(8192, 50257, 768, compiles=True).boxes["leaves"]


SMALL = [((5, 3, 3), (5, 3, 3)), ((2, 1, 4, 7), (3, 7, 5)), ((300, 2), (2, 3)), ((1, 9), (9, 1)), ((2, 70, 1), (1, 50)),
         ((3, 4, 0), (3, 0, 2))]


@pytest.mark.parametrize("a, b", SMALL)
@pytest.mark.parametrize("dtype", [T.float32, T.bfloat16, T.float64, T.int32, T.int8])
def test_a_thread_for_each_element(a, b, dtype, cuda, hardware_tiles):
    """With all that is fused behind the sums, for operands of any strides."""
    scale = 1 if dtype.is_floating_point else 3
    x, y, c = [from_array(np.round(8 * v) / 8 if scale == 1 else np.round(3 * v)).to(dtype) for v in
               (draw(*a), draw(*b, seed=1), draw(b[-1], seed=2))]
    want = np.matmul(number(x).astype(np.float64), number(y)) * 2 + 3 * number(c)
    want = want if scale == 1 else want.astype(dtype.numpy)                                   # integers wrap
    candidate = choice.each(3, 3, 3, 1, H200)[0][1]
    for f, g in ((T.Tensor.contiguous, T.Tensor.contiguous), (turned, gaps), (gaps, turned)):
        p, q, added = f(x.to(cuda)), g(y.to(cuda)), c.to(cuda)
        out, pre = [turned(T.empty(want.shape, dtype=dtype, device=cuda)) if want.size else T.empty(want.shape, dtype=dtype, device=cuda)
                    for _ in range(2)]
        with tuner.forcing("matmul", candidate):
            gemm.gemm(out, p, q, added, 2, 3, activation="relu" if scale == 1 else None, pre=pre if scale == 1 else None)
        np.testing.assert_allclose(number(pre if scale == 1 else out), want, rtol=8e-3 if dtype is T.bfloat16 else 1e-6, atol=1e-6)
        if scale == 1:
            np.testing.assert_array_equal(number(out), np.maximum(number(pre), 0))


def test_small_products_of_large_batches_have_no_tile_each():
    """100 000 products of 3 x 3 were predicted to take 1869 µs in a tile of 32 x 32 each."""
    def first(*size, **more):
        return problem(*size, **more).candidates[0]

    assert first(3, 3, 3, T.float32, batch=(100_000,))["kernel"] == "each"
    assert first(32, 32, 32, batch=(4096,))["num_warps"] == 1 and first(16, 16, 16, batch=(16384,))["BLOCK_M"] == 16
    assert first(60, 60, 60, T.float32, batch=(1024,))["num_warps"] == 1
    assert first(64, 64, 64, T.float32, batch=(1024,))["kernel"] == "parts" and first(64, 784, 128, T.float32)["num_warps"] > 1
    assert first(64, 128, 784)["num_warps"] > 1 and first(1 << 20, 1, 64, T.float32)["BLOCK_K"] == 4
    assert first(64, 64, 1 << 20, T.float32, turned=(True, False))["splits"] == choice.MOST_SPLITS
