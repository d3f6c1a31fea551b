"""Products by pairs of programs that share b (triton_kernels/matmul_cluster.py) on the GPU made of PTX: against float64, and with the bits
of the same tiles of one program each. What nobody writes is NaN there."""
import os

import numpy as np
import pytest

pytest.importorskip("triton")

from test_ptx_matrix import EPSILON, close, draw, lockstep, numbers, tiles  # noqa: E402

import tritorch as torch  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.ops.feed_forward import linear_activation  # noqa: E402
from tritorch.ops.gemm import gemm  # noqa: E402
from tritorch.ops.gemm_pairs import PAIRED  # noqa: E402
from tritorch.ops.linear_residual import linear_residual  # noqa: E402
from tritorch.testing.ptx import bindings  # noqa: E402
from tritorch.testing.ptx.device import simulate  # noqa: E402

# rings that go around more than once
KINDS = {f"{m}x{n}x{k}, {c}, {p}": tiles("gluon", m, n, k, 8 if c * p == 1 else 4, STAGES=3, PIECES=n // 64, CONSUMERS=c, PARTS=p,
                                         STREAM=False) for m, n, k, c, p in PAIRED}
TWO, WIDE, ONE, THREE, FLAT = KINDS
LAYOUTS = {"nn": (False, False), "tn": (True, False), "nt": (False, True)}


@pytest.fixture(scope="module")
def gpu():
    """Five multiprocessors, of which pairs take four."""
    if os.environ.get("TRITORCH_PTX"):
        pytest.skip("the whole suite runs on it")
    few = bindings._GPUS | {90: bindings._GPUS[90] | {"MULTIPROCESSOR_COUNT": 5}}
    with pytest.MonkeyPatch.context() as patch, simulate(90) as gpu:
        patch.setattr(bindings, "_GPUS", few)
        yield gpu


def by_both(gpu, kind, call):
    """What a call gives, by pairs; the bits of single programs."""
    with tuner.forcing("matmul", {**KINDS[kind], "CLUSTER": 2}):
        pairs = call()
    with lockstep(gpu), tuner.forcing("matmul", KINDS[kind]):
        alone = call()
    for found, expected in zip(pairs, alone, strict=True):
        np.testing.assert_array_equal(numbers(found), numbers(expected))
        assert not np.isnan(numbers(found)).any()
    return pairs


def product(gpu, kind, m, n, k, layout="nn"):
    turned_a, turned_b = LAYOUTS[layout]
    a, left = draw("bfloat16", *((k, m) if turned_a else (m, k)))
    b, right = draw("bfloat16", *((n, k) if turned_b else (k, n)))
    a, left = (a.mT, left.T) if turned_a else (a, left)
    b, right = (b.mT, right.T) if turned_b else (b, right)
    out, = by_both(gpu, kind, lambda: [a @ b])
    close(out, left @ right, np.abs(left) @ np.abs(right) / np.sqrt(k), 2 * EPSILON["bfloat16"])


@pytest.mark.parametrize("kind, shape, layout", [
    (TWO, (264, 136, 200), "nn"), (TWO, (136, 136, 264), "tn"), (WIDE, (200, 264, 200), "nt"), (ONE, (136, 264, 264), "tn"),
    (THREE, (200, 264, 200), "nn"), (FLAT, (200, 136, 168), "nt")])
def test_products(gpu, kind, shape, layout):
    """Odd numbers of rows of tiles, whose last has a neighbour of zeros; one column of tiles and several; more tiles than programs."""
    product(gpu, kind, *shape, layout)


@pytest.mark.parametrize("kind, shape", [(TWO, (72, 72, 72)), (ONE, (8, 8, 72))])
def test_one_tile_has_a_neighbour_of_zeros(gpu, kind, shape):
    product(gpu, kind, *shape)


def test_matrices_one_after_the_other(gpu):
    """No pair has tiles of two of them; a is one for all of them."""
    (a, left), (b, right) = draw("bfloat16", 264, 72), draw("bfloat16", 2, 72, 72)
    out, = by_both(gpu, TWO, lambda: [a @ b])
    close(out, left @ right, np.abs(left) @ np.abs(right) / np.sqrt(72), 2 * EPSILON["bfloat16"])


def test_activations_and_residuals(gpu):
    """A bias and gelu with what is before it; a residual, which comes by TMA."""
    (x, left), (w, right), (bias, more), (added, _) = [draw("bfloat16", *s) for s in ((136, 72), (72, 72), (72,), (136, 72))]
    out, pre = by_both(gpu, TWO, lambda: linear_activation(x, w, bias, "gelu_tanh"))
    close(pre, left @ right.T + more, np.abs(left) @ np.abs(right.T) / np.sqrt(72) + np.abs(more), 2 * EPSILON["bfloat16"])
    by_both(gpu, TWO, lambda: [linear_residual(x, w, bias, added)])


def test_sums_of_rows_and_wider_results(gpu):
    (a, left), (b, right) = draw("bfloat16", 136, 136), draw("bfloat16", 136, 136)

    def call():
        out, sums = torch.empty(136, 136, device="cuda"), torch.full((136,), float("nan"), device="cuda")
        gemm(out, a.mT, b, row_sums=sums)
        return out, sums

    out, sums = by_both(gpu, ONE, call)
    close(out, left.T @ right, np.abs(left.T) @ np.abs(right) / np.sqrt(136), 2.0 ** -18)
    close(sums, left.sum(0), np.abs(left).sum(0), 2.0 ** -20)


def test_graphs(gpu):
    (x, left), (w, right) = draw("bfloat16", 136, 72), draw("bfloat16", 72, 72)
    with tuner.forcing("matmul", {**KINDS[TWO], "CLUSTER": 2}):
        out = torch.empty(136, 72, dtype=torch.bfloat16, device="cuda")
        torch.mm(x, w, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(x, w, out=out)
        out.zero_()
        graph.replay()
    close(out, left @ right, np.abs(left) @ np.abs(right) / np.sqrt(72), 2 * EPSILON["bfloat16"])
