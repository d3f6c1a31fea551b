"""Attention: what the cards cannot know. PyTorch as an oracle, masks, groups, ranks, dropout, error against float64, many blocks."""
import numpy as np
import pytest

import tritorch as T
from tritorch.generator import Generator
from tritorch.ops import attention_cpu
from tritorch.ops.attention import attention, attention_keep, scaled_dot_product_attention
from tritorch.tensor import from_array


def draw(*shape, seed=0, dtype=np.float64):
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(dtype)


def dense(q, k, v, window=(None, None), scale=0.5, dropout=(0.0, 0, 0), base=None):
    """The operator, without masks and sequences."""
    return attention(q, k, v, None, None, None, None, None, window, scale, dropout, base)


def number(x):
    return x.detach().cpu().array


SHAPES = [
    ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), ((3, 5, 4), (3, 7, 4), (3, 7, 4)), ((5, 4), (7, 4), (7, 3)),
    ((2, 5, 4), (1, 7, 4), (2, 7, 6)), ((1, 2, 3, 4), (2, 5, 4), (2, 5, 6)), ((2, 8, 3, 4), (2, 1, 5, 4), (2, 1, 5, 6)),
    ((2, 2, 3, 3, 4), (2, 2, 3, 5, 4), (2, 2, 3, 5, 4)), ((2, 1, 3, 4), (3, 5, 4), (1, 1, 5, 4)), ((0, 3, 4), (0, 5, 4), (0, 5, 6)),
    ((2, 3, 4), (2, 0, 4), (2, 0, 6)), ((2, 0, 4), (2, 5, 4), (2, 5, 6)), ((1, 1, 40, 17), (1, 1, 33, 17), (1, 1, 33, 9)),
]


def both(shapes, causal=False, mask=None, **keywords):
    """Values and gradients of ours and PyTorch's; a mask that is not bool takes part in the gradients."""
    torch = pytest.importorskip("torch")
    arrays = [draw(*s, seed=k) for k, s in enumerate(shapes)]
    ours, theirs = [from_array(a.copy()).requires_grad_() for a in arrays], [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    m, n = (None, None) if mask is None else (from_array(mask.copy()), torch.from_numpy(mask.copy()))
    if mask is not None and mask.dtype != bool:
        ours.append(m.requires_grad_())
        theirs.append(n.requires_grad_())
    out = scaled_dot_product_attention(*ours[:3], m, is_causal=causal, **keywords)
    want = torch.nn.functional.scaled_dot_product_attention(*theirs[:3], n, is_causal=causal, **keywords)
    assert tuple(out.shape) == tuple(want.shape)
    np.testing.assert_allclose(number(out), want.detach().numpy(), atol=1e-12)
    if want.numel() and all(t.numel() for t in theirs):
        weights = draw(*want.shape, seed=9)
        (out * from_array(weights)).sum().backward()
        (want * torch.from_numpy(weights)).sum().backward()
        for mine, other in zip(ours, theirs):
            np.testing.assert_allclose(number(mine.grad), other.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_ranks_and_broadcasting_are_pytorchs(shapes, causal):
    both(shapes, causal)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 7), (1, 1, 5, 1)])
def test_masks_are_pytorchs(shape):
    qkv = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)
    both(qkv, mask=draw(*shape))
    some = draw(*shape) > -0.5
    both(qkv, mask=some)
    both(qkv, mask=np.where(some, draw(*shape), -np.inf), scale=0.3)


def test_rows_that_see_nothing_give_zeros(cuda):
    q, k, v = [draw(1, 1, 3, 4, seed=s) for s in range(3)]
    mask = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]], bool)
    for device in ("cpu", cuda):
        for m in (mask, np.where(mask, 0.0, -np.inf)):
            x = [from_array(a.copy()).to(device).requires_grad_() for a in (q, k, v)]
            out = scaled_dot_product_attention(*x, from_array(m.copy()).to(device))
            assert not number(out)[0, 0, 1].any() and np.isfinite(number(out)).all()
            out.sum().backward()
            assert not number(x[0].grad)[0, 0, 1].any() and all(np.isfinite(number(t.grad)).all() for t in x)


