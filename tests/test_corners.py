"""Corners that random calls found: tensors of no dims, numbers that a dtype does not hold, masks that broadcast. Against PyTorch."""
import numpy as np
import pytest
from oracle import agree, draw, torch

import tritorch

ZERO, TRUTH = np.array([0]), np.array([True, False, True])


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return request.param


def test_no_dims(device):
    for f in (lambda lib, x, i: (x.flip(0), x.flip(-1)), lambda lib, x, i: x.roll(1, 0), lambda lib, x, i: x.unbind(0),
              lambda lib, x, i: x.unflatten(0, (1, 1)), lambda lib, x, i: x.repeat_interleave(2, dim=0), lambda lib, x, i: x.unique(dim=0),
              lambda lib, x, i: lib.trapezoid(x), lambda lib, x, i: x.take_along_dim(i[0], 0),
              lambda lib, x, i: (x.quantile(0.5, 0), x.quantile(x.new_tensor([0.2, 0.5]), -1), x.nanquantile(0.5, 0, True)),
              lambda lib, x, i: (x.index_fill(0, i, 2.0), x.index_fill(-1, i[0], 2), x.clone().index_fill_(0, i, 3.0)),
              lambda lib, x, i: (x.index_copy(0, i, x[None] * 2), x.index_copy(0, i, x * 3), x.clone().index_copy_(0, i, x * 2)),
              lambda lib, x, i: x.index_fill(0, i + 1, 2.0) if device == "cpu" else x):
        agree(f, draw(), ZERO, grad=[0], device=device, what=str(f.__code__.co_names))


def test_index_fill_takes_numbers_of_any_dtype(device):
    agree(lambda lib, x, i: (x.index_fill(0, i, lib.tensor(2)), (x * 1).index_fill_(0, i, lib.tensor(2.5, dtype=lib.float64))),
          draw(3), ZERO, grad=[0], device=device)
    agree(lambda lib, x, i: x.index_fill(0, i, lib.tensor(2.5)), np.arange(3), ZERO, device=device)
    agree(lambda lib, x, i: x.index_fill(0, i, x[:1]), draw(3), ZERO, device=device)


def test_masks(device):
    for value in (1, 0, 10, 0.5, True):
        agree(lambda lib, m, v=value: (m.masked_fill(~m, v), m.clone().masked_fill_(m, v)), TRUTH, device=device, what=str(value))
    agree(lambda lib, x, m, s: (x.masked_scatter(m, s), x[0].masked_scatter(m, s), x.clone().masked_scatter_(m, s)), draw(2, 3), TRUTH,
          draw(6, seed=1), grad=[0, 2], device=device)
    for m in (np.array([[True, False, True]]), TRUTH[:2], np.array([1, 0, 1])):
        agree(lambda lib, x, m: x.clone().masked_scatter_(m, x), draw(3), m, device=device, what=str(m))
    agree(lambda lib, x, m: x.masked_scatter(m, x.double()), draw(3), TRUTH, device=device)


def test_a_mask_takes_one_element_of_any_dtype():
    def write(x, key, value):
        x[key] = value
        return x

    for kind in ("bfloat16", "float16", "int64", "bool"):
        agree(lambda lib, x, m: (write(x.clone(), m, lib.tensor(2.5)), write(x.clone(), m, lib.tensor([[2.5]])[0]),
                                 write(x.clone()[None], (slice(None), m), lib.tensor(0.5))), (draw(3, dtype=kind), kind), TRUTH, what=kind)
        agree(lambda lib, x, m: write(x, m, lib.tensor([2.5, 1.0])), (draw(3, dtype=kind), kind), TRUTH, what=kind)
        agree(lambda lib, x, m: write(x, lib.tensor([0]), lib.tensor(2.5)), (draw(3, dtype=kind), kind), TRUTH, what=kind)


