"""Attention whose scores are changed by a function of yours, and masked by another: `flex_attention`.

Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", 2024.
"""
import math
from typing import NamedTuple

from tritorch.errors import check
from tritorch.nn.attention.block_masks import (
    ALL_KEYS,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    everywhere,
    noop_mask,
    or_masks,
    places_of,
)
from tritorch.nn.attention.block_masks import BLOCK as _DEFAULT_SPARSE_BLOCK_SIZE  # noqa: F401  (PyTorch's name, which programs import)
from tritorch.ops.attention import NO_DROPOUT, attention
from tritorch.tensor import Tensor

__all__ = ["AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention", "noop_mask",
           "or_masks"]


class AuxRequest(NamedTuple):
    """What `flex_attention` is to return beside its output."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for: log Σ exp and the maximum of each row of scores, (B, H, L), of float32 or float64."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False,
                   kernel_options=None, *, return_aux=None):
    """softmax(score_mod(query @ keyᵀ · scale)) @ value over the scores that block_mask leaves.

    query (B, H, L, E), key (B, G, S, E), value (B, G, S, EV) give (B, H, L, EV); with enable_gqa H / G query heads share a key head.
    score_mod(score, batch, head, q_idx, kv_idx) returns the changed score; it is written for one score, and called once for all. block_mask
    is made by `create_block_mask(mask_mod, B, H, L, S)`. A row of which no score is left gives 0, and log Σ exp = -inf.
    return_lse gives (out, lse), return_aux=AuxRequest(lse=True, max_scores=True) gives (out, AuxOutput).

    Without score_mod the fused kernels run: causal masks and sliding windows are known as such, and blocks beyond them cost nothing; others
    are read as a mask of bools. With score_mod the scores are stored, in float32 for half types. `alibi_slopes` and `window_size` of
    `F.scaled_dot_product_attention` need no such memory. kernel_options are taken and change nothing.
    Gradients of any order, on the CPU as well, for query, key, value and the tensors that score_mod reads.

    >>> import tritorch as torch; from tritorch.nn.attention.flex_attention import create_block_mask, flex_attention
    >>> q, k, v = (torch.ones(1, 2, 4, 8) for _ in range(3))
    >>> causal = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 4, 4, device="cpu")
    >>> flex_attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx), block_mask=causal).shape
    tritorch.Size([1, 2, 4, 8])
    """
    _check(query, key, value, block_mask, enable_gqa)
    check(not (return_lse and return_aux is not None), "flex_attention", "return_lse or return_aux", "both", error=ValueError)
    wanted = return_aux or AuxRequest(lse=return_lse)
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    mask, window = (None, ALL_KEYS) if block_mask is None else block_mask.whole(*query.shape[:2])
    batch = max(query.shape[0], key.shape[0])
    query, key, value = [x if x.shape[0] == batch else x.expand(batch, -1, -1, -1) for x in (query, key, value)]
    most = None
    if score_mod is None and not wanted.max_scores and not (wanted.lse and _differentiated(query, key, value)):
        out, lse = attention(query, key, value, mask, None, None, None, None, window, scale, NO_DROPOUT, None)
    else:
        if mask is None and window != ALL_KEYS:
            mask = block_mask._known[1]
        out, lse, most = _stored(query, key, value, score_mod, mask, scale)
    if return_aux is not None:
        return out, AuxOutput(lse if wanted.lse else None, most if wanted.max_scores else None)
    return (out, lse) if return_lse else out


def _differentiated(*tensors):
    return any(x.requires_grad for x in tensors)


def _stored(query, key, value, score_mod, mask, scale):
    """(result, log Σ exp, maximum) by scores that are stored."""
    B, H, L, E = query.shape
    G, S, kind = key.shape[1], key.shape[2], query.dtype.compute
    rows = query.to(kind).reshape(B, G, H // max(G, 1), L, E) if G else query.to(kind).unsqueeze(2)
    scores = (rows @ key.to(kind).mT.unsqueeze(2)).reshape(B, H, L, S) * scale
    if score_mod is not None:
        scores = everywhere(score_mod, places_of(B, H, L, S, query.device), scores).to(kind)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    most = scores.amax(-1) if S else scores.new_full((B, H, L), float("-inf"))
    none = (most == float("-inf")).unsqueeze(-1)
    safe = scores.masked_fill(none, 0)
    weights = safe.softmax(-1).masked_fill(none, 0)
    out = weights.reshape(B, G, H // max(G, 1), L, S) @ value.to(kind).unsqueeze(2) if G else weights.new_zeros(B, 0, 1, L, value.shape[-1])
    lse = safe.logsumexp(-1).masked_fill(none.squeeze(-1), float("-inf"))
    return out.reshape(B, H, L, value.shape[-1]).to(query.dtype), lse, most


def _check(query, key, value, block_mask, enable_gqa):
    """Raise for operands that do not fit, in PyTorch's types."""
    name = "flex_attention"
    for x in (query, key, value):
        check(isinstance(x, Tensor), name, "tensors", type(x).__name__, error=TypeError)
    check(query.ndim == key.ndim == value.ndim == 4, name, "query, key and value of 4 dims", query.ndim, key.ndim, value.ndim,
          error=NotImplementedError)
    check(query.dtype is key.dtype is value.dtype, name, "one dtype", query.dtype, key.dtype, value.dtype, error=ValueError)
    check(query.device is key.device is value.device, name, "one device", query.device, key.device, value.device, error=ValueError)
    check(query.shape[-1] == key.shape[-1], name, "query and key of one head size", query.shape[-1], key.shape[-1], error=ValueError)
    check(key.shape[:3] == value.shape[:3], name, "as many keys as values", key.shape, value.shape, error=ValueError)
    H, G = query.shape[1], key.shape[1]
    if enable_gqa:
        check(G and H % G == 0, name, "query heads that the key heads divide", H, G, error=ValueError)
    else:
        check(H == G, name, "as many query heads as key heads", H, G, use="enable_gqa=True", error=ValueError)
    if query.shape[0] != key.shape[0]:
        fits = key.shape[0] == 1 and block_mask is not None and block_mask.shape[0] == query.shape[0]
        check(fits, name, "one batch size, or one batch of keys and a block_mask of the query's", query.shape[0], key.shape[0],
              error=ValueError)
    if block_mask is not None:
        lengths = query.shape[-2], key.shape[-2]
        check(block_mask.shape[-2:] == lengths, name, f"a block_mask of {lengths} rows and keys", block_mask.shape[-2:],
              use="create_block_mask for these lengths", error=ValueError)
        check(block_mask.kv_indices.device is query.device, name, f"a block_mask on {query.device}", block_mask.kv_indices.device)
        check(all(own in (1, n) for n, own in zip(query.shape, block_mask.shape[:-2])), name,
              f"a block_mask of {tuple(query.shape[:2])} batches and heads, or 1", block_mask.shape[:-2], error=ValueError)
