"""Gradients of masks and slopes that attention adds to the scores: against float64, in hostile layouts, without storing the scores."""
import numpy as np
import pytest

import tritorch as T
from tritorch.autograd import gradcheck, gradgradcheck
from tritorch.generator import Generator
from tritorch.nn.attention.varlen import varlen_attn
from tritorch.ops.attention import attention, attention_keep, scaled_dot_product_attention
from tritorch.tensor import from_array

B, H, G, L, S, E, EV = 2, 4, 2, 75, 90, 8, 5
MASKS = [(L, S), (H, L, S), (B, 1, L, S), (B, H, L, S), (B, 1, 1, S), (H, 1, S), (1,), (L, 1), ()]


@pytest.fixture(params=["simulated", "hardware"])
def cuda(cuda, request, monkeypatch):
    """With few, large tiles, and with those of a GPU."""
    monkeypatch.setattr(T.cuda.driver, "hardware_tiles", request.param == "hardware")
    return cuda


def draw(*shape, seed=0):
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape))


def number(x):
    return x.detach().cpu().to(T.float64).array


def slopes_of_scores(q, k, v, g, bias, keep=1.0, scale=E ** -0.5):
    """The gradient of the scores in float64."""
    k, v = [np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v)]
    s = q @ k.swapaxes(-1, -2) * scale + bias
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    p = p / np.where(total == 0, 1, total)
    dp = g @ v.swapaxes(-1, -2) * keep
    return p * (dp - (p * dp).sum(-1, keepdims=True))


def summed(x, shape):
    """Over the dims in which `shape` is repeated."""
    own = (1,) * (x.ndim - len(shape)) + shape
    return x.sum(tuple([d for d in range(x.ndim) if own[d] == 1]), keepdims=True).reshape(shape)


def arrays():
    return draw(B, H, L, E, seed=1), draw(B, G, S, E, seed=2), draw(B, G, S, EV, seed=3), draw(B, H, L, EV, seed=4)


def distances(shift=0, rows=L, keys=S):
    return np.arange(keys) - np.arange(rows)[:, None] - shift


def seen_in(away, window):
    return (away >= (-np.inf if window[0] is None else -window[0])) & (away <= (np.inf if window[1] is None else window[1]))


def gradient(tensors, bias, device, dtype=T.float64, mask_dtype=None, window=(None, None), dropout=(0.0, 0, 0), slopes=False):
    """That of the bias, a mask or slopes."""
    q, k, v, g = [from_array(x.copy()).to(device).to(dtype) for x in tensors]
    bias = bias.to(device).to(mask_dtype or dtype).detach().requires_grad_()
    out, _ = attention(q, k, v, None if slopes else bias, bias if slopes else None, None, None, None, window, E ** -0.5, dropout, None)
    out.backward(g)
    assert bias.grad.shape == bias.shape and bias.grad.dtype is bias.dtype
    return number(bias.grad)


@pytest.mark.parametrize("window", [(None, None), (20, 3)])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_of_every_shape(shape, window, cuda):
    tensors, mask = arrays(), draw(*shape)
    want = summed(slopes_of_scores(*tensors, np.where(seen_in(distances(), window), mask, -np.inf)), shape)
    for device in ("cpu", cuda):
        np.testing.assert_allclose(gradient(tensors, from_array(mask), device, window=window), want, atol=1e-12)


@pytest.mark.parametrize("window", [(None, None), (None, 0), (9, 4)])
@pytest.mark.parametrize("shape", [(H,), (B, H)], ids=str)
def test_slopes(shape, window, cuda):
    tensors, slopes, away = arrays(), np.abs(draw(*shape)), distances()
    bias = np.where(seen_in(away, window), -slopes[..., None, None] * np.abs(away), -np.inf)
    want = -summed((slopes_of_scores(*tensors, bias) * np.abs(away)).sum((-2, -1)), shape)
    for device in ("cpu", cuda):
        np.testing.assert_allclose(gradient(tensors, from_array(slopes), device, window=window, slopes=True), want, atol=1e-10)


def test_slopes_of_packed_sequences(cuda):
    """Some are empty, others shorter than a block; rows and keys are counted from the end of the sequence."""
    lengths, slopes = ((3, 3), (0, 2), (1, 0), (70, 90), (40, 60)), np.abs(draw(H))
    starts = [np.concatenate([[0], np.cumsum([n[k] for n in lengths])]) for k in range(2)]
    q, k, v = draw(starts[0][-1], H, E), draw(starts[1][-1], G, E), draw(starts[1][-1], G, EV)
    g, want = draw(len(q), H, EV, seed=9), np.zeros(H)
    for n, (rows, keys) in enumerate(lengths):
        if rows and keys:
            at, there = [slice(s[n], s[n + 1]) for s in starts]
            away = distances(keys - rows, rows, keys)
            bias = np.where(seen_in(away, (None, 0)), -slopes[:, None, None] * np.abs(away), -np.inf)
            each = [x.swapaxes(0, 1)[None] for x in (q[at], k[there], v[there], g[at])]
            want -= (slopes_of_scores(*each, bias) * np.abs(away)).sum((0, 2, 3))
    for device in ("cpu", cuda):
        x, y, z, grad = [from_array(a).to(device) for a in (q, k, v, g)]
        learned = from_array(slopes).to(device).requires_grad_()
        varlen_attn(x, y, z, *[from_array(s).to(device) for s in starts], 70, 90, window_size=(-1, 0), enable_gqa=True,
                    alibi_slopes=learned).backward(grad)
        np.testing.assert_allclose(number(learned.grad), want, atol=1e-11)