def test_covariance_of_one_variable(device):
    agree(lambda lib, x: (lib.cov(x), lib.cov(x[:1]), lib.corrcoef(x[:1]), lib.corrcoef(x[0]), lib.cov(x[0])), draw(2, 5), grad=True,
          device=device, signs=False)
    for weights in (np.array([1, 2, 0, 1, 3]), np.array([1, 2, 0, -1, 3]), draw(5) ** 2):
        agree(lambda lib, x, w: lib.cov(x, fweights=w), draw(2, 5), weights, device=device, what=str(weights))
    agree(lambda lib, x, w: lib.cov(x, aweights=w), draw(2, 5), draw(5), device=device)


def test_weights_of_another_dtype_than_what_varies(device):
    pairs = ("bfloat16", "float32"), ("float32", "float64"), ("float16", "bfloat16"), ("int64", "float64"), ("float32", "int64")
    for kind, wide in pairs:
        agree(lambda lib, x, w: lib.cov(x, aweights=w), (draw(2, 5, dtype=kind), kind), (draw(5, low=0.5, high=2), wide), rtol=1e-2,
              device=device, what=f"{kind} {wide}")


def test_outer_products_of_bools(device):
    for beta, alpha in ((3, 2), (1, -1), (0, 1), (1, 0), (0.5, 1)):
        agree(lambda lib, x, y, z, b=beta, a=alpha: lib.addr(x, y, z, beta=b, alpha=a), draw(2, 3, dtype="bool"), TRUTH[:2], TRUTH,
              device=device, what=f"{beta} {alpha}")


def test_infinite_exponents(device):
    edges = np.array([0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], np.float32)
    for kind in ("float32", "float64", "bfloat16"):
        agree(lambda lib, x: lib.ldexp(x[:, None], x), (edges, kind), device=device, what=kind)
    agree(lambda lib, x: lib.ldexp(x, 3), edges, device=device)


def test_strides_and_dtypes_of_diagonals_and_sums(device):
    agree(lambda lib, x: (lib.diag(x, -2).stride(), x.nonzero(), x.nonzero().stride(), lib.argwhere(x[0]).stride()),
          draw(3, 5), device=device)
    agree(lambda lib, x: (x[0].sum_to_size(()), x.sum_to_size(1), x[0].sum_to_size(()).data_ptr() == x.data_ptr()),
          draw(1, dtype="int32"), device=device)


def test_numbers_that_integers_do_not_hold(device):
    small = np.array([1, 2, 100], np.uint8)
    for f in (lambda lib, x: lib.add(x, x, alpha=-1), lambda lib, x: lib.sub(x, x, alpha=-3), lambda lib, x: lib.addcmul(x, x, x, value=-1),
              lambda lib, x: lib.threshold(x, 1, -1), lambda lib, x: x.index_add(0, lib.tensor([0], device=x.device), x[:1], alpha=-1),
              lambda lib, x: lib.where(x > 1, x, -1), lambda lib, x: lib.where(x > 1, x, 300), lambda lib, x: lib.where(x > 1, 300, x),
              lambda lib, x: x.clamp(0, 300), lambda lib, x: x.clamp(-1, 0.5), lambda lib, x: x.clamp(max=0.5),
              lambda lib, x: x.clamp(1, 2),
              lambda lib, x: x.clone().clamp_(max=0.5), lambda lib, x: (x > 1).clamp(0.5), lambda lib, x: (x > 1).clamp(0),
              lambda lib, x: lib.add(x, x, alpha=np.int64(3)), lambda lib, x: x.long().fill_(float("nan")),
              lambda lib, x: x.new_full((2,), float("inf"))):
        agree(f, small, device=device, what=str(f.__code__.co_consts) + str(f.__code__.co_names))


def test_bools_filled_with_numbers(device):
    for value in (0.5, float("nan"), 2, -0.0, 256):
        agree(lambda lib, x, v=value: (x.clone().fill_(v), lib.full_like(x, v), x.index_fill(0, lib.tensor([1], device=x.device), v)),
              TRUTH, device=device, what=str(value))


