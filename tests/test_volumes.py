"""Pooling and transposed convolution of volumes: against loops over windows, as transposes of each other, and against PyTorch."""
import itertools

import numpy as np
import pytest

import tritorch as T
from tests.both import both, pytorch
from tritorch.autograd import gradcheck, gradgradcheck
from tritorch.nn import functional as F
from tritorch.ops import volume_pooling
from tritorch.tensor import from_array

RNG = np.random.default_rng(0)
WINDOWS = [((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), False), ((3, 2, 3), (2, 1, 2), (1, 1, 1), (1, 1, 1), True),
           ((2, 3, 1), (1, 2, 3), (1, 0, 0), (2, 1, 1), False), ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 2, 1), True),
           ((1, 4, 2), (3, 3, 1), (0, 2, 1), (1, 1, 1), True)]


def draw(*shape, special=False):
    if special:
        return RNG.choice([np.nan, -np.inf, np.inf, 0.0, 1.0], shape, p=[0.1, 0.3, 0.1, 0.3, 0.2])
    return RNG.standard_normal(shape)


def lengths(n, k, s, p, d, ceil):
    count = int(np.ceil((n + 2 * p - d * (k - 1) - 1) / s) if ceil else (n + 2 * p - d * (k - 1) - 1) // s) + 1
    return count - 1 if ceil and (count - 1) * s >= n + p else count


def places_along(n, k, s, p, d, ceil):
    """Of each window along a dim the places in it, in order, whether inside or not."""
    return [[i * s - p + j * d for j in range(k)] for i in range(lengths(n, k, s, p, d, ceil))]


def parts_along(n, count):
    return [list(range(i * n // count, -(-(i + 1) * n // count))) for i in range(count)]


def largest(x, windows):
    """(values, places) of (N, C, D, H, W) by loops over the places of each window: the first of equals, the last NaN."""
    shape = (*x.shape[:2], *map(len, windows))
    values, found = np.empty(shape), np.zeros(shape, int)
    for n, c, o, p, q in np.ndindex(*shape):
        best = None
        for d, h, w in itertools.product(windows[0][o], windows[1][p], windows[2][q]):
            if all(0 <= i < m for i, m in zip((d, h, w), x.shape[2:])):
                v = x[n, c, d, h, w]
                if best is None or v > best or v != v:
                    best, place = v, (d * x.shape[3] + h) * x.shape[4] + w
        values[n, c, o, p, q], found[n, c, o, p, q] = best, place
    return values, found


def means(x, windows, padding, include, divisor=None):
    out = np.empty((*x.shape[:2], *map(len, windows)))
    for n, c, o, p, q in np.ndindex(*out.shape):
        reach = [[i for i in windows[d][k] if i < x.shape[2 + d] + padding[d]] for d, k in enumerate((o, p, q))]
        inside = [[i for i in some if 0 <= i < x.shape[2 + d]] for d, some in enumerate(reach)]
        counted = divisor or np.prod([len(some) for some in (reach if include else inside)])
        out[n, c, o, p, q] = x[n, c][np.ix_(*inside)].sum() / counted
    return out


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil", WINDOWS)
def test_largest_of_windows(kernel, stride, padding, dilation, ceil, special, cuda):
    x = draw(2, 2, 5, 6, 7, special=special)
    windows = [places_along(n, k, s, p, d, ceil) for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation)]
    values, found = largest(x, windows)
    for device in ("cpu", cuda):
        turned = from_array(x).transpose(2, 4).contiguous().transpose(2, 4)
        for y in (from_array(x), turned, from_array(x).to(memory_format=T.channels_last_3d)):
            got = F.max_pool3d(y.to(device), kernel, stride, padding, dilation, ceil, return_indices=True)
            np.testing.assert_array_equal(got[0].cpu().array, values)
            np.testing.assert_array_equal(got[1].cpu().array, found)
        assert got[0].is_contiguous(memory_format=T.channels_last_3d) and got[1].dtype is T.int64
        got = F.max_pool3d(from_array(x[1]).to(device), kernel, stride, padding, dilation, ceil)
        np.testing.assert_array_equal(got.cpu().array, values[1])


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 7), (3, 4, 2), (8, 1, 5)])
def test_parts(size, cuda):
    x = draw(2, 2, 5, 6, 7, special=True)
    windows = [parts_along(n, count) for n, count in zip(x.shape[2:], size)]
    values, found = largest(x, windows)
    y = draw(2, 2, 5, 6, 7)
    for device in ("cpu", cuda):
        got = F.adaptive_max_pool3d(from_array(x).to(device), size, return_indices=True)
        np.testing.assert_array_equal(got[0].cpu().array, values)
        np.testing.assert_array_equal(got[1].cpu().array, found)
        np.testing.assert_array_equal(F.adaptive_max_pool3d(from_array(x).to(device), size).cpu().array, values)
        got = F.adaptive_avg_pool3d(from_array(y).to(device), size)
        np.testing.assert_allclose(got.cpu().array, means(y, windows, (0, 0, 0), False), rtol=1e-12)


