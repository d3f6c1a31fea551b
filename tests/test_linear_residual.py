"""An affine map with dropout and a residual behind it: the bits of the separate operators, from every kernel that can do it."""
import numpy as np
import pytest
from arrays import draw_tensor, same_numbers

import tritorch as T
from tritorch.cuda import ahead, tuner
from tritorch.nn import functional as F
from tritorch.ops import gemm_choice as choice
from tritorch.ops import gemm_run
from tritorch.ops import linear_residual as linear_residual_module
from tritorch.ops.draws import random_dropout
from tritorch.ops.linear import linear
from tritorch.ops.linear_residual import linear_residual

PLAIN = dict(kernel="plain", BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, num_warps=4, num_stages=3)
TMA = dict(kernel="persistent", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=4)
KERNELS = {
    "plain": (T.bfloat16, (37, 72), dict(**PLAIN, splits=1)), "split": (T.bfloat16, (37, 200), dict(**PLAIN, splits=3)),
    "persistent": (T.float16, (200, 72), dict(**TMA, PIECES=1)),
    "pieces": (T.bfloat16, (200, 72), dict(**TMA, PIECES=2)),
    "exact": (T.float32, (40, 300), dict(kernel="exact", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=2)),
    "float64": (T.float64, (37, 72), dict(**PLAIN, splits=1)), "row": (T.float32, (1, 72), dict(**PLAIN, splits=1)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("p, seed, offset", [(0.0, 0, 0), (0.3, 7, 0), (0.5, -(1 << 40) - 3, (1 << 33) + 5)])
@pytest.mark.parametrize("adds", [True, False])
def test_the_bits_of_the_separate_operators(kernel, p, seed, offset, adds, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    monkeypatch.setattr(gemm_run, "sm_count", lambda: 3)
    dtype, (rows, k), candidate = KERNELS[kernel]
    x, w, b, residual = [draw_tensor(*s, dtype=dtype).to(cuda) for s in ((rows, k), (136, k), (136,), (rows, 136))]
    with tuner.forcing("matmul", candidate):
        for bias in (b, None):
            got = linear_residual(x, w, bias, residual if adds else None, p, seed, offset)
            want = linear(x, w, bias)
            want = random_dropout(want, p, seed, offset) if p else want
            same_numbers(got, residual + want if adds else want)


@pytest.mark.parametrize("adds", [True, False])
def test_numbers_that_lie_in_memory(adds, cuda):
    """As a captured graph draws: seed and offset are there, the argument counts on from it."""
    x, w, residual = [draw_tensor(*s, seed=2).to(cuda) for s in ((5, 12), (10, 12), (5, 10))]
    base = T.tensor([-(1 << 35) - 9, 1 << 34], dtype=T.int64, device=cuda)
    got = linear_residual(x, w, None, residual if adds else None, 0.4, 0, 12, base)
    want = random_dropout(linear(x, w), 0.4, 0, 12, base)
    same_numbers(got, residual + want if adds else want)


def test_seeds_and_offsets_of_repeated_calls(cuda, monkeypatch):
    """Kernels get them in halves; a later call hands over its own without running the implementation."""
    x, w, residual = [draw_tensor(*s, seed=2).to(cuda) for s in ((5, 12), (10, 12), (5, 10))]
    with ahead.staying():
        linear_residual(x, w, None, residual, 0.4, 3, 1)
        monkeypatch.setattr(linear_residual_module, "gemm", None)        # who runs the implementation again fails
        for seed, offset in ((3, 1), (3, 2), (-(1 << 40) - 3, (1 << 33) + 5), (1, 16)):
            got = linear_residual(x, w, None, residual, 0.4, seed, offset)
            same_numbers(got, residual + random_dropout(linear(x, w), 0.4, seed, offset))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("p, training", [(0.5, True), (0.5, False), (0.0, True), (1.0, True)])
def test_the_function_is_the_chain(p, training, device, cuda):
    there = cuda if device == "cuda" else "cpu"
    shapes = (2, 3, 8), (6, 8), (6,), (2, 3, 6)
    leaves = [[draw_tensor(*s, seed=k).to(there).requires_grad_() for k, s in enumerate(shapes)] for _ in range(2)]
    outs = []
    for fused, (x, w, b, residual) in zip((True, False), leaves):
        draws = T.Generator(there).manual_seed(3)
        outs.append(F.linear_dropout_add(x, w, b, residual, p, training, generator=draws) if fused else
                    residual + F.dropout(F.linear(x, w, b), p, training, generator=draws))
    same_numbers(*outs)
    for out in outs:
        (out * draw_tensor(2, 3, 6, seed=9).to(there)).sum().backward()
    for ours, theirs in zip(*leaves):
        np.testing.assert_allclose(ours.grad.cpu().array, theirs.grad.cpu().array, rtol=1e-5, atol=1e-6)


def test_tiles_with_registers_left_are_proposed():
    """Drawing numbers takes registers: compiled for sm_90, the tiles that are left out spill them."""
    machine = (132, 232448, 9)
    left = {name: [(c["BLOCK_M"], c["BLOCK_N"], c.get("CONSUMERS")) for _, c in getattr(choice, name)(16384, 768, 3072, 1, machine)
                   if choice.leaves_room(c) and not c.get("STREAM")] for name in ("gluon", "persistent")}
    assert left == {"gluon": [(128, 256, 1), (256, 128, 1), (128, 256, 1), (128, 256, 1), (64, 256, 2), (128, 128, 1), (128, 64, 1),
                              (64, 128, 1)],
                    "persistent": [(128, 128, None), (128, 64, None)]}
