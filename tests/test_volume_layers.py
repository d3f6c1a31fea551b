"""Layers of volumes and of drawn windows, lazy layers, and functions of PyTorch's that are others with other arguments."""
import warnings

import numpy as np
import pytest

import tritorch as T
from tests.both import both
from tritorch import nn
from tritorch.autograd import gradcheck, gradgradcheck
from tritorch.tensor import from_array

RNG = np.random.default_rng(0)


@both
def test_how_layers_are_shown(lib):
    nn = lib.nn
    return list(map(repr, (
        nn.AvgPool3d((1, 2, 3), 2, 1, True), nn.MaxPool3d(2), nn.MaxPool3d((1, 2, 3), (2, 1, 1), 0, 2), nn.MaxUnpool3d((1, 2, 3), 2, 1),
        nn.LPPool3d(1.5, (1, 2, 3), 2, True), nn.AdaptiveAvgPool3d((1, None, 3)), nn.AdaptiveMaxPool3d(3), nn.FractionalMaxPool2d(2, 2),
        nn.FractionalMaxPool3d(2, output_ratio=0.5), nn.ConvTranspose3d(2, 4, 3, 2, 1, 1, 2),
        nn.ConvTranspose3d(2, 4, (3, 2, 1), bias=False),
        nn.CrossMapLRN2d(3), nn.CrossMapLRN2d(4, 0.1, 0.2, 1.5), nn.LazyConv3d(3, 2), nn.LazyConvTranspose2d(3, 2, 2, output_padding=1),
        nn.LazyInstanceNorm3d(), nn.LazyInstanceNorm2d(affine=False))))


@both
def test_layers(lib):
    x, nn = lib.arange(840, dtype=lib.float64).view(1, 4, 5, 6, 7).mul(11).sin(), lib.nn
    values, places = nn.MaxPool3d(2, return_indices=True)(x)
    turned = nn.ConvTranspose3d(4, 6, (3, 2, 1), 2, 1, groups=2).double()
    for k, p in enumerate(turned.parameters()):
        p.data = lib.arange(p.numel(), dtype=lib.float64).add(k).cos().view(p.shape)
    samples, flat = [lib.full(shape, 0.4, dtype=lib.float64) for shape in ((1, 4, 3), (4, 5, 2))]
    return [values, places, nn.MaxUnpool3d(2)(values, places, (5, 6, 7)),
            nn.AvgPool3d((1, 2, 3), 2, (0, 1, 1), True, False)(x),
            nn.AvgPool3d(3, divisor_override=5)(x), nn.LPPool3d(2, 3)(x), nn.AdaptiveAvgPool3d((2, None, 1))(x),
            nn.AdaptiveMaxPool3d(3)(x[0]), *nn.AdaptiveMaxPool3d(2, return_indices=True)(x),
            nn.FractionalMaxPool3d(2, (2, 3, 4), _random_samples=samples)(x),
            *nn.FractionalMaxPool2d(2, output_ratio=0.5, return_indices=True, _random_samples=flat)(x[0]),
            turned(x), turned(x, output_size=(9, 11, 11)), *[nn.CrossMapLRN2d(size, 0.5, 0.7, 1.5)(x[0]) for size in (1, 2, 3, 6)]]


def test_the_gradient_of_sums_across_channels():
    for size in (3, 4):
        x = from_array(RNG.standard_normal((1, 5, 1, 2))).requires_grad_()
        layer = nn.CrossMapLRN2d(size, 0.5, 0.7)
        assert gradcheck(layer, (x,)) and gradgradcheck(layer, (x,))


@pytest.mark.parametrize("make, shape, becomes, sizes", [
    (lambda lib: lib.nn.LazyConv3d(4, 2), (1, 3, 4, 4, 4), "Conv3d", ((4, 3, 2, 2, 2), (4,))),
    (lambda lib: lib.nn.LazyConvTranspose1d(4, 2), (3, 5), "ConvTranspose1d", ((3, 4, 2), (4,))),
    (lambda lib: lib.nn.LazyConvTranspose2d(4, 2, groups=2), (1, 6, 3, 3), "ConvTranspose2d", ((6, 2, 2, 2), (4,))),
    (lambda lib: lib.nn.LazyConvTranspose3d(4, (1, 2, 3), bias=False), (1, 3, 2, 2, 2), "ConvTranspose3d", ((3, 4, 1, 2, 3),)),
    (lambda lib: lib.nn.LazyInstanceNorm1d(), (2, 3, 5), "InstanceNorm1d", ((3,), (3,))),
    (lambda lib: lib.nn.LazyInstanceNorm2d(affine=False), (2, 3, 5, 2), "InstanceNorm2d", ()),
    (lambda lib: lib.nn.LazyInstanceNorm3d(), (2, 3, 5, 2, 2), "InstanceNorm3d", ((3,), (3,)))])
def test_lazy_layers(make, shape, becomes, sizes):
    @both
    def completed(lib):
        layer = make(lib)
        before = [lib.nn.parameter.is_lazy(p) for p in layer.parameters()]
        out = layer(lib.ones(*shape))
        assert type(layer) is getattr(lib.nn, becomes) and tuple(tuple(p.shape) for p in layer.parameters()) == sizes
        return [all(before), list(out.shape), repr(layer), sorted(layer.state_dict()), [list(b.shape) for b in layer.buffers()]]

    completed()
    saved = make(T)
    saved(T.ones(*shape))
    fresh = make(T)
    fresh.load_state_dict(saved.state_dict())
    assert all((a == b).all() for a, b in zip(fresh.state_dict().values(), saved.state_dict().values(), strict=True))


