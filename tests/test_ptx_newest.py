"""One of each family of compiled kernels on the GPU made of PTX: CI runs these with the newest Triton, the other tests of that GPU, of
which these are a small part, with the oldest."""
import numpy as np
import pytest

triton = pytest.importorskip("triton")

from optimizers import assert_near, trajectory  # noqa: E402
from test_ptx_matrix import EPSILON, HALF, TOGETHER, WAYS, gpu, product, same_as_float64, tiles  # noqa: E402, F401  gpu is a fixture
from test_ptx_pairs import TWO  # noqa: E402
from test_ptx_pairs import product as product_by_pairs  # noqa: E402

import tritorch as torch  # noqa: E402
import tritorch.nn  # noqa: E402
import tritorch.optim  # noqa: E402,F401
from tritorch.cuda import ahead, tuner  # noqa: E402
from tritorch.nn import functional as F  # noqa: E402
from tritorch.testing import samples  # noqa: E402

OLDEST = "3.6"
pytestmark = [pytest.mark.smoke, pytest.mark.skipif(triton.__version__.startswith(OLDEST), reason=f"with {OLDEST} all others run")]


@pytest.mark.parametrize("names", [
    "add floor_divide concatenated gather", "sum argmax variance cumsum linear_recurrence", "softmax layer_norm_rows batch_norm_train",
    "cross_entropy_rows random_normal rotary_embedding max_pool", "sorted_first nonzero_places index_add"])
def test_operators(gpu, names):  # noqa: F811
    with ahead.staying(), torch.no_grad():
        for op in map(torch.dispatch.registry.get, names.split()):
            args = next(args for args in samples.samples_of(op, torch.bfloat16) if all(t.numel() for t in samples.tensors_in(args)))
            want = samples.results(op(*samples.leaves(args)))
            got = samples.results(op(*samples.leaves(args, torch.device("cuda:0"))))
            for have, expect in zip(got, want, strict=True):
                samples.assert_near(have, expect, samples.describe(op, args), samples.tolerance(have.dtype))


def test_an_optimizer(gpu):  # noqa: F811
    assert_near(*[trajectory(torch, "AdamW", {"fused": True}, steps=2, device=device) for device in ("cpu", "cuda")], 3e-6)


def test_a_function_that_libdevice_calls(gpu):  # noqa: F811
    """The cosine of a large angle reduces it in a function of its own."""
    angles = np.array([1e22, -3e5, 0.5])
    np.testing.assert_allclose(torch.tensor(angles, device="cuda").cos().cpu().numpy(), np.cos(angles), rtol=1e-14)


@pytest.mark.parametrize("kind", ["plain", "persistent", "one consumer", "small"])
def test_products(gpu, kind):  # noqa: F811
    product("bfloat16", HALF[kind], 136, 136, 136)


def test_products_of_float32(gpu):  # noqa: F811
    product("float32", tiles("exact_gluon", 128, 128, 32, 4, STAGES=4), 72, 72, 72, epsilon=16 * EPSILON["float32"])


def test_products_by_pairs(gpu):  # noqa: F811
    product_by_pairs(gpu, TWO, 72, 72, 72)


@pytest.mark.parametrize("way, rows", [("plain", 72), ("gluon", 136)])
def test_attention(gpu, way, rows):  # noqa: F811
    """Forward, and the gradients by one kernel, in which two blocks of keys take turns."""
    backward = TOGETHER[0 if way == "gluon" else 2][0]
    with tuner.forcing("attention_forward", WAYS[way][0]), tuner.forcing("attention_backward", backward):
        same_as_float64(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(1, 1, rows, 64)] * 3)


def test_a_convolution(gpu):  # noqa: F811
    same_as_float64(lambda x, w: F.conv2d(x, w, padding=1), (1, 16, 5, 4), (16, 16, 3, 3))
