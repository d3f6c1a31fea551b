"""softmax and the norms against PyTorch: dims, dtypes, special values, running statistics, rows of every length, second derivatives."""
import numpy as np
import pytest
from arrays import draw

import tritorch
from tritorch.nn import functional as ours_f

torch = pytest.importorskip("torch")
theirs_f = torch.nn.functional


def close(ours, theirs, rtol=1e-5, atol=1e-5):
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().cpu().float().array, theirs.detach().float().numpy(), rtol=rtol, atol=atol)


def both(call, *arrays, place="cpu", rtol=1e-4, atol=2e-5):
    """Run a function of the module and the tensors in tritorch and in torch: results and the gradients of all tensors agree."""
    mine = [None if a is None else tritorch.tensor(a).to(place).requires_grad_() for a in arrays]
    other = [None if a is None else torch.tensor(a).requires_grad_() for a in arrays]
    got, want = call(ours_f, *mine), call(theirs_f, *other)
    close(got, want, rtol, atol)
    weight = draw(*got.shape, seed=9)
    gs = tritorch.autograd.grad(got, [t for t in mine if t is not None], tritorch.tensor(weight).to(place))
    hs = torch.autograd.grad(want, [t for t in other if t is not None], torch.tensor(weight))
    for g, h in zip(gs, hs):
        close(g, h, rtol, atol)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape, dim", [((5,), 0), ((3, 7), 1), ((7, 3), 0), ((2, 5, 3, 4), 1), ((4, 1), 1), ((), 0)])
def test_softmax(name, shape, dim, cuda):
    for place in ("cpu", cuda):
        both(lambda f, x: getattr(f, name)(x, dim=dim), draw(*shape), place=place)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_special_values(name, cuda):
    array = draw(6, 9)
    array[1], array[2, 3], array[3, 3], array[4, :4] = -np.inf, np.inf, np.nan, -np.inf
    array[5] += 1e4
    for place in ("cpu", cuda):
        for dim in (0, 1):
            close(getattr(tritorch, name)(tritorch.tensor(array).to(place), dim), getattr(torch, name)(torch.tensor(array), dim))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_softmax_casts_and_rounds_once(kind, cuda):
    x = tritorch.tensor(draw(4, 50)).to(getattr(tritorch, kind))
    want = torch.tensor(x.float().array).softmax(1)
    for place in ("cpu", cuda):
        assert tritorch.softmax(x.to(place), 1, dtype=tritorch.float32).dtype is tritorch.float32
        close(tritorch.softmax(x.to(place), 1, dtype=tritorch.float32), want)
        close(x.to(place).softmax(1), want.to(getattr(torch, kind)), rtol=0.01)


@pytest.mark.parametrize("width", [1, 2, 3, 31, 257, 4099, 20001])
def test_rows_of_every_length(width, cuda, tiles):
    x, w, b = draw(5, width), draw(width, seed=1), draw(width, seed=2)
    both(lambda f, x: f.softmax(x, dim=1), x, place=cuda)
    both(lambda f, x: f.log_softmax(x, dim=1), x, place=cuda, atol=1e-3)
    both(lambda f, x, w, b: f.layer_norm(x, (width,), w, b), x, w, b, place=cuda, atol=2e-4)
    both(lambda f, x, w: f.rms_norm(x, (width,), w), x, w, place=cuda, atol=2e-4)


@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("shape, n", [((4, 7), 1), ((2, 3, 5), 2), ((2, 3, 5), 1), ((6,), 1), ((200, 33), 1)])
def test_layer_norm(shape, n, affine, cuda):
    last = shape[-n:]
    w, b = [draw(*last, seed=k) if on else None for k, on in enumerate(affine, 1)]
    for place in ("cpu", cuda):
        both(lambda f, x, w, b: f.layer_norm(x, last, w, b), draw(*shape), w, b, place=place)
        both(lambda f, x, w: f.rms_norm(x, last, w, 1e-6), draw(*shape), w, place=place)


def test_layer_norm_of_large_means_keeps_its_digits(cuda):
    array = (1e3 + draw(3, 500)).astype(np.float32)
    want = theirs_f.layer_norm(torch.tensor(array).double(), (500,))
    for place in ("cpu", cuda):
        close(ours_f.layer_norm(tritorch.tensor(array).to(place), (500,)), want, atol=1e-3)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_rms_norm_takes_the_eps_of_the_compute_dtype(kind):
    array = draw(3, 8) * 1e-3
    got = ours_f.rms_norm(tritorch.tensor(array).to(getattr(tritorch, kind)), (8,))
    want = theirs_f.rms_norm(torch.tensor(array).to(getattr(torch, kind)), (8,))
    close(got, want, rtol=0.01 if kind.endswith("16") else 1e-5)


