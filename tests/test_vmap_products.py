"""vmap over products, images, matrices and attention: what a loop over the samples gives, from one call of each operator."""
import collections
import itertools

import numpy as np
import pytest

import tritorch as torch
from tritorch.dispatch import Interpreter, registry
from tritorch.func import functional_call, grad, jacrev, vjp, vmap
from tritorch.nn import functional as F
from tritorch.utils._pytree import tree_flatten


def draw(*shape, seed=0, positive=False):
    values = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return torch.tensor(np.abs(values) + 0.5 if positive else values)


class Log(Interpreter):
    """How often each operator was called."""

    def __init__(self):
        self.calls = collections.Counter()

    def __call__(self, op, args, out):
        self.calls[op.__name__] += 1
        return self.proceed(op, args, out)


def looped(fn, dims, inputs, size):
    rows = [tree_flatten(fn(*[x if d is None else x.select(d, k) for x, d in zip(inputs, dims)]))[0] for k in range(size)]
    return [torch.stack(column) for column in zip(*rows)]


def check(fn, dims, *inputs, once=(), tolerance=1e-10, **kw):
    """vmap gives what a loop gives, and calls each of the operators `once` no more than once."""
    size = next(x.shape[d] for x, d in zip(inputs, dims) if d is not None)
    want, calls = looped(fn, dims, inputs, size), []

    def counted(*values):
        calls.append(values)
        return fn(*values)

    with Log() as log:
        got = tree_flatten(vmap(counted, tuple(dims), **kw)(*inputs))[0]
    assert len(calls) == 1, f"{len(calls)} calls"
    for name in once:
        assert log.calls[name] == 1, f"{name} was called {log.calls[name]} times"
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype is w.dtype
        np.testing.assert_allclose(*[x.detach().double().numpy() if not x.dtype.is_complex else x.detach().numpy() for x in (g, w)],
                                   rtol=tolerance, atol=tolerance)
    return got


def layouts(x):
    """The samples of x along other dims and with other strides: (tensor, dim)."""
    gapped = torch.full((2 * x.shape[0], *x.shape[1:-1], x.shape[-1] + 3), float("nan"), dtype=x.dtype)
    gapped[::2, ..., 1:-2] = x
    yield x.movedim(0, 1).contiguous(), 1
    yield x.movedim(0, -1).contiguous(), -1
    yield gapped[::2, ..., 1:-2], 0
    yield x[:1].expand(x.shape), 0
    yield x.mT.contiguous().mT, 0


def choices(count):
    """All ways to map some of so many arguments."""
    return [dims for dims in itertools.product((0, None), repeat=count) if any(d == 0 for d in dims)]


def of_choice(dims, tensors):
    """The tensors, those that are not mapped without samples."""
    return [x if d == 0 else x[0] for x, d in zip(tensors, dims)]


# ------------------------------------------------------------------ products
@pytest.mark.parametrize("dims", choices(2))
@pytest.mark.parametrize("a, b", [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((4, 5), (2, 5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)),
                                  ((1, 5), (5, 1)), ((4, 1), (1, 3)), ((3, 1, 4, 5), (2, 5, 3))])
def test_matmul(dims, a, b):
    x, y = of_choice(dims, [draw(7, *a), draw(7, *b, seed=1)])
    check(torch.matmul, dims, x, y)
    check(lambda x, y: vjp(torch.matmul, x, y)[1](torch.ones(torch.matmul(x, y).shape, dtype=x.dtype)), dims, x, y)


def test_matmul_layouts():
    x, y = draw(7, 4, 5), draw(7, 5, 3)
    for (a, d), (b, e) in zip(layouts(x), reversed(list(layouts(y)))):
        check(torch.matmul, (d, e), a, b, once=["matmul"])
        check(torch.matmul, (d, None), a, y[0], once=["matmul"])
        check(torch.matmul, (None, e), x[0], b, once=["matmul"])


def test_matmul_wide():
    """Many vectors through one matrix are one product of matrices."""
    w, x = draw(3, 4), draw(6, 4)
    made = vmap(lambda v: w @ v)(x)
    np.testing.assert_allclose(made.numpy(), x.numpy() @ w.numpy().T)
    with Log() as log:
        check(lambda v: w @ v, (0,), x)
    assert log.calls["matmul"] == 6 + 1


