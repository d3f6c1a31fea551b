"""Pooling and padding against PyTorch over their arguments, NaN and ties, and the kernels on odd and large windows."""
import itertools

import numpy as np
import pytest

import tritorch as T
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver
from tritorch.ops import pooling as P
from tritorch.ops.padding import pad
from tritorch.tensor import from_array

RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def agree(name, x, *args, module=P, **kwargs):
    """Values, places and gradient of a function of x are PyTorch's."""
    torch = pytest.importorskip("torch")
    ours, theirs = from_array(x.copy()).requires_grad_(), torch.from_numpy(x.copy()).requires_grad_()
    got, want = getattr(module, name)(ours, *args, **kwargs), getattr(torch.nn.functional, name)(theirs, *args, **kwargs)
    if isinstance(want, tuple):
        np.testing.assert_array_equal(got[1].array, want[1].numpy())
        got, want = got[0], want[0]
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(got.detach().array, want.detach().numpy(), rtol=1e-12, atol=1e-12)
    g = draw(*want.shape)
    got.backward(from_array(g))
    want.backward(torch.from_numpy(g))
    np.testing.assert_allclose(ours.grad.array, theirs.grad.numpy(), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ PyTorch's arguments
@pytest.mark.parametrize("kernel, stride, padding", [
    (2, None, 0), (3, 2, 1), ((3, 2), (1, 2), (1, 0)), ((2, 5), (3, 1), (1, 2)), (1, 2, 0), (4, 4, 2), ((2,), (3,), (1,)), (3, [], 1)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_windows_of_two_dims(kernel, stride, padding, ceil_mode):
    for shape in ((2, 3, 9, 8), (3, 7, 10), (0, 2, 6, 6)):
        for dilation in (1, 2, (1, 3)):
            reach = [d * (k - 1) for k, d in zip(*[v * 2 if len(v) == 1 else v for v in (
                (kernel,) if isinstance(kernel, int) else kernel, (dilation,) if isinstance(dilation, int) else dilation)])]
            if max(reach) < 6:
                agree("max_pool2d", draw(*shape), kernel, stride, padding, dilation, ceil_mode=ceil_mode, return_indices=True)
        for include in (True, False):
            agree("avg_pool2d", draw(*shape), kernel, stride, padding, ceil_mode, include)
        agree("avg_pool2d", draw(*shape), kernel, stride, padding, ceil_mode, True, 7)


@pytest.mark.parametrize("kernel, stride, padding", [(2, None, 0), (3, 2, 1), (4, 3, 2), ((2,), (1,), (1,)), (1, 1, 0)])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_windows_of_one_dim(kernel, stride, padding, ceil_mode):
    for shape in ((2, 3, 11), (3, 8)):
        for dilation in (1, 2):
            agree("max_pool1d", draw(*shape), kernel, stride, padding, dilation, ceil_mode=ceil_mode, return_indices=True)
        agree("avg_pool1d", draw(*shape), kernel, stride, padding, ceil_mode, False)
        agree("avg_pool1d", draw(*shape), kernel, stride, padding, ceil_mode)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 9, 13, (3, None), (None, 4), (1, 6), (11, 2)])
def test_parts(size):
    for shape in ((2, 3, 6, 9), (3, 7, 5), (0, 2, 4, 4)):
        agree("adaptive_avg_pool2d", draw(*shape), size)
        agree("adaptive_max_pool2d", draw(*shape), size, return_indices=True)
    if isinstance(size, int):
        agree("adaptive_avg_pool1d", draw(2, 3, 7), size)
        agree("adaptive_max_pool1d", draw(3, 7), size, return_indices=True)


def test_nan_infinities_and_ties():
    torch = pytest.importorskip("torch")
    x = RNG.choice([np.nan, -np.inf, np.inf, 0.0, 1.0], (3, 4, 9, 9), p=[0.1, 0.3, 0.1, 0.3, 0.2])
    x[0] = -np.inf
    for name, args in (("max_pool2d", (3, 2, 1)), ("adaptive_max_pool2d", (4,)), ("max_pool1d", (3, 1, 1)), ("adaptive_max_pool1d", (5,))):
        v = x if name.endswith("2d") else x[0]
        got = getattr(P, name)(from_array(v), *args, return_indices=True)
        want = getattr(torch.nn.functional, name)(torch.from_numpy(v), *args, return_indices=True)
        np.testing.assert_array_equal(got[0].array, want[0].numpy())
        np.testing.assert_array_equal(got[1].array, want[1].numpy())


def test_integers():
    torch = pytest.importorskip("torch")
    x = RNG.integers(-9, 9, (2, 3, 7, 7))
    want = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    np.testing.assert_array_equal(P.max_pool2d(from_array(x), 3, 2, 1).array, want)
    with pytest.raises(NotImplementedError):
        P.adaptive_avg_pool2d(from_array(x), 1)
    with pytest.raises(NotImplementedError):
        P.max_pool2d(from_array(x > 0), 2)


def test_unpooling():
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    x = draw(2, 3, 7, 8)
    values, places = F.max_pool2d(torch.from_numpy(x), 3, 2, 1, return_indices=True)
    for size in ((7, 8), (2, 3, 7, 8)):
        want = F.max_unpool2d(values, places, 3, 2, 1, size).numpy()
        np.testing.assert_array_equal(P.max_unpool2d(from_array(values.numpy()), from_array(places.numpy()), 3, 2, 1, size).array, want)
    values, places = F.max_pool1d(torch.from_numpy(x[0]), 2, return_indices=True)
    want = F.max_unpool1d(values, places, 2).numpy()
    np.testing.assert_array_equal(P.max_unpool1d(from_array(values.numpy()), from_array(places.numpy()), 2).array, want)
    with pytest.raises(ValueError, match="within a stride"):
        P.max_unpool1d(from_array(values.numpy()), from_array(places.numpy()), 2, output_size=(20,))


@pytest.mark.parametrize("name, shape, args", [
    ("max_pool2d", (4, 4), (2,)), ("max_pool2d", (1, 2, 4, 4), (5,)), ("max_pool2d", (1, 2, 4, 4), (3, 1, 2)),
    ("max_pool2d", (1, 2, 4, 4), (2, 0)), ("max_pool2d", (1, 0, 4, 4), (2,)), ("max_pool2d", (1, 2, 4, 4), ((2, 2, 2),)),
    ("max_pool2d", (1, 2, 4, 4), (2, 1, 0, 0)),
    ("avg_pool2d", (1, 2, 4, 4), (3, 1, 2)), ("avg_pool2d", (1, 2, 4, 4), (2, 1, 0, False, True, 0)), ("avg_pool2d", (1, 2, 4, 4), (2, -1)),
    ("adaptive_avg_pool2d", (1, 2, 0, 4), (2,)), ("adaptive_avg_pool2d", (1, 2, 4, 4), ((1, 2, 3),)), ("max_pool1d", (2, 4), (5,)),
    ("max_pool1d", (2, 4), (2, -1)), ("avg_pool1d", (2, 4), (5,))])
def test_what_pytorch_refuses_is_refused(name, shape, args):
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError):
        getattr(torch.nn.functional, name)(torch.zeros(shape), *args)
    with pytest.raises(RuntimeError, match=f"{name}: expected"):
        getattr(P, name)(T.zeros(shape), *args)


