"""vmap over what works along rows, norms, and what moves elements: one call for all samples gives what one for each does."""
import numpy as np
import pytest
from both import both

import tritorch
import tritorch.nn.functional as F
from tritorch.func import grad, jacrev, vmap
from tritorch.ops.batchnorm_relu import batch_norm_relu
from tritorch.ops.residual_norm import residual_norm

f64 = tritorch.float64


def image_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, True)


def evaluated(x, mean, var, w, b):
    return F.batch_norm(x, mean, var.square() + 0.5, w, b)


def with_residual(x, r, w, b):
    return batch_norm_relu(x, None, None, w, b, True, residual=r)


def joint(x, r, w, b, v):
    out, total, *_ = residual_norm(x, r, (5,), w, b, True, 1e-3, 0.0, 0, 0, None, v)
    return out * total.sin()


def joint_rms(x, r, w):
    out, total, *_ = residual_norm(x, r, (5,), w, None, False)
    return out + total.cos()


def spectrum(x):
    return tritorch.view_as_real(tritorch.fft.rfft(x, dim=0)).square()


def both_ways(x):
    return tritorch.fft.ifft(tritorch.fft.fft(x, n=6, dim=-2), dim=-2).real


def turned(x, angle):
    return F.rotary_embedding(x, angle.cos(), angle.sin())