@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 1), ()])
def test_addmm(dims, shape):
    tensors = of_choice(dims, [draw(3, *shape), draw(3, 4, 2), draw(3, 2, 5)])
    for beta, alpha in ((1, 1), (0.5, -2.0), (0, 1)):
        check(lambda c, a, b, beta=beta, alpha=alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha), dims, *tensors, once=["addmm"])
    check(lambda c, a, b: torch.baddbmm(c, a.unsqueeze(0), b.unsqueeze(0)), dims, *tensors)


@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (0,)])
def test_linear(dims, lead):
    x, w, b = of_choice(dims, [draw(6, *lead, 3), draw(6, 5, 3), draw(6, 5)])
    check(F.linear, dims, x, w, b)

    def gradients(x, w, b):
        made, pull = vjp(lambda *v: F.linear(*v).sin(), x, w, b)
        return pull(made)

    check(gradients, dims, x, w, b)
    check(lambda x, w, b: F.linear_dropout_add(x, w, b, torch.cos(F.linear(x, w)), training=False), dims, x, w, b)


def test_linear_layouts():
    x, w = draw(6, 4, 3), draw(6, 5, 3)
    for (a, d), (b, e) in zip(layouts(x), reversed(list(layouts(w)))):
        check(F.linear, (d, e), a, b)
        check(F.linear, (None, e), x[0], b, once=["linear"])
        check(F.linear, (d, None), a, w[0], once=["linear"])


@pytest.mark.parametrize("dims", choices(5))
def test_feed_forward(dims):
    tensors = of_choice(dims, [draw(3, 2, 4), draw(3, 5, 4), draw(3, 5), draw(3, 2, 5), draw(3, 2)])

    def gradients(*values):
        made, pull = vjp(lambda *v: F.feed_forward(*v, "gelu_tanh"), *values)
        return made, pull(made)

    check(gradients, dims, *tensors, once=["feed_forward_layers"] if dims == (0, None, None, None, None) else [])


def test_half_types_and_wide_biases():
    """Products of half types are rounded once; a bias may be float32."""
    x, w, b = draw(6, 4, 3).bfloat16(), draw(6, 5, 3).bfloat16(), draw(6, 5).float()
    for dims in choices(3):
        check(F.linear, dims, *of_choice(dims, [x, w, b]), tolerance=2e-2)
    g, total = draw(6, 4, 5).bfloat16(), draw(5, 3).float()
    gradients = registry["linear_gradients"]
    check(lambda g, x: gradients(g, x, torch.float32), (0, 0), g, x, tolerance=1e-5)
    check(lambda g, x: gradients(g, x, torch.float32, total, total[:, 0]), (0, None), g, x[0], tolerance=1e-5)


def test_sizes_zero_and_one():
    w, b = draw(5, 3), draw(5)
    for size in (0, 1):
        x = draw(size, 4, 3)
        made = vmap(lambda v: F.linear(v, w, b))(x)
        assert made.shape == (size, 4, 5)
        images = vmap(lambda v, w: F.conv2d(v, w, padding=1), (0, 0))(draw(size, 2, 2, 5, 5), draw(size, 3, 2, 3, 3))
        assert images.shape == (size, 2, 3, 5, 5)
        assert vmap(lambda v: F.max_pool2d(v, 2))(draw(size, 2, 2, 5, 5)).shape == (size, 2, 2, 2, 2)
        assert vmap(torch.linalg.solve)(torch.eye(3, dtype=torch.float64).expand(size, 3, 3), draw(size, 3, 2)).shape == (size, 3, 2)
        q = draw(size, 2, 2, 4, 3)
        assert vmap(F.scaled_dot_product_attention)(q, q, q).shape == q.shape


def test_nested():
    x, w = draw(4, 5, 3), draw(2, 6, 3)
    made = vmap(lambda m: vmap(vmap(lambda v: F.linear(v, m)))(x))(w)
    np.testing.assert_allclose(made.numpy(), np.einsum("abk,snk->sabn", x.numpy(), w.numpy()))
    images, filters = draw(3, 2, 1, 2, 4, 4), draw(2, 3, 2, 3, 3)
    made = vmap(vmap(F.conv2d, (0, 0)), (0, None))(images, filters)
    want = torch.stack([torch.stack([F.conv2d(images[i, j], filters[j]) for j in range(2)]) for i in range(3)])
    np.testing.assert_allclose(made.numpy(), want.numpy())