LAYOUTS = {
    "transposed": lambda m: from_array(np.ascontiguousarray(m.swapaxes(-1, -2))).mT,
    "with gaps": lambda m: from_array(np.repeat(np.repeat(m, 3, -1), 2, -2).copy())[..., ::2, 1::3],
    "reversed dims": lambda m: from_array(np.ascontiguousarray(m.transpose())).permute(3, 2, 1, 0),
    "expanded in batch": lambda m: from_array(m[:1].copy()).expand(B, -1, -1, -1),
    "expanded in heads": lambda m: from_array(m[:, :1].copy()).expand(-1, H, -1, -1),
    "expanded in rows": lambda m: from_array(m[:, :, :1].copy()).expand(-1, -1, L, -1),
    "one key for all": lambda m: from_array(m[..., :1].copy()).expand(-1, -1, -1, S),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_a_mask(layout, cuda):
    tensors, mask = arrays(), LAYOUTS[layout](draw(B, H, L, S))
    want = slopes_of_scores(*tensors, mask.array)
    for device in ("cpu", cuda):
        q, k, v, g = [from_array(x).to(device) for x in tensors]
        there = LAYOUTS[layout](draw(B, H, L, S)).to(device)
        there = T.as_strided(there.requires_grad_(), there.shape, there.stride())                  # a view of the same memory
        found, = T.autograd.grad(attention(q, k, v, there, None, None, None, None, (None, None), E ** -0.5, (0.0, 0, 0), None)[0], there, g)
        np.testing.assert_allclose(number(found), want, atol=1e-12)


def test_an_expanded_mask_gives_its_own_shape(cuda):
    tensors, rows = arrays(), draw(1, H, 1, S)
    want = slopes_of_scores(*tensors, rows).sum((0, 2), keepdims=True)
    for device in ("cpu", cuda):
        q, k, v, g = [from_array(x).to(device) for x in tensors]
        mask = from_array(rows).to(device).requires_grad_()
        scaled_dot_product_attention(q, k, v, mask.expand(B, H, L, S), enable_gqa=True).backward(g)
        np.testing.assert_allclose(number(mask.grad), want, atol=1e-12)


@pytest.mark.parametrize("dtype, mask_dtype", [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"),
                                               ("float16", "float16")])
def test_error_against_float64(dtype, mask_dtype, cuda):
    kind, mask_kind = getattr(T, dtype), getattr(T, mask_dtype)
    mask = from_array(draw(H, L, S)).to(mask_kind)
    tensors = [number(from_array(x).to(kind)) for x in arrays()]
    want = slopes_of_scores(*tensors, number(mask)).sum(0)
    half = {"bfloat16": 2 ** -8, "float16": 2 ** -11, "float32": 2 ** -20}       # out is rounded, and so delta; then the gradient itself
    for device in ("cpu", cuda):
        error = np.abs(gradient(tensors, mask, device, kind, mask_kind) - want).max() / np.abs(want).max()
        assert error <= 2 * half[dtype] + half[mask_dtype], (device, error)


def test_dropped_weights_give_nothing(cuda):
    tensors, mask, dropout = arrays(), draw(L, S), (0.3, 11, 5)
    keep = attention_keep(T.zeros(B, H, L, S, dtype=T.float64), *dropout, None).array
    want = slopes_of_scores(*tensors, mask, keep).sum((0, 1))
    for device in ("cpu", cuda):
        np.testing.assert_allclose(gradient(tensors, from_array(mask), device, dropout=dropout), want, atol=1e-12)


def test_rows_that_see_nothing_give_zeros(cuda):
    mask = np.where(draw(L, S) > 0, draw(L, S, seed=1), -np.inf)
    mask[3] = -np.inf
    for device in ("cpu", cuda):
        found = gradient(arrays(), from_array(mask), device)
        assert not found[3].any() and not found[np.isinf(mask)].any() and np.isfinite(found).all()
        np.testing.assert_allclose(found, slopes_of_scores(*arrays(), mask).sum((0, 1)), atol=1e-12)


@pytest.mark.parametrize("dtype, low", [("float32", "min"), ("float32", -1e9), ("bfloat16", "min"), ("float64", "min"), ("float16", "min")])
def test_rows_masked_by_a_finite_number_see_everything(dtype, low, cuda):
    """The lowest number, which transformers add, hides a key where there are others: where all have it they weigh the same, as in PyTorch's
    plain formula, with gradients that say so. The lowest float16 is small enough to leave the scores as they are."""
    kind, (q, k, v, g) = getattr(T, dtype), arrays()
    q, k, v, g = [number(from_array(x).to(kind)) for x in (q, k[:, :1], v[:, :1], g)]
    low = T.finfo(kind).min if low == "min" else low
    mask = np.where((np.arange(L) < 5)[:, None] | (np.arange(S) > 30), low, 0.0)
    mask[2, 7] = mask[3, :] = -np.inf
    lost = (np.arange(L) < 5)[:, None] & (dtype != "float16")            # rows whose scores are nothing beside what is added
    bias = np.where(lost & np.isfinite(mask), 0, np.maximum(mask, -65504.0, where=np.isfinite(mask), out=mask.copy()))
    s = np.where(lost, 0, q @ k.swapaxes(-1, -2) * E ** -0.5) + bias
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e9))
    p /= np.maximum(p.sum(-1, keepdims=True), 1)
    ds = p * (g @ v.swapaxes(-1, -2) - (g * (p @ v)).sum(-1, keepdims=True))
    of_key = (ds.swapaxes(-1, -2) @ q * E ** -0.5).sum(1, keepdims=True)
    wanted = p @ v, ds @ k * E ** -0.5, of_key, (p.swapaxes(-1, -2) @ g).sum(1, keepdims=True), ds.sum((0, 1))
    for device in ("cpu", cuda):
        x = [from_array(a.copy()).to(device).to(kind).requires_grad_() for a in (q, k, v, mask)]
        out = scaled_dot_product_attention(*x[:3], x[3], enable_gqa=True)
        found = [out, *T.autograd.grad(out, x, from_array(g).to(device).to(kind))]
        for want, got in zip(wanted, found):
            tolerance = 3e-2 if kind.itemsize == 2 else 1e-2             # lse is rounded where it is large
            np.testing.assert_allclose(number(got), want, rtol=tolerance, atol=tolerance * abs(want).mean())