@pytest.mark.parametrize("heads", [(8, 2, 2), (8, 1, 1), (6, 6, 6), (8, 2, 4)])
def test_groups_of_heads_are_pytorchs(heads):
    h, g, gv = heads
    both(((2, h, 5, 4), (2, g, 7, 4), (2, gv, 7, 6)), enable_gqa=True)
    both(((h, 5, 4), (g, 7, 4), (gv, 7, 6)), True, enable_gqa=True)


ERRORS = [
    (lambda r: (r(4), r(5, 4), r(5, 6)), {}, "at least 2 dims"), (lambda r: (r(2, 3, 4), r(2, 5, 3), r(2, 5, 6)), {}, "one head size"),
    (lambda r: (r(2, 3, 4), r(2, 5, 4), r(2, 6, 6)), {}, "as many keys as values"),
    (lambda r: (r(2, 3, 4),) * 3, {"dropout_p": 1.5}, "0 ≤ drop"),
    (lambda r: (r(2, 3, 4), r(2, 3, 4), r(2, 3, 4).float()), {}, "of one dtype"), (lambda r: (*[r(2, 3, 4)] * 3, r(3, 4)), {}, "broadcast"),
    (lambda r: (*[r(2, 3, 4)] * 3, r(3, 3).int()), {}, "bool or"),
    (lambda r: (*[r(3, 4)] * 3, r(3, 3)), {"is_causal": True}, "or is_causal"),
    (lambda r: (r(1, 8, 3, 4), r(1, 3, 5, 4), r(1, 3, 5, 4)), {"enable_gqa": True}, "divide the query heads"),
    (lambda r: (r(1, 8, 3, 4), r(1, 2, 5, 4), r(1, 2, 5, 4)), {}, "broadcast"), (lambda r: (r(3, 4).int(),) * 3, {}, "floating dtype"),
]


@pytest.mark.parametrize("make, keywords, sentence", ERRORS)
def test_errors(make, keywords, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        scaled_dot_product_attention(*make(lambda *s: from_array(draw(*s))), **keywords)


# ------------------------------------------------------------------ dropout
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 2, 40, 64), (1, 1, 3, 1)])
def test_cpu_and_gpu_drop_the_same_weights(shape, cuda):
    B, H, L, S = shape
    for seed, offset in ((0, 0), (-5, 1 << 33), (123456789, 17)):
        scores = T.zeros(shape)
        here, there = attention_keep(scores, 0.3, seed, offset, None), attention_keep(scores.to(cuda), 0.3, seed, offset, None)
        assert (number(here) == number(there)).all()
        eye = from_array(np.broadcast_to(np.eye(S, dtype=np.float32), (B, H, S, S)).copy())
        q, k = T.zeros(B, H, L, 2), T.zeros(B, H, S, 2)
        for device in ("cpu", cuda):                                     # equal scores, and the weights themselves as the result
            out = dense(q.to(device), k.to(device), eye.to(device), scale=1.0, dropout=(0.3, seed, offset))[0]
            np.testing.assert_allclose(number(out), number(here) / S, rtol=1e-5)


def test_under_a_graph_the_numbers_count_from_a_place_on_the_device(cuda):
    base = from_array(np.array([-7, 1000])).to(cuda)
    x = from_array(draw(1, 2, 6, 9)).to(cuda).requires_grad_()

    def run(seed, offset, base):
        out = dense(x, x, x, window=(None, 0), scale=1.0, dropout=(0.4, seed, offset), base=base)[0]
        x.grad = None
        out.sum().backward()
        return number(attention_keep(out, 0.4, seed, offset, base)), number(out), number(x.grad)

    assert all((a == b).all() for a, b in zip(run(0, 30, base), run(-7, 1030, None)))


