"""Every layer against PyTorch: the same state dict and input give the same output, gradients and repr."""
import numpy as np
import pytest

import tritorch
from tritorch import nn

oracle = pytest.importorskip("torch")


def _numbers(*shape, seed=0, low=None, high=None):
    rng = np.random.default_rng([seed, *shape])
    if high is not None:
        return rng.integers(low or 0, high, shape)
    return rng.standard_normal(shape)


def _both(value):
    """The value in both worlds: arrays become tensors that want gradients, masks and integers plain tensors."""
    if isinstance(value, np.ndarray):
        ours, theirs = tritorch.tensor(value), oracle.tensor(value)
        if value.dtype.kind == "f":
            ours.requires_grad_()
            theirs.requires_grad_()
        return ours, theirs
    if isinstance(value, tuple):
        return tuple(tuple(_both(v)[k] for v in value) for k in (0, 1))
    return value, value


def _flat(outputs):
    """The tensors in nested outputs."""
    if isinstance(outputs, (tuple, list)):
        return [t for o in outputs for t in _flat(o)]
    return [] if outputs is None else [outputs]


def _close(ours, theirs, what, tolerance):
    if theirs is None:
        assert ours is None, what
        return
    assert tuple(ours.shape) == tuple(theirs.shape), what
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=what)


def _perturbed(module):
    """Parameters and buffers of an oracle module away from special values such as zero biases."""
    rng = oracle.Generator().manual_seed(7)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.add_(oracle.rand(tensor.shape, generator=rng, dtype=tensor.dtype) * 0.4 + 0.1)