def test_extremes_of_bools_without_what_was_there(device):
    agree(lambda lib, x, i: [x.scatter_reduce(0, i, ~x, reduce, include_self=False) for reduce in ("amax", "amin", "prod")], TRUTH,
          np.array([0, 0, 2]), device=device)


def test_out_of_no_elements(device):
    for f in (lambda lib, x, y, o: lib.dot(y, y, out=o), lambda lib, x, y, o: lib.mv(x, y, out=o),
              lambda lib, x, y, o: lib.outer(y, y, out=o),
              lambda lib, x, y, o: lib.inner(y, y, out=o), lambda lib, x, y, o: lib.addmv(y[0], x, y, out=o),
              lambda lib, x, y, o: lib.addr(x, x[:, 0], y, out=o), lambda lib, x, y, o: lib.kron(x, x, out=o),
              lambda lib, x, y, o: lib.tensordot(x, x, out=o), lambda lib, x, y, o: lib.linalg.matrix_power(x[:, :2], 0, out=o)):
        agree(f, draw(2, 3), draw(3), draw(0), device=device, what=str(f.__code__.co_names))


def test_numbers_in_tensors_of_no_dims(device):
    for kind in ("float64", "float32", "bfloat16"):
        agree(lambda lib, x, y, w: (lib.lerp(x, y, w), (x * 1).lerp_(y, w)), (draw(3), kind), (draw(3, seed=1), kind),
              (np.array(0.25), "float32"), grad=[0, 1], device=device, what=kind)
    agree(lambda lib, x, w: lib.lerp(x, x, w), draw(3), draw(1, dtype="float64"), device=device)
    agree(lambda lib, x, n: (x.tensor_split(n[1]), x.tensor_split(n), x.tensor_split(n[:1])), draw(8), np.array([5, 3]), device=device)


def test_ldexp_where_the_power_alone_is_too_large(device):
    x, k = np.array([1e-30, 0.0, 3.0, 1e38], np.float32), np.array([140, 140, -3, -150])
    agree(lambda lib, x, k: (lib.ldexp(x, k), x.clone().ldexp_(k)), x, k, device=device)
    agree(lambda lib, x, k: lib.ldexp(x, k), draw(4), draw(4, seed=1), grad=True, device=device)
    agree(lambda lib, x, k: (lib.ldexp(x, k), lib.ldexp(x[0], k[0])), (draw(4), "float16"), np.array([0, 1, -2, 3]), device=device)


def test_arange_counts_in_its_dtype():
    for bounds in ((1.0, 5.000001, 2.0), (1.5, 5.5, 1.5), (5.5, 1.2, -1.5), (3.7,), (0, 0.5)):
        agree(lambda lib, b=bounds: (lib.arange(*b, dtype=lib.int64), lib.arange(*b, out=lib.empty(0, dtype=lib.int32)), lib.arange(*b)),
              what=str(bounds))
    for bounds in ((0, float("inf")), (float("nan"),), (0, 5, 0), (5, 1)):
        agree(lambda lib, b=bounds: lib.arange(*b), what=str(bounds))


def test_shapes_and_dtypes(device):
    agree(lambda lib, x: (x[::2].ravel().stride(), x.view(2, 4)[:, ::2].ravel().stride(), x.ravel()), draw(8), device=device)
    agree(lambda lib, i: lib.unravel_index(i, (50, 40)), np.array([7, 300], np.int16), device=device)
    agree(lambda lib, x: lib.unravel_index(x, (2, 2)), draw(2), device=device)
    for shape in ((2, -3), (2, 2.0), np.array([2, 3])):
        agree(lambda lib, i, s=shape: lib.unravel_index(i, lib.tensor(s) if isinstance(s, np.ndarray) else s), np.array([1]), device=device)
    agree(lambda lib, x, i: lib.take_along_dim(x, i, 0), draw(2, 3), np.array([0, 1, 0]), device=device)
    agree(lambda lib, x, v: x.index_put([], v, True), draw(3), draw(1), device=device)
    x = np.array([1.0, 4.0, -8.0])
    for step in (np.array([0, 4j, 8j]), np.array([1, 3, 5]), np.array([1.0, 1.5, 2.0])):           # what is exact in any order
        agree(lambda lib, x, s: (lib.gradient(x, spacing=(s,)), lib.gradient(x, spacing=(s,), edge_order=2)), x, step, device=device)
    agree(lambda lib, x: lib.isclose(x, 2), draw(2), device=device)


