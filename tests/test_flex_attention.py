"""flex_attention: scores by functions, masks by blocks; against plain attention, and against PyTorch where it is installed."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn.attention import flex_attention as flex

RNG = np.random.default_rng(0)
DOCUMENT, BIAS = RNG.integers(0, 3, 40), RNG.standard_normal((4, 80)).astype(np.float32)


def masks(lib):
    """Mask functions by name; they read tensors of the library."""
    document, length = lib.from_numpy(DOCUMENT), lib.tensor([30, 17])
    return {
        "causal": lambda b, h, q, k: q >= k,
        "window": lambda b, h, q, k: (q >= k) & (q - k <= 5),
        "band": lambda b, h, q, k: (q - k).abs() <= 7,
        "document": lambda b, h, q, k: (document[q] == document[k]) & (q >= k),
        "padding": lambda b, h, q, k: k < length[b],
        "heads": lambda b, h, q, k: (q >= k) | (h == 1),
        "nothing": lambda b, h, q, k: q < 0,
        "holes": lambda b, h, q, k: (q * 7 + k) % 3 != 0,
    }


def scores(lib):
    """Score functions by name."""
    bias = lib.from_numpy(BIAS)
    return {
        "relative": lambda s, b, h, q, k: s + (q - k), "table": lambda s, b, h, q, k: s + bias[h][q - k + 39],
        "cap": lambda s, b, h, q, k: 2 * lib.tanh(s / 2), "slopes": lambda s, b, h, q, k: s - (q - k).abs() * lib.exp2(-(h + 1) * 2.0),
        "where": lambda s, b, h, q, k: lib.where(q >= k, s, -float("inf")), "by batch": lambda s, b, h, q, k: s * (b + 1),
    }


def operands(lib, B=2, H=4, G=4, L=33, S=40, grad=False):
    rng = np.random.default_rng(1)
    made = [lib.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((B, H, L, 16), (B, G, S, 16), (B, G, S, 8))]
    return [x.requires_grad_() for x in made] if grad else made


def plain(q, k, v, score=None, mask=None):
    """In float64, a score at a time."""
    q, k, v = [x.detach().numpy().astype(np.float64) for x in (q, k, v)]
    k, v = [np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v)]
    s = q @ k.swapaxes(-1, -2) / 4
    if score is not None:
        t = torch.tensor
        for b, h, i, j in np.ndindex(s.shape):
            s[b, h, i, j] = float(score(t(s[b, h, i, j]), t(b), t(h), t(i), t(j)))
    if mask is not None:
        s = np.where(np.broadcast_to(mask.numpy(), s.shape), s, -np.inf)
    most = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(most), 0, most))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return (e / np.where(total == 0, 1, total)) @ v, (np.log(total) + most)[..., 0], most[..., 0]


@pytest.mark.parametrize("name", masks(torch))
def test_masks(name):
    mod, (q, k, v) = masks(torch)[name], operands(torch, grad=True)
    sizes = 2 if name == "padding" else None, 4 if name == "heads" else None
    block = flex.create_block_mask(mod, *sizes, 33, 40, "cpu", BLOCK_SIZE=(8, 16))
    dense = flex.create_mask(mod, *sizes, 33, 40, "cpu")
    want, lse, most = plain(q, k, v, mask=dense)
    got = flex.flex_attention(q, k, v, block_mask=block)
    np.testing.assert_allclose(got.detach().numpy(), want, atol=2e-6)
    assert block._window == {"causal": (None, 0), "window": (5, 0), "band": (7, 7)}.get(name, False)
    stored, aux = flex.flex_attention(q, k, v, lambda s, *places: s, block, return_aux=flex.AuxRequest(lse=True, max_scores=True))
    np.testing.assert_allclose(stored.detach().numpy(), want, atol=2e-6)
    np.testing.assert_allclose(aux.lse.detach().numpy(), lse, atol=2e-6)
    np.testing.assert_allclose(aux.max_scores.detach().numpy(), most, atol=2e-6)
    with torch.no_grad():
        np.testing.assert_allclose(flex.flex_attention(q, k, v, block_mask=block, return_lse=True)[1].numpy(), lse, atol=2e-6)
    g = torch.randn(got.shape)
    for x, y in zip(torch.autograd.grad(got, (q, k, v), g), torch.autograd.grad(stored, (q, k, v), g)):
        torch.testing.assert_close(x, y, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("name", scores(torch))
def test_scores(name):
    mod, (q, k, v) = scores(torch)[name], operands(torch, 2, 4, 2, 5, 7)
    got = flex.flex_attention(q, k, v, mod, enable_gqa=True)
    np.testing.assert_allclose(got.numpy(), plain(q, k, v, mod)[0], atol=2e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_are_called_as_seldom_as_they_allow(device):
    rng, calls, sizes = np.random.default_rng(2), [], (2, 3, 5, 7)
    with torch.cuda.simulate():
        table, rows = [torch.from_numpy(rng.random(s) > 0.5).to(device) for s in ((3, 11), (5, 7))]

        def counted(mod):
            def mask(b, h, q, k):
                calls.append(q.shape)
                return mod(b, h, q, k)
            return mask

        for mod, most, expected in (
                (lambda b, h, q, k: table[h, q - k + 4 + 2 * b], 1, lambda b, h, q, k: table[h, q - k + 4 + 2 * b]),
                (lambda b, h, q, k: b.new_ones((), dtype=torch.bool), 1, lambda b, h, q, k: True),
                (lambda b, h, q, k: table[h][q - k + 4 + 2 * b], 1, lambda b, h, q, k: table[h, q - k + 4 + 2 * b]),
                (lambda b, h, q, k: rows[q][k], 1, lambda b, h, q, k: rows[q, k]),
                (lambda b, h, q, k: (q - k).max() > 0, 1, lambda b, h, q, k: q > k),
                (lambda b, h, q, k: q > k if k > 2 else q == k, 1 + 7, lambda b, h, q, k: q > k if k > 2 else q == k)):
            mask = counted(mod)
            for _ in range(2):
                del calls[:]
                found = flex.create_mask(mask, *sizes, device).tolist()
                assert all(found[b][h][q][k] == bool(expected(b, h, q, k)) for b, h, q, k in np.ndindex(sizes))
            assert len(calls) == most
        with pytest.raises(IndexError):
            flex.create_mask(lambda b, h, q, k: rows[q, k + 1], *sizes, device).sum().item()


def test_gradients_reach_what_score_functions_read():
    q, k, v = [x.double()[..., :2].detach().requires_grad_() for x in operands(torch, 1, 1, 1, 2, 3)]
    table = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    causal = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 2, 3, "cpu")

    def f(q, k, v, table):
        return flex.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i - j + 2], causal)

    assert torch.autograd.gradcheck(f, (q, k, v, table)) and torch.autograd.gradgradcheck(f, (q, k, v, table))


def test_masks_follow_the_tensors_that_they_read():
    offset = torch.tensor(0)
    block = flex.create_block_mask(lambda b, h, q, k: q + offset >= k, None, None, 8, 8, "cpu", BLOCK_SIZE=4)
    q, k, v = operands(torch, L=8, S=8)
    first = flex.flex_attention(q, k, v, block_mask=block)
    np.testing.assert_allclose(first.numpy(), plain(q, k, v, mask=torch.ones(8, 8).tril().bool())[0], atol=2e-6)
    offset += 3
    np.testing.assert_allclose(flex.flex_attention(q, k, v, block_mask=block).numpy(),
                               plain(q, k, v, mask=torch.ones(8, 8).tril(3).bool())[0], atol=2e-6)

    class Reader:
        far = 2

    reader = Reader()                                                    # what cannot be watched is asked every time
    block = flex.create_block_mask(lambda b, h, q, k: q - k >= reader.far, None, None, 8, 8, "cpu", BLOCK_SIZE=4)
    reader.far = -1
    assert block._known[0] is None
    np.testing.assert_allclose(flex.flex_attention(q, k, v, block_mask=block).numpy(),
                               plain(q, k, v, mask=torch.ones(8, 8).tril(1).bool())[0], atol=2e-6)


def test_blocks_given_outright_mask_as_well():
    counts, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    block = flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=4, mask_mod=lambda b, h, q, k: k != 5)
    q, k, v = operands(torch, L=8, S=8)
    dense = torch.ones(8, 8).bool()
    dense[:4, :4] = False
    dense[:, 5] = False
    np.testing.assert_allclose(flex.flex_attention(q, k, v, block_mask=block).numpy(), plain(q, k, v, mask=dense)[0], atol=2e-6)
    assert block.shape == (1, 1, 8, 8) and block.sparsity() == 25 and block.to_dense().tolist() == [[[[False, True], [True, True]]]]
    assert block.q_num_blocks.tolist() == [[[1, 2]]] and block.q_indices.tolist() == [[[[1, 0], [0, 1]]]]


def test_on_a_device():
    q, k, v = operands(torch, 1, 2, 2, 9, 12)
    with torch.cuda.simulate():
        for name in ("window", "holes"):
            mod = masks(torch)[name]
            block = flex.create_block_mask(mod, None, None, 9, 12, "cuda", BLOCK_SIZE=4)
            got = flex.flex_attention(q.cuda(), k.cuda(), v.cuda(), block_mask=block)
            np.testing.assert_allclose(got.cpu().numpy(), plain(q, k, v, mask=flex.create_mask(mod, 1, 1, 9, 12, "cpu"))[0], atol=5e-6)
        with pytest.raises(RuntimeError, match="block_mask on cpu"):
            flex.flex_attention(q, k, v, block_mask=block)
        assert block.to("cpu").kv_indices.device.type == "cpu"


def test_what_does_not_fit():
    q, k, v = operands(torch)
    causal = flex.create_block_mask(lambda b, h, q, k: q >= k, 2, None, 33, 40, "cpu", BLOCK_SIZE=16)
    for kind, call in (
        (ValueError, lambda: flex.flex_attention(q[:, :, :5], k, v, block_mask=causal)),
        (ValueError, lambda: flex.flex_attention(q, k[:, :2], v[:, :2])),
        (ValueError, lambda: flex.flex_attention(q[..., :8], k, v)), (NotImplementedError, lambda: flex.flex_attention(q[0], k[0], v[0])),
        (ValueError, lambda: flex.flex_attention(q, k.double(), v)),
        (ValueError, lambda: flex.flex_attention(q, k[:, :3], v[:, :3], enable_gqa=True)),
        (RuntimeError, lambda: flex.flex_attention(q[:1], k[:1], v[:1], block_mask=causal[0])),
        (AssertionError, lambda: flex.create_mask(lambda q, k: q, 1, 1, 2, 2, "cpu")), (RuntimeError, lambda: flex.and_masks(3)),
    ):
        with pytest.raises(kind):
            call()
    both = flex.and_masks(lambda b, h, q, k: q >= k, flex.or_masks(lambda b, h, q, k: k == 0, lambda b, h, q, k: q - k < 2))
    assert flex.create_mask(both, None, None, 4, 4, "cpu")[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]
    assert torch.equal(causal._adjust(16, 16).to_dense(), causal.to_dense()[..., :1, :1])


def test_is_pytorchs():
    pytorch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.nn.attention.flex_attention")
    for name, mod in masks(torch).items():
        sizes = 2 if name == "padding" else None, 4 if name == "heads" else None
        ours = flex.create_block_mask(mod, *sizes, 33, 40, "cpu", BLOCK_SIZE=(8, 16))
        other = theirs.create_block_mask(masks(pytorch)[name], *sizes, 33, 40, "cpu", BLOCK_SIZE=(8, 16))
        assert ours.shape == tuple(other.shape) and ours.sparsity() == pytest.approx(other.sparsity())
        for field in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"):
            assert np.array_equal(getattr(ours, field).numpy(), getattr(other, field).numpy()), (name, field)
        got = flex.flex_attention(*operands(torch), block_mask=ours).numpy()
        want = theirs.flex_attention(*operands(pytorch), block_mask=other).numpy()
        np.testing.assert_allclose(got, want, atol=2e-6)
    for name, mod in scores(torch).items():
        got, lse = flex.flex_attention(*operands(torch, G=2), mod, enable_gqa=True, return_lse=True)
        want, other = theirs.flex_attention(*operands(pytorch, G=2), scores(pytorch)[name], enable_gqa=True, return_lse=True)
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=2e-6)
        np.testing.assert_allclose(lse.numpy(), other.numpy(), atol=2e-6)
