"""Memory formats: which strides tensors are made with, and that results and gradients lie where PyTorch puts them."""
import copy
import pickle
import random

import numpy as np
import pytest

import tritorch as T
from tritorch.memory_format import broadcasting, dense_strides, elementwise, suggested
from tritorch.nn import functional as F

LAST = T.channels_last


def image(*shape, dtype=T.float32, device="cpu"):
    """A channels-last tensor of different numbers."""
    return T.linspace(-3, 40, int(np.prod(shape))).sin().view(shape).to(dtype).to(device).contiguous(memory_format=LAST)


# ------------------------------------------------------------------ formats
def test_strides_of_formats():
    assert T.empty(2, 3, 4, 5, memory_format=LAST).stride() == (60, 1, 15, 3)
    assert T.empty(2, 3, 4, 5, 6, memory_format=T.channels_last_3d).stride() == (360, 1, 90, 18, 3)
    assert T.empty(2, 3, memory_format=T.contiguous_format).stride() == (3, 1)
    assert T.empty(2, 3, 1, 1).to(memory_format=LAST).stride() == (3, 1, 3, 3)      # which both formats could be: strides say which
    assert T.empty(2, 3, 1, 1).contiguous(memory_format=LAST).stride() == (3, 1, 1, 1)
    assert T.empty(4, 5).t().clone().stride() == (1, 5) and T.empty(4, 5).t().contiguous().stride() == (4, 1)
    assert T.empty(4, 5).t().clone(memory_format=T.contiguous_format).stride() == (4, 1)
    assert T.empty(4, 5, 3).permute(2, 0, 1).double().stride() == (1, 15, 3)
    x = image(2, 3, 4, 5)
    assert x.is_contiguous(memory_format=LAST) and not x.is_contiguous() and x.to(memory_format=LAST) is x
    assert x.is_contiguous(memory_format=T.preserve_format) and not x.is_contiguous(memory_format=T.channels_last_3d)
    assert x.to(memory_format=T.contiguous_format).stride() == (60, 20, 5, 1) and x.half().stride() == x.stride()
    for like in (T.empty_like, T.zeros_like, T.ones_like, T.rand_like, T.randn_like, lambda x, **how: T.full_like(x, 2.0, **how)):
        assert like(x).stride() == x.stride() and like(x, memory_format=T.contiguous_format).stride() == (60, 20, 5, 1)
        assert like(x.contiguous(), memory_format=LAST).stride() == x.stride()


def test_errors():
    for make in (lambda: T.empty(2, 3, memory_format=LAST), lambda: T.empty(2, 3).to(memory_format=LAST),
                 lambda: T.empty(2, 3).contiguous(memory_format=T.channels_last_3d), lambda: T.empty(2, memory_format=T.preserve_format)):
        with pytest.raises(RuntimeError, match="expected"):
            make()
    with pytest.raises(TypeError, match="a memory_format"):
        T.empty(2, 3, 4, 5, memory_format="channels_last")


def test_formats_are_values():
    assert repr(LAST) == "tritorch.channels_last" and isinstance(LAST, T.memory_format)
    assert pickle.loads(pickle.dumps(LAST)) is LAST and copy.deepcopy(LAST) is LAST


def test_rules():
    """Sizes of 1, gaps and stride 0, by hand."""
    assert suggested((2, 3, 4, 5), (120, 1, 30, 6)) is LAST and suggested((2, 3, 4, 5), (60, 20, 5, 1)) is T.contiguous_format
    assert suggested((2, 1, 1, 1), (1, 1, 1, 1)) is T.contiguous_format and suggested((2, 3, 4, 5), (20, 0, 5, 1)) is T.contiguous_format
    assert elementwise((2, 3, 1, 1), (3, 1, 3, 3)) == (3, 1, 1, 1) and broadcasting((2, 3, 1, 1), (3, 1, 3, 3)) == (3, 1, 3, 3)
    assert broadcasting((2, 3), (0, 1), (1, 2)) == (1, 2) and broadcasting((2, 3), (3, 1), (1, 2)) == (3, 1)
    assert dense_strides((4, 3), (2, 8)) == (1, 4) and dense_strides((4, 3), (1, 4)) == (1, 4)


