"""Products beyond their sums on the GPU made of PTX: scales, 8-bit numbers, dropout, residuals, parts made in registers. What they are
compared with, which other tests run too, runs in lockstep."""
import numpy as np
import pytest

pytest.importorskip("triton")

from test_ptx_matrix import HALF, draw, gpu, lockstep, numbers, product, tiles  # noqa: E402, F401  gpu is a fixture

import tritorch as torch  # noqa: E402
from tritorch.cuda import tuner  # noqa: E402
from tritorch.ops.activation import gelu_tanh_backward  # noqa: E402
from tritorch.ops.draws import random_dropout  # noqa: E402
from tritorch.ops.feed_forward import ACTIVATIONS, linear_activation, linear_slope  # noqa: E402
from tritorch.ops.linear import linear, linear_gradients  # noqa: E402
from tritorch.ops.linear_residual import linear_residual  # noqa: E402


@pytest.mark.parametrize("kind", ["plain", "in parts", "persistent", "one consumer", "small", "small, in parts"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_dropout_and_residuals(gpu, kind, p):  # noqa: F811
    """The bits of the separate operators, by the same tiles."""
    (x, _), (w, _), (b, _), (residual, _) = [draw("bfloat16", *s) for s in ((150, 136), (264, 136), (264,), (150, 264))]
    with tuner.forcing("matmul", HALF[kind]):
        got = linear_residual(x, w, b, residual, p, 7, 1 << 33)
        with lockstep(gpu):
            want = linear(x, w, b)
            want = residual + (random_dropout(want, p, 7, 1 << 33) if p else want)
    np.testing.assert_array_equal(numbers(got), numbers(want))


@pytest.mark.parametrize("kind", ["plain", "persistent", "one consumer", "two consumers", "three consumers", "small"])
def test_what_is_added_or_has_a_slope(gpu, kind):  # noqa: F811
    """The bits of the separate operators; in place too."""
    shapes = (150, 72), (72, 264), (150, 264), (264,), (150, 264)
    (g, _), (w, _), (pre, _), (bias, _), (residual, _) = [draw("bfloat16", *s) for s in shapes]
    with tuner.forcing("matmul", HALF[kind]):
        slope = linear_slope(g, w, pre, "gelu_tanh")
        joined = linear_residual(g, w.mT, bias, residual)
        total = torch.addmm(pre, g, w)
        out = pre.clone().addmm_(g, w)
        with lockstep(gpu):
            product = g @ w
            slopes, sums = gelu_tanh_backward(product, pre), residual + linear(g, w.mT, bias)
    np.testing.assert_array_equal(numbers(slope), numbers(slopes))
    np.testing.assert_array_equal(numbers(joined), numbers(sums))
    np.testing.assert_array_equal(numbers(out), numbers(total))
    assert np.abs(numbers(total) - numbers(pre) - numbers(product)).max() <= 2.0 ** -6 * np.abs(numbers(total)).max()


def test_dropout_and_residuals_of_float32(gpu):  # noqa: F811
    """Where nothing is rounded to half a product and a sum must not become one fma."""
    x, w, b, residual = [torch.randn(*s, device="cuda") for s in ((2, 3, 4), (6, 4), (6,), (2, 3, 6))]
    got, want = linear_residual(x, w, b, residual, 0.25, 7, 5), residual + random_dropout(linear(x, w, b), 0.25, 7, 5)
    np.testing.assert_array_equal(numbers(got), numbers(want))


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "silu"])
def test_activations_of_float64(gpu, activation):  # noqa: F811
    """The bits of the separate operators, where the compiler may round a product and a sum once or twice."""
    forward, backward = ACTIVATIONS[activation]
    (x, _), (w, _), (b, _) = draw("float64", 20, 24), draw("float64", 72, 24), draw("float64", 72)
    with tuner.forcing("matmul", tiles("plain", 32, 64, 32, 4, num_stages=3, splits=1)):
        out, pre = linear_activation(x, w, b, activation)
        slope = linear_slope(x, w.mT, pre, activation)
        with lockstep(gpu):
            outs, slopes = forward(pre), backward(x @ w.mT, pre)
    np.testing.assert_array_equal(numbers(out), numbers(outs))
    np.testing.assert_array_equal(numbers(slope), numbers(slopes))


