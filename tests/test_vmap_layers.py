"""vmap over images, attention, recurrent layers and nets of them: what a loop over the samples gives, from one call of each operator."""
import numpy as np
import pytest
from batched_calls import Log, check, choices, draw, layouts, looped, of_choice
from both import both

import tritorch as torch
from tritorch.func import functional_call, grad, jacrev, vjp, vmap
from tritorch.nn import functional as F
from tritorch.nn.attention.varlen import varlen_attn


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


# ------------------------------------------------------------------ random numbers
def dropped(q, k, v):
    made, pull = vjp(lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.5), q, k, v)
    return made, pull(torch.ones_like(made))


def test_dropout_of_attention():
    """Each sample drops its own weights, its gradients the same ones; or all drop the same."""
    q, k, v = draw(3, 2, 2, 6, 4), draw(3, 2, 2, 6, 4, seed=1), draw(3, 2, 2, 6, 4, seed=2)
    alike = [x[:1].expand(x.shape) for x in (q, k, v)]
    for dims in choices(3):
        tensors = of_choice(dims, alike)
        with Log() as log:
            made, _ = vmap(dropped, dims, randomness="different")(*tensors)
        assert log.calls["attention"] == log.calls["attention_backward"] == 1
        assert not bool((made[0] == made[1]).all()) and not bool((made[1] == made[2]).all())
        made, gradients = vmap(dropped, dims, randomness="same")(*tensors)
        for x in (made, *gradients):
            np.testing.assert_allclose(x[0].numpy(), x[1].numpy())

    def out(q):
        torch.manual_seed(5)
        return vmap(dropped, randomness="different")(q, k, v)

    step, way = 1e-6, draw(*q.shape, seed=3)
    slope = (out(q + step * way)[0].sum() - out(q - step * way)[0].sum()) / (2 * step)
    np.testing.assert_allclose(slope.item(), (out(q)[1][0] * way).sum().item(), rtol=1e-6)
    made = vmap(lambda x: F.scaled_dot_product_attention(q[0], k[0], v[0], dropout_p=0.5) + x, randomness="different")(torch.zeros(2))
    assert not bool((made[0] == made[1]).all())


def test_dropout_behind_a_layer():
    x, w, residual = draw(3, 5, 4), draw(3, 6, 4), draw(3, 5, 6)
    for dims in choices(3):
        tensors = of_choice(dims, [x[:1].expand(x.shape), w[:1].expand(w.shape), residual[:1].expand(residual.shape)])

        def layer(x, w, residual):
            return F.linear_dropout_add(x, w, None, residual, 0.5) - residual

        made = vmap(layer, dims, randomness="different")(*tensors)
        assert not bool((made[0] == made[1]).all()) and not bool((made[1] == made[2]).all())
        value = 2 * (x[0] @ w[0].T)
        kept = made.abs() > 1e-6
        np.testing.assert_allclose(made.numpy(), torch.where(kept, value, 0).numpy(), atol=1e-12)
        assert 0.2 < kept.double().mean().item() < 0.8
        same = vmap(layer, dims, randomness="same")(*tensors)
        np.testing.assert_allclose(same.numpy(), same[:1].expand(same.shape).numpy(), atol=1e-12)
        kept = same.abs() > 1e-6
        np.testing.assert_allclose(same.numpy(), torch.where(kept, value, 0).numpy(), atol=1e-12)


# ------------------------------------------------------------------ beside PyTorch
@both
def test_beside_pytorch(torch):
    """Gradients of each sample, several nets, Jacobians and attention of samples, as PyTorch gives them."""
    F, vmap, grad = torch.nn.functional, torch.func.vmap, torch.func.grad

    def values(*shape):
        return torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape).mul(0.37).sin()

    def net(p, x):
        x = F.max_pool2d(F.conv2d(x, p["c"], p["b"], padding=1).tanh(), 2)
        return F.linear(x.flatten(1), p["w"])

    def loss(p, x, y):
        return F.cross_entropy(net(p, x.unsqueeze(0)), y.unsqueeze(0))

    p, x, y = {"c": values(3, 2, 3, 3), "b": values(3), "w": values(4, 12)}, values(5, 2, 4, 4), torch.tensor([0, 3, 1, 1, 2])
    several = {name: torch.stack([v, v.cos(), v * v]) for name, v in p.items()}
    q, k, v = values(3, 2, 4, 5), values(3, 2, 6, 5), values(3, 2, 6, 5)
    square = values(4, 3, 3) + 4 * torch.eye(3, dtype=torch.float64)
    nets = [vmap(grad(loss), (None, 0, 0))(p, x, y), vmap(net, (0, None))(several, x), torch.func.jacrev(lambda x: net(p, x))(x[:1]),
            vmap(vmap(grad(loss), (None, 0, 0)), (0, None, None))(several, x, y)]
    heads = [vmap(F.scaled_dot_product_attention)(q, k, v), vmap(F.scaled_dot_product_attention, (0, None, None))(q, k[0], v[0])]
    matrices = [vmap(torch.linalg.solve, (0, None))(square, values(3, 2)), vmap(torch.linalg.inv, 2)(square.movedim(0, 2)),
                vmap(grad(lambda a: torch.linalg.slogdet(a)[1]))(square), vmap(torch.matmul, (1, 0), -1)(values(2, 3, 4), values(3, 4)),
                vmap(torch.addmm, (None, 0, None))(values(4), values(3, 2, 5), values(5, 4))]
    return [nets, heads, matrices]


# ------------------------------------------------------------------ the graph around
def attended(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


AROUND = {"convolution": (lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 5, 5), (4, 2, 3, 3)),
          "attention": (attended, (2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 3)),
          "cross entropy of a layer": (lambda x, w: F.linear_cross_entropy(x, w, torch.tensor([0, 4, 2])), (3, 4), (5, 4)),
          "solution": (lambda a, b: torch.linalg.solve(a @ a.mT + torch.eye(4, dtype=a.dtype), b), (4, 4), (4, 2)),
          "gradient": (lambda x, w: grad(lambda v: F.conv2d(v, w, padding=1).sin().sum())(x), (1, 2, 4, 4), (2, 2, 3, 3)),
          "pooling": (lambda x, y: F.max_pool2d(x * y, 2), (2, 2, 4, 6), (2, 2, 4, 6))}


@pytest.mark.parametrize("name", AROUND)
def test_gradients_around(name):
    """Of what vmap returns, with respect to what it is given: what is the same for all samples, too."""
    fn, *shapes = AROUND[name]
    for dims in choices(len(shapes)):
        tensors = of_choice(dims, [draw(3, *shape, seed=k) for k, shape in enumerate(shapes)])
        ours, loop = [[x.clone().requires_grad_() for x in tensors] for _ in range(2)]
        vmap(fn, dims)(*ours).sin().sum().backward()
        looped(fn, dims, loop, 3)[0].sin().sum().backward()
        for a, b in zip(ours, loop):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-10)