# ------------------------------------------------------------------ operators
SHAPE = (2, 4, 6, 5)
STAYS = {
    "relu": lambda L, F, x: L.relu(x), "plus a number": lambda L, F, x: x + 1, "plus another": lambda L, F, x: x + x.contiguous(),
    "times channels": lambda L, F, x: x * L.ones(4, 1, 1), "where": lambda L, F, x: L.where(x > 0, x, 0.0),
    "lerp": lambda L, F, x: x.lerp(x, 0.5), "to a dtype": lambda L, F, x: x.double(), "clamp": lambda L, F, x: x.clamp(0, 1),
    "dropout": lambda L, F, x: F.dropout(x, 0.5), "dropout2d": lambda L, F, x: F.dropout2d(x, 0.5), "gelu": lambda L, F, x: F.gelu(x),
    "glu": lambda L, F, x: F.glu(x, 1), "conv2d": lambda L, F, x: F.conv2d(x, L.ones(8, 4, 3, 3), stride=2),
    "conv2d 1x1": lambda L, F, x: F.conv2d(x, L.ones(8, 4, 1, 1)),
    "grouped": lambda L, F, x: F.conv2d(x, L.ones(8, 1, 3, 3), L.ones(8), groups=4),
    "by the weights": lambda L, F, x: F.conv2d(x.contiguous(), L.ones(8, 4, 3, 3).to(memory_format=L.channels_last)),
    "conv_transpose2d": lambda L, F, x: F.conv_transpose2d(x, L.ones(4, 3, 2, 2), L.ones(3), stride=2),
    "batch_norm": lambda L, F, x: F.batch_norm(x, None, None, training=True),
    "batch_norm, given": lambda L, F, x: F.batch_norm(x, L.zeros(4), L.ones(4)), "group_norm": lambda L, F, x: F.group_norm(x, 2),
    "max_pool2d": lambda L, F, x: F.max_pool2d(x, 3, 2, 1), "avg_pool2d": lambda L, F, x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda L, F, x: F.adaptive_avg_pool2d(x, (3, 2)), "pad": lambda L, F, x: F.pad(x, (1, 2, 0, 1)),
    "adaptive_max_pool2d": lambda L, F, x: F.adaptive_max_pool2d(x, (3, 2)), "reflect": lambda L, F, x: F.pad(x, (1, 2, 0, 1), "reflect"),
    "nearest": lambda L, F, x: F.interpolate(x, scale_factor=2), "bilinear": lambda L, F, x: F.interpolate(x, (7, 9), mode="bilinear"),
    "cat": lambda L, F, x: L.cat([x, x[:, :2]], 1), "flip": lambda L, F, x: x.flip(3), "roll": lambda L, F, x: x.roll(1, 2),
    "normalize": lambda L, F, x: F.normalize(x), "of a slice": lambda L, F, x: L.relu(x[:, :, ::2]),
    "clone": lambda L, F, x: x[..., 1:].clone(),
}
BECOMES_CONTIGUOUS = {
    "softmax": lambda L, F, x: x.softmax(1), "layer_norm": lambda L, F, x: F.layer_norm(x, (5,)),
    "sum": lambda L, F, x: x.sum(1, keepdim=True), "mixed cat": lambda L, F, x: L.cat([x, x.contiguous()], 1),
    "instance_norm": lambda L, F, x: F.instance_norm(x), "repeat": lambda L, F, x: x.repeat(2, 1, 1, 2),
    "tile": lambda L, F, x: x.tile(2, 2), "masked_fill": lambda L, F, x: x.masked_fill(x > 1, 2.0),
}


def of_library(library, program):
    """The result of a program on one channels-last image, and the gradient of the image."""
    x = library.linspace(-3, 40, int(np.prod(SHAPE))).sin().reshape(SHAPE).to(memory_format=library.channels_last)
    x = x.detach().requires_grad_()
    out = program(library, library.nn.functional, x)
    (out * out).sum().backward()
    return out, x.grad


