"""Functions: PyTorch's signatures, values of what is composed, errors, clipping."""
import inspect
import warnings

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


def _rand(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


# ------------------------------------------------------------------ surface
def test_signatures_are_those_of_pytorch():
    oracle = pytest.importorskip("torch")
    checked = 0
    for name, ours in vars(F).items():
        theirs = getattr(oracle.nn.functional, name, None)
        if name.startswith("_") or not inspect.isfunction(theirs) or not callable(ours) or "with_indices" in theirs.__name__:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        if list(b) == ["args", "kwargs"]:
            continue
        assert all(a[n].kind is inspect.Parameter.KEYWORD_ONLY for n in a if n not in b), name
        assert [n for n in a if n in b] == [n for n in b if n in a], name
        missing = [n for n in b if n not in a]
        assert not missing, (name, missing)
        for n, p in b.items():
            assert str(p.default).replace("torch.", "") == str(a[n].default).replace("tritorch.", ""), (name, n)   # dtypes by name
        checked += 1
    assert checked > 50


def test_layer_signatures_are_those_of_pytorch():
    oracle = pytest.importorskip("torch")
    for name, ours in vars(nn).items():
        theirs = getattr(oracle.nn, name, None)
        if not inspect.isclass(ours) or theirs is None or name in ("RNN", "LSTM", "GRU", "Module", "Parameter", "Buffer", "Container"):
            continue
        a, b = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        assert list(a) == list(b), name
        for n, p in b.items():
            if name != "Identity" and not callable(p.default):
                assert p.default == a[n].default or (p.default is p.empty) == (a[n].default is p.empty), (name, n)


# ------------------------------------------------------------------ activations
def test_inplace_positionally_and_by_name():
    for fn, args in ((F.relu, ()), (F.leaky_relu, (0.1,)), (F.elu, (1.0,)), (F.hardtanh, (-1.0, 1.0)), (F.threshold, (0.1, 2.0)),
                     (F.silu, ()), (F.relu6, ())):
        x = torch.tensor([-2.0, 0.05, 3.0])
        expected = fn(x.clone(), *args)
        assert fn(x, *args, True) is x and (x == expected).all()
    for fn, args in ((F.relu_, ()), (F.leaky_relu_, (0.1,)), (F.elu_, ()), (F.celu_, ()), (F.selu_, ()), (F.hardtanh_, ()),
                     (F.threshold_, (0.1, 2.0))):
        x = torch.tensor([-2.0, 0.05, 3.0])
        expected = getattr(F, fn.__name__[:-1])(x, *args)
        assert fn(x, *args) is x and (x == expected).all()


def test_softmax_dtype_and_default_dim():
    x = torch.ones(2, 4, dtype=torch.float16)
    for fn in (F.softmax, F.log_softmax, F.softmin):
        assert fn(x, -1, dtype=torch.float32).dtype is torch.float32
        for shape, dim in (((3,), 0), ((2, 3), 1), ((2, 3, 2), 0)):
            with pytest.warns(UserWarning, match="one is chosen by the number of dims, which is deprecated"):
                assert torch.allclose(fn(torch.ones(*shape)), fn(torch.ones(*shape), dim=dim))


def test_gumbel_softmax():
    logits = torch.tensor([[0.0, 2.0, -1.0]] * 500, requires_grad=True)
    soft = F.gumbel_softmax(logits, tau=0.5)
    assert torch.allclose(soft.sum(-1), torch.ones(500))
    hard = F.gumbel_softmax(logits, hard=True)
    assert torch.allclose(hard.detach().max(-1)[0], torch.ones(500)) and torch.allclose(hard.sum(-1), torch.ones(500))
    assert hard.detach().mean(0).tolist() == pytest.approx(logits[0].detach().softmax(-1).tolist(), abs=0.08)
    (hard * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert bool((logits.grad != 0).any())


def test_glu_wants_an_even_dim():
    with pytest.raises(RuntimeError, match="glu: expected an even size of dim -1, got"):
        F.glu(torch.ones(2, 3))


# ------------------------------------------------------------------ distances
def test_distances():
    oracle = pytest.importorskip("torch")
    a, b = _rand(4, 3, 5), _rand(3, 1, seed=1)
    x, y = torch.tensor(_rand(4, 5)), oracle.tensor(_rand(4, 5))
    for name, ours, theirs in (("cosine_similarity", (torch.tensor(a), torch.tensor(b)), (oracle.tensor(a), oracle.tensor(b))),
                               ("normalize", (torch.tensor(a),), (oracle.tensor(a),)),
                               ("normalize", (torch.tensor(a), 1, -1), (oracle.tensor(a), 1, -1)),
                               ("pdist", (x,), (y,)), ("pdist", (x, 1), (y, 1)), ("pairwise_distance", (x, x * 2, 3.0), (y, y * 2, 3.0))):
        u, v = getattr(F, name)(*ours), getattr(oracle.nn.functional, name)(*theirs)
        np.testing.assert_allclose(u.numpy(), v.numpy(), rtol=1e-12, err_msg=name)
    out = torch.empty(4, 5, dtype=torch.float64)
    assert F.normalize(x, out=out) is out and torch.allclose(out, F.normalize(x))
    assert F.normalize(torch.zeros(1, 3)).tolist() == [[0, 0, 0]]
    with pytest.raises(RuntimeError, match="expected an input of 2 dims, got 1"):
        F.pdist(torch.ones(3))


# ------------------------------------------------------------------ images
def test_fold_undoes_unfold_and_differentiates():
    x = torch.tensor(_rand(1, 2, 4, 6), requires_grad=True)
    assert (F.fold(F.unfold(x, (2, 3), stride=(2, 3)), (4, 6), (2, 3), stride=(2, 3)) == x).all()
    assert F.unfold(x[0], 2).shape == (8, 15) and F.fold(torch.ones(8, 15), (4, 6), 2).shape == (2, 4, 6)
    columns = torch.tensor(_rand(1, 8, 15), requires_grad=True)
    (g,) = torch.autograd.grad((F.fold(columns, (4, 6), 2) ** 2).sum(), columns, create_graph=True)
    assert torch.allclose(g, 2 * F.unfold(F.fold(columns, (4, 6), 2), 2)) and g.requires_grad
    with torch.no_grad():
        assert not F.fold(columns, (4, 6), 2).requires_grad


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape, r", [((2, 18, 4, 5), 3), ((8, 3, 2), 2), ((2, 1, 4, 5, 6), 2), ((0, 4, 2, 2), 2), ((1, 4, 0, 2), 2)])
def test_pixels_shuffled_and_back(shape, r, kind, cuda):
    x = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 100, shape)
    *lead, c, h, w = shape
    want = np.moveaxis(x.reshape(*lead, c // r ** 2, r, r, h, w), (-4, -3), (-3, -1)).reshape(*lead, c // r ** 2, h * r, w * r)
    for device in ("cpu", cuda):
        image = torch.tensor(x, device=device).to(getattr(torch, kind))
        made = F.pixel_shuffle(image, r)
        assert made.dtype is image.dtype and (made.cpu().double().numpy() == want).all() and made.shape == want.shape
        assert torch.equal(F.pixel_unshuffle(made, r), image)
        if len(lead) == 1:
            assert torch.equal(F.pixel_shuffle(image.to(memory_format=torch.channels_last), r), made)
    zeros = F.pixel_shuffle(torch.tensor([-0.0] * 4, device=cuda).view(1, 4, 1, 1), 2)
    assert np.signbit(zeros.cpu().numpy()).all()


def test_image_errors():
    image = torch.ones(1, 2, 3, 3)
    for fn, args, kwargs, error, sentence in (
            (F.unfold, (image, 5), {}, RuntimeError, "a kernel that fits into the padded input"),
            (F.unfold, (torch.ones(3, 3), 1), {}, RuntimeError, "3 or 4 dims"),
            (F.fold, (torch.ones(1, 8, 3), (4, 6), 2), {}, RuntimeError, "expected 15 blocks"),
            (F.fold, (torch.ones(1, 7, 3), (4, 6), 2), {}, RuntimeError, r"C · 4"),
            (F.pixel_shuffle, (image, 2), {}, RuntimeError, "pixel_shuffle: expected an input"),
            (F.pixel_unshuffle, (image, 2), {}, RuntimeError, "pixel_unshuffle"),
            (F.channel_shuffle, (image, 3), {}, RuntimeError, "channel_shuffle"),
            (F.interpolate, (image,), {}, ValueError, "either size or scale_factor should be defined"),
            (F.interpolate, (image, 2, 2), {}, ValueError, "only one of size or scale_factor"),
            (F.interpolate, (image, (2, 2, 2)), {}, ValueError, "expected 2 numbers as size of an input of shape"),
            (F.interpolate, (image, 2), {"mode": "linear"}, NotImplementedError, "got 'linear' for 4"),
            (F.interpolate, (image, 2), {"mode": "x"}, NotImplementedError, "got 'x' for 4"),
            (F.interpolate, (image, 2), {"antialias": True}, ValueError, "bilinear or bicubic and 4 dims"),
            (F.interpolate, (image, 2), {"align_corners": True}, ValueError, "expected align_corners=None where mode is 'nearest'"),
            (F.local_response_norm, (torch.ones(2, 2), 2), {}, ValueError, "expected an input of 3 dims or more, got 2")):
        with pytest.raises(error, match=sentence):
            fn(*args, **kwargs)


def test_interpolate_keeps_non_finite_values_where_they_are():
    x = torch.tensor([[[1.0, 2.0, float("inf"), 3.0, float("nan")]]])
    assert F.interpolate(x[..., :4], 8).tolist() == [[[1, 1, 2, 2, float("inf"), float("inf"), 3, 3]]]
    assert F.interpolate(x, 10, mode="linear").isnan().tolist() == [[[False] * 7 + [True] * 3]]


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("spatial", [(4, 5), (3, 4, 2)])
def test_grids(align_corners, spatial):
    oracle = pytest.importorskip("torch")
    k = len(spatial)
    theta, image, wanted = _rand(2, k, k + 1), _rand(2, 3, *spatial), _rand(2, 3, *[n + 1 for n in spatial])
    for mode in ("bilinear", "nearest", "bicubic")[:5 - k]:
        for padding_mode in ("zeros", "border", "reflection"):
            results = []
            for world in (torch, oracle):
                t, x = world.tensor(theta, requires_grad=True), world.tensor(image, requires_grad=True)
                grid = world.nn.functional.affine_grid(t, [2, 3, *[n + 1 for n in spatial]], align_corners=align_corners)
                out = world.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners=align_corners)
                (out * world.tensor(wanted)).sum().backward()
                results.append([out.detach(), x.grad, t.grad if mode != "nearest" else grid.detach()])
            for a, b in zip(*results):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9, err_msg=f"{mode} {padding_mode}")


def test_grid_errors():
    image = torch.ones(1, 1, 2, 2)
    for fn, args, error, sentence in ((F.affine_grid, (torch.ones(1, 2, 2), (1, 1, 2, 2)), ValueError, "theta of shape"),
                                      (F.affine_grid, (torch.ones(1, 2, 3), (1, 1, 2)), NotImplementedError, "4 or 5 numbers"),
                                      (F.grid_sample, (image, torch.ones(1, 2, 2, 3)), RuntimeError, "an image"),
                                      (F.grid_sample, (image, torch.ones(1, 2, 2, 2), "cubic"), ValueError, "mode"),
                                      (F.grid_sample, (torch.ones(1, 1, 2, 2, 2), torch.ones(1, 2, 2, 2, 3), "bicubic"), RuntimeError,
                                       "4 dims for mode 'bicubic'"),
                                      (F.grid_sample, (image, torch.ones(1, 2, 2, 2), "nearest", "x"), ValueError, "padding_mode")):
        with pytest.raises(error, match=sentence):
            fn(*args)


# ------------------------------------------------------------------ losses
def test_loss_errors():
    x = torch.ones(2, 3)
    for fn, args, kwargs, error, sentence in (
            (F.soft_margin_loss, (x, x), {"reduction": "most"}, ValueError, "a reduction among none, mean, sum"),
            (F.margin_ranking_loss, (x, x, x[0]), {}, RuntimeError, "expected input1, input2 and target of as many dims, got shapes"),
            (F.cosine_embedding_loss, (x, x, x), {}, RuntimeError, "cosine_embedding_loss: expected"),
            (F.triplet_margin_loss, (x, x, x), {"margin": 0}, ValueError, "triplet_margin_loss: expected margin > 0, got 0"),
            (F.triplet_margin_loss, (x, x, x[0]), {}, RuntimeError, "expected anchor, positive and negative of as many dims"),
            (F.multi_margin_loss, (x, torch.tensor([0, 1]), 3), {}, ValueError, "only p == 1 and p == 2"),
            (F.multi_margin_loss, (x, torch.tensor([0, 1])), {"weight": x}, ValueError, "one-dimensional"),
            (F.multilabel_margin_loss, (x, torch.ones(2, dtype=torch.int64)), {}, RuntimeError, "same shape"),
            (F.gaussian_nll_loss, (x, x, -x), {}, ValueError, "var has negative"), (F.gaussian_nll_loss, (x, x, -1.0), {}, ValueError,
                                                                                    "var has negative"),
            (F.gaussian_nll_loss, (x, x, torch.ones(4)), {}, ValueError, "var is of incorrect size")):
        with pytest.raises(error, match=sentence):
            fn(*args, **kwargs)
    assert F.gaussian_nll_loss(x, x, 1.0).item() == 0
    assert F.soft_margin_loss(x, x, reduce=False).shape == (2, 3)


def test_soft_margin_loss_is_exact_past_the_threshold_of_softplus():
    x = torch.tensor([-30.0, -21.0, -5.0, 0.0, 5.0, 21.0, 30.0], dtype=torch.float64, requires_grad=True)
    loss = F.soft_margin_loss(x, torch.ones_like(x), reduction="none")
    loss.sum().backward()
    np.testing.assert_allclose(loss.detach().numpy(), np.logaddexp(0, -x.detach().numpy()), rtol=1e-15)
    np.testing.assert_allclose(x.grad.numpy(), -1 / (1 + np.exp(x.detach().numpy())), rtol=1e-15)


# ------------------------------------------------------------------ utils
def _net():
    net = nn.Linear(2, 2)
    (net(torch.ones(1, 2)) * torch.tensor([3.0, -4.0])).sum().backward()
    return net


def test_clipping():
    oracle = pytest.importorskip("torch")
    for norm_type in (2.0, 1.0, float("inf")):
        net, expected = _net(), []
        for p in net.parameters():
            q = oracle.nn.Parameter(oracle.tensor(p.tolist()))
            q.grad = oracle.tensor(p.grad.tolist())
            expected.append(q)
        ours, theirs = (world.nn.utils.clip_grad_norm_(ps, 1.5, norm_type) for world, ps in ((torch, net.parameters()), (oracle, expected)))
        assert ours.item() == pytest.approx(theirs.item())
        for p, q in zip(net.parameters(), expected):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-6)
    net = _net()
    nn.utils.clip_grad_value_(net.parameters(), 3.5)
    assert net.bias.grad.tolist() == [3, -3.5]
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0
    net.bias.grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="expected a finite norm of order 2"):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
    with pytest.warns(FutureWarning, match="clip_grad_norm is the old name of clip_grad_norm_"):
        nn.utils.clip_grad_norm(_net().parameters(), 1.0)