SMOOTH = {                                                               # functions with gradients, and the shapes of their samples
    "cumsum": (lambda x: x.cumsum(-1), (3, 4)), "cumsum of numbers": (lambda x: x.cumsum(0), ()),
    "cumprod": (lambda x: x.cumprod(0), (3, 4)), "logcumsumexp": (lambda x: x.logcumsumexp(1), (3, 4)),
    "cummax": (lambda x: x.cummax(0)[0], (5, 2)), "cummin": (lambda x: x.cummin(-1).values, (2, 5)),
    "softmax": (lambda x: x.softmax(0), (4, 3)), "log_softmax": (lambda x: x.log_softmax(-1), (4, 3)),
    "softmax of numbers": (lambda x: x.softmax(0) * x, ()), "max": (lambda x: x.max(0)[0], (4, 3)),
    "min": (lambda x: x.min(-1, keepdim=True).values, (4, 3)), "max of numbers": (lambda x: x.max(0, keepdim=True)[0], ()),
    "norm": (lambda x: tritorch.linalg.vector_norm(x, 3, 0), (4, 3)), "norm of all": (lambda x: x.norm(), (4, 3)),
    "median": (lambda x: x.median(0).values, (5, 3)), "median of all": (lambda x: x.median(), (5, 2)),
    "nanmedian": (lambda x: x.nanmedian(), (4,)), "kthvalue": (lambda x: x.kthvalue(2, 0).values, (4, 3)),
    "sort": (lambda x: x.sort(0, descending=True).values, (4, 3)), "topk": (lambda x: x.topk(2, -1).values, (4, 3)),
    "topk of numbers": (lambda x: x.topk(1)[0], ()), "glu": (lambda x: F.glu(x, 0), (4, 3)),
    "flip": (lambda x: x.flip(0, -1), (2, 3, 2)), "roll": (lambda x: x.roll((1, -2), (-1, 0)), (2, 3)),
    "roll of all": (lambda x: x.roll(2), (2, 3)), "tril": (lambda x: x.tril(-1) + x.triu(1), (3, 4)),
    "cat": (lambda x, y: tritorch.cat([x, y, x], -1), (2, 3), (2, 1)), "pad": (lambda x: F.pad(x, (1, -1, 0, 2), value=3.0), (2, 3)),
    "reflect": (lambda x: F.pad(x, (1, 1, 2, 0), "reflect"), (2, 1, 3, 3)), "circular": (lambda x: F.pad(x, (2, 1), "circular"), (2, 3)),
    "unfold": (lambda x: F.unfold(x, (2, 2), padding=1), (2, 1, 3, 2)), "fold": (lambda x: F.fold(x, (3, 2), (2, 1)), (2, 2, 4)),
    "fft": (both_ways, (4, 2)), "rfft": (spectrum, (5, 2)),
    "irfft": (lambda x: tritorch.fft.irfft(tritorch.fft.rfft(x, dim=0), 5, 0), (5,)),
    "affine grid": (lambda t: F.affine_grid(t, (2, 1, 2, 3), align_corners=False), (2, 2, 3)),
    "cdist": (lambda x, y: tritorch.cdist(x, y), (3, 2), (4, 2)), "cdist of batches": (tritorch.cdist, (2, 3, 2), (4, 2)),
    "mse": (F.mse_loss, (2, 3), (2, 3)), "huber": (lambda x, y: F.huber_loss(x, y, reduction="sum", delta=0.4), (3,), (3,)),
    "smooth l1 of numbers": (F.smooth_l1_loss, (), ()), "logits": (F.binary_cross_entropy_with_logits, (4,), (4,)),
    "rotary": (turned, (2, 3, 6), (3, 2)), "rotary with tables of heads": (turned, (2, 3, 4), (2, 3, 2)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), (3, 5), (5,), (5,)),
    "layer norm of a row": (lambda x, w, b: F.layer_norm(x, (5,), w, b), (5,), (5,), (5,)),
    "layer norm of images": (lambda x, w, b: F.layer_norm(x, (2, 3), w, b), (2, 2, 2, 3), (2, 3), (2, 3)),
    "layer norm without a weight": (lambda x, b: F.layer_norm(x, (5,), None, b), (3, 5), (5,)),
    "rms norm": (lambda x, w: F.rms_norm(x, (5,), w), (2, 3, 5), (5,)),
    "rms norm of a row": (lambda x, w: F.rms_norm(x, (5,), w), (5,), (5,)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4, 2), (4,), (4,)),
    "group norm of one image": (lambda x, w, b: F.group_norm(x, 2, w, b), (1, 4, 2, 3), (4,), (4,)),
    "group norm without a bias": (lambda x, w: F.group_norm(x, 1, w), (2, 4), (4,)),
    "batch norm": (image_norm, (3, 2, 2, 2), (2,), (2,)), "batch norm of vectors": (image_norm, (4, 3), (3,), (3,)),
    "batch norm of one image": (image_norm, (1, 2, 3), (2,), (2,)),
    "batch norm by given values": (evaluated, (3, 2, 2, 2), (2,), (2,), (2,), (2,)),
    "batch norm of vectors by given values": (evaluated, (3, 2), (2,), (2,), (2,), (2,)),
    "batch norm with a residual": (with_residual, (3, 2, 2), (3, 2, 2), (2,), (2,)),
    "rectified batch norm": (lambda x, w, b: batch_norm_relu(x, None, None, w, b, True), (3, 2, 4), (2,), (2,)),
    "residual norm": (joint, (3, 5), (3, 5), (5,), (5,), (5,)), "residual norm of a row": (joint, (5,), (5,), (5,), (5,), (5,)),
    "residual rms norm": (joint_rms, (2, 2, 5), (2, 2, 5), (5,)),
}
PLAIN = {                                                                # those without
    "argmax": (lambda x: x.argmax(), (3, 4)), "argmin": (lambda x: x.argmin(0, keepdim=True), (3, 4)),
    "argmax of numbers": (lambda x: x.argmax(), ()), "argmax that keeps dims": (lambda x: x.argmax(keepdim=True), (3, 4)),
    "cummax": (lambda x: x.cummax(-1).indices, (3, 4)), "sort": (lambda x: x.sort(0).indices, (4, 2)),
    "median": (lambda x: x.median(-1).indices, (3, 4)),
    "searchsorted": (lambda s, v: tritorch.searchsorted(s.sort(-1).values, v), (4,), (2, 3)),
    "searchsorted of rows": (lambda s, v: tritorch.searchsorted(s.sort(-1).values, v, right=True), (2, 4), (2, 3)),
    "searchsorted of numbers": (lambda s, v: tritorch.searchsorted(s.sort(-1).values, v), (4,), ()),
    "histc": (lambda x: tritorch.histc(x, 4, -1, 1), (3, 4)), "bins": (lambda x: F.one_hot((x * 3).long().clamp(0, 4), 5).sum(0), (6,)),
}


def values(size, shapes, seed=0):
    draw = np.random.default_rng(seed)
    return [tritorch.tensor(draw.standard_normal((size, *s)), dtype=f64) for s in shapes]


def one_by_one(fn, inputs, mapped):
    size = [x.shape[0] for x, m in zip(inputs, mapped) if m][0]
    return tritorch.stack([fn(*[x[k] if m else x for x, m in zip(inputs, mapped)]) for k in range(size)])


def once(fn):
    """fn, which fails where it is called again."""
    calls = []

    def called(*args):
        calls.append(args)
        assert len(calls) == 1, "called for each sample"
        return fn(*args)

    return called


def near(got, want):
    assert got.shape == want.shape and got.dtype is want.dtype
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-11)