# ------------------------------------------------------------------ padding
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("sizes", [
    (1, 2), (0, 3), (2, 0, 1, 1), (0, 0, 2, 1), (1, 1, 2, 0, 0, 2), (-1, 2), (2, -3), (-2, -1, 1, 0), (0, 0)])
def test_padding(mode, sizes):
    dims = len(sizes) // 2
    for lead in ((2,), (2, 3)):
        agree("pad", draw(*lead, *(5, 4, 6)[3 - dims:]), sizes, mode, module=T.nn.functional)


def test_padding_with_a_number_and_any_dims():
    torch = pytest.importorskip("torch")
    whole = RNG.integers(0, 9, (2, 3))
    for x, sizes, value in ((draw(3, 4), (1, -2, 3, 0), 2.5), (whole, (1, 1), 7), (draw(5) > 0, (2, 1), 1), (draw(2, 3), (), 1)):
        want = torch.nn.functional.pad(torch.from_numpy(x), sizes, value=value)
        np.testing.assert_array_equal(pad(from_array(x), sizes, value=value).array, want.numpy())


def test_padding_makes_a_new_tensor():
    x = T.ones(1, 3)
    assert pad(x, (0, 0), "reflect").data_ptr() != x.data_ptr() != pad(x, (0, 0)).data_ptr()


