"""Attention: what the cards cannot know. PyTorch as an oracle, masks, groups, ranks, dropout, error against float64, many blocks."""

import numpy as np
import pytest

import tritorch as T
from tritorch.generator import Generator
from tritorch.nn.attention.varlen import AuxRequest, varlen_attn
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


@pytest.mark.parametrize("common, low", [(0.0, -1e4), (0.0, -1e9), (-200.0, 0.0)])
@pytest.mark.parametrize("keywords", [{}, {"window_size": (30, -1)}])
def test_scores_far_below_zero(common, low, keywords, cuda):
    """Where lse is large and negative, what lies past the last key weighs nothing, and rounding makes no weight larger than 1: rows that
    see nothing, and whose result nobody asks for, are often told so by a large number."""
    q, k, v, g = [draw(1, 2, 40, 8, seed=s) for s in range(4)]
    q[..., 0], k[..., 0], g[..., :5, :] = 1, common * np.sqrt(8), 0
    mask, found = np.broadcast_to(np.where(np.arange(40) < 5, low, 0.0)[:, None], (40, 40)), []
    for device, dtype in (("cpu", np.float64), (cuda, np.float32)):
        x = [from_array(a.astype(dtype)).to(device).requires_grad_() for a in (q, k, v)]
        out = scaled_dot_product_attention(*x, from_array(mask.astype(dtype)).to(device), **keywords)
        found.append([number(out)[..., 5:, :], *map(number, T.autograd.grad(out, x, from_array(g.astype(dtype)).to(device)))])
    for want, got in zip(*found):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, -4 * common), rtol=1e-3)


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


def test_a_captured_gradient_runs_again_and_again(cuda):
    """Its counters begin at 0 each time."""
    x = [from_array(draw(1, 2, 50, 8, seed=k, dtype=np.float32)).to(cuda).requires_grad_() for k in range(3)]
    want, graph = [number(t) for t in T.autograd.grad(scaled_dot_product_attention(*x).square().sum(), x)], T.cuda.CUDAGraph()
    with T.cuda.graph(graph):
        found = T.autograd.grad(scaled_dot_product_attention(*x).square().sum(), x)
    for _ in range(3):
        graph.replay()
        assert all((number(a) == b).all() for a, b in zip(found, want))


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


# ------------------------------------------------------------------ windows, distances, packed sequences
def relation(L, S, window, shift=0):
    """(which keys each row may meet, their distance from the diagonal)."""
    away = np.arange(S) - np.arange(L)[:, None] - shift
    left, right = window
    return (away >= (-np.inf if left < 0 else -left)) & (away <= (np.inf if right < 0 else right)), np.abs(away)


def leaves(arrays, device, kind=None):
    return [from_array(a.copy()).to(device).to(kind or T.float64).requires_grad_() for a in arrays]