def test_neighbours(device):
    x = np.array([1.0, -1.0, 0.0, -0.0, 0.0, 2.5, np.inf, -np.inf, np.nan, 1.0, 3.0, 5e-8, 1e-45, -1e-45, 1e-45, 1.1754943e-38, 0.0, -3.0])
    y = np.array([2.0, 2.0, 1.0, -1.0, -0.0, -np.inf, 1.0, 1.0, 1.0, np.nan, 3.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1e-45, -np.inf])
    for kind in ("bfloat16", "float16", "float32", "float64"):
        agree(lambda lib, x, y: (lib.nextafter(x, y), lib.nextafter(x, y[:1]), x.clone().nextafter_(y)), (x, kind), (y, kind),
              device=device, rtol=0, atol=0, what=kind)


def test_gradients_of_neighbours(device):
    x, y = np.array([1.0, -1.0, 0.0, 2.0, np.inf, 1.0]), np.array([2.0, 2.0, -1.0, 2.0, 1.0, np.nan])
    for kind in ("bfloat16", "float16", "float32"):
        agree(lambda lib, x, y: lib.nextafter(x, y), (x, kind), (y, kind), grad=[0], device=device, rtol=0, atol=0, what=kind)
        agree(lambda lib, x, y: lib.nextafter(x, y), (x[:1], kind), (y, kind), grad=[0], device=device, rtol=0, atol=0, what=kind)


def test_a_comparison_with_a_wider_number_of_the_cpu(device):
    """A 0-dim tensor on the CPU joins those of a device; beside a 0-dim one it keeps its dtype, as in PyTorch."""
    for kind, value in (("int64", 1000), ("int64", -232), ("float64", 0.1), ("int64", 1 << 40)):
        for own, number in (("int8", 24), ("float32", 0.1), ("int32", 0), ("bool", 1)):
            for name in ("eq", "lt", "ge"):
                def compare(lib, x, y, name=name):
                    y = y.cpu()
                    return getattr(lib, name)(x, y), getattr(lib, name)(y, x), getattr(lib, name)(x.reshape(1), y), x.new_zeros(0).eq(y)

                agree(compare, (np.array(number), own), (np.array(value), kind), device=device, what=f"{name} {own} {kind} {value}")