@pytest.mark.parametrize("name", [*STAYS, *BECOMES_CONTIGUOUS])
def test_results_and_gradients_of_channels_last_images(name):
    out, grad = of_library(T, {**STAYS, **BECOMES_CONTIGUOUS}[name])
    wanted = LAST if name in STAYS else T.contiguous_format
    assert out.is_contiguous(memory_format=wanted) and grad.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("name", [*STAYS, *BECOMES_CONTIGUOUS])
def test_pytorch_has_the_same(name):
    torch = pytest.importorskip("torch")
    program = {**STAYS, **BECOMES_CONTIGUOUS}[name]
    (ours, gradient), (theirs, expected) = of_library(T, program), of_library(torch, program)
    assert ours.stride() == theirs.stride() and gradient.stride() == expected.stride()
    if "dropout" not in name:
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(gradient.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [*STAYS, *BECOMES_CONTIGUOUS])
def test_devices_agree(name, cuda):
    """Values and layouts on the simulated GPU, forward and backward."""
    program = {**STAYS, **BECOMES_CONTIGUOUS}[name]
    ones = {"ones": lambda *s: T.ones(*s, device=cuda), "zeros": lambda *s: T.zeros(*s, device=cuda)}
    results = []
    for place in ("cpu", cuda):
        T.manual_seed(0)
        library = T if place == "cpu" else type("OnCuda", (), {"__getattr__": lambda self, n: ones.get(n) or getattr(T, n)})()
        x = image(*SHAPE, device=place).requires_grad_()
        out = program(library, F, x)
        out.backward(T.linspace(0, 900, out.numel()).cos().view(out.shape).to(place))    # of a smooth one norms leave rounding alone
        results.append((out, x.grad))
    for got, want in zip(results[1], results[0]):
        assert got.stride() == want.stride()
        np.testing.assert_allclose(got.detach().cpu().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_that_programs_view(device, cuda):
    """WavLM repeats heads that were permuted and views them, which PyTorch's strides allow."""
    x = T.arange(60.0, device=cuda if device == "cuda" else "cpu").view(3, 4, 5).permute(2, 0, 1)
    for made in (x.repeat(2, 1, 1), x.repeat(1, 1, 1, 1), x.tile(2), x.roll(1, 0), x.roll((1, -1), (0, 2)), x.roll(3),
                 x.masked_fill(x > 9, 0)):
        assert made.is_contiguous()
    np.testing.assert_array_equal(x.repeat(2, 1, 1).view(-1, 4).cpu(), np.tile(x.cpu().numpy(), (2, 1, 1)).reshape(-1, 4))
    np.testing.assert_array_equal(x.roll((1, -1), (0, 2)).view(-1).cpu(), np.roll(x.cpu().numpy(), (1, -1), (0, 2)).ravel())
    np.testing.assert_array_equal(x.masked_fill(x > 9, 0).view(-1).cpu(), np.where(x.cpu() > 9, 0, x.cpu()).ravel())


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_of_channels_last_volumes(transposed, cuda):
    run = T.nn.functional.conv_transpose3d if transposed else T.nn.functional.conv3d
    for device in ("cpu", cuda):
        x, w = T.randn(2, 3, 4, 5, 6, device=device), T.randn(*((3, 2) if transposed else (2, 3)), 2, 2, 3, device=device)
        want = run(x, w, stride=2)
        for operands in ((x, w.to(memory_format=T.channels_last_3d)), (x.to(memory_format=T.channels_last_3d), w)):
            out = run(*operands, stride=2)
            assert out.is_contiguous(memory_format=T.channels_last_3d) and want.is_contiguous()
            T.testing.assert_close(out.contiguous(), want)


def test_in_place_and_out_keep_their_memory():
    x, y = image(2, 3, 4, 5), T.ones(2, 3, 4, 5)
    address = y.data_ptr()
    assert y.add_(x).stride() == (60, 20, 5, 1) and y.relu_().data_ptr() == address
    out = T.empty(2, 3, 4, 5)
    assert T.mul(x, x, out=out) is out and out.stride() == (60, 20, 5, 1)
    np.testing.assert_array_equal(out.numpy(), x.numpy() ** 2)


@pytest.mark.parametrize("dtype", [T.float32, T.bfloat16])
def test_copies_between_devices_keep_the_layout(dtype, cuda):
    x = image(2, 3, 4, 5, dtype=dtype)
    there = x.to(cuda)
    assert there.stride() == x.stride() and there.cpu().stride() == x.stride() and T.equal(there.cpu(), x)
    assert x.to(cuda, T.float64).stride() == x.stride() and T.equal(x[:, :, 1:].to(cuda).cpu(), x[:, :, 1:])
    assert there.to("cpu", memory_format=T.contiguous_format).stride() == (60, 20, 5, 1)
    back = there.to("cpu", non_blocking=True)
    T.cuda.synchronize()
    assert T.equal(back, x) and back.stride() == x.pin_memory().stride() == x.stride()


# ------------------------------------------------------------------ every layout, beside PyTorch
def base(library, shape):
    return library.arange(int(np.prod(shape)), dtype=library.float32).reshape(shape)


def layouts(draw, shape):
    """A way to make a tensor of a shape: dims permuted, repeated, sliced, broadcast."""
    n, order = len(shape), draw.sample(range(len(shape)), len(shape))
    back, full, d = [order.index(k) for k in range(n)], [shape[k] for k in order], draw.randrange(n)
    single, double = [*shape[:d], 1, *shape[d + 1:]], [*full[:d], 2 * full[d], *full[d + 1:]]
    ways = [lambda L: base(L, shape), lambda L: base(L, full).permute(back), lambda L: base(L, single).expand(shape),
            lambda L: base(L, double)[(slice(None),) * d + (slice(None, None, 2),)].permute(back), lambda L: base(L, single)]
    return draw.choice([*ways, *[lambda L: base(L, shape).contiguous(memory_format=L.channels_last)] * (2 * (n == 4))])


CALLS = [
    (1, lambda L, x: L.relu(x)), (1, lambda L, x: x * 2), (1, lambda L, x: 1 - x), (1, lambda L, x: x.clone()),
    (1, lambda L, x: x.double()), (1, lambda L, x: L.zeros_like(x)), (1, lambda L, x: L.rand_like(x) * 0),
    (1, lambda L, x: x.clamp(0, 3)), (1, lambda L, x: x + L.tensor(1.0)), (2, lambda L, x, y: x + y), (2, lambda L, x, y: x > y),
    (2, lambda L, x, y: L.where(x > 1, y, 0.0)), (2, lambda L, x, y: L.maximum(x, y)), (3, lambda L, x, y, z: L.where(x > 1, y, z)),
    (3, lambda L, x, y, z: L.addcmul(x, y, z)), (1, lambda L, x: L.nn.functional.gelu(x)),
    (1, lambda L, x: x.contiguous(memory_format=L.channels_last) if x.ndim == 4 else x),
]


@pytest.mark.parametrize("seed", range(8))
def test_elementwise_results_lie_where_pytorch_puts_them(seed):
    torch = pytest.importorskip("torch")
    draw = random.Random(seed)
    for _ in range(120):
        shape = [draw.choice([1, 1, 2, 3]) for _ in range(draw.choice([1, 2, 3, 4, 4]))]
        arity, call = draw.choice(CALLS)
        ways = [layouts(draw, shape) for _ in range(arity)]
        ours, theirs = [call(L, *[way(L) for way in ways]) for L in (T, torch)]
        what = f"{shape}: {[way(torch).stride() for way in ways]}"
        assert ours.shape == tuple(theirs.shape)
        assert ours.stride() == theirs.stride(), f"{what}: {ours.stride()}, PyTorch has {theirs.stride()}"
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------ modules
def test_modules_convert_what_has_four_dims():
    model = T.nn.Sequential(T.nn.Conv2d(3, 8, 3), T.nn.BatchNorm2d(8), T.nn.Flatten(), T.nn.Linear(8, 2))
    kept = model[0].weight
    assert model.to(memory_format=LAST) is model and model[0].weight is kept
    assert kept.stride() == (27, 1, 9, 3) and model[3].weight.stride() == (8, 1)
    assert model.double()[0].weight.stride() == (27, 1, 9, 3)
    assert copy.deepcopy(model)[0].weight.stride() == (27, 1, 9, 3)
    assert model.to(memory_format=T.contiguous_format)[0].weight.stride() == (27, 9, 3, 1)
