"""The edges of operators against PyTorch, on the CPU and on a CUDA device: infinite gradients, NaN as a bound, ties by the ten thousand,
signs of zeros, nothing at all."""
import numpy as np
import pytest
from oracle import agree

import tritorch
from tritorch.ops import monoids, scan, tiling

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return cuda if request.param == "cuda" else "cpu"


def gradients(f):
    """A program of inputs and, last, the gradient that arrives at f's result."""
    def program(lib, *inputs):
        *inputs, g = inputs
        leaves = [x.detach().requires_grad_() for x in inputs]
        return lib.autograd.grad(f(lib, *leaves), leaves, g)

    return program


ARRIVING = {
    "pow(x, 0)": (lambda lib, x: x ** 0, [1.0, 2.0]),
    "maximum": (lambda lib, x, y: lib.maximum(x, y), [1.0, 2.0, NAN, 3.0, 2.0], [1.0, 3.0, 1.0, 2.0, NAN]),
    "minimum": (lambda lib, x, y: lib.minimum(x, y), [1.0, 2.0, NAN, 3.0, 2.0], [1.0, 3.0, 1.0, 2.0, NAN]),
    "xlogy": (lambda lib, x, y: lib.xlogy(x, y), [0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 3.0, 2.0]),
    "xlogy of a number": (lambda lib, x: lib.xlogy(x, 0.0), [0.0, 1.0, 2.0, -1.0]),
    "logaddexp": (lambda lib, x, y: lib.logaddexp(x, y), [INF, -INF, 1.0, INF, 500.0], [INF, -INF, 1.0, -INF, -500.0]),
    "logaddexp2": (lambda lib, x, y: lib.logaddexp2(x, y), [INF, -INF, 1.0, INF, 500.0], [INF, -INF, 1.0, -INF, -500.0]),
    "atan2": (lambda lib, x, y: lib.atan2(x, y), [0.0, 3.0, -0.0], [0.0, 4.0, -1.0]),
    "clamp": (lambda lib, x: x.clamp(1, 2), [0.0, 1.0, 1.5, 2.0, NAN]),
}


@pytest.mark.parametrize("name", ARRIVING)
def test_gradients_where_something_is_infinite(name, device):
    f, *inputs = ARRIVING[name]
    for g in (1.0, 0.0, INF):
        arrays = [np.array(x, np.float32) for x in (*inputs, [g] * len(inputs[0]))]
        agree(gradients(f), *arrays, device=device, what=f"{name} {g}", signs=False)


def test_more_ties_than_float16_counts(device):
    for f in (lambda lib, x: x.amax(), lambda lib, x: lib.linalg.vector_norm(x, INF), lambda lib, x: x.reshape(2, -1).amin(0).sum()):
        agree(gradients(f), (np.ones(70000), "float16"), (np.array(100.0), "float16"), device=device)


def test_a_nan_as_a_bound(device):
    """Not held against PyTorch, whose 2.11 left values alone where a single bound is NaN."""
    for bounds in ((NAN, 3.0), (0.0, NAN), (None, NAN), (NAN, None)):
        assert tritorch.tensor([1.0, -2.0, NAN], device=device).clamp(*bounds).isnan().all()


def test_whole_numbers_to_negative_powers(device):
    base, exponent = np.meshgrid(np.arange(-3, 4), np.arange(-4, 4))
    for kind in ("int64", "int32", "int8"):
        agree(lambda lib, x, y: x ** y, (base, kind), (exponent, kind), device=device)
        agree(lambda lib, y: 2 ** y, (exponent, kind), device=device)


def test_rounding_before_the_point(device):
    agree(lambda lib, x: x.round(decimals=-3), np.array([7300.0, 12500.0, -499.0, INF], np.float32), device=device, rtol=0)


def test_signs_of_zeros(device):
    x, y = np.meshgrid(np.array([0.0, -0.0, 1.0, -1.0, 3.0, -3.0], np.float32), np.array([3.0, -3.0, INF, -INF], np.float32))
    for name in ("remainder", "fmod", "floor_divide"):
        agree(lambda lib, x, y, name=name: getattr(lib, name)(x, y), x, y, device=device, what=name)


def test_gradients_beside_what_is_infinite_or_no_number(device):
    for values in ([INF, 1.0, -2.0], [NAN, 1.0, -2.0], [1.0, -INF, INF], [-2.0, NAN, 1.0]):
        for name, f in {"logcumsumexp": lambda lib, x: x.logcumsumexp(0), "norm": lambda lib, x: (x.norm(-INF), x.norm(INF)),
                        "quantile": lambda lib, x: x.quantile(0.25)}.items():
            agree(f, np.array(values, np.float32), grad=True, device=device, what=f"{name} of {values}")