def test_gradients_around():
    """The graph around sees the operators on all samples."""
    x, w = draw(4, 2, 3), draw(4, 5, 3)
    ways = (F.linear, (0, 0)), (F.linear, (0, None)), (F.linear, (None, 0)), (lambda x, w: torch.addmm(w[:, :2].T, x, w.T), (0, 0))
    for fn, dims in ways:
        leaves = [[v.clone().requires_grad_() for v in of_choice(dims, [x, w])] for _ in range(2)]
        vmap(fn, dims)(*leaves[0]).sin().sum().backward()
        looped(fn, dims, leaves[1], 4)[0].sin().sum().backward()
        for a, b in zip(*leaves):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-12)


def test_cross_entropy_of_a_layer():
    x, w, b = draw(3, 6, 4), draw(3, 5, 4), draw(3, 5)
    y = torch.tensor(np.random.default_rng(0).integers(0, 5, (3, 6)))
    y[:, 1] = -100
    for dims in choices(4):
        tensors = of_choice(dims, [x, w, b, y])
        for reduction in ("mean", "none"):
            def loss(x, w, b, y, reduction=reduction):
                return F.linear_cross_entropy(x, w, y, linear_bias=b, reduction=reduction, label_smoothing=0.1)

            def gradients(x, w, b, y, loss=loss):
                made, pull = vjp(lambda *v: loss(*v, y), x, w, b)
                return made, pull(made.cos())

            check(loss, dims, *tensors)
            check(gradients, dims, *tensors)


@pytest.mark.parametrize("dims", choices(3))
def test_groups_of_rows(dims):
    """Experts of a mixture: rows after the last group are 0."""
    x, mat = draw(3, 7, 4), draw(3, 2, 4, 5)
    ends = torch.tensor([[3, 6], [0, 7], [2, 2]], dtype=torch.int32)
    x, mat, ends = of_choice(dims, [x, mat, ends])

    def gradients(x, mat, ends):
        made, pull = vjp(lambda *v: F.grouped_mm(*v, offs=ends), x, mat)
        return made, pull(made.cos())

    got = check(gradients, dims, x, mat, ends)
    assert bool((got[0][-1][int(ends.reshape(-1)[-1]):] == 0).all())


def test_eight_bit_products():
    shapes = (3, 4, 5), (3, 5, 2)
    a, b = [torch.tensor(np.random.default_rng(k).integers(-9, 9, shape), dtype=torch.int8) for k, shape in enumerate(shapes)]
    for dims in choices(2):
        check(torch._int_mm, dims, *of_choice(dims, [a, b]))
    scaled, (x, y) = registry["scaled_product"], [v.float().to(torch.float8_e4m3fn) for v in (a, b)]
    rows, columns, one, bias = [draw(3, *shape, positive=True).float() for shape in ((4, 1), (1, 2), (1,), (2,))]
    for dims in choices(5):
        for scales in ((rows, columns), (one, one), (one, columns)):
            tensors = of_choice(dims, [x, y, *scales, bias])
            check(lambda *v: scaled(*v, torch.float32), dims, *tensors, tolerance=1e-5)