@pytest.mark.parametrize("include, divisor", [(True, None), (False, None), (True, 3), (False, -2)])
@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil", [case for case in WINDOWS if case[3] == (1, 1, 1)])
def test_means_of_windows(kernel, stride, padding, dilation, ceil, include, divisor, cuda):
    x = draw(1, 2, 5, 6, 7)
    windows = [places_along(n, k, s, p, 1, ceil) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding)]
    want = means(x, windows, padding, include, divisor)
    for device in ("cpu", cuda):
        for y in (from_array(x), from_array(x).to(memory_format=T.channels_last_3d)):
            got = F.avg_pool3d(y.to(device), kernel, stride, padding, ceil, include, divisor)
            np.testing.assert_allclose(got.cpu().array, want, rtol=1e-12)
            assert got.is_contiguous()


@pytest.mark.parametrize("kind", [T.float16, T.bfloat16, T.float32])
def test_half_types_are_rounded_once(kind, cuda):
    x = from_array(draw(1, 3, 4, 6, 6)).to(kind)
    for device in ("cpu", cuda):
        y = x.to(device)
        for f in (lambda v: F.avg_pool3d(v, 3, 2, 1), lambda v: F.adaptive_avg_pool3d(v, (3, 4, 4)), lambda v: F.avg_pool3d(v, (4, 6, 6))):
            want = f(x.double()).to(kind).double().array
            np.testing.assert_allclose(f(y).cpu().double().array, want, rtol=T.finfo(kind).eps, atol=1e-7)
        np.testing.assert_array_equal(F.max_pool3d(y, 2).cpu().double().array, F.max_pool3d(x.double(), 2).array)


def test_a_window_of_padding_and_gaps_is_the_lowest(cuda):
    x = T.ones(1, 1, 4, 1, 4)
    for device in ("cpu", cuda):
        values, places = F.max_pool3d(x.to(device), (2, 2, 2), 2, (0, 1, 0), (1, 2, 1), return_indices=True)
        assert values.isinf().all() and (values < 0).all()
        assert places.flatten().tolist() == [0, 2, 8, 10]


def test_offsets_past_2_31(monkeypatch, cuda):
    """Kernels told that tensors are that large count in 64 bits, with the same results."""
    x = from_array(draw(2, 3, 4, 5, 6)).to(cuda).requires_grad_()

    def results():
        outs = [*F.max_pool3d(x, 3, 2, 1, return_indices=True), F.avg_pool3d(x, 3, 2, 1, False, False), F.adaptive_avg_pool3d(x, 3),
                F.fractional_max_pool3d(x, 2, 2, _random_samples=T.full((2, 3, 3), 0.3, dtype=x.dtype, device=cuda))]
        return [out.detach().cpu().array for out in outs] + [
            T.autograd.grad(out.sum(), x)[0].cpu().array for out in outs if out.requires_grad]

    want = results()
    monkeypatch.setattr(volume_pooling, "extent", lambda shape, strides: 1 << 31)
    for got, should in zip(results(), want, strict=True):
        np.testing.assert_array_equal(got, should)


@pytest.mark.parametrize("f", [
    lambda x: F.max_pool3d(x, 2, 1, 1), lambda x: F.adaptive_max_pool3d(x, (2, 2, 3)),
    lambda x: F.avg_pool3d(x, (2, 2, 1), 1, (1, 1, 0), True, False),
    lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), lambda x: F.lp_pool3d(x + 1, 3, (2, 2, 2), 1),
    lambda x: F.interpolate(x, size=(2, 1, 2), mode="area"),
    lambda x: F.fractional_max_pool3d(x, 1, (2, 1, 2), _random_samples=T.full((1, 2, 3), 0.5, dtype=T.float64)),
    lambda x: F.max_unpool3d(x, T.arange(18).flip(0).repeat(2).view(1, 2, 3, 2, 3), (1, 2, 1))])
def test_gradients_twice_and_forward(f):
    x = from_array(RNG.permutation(36).reshape(1, 2, 3, 2, 3) / 7.0).requires_grad_()
    assert gradcheck(f, (x,), check_forward_ad=True) and gradgradcheck(f, (x,))