def test_interpolated_pixels(device):
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 6)).astype(np.uint8)
    for mode in ("bilinear", "bicubic"):
        for size in ((3, 4), (9, 6), (10, 12)):
            want = torch.nn.functional.interpolate(torch.tensor(image), size, mode=mode).numpy().astype(int)
            x = tritorch.tensor(image, device=device)
            got = tritorch.nn.functional.interpolate(x, size, mode=mode)
            assert got.dtype is tritorch.uint8 and np.abs(got.cpu().numpy().astype(int) - want).max() <= 1
    agree(lambda lib, x: lib.nn.functional.interpolate(x, 3, mode="bilinear"), image.astype(np.int64), device=device)
    agree(lambda lib, x: lib.nn.functional.interpolate(x, scale_factor=0.1), image, device=device)
    x = draw(1, 2, 5, 6)
    for kind in ("bfloat16", "float16"):                                 # rounded once: half a unit in the last place, and torch's
        agree(lambda lib, x: lib.nn.functional.interpolate(x, (7, 9), mode="bilinear"), (x, kind), device=device, grad=True,
              rtol=1.6e-2 if kind == "bfloat16" else 2e-3)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolated_without_aliases(device, mode):
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 9, 11)).astype(np.uint8)
    for how in ({"size": (4, 3)}, {"size": (13, 5), "align_corners": True}, {"scale_factor": (0.4, 1.7)}, {"size": (9, 11)}):
        def resized(lib, x, how=how):
            return lib.nn.functional.interpolate(x, **how, mode=mode, antialias=True)

        agree(resized, draw(2, 3, 9, 11), device=device, grad=True, atol=2e-6)
        agree(lambda lib, x: resized(lib, x.to(memory_format=lib.channels_last)), draw(2, 3, 9, 11), device=device, atol=2e-6)
        got, want = resized(tritorch, tritorch.tensor(image, device=device)), resized(torch, torch.tensor(image))
        assert np.abs(got.cpu().numpy().astype(int) - want.numpy().astype(int)).max() <= 1
    far = draw(1, 1, 9, 9)
    far[..., -1] = np.inf                                                # spreads as far as the filter reaches
    agree(lambda lib, x: lib.nn.functional.interpolate(x, 4, mode=mode, antialias=True), far, device=device, atol=2e-6)


RESULTS = {"mv": lambda lib, x: x[0] @ x[0, 0], "dot": lambda lib, x: x[0, 0].dot(x[0, 1]), "vector": lambda lib, x: x[0, 0] @ x[0].mT,
           "reshape": lambda lib, x: x.mT.reshape(-1), "rows": lambda lib, x: x[[0, 1]], "columns": lambda lib, x: x[:, :, [0, 1]],
           "mask": lambda lib, x: x[x > 0], "pairs": lambda lib, x: x[[0, 1], [1, 0]],
           "take": lambda lib, x: x.take(lib.tensor([[1], [2]])),
           "roll": lambda lib, x: x.roll(1), "repeat": lambda lib, x: x.repeat(2, 1, 1), "flatten": lambda lib, x: x.mT.flatten(),
           "conv1d": lambda lib, x: lib.nn.functional.conv1d(x, x[:, :, :2])}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_no_views(name):
    """What a call computed is its own tensor: `detach_` cuts it off, a write into it is recorded like any other."""
    def program(lib, x):
        y, z = RESULTS[name](lib, x * 1), RESULTS[name](lib, x * 1)
        z.mul_(3)
        out = z.sum() + (z * z).sum()
        return (y.detach_().requires_grad, y._base is None, y, out)

    agree(program, draw(3, 3, 3, dtype="float64"), grad=True)


def test_outputs_of_recurrent_layers_are_no_views():
    for lib in (tritorch, torch):
        for kind in ("LSTM", "GRU", "RNN"):
            output, _ = getattr(lib.nn, kind)(3, 4)(lib.ones(2, 1, 3))
            assert output.requires_grad and not output.detach_().requires_grad


def test_norms_at_zero_move_by_nothing(device):
    def program(lib, x):
        orders = [(p, d) for p in (2, 1, 3, 0.5, -1, -2.5, float("inf")) for d in (None, 1)]
        norms = [lambda v, p=p, d=d: lib.linalg.vector_norm(v, p, dim=d).sum() for p, d in orders]
        return [(lib.func.grad(f)(x), lib.func.jvp(f, (x,), (x + 1,))[1]) for f in norms]

    agree(program, np.zeros((2, 3)), device=device)
    agree(program, np.array([[0.0, 0.0, 0.0], [1.0, 0.0, -2.0]]), device=device)


def test_searchsorted_wants_values_where_the_sequence_is(cuda):
    with pytest.raises(RuntimeError, match="expected values on cuda:0, got cpu"):
        tritorch.searchsorted(tritorch.arange(3, device=cuda), tritorch.tensor(1))
