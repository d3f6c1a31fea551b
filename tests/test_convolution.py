"""Convolution against PyTorch over its arguments, on large and odd problems of the kernels, and their machine code."""
import itertools

import numpy as np
import pytest

import tritorch as T
from tritorch.cuda import driver
from tritorch.ops import convolution_cuda
from tritorch.ops.convolution import (
    conv1d,
    conv2d,
    conv_transpose1d,
    conv_transpose2d,
    convolution,
    convolution_input,
    convolution_weight,
)
from tritorch.ops.convolution_volumes import conv3d
from tritorch.tensor import from_array

RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def agree(ours, theirs, arrays, tolerance=1e-9, **kwargs):
    """Values and gradients of a function of the arrays (None among them) are PyTorch's."""
    torch = pytest.importorskip("torch")
    x = [None if a is None else from_array(a.copy()).requires_grad_() for a in arrays]
    y = [None if a is None else torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    got, want = ours(*x, **kwargs), theirs(*y, **kwargs)
    assert tuple(got.shape) == tuple(want.shape)
    g = draw(*want.shape)
    got.backward(from_array(g))
    want.backward(torch.from_numpy(g))
    np.testing.assert_allclose(got.detach().array, want.detach().numpy(), rtol=tolerance, atol=tolerance)
    for a, b in zip(x, y):
        if a is not None:
            np.testing.assert_allclose(a.grad.array, b.grad.numpy(), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------ PyTorch's arguments
@pytest.mark.parametrize("stride, padding, dilation, groups", [
    *itertools.product((1, 2, (2, 3)), (0, 1, (2, 1)), (1, 2, (1, 3)), (1, 2)),
    (1, "same", 1, 1), (1, "same", (2, 3), 2), (2, "valid", 1, 1), ((3, 1), 2, (2, 1), 4), ((5, 4), 0, 1, 4)])
def test_conv2d(stride, padding, dilation, groups):
    torch = pytest.importorskip("torch")
    for kernel, batch in (((3, 2), (2,)), ((1, 1), ()), ((2, 3), (0,))):
        agree(conv2d, torch.nn.functional.conv2d, (draw(*batch, 4, 9, 8), draw(8, 4 // groups, *kernel), draw(8)),
              stride=stride, padding=padding, dilation=dilation, groups=groups)


@pytest.mark.parametrize("stride, padding, dilation, groups", [
    (1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 1), (1, "same", 3, 1), ((2,), (1,), (1,), 4)])
def test_conv1d(stride, padding, dilation, groups):
    torch = pytest.importorskip("torch")
    for batch in ((3,), ()):
        agree(conv1d, torch.nn.functional.conv1d, (draw(*batch, 4, 11), draw(8, 4 // groups, 3), None),
              stride=stride, padding=padding, dilation=dilation, groups=groups)


@pytest.mark.parametrize("dims", [1, 2])
def test_gradients_as_functions(dims):
    torch = pytest.importorskip("torch")
    x, w = draw(2, 4, *(9, 8)[:dims]), draw(6, 2, *(3, 2)[:dims])
    for stride, padding, dilation in ((1, 0, 1), ((2, 3)[:dims], 1, (1, 2)[:dims])):
        settings = stride, padding, dilation, 2
        g = draw(*getattr(torch.nn.functional, f"conv{dims}d")(torch.from_numpy(x), torch.from_numpy(w), None, *settings).shape)
        for what, arguments in (("input", (x.shape, w, g)), ("weight", (x, w.shape, g))):
            ours, theirs = (getattr(m.nn.grad, f"conv{dims}d_{what}") for m in (T, torch))
            want = theirs(*[torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments], *settings)
            got = ours(*[from_array(a) if isinstance(a, np.ndarray) else a for a in arguments], *settings)
            np.testing.assert_allclose(got.array, want.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stride, padding, dilation, groups", [
    (1, 0, 1, 1), ((2, 1, 2), (1, 2, 0), (2, 1, 1), 2), (1, "same", (3, 1, 2), 1), ((3, 2, 2), (2, 1, 1), 1, 4), (2, "valid", 1, 1)])
def test_conv3d(stride, padding, dilation, groups):
    torch = pytest.importorskip("torch")
    for kernel, batch in (((2, 3, 2), (2,)), ((1, 1, 1), ()), ((3, 2, 3), (0,))):
        agree(conv3d, torch.nn.functional.conv3d, (draw(*batch, 4, 7, 6, 8), draw(8, 4 // groups, *kernel), draw(8)),
              stride=stride, padding=padding, dilation=dilation, groups=groups)
    with pytest.raises(RuntimeError, match="weight of 5 dims"):
        conv3d(T.ones(2, 4, 6, 8), T.ones(8, 4, 1, 1))


def test_conv3d_on_the_device(cuda):
    x, weight = draw(2, 4, 5, 6, 7, dtype=np.float32), draw(6, 2, 3, 2, 3, dtype=np.float32)
    results = []
    for device in ("cpu", cuda):
        a, b = (T.tensor(t, device=device, requires_grad=True) for t in (x, weight))
        y = conv3d(a, b, stride=(2, 1, 1), padding=1, groups=2)
        assert y.is_contiguous()
        y.square().sum().backward()
        results.append([t.detach().cpu().numpy() for t in (y, a.grad, b.grad)])
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride, padding, output_padding, dilation, groups", [
    *itertools.product((1, 2, (3, 2)), (0, (1, 2)), (0,), (1, (2, 3)), (1, 2)),
    (2, 1, 1, 1, 4), ((3, 2), 1, (2, 1), (2, 1), 1), (1, 0, 1, 2, 1)])
def test_conv_transpose2d(stride, padding, output_padding, dilation, groups):
    torch = pytest.importorskip("torch")
    kwargs = dict(stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups)
    for kernel, batch in (((3, 2), (2,)), ((3, 3), ())):
        arrays = draw(*batch, 4, 5, 6), draw(4, 8 // groups, *kernel), draw(8)
        agree(conv_transpose2d, torch.nn.functional.conv_transpose2d, arrays, **kwargs)


@pytest.mark.parametrize("stride, padding, output_padding, dilation, groups", [
    (1, 0, 0, 1, 1), (2, 1, 1, 1, 2), (3, 2, 0, 2, 1), (2, 0, 1, 3, 4)])
def test_conv_transpose1d(stride, padding, output_padding, dilation, groups):
    torch = pytest.importorskip("torch")
    for batch in ((3,), ()):
        agree(conv_transpose1d, torch.nn.functional.conv_transpose1d, (draw(*batch, 4, 7), draw(4, 8 // groups, 3), draw(8)),
              stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups)


def test_many_images_are_taken_in_pieces():
    torch = pytest.importorskip("torch")
    agree(conv2d, torch.nn.functional.conv2d, (draw(70, 8, 30, 30), draw(6, 8, 3, 3), draw(6)), padding=1, stride=(1, 2))


def test_half_types_are_summed_in_float32():
    x, w = draw(1, 200, 5, 5, dtype=np.float32), draw(3, 200, 3, 3, dtype=np.float32)
    half = [from_array(v).to(T.bfloat16) for v in (x, w)]
    got = conv2d(*half, padding=1)
    want = conv2d(*[h.to(T.float64) for h in half], padding=1)
    assert got.dtype is T.bfloat16
    np.testing.assert_allclose(got.to(T.float64).array, want.array, rtol=2 ** -8)


@pytest.mark.parametrize("f, args, kwargs", [
    (conv2d, ((1, 3, 4, 4), (2, 4, 3, 3)), {}), (conv2d, ((1, 3, 4, 4), (2, 3, 5, 3)), {}), (conv2d, ((3, 4), (2, 3, 3, 3)), {}),
    (conv2d, ((1, 4, 4, 4), (3, 2, 3, 3)), {"groups": 2}), (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3), (3,)), {}),
    (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {"stride": 0}), (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {"padding": -1}),
    (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {"stride": (1, 1, 1)}), (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {"padding": "same", "stride": 2}),
    (conv2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {"padding": "half"}), (conv1d, ((1, 3, 4, 4), (2, 3, 3, 3)), {}),
    (conv_transpose2d, ((1, 3, 4, 4), (2, 3, 3, 3)), {}), (conv_transpose2d, ((1, 3, 4, 4), (3, 2, 3, 3)), {"output_padding": 1}),
    (conv_transpose2d, ((1, 3, 1, 1), (3, 2, 1, 1)), {"padding": 1}), (conv_transpose2d, ((1, 3, 4, 4), (3, 2, 3, 3), (3,)), {})])
def test_what_pytorch_refuses_is_refused(f, args, kwargs):
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError):
        getattr(torch.nn.functional, f.__name__)(*[torch.from_numpy(draw(*s)) for s in args], **kwargs)
    with pytest.raises(RuntimeError, match="expected"):
        f(*[from_array(draw(*s)) for s in args], **kwargs)


# ------------------------------------------------------------------ the kernels
PROBLEMS = [
    # input, weight, size, stride, padding, dilation, groups
    ((3, 5, 20, 17), (70, 5, 3, 3), (20, 17), (1, 1), (1, 1), (1, 1), 1),
    ((2, 40, 9, 11), (36, 40, 3, 2), (5, 6), (2, 2), (1, 1), (1, 1), 1),
    ((2, 40, 12, 10), (8, 20, 3, 3), (4, 6), (3, 2), (2, 4), (2, 3), 2),
    ((2, 6, 16, 16), (6, 1, 5, 3), (8, 16), (2, 1), (2, 1), (1, 1), 6),
    ((1, 3, 24, 24), (20, 3, 8, 8), (3, 3), (8, 8), (0, 0), (1, 1), 1),
    ((5, 6, 9, 12), (7, 6, 1, 1), (9, 12), (1, 1), (0, 0), (1, 1), 1),
    ((3, 40, 8, 12), (36, 40, 1, 1), (4, 4), (2, 3), (0, 0), (1, 1), 1),
    ((2, 70, 7, 5), (33, 70, 1, 1), (7, 5), (1, 1), (0, 0), (1, 1), 1),
    ((1, 4, 9, 9), (12, 1, 3, 3), (6, 5), (2, 3), (3, 2), (2, 2), 4),
]


def channels_last(x):
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=[str(p[1]) for p in PROBLEMS])
def test_kernels_are_the_cpu(problem, layout, tiles, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    x, w, size, *rest = problem
    arrange = channels_last if layout == "nhwc" else T.Tensor.contiguous
    image, filters, gradient, bias = [from_array(draw(*s, dtype=np.float32)) for s in (x, w, (x[0], w[0], *size), w[:1])]
    for operator, args in ((convolution, (image, filters, bias, size)), (convolution_input, (gradient, filters, x[2:])),
                           (convolution_weight, (gradient, image, w[2:]))):
        want = operator(*[a.to(T.float64) if isinstance(a, T.Tensor) else a for a in args], *rest).array
        there = [a.to(cuda) if isinstance(a, T.Tensor) else a for a in args]
        there = [arrange(a) if isinstance(a, T.Tensor) and a.ndim == 4 else a for a in there]
        np.testing.assert_allclose(operator(*there, *rest).cpu().array, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
def test_three_channels_become_four(layout, channels, tiles, cuda, monkeypatch):
    """In half precision, forward and for the weights; what lies beside the image in memory is not read."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    x, w, g = draw(2, channels, 13, 10, dtype=np.float32), draw(17, channels, 5, 3, dtype=np.float32), draw(2, 17, 6, 10, dtype=np.float32)
    x, w, g = [from_array(a).to(T.bfloat16) for a in (x, w, g)]
    rest = (2, 1), (1, 1), (1, 1)
    want = convolution(x.double(), w.double(), None, (6, 10), *rest), convolution_weight(g.double(), x.double(), (5, 3), *rest)

    def there(a):
        if layout == "sliced":
            whole = T.full((a.shape[0], a.shape[1] + 2, *a.shape[2:]), float("nan"), dtype=a.dtype)
            whole[:, 1:-1] = a
            return whole.to(cuda)[:, 1:-1]
        return (channels_last(a) if layout == "channels last" else a).to(cuda)

    got = convolution(there(x), there(w), None, (6, 10), *rest), convolution_weight(g.to(cuda), there(x), (5, 3), *rest)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a.cpu().float().array, b.array, rtol=1e-2, atol=1e-2 * np.abs(b.array).max())


@pytest.mark.parametrize("groups", [1, 8])
def test_weight_gradient_is_split_and_deterministic(groups, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", True)
    processors, *machine = convolution_cuda.hardware()
    monkeypatch.setattr(convolution_cuda, "hardware", lambda: (max(processors, 132), *machine))     # a host has too few to split anything
    g, x = draw(3, 8, 30, 30, dtype=np.float32), draw(3, 8, 30, 30, dtype=np.float32)
    splits = []
    kept = convolution_cuda._add_parts
    monkeypatch.setattr(convolution_cuda, "_add_parts", lambda out, parts, n: (splits.append(n), kept(out, parts, n)))
    args = (3, 3), (1, 1), (1, 1), (1, 1), groups
    first, second = [convolution_weight(from_array(g).to(cuda), from_array(x).to(cuda), *args).cpu().array for _ in range(2)]
    assert splits and splits[0] > 1                                      # a repeated call may not run the implementation again
    assert (first == second).all()
    np.testing.assert_allclose(first, convolution_weight(from_array(g), from_array(x), *args).array, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision, error", [("high", 2e-3), ("medium", 2e-2)])
def test_precision_is_honoured(precision, error, cuda):
    """The simulated device multiplies exactly, but it goes through the same code."""
    x, w = [from_array(draw(*s, dtype=np.float32)).to(cuda) for s in ((2, 33, 6, 6), (16, 33, 3, 3))]
    exact = conv2d(x, w).cpu().array
    T.set_float32_matmul_precision(precision)
    try:
        rough = conv2d(x, w).cpu().array
    finally:
        T.set_float32_matmul_precision("highest")
    np.testing.assert_allclose(rough, exact, atol=error * np.abs(exact).max() * 10)


# ------------------------------------------------------------------ machine code
NHWC = {
    "3x3": ((128, 64, 56, 56), (64, 64, 3, 3), (56, 56), (1, 1), (1, 1), (1, 1), 1),
    "1x1 strided": ((128, 256, 56, 56), (512, 256, 1, 1), (28, 28), (2, 2), (0, 0), (1, 1), 1),
    "three channels": ((128, 3, 224, 224), (64, 3, 7, 7), (112, 112), (2, 2), (3, 3), (1, 1), 1),
    "depthwise": ((128, 144, 56, 56), (144, 1, 3, 3), (56, 56), (1, 1), (1, 1), (1, 1), 144),
}


@pytest.mark.records
@pytest.mark.parametrize("name", NHWC)
def test_channels_last_is_read_in_wide_pieces(name):
    """In bfloat16 no kernel of a layer loads or stores numbers one at a time, or copies more than the weights."""
    pytest.importorskip("triton")
    import machine_code
    from test_product_code import launched

    x, w, size, *rest = NHWC[name]

    def call(e):
        image, filters, gradient = [e(n, h, w, c, dtype=T.bfloat16).permute(0, 3, 1, 2) for n, c, h, w in (x, w, (x[0], w[0], *size))]
        convolution(image, filters, None, size, *rest)
        if x[1] > 3:
            convolution_input(gradient, filters, x[2:], *rest)
        convolution_weight(gradient, image, w[2:], *rest)

    specs = launched(call)
    for spec, code in zip(specs, machine_code.used(specs, 90, texts=["ld.global.b16", "ld.global.u16"])):
        name = spec.kernel.__name__
        assert code["spills"] == 0
        if name in ("convolution_kernel", "convolution_weight_kernel", "depthwise_kernel", "depthwise_weight_kernel"):
            assert code["load"] >= 64 and not code["ld.global.b16"] and not code["ld.global.u16"], name
            assert code["wgmma"] or "depthwise" in name


LAYERS = {
    "3x3": ((64, 64, 56, 56), (64, 64, 3, 3), (56, 56), (1, 1), (1, 1), (1, 1), 1),
    "strided": ((64, 128, 56, 56), (128, 128, 3, 3), (28, 28), (2, 2), (1, 1), (1, 1), 1),
    "few channels": ((64, 3, 224, 224), (64, 3, 7, 7), (112, 112), (2, 2), (3, 3), (1, 1), 1),
    "depthwise": ((64, 256, 56, 56), (256, 1, 3, 3), (56, 56), (1, 1), (1, 1), (1, 1), 256),
}


@pytest.mark.records
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_machine_code(name, dtype):
    """Large layers compile for three architectures, and in bfloat16 spill no registers."""
    pytest.importorskip("triton")
    from test_product_code import check, launched

    x, w, size, *rest = LAYERS[name]

    def call(e):
        kind = dict(dtype=getattr(T, dtype))
        image, filters, gradient = e(*x, **kind), e(*w, **kind), e(x[0], w[0], *size, **kind)
        convolution(image, filters, None, size, *rest)
        convolution_input(gradient, filters, x[2:], *rest)
        convolution_weight(gradient, image, w[2:], *rest)

    check(launched(call), may_spill=dtype != "bfloat16")


# ------------------------------------------------------------------ more pixels than 32 bits count
@pytest.mark.parametrize("channels, groups, stride, dtype", [(3, 1, 1, "float32"), (4, 1, (2, 1), "bfloat16"), (32, 1, 2, "bfloat16"),
                                                             (6, 2, 1, "float64"), (6, 6, (1, 2), "float32")])
def test_wide_numbers_give_the_same_bits(channels, groups, stride, dtype, monkeypatch, cuda):
    """Where pixels are counted in 64 bits every kernel gives what it gives otherwise."""
    x, w, b = [T.tensor(draw(*s), device=cuda).to(getattr(T, dtype)).requires_grad_() for s in
               ((3, channels, 9, 7), (12, channels // groups, 3, 3), (12,))]
    outcomes = []
    for most in (convolution_cuda.MANY, -1):
        monkeypatch.setattr(convolution_cuda, "MANY", most)
        for plan in (convolution_cuda._plan, convolution_cuda._plan_depthwise, convolution_cuda._plan_weight,
                     convolution_cuda._plan_depthwise_weight):
            plan.cache_clear()
        driver.forget_calls()
        out = conv2d(x, w, b, stride, 1, 1, groups)
        outcomes.append([out, *T.autograd.grad(out, (x, w, b), T.ones_like(out))])
    for narrow, wide in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(narrow.detach().cpu().float().array, wide.detach().cpu().float().array)