@pytest.mark.parametrize("name, shape, error", [
    ("LazyConv3d(3, 2)", (3, 4, 5), RuntimeError), ("LazyConvTranspose2d(3, 2)", (3, 4), RuntimeError),
    ("LazyConvTranspose2d(4, 2, groups=2)", (1, 5, 3, 3), ValueError), ("LazyInstanceNorm2d()", (3, 4), ValueError),
    ("CrossMapLRN2d(3)", (2, 3, 4), ValueError)])
def test_inputs_of_other_dims(name, shape, error):
    with pytest.raises(error):
        eval("nn." + name)(T.ones(*shape))


@both
def test_modes_as_numbers(lib):
    x, grid, grid5 = [lib.arange(n, dtype=lib.float64).mul(7).sin() * 1.3 for n in (120, 48, 36)]
    x5, grid5, x, grid = x.view(2, 1, 3, 4, 5), grid5.view(2, 1, 2, 3, 3), x.view(2, 3, 4, 5), grid.view(2, 3, 4, 2)
    theta = lib.arange(12, dtype=lib.float64).view(2, 2, 3).cos()
    outs = [f(x, grid, mode, mode, mode > 0) for f in (lib.grid_sampler, lib.grid_sampler_2d) for mode in range(3)]
    outs += [f(x5, grid5, mode, 2 - mode, mode > 0) for f in (lib.grid_sampler, lib.grid_sampler_3d) for mode in range(2)]
    return [*outs, lib.affine_grid_generator(theta, [2, 1, 3, 4], True), lib.affine_grid_generator(theta, (2, 1, 0, 4), False)]


@both
def test_chances_of_the_top_level(lib):
    x, outs = lib.arange(24, dtype=lib.float64).view(2, 3, 4) - 9, []
    for name in ("alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout"):
        for f in (getattr(lib, name), getattr(lib, name + "_")):
            outs += [f(x.clone(), 0.5, False), f(x.clone(), 1.0, True)]
            y = x.clone()
            f(y, 1.0, True)
            outs.append(y)
    y = x.clone()
    outs += [lib.rrelu(x), lib.rrelu(x, 0.5, 0.5, True), lib.rrelu_(y, 0.1, 0.3), y]
    return [*outs, lib.nn.functional.rrelu_(x.clone(), 0.1, 0.1, True)]


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_dropout", "feature_alpha_dropout_"])
def test_what_is_dropped(name):
    x = T.ones(40, 50, 2) * 3
    T.manual_seed(0)
    y = getattr(T, name)(x.clone(), 0.25, True)
    kept = y == y.amax()
    assert 0.7 < kept.float().mean().item() < 0.8 and len(y.unique()) == 2
    assert name.startswith("alpha") or (kept[..., 0] == kept[..., 1]).all()
    for error, args in ((RuntimeError, (x, 1.5, True)), (TypeError, (x, 0.5)), (RuntimeError, (x.long(), 0.5, True))):
        with pytest.raises(error):
            getattr(T, name)(*args)


@pytest.mark.parametrize("call, error", [
    (lambda x, g: T.grid_sampler(x, g, 3, 0, False), RuntimeError), (lambda x, g: T.grid_sampler_3d(x, g, 0, 0, False), RuntimeError),
    (lambda x, g: T.grid_sampler(x, g, "bilinear", 0, False), TypeError), (lambda x, g: T.grid_sampler_2d(x, g, 0, 0, None), TypeError),
    (lambda x, g: T.grid_sampler(x, g[:1], 0, 0, False), RuntimeError),
    (lambda x, g: T.affine_grid_generator(T.ones(2, 2, 3), (2, 1, 3), False), RuntimeError),
    (lambda x, g: T.affine_grid_generator(T.ones(2, 2, 3), (3, 1, 3, 3), False), RuntimeError),
    (lambda x, g: T.affine_grid_generator(T.ones(2, 2, 3), (2, 1, 3, 3), None), TypeError)])
def test_numbers_that_stand_for_nothing(call, error):
    with pytest.raises(error):
        call(T.ones(2, 1, 3, 3), T.zeros(2, 2, 2, 2))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_are_products_to_autocast(dims, cuda):
    layer = getattr(nn, f"ConvTranspose{dims}d")(2, 4, 3, 2).to(cuda)
    x = T.randn(1, 2, *(3,) * dims, device=cuda, requires_grad=True)
    with T.autocast("cuda", dtype=T.bfloat16):
        out = layer(x)
    assert out.dtype is T.bfloat16
    out.float().sum().backward()
    assert {p.grad.dtype for p in (x, *layer.parameters())} == {T.float32}
    np.testing.assert_allclose(out.detach().cpu().float().array, layer(x).detach().cpu().array, atol=0.05)


def test_a_network_of_volumes_is_captured(cuda):
    T.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
                        nn.ConvTranspose3d(4, 2, 2, stride=2), nn.AvgPool3d(2, 1, 1), nn.AdaptiveAvgPool3d((2, 3, 1))).to(cuda)
    x = T.randn(2, 1, 4, 4, 6, device=cuda)

    def step(x):
        net.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return [loss.detach(), *[p.grad for p in net.parameters()]]

    want = [t.cpu().array for t in step(x)]
    compiled = T.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")                                   # of what cannot be captured
        for _ in range(4):
            for got, should in zip(compiled(x), want, strict=True):
                np.testing.assert_allclose(got.cpu().array, should, rtol=1e-5, atol=1e-6)
