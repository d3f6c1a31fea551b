"""rotary_embedding against its definition by complex numbers: layouts of attention, parts of a projection, in place, half types."""
import numpy as np
import pytest
from arrays import draw

import tritorch
from tritorch.cuda import tuner
from tritorch.nn import functional as F


def tables(T, pairs, base=10000.0):
    angles = np.arange(T)[:, None] * base ** (-np.arange(pairs) / pairs)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(x, cos, sin, interleaved):
    """By complex multiplication; cos and sin broadcast."""
    pairs = cos.shape[-1]
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    z = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)
    out = x.copy()
    out[..., first], out[..., second] = z.real, z.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("D, pairs", [(8, 4), (16, 5), (64, 32), (7, 1)])
def test_turns_pairs_in_both_layouts_of_attention(D, pairs, interleaved, cuda, tiles):
    cos, sin = tables(6, pairs)
    for place in ("cpu", cuda):
        for shape, spread in (((2, 3, 6, D), (6, pairs)), ((2, 6, 3, D), (6, 1, pairs))):
            x = draw(*shape)
            c, s = cos.reshape(spread), sin.reshape(spread)
            got = F.rotary_embedding(*[tritorch.tensor(v).to(place) for v in (x, c, s)], interleaved)
            np.testing.assert_allclose(got.cpu().array, turned(x, c, s, interleaved), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads, rows, along", [(1, 4, True), (4, 2, True), (4, 2, False)])
def test_programs_in_either_order(heads, rows, along, cuda, tiles):
    x, (cos, sin) = draw(2, 3, 9, 8), tables(9, 4)
    with tuner.forcing("rotary_embedding", {"BLOCK_H": heads, "BLOCK_M": rows, "ALONG_M": along}):
        got = F.rotary_embedding(*[tritorch.tensor(v).to(cuda) for v in (x, cos, sin)])
    np.testing.assert_allclose(got.cpu().array, turned(x, cos, sin, False), rtol=1e-5, atol=1e-6)


def test_parts_of_a_projection_are_read_where_they_lie(cuda):
    B, T, H, D = 2, 5, 3, 8
    qkv, (cos, sin) = draw(B, T, 3 * H * D), tables(T, D // 2)
    for place in ("cpu", cuda):
        leaf = tritorch.tensor(qkv).to(place).requires_grad_()
        c, s = [tritorch.tensor(t).to(place) for t in (cos, sin)]
        q = leaf[..., :H * D].view(B, T, H, D).transpose(1, 2)
        out = F.rotary_embedding(q, c, s)
        np.testing.assert_allclose(out.detach().cpu().array, turned(q.detach().cpu().array, cos, sin, False), rtol=1e-5, atol=1e-6)
        g = draw(*out.shape, seed=3)
        (found,) = tritorch.autograd.grad(out, [leaf], tritorch.tensor(g).to(place))
        want = np.zeros_like(qkv)
        want[..., :H * D] = turned(g, cos, -sin, False).transpose(0, 2, 1, 3).reshape(B, T, H * D)
        np.testing.assert_allclose(found.cpu().array, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_in_place_and_back(interleaved, cuda, tiles):
    x, (cos, sin) = draw(3, 4, 70), tables(4, 33)
    for place in ("cpu", cuda):
        t, c, s = [tritorch.tensor(v).to(place) for v in (x, cos, sin)]
        F.rotary_embedding.into(t, t, c, s, interleaved)
        np.testing.assert_allclose(t.cpu().array, turned(x, cos, sin, interleaved), rtol=1e-5, atol=1e-6)
        F.rotary_embedding.into(t, t, c, s, interleaved, True)
        np.testing.assert_allclose(t.cpu().array, x, rtol=1e-5, atol=1e-6)


def test_trials_in_place_leave_alone_what_lies_between(cuda, monkeypatch):
    monkeypatch.setattr(tritorch.cuda.driver, "hardware_tiles", True)
    B, T, H, D = 2, 5, 3, 8
    qkv, (cos, sin) = draw(B, T, 3 * H * D), tables(T, D // 2)
    whole, c, s = [tritorch.tensor(v).to(cuda) for v in (qkv, cos, sin)]
    part = whole[..., :H * D].view(B, T, H, D).transpose(1, 2)
    with tuner.measuring(lambda family, key, candidates, run, found: [run(c) for c in candidates] and None):
        F.rotary_embedding.into(part, part, c, s)
    want = qkv.copy()
    want[..., :H * D] = turned(qkv[..., :H * D].reshape(B, T, H, D).transpose(0, 2, 1, 3), cos, sin, False).transpose(0, 2, 1, 3).reshape(
        B, T, H * D)
    np.testing.assert_allclose(whole.cpu().array, want, rtol=1e-5, atol=1e-6)


def test_half_types_compute_in_float32(cuda):
    x, (cos, sin) = tritorch.tensor(draw(2, 6, 16)).to(tritorch.bfloat16), tables(6, 8)
    want = turned(x.float().array, cos, sin, False)
    for place in ("cpu", cuda):
        got = F.rotary_embedding(x.to(place), *[tritorch.tensor(t).to(place) for t in (cos, sin)])
        assert got.dtype is tritorch.bfloat16
        np.testing.assert_allclose(got.cpu().float().array, want, rtol=0.004, atol=0.004)


def test_gradients_of_the_tables(cuda):
    for place in ("cpu", cuda):
        x = tritorch.tensor(draw(5, 2, 6)).to(place)
        cos, sin = [tritorch.tensor(t).to(place).requires_grad_() for t in tables(2, 3)]
        gc, gs = tritorch.autograd.grad(F.rotary_embedding(x, cos, sin).sum(), [cos, sin])
        a, b = x[..., :3].cpu().array, x[..., 3:].cpu().array
        np.testing.assert_allclose(gc.cpu().array, (a + b).sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gs.cpu().array, (a - b).sum(0), rtol=1e-4, atol=1e-5)