@pytest.mark.parametrize("batch, shape, slopes", [(1, (3, 4), False), (2, (2, 1, 1, 4), False), (1, (2,), True)])
def test_numeric_gradients_to_second_order(batch, shape, slopes):
    q, k, v = [from_array(draw(batch, heads, n, 2, seed=n)).requires_grad_() for heads, n in ((2, 3), (1, 4), (1, 4))]
    bias = from_array(np.abs(draw(*shape))).requires_grad_()

    def call(q, k, v, bias):
        mask, slope = (None, bias) if slopes else (bias, None)
        return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, window_size=(2, 2), alibi_slopes=slope)

    assert gradcheck(call, (q, k, v, bias)) and gradgradcheck(call, (q, k, v, bias))


def test_forward_mode(cuda):
    """The tangent of the result along the mask is what the gradient says."""
    tensors, mask, along = arrays(), draw(H, L, S), draw(H, L, S, seed=7)
    for device in ("cpu", cuda):
        q, k, v, g = [from_array(x).to(device) for x in tensors]
        _, tangent = T.func.jvp(lambda m: scaled_dot_product_attention(q, k, v, m, enable_gqa=True), (from_array(mask).to(device),),
                                (from_array(along).to(device),))
        backward = gradient(tensors, from_array(mask), device)
        np.testing.assert_allclose((number(tangent) * tensors[3]).sum(), (backward * along).sum(), rtol=1e-10)


def test_the_same_bits_every_time(cuda):
    def found():
        q, k, v, g = [from_array(x).to(cuda).float() for x in arrays()]
        mask, slopes = [from_array(draw(*s)).to(cuda).float().requires_grad_() for s in ((B, 1, 1, S), (H,))]
        scaled_dot_product_attention(q, k, v, mask, 0.2, enable_gqa=True, alibi_slopes=slopes,
                                     generator=Generator(cuda).manual_seed(1)).backward(g)
        return number(mask.grad), number(slopes.grad)

    assert all((a == b).all() for a, b in zip(found(), found()))


def test_stores_no_scores(cuda):
    """What a mask of keys and slopes need is less than one head's scores."""
    n = 512
    q = T.zeros(1, 2, n, 4, device=cuda).requires_grad_()
    mask, slopes = T.zeros(1, 1, 1, n, device=cuda).requires_grad_(), T.zeros(2, device=cuda).requires_grad_()
    out = scaled_dot_product_attention(q, q, q, mask, alibi_slopes=slopes)
    T.cuda.reset_peak_memory_stats()
    before = T.cuda.memory_allocated()
    T.autograd.grad(out.sum(), (mask, slopes))
    assert T.cuda.max_memory_allocated() - before < 4 * n * n // 2


def test_no_rows_or_no_keys(cuda):
    for device in ("cpu", cuda):
        for rows, keys in ((0, 3), (3, 0)):
            q, k = [T.zeros(1, 2, n, 4, device=device) for n in (rows, keys)]
            mask, slopes = T.ones(1, keys, device=device).requires_grad_(), T.ones(2, device=device).requires_grad_()
            scaled_dot_product_attention(q, k, k, mask, alibi_slopes=slopes).sum().backward()
            assert not number(mask.grad).any() and not number(slopes.grad).any()