@pytest.mark.parametrize("shape, groups", [((2, 4, 3), 2), ((3, 6), 3), ((2, 6, 3, 5), 2), ((2, 3, 7), 1), ((1, 8, 40, 40), 2)])
def test_group_norm(shape, groups, cuda, tiles):
    w, b = draw(shape[1], seed=1), draw(shape[1], seed=2)
    for place in ("cpu", cuda):
        both(lambda f, x, w, b: f.group_norm(x, groups, w, b), draw(*shape), w, b, place=place, atol=1e-4)
        both(lambda f, x: f.group_norm(x, groups), draw(*shape), place=place)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 5, 3, 4), (2, 3, 2, 3, 2), (3, 2, 60, 70)])
def test_batch_norm_and_its_running_statistics(shape, training, cuda, tiles):
    c = shape[1]
    w, b, mean, var = draw(c, seed=1), draw(c, seed=2), draw(c, seed=3), np.abs(draw(c, seed=4)) + 0.5
    for place in ("cpu", cuda):
        mine = [tritorch.tensor(v).to(place) for v in (mean, var)]
        other = [torch.tensor(v) for v in (mean, var)]
        both(lambda f, x, w, b: f.batch_norm(x, *(mine if f is ours_f else other), w, b, training, 0.3, 1e-3), draw(*shape), w, b,
             place=place, atol=1e-4)
        for m, o in zip(mine, other):
            close(m, o)
        both(lambda f, x: f.batch_norm(x, None, None, training=True), draw(*shape), place=place, atol=1e-4)


def test_batch_norm_of_channels_last(cuda):
    array = draw(3, 4, 5, 6).transpose(0, 3, 1, 2)
    for place in ("cpu", cuda):
        x = tritorch.tensor(array.transpose(0, 2, 3, 1).copy()).to(place).permute(0, 3, 1, 2)
        close(ours_f.batch_norm(x, None, None, training=True), theirs_f.batch_norm(torch.tensor(array), None, None, training=True))


def test_batch_norm_needs_more_than_one_value():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours_f.batch_norm(tritorch.ones(1, 3), None, None, training=True)


@pytest.mark.parametrize("use_input_stats", [True, False])
def test_instance_norm(use_input_stats):
    shape, c = (2, 3, 4, 5), 3
    w, b, mean, var = draw(c, seed=1), draw(c, seed=2), draw(c, seed=3), np.abs(draw(c, seed=4)) + 0.5
    mine, other = [tritorch.tensor(v) for v in (mean, var)], [torch.tensor(v) for v in (mean, var)]
    both(lambda f, x, w, b: f.instance_norm(x, *(mine if f is ours_f else other), w, b, use_input_stats, 0.3), draw(*shape), w, b)
    for m, o in zip(mine, other):
        close(m, o)
    both(lambda f, x: f.instance_norm(x), draw(*shape))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "batch_norm", "group_norm"])
def test_second_derivatives(name, cuda):
    calls = {
        "softmax": lambda f, x, w: f.softmax(x * w, dim=1), "layer_norm": lambda f, x, w: f.layer_norm(x, (4,), w),
        "rms_norm": lambda f, x, w: f.rms_norm(x, (4,), w, 1e-3),
        "batch_norm": lambda f, x, w: f.batch_norm(x, None, None, w, training=True),
        "group_norm": lambda f, x, w: f.group_norm(x, 2, w),
    }
    results = []
    for library, f, place in ((tritorch, ours_f, "cpu"), (tritorch, ours_f, cuda), (torch, theirs_f, "cpu")):
        x, w = [library.tensor(v).to(place).requires_grad_() for v in (draw(5, 4), draw(4, seed=1))]
        (gx,) = library.autograd.grad((calls[name](f, x, w) ** 3).sum(), [x], create_graph=True)
        results.append([t.cpu() for t in library.autograd.grad((gx * gx).sum(), [x, w])])
    for got in results[:2]:
        for g, h in zip(got, results[2]):
            close(g, h, rtol=2e-3, atol=2e-3)


def test_layer_norm_backward_is_deterministic(cuda):
    x = tritorch.tensor(draw(999, 65)).to(cuda)
    w = tritorch.ones(65, device=cuda, requires_grad=True)
    first, second = [tritorch.autograd.grad((ours_f.layer_norm(x, (65,), w) ** 2).sum(), [w])[0].cpu().array for _ in range(2)]
    assert (first == second).all()