def compare(name, args, inputs, kwargs=None, train=True, tolerance=1e-10, call=None, frozen=()):
    """Compare a layer made by `name(*args, **kwargs)` on `inputs`, in float64; the inputs at the places `frozen` want no gradient."""
    kwargs = kwargs or {}
    ours, theirs = getattr(nn, name)(*args, **kwargs).double(), getattr(oracle.nn, name)(*args, **kwargs).double()
    _perturbed(theirs)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    ours.load_state_dict({k: tritorch.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    ours.train(train)
    theirs.train(train)
    pairs = [_both(value) for value in inputs]
    for i in frozen:
        for tensor in pairs[i]:
            tensor.requires_grad_(False)
    call = call or {}
    calls = {k: _both(v) for k, v in call.items()}
    a = ours(*(p[0] for p in pairs), **{k: v[0] for k, v in calls.items()})
    b = theirs(*(p[1] for p in pairs), **{k: v[1] for k, v in calls.items()})
    outputs = list(zip(_flat(a), _flat(b), strict=True))
    for i, (x, y) in enumerate(outputs):
        _close(x, y, f"output {i}", tolerance)
    sources = [(x, y) for p in [*pairs, *calls.values()] for x, y in zip(_flat(p[0]), _flat(p[1])) if hasattr(y, "grad")]
    weights = [_numbers(*y.shape, seed=3) for _, y in outputs]
    wanted = [(x, y, w) for (x, y), w in zip(outputs, weights) if y.requires_grad]
    if wanted:
        sum((x * tritorch.tensor(w)).sum() for x, _, w in wanted).backward()
        sum((y * oracle.tensor(w)).sum() for _, y, w in wanted).backward()
    for i, (x, y) in enumerate(sources):
        if y.grad is not None or x.grad is not None:
            _close(x.grad, y.grad, f"gradient of input {i}", tolerance)
    for (n, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        _close(p.grad, q.grad, f"gradient of {n}", tolerance)
    for (n, p), q in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        _close(p, q, f"buffer {n}", tolerance)


X = _numbers(2, 6, 5)
IMAGE = _numbers(2, 4, 7, 6)


@pytest.mark.parametrize("name, args", [
    ("ReLU", ()), ("ReLU6", ()), ("LeakyReLU", (0.2,)), ("ELU", (1.5,)), ("SELU", ()), ("CELU", (1.5,)), ("GELU", ()), ("GELU", ("tanh",)),
    ("SiLU", ()),
    ("Mish", ()), ("Sigmoid", ()), ("LogSigmoid", ()), ("Tanh", ()), ("Hardtanh", (-0.5, 0.7)), ("Hardswish", ()), ("Hardsigmoid", ()),
    ("Softplus", (2.0, 1.0)), ("Softsign", ()), ("Softmax", (1,)), ("LogSoftmax", (-1,)), ("Softmin", (0,)), ("Tanhshrink", ()),
    ("Hardshrink", (0.3,)), ("Softshrink", (0.3,)), ("Threshold", (0.1, 3.0)), ("GLU", (1,)), ("PReLU", ()), ("PReLU", (6,)), ("RReLU", ()),
    ("Identity", (1, 2))])
def test_activations(name, args):
    compare(name, args, [X], train=name != "RReLU", tolerance=1e-7 if name == "Hardsigmoid" else 1e-10)     # PyTorch's 1/6 is float32


def test_softmax2d_and_errors():
    compare("Softmax2d", (), [IMAGE])
    with pytest.raises(ValueError, match="expected an input of 3 or 4 dims, got 1"):
        nn.Softmax2d()(tritorch.ones(2))
    with pytest.warns(UserWarning, match="one is chosen by the number of dims, which is deprecated"):
        nn.Softmax()(tritorch.ones(2))


@pytest.mark.parametrize("name", ["ReLU", "LeakyReLU", "ELU", "SELU", "CELU", "SiLU", "Mish", "Hardswish", "Hardtanh", "ReLU6",
                                  "Threshold"])
def test_inplace_activations(name):
    args = (0.1, 3.0) if name == "Threshold" else ()
    for kwargs in ({"inplace": True}, {"inplace": False}):
        ours, theirs = getattr(nn, name)(*args, **kwargs), getattr(oracle.nn, name)(*args, **kwargs)
        assert repr(ours) == repr(theirs)
        x, y = (world.tensor(X, requires_grad=True) for world in (tritorch, oracle))
        a, b = x * 2, y * 2
        u, v = ours(a), theirs(b)
        assert (u is a) == kwargs["inplace"]
        u.sum().backward()
        v.sum().backward()
        _close(u, v, "output", 1e-12)
        _close(x.grad, y.grad, "gradient", 1e-12)


def test_linear():
    compare("Linear", (5, 4), [X])
    compare("Linear", (5, 4), [_numbers(5)], {"bias": False})
    compare("Bilinear", (5, 3, 4), [X, _numbers(2, 6, 3)])
    compare("Bilinear", (5, 3, 4), [X, _numbers(2, 6, 3)], {"bias": False})


@pytest.mark.parametrize("kwargs", [
    {}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}, {"padding": "valid"}, {"groups": 2, "bias": False},
    {"padding": 2, "padding_mode": "reflect"}, {"padding": 2, "padding_mode": "replicate"}, {"padding": 1, "padding_mode": "circular"},
    {"padding": "same", "padding_mode": "circular"}])
def test_convolutions(kwargs):
    compare("Conv1d", (4, 6, 3), [_numbers(2, 4, 9)], kwargs)
    compare("Conv2d", (4, 6, 3), [IMAGE], kwargs)
    compare("Conv2d", (4, 2, (3, 2)), [IMAGE[0]], kwargs)
    compare("Conv3d", (4, 2, (2, 3, 2)), [_numbers(2, 4, 5, 6, 4)], kwargs)


def test_transposed_convolutions():
    for kwargs in ({}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "bias": False}, {"dilation": 2, "stride": 3}):
        compare("ConvTranspose1d", (4, 6, 3), [_numbers(2, 4, 9)], kwargs)
        compare("ConvTranspose2d", (4, 6, (3, 2)), [IMAGE], kwargs)
        compare("ConvTranspose2d", (4, 6, 3), [IMAGE[0]], kwargs)
    for size in ((14, 12), [2, 6, 15, 13]):
        compare("ConvTranspose2d", (4, 6, 2), [IMAGE], {"stride": 2}, call={"output_size": size})
    layer = nn.ConvTranspose2d(4, 6, 2, 2)
    with pytest.raises(ValueError, match="output_size: expected from .* for an input of"):
        layer(tritorch.ones(1, 4, 3, 3), output_size=(9, 9))
    with pytest.raises(ValueError, match="output_size must have 2 or 4 elements"):
        layer(tritorch.ones(1, 4, 3, 3), output_size=(9,))
    with pytest.raises(ValueError, match="ConvTranspose1d: expected padding_mode="):
        nn.ConvTranspose1d(1, 1, 1, padding_mode="reflect")


def test_convolution_errors():
    for kwargs, sentence in (({"groups": 3}, "in_channels must be divisible by groups"), ({"padding": "some"}, "Invalid padding string"),
                             ({"padding": "same", "stride": 2}, "expected stride 1, got"),
                             ({"padding_mode": "x"}, "padding_mode must be one of"),
                             ({"groups": 0}, "groups must be a positive integer")):
        with pytest.raises(ValueError, match=sentence):
            nn.Conv2d(4, 4, 3, **kwargs)
    with pytest.raises(ValueError, match="out_channels must be divisible"):
        nn.Conv2d(4, 3, 3, groups=2)


@pytest.mark.parametrize("kwargs", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_layer_norm(kwargs):
    compare("LayerNorm", (5,), [X], kwargs)
    compare("LayerNorm", ((6, 5),), [X], kwargs)


def test_rms_norm():
    compare("RMSNorm", (5,), [X])
    compare("RMSNorm", ([6, 5],), [X], {"eps": 1e-3, "elementwise_affine": False})


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kwargs", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}, {"bias": False}])
def test_batch_norm(kwargs, train):
    for name, shape in (("BatchNorm1d", (7, 4)), ("BatchNorm1d", (3, 4, 5)), ("BatchNorm2d", (2, 4, 3, 5)),
                        ("BatchNorm3d", (2, 4, 3, 2, 2))):
        compare(name, (4,), [_numbers(*shape)], kwargs, train)


def test_batch_norm_errors_and_old_state():
    with pytest.raises(ValueError, match=r"expected 4D input \(got 3D input\)"):
        nn.BatchNorm2d(3)(tritorch.ones(1, 3, 2))
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        nn.BatchNorm1d(3)(tritorch.ones(1, 3))
    net = nn.BatchNorm1d(2)
    net.num_batches_tracked.fill_(5)
    state = {k: v for k, v in nn.BatchNorm1d(2).state_dict().items() if k != "num_batches_tracked"}
    assert net.load_state_dict(state).missing_keys == [] and net.num_batches_tracked.item() == 5


@pytest.mark.parametrize("train", [True, False])
def test_group_and_instance_norm(train):
    for kwargs in ({}, {"affine": False}, {"bias": False}):
        compare("GroupNorm", (2, 4), [IMAGE], kwargs, train)
        compare("GroupNorm", (4, 4), [_numbers(3, 4, 2)], kwargs, train)
    for kwargs in ({}, {"affine": True}, {"track_running_stats": True, "affine": True}):
        for name, shape in (("InstanceNorm1d", (2, 4, 5)), ("InstanceNorm2d", (2, 4, 3, 5)), ("InstanceNorm2d", (4, 3, 5)),
                            ("InstanceNorm3d", (2, 4, 3, 2, 2))):
            compare(name, (4,), [_numbers(*shape)], kwargs, train)
    compare("LocalResponseNorm", (3,), [IMAGE])
    compare("LocalResponseNorm", (2, 0.1), [_numbers(2, 6, 5)])


def test_embedding():
    index = _numbers(2, 3, high=9)
    compare("Embedding", (9, 4), [index])
    compare("Embedding", (9, 4), [index], {"padding_idx": -2})
    compare("Embedding", (9, 4), [index], {"max_norm": 1.0, "norm_type": 1.0})
    compare("Embedding", (9, 4), [np.array([1, 1, 2])], {"norm_type": 3.0})
    assert nn.Embedding(3, 2, sparse=True)(tritorch.tensor([1])).shape == (1, 2)
    table = tritorch.ones(3, 2)
    assert nn.Embedding(4, 2, padding_idx=1).weight[1].tolist() == [0, 0]
    frozen = nn.Embedding.from_pretrained(table)
    assert not frozen.weight.requires_grad and frozen(tritorch.tensor([2])).tolist() == [[1, 1]]
    with pytest.raises(AssertionError, match="Padding_idx must be within num_embeddings"):
        nn.Embedding(3, 2, padding_idx=3)


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"])
def test_dropout(name):
    x = tritorch.ones(*{"Dropout1d": (20, 30, 4), "Dropout3d": (20, 30, 2, 2, 2)}.get(name, (20, 30, 2, 2)))
    layer = getattr(nn, name)(0.25)
    assert repr(layer) == repr(getattr(oracle.nn, name)(0.25))
    dropped = layer(x)
    mean = 1.0 if "Alpha" not in name else None
    if mean is not None:
        assert 0.15 < (dropped == 0).float().mean().item() < 0.35 and abs(dropped.mean().item() - mean) < 0.1
    if name not in ("Dropout", "AlphaDropout"):
        channel = dropped.reshape(20, 30, -1)
        assert (channel == channel[..., :1]).all()
    assert (layer.eval()(x) == x).all() and not layer.training
    with pytest.raises(ValueError, match="expected a probability p from 0 to 1, got 2"):
        getattr(nn, name)(2)


def test_pooling():
    for kwargs in ({}, {"stride": 1, "padding": 1}, {"ceil_mode": True}, {"dilation": 2, "stride": 1}, {"return_indices": True}):
        compare("MaxPool1d", (2,), [_numbers(2, 3, 9)], kwargs)
        compare("MaxPool2d", (2,), [IMAGE], kwargs)
        compare("MaxPool2d", ((3, 2),), [IMAGE[0]], kwargs)
    for kwargs in ({}, {"stride": 1, "padding": 1}, {"ceil_mode": True}, {"padding": 1, "count_include_pad": False}):
        compare("AvgPool1d", (2,), [_numbers(2, 3, 9)], kwargs)
        compare("AvgPool2d", ((3, 2),), [IMAGE], kwargs)
    compare("AvgPool2d", (2,), [IMAGE], {"divisor_override": 3})
    for size in (1, 3, (2, 3), (None, 2)):
        compare("AdaptiveAvgPool2d", (size,), [IMAGE])
        compare("AdaptiveMaxPool2d", (size,), [IMAGE])
        compare("AdaptiveMaxPool2d", (size,), [IMAGE], {"return_indices": True})
    compare("AdaptiveAvgPool1d", (3,), [_numbers(2, 3, 7)])
    compare("AdaptiveMaxPool1d", (3,), [_numbers(2, 3, 7)], {"return_indices": True})
    compare("LPPool1d", (2, 3), [np.abs(_numbers(2, 3, 9))], {"stride": 2})
    compare("LPPool2d", (3, (2, 3)), [np.abs(IMAGE)])


def test_unpooling():
    for d, x in ((1, _numbers(2, 3, 9)), (2, IMAGE)):
        for kwargs in ({}, {"stride": 3}):
            indices = getattr(oracle.nn, f"MaxPool{d}d")(3 if kwargs else 2, return_indices=True, **kwargs)(oracle.tensor(x))[1].numpy()
            values = _numbers(*indices.shape, seed=1)
            compare(f"MaxUnpool{d}d", (3 if kwargs else 2,), [values, indices], kwargs)
            compare(f"MaxUnpool{d}d", (3 if kwargs else 2,), [values, indices], kwargs, call={"output_size": x.shape[2:]})


def test_padding():
    for d, shape in ((1, (2, 3, 6)), (2, (2, 3, 6, 5)), (3, (1, 2, 4, 5, 3))):
        sides = (1, 2, 0, 1, 2, 1)[:2 * d]
        x = _numbers(*shape)
        for padding in (1, sides):
            for name in (f"ZeroPad{d}d", f"ReflectionPad{d}d", f"ReplicationPad{d}d", f"CircularPad{d}d"):
                compare(name, (padding,), [x])
            compare(f"ConstantPad{d}d", (padding, 1.5), [x])
    compare("ZeroPad2d", ((-1, 1, -2, 0),), [IMAGE])
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        nn.CircularPad1d(1)(tritorch.ones(1, 1, 2, 2))


def test_shaping():
    compare("Flatten", (), [IMAGE])
    compare("Flatten", (0, 2), [IMAGE])
    compare("Unflatten", (1, (2, 2)), [IMAGE])
    compare("PixelShuffle", (2,), [IMAGE])
    compare("PixelUnshuffle", (2,), [_numbers(2, 3, 4, 6)])
    compare("ChannelShuffle", (2,), [IMAGE])
    compare("Unfold", ((2, 3),), [IMAGE], {"dilation": 2, "padding": 1, "stride": (2, 1)})
    compare("Fold", ((5, 4), (2, 3)), [_numbers(2, 12, 8)], {"padding": (0, 0), "stride": (1, 1)})
    compare("Fold", ((6, 5), (2, 2)), [_numbers(2, 8, 12)], {"padding": 1, "stride": 2})
    with pytest.raises(TypeError, match="tuple of ints"):
        nn.Unflatten(1, (2, 2.0))


@pytest.mark.parametrize("mode, shape", [("nearest", (2, 3, 5)), ("nearest", (2, 3, 5, 4)), ("nearest-exact", (2, 3, 5, 4)),
                                         ("linear", (2, 3, 5)),
                                         ("bilinear", (2, 3, 5, 4)), ("bicubic", (2, 3, 5, 4)), ("trilinear", (1, 2, 3, 4, 2)),
                                         ("area", (2, 3, 6, 4))])
def test_upsampling(mode, shape):
    corners = [None] if mode in ("nearest", "nearest-exact", "area") else [None, True, False]
    for align_corners in corners:
        for size in ({"size": 7}, {"size": 3}, {"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": 0.6},
                     {"scale_factor": 1.7, "recompute_scale_factor": True}):
            compare("Upsample", (), [_numbers(*shape)], {"mode": mode, "align_corners": align_corners, **size})


def test_upsampling_names():
    compare("UpsamplingNearest2d", (), [IMAGE], {"scale_factor": 2})
    compare("UpsamplingBilinear2d", (), [IMAGE], {"size": (3, 9)})


# ------------------------------------------------------------------ lazy layers
@pytest.mark.parametrize("name, args, shape", [("LazyLinear", (3,), (2, 5)), ("LazyConv1d", (4, 3), (2, 6, 7)),
                                               ("LazyConv2d", (4, 3), (6, 7, 7)),
                                               ("LazyBatchNorm1d", (), (3, 4)), ("LazyBatchNorm2d", (), (3, 4, 2, 2)),
                                               ("LazyBatchNorm3d", (), (2, 4, 2, 1, 2))])
def test_lazy_layers(name, args, shape):
    x = _numbers(*shape).astype(np.float32)
    ours, theirs = getattr(nn, name)(*args), getattr(oracle.nn, name)(*args)
    assert repr(ours) == repr(theirs) and ours.has_uninitialized_params()
    full = getattr(nn, name)(*args)
    out = full(tritorch.tensor(x))
    theirs(oracle.tensor(x))
    assert repr(full) == repr(theirs) and type(full) is getattr(nn, name[4:]) and all(type(p) is nn.Parameter for p in full.parameters())
    assert not full._forward_pre_hooks and {k: tuple(v.shape) for k, v in full.state_dict().items()} == {k: tuple(v.shape) for k,
                                                                                                         v in theirs.state_dict().items()}
    ours.load_state_dict(full.state_dict())
    ours.eval()
    full.eval()
    np.testing.assert_allclose(ours(tritorch.tensor(x)).detach().numpy(), full(tritorch.tensor(x)).detach().numpy(), rtol=1e-6)
    assert out.requires_grad and type(ours) is type(full)