# ------------------------------------------------------------------ convolution
def _settings(count):
    found = 0
    while found < count:
        groups, three = int(RNG.integers(1, 3)), lambda low, high: tuple(map(int, RNG.integers(low, high + 1, 3)))
        stride, padding, dilation, taps, size = three(1, 3), three(0, 2), three(1, 3), three(1, 3), three(1, 5)
        if all(n + 2 * p >= d * (k - 1) + 1 for n, p, d, k in zip(size, padding, dilation, taps)):
            found += 1
            yield groups, size, taps, stride, padding, dilation


def test_transposes_of_convolutions(cuda):
    """Σ conv3d(x, w) · y = Σ x · conv_transpose3d(y, w), and the gradients of both."""
    for k, (groups, size, taps, stride, padding, dilation) in enumerate(_settings(16)):
        device = cuda if k % 4 == 0 else "cpu"
        x, w = [from_array(draw(*shape)).to(device).requires_grad_() for shape in ((2, 2 * groups, *size), (groups, 2, *taps))]
        out = F.conv3d(x, w, None, stride, padding, dilation, groups)
        y = from_array(draw(*out.shape)).to(device).requires_grad_()
        least = [(m - 1) * s - 2 * p + d * (r - 1) + 1 for m, s, p, d, r in zip(out.shape[2:], stride, padding, dilation, taps)]
        back = [n - m for n, m in zip(size, least)]
        turned = F.conv_transpose3d(y, w, None, stride, padding, back, groups, dilation)
        assert turned.shape == x.shape and turned.is_contiguous()
        gx, gw = T.autograd.grad(out, (x, w), y.detach())
        np.testing.assert_allclose(turned.detach().cpu().array, gx.cpu().array, rtol=1e-9, atol=1e-9)
        gy, gw_too = T.autograd.grad(turned, (y, w), x.detach())
        np.testing.assert_allclose(gy.cpu().array, out.detach().cpu().array, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(gw_too.cpu().array, gw.cpu().array, rtol=1e-9, atol=1e-9)
        settings = stride, padding, dilation, groups
        np.testing.assert_array_equal(T.nn.grad.conv3d_input(x.shape, w, y, *settings).detach().cpu().array, turned.detach().cpu().array)
        np.testing.assert_allclose(T.nn.grad.conv3d_weight(x, w.shape, y, *settings).detach().cpu().array, gw.cpu().array, 1e-9, 1e-9)


@pytest.mark.parametrize("kind", [T.float16, T.bfloat16, T.float32])
def test_transposed_convolution_sums_in_float32(kind, cuda):
    x, w = from_array(draw(1, 8, 3, 4, 4)).to(kind), from_array(draw(8, 4, 4, 3, 3)).to(kind)
    want = F.conv_transpose3d(x.double(), w.double(), None, 2, 1).to(kind).double().array
    for device in ("cpu", cuda):
        got = F.conv_transpose3d(x.to(device), w.to(device), None, 2, 1).cpu().double().array
        np.testing.assert_allclose(got, want, rtol=2 * T.finfo(kind).eps, atol=1e-5)


def test_transposed_convolution_twice_and_forward():
    x, w, b = [from_array(draw(*shape)).requires_grad_() for shape in ((1, 1, 2, 1, 2), (1, 1, 2, 1, 2), (1,))]
    for settings in ((2, (1, 0, 0), (0, 1, 0)), (1, 0, 0, 1, 2)):
        def f(x, w, b, settings=settings):
            return F.conv_transpose3d(x, w, b, *settings)

        assert gradcheck(f, (x, w, b), check_forward_ad=True) and gradgradcheck(f, (x, w, b))


def test_places_that_nothing_reaches_have_gradients_of_zero():
    x, w = T.ones(1, 1, 1, 1, 1, requires_grad=True), T.ones(1, 1, 2, 1, 1, requires_grad=True)
    out = F.conv_transpose3d(x, w, padding=(1, 0, 0), dilation=(3, 1, 1))
    assert out.tolist() == [[[[[0.0]], [[0.0]]]]]
    assert [g.sum().item() for g in T.autograd.grad(out.sum(), (x, w))] == [0.0, 0.0]


@both
def test_sequences_in_time_first_order(lib):
    x, w, b = [lib.arange(n, dtype=lib.float64).sin() for n in (42, 36, 4)]
    x, w = x.view(7, 2, 3), w.view(3, 3, 4)
    return [lib.conv_tbc(x, w, b, pad) for pad in (0, 1, 3, -1)] + [lib.nn.functional.conv_tbc(x, w, b)]


@both
def test_convolution_of_any_dims(lib):
    outs = []
    for dims in (1, 2, 3):
        x, w, b = [lib.arange(n, dtype=lib.float64).sin() for n in (4 * 5 ** dims, 8 * 3 ** dims, 4)]
        x, w = x.view(1, 4, *(5,) * dims), w.view(4, 2, *(3,) * dims)
        for transposed in (False, True):
            outs.append(lib.convolution(x, w, b, [2] * dims, [1], [1], transposed, [int(transposed)] * dims, 2))
    return outs


# ------------------------------------------------------------------ PyTorch's arguments
@both
def test_functions(lib):
    F, x = lib.nn.functional, lib.arange(1260, dtype=lib.float64).view(2, 3, 5, 6, 7).mul(17).sin()
    values, places = F.max_pool3d(x, (2, 3, 2), return_indices=True)
    whole = lib.arange(210).expand(2, 3, 210).reshape(x.shape)
    outs = [values, places, F.max_unpool3d(x, whole, 1), F.max_unpool3d(values, places, (2, 3, 2), output_size=(5, 6, 7)),
            F.max_unpool3d(values, places, (2, 3, 2), output_size=[2, 3, 5, 6, 7]), F.avg_pool3d(x, [2], [], 1),
            F.avg_pool3d(x[0], 3, 2, 1, True), F.lp_pool3d(x, 2, 2, ceil_mode=True), F.lp_pool3d(x, 3.0, (1, 2, 3), 1),
            F.adaptive_avg_pool3d(x, (None, 2, 1)), F.adaptive_max_pool3d(x[0], (2, None, 4)), F.max_pool3d(x, 2, ceil_mode=True),
            lib.max_pool3d(x, 3, 2, 1), F.interpolate(x, scale_factor=0.5, mode="area"), F.adaptive_avg_pool3d(x, 0),
            *lib.adaptive_max_pool1d(x[0, 0], 2), *lib.max_pool1d_with_indices(x[0, 0], 2, 1, 1)]
    for dims, y in ((1, x[0, 0]), (2, x[0]), (3, x)):
        outs += getattr(F, f"max_pool{dims}d_with_indices")(y, 2, 1, 1)
        outs += getattr(F, f"adaptive_max_pool{dims}d_with_indices")(y, 2)
    for dims, y in ((2, x[0]), (3, x)):
        samples = lib.full((y.shape[0], y.shape[1], dims), 0.7, dtype=lib.float64)
        outs += getattr(F, f"fractional_max_pool{dims}d_with_indices")(y, 2, 3, _random_samples=samples)
        outs.append(getattr(F, f"fractional_max_pool{dims}d")(y, 2, output_ratio=(0.5,) * dims, _random_samples=samples))
    return outs


def drawn_along(n, k, count, u):
    """Of each drawn window along a dim the places in it."""
    pace = type(u)(n - k) / type(u)(max(count - 1, 1))
    starts = [int((type(u)(i) + u) * pace) - int(u * pace) for i in range(count - 1)] + [n - k]
    return [list(range(start, start + k)) for start in starts]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_drawn_windows(dims, kind, cuda):
    for shape, kernel, size in (((2, 3, 7, 6, 9), (2, 2, 2), (4, 4, 4)), ((1, 2, 9, 5, 8), (3, 1, 2), (3, 2, 6)),
                                ((2, 1, 5, 9, 7), (1, 1, 1), (1, 5, 2))):
        shape, kernel, size = (*shape[:2], *shape[-dims:]), kernel[-dims:], size[-dims:]
        x, samples = draw(*shape, special=True).astype(kind), RNG.random((*shape[:2], dims)).astype(kind)
        values, found = np.empty((*shape[:2], *size)), np.empty((*shape[:2], *size), int)
        for n, c in np.ndindex(*shape[:2]):
            drawn = samples[n, c] if dims == 3 else samples[n, c][::-1]  # of images that of the width comes first
            windows = [drawn_along(*numbers) for numbers in zip(shape[2:], kernel, size, drawn)]
            plane = x[n:n + 1, c:c + 1] if dims == 3 else x[n:n + 1, c:c + 1, None]
            values[n, c], found[n, c] = [out.reshape(size) for out in largest(plane, windows if dims == 3 else [[[0]], *windows])]
        for device in ("cpu", cuda):
            pool = getattr(F, f"fractional_max_pool{dims}d")
            got = pool(from_array(x).to(device), kernel, size, None, True, from_array(samples).to(device))
            np.testing.assert_array_equal(got[0].cpu().array, values)
            np.testing.assert_array_equal(got[1].cpu().array, found)


def test_windows_are_drawn_anew():
    x = T.arange(400.0).view(1, 1, 20, 20)
    T.manual_seed(0)
    drawn = {tuple(F.fractional_max_pool2d(x, 2, 9).flatten().tolist()) for _ in range(5)}
    T.manual_seed(0)
    assert len(drawn) > 1 and tuple(F.fractional_max_pool2d(x, 2, 9).flatten().tolist()) in drawn


F_, X, W = "lib.nn.functional.", "lib.ones(1, 2, 4, 5, 6)", "lib.ones(2, 2, 2, 2, 2)"


@pytest.mark.parametrize("error, call", [
    *[(RuntimeError, f"{F_}{name}({X}, {args})") for name in ("max_pool3d", "avg_pool3d")
      for args in ("0", "(2, 2)", "2, 0", "2, 1, 2", "2, 1, -1", "9", "2, (1, 2)")],
    *[(RuntimeError, f"{F_}{name}(lib.ones({shape}), 2)")
      for name in ("max_pool3d", "avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d")
      for shape in ("2, 0, 4, 4, 4", "2, 3, 0, 4, 4", "4, 4, 4", "1, 1, 1, 1, 1, 1")],
    *[(RuntimeError, f"{F_}{name}({X}, {size})") for name in ("adaptive_avg_pool3d", "adaptive_max_pool3d")
      for size in ("(2,)", "(2, 3)", "-1")],
    (RuntimeError, f"{F_}avg_pool3d({X}, 2, divisor_override=0)"), (RuntimeError, f"{F_}max_pool3d({X}, 2, dilation=0)"),
    (TypeError, f"{F_}max_pool3d({X}, 2.5)"), (TypeError, f"{F_}avg_pool3d({X}, 2, ceil_mode=3)"),
    (TypeError, f"{F_}adaptive_avg_pool3d({X}, 2.5)"), (TypeError, f"{F_}adaptive_avg_pool3d({X}, None)"),
    (NotImplementedError, f"{F_}max_pool3d({X} > 0, 2)"), (NotImplementedError, f"{F_}adaptive_max_pool3d({X}.long(), 2)"),
    (RuntimeError, f"{F_}max_unpool3d({X}, lib.zeros(1, 2, 4, 5, 5).long(), 2)"),
    (ValueError, f"{F_}max_unpool3d({X}, {X}.long(), 2, output_size=(9, 9))"),
    (ValueError, f"{F_}max_unpool3d({X}, {X}.long(), 2, output_size=(90, 9, 9))"),
    (RuntimeError, f"{F_}max_unpool3d({X}, {X}.long() * 0 + 9999, 2)"),
    (ValueError, f"{F_}lp_pool3d({X}, 2, (2, 2))"), (ValueError, f"{F_}fractional_max_pool3d({X}, 2)"),
    (ValueError, "lib.nn.FractionalMaxPool3d(0, 2)"), (ValueError, "lib.nn.FractionalMaxPool2d(2)"),
    (ValueError, "lib.nn.FractionalMaxPool2d(2, 2, 0.5)"), (ValueError, "lib.nn.FractionalMaxPool3d(2, output_ratio=2)"),
    (RuntimeError, f"{F_}fractional_max_pool3d({X}, 2, 5)"), (TypeError, f"{F_}fractional_max_pool2d({X}[0], 2, output_ratio=0.5)"),
    (IndexError, f"{F_}fractional_max_pool3d({X}, 2, output_ratio=(0.5, 0.5))"),
    (RuntimeError, f"{F_}fractional_max_pool3d({X}, 2, 2, _random_samples=lib.zeros(1, 2, 2))"),
    (RuntimeError, f"lib.conv_transpose3d({X}, lib.ones(3, 2, 2, 2, 2))"), (RuntimeError, f"lib.conv_transpose3d({X}, {W}, stride=0)"),
    (RuntimeError, f"lib.conv_transpose3d({X}, {W}, output_padding=1)"), (RuntimeError, f"lib.conv_transpose3d({X}, {W}, lib.ones(3))"),
    (RuntimeError, "lib.conv_tbc(lib.ones(2, 3), lib.ones(1, 3, 1), lib.ones(1))"),
    (TypeError, "lib.conv_tbc(lib.ones(2, 3, 1), lib.ones(1, 1, 1), None)")])
def test_what_is_refused(error, call):
    for lib in (T, pytorch) if pytorch else (T,):
        with pytest.raises(error):
            eval(call, {"lib": lib})