def gradients(out, tensors):
    out.backward(from_array(draw(*out.shape, seed=77)).to(out.device).to(out.dtype))
    return [number(t.to(T.float64)) for t in (out, *[t.grad for t in tensors])]


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 0), (0, 3), (70, 40), (3, -1), (200, 200)])
def test_windows_and_distances_are_masks(window, tiles, cuda, monkeypatch):
    """The blocks that a window skips would have given nothing."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    for L, S in ((150, 150), (97, 210), (210, 97)):
        arrays = [draw(1, 4, L, 8, seed=1), draw(1, 2, S, 8, seed=2), draw(1, 2, S, 5, seed=3)]
        slopes = np.array([0.5, 0.25, 0.1, 1.0])
        seen, away = relation(L, S, window)
        mask = np.where(seen, 0.0, -np.inf) - slopes[:, None, None] * away
        want = leaves(arrays, "cpu")
        want = gradients(scaled_dot_product_attention(*want, from_array(mask), enable_gqa=True), want)
        for device in ("cpu", cuda):
            mine = leaves(arrays, device)
            out = scaled_dot_product_attention(*mine, enable_gqa=True, window_size=window, alibi_slopes=from_array(slopes).to(device))
            for a, b in zip(gradients(out, mine), want):
                np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("tiles", ["simulated", "hardware"])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (6, 0), (4, 9)])
def test_packed_sequences_are_sequences(window, tiles, cuda, monkeypatch):
    """Each as if it were alone, rows and keys counted from its end; some are empty, others shorter than a block or longer."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", tiles == "hardware")
    lengths, heads = ((3, 3), (0, 2), (1, 0), (70, 90), (140, 60), (5, 33)), (4, 2)
    starts = [np.concatenate([[0], np.cumsum([n[k] for n in lengths])]) for k in range(2)]
    arrays = [draw(starts[0][-1], heads[0], 8, seed=1), draw(starts[1][-1], heads[1], 8, seed=2), draw(starts[1][-1], heads[1], 8, seed=3)]
    slopes, weights = np.array([0.3, 0.1, 0.2, 0.7]), draw(*arrays[0].shape, seed=77)
    want = [np.zeros_like(a) for a in (arrays[0], *arrays)]
    for n, (L, S) in enumerate(lengths):
        if not L or not S:
            continue
        rows, keys = [slice(s[n], s[n + 1]) for s in starts]
        seen, away = relation(L, S, window, S - L)
        alone = leaves([a[part].swapaxes(0, 1)[None] for a, part in zip(arrays, (rows, keys, keys))], "cpu")
        out = scaled_dot_product_attention(*alone, from_array(np.where(seen, 0, -np.inf) - slopes[:, None, None] * away), enable_gqa=True)
        out.backward(from_array(weights[rows].swapaxes(0, 1)[None].copy()))
        for target, part, t in zip(want, (rows, rows, keys, keys), (out, *[t.grad for t in alone])):
            target[part] = number(t)[0].swapaxes(0, 1)
    for device in ("cpu", cuda):
        mine = leaves(arrays, device)
        places = [from_array(s.astype(np.int32)).to(device) for s in starts]
        out, lse = varlen_attn(*mine, *places, 140, 90, return_aux=AuxRequest(lse=True), window_size=window, enable_gqa=True,
                               alibi_slopes=from_array(slopes).to(device))
        assert out.is_contiguous() and lse.shape == out.shape[:2] and not lse.requires_grad
        for a, b in zip(gradients(out, mine), want):
            np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("starts, places", [([0, 10, 30], [0, 12, 30]), ([5, 9, 33], [3, 3, 20]), ([40, 40], [0, 0]), ([7], [7])])
def test_rows_of_no_sequence_give_zeros(starts, places, cuda):
    """And their gradients are 0, whatever memory held: a batch of a fixed number of rows begins or ends with some."""
    found = []
    for device in ("cpu", cuda):
        x = [from_array(draw(1, h, 40, d, seed=h, dtype=np.float32)).to(device).requires_grad_() for h, d in ((4, 5), (2, 5), (2, 3))]
        cu = [from_array(np.array(c)).to(device) for c in (starts, places)]
        out, lse = attention(*x, None, None, *cu, (30, 20), (None, 0), 0.5, (0.0, 0, 0), None)
        found.append([number(t) for t in (out, lse, *T.autograd.grad(out, x, T.ones_like(out)))])
    for want, got in zip(*found):
        np.testing.assert_allclose(got, want, atol=1e-5)
    out, lse = found[1][:2]
    outside = (np.arange(40) < starts[0]) | (np.arange(40) >= starts[-1])
    assert not out[..., outside, :].any() and (lse[..., outside] == -np.inf).all()


def test_packed_sequences_are_pytorchs_calls():
    x, places = from_array(draw(7, 4, 8)), from_array(np.array([0, 3, 7]))
    with pytest.raises(ValueError, match="as many key heads"):
        varlen_attn(x, x[:, :2], x[:, :2], places, places, 4, 4)
    with pytest.raises(ValueError, match="two numbers of at least -1"):
        varlen_attn(x, x, x, places, places, 4, 4, window_size=(-2, 0))
    with pytest.raises(RuntimeError, match="packed query, key and value"):
        varlen_attn(x[None], x, x, places, places, 4, 4)
    assert (number(varlen_attn(x, x, x, places, None, 4, 4)) == number(varlen_attn(x, x, x, places, places, 4, 4))).all()
