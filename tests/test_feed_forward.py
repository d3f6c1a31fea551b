"""Products with activations fused behind them: the bits of the separate operators, from every kernel that can do it."""
import numpy as np
import pytest
from arrays import draw_tensor, same_numbers

import tritorch as T
from tritorch.cuda import tuner
from tritorch.ops import feed_forward as family
from tritorch.ops.linear import linear

PLAIN = dict(kernel="plain", BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, num_warps=4, num_stages=3)
KERNELS = {
    "plain": (T.bfloat16, (37, 72), dict(**PLAIN, splits=1)), "split": (T.bfloat16, (37, 200), dict(**PLAIN, splits=3)),
    "persistent": (T.bfloat16, (200, 72),
                   dict(kernel="persistent", BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3, PIECES=2)),
    "exact": (T.float32, (40, 300), dict(kernel="exact", BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=2)),
    "vector": (T.float32, (1, 72), dict(kernel="vector", BLOCK_N=16, BLOCK_K=64, num_warps=4, splits=1)),
    "float64": (T.float64, (37, 72), dict(**PLAIN, splits=1)),
}


@pytest.mark.parametrize("activation", family.ACTIVATIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bits_of_the_separate_operators(kernel, activation, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    dtype, (rows, k), candidate = KERNELS[kernel]
    n, (forward, backward) = 136, family.ACTIVATIONS[activation]
    x, w, b, g = [draw_tensor(*s, dtype=dtype).to(cuda) for s in ((rows, k), (n, k), (n,), (rows, k))]
    with tuner.forcing("matmul", candidate):
        out, pre = family.linear_activation(x, w, b, activation)
        slope = family.linear_slope(x, w.mT, pre, activation)
        same_numbers(pre, linear(x, w, b))
        product = linear(x, w)
    same_numbers(out, forward(pre))
    same_numbers(slope, backward(product, pre))


@pytest.mark.parametrize("activation", family.ACTIVATIONS)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_feed_forward_is_the_chain(activation, biases, device, cuda):
    there = "cpu" if device == "cpu" else cuda
    arrays = [draw_tensor(*s, seed=k) for k, s in enumerate(((4, 5, 6), (9, 6), (9,), (7, 9), (7,)))]
    ours, chain = [[a.to(there).requires_grad_() for a in arrays] for _ in range(2)]
    forward = family.ACTIVATIONS[activation][0]
    values, (x, w1, b1, w2, b2) = [[v if biases or v.ndim > 1 else None for v in leaves] for leaves in (ours, chain)]
    got = T.nn.functional.feed_forward(*values, activation)
    want = linear(forward(linear(x, w1, b1)), w2, b2)
    same_numbers(got, want)
    weights = draw_tensor(4, 5, 7, seed=9).to(there)
    (got * weights).sum().backward()
    (want * weights).sum().backward()
    for a, b in zip(ours, chain):
        if a.grad is not None or b.grad is not None:
            np.testing.assert_allclose(a.grad.cpu().array, b.grad.cpu().array, rtol=1e-5, atol=1e-6)


def test_a_strided_destination(cuda):
    x, w = draw_tensor(6, 4).to(cuda), draw_tensor(5, 4).to(cuda)
    want = family.linear_activation(x, w)
    out, pre = T.empty(5, 6, device=cuda).mT, T.empty(6, 5, device=cuda)
    family.linear_activation.into((out, pre), x, w)
    same_numbers(out, want[0])
    same_numbers(pre, want[1])


def test_autocast_casts_it(cuda):
    x, w = draw_tensor(6, 4).to(cuda), draw_tensor(5, 4).to(cuda)
    with T.autocast("cuda", dtype=T.bfloat16):
        assert T.nn.functional.feed_forward(x, w, None, w.mT, None).dtype is T.bfloat16