# ------------------------------------------------------------------ images
@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("groups, batch", [(1, 2), (2, 1), (2, 3)])
def test_convolution(dims, groups, batch):
    """Values and gradients: samples are images, or have groups or channels of their own."""
    x, w, b = of_choice(dims, [draw(4, batch, 4, 6, 5), draw(4, 6, 4 // groups, 3, 2), draw(4, 6)])

    def conv(x, w, b):
        return F.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=groups)

    def gradients(x, w, b):
        made, pull = vjp(conv, x, w, b)
        return pull(made.sin())

    check(conv, dims, x, w, b, once=["convolution"])
    check(gradients, dims, x, w, b, once=["convolution", "convolution_input", "convolution_weight"])
    if dims[:2] != (None, None):
        turned = w.transpose(-3, -4) if groups == 1 else w[..., :4, :, :, :]
        check(lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=groups), dims[:2], x, turned, once=["convolution_input"])


def test_convolution_of_gradients_alone():
    """Jacobians: the gradient alone differs from sample to sample."""
    x, w = draw(1, 2, 4, 4), draw(2, 2, 3, 3)
    for k, fn in ((0, lambda x: F.conv2d(x, w)), (1, lambda w: F.conv2d(x, w))):
        made, pull = vjp(fn, (x, w)[k])
        units = torch.eye(made.numel(), dtype=made.dtype).reshape(-1, *made.shape)
        check(lambda g, pull=pull: pull(g), (0,), units, once=[("convolution_input", "convolution_weight")[k]])
        jacobian = jacrev(fn)((x, w)[k])
        np.testing.assert_allclose(jacobian.reshape(made.numel(), -1).numpy(), vmap(pull)(units)[0].reshape(made.numel(), -1).numpy())


def test_images_in_other_layouts():
    x, w = draw(3, 2, 2, 6, 5), draw(3, 4, 2, 3, 3)
    for (a, d), (b, e) in zip(layouts(x), layouts(w)):
        check(F.conv2d, (d, e), a, b, once=["convolution"])
        check(F.conv2d, (None, e), x[0], b, once=["convolution"])
        check(lambda v: F.max_pool2d(v, 2, return_indices=True), (d,), a, once=["max_pool", "places_of"])
    last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    check(F.conv2d, (0, None), last, w[0], once=["convolution"])
    check(lambda v: F.avg_pool2d(v, 2), (0,), last, once=["avg_pool"])


POOLS = {"max_pool2d": lambda v: F.max_pool2d(v, 2, 1, 1), "places": lambda v: F.max_pool2d(v, 3, 2, return_indices=True)[0],
         "avg_pool2d": lambda v: F.avg_pool2d(v, 3, 2, 1), "adaptive": lambda v: F.adaptive_avg_pool2d(v, (2, 3)),
         "interpolate": lambda v: F.interpolate(v, scale_factor=1.5, mode="bilinear"),
         "nearest": lambda v: F.interpolate(v, size=(4, 7))}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_and_resizing(name):
    x = draw(3, 2, 2, 6, 5)

    def gradients(v):
        made, pull = vjp(POOLS[name], v)
        return made, pull(made.cos())

    check(gradients, (0,), x)
    made, pull = vjp(POOLS[name], x[0])
    check(pull, (0,), draw(3, *made.shape))                              # one image, many gradients


def test_pooling_of_volumes():
    x = draw(2, 1, 2, 4, 4, 4)
    for fn in (lambda v: F.max_pool3d(v, 2), lambda v: F.avg_pool3d(v, 2), lambda v: F.adaptive_max_pool3d(v, 2)):
        def gradients(v, fn=fn):
            made, pull = vjp(fn, v)
            return made, pull(made.cos())

        check(gradients, (0,), x)


@pytest.mark.parametrize("dims", choices(2))
def test_grid_sample(dims):
    image, grid = of_choice(dims, [draw(3, 2, 2, 5, 4), draw(3, 2, 3, 2, 2).tanh()])

    def gradients(image, grid):
        made, pull = vjp(lambda *v: F.grid_sample(*v, mode="bilinear", align_corners=False), image, grid)
        return made, pull(made.cos())

    check(gradients, dims, image, grid, once=["grid_sample", "grid_sample_back", "grid_sample_slope"])


# ------------------------------------------------------------------ matrices
@pytest.mark.parametrize("dims", choices(2))
@pytest.mark.parametrize("a, b", [((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((3, 3), (2, 3, 2)), ((2, 3, 3), (2, 3, 2))])
def test_solutions(dims, a, b):
    A, B = of_choice(dims, [draw(4, *a) + 4 * torch.eye(3, dtype=torch.float64), draw(4, *b)])
    check(torch.linalg.solve, dims, A, B, once=["solve_square"])
    check(lambda A, B: torch.linalg.solve_triangular(A, B, upper=True), dims, A, B, once=["substitute"])
    check(lambda A, B: vjp(torch.linalg.solve, A, B)[1](torch.linalg.solve(A, B)), dims, A, B)
    S = A + A.mT
    check(lambda S, B: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(S), B), dims, S, B, once=["ldl_factors"])


def test_factors():
    A = draw(4, 3, 3)
    S, tall = A @ A.mT + torch.eye(3, dtype=torch.float64), draw(4, 5, 3)
    for fn, x in ((torch.linalg.cholesky, S), (torch.linalg.det, A), (torch.linalg.slogdet, A), (torch.linalg.eigvalsh, S),
                  (torch.linalg.eigh, S), (torch.linalg.qr, tall), (torch.linalg.svdvals, tall), (torch.linalg.svd, A),
                  (torch.linalg.inv, A), (torch.linalg.pinv, tall), (torch.linalg.lu_factor, A),
                  (torch.linalg.eig, A), (torch.linalg.eigvals, A), (torch.linalg.householder_product, None), (torch.geqrf, tall)):
        if x is None:
            check(lambda v: torch.linalg.householder_product(*torch.geqrf(v)), (0,), tall)
            continue
        check(lambda v, fn=fn: tuple(made) if isinstance(made := fn(v), tuple) else made, (0,), x)
        check(lambda v, fn=fn: tuple(made) if isinstance(made := fn(v), tuple) else made, (2,), x.movedim(0, 2))
    check(grad(lambda v: torch.linalg.slogdet(v)[1]), (0,), S)
    check(grad(lambda v: torch.linalg.cholesky(v).sum()), (0,), S)
    check(grad(lambda v: torch.linalg.eigvalsh(v)[-1]), (0,), S)


@pytest.mark.parametrize("dims", choices(2))
def test_tolerances_of_pseudo_inverses(dims):
    A, atol = of_choice(dims, [draw(4, 2, 5, 3), draw(4, positive=True) / 4])
    check(lambda A, atol: torch.linalg.pinv(A, atol=atol, rtol=0.0), dims, A, atol, once=["pseudo_inverse"])


# ------------------------------------------------------------------ attention
def attend(q, k, v, **kw):
    made, pull = vjp(lambda *x: F.scaled_dot_product_attention(*x, **kw), q, k, v)
    return made, pull(made.cos())


@pytest.mark.parametrize("dims", choices(3))
@pytest.mark.parametrize("batch", [1, 2])
def test_attention(dims, batch):
    q, k, v = of_choice(dims, [draw(3, batch, 4, 5, 2), draw(3, batch, 2, 6, 2, seed=1), draw(3, batch, 2, 6, 3)])
    slopes, mask = draw(4, positive=True), draw(5, 6) > 0
    for more in ({}, {"is_causal": True}, {"alibi_slopes": slopes, "window_size": (2, 1)}, {"attn_mask": mask}):
        check(lambda q, k, v, more=more: attend(q, k, v, enable_gqa=True, **more), dims, q, k, v, once=["attention", "attention_backward"])


@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 5, 6), (1, 1, 1, 6), (2, 4, 1, 6), (2, 1, 5, 6)])
def test_masks_and_slopes(shape):
    """Each sample has its own, or all have one."""
    q, k, v, mask, slopes = draw(3, 2, 4, 5, 2), draw(3, 2, 4, 6, 2), draw(3, 2, 4, 6, 3), draw(3, *shape), draw(3, 2, 4, positive=True)

    def gradients(q, k, v, mask, slopes):
        made, pull = vjp(lambda q, mask, slopes: F.scaled_dot_product_attention(q, k, v, mask, alibi_slopes=slopes), q, mask, slopes)
        return made, pull(made.cos())

    for dims in ((0, 0, 0, 0, 0), (0, 0, 0, None, None), (0, None, None, 0, None), (None, None, None, 0, 0), (None, None, None, None, 0)):
        tensors = of_choice(dims, [q, k, v, mask, slopes])
        check(gradients, dims, *tensors, once=["attention", "attention_backward", "attention_backward_mask", "attention_backward_slopes"])
        tensors[4] = tensors[4][..., 0, :]                               # of heads alone
        check(gradients, dims, *tensors, once=["attention_backward_slopes"])