@pytest.mark.parametrize("shape, args", [
    ((2, 3), ((3, 0), "reflect")), ((2, 3), ((4, 0), "circular")), ((3,), ((1, 1), "reflect")), ((2, 3, 4), ((1, 1, 1), "reflect")),
    ((2, 3), ((1, 1), "mirror")), ((2, 3), ((1, 1), "reflect", 1.0)), ((3,), ((1, 1, 1, 1),)), ((3,), ((-2, -2),)),
    ((2, 0), ((1, 1), "replicate")), ((2, 3), ((-2, -1), "replicate"))])
def test_what_padding_refuses(shape, args):
    torch = pytest.importorskip("torch")
    with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
        torch.nn.functional.pad(torch.zeros(shape), *args)
    with pytest.raises(type(theirs.value), match="pad: expected"):
        pad(T.zeros(shape), *args)


# ------------------------------------------------------------------ the kernels
@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_kernels_are_the_cpu(tiles, channels_last, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    image = draw(2, 3, 23, 19, dtype=np.float32)
    image[0, 1, 3:5, 2:9] = np.nan
    for name, args in (("max_pool2d", (3, 2, 1)), ("max_pool2d", ((4, 2), 1, (2, 0), (1, 3))), ("avg_pool2d", (5, 3, 2, True, False)),
                       ("avg_pool2d", ((2, 7), (2, 3), (1, 3))), ("adaptive_avg_pool2d", ((7, 30),)), ("adaptive_max_pool2d", ((9, 19),))):
        found = []
        for device in ("cpu", cuda):
            x = from_array(image.copy()).to(device)
            x = (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if channels_last else x).requires_grad_()
            out = getattr(P, name)(x, *args)
            out.backward(from_array(np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)).to(device))
            found.append([out.detach().cpu().array, x.grad.cpu().array])
        for here, there in zip(*found):
            np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-5, err_msg=f"{name}{args}")