def test_slopes_at_zeros_of_both_signs(device):
    for name in ("sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "abs"):
        agree(lambda lib, x, name=name: getattr(lib, name)(x), np.array([0.0, -0.0, 4.0], np.float32), grad=True, device=device, what=name)


def test_nothing_to_integrate(device):
    for n in (0, 1, 2):
        agree(lambda lib, y: (lib.trapezoid(y), lib.cumulative_trapezoid(y)), np.ones(n, np.float32), device=device)


def test_a_histogram_of_an_empty_range_is_that_of_the_data():
    agree(lambda lib, x: x.histc(4, 2, 2), np.array([1.0, 2.0, 5.0], np.float32))


def test_searching_in_a_number():
    agree(lambda lib, x: lib.searchsorted(x, x), np.array(1.0, np.float32))


def test_an_infinite_factor_in_front_of_a_recurrence(device):
    """Nothing is multiplied by the first factor, so it must not reach the gradients."""
    a, b = tritorch.tensor([INF, 2.0, 3.0], device=device), tritorch.tensor([1.0, 1.0, 1.0], device=device, requires_grad=True)
    scan.linear_recurrence(a, b, 0).sum().backward()
    assert b.grad.tolist() == [9.0, 4.0, 1.0]


@pytest.mark.parametrize("columns", [(1 << 31) - (1 << 20) - 64, 3 << 30])
def test_pieces_that_end_behind_31_bits_are_counted_in_64(columns, cuda, monkeypatch):
    """The last piece of a row of just under 2³¹ elements ends above, and an expanded row is long though its memory is not."""
    launched = []
    for module in (monoids, scan):
        monkeypatch.setattr(module, "launch", lambda kernel, grid, *args, **kw: launched.append(kw.get("WIDE")))
        monkeypatch.setattr(module, "tile", lambda gpu, simulated: gpu)
        monkeypatch.setattr(module, "sm_count", lambda: 132)
    x = tritorch.ones(1, device=cuda).expand(columns)
    monoids.reduce_rows([tritorch.empty((), device=cuda)], [x], (0,), False, monoids.Monoid("sum", "sum"), tritorch.float32)
    assert launched[0] is True
    launched.clear()
    scan.scan_rows([x], [x], 0, "sum", "sum", "first", (None,), tritorch.float32)
    assert launched[0] is True


# ------------------------------------------------------------------ shapes and layouts
def test_triangles_into_any_layout(device):
    for f in ("tril", "triu"):
        agree(lambda lib, x, out, f=f: getattr(lib, f)(x.t(), out=out.t()), np.arange(6, dtype=np.float32).reshape(2, 3),
              np.zeros((2, 3), np.float32), device=device)


def test_an_empty_out_takes_the_size_asked_for(device):
    for f in (lambda lib, x: lib.zeros(2, 3, out=x), lambda lib, x: lib.ones(2, out=x), lambda lib, x: lib.full((2,), 3.0, out=x),
              lambda lib, x: lib.empty(2, 3, out=x).shape):
        agree(f, np.ones(0, np.float32), device=device)


def test_repeats(device):
    for f in (lambda lib, x, n: x.repeat(-1), lambda lib, x, n: lib.repeat_interleave(x[:0], n[:0]),
              lambda lib, x, n: lib.repeat_interleave(x, n - 2), lambda lib, x, n: lib.repeat_interleave(x, n)):
        agree(f, np.array([1.0, 2.0], np.float32), np.array([1, 3]), device=device)


def test_cuts_given_by_tensors():
    for cuts in ([2, 4], 3):
        agree(lambda lib, x, n: x.tensor_split(n), np.arange(7), np.array(cuts))


def test_numbers_that_are_none():
    agree(lambda lib, x: lib.arange(0, x.item()), np.array(INF))
    for value in (NAN, INF):
        agree(lambda lib, x, value=value: x.fill_(value), np.zeros(2, np.int64))
    agree(lambda lib, x: lib.histogram(x, 3), np.zeros(0, np.float32))
    agree(lambda lib, x: x.amax(), np.zeros(0, np.float32))
    agree(lambda lib, x: x.amax(0), np.zeros(0, np.float32))


def test_indices_into_a_tensor_without_dims(device):
    for f in (lambda lib, x, i: x.index_copy(0, i, lib.full_like(i, 5).to(x.dtype)), lambda lib, x, i: x.index_fill(0, i, 5.0),
              lambda lib, x, i: x.index_select(0, i), lambda lib, x, i: x.index_fill_(0, i, 5.0) + x):
        agree(f, np.array(1.0, np.float32), np.array([0]), device=device)
    for i in ([1], [0, 0]):
        agree(lambda lib, x, i: x.index_select(0, i), np.array(1.0, np.float32), np.array(i))


def test_a_source_of_index_copy_is_not_broadcast():
    agree(lambda lib, x, s: x.index_copy(0, lib.tensor([0, 1]), s), np.zeros((3, 2), np.float32), np.ones((2, 1), np.float32))


def test_gradients_of_scattered_products_with_zeros(device):
    x, index = np.array([2.0, 3.0, 0.0, 5.0]), np.array([0, 0, 1, 1, 2, 3])
    for include in (True, False):
        agree(lambda lib, x, s, i, include=include: x.scatter_reduce(0, i, s, "prod", include_self=include), x,
              np.array([0.0, 5.0, 0.0, 0.0, 7.0, 4.0]), index, grad=(0, 1), device=device)


def test_offsets_of_what_is_flipped_are_counted_in_64_bits():
    assert tiling.walk((1 << 20,), (1,), (-4096,)).wide
    assert not tiling.walk((5, 7), (7, 1), (-7, -1)).transposed


# ------------------------------------------------------------------ what only a device gets wrong
@pytest.mark.parametrize("kind", ["bool", "uint8", "int8", "int32", "int64"])
def test_softmax_of_whole_numbers(kind, device):
    for name in ("softmax", "log_softmax"):
        agree(lambda lib, x, name=name: getattr(lib, name)(x, 1, dtype=lib.float32), (np.arange(9).reshape(3, 3), kind), device=device)


def test_parts_of_long_rows(device):
    """Element times number of parts passes 2³¹."""
    x = np.random.default_rng(0).standard_normal((1, 100_000)).astype(np.float32)
    for f in (lambda lib, x: lib.nn.functional.adaptive_avg_pool1d(x, 30_000),
              lambda lib, x: lib.nn.functional.adaptive_max_pool1d(x, 30_000, return_indices=True)):
        agree(f, x, grad=True, device=device)


# ------------------------------------------------------------------ losses and layers
def test_losses_at_infinity_and_of_ignored_classes(device):
    for name in ("smooth_l1_loss", "huber_loss"):
        f = gradients(lambda lib, x, name=name: getattr(lib.nn.functional, name)(x, lib.ones_like(x)))
        agree(f, np.array([INF, -INF, 0.5, 1.0, 2.0, 3.0, -7.0], np.float32), np.array(1.0, np.float32), device=device)
    for reduction in ("mean", "sum", "none"):
        agree(lambda lib, x, t, reduction=reduction: lib.nn.functional.nll_loss(x, t, reduction=reduction),
              np.array([[-INF, -1.0], [-2.0, -3.0]], np.float32), np.array([-100, 1]), grad=(0,), device=device)


def test_the_mean_over_more_samples_than_float16_counts(device):
    x, target = np.full((70000, 2), -1.0), np.zeros(70000, np.int64)
    x = tritorch.tensor(x, dtype=tritorch.float16, device=device)
    ours = tritorch.nn.functional.nll_loss(x, tritorch.tensor(target, device=device))
    assert ours.item() == 1.0 and ours.dtype is tritorch.float16


def test_sums_of_gradients_beyond_float16_in_a_batch_norm_without_weights(device):
    x = np.random.default_rng(0).standard_normal((4, 2, 500))
    agree(gradients(lambda lib, x: lib.nn.functional.batch_norm(x, None, None, training=True)), (x, "float16"),
          (np.abs(x) * 100 + 50, "float16"), device=device, atol=0.5)


def test_convolutions_without_channels(device):
    def operands(x, w):
        return [tritorch.ones(*shape, device=device, requires_grad=True) for shape in (x, w, w[:1])]

    x, w, b = operands((1, 0, 3, 3), (2, 0, 2, 2))
    out = tritorch.nn.functional.conv2d(x, w, b)
    assert out.tolist() == tritorch.ones(1, 2, 2, 2).tolist()
    out.sum().backward()
    assert x.grad.shape == x.shape and w.grad.shape == w.shape and b.grad.tolist() == [4.0, 4.0]
    x, w, b = operands((1, 2, 3, 3), (0, 2, 2, 2))
    with pytest.raises(RuntimeError, match="weights for a channel or more"):
        tritorch.nn.functional.conv2d(x, w, b)
    with pytest.raises(RuntimeError, match="at least one tap"):
        tritorch.nn.functional.conv2d(x, tritorch.ones(1, 2, 0, 2, device=device))


def test_margins_at_their_kinks():
    """Where a margin is met exactly nothing pulls; a vector of zeros is pulled as hard as the formula's 1e-12 allows."""
    x = tritorch.tensor([[1.0, 0.0, 3.0]], requires_grad=True)
    for loss, target in (("multi_margin_loss", [0]), ("multilabel_margin_loss", [[0, -1, 0]])):
        x.grad, loss = None, getattr(tritorch.nn.functional, loss)(x, tritorch.tensor(target))
        loss.backward()                                                  # 1 - 1 + 0 is 0, 1 - 1 + 3 is 3
        assert [round(3 * g) for g in x.grad[0].tolist()] == [-1, 0, 1]
    zero, other = tritorch.zeros(1, 2, dtype=tritorch.float64, requires_grad=True), tritorch.tensor([[3.0, 4.0]], dtype=tritorch.float64)
    tritorch.nn.functional.cosine_embedding_loss(zero, other, tritorch.tensor([1])).backward()
    np.testing.assert_allclose(zero.grad.numpy(), [[-0.6e6, -0.8e6]], rtol=1e-9)