def packed(q, k, v, cu_q, cu_k):
    from tritorch.nn.attention.varlen import varlen_attn

    def run(*x):
        return varlen_attn(*x, cu_q, cu_k, 4, 5, window_size=(-1, 0), enable_gqa=True)

    made, pull = vjp(run, q, k, v)
    return made, pull(made.cos())


@pytest.mark.parametrize("dims", [(0, 0, 0, None, None), (0, 0, 0, 0, 0), (0, None, None, 0, 0), (None, None, None, 0, None),
                                  (0, None, None, None, None)])
def test_packed_sequences(dims):
    """Sequences of their own lengths in each sample; some rows and keys are in none."""
    q, k, v = draw(3, 8, 4, 2), draw(3, 9, 2, 2, seed=1), draw(3, 9, 2, 3)
    rows = torch.tensor([[0, 3, 7], [1, 1, 5], [0, 4, 8]], dtype=torch.int32)
    keys = torch.tensor([[0, 5, 9], [0, 4, 9], [2, 2, 7]], dtype=torch.int32)
    check(packed, dims, *of_choice(dims, [q, k, v, rows, keys]), once=["attention", "attention_backward"])


# ------------------------------------------------------------------ recurrent layers
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind):
    """One layer for all samples, with gradients of each, and a layer for each sample."""
    net = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=True).double()
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x = draw(3, 5, 2, 3)

    def loss(parameters, x):
        return functional_call(net, parameters, (x,))[0].sin().sum()

    def flat(x):
        return list(grad(loss)(parameters, x).values())

    check(lambda x: grad(lambda v: loss(parameters, v))(x), (0,), x)
    check(flat, (0,), x)
    several = {name: torch.stack([p, p * 0.5]) for name, p in parameters.items()}
    made = vmap(lambda p: functional_call(net, p, (x[0],))[0])(several)
    for k in range(2):
        want = functional_call(net, {name: p[k] for name, p in several.items()}, (x[0],))[0]
        np.testing.assert_allclose(made[k].detach().numpy(), want.detach().numpy(), atol=1e-10)