@pytest.mark.parametrize("adaptive, kernel, stride, padding, dilation", [
    (True, 0, 1, 0, 1), *[(False, k, s, p, d) for k, s, d in itertools.product((1, 2, 3), (1, 2, 4), (1, 2)) for p in {0, k // 2}]])
def test_every_window_is_found_from_its_elements(adaptive, kernel, stride, padding, dilation, cuda):
    """On a row of places and on a column, the gradient of the largest of each window counts how often an element wins."""
    for n, down, channels in ((5, False, 1), (9, False, 1), (6, True, 1), (9, True, 1), (11, True, 2)):
        x = from_array(np.stack([RNG.permutation(n) for _ in range(channels)], 1).astype(np.float32))
        x = x.T.view(1, channels, n, 1) if channels > 1 else x.view(1, 1, n, 1) if down else x.view(1, 1, n)
        for part in (2, 4, 7) if adaptive else (0,):
            counts = []
            for device in ("cpu", cuda):
                y = x.to(device).detach().requires_grad_()
                if down:
                    out = (P.adaptive_max_pool2d(y, (part, 1)) if adaptive
                           else P.max_pool2d(y, (kernel, 1), (stride, 1), (padding, 0), (dilation, 1)))
                else:
                    out = P.adaptive_max_pool1d(y, part) if adaptive else P.max_pool1d(y, kernel, stride, padding, dilation)
                out.sum().backward()
                counts.append(y.grad.cpu().array)
            np.testing.assert_array_equal(*counts)


def test_two_places_share_a_byte(cuda):
    """The lower half is that of the upper window; below the last of an odd number there is none, where an image may go on."""
    from tritorch.ops.max_pooling import max_pool, max_pool_input, places_of

    window = (3, 3), (2, 2), (1, 1)
    for height, rows in ((10, 5), (7, 3), (12, 6)):
        x = RNG.permutation(2 * 3 * height * 9).astype(np.float32).reshape(2, 3, height, 9)
        found = []
        for device, last in itertools.product(("cpu", cuda), (False, True)):
            image = from_array(x).to(device).to(memory_format=T.channels_last if last else T.contiguous_format)
            values, taps = max_pool(image, (rows, 5), *window)
            assert taps.shape == (2, 3, -(-rows // 2), 5) and taps.dtype is T.uint8
            gradient = max_pool_input(values, taps, (height, 9), *window)
            found.append([t.cpu().array for t in (taps, places_of(taps, (rows, 5), (height, 9), *window), gradient)])
        taps, places, gradient = found[0]
        r, s = places // 9 - 2 * np.arange(rows)[:, None] + 1, places % 9 - 2 * np.arange(5) + 1
        wanted = np.pad(3 * r + s, ((0, 0), (0, 0), (0, rows % 2), (0, 0)))
        np.testing.assert_array_equal(taps, wanted[:, :, ::2] + 16 * wanted[:, :, 1::2])
        for other in found[1:]:
            for here, there in zip(found[0], other):
                np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("args", [(3, 2, 1), (2, 2), (3, 1, 1), (3, 2, 0, 1, True), (5, 1, 2)])
def test_neighbours_that_come_as_one_word(args, cuda, monkeypatch):
    """Rows that allow words, some that do not, and images that begin anywhere: values with and without places, places, gradients."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    for dtype, shape, layout in ((T.bfloat16, (2, 3, 7, 16), "plain"), (T.bfloat16, (3, 5, 5, 8), "expanded"), (T.half, (1, 2, 5, 11), ""),
                                 (T.float32, (2, 2, 5, 12), "shifted"), (T.float32, (1, 2, 6, 8), "last")):
        image = RNG.integers(-9, 9, shape).astype(np.float32)
        image[0, 0, 1:4, 2:5], image[-1, -1, 2] = np.nan, -np.inf
        found = []
        for device in ("cpu", cuda):
            x = from_array(image).to(dtype).to(device)
            if layout == "last":
                x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
            elif layout == "expanded":
                x = x[:, :1].expand(*shape)
            elif layout == "shifted":
                x = T.cat((x.flatten()[:3], x.flatten()))[3:].view(shape)
            alone = P.max_pool2d(x, *args)
            x = x.detach().requires_grad_()
            out, places = P.max_pool2d(x, *args, return_indices=True)
            g = from_array(np.random.default_rng(1).integers(-9, 9, out.shape).astype(np.float32)).to(dtype).to(device)
            found.append([t.cpu().float().array for t in (alone, out.detach(), places, T.autograd.grad(out, x, g)[0])])
        for here, there in zip(*found):
            np.testing.assert_array_equal(there, here, err_msg=f"{dtype} {shape} {layout}")


@pytest.mark.records
def test_machine_code():
    """Large images compile for three architectures without spilled registers."""
    pytest.importorskip("triton")
    from test_product_code import check, launched

    from tritorch.ops.avg_pooling import avg_pool, avg_pool_input
    from tritorch.ops.max_pooling import max_pool, max_pool_input, max_pool_values

    def call(e):
        for dtype in (T.bfloat16, T.float32):
            x = e(64, 64, 112, 112, dtype=dtype)
            for size, *rest in (((56, 56), (3, 3), (2, 2), (1, 1)), ((112, 112), (3, 3), (1, 1), (1, 1)), ((7, 9),)):
                values, taps = max_pool(x, size, *rest)
                max_pool_values(x, size, *rest)
                max_pool_input(values, taps, (112, 112), *rest)
                avg_pool(x, size, *rest)
                avg_pool_input(values, (112, 112), *rest)

    check(launched(call))


PADDED = {"rows": lambda x: x, "channels last": lambda x: x.to(memory_format=T.channels_last), "turned": lambda x: x.transpose(1, 3),
          "gapped": lambda x: x[:, 1:, ::2, 3:], "expanded": lambda x: x[:, :1].expand(x.shape)}


@pytest.mark.parametrize("layout", PADDED)
@pytest.mark.parametrize("dtype", [T.float32, T.bfloat16, T.int64, T.bool])
def test_padding_any_layout(layout, dtype, cuda, tiles):
    here = T.tensor(RNG.integers(0, 2, (2, 5, 6, 37))).to(dtype)
    there = PADDED[layout](here.cuda())
    for sizes in ((1, 2), (3, 0, 0, 1), (1, 1, 1, 1), (0, 0, 2, 1), (-1, 95, 1, -1), (0, 90, 0, 0, 1, 1), (0, 0, 0, 0, 0, 70),
                  (0, 9, 0, 0, 0, 0, 1, 2)):
        got, want = pad(there, sizes, value=1), pad(PADDED[layout](here), sizes, value=1)
        np.testing.assert_array_equal(got.cpu().float().numpy(), want.float().numpy(), err_msg=str(sizes))
        assert got.stride() == want.stride()


@pytest.mark.parametrize("layout", PADDED)
@pytest.mark.parametrize("mode, numpys", [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_padding_with_values_of_its_own(mode, numpys, layout, cuda, tiles):
    """Against numpy, forward and, as the transpose, back."""
    here = PADDED[layout](T.tensor(draw(2, 5, 8, 37, dtype=np.float32)))
    for sizes in ((2, 1, 0, 0), (1, 1, 1, 1), (0, 0, 3, 2), (0, 3, 2, 0)):
        places = T.tensor(np.pad(np.arange(here.numel()).reshape(here.shape), ((0, 0), (0, 0), sizes[2:], sizes[:2]), numpys))
        for device in ("cpu", cuda):
            x = here.to(device).detach().requires_grad_()
            out = pad(x, sizes, mode)
            assert (out.cpu() == here.reshape(-1)[places]).all() and out.stride() == pad(here, sizes, mode).stride()
            g = draw(*out.shape, dtype=np.float32)
            out.backward(T.tensor(g, device=device))
            want = np.bincount(places.numpy().ravel(), g.ravel(), here.numel()).reshape(here.shape)
            np.testing.assert_allclose(x.grad.cpu().numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode, numpys", [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_padding_any_dims(mode, numpys, cuda):
    whole = RNG.integers(0, 200, (2, 3, 4, 5, 3))
    for x, sizes in ((whole, (1, 2, 0, 3, 2, 1)), (whole[0], (1, 2, 3, 0, 1, 1)), (whole[0, 0], (1, 2)), (whole[0, 0], (1, 0, 2, 3)),
                     (whole[0, :, :, 0], (1, 1)), (whole > 90, (2, 2, 1, 1, 0, 0))):
        want = np.pad(x, [(0, 0)] * (x.ndim - len(sizes) // 2) + [sizes[k:k + 2] for k in range(0, len(sizes), 2)][::-1], numpys)
        for device in ("cpu", cuda):
            np.testing.assert_array_equal(pad(T.tensor(x, device=device), sizes, mode).cpu().numpy(), want)
    volume = T.tensor(whole, device=cuda).to(memory_format=T.channels_last_3d)
    order = T.contiguous_format if mode == "circular" else T.channels_last_3d              # as PyTorch's
    assert pad(volume, (1, 1, 1, 1, 1, 1), mode).is_contiguous(memory_format=order)
    row = T.arange(5.0, device=cuda).view(1, 5)
    assert pad(row, (-1, 2), mode)[0].tolist() == {"reflect": [1, 2, 3, 4, 3, 2], "replicate": [1, 2, 3, 4, 4, 4],
                                                   "circular": [1, 2, 3, 4, 1, 2]}[mode]


def test_padding_is_one_pass():
    with driver.using(DryDriver(90)), compiler.recording() as record:
        pad(T.empty(64, 1000, device="cuda"), (0, 24))
        pad(T.empty(4, 6, 9, 32, device="cuda").permute(0, 3, 1, 2), (1, 1, 1, 1))
        assert {spec.kernel.__name__ for spec in record.values()} == {"pad_kernel"}
        record.clear()
        x = T.empty(2, 3, 9, 32, device="cuda").requires_grad_()
        out = pad(x, (1, 1, 1, 1), "reflect")
        T.autograd.grad(out, x, T.empty(out.shape, device="cuda"))
    assert [spec.kernel.__name__ for spec in record.values()] == ["edge_pad_kernel", "edge_pad_back_kernel"]