@pytest.mark.parametrize("kind", ["plain", "in parts", "persistent", "one consumer", "one consumer, stream", "two consumers"])
def test_gradients_of_weight_and_bias_are_added_to_sums(gpu, kind):  # noqa: F811
    """In place, with the bits of an addition by itself."""
    (g, _), (x, _) = draw("bfloat16", 208, 144), draw("bfloat16", 208, 264)
    (weight, _), (bias, _) = draw("float32", 144, 264), draw("float32", 144)
    with tuner.forcing("matmul", HALF[kind]):
        with lockstep(gpu):
            want = [a + b for a, b in zip((weight, bias), linear_gradients(g, x, torch.float32))]
        linear_gradients.into((weight, bias), g, x, torch.float32, weight, bias)
    for found, expected in zip((weight, bias), want):
        np.testing.assert_array_equal(numbers(found), numbers(expected))


def test_float32_from_parts_made_in_registers(gpu):  # noqa: F811
    for blocks in ((64, 32, 32, 4), (32, 64, 16, 4)):
        product("float32", tiles("parts", *blocks, num_stages=3, splits=1), 70, 50, 300, epsilon=2.0 ** -20)


WHOLE = {
    "plain": tiles("plain", 64, 64, 64, 4, num_stages=3, splits=1),
    "persistent": tiles("persistent", 128, 64, 128, 4, num_stages=4, PIECES=1),
    "gluon": tiles("gluon", 128, 256, 128, 8, STAGES=3, PIECES=4, CONSUMERS=1, PARTS=1, STREAM=False),
    "gluon, two consumers": tiles("gluon", 128, 128, 128, 4, STAGES=3, PIECES=2, CONSUMERS=2, PARTS=1, STREAM=False),
    "gluon, three consumers": tiles("gluon", 64, 256, 64, 4, STAGES=6, PIECES=8, CONSUMERS=1, PARTS=3, STREAM=False),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_int8(gpu, kind):  # noqa: F811
    a, b = [np.random.default_rng(i).integers(-128, 128, s).astype(np.int8) for i, s in enumerate(((150, 208), (272, 208)))]
    with tuner.forcing("matmul", WHOLE[kind]):
        got = torch._int_mm(torch.tensor(a).cuda(), torch.tensor(b).cuda().mT)
    np.testing.assert_array_equal(got.cpu().numpy(), a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("fast", [False, True])
def test_float8(gpu, kind, fast):  # noqa: F811
    """Rows and columns with scales; sums of a block have the bits of the matrix units, those of all of K only where that was asked for."""
    if kind.startswith("gluon") and not fast:
        pytest.skip("its sums are those of the matrix units")
    (a, left), (b, right), (bias, more) = draw("float8_e4m3fn", 150, 208), draw("float8_e5m2", 272, 208), draw("float32", 272)
    scale_a, scale_b = torch.rand(150, 1) + 0.5, torch.rand(1, 272) + 0.5
    with tuner.forcing("matmul", WHOLE[kind]):
        got = torch._scaled_mm(a, b.mT, scale_a.cuda(), scale_b.cuda(), bias, None, torch.float32, fast)
    want = left @ right.T * numbers(scale_a) * numbers(scale_b) + more
    size = np.abs(left) @ np.abs(right.T) * numbers(scale_a) * numbers(scale_b) + np.abs(more)
    error = np.abs(numbers(got) - want) / size
    assert error.max() <= (2.0 ** -22 if kind == "plain" else 2.0 ** -11 if fast else 2.0 ** -12)
    assert kind == "plain" or error.max() > 2.0 ** -18                   # 13 bits show