def choices(count):
    """Which arguments are mapped: all, each alone, all but each."""
    alone = [[k == j for j in range(count)] for k in range(count)]
    return [[True] * count, *(alone if count > 1 else []), *([[not v for v in m] for m in alone] if count > 2 else [])]


def picked(inputs, mapped):
    return [x if m else x[0] for x, m in zip(inputs, mapped)], tuple([0 if m else None for m in mapped])


ALL = pytest.mark.parametrize("case", [*SMOOTH.values(), *PLAIN.values()], ids=[*SMOOTH, *[f"{name}'s places" for name in PLAIN]])
OF_SMOOTH = pytest.mark.parametrize("case", SMOOTH.values(), ids=SMOOTH)


@ALL
def test_values(case):
    fn, *shapes = case
    for mapped in choices(len(shapes)):
        inputs, dims = picked(values(3, shapes), mapped)
        near(vmap(once(fn), dims)(*inputs), one_by_one(fn, inputs, mapped))


@ALL
def test_layouts(case):
    """Samples along other dims, without memory of their own, one, none."""
    fn, *shapes = case
    inputs = values(3, shapes)
    want = one_by_one(fn, inputs, [True] * len(shapes))
    near(vmap(once(fn), -1)(*[x.movedim(0, -1).contiguous() for x in inputs]), want)
    dims = tuple([min(1, len(s)) for s in shapes])
    near(vmap(once(fn), dims)(*[x.movedim(0, d).contiguous() for x, d in zip(inputs, dims)]), want)
    near(vmap(once(fn))(*[x[1].expand(x.shape) for x in inputs]), want[1].expand(want.shape))
    near(vmap(once(fn))(*[x[2:] for x in inputs]), want[2:])
    none = vmap(once(fn))(*[x[3:] for x in inputs])
    assert none.shape == (0, *want.shape[1:]) and none.dtype is want.dtype


@OF_SMOOTH
def test_gradients_inside(case):
    """Gradients of every sample, of all arguments: what the rules of backward operators are for."""
    fn, *shapes = case
    of_all = grad(lambda *args: (fn(*args) * 1.5).sin().sum(), tuple(range(len(shapes))))
    for mapped in choices(len(shapes)):
        inputs, dims = picked(values(3, shapes), mapped)
        made = vmap(once(of_all), dims)(*inputs)
        for k, got in enumerate(made):
            near(got, one_by_one(lambda *args, k=k: of_all(*args)[k], inputs, mapped))


@OF_SMOOTH
def test_gradients_outside(case):
    fn, *shapes = case
    ways = (lambda inputs, dims: vmap(once(fn), dims)(*inputs),
            lambda inputs, dims: one_by_one(fn, inputs, [d == 0 for d in dims]))
    for mapped in choices(len(shapes))[:2]:
        found = []
        for way in ways:
            inputs, dims = picked(values(3, shapes), mapped)
            inputs = [x.clone().requires_grad_() for x in inputs]
            way(inputs, dims).sin().sum().backward()
            found.append([x.grad for x in inputs])
        for got, want in zip(*found):
            near(got, want)


@OF_SMOOTH
def test_gradients_of_gradients(case):
    """Those of every sample inside, of which a graph around has gradients again."""
    fn, *shapes = case
    of_all, found = grad(lambda *args: (fn(*args) * 1.5).sin().sum(), tuple(range(len(shapes)))), []
    mapped = [True] * len(shapes)

    def each(*inputs):
        return [one_by_one(lambda *args, k=k: of_all(*args)[k], inputs, mapped) for k in range(len(inputs))]

    for way in (vmap(once(of_all)), each):
        inputs = [x.requires_grad_() for x in values(2, shapes)]
        sum([made.cos().sum() for made in way(*inputs)]).backward()
        found.append([x.grad for x in inputs])
    for got, want in zip(*found):
        near(got, want)


@OF_SMOOTH
def test_nested(case):
    """One of vmap in one of vmap, and the rows of a Jacobian."""
    fn, *shapes = case
    inputs = [x.reshape(2, 3, *x.shape[1:]) for x in values(6, shapes)]
    got = vmap(vmap(fn))(*inputs)
    near(got, one_by_one(lambda *rows: one_by_one(fn, rows, [True] * len(shapes)), inputs, [True] * len(shapes)))
    first = [x[0] for x in inputs]
    rest = [x[0] for x in first[1:]]
    near(vmap(vmap(fn, (0, *[None] * len(rest))), (0, *[None] * len(rest)))(inputs[0], *rest), tritorch.stack(
        [one_by_one(lambda x: fn(x, *rest), [row], [True]) for row in inputs[0]]))
    sample = [x[0] for x in first]
    rows, out = jacrev(fn)(*sample), fn(*sample)
    x = sample[0].clone().requires_grad_()
    pulled = [tritorch.autograd.grad(fn(x, *sample[1:]).reshape(-1)[k], x)[0] for k in range(out.numel())]
    near(rows, tritorch.stack(pulled).reshape(rows.shape))


