"""Attention whose scores are changed by a function, and masks of blocks."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn.attention import flex_attention as flex
from tritorch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, create_mask, flex_attention

BIAS = torch.from_numpy(np.random.default_rng(5).standard_normal((4, 20)))


def causal(b, h, q, kv):
    return q >= kv


def late(b, h, q, kv):                                                   # rows of the first queries hide everything
    return (q > 2) & (kv < 6 + b)


def inputs(dtype="float64", requires_grad=False):
    draw = np.random.default_rng(0).standard_normal
    make = lambda *shape: torch.from_numpy(draw(shape).astype(dtype)).requires_grad_(requires_grad)  # noqa: E731
    return make(2, 4, 7, 8), make(2, 2, 10, 8), make(2, 2, 10, 5)


def expected(q, k, v, change=None, mask=None):
    """The same in numpy: result, log Σ exp and the greatest score."""
    q, k, v = (x.detach().numpy().astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    b, h, i, j = np.ogrid[:s.shape[0], :s.shape[1], :s.shape[2], :s.shape[3]]
    s = s if change is None else change(s, b, h, i, j)
    s = s if mask is None else np.where(np.broadcast_to(mask(b, h, i, j), s.shape), s, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = s.max(-1, keepdims=True)
        weights = np.nan_to_num(np.exp(s - top))
        total = weights.sum(-1, keepdims=True)
        return np.where(total == 0, 0, weights / np.where(total == 0, 1, total)) @ v, (top + np.log(total))[..., 0], top[..., 0]


@pytest.mark.parametrize("mask", [None, causal, late])
@pytest.mark.parametrize("change", [None, "bias", "cap"])
def test_results(change, mask):
    table = BIAS.numpy()
    mods = {"bias": (lambda s, b, h, q, kv: s + BIAS[h, q - kv + 10], lambda s, b, h, q, kv: s + table[h, q - kv + 10]),
            "cap": (lambda s, b, h, q, kv: 2 * torch.tanh(s / 2) - h, lambda s, b, h, q, kv: 2 * np.tanh(s / 2) - h)}
    mod, numpys = mods.get(change, (None, None))
    q, k, v = inputs()
    blocks = mask and create_block_mask(mask, 2, 4, 7, 10, device="cpu", BLOCK_SIZE=4)
    out, aux = flex_attention(q, k, v, mod, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True))
    for got, want in zip((out, *aux), expected(q, k, v, numpys, mask)):
        np.testing.assert_allclose(got.numpy(), np.where(np.isnan(want), -np.inf, want), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flex_attention(q, k, v, mod, blocks, enable_gqa=True), out)
    half = flex_attention(*(x.bfloat16() for x in (q, k, v)), mod and (lambda *a: mod(*a).float()), blocks, enable_gqa=True)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.double(), out, rtol=0.05, atol=0.05)


def test_gradients():
    q, k, v = (x[:1, :2, :4, :2].detach().requires_grad_() for x in inputs())
    bias = BIAS[:2, :7].clone().requires_grad_()
    blocks = create_block_mask(late, 1, 2, 4, 4, device="cpu")

    def f(q, k, v, bias):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * s + bias[h, i + j], blocks)

    assert torch.autograd.gradcheck(f, (q, k, v, bias))
    assert torch.autograd.gradcheck(lambda *x: flex_attention(*x, block_mask=blocks), (q, k, v))


def test_on_cuda(cuda):
    q, k, v = inputs("float32")
    mod = lambda s, b, h, i, j: s - (i - j).abs() * (h + 1)  # noqa: E731
    here, there = (create_block_mask(late, 2, 4, 7, 10, device=place) for place in ("cpu", cuda))
    for change in (None, mod):
        want = flex_attention(q, k, v, change, here, enable_gqa=True)
        got = flex_attention(*(x.to(cuda) for x in (q, k, v)), change, there, enable_gqa=True)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    assert here.to(cuda).kv_indices.device.type == "cuda" and there.to("cpu").q_indices.tolist() == here.q_indices.tolist()


def test_block_masks():
    mask = create_block_mask(causal, 2, None, 20, 24, device="cpu", BLOCK_SIZE=(4, 8))
    dense = create_mask(causal, 2, None, 20, 24, device="cpu")
    tiles = dense.view(2, 1, 5, 4, 3, 8)
    assert mask.shape == (2, 1, 20, 24) == tuple(dense.shape) and mask.numel() == 960 and mask.BLOCK_SIZE == (4, 8)
    assert mask.to_dense().dtype is torch.int32 and torch.equal(mask.to_dense().bool(), tiles.any(3).any(4))
    whole = BlockMask.from_kv_blocks(mask.full_kv_num_blocks, mask.full_kv_indices, BLOCK_SIZE=(4, 8))
    assert torch.equal(whole.to_dense().bool(), tiles.all(3).all(4)) and whole.shape == (2, 1, 20, 24)
    assert torch.equal(mask.q_num_blocks + mask.full_q_num_blocks, mask.to_dense().sum(-2).int())
    assert mask.q_indices.shape == (2, 1, 3, 5) and mask.sparsity() == pytest.approx(100 * (1 - mask.to_dense().float().mean().item()))
    together = create_block_mask(causal, 2, None, 20, 24, device="cpu", BLOCK_SIZE=(4, 8), separate_full_blocks=False)
    assert together.full_kv_indices is together.full_q_indices is None and torch.equal(together.to_dense(), mask.to_dense())
    part = mask[-1, :, torch.tensor([0, 4])]
    assert part.kv_num_blocks.shape == (1, 1, 2) and torch.equal(part.to_dense(), mask.to_dense()[1:, :, [0, 4]])
    less = mask._adjust(9, 12)
    assert less.shape == (2, 1, 9, 12) and torch.equal(less.to_dense(), mask.to_dense()[:, :, :3, :2]) and less.mask_mod is causal
    assert len(mask.as_tuple()) == 17 and mask.as_tuple(flatten=False)[0] == (20, 24)
    assert "sparsity=40.00%" in repr(mask) and mask.to_string(limit=1).startswith("(0, 0)\n██    \n██    \n████  \n")
    assert "..." in str(create_block_mask(causal, 5, 1, 4, 4, device="cpu", BLOCK_SIZE=2)) and "██░░" in mask.to_string((2, 3))


def test_masks_joined():
    near = lambda b, h, q, kv: (q - kv).abs() < 2  # noqa: E731
    made = [create_mask(f, 1, 1, 4, 4, device="cpu") for f in (causal, near, flex.and_masks(causal, near), flex.or_masks(causal, near))]
    assert torch.equal(made[2], made[0] & made[1]) and torch.equal(made[3], made[0] | made[1])
    scores = create_mask(lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")), None, None, 4, 4, device="cpu")
    assert torch.equal(scores, made[0]) and create_mask(flex.and_masks(), 1, 1, 2, 2, device="cpu").all()
    assert flex.and_masks(causal).__name__ == "and_mask"


@pytest.mark.parametrize("kind, call", [
    (ValueError, lambda q, k, v: flex_attention(q, k, v)), (ValueError, lambda q, k, v: flex_attention(q[:, :3], k, v, enable_gqa=True)),
    (ValueError, lambda q, k, v: flex_attention(q, q[..., :4], q)), (NotImplementedError, lambda q, k, v: flex_attention(q[0], q[0], q[0])),
    (ValueError, lambda q, k, v: flex_attention(q, q[:1], q[:1])),
    (ValueError, lambda q, k, v: flex_attention(q, q, q, return_lse=True, return_aux=AuxRequest())),
    (ValueError, lambda q, k, v: flex_attention(q, q, q, block_mask=create_block_mask(causal, 1, 1, 8, 7, device="cpu"))),
    (RuntimeError, lambda q, k, v: flex_attention(q, q, q, block_mask=create_block_mask(causal, 2, 1, 7, 7, device="cpu")[0])),
    (AssertionError, lambda q, k, v: create_block_mask(lambda s, b, h, q, kv: s, 1, 1, 2, 2, device="cpu")),
    (AssertionError, lambda q, k, v: create_mask(lambda b: b, 1, 1, 2, 2, device="cpu")), (RuntimeError, lambda q, k, v: flex.or_masks(3)),
    (RuntimeError, lambda q, k, v: BlockMask.from_kv_blocks(torch.tensor([1]), torch.tensor([1]))),
    (AssertionError, lambda q, k, v: BlockMask.from_kv_blocks(torch.ones(1, 1), torch.ones(1, 1, 1), torch.ones(1, 1)))])
def test_errors(kind, call):
    with pytest.raises(kind):
        call(*inputs())