# ------------------------------------------------------------------ nets
def test_gradients_of_each_sample():
    """Of a small convolutional net, for each of a batch, in one pass; some of its operators are those of groups."""
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, groups=2), nn.GELU(), nn.AvgPool2d(2),
                        nn.Flatten(), nn.Linear(6 * 4, 5)).double()
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x, y = draw(6, 1, 12, 12), torch.tensor([0, 4, 2, 2, 1, 3])

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(net, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    with Log() as log:
        made = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    assert log.calls["convolution"] == log.calls["convolution_weight"] == 2 and log.calls["convolution_input"] == 1
    for k in range(6):
        want = grad(loss)(parameters, x[k], y[k])
        for name, g in want.items():
            np.testing.assert_allclose(made[name][k].numpy(), g.numpy(), atol=1e-12, err_msg=name)


def test_ensemble():
    """Each sample is a net with weights of its own; the inputs are the same."""
    nn, x = torch.nn, draw(5, 2, 5, 5)
    nets = [nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4)).double() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(nets)
    parameters = {name: p.detach() for name, p in parameters.items()}
    with Log() as log:
        made = vmap(lambda p: functional_call(nets[0], p, (x,)))(parameters)
    assert log.calls["convolution"] == 1
    np.testing.assert_allclose(made.numpy(), torch.stack([net(x) for net in nets]).detach().numpy(), atol=1e-12)


def test_transformer():
    """Gradients of parts of a projection are parts of one tensor."""
    net = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x = draw(3, 5, 8)

    def loss(parameters, x):
        return functional_call(net, parameters, (x.unsqueeze(0),)).sin().sum()

    with Log() as log:
        made = vmap(grad(loss), (None, 0))(parameters, x)
    assert log.calls["attention"] == log.calls["attention_backward"] == 1
    for k in range(3):
        for name, g in grad(loss)(parameters, x[k]).items():
            np.testing.assert_allclose(made[name][k].numpy(), g.numpy(), atol=1e-10, err_msg=name)


def test_parts():
    """Gradients of slices: of samples, side by side, one over the other."""
    x, w = draw(3, 4, 5), draw(4, 5)
    check(grad(lambda v: (v[1:3].sin() * w[:2]).sum() + v[2:].cos().sum()), (0,), x)
    check(grad(lambda v: sum([(part * k).sin().sum() for k, part in enumerate(v.chunk(2))])), (0,), x)
    check(lambda g: vjp(lambda v: v[1:, ::2], x[0])[1](g), (0,), draw(3, 3, 3))