def test_dropout_rate_and_generator(cuda):
    keep = number(attention_keep(T.zeros(1, 4, 256, 256), 0.25, 3, 0, None))
    assert set(np.unique(keep)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((keep == 0).mean() - 0.25) < 5 * (0.25 * 0.75 / keep.size) ** 0.5
    x = from_array(draw(1, 2, 6, 4))
    outs = [number(scaled_dot_product_attention(*[x.to(d)] * 3, dropout_p=0.5, generator=Generator(d).manual_seed(4)))
            for d in ("cpu", "cpu", cuda)]
    assert (outs[0] == outs[1]).all()
    np.testing.assert_allclose(outs[0], outs[2], atol=1e-12)
    g = Generator().manual_seed(4)
    first, second = [number(scaled_dot_product_attention(x, x, x, dropout_p=0.5, generator=g)) for _ in range(2)]
    assert (first == outs[0]).all() and (second != first).any()
    assert not number(scaled_dot_product_attention(x, x, x, dropout_p=1.0)).any()


# ------------------------------------------------------------------ numbers
def exact(q, k, v, g, causal, scale):
    """Result and gradients in float64."""
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    return p @ v, ds @ k * scale, ds.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float16", 4e-3), ("bfloat16", 3e-2), ("float64", 1e-14)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
def test_error_against_float64(dtype, tolerance, causal, tiles, cuda, monkeypatch):
    """Largest error over largest value. Half types round the weights and the slopes of a tile once for the matrix units."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    kind = getattr(T, dtype)
    x = [from_array(draw(1, 2, n, 24, seed=k)).to(kind) for k, n in enumerate((150, 150, 150, 150))]
    want = exact(*[number(t.to(T.float64)) for t in x], causal, 24 ** -0.5)
    for device in ("cpu", cuda):
        q, k, v, g = [t.detach().to(device) for t in x]
        q, k, v = [t.requires_grad_() for t in (q, k, v)]
        out = scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.backward(g)
        for mine, other in zip((out, q.grad, k.grad, v.grad), want):
            assert mine.dtype is kind
            error = np.abs(number(mine.to(T.float64)) - other).max() / np.abs(other).max()
            assert error <= tolerance, (device, error)


def test_large_scores_do_not_overflow(cuda):
    x = from_array(draw(1, 1, 6, 4, dtype=np.float32) * 1000)
    for device in ("cpu", cuda):
        q = x.detach().to(device).requires_grad_()
        out = scaled_dot_product_attention(q, q, q)
        out.sum().backward()
        assert np.isfinite(number(out)).all() and np.isfinite(number(q.grad)).all()


def test_nan_goes_through(cuda):
    x = draw(1, 2, 5, 4, dtype=np.float32)
    x[0, 0, 2, 1] = np.nan
    for device in ("cpu", cuda):
        out = number(scaled_dot_product_attention(*[from_array(x.copy()).to(device)] * 3))
        assert np.isnan(out[0, 0]).all() and np.isfinite(out[0, 1]).all()


def test_deterministic(cuda):
    def gradients():
        x = [from_array(draw(2, 4, 50, 8, seed=k, dtype=np.float32)).to(cuda).requires_grad_() for k in range(3)]
        scaled_dot_product_attention(*x, is_causal=True, dropout_p=0.2, generator=Generator(cuda).manual_seed(1)).sum().backward()
        return [number(t.grad) for t in x]

    assert all((a == b).all() for a, b in zip(gradients(), gradients()))


@pytest.mark.parametrize("size", [1, 17, 80, 256])
@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
def test_head_sizes(size, tiles, cuda, monkeypatch):
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    arrays = [draw(1, 2, n, size, seed=k) for k, n in enumerate((21, 35, 35))]
    results = []
    for device in ("cpu", cuda):
        x = [from_array(a.copy()).to(device).requires_grad_() for a in arrays]
        out = scaled_dot_product_attention(*x, is_causal=True)
        out.backward(from_array(draw(*out.shape, seed=5)).to(device))
        results.append([number(t) for t in (out, *[t.grad for t in x])])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_many_blocks_on_the_cpu(causal, monkeypatch):
    """The same numbers however few scores fit a block."""
    x = [draw(3, 2, 70, 6, seed=k) for k in range(4)]
    want = exact(*x, causal, 6 ** -0.5)
    for scores in (1, 200, 5000, 1 << 20):
        monkeypatch.setattr(attention_cpu, "SCORES", scores)
        q, k, v = [from_array(a.copy()).requires_grad_() for a in x[:3]]
        out = scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.backward(from_array(x[3]))
        for mine, other in zip((out, q.grad, k.grad, v.grad), want):
            np.testing.assert_allclose(number(mine), other, atol=1e-12)


def test_saves_no_scores():
    """Nothing of the size of the scores is kept for backward."""
    q = T.zeros(1, 2, 64, 4).requires_grad_()
    out = scaled_dot_product_attention(q, q, q)
    assert max(t.numel() for t in out.grad_fn.saved_tensors) == q.numel()