class Count(tritorch.dispatch.Interpreter):
    """How many operators compute something; those that write at indices have tests of their own."""

    calls = 0

    def __call__(self, op, args, out):
        self.calls += bool(op.impls) and not op.__name__.startswith("scatter")
        return self.proceed(op, args, out)


def counted(fn, *inputs):
    with Count() as count:
        fn(*inputs)
    return count.calls


@ALL
def test_no_loop(case):
    """As many operators for 7 samples as for 2, in the function and in its gradients."""
    fn, *shapes = case
    ways = [fn]
    if case in SMOOTH.values():
        ways.append(grad(lambda *args: (fn(*args) * 1.5).sin().sum(), tuple(range(len(shapes)))))
    for mapped in choices(len(shapes))[:2]:
        for way in ways:
            few, many = [picked(values(size, shapes), mapped) for size in (2, 7)]
            assert counted(vmap(way, few[1]), *few[0]) == counted(vmap(way, many[1]), *many[0])


HALVES = [name for name in SMOOTH if "norm" in name.split() or name in ("mse", "softmax", "cumsum", "glu", "rotary")]


@pytest.mark.parametrize("dtype", (tritorch.float16, tritorch.bfloat16), ids=("float16", "bfloat16"))
@pytest.mark.parametrize("name", HALVES)
def test_half_types(name, dtype):
    """Dtypes are those of one sample, values within a few roundings."""
    fn, *shapes = SMOOTH[name]
    inputs = [x.to(dtype) for x in values(3, shapes)]
    of_all, mapped = grad(lambda *args: fn(*args).float().sin().sum(), tuple(range(len(shapes)))), [True] * len(shapes)
    room = 16 * tritorch.finfo(dtype).eps
    for way in (lambda *args: (fn(*args),), of_all):
        for k, got in enumerate(vmap(once(way))(*inputs)):
            want = one_by_one(lambda *args, k=k, way=way: way(*args)[k], inputs, mapped)
            assert got.dtype is want.dtype and got.shape == want.shape
            scale = want.double().abs().amax().item()
            np.testing.assert_allclose(got.double().numpy(), want.double().numpy(), rtol=room, atol=room * max(scale, 1))


def test_channels_where_they_lie():
    """Images of samples one behind the other, channels last, samples between images and channels: the same."""
    x, w, b = values(3, [(4, 2, 3, 2), (2,), (2,)])
    of_all = grad(lambda *args: image_norm(*args).sin().sum(), (0, 1, 2))
    want = vmap(of_all)(x, w, b)
    between, last = x.transpose(0, 1).contiguous(), x.movedim(2, -1).contiguous().movedim(-1, 2)
    for got in (vmap(of_all, (1, 0, 0))(between, w, b), vmap(of_all)(last, w, b), vmap(of_all)(x.clone().transpose(0, 1).contiguous()
                                                                                              .transpose(0, 1), w, b)):
        for a, c in zip(got, want):
            near(a, c)