def test_small_gradients_are_left_alone():
    net = _net()
    before = net.weight.grad.clone()
    nn.utils.clip_grad_norm_(net.parameters(), 100.0)
    assert (net.weight.grad == before).all()


def test_parameters_as_a_vector():
    net = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.shape == (9,) and vector.requires_grad
    values = torch.arange(9.0)
    nn.utils.vector_to_parameters(values, net.parameters())
    assert net.weight.tolist() == [[0, 1], [2, 3], [4, 5]] and net.bias.tolist() == [6, 7, 8] and net.weight.requires_grad
    with pytest.raises(TypeError, match="expected torch.Tensor"):
        nn.utils.vector_to_parameters([1.0], net.parameters())


def test_distances_of_all_pairs():
    oracle = pytest.importorskip("oracle")
    x, y = oracle.draw(2, 5, 3, dtype="float64"), oracle.draw(4, 3, dtype="float64", seed=1)
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf")):
        oracle.agree(lambda lib, x, y, p=p: lib.cdist(x, y, p), x, y, grad=p > 0, rtol=1e-7, what=str(p))
    oracle.agree(lambda lib, x: lib.cdist(x, x), y, grad=True, rtol=1e-7, what="zero distances")
    oracle.agree(lambda lib, x, y: lib.cdist(x, y[:, :2]), x, y)
    oracle.agree(lambda lib, x: lib.cdist(x, x, -1), x)
    oracle.agree(lambda lib, x: (lib.cosine_similarity(x, x * 2 + 1), lib.pairwise_distance(x, x * 2), lib.pdist(x)), y, grad=True,
                 rtol=1e-7)


def test_shapes_that_broadcast():
    oracle = pytest.importorskip("oracle")
    for shapes in ([(2,), (3, 1), (1, 1, 1)], [(0, 1), 4], [(), (3,)], [(2, 3), (2, 4)], []):
        oracle.agree(lambda lib, shapes=shapes: lib.broadcast_shapes(*shapes), what=str(shapes))


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (8, 6), (4, 9), (16, 3), (4, 48)])
def test_nearest_pixels(size):
    """Repeated where the scale is a power of two, else picked; contiguous and channels last."""
    oracle = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 3))
    g = np.random.default_rng(1).standard_normal((2, 3, *size))
    for mode in ("nearest", "nearest-exact"):
        for last in (False, True):
            found = []
            for lib in (torch, oracle):
                leaf = lib.tensor(x, requires_grad=True)
                image = leaf.contiguous(memory_format=lib.channels_last) if last else leaf
                out = lib.nn.functional.interpolate(image, size, mode=mode)
                out.backward(lib.tensor(g))
                found.append((out.detach().numpy(), leaf.grad.numpy(), out.stride()))
            (a, ga, sa), (b, gb, sb) = found
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(ga, gb, rtol=1e-12)
            assert sa == sb