@pytest.mark.parametrize("name", ("layer norm", "rms norm", "group norm", "batch norm", "residual norm"))
def test_gradients_on_the_device(cuda, name):
    """Of samples along the second dim, in the layouts that rules leave for the kernels."""
    fn, *shapes = SMOOTH[name]
    of_all = vmap(grad(lambda *args: fn(*args).sin().sum(), tuple(range(len(shapes)))), (1, *[0] * (len(shapes) - 1)))
    first, *rest = [x.float() for x in values(2, shapes)]
    inputs = [first.transpose(0, 1).contiguous(), *rest]
    for got, want in zip(of_all(*[x.to(cuda) for x in inputs]), of_all(*inputs)):
        assert got.device.type == "cuda" and got.shape == want.shape
        np.testing.assert_allclose(got.cpu().numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_written_in_place():
    x = values(3, [(4, 3)])[0]

    def sorted_sums(row):
        made = row.cumsum(0)
        made.cumsum_(1).copy_(made.flip(0).clone())
        out = tritorch.empty_like(row)
        tritorch.cumsum(made, 0, out=out)
        return out.tril_()

    near(vmap(once(sorted_sums))(x), one_by_one(sorted_sums, [x], [True]))


def test_running_statistics_of_samples():
    """An ensemble, each model with buffers of its own."""
    x, mean, var = values(3, [(4, 2, 3), (2,), (2,)])

    def trained(x, mean, var):
        mean, var = mean.clone(), var.abs()
        out = F.batch_norm(x, mean, var, training=True, momentum=0.3)
        return tritorch.cat([out.reshape(-1), mean, var])

    near(vmap(once(trained))(x, mean, var), one_by_one(trained, [x, mean, var], [True] * 3))


def test_dropped_elements_of_samples():
    """Each sample drops its own, which its gradients know."""
    x, r, w = values(4, [(3, 5), (3, 5), (5,)])
    tritorch.manual_seed(3)

    def loss(x, r, w):
        return F.dropout_add_layer_norm(x, r, (5,), w, None, 0.5, True)[1].sum()

    g = vmap(once(grad(loss, (0, 1))), randomness="different")(x, r, w)
    assert set(g[0].reshape(-1).tolist()) == {0.0, 2.0} and len({tuple(row.reshape(-1).tolist()) for row in g[0]}) == 4
    near(g[1], tritorch.ones_like(r))


def test_one_mask_for_all_rows_of_a_jacobian():
    x, r, w, b = values(1, [(2, 5), (2, 5), (5,), (5,)])
    x, r, w, b = x[0], r[0], w[0], b[0]

    def dropped(x, b):
        tritorch.manual_seed(5)
        return residual_norm(x, r, (5,), w, None, True, 1e-3, 0.5, 7, 0, None, b)[0]

    for k, rows in enumerate(jacrev(dropped, (0, 1))(x, b)):
        given = [v.clone().requires_grad_() for v in (x, b)]
        out = dropped(*given).reshape(-1)
        near(rows, tritorch.stack([tritorch.autograd.grad(v, given[k], retain_graph=True)[0] for v in out]).reshape(rows.shape))


@pytest.mark.parametrize("own", (False, True), ids=("of all", "of samples"))
def test_the_same_elements_dropped(own):
    x, r, w, b = values(4, [(3, 5), (3, 5), (5,), (5,)])
    inputs, mapped = (x, r, w, b) if own else (x, r, w[0], b[0]), [True, True, own, own]

    def loss(x, r, w, b):
        out, total, *_ = residual_norm(x, r, (5,), w, None, True, 1e-5, 0.5, 7, 3, None, b)
        return (out * total.sin()).sum()

    of_all = grad(loss, (0, 1, 2, 3))
    made = vmap(once(of_all), tuple([0 if m else None for m in mapped]), randomness="same")(*inputs)
    for k, got in enumerate(made):
        near(got, one_by_one(lambda *args, k=k: of_all(*args)[k], inputs, mapped))


# ------------------------------------------------------------------ beside PyTorch
@both
def test_norms_of_ensembles(torch):
    """Models with parameters of their own: gradients of all, for one batch and for a batch each."""
    def spread(*shape):
        return (torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape) * 0.7).sin() * 2

    norm, func, out = torch.nn.functional, torch.func, []
    cases = ((lambda x, w, b: norm.layer_norm(x, (4,), w, b), (3, 4), 4), (lambda x, w, b: norm.group_norm(x, 2, w, b), (3, 4, 2), 4),
             (lambda x, w, b: norm.batch_norm(x, None, None, w, b, True), (3, 4, 2), 4))
    for fn, shape, channels in cases:
        of_all = func.grad(lambda *args, fn=fn: fn(*args).sin().sum(), (0, 1, 2))
        for dims in ((0, 0, 0), (None, 0, 0), (0, None, None)):
            inputs = [spread(5, *s) if d == 0 else spread(*s) for s, d in zip((shape, (channels,), (channels,)), dims)]
            out += list(func.vmap(of_all, dims)(*inputs))
    return out


@both
def test_rows_of_samples(torch):
    x = (torch.arange(24, dtype=torch.float64).reshape(2, 3, 4) * 1.3).sin()
    vmap = torch.func.vmap
    return [vmap(lambda v: v.softmax(0))(x), vmap(lambda v: v.cumsum(-1), 1)(x), vmap(lambda v: v.sort(0)[0], 2)(x), vmap(torch.argmax)(x),
            vmap(lambda v: v.flip(0).roll(1, -1).tril())(x), vmap(lambda v: torch.cat([v, v[:1]], 0), -1, 1)(x),
            vmap(lambda v: torch.nn.functional.pad(v, (1, 2)))(x), vmap(lambda v: torch.fft.fft(v, dim=0).abs())(x)]
