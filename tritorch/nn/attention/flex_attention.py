"""Attention whose scores a function of one's own changes, or hides, under the names of torch.nn.attention.flex_attention."""
import inspect
import math
import warnings
from typing import NamedTuple

from tritorch.accelerator import current_accelerator
from tritorch.device import cpu
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.nn.attention.block_mask import SIZE, BlockMask, blocks_of, noop_mask, ordered, over_scores, sliced_mask
from tritorch.nn.functional import scaled_dot_product_attention
from tritorch.ops.create import arange, zeros
from tritorch.tensor import Tensor

__all__ = ["AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention", "noop_mask",
           "or_masks"]
_DEFAULT_SPARSE_BLOCK_SIZE = SIZE


class AuxRequest(NamedTuple):
    """What `flex_attention` gives beside its result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for by an AuxRequest: log Σ exp of every row of scores, and the greatest of them; (batches, heads, queries)."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def _combined(name, masks, join):
    check(all(map(callable, masks)), name, "functions (b, h, q, kv) → bool", masks)

    def combined(b, h, q_idx, kv_idx):
        result = b.new_full((), name == "and_masks", dtype=types.bool)
        for mask in masks:
            result = join(result, mask(b, h, q_idx, kv_idx))
        return result

    combined.__name__ = combined.__qualname__ = name.removesuffix("s")
    return combined


def and_masks(*mask_mods):
    """The mask of what all of the masks keep.

    >>> import tritorch as torch
    >>> window = and_masks(lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: q - kv < 2)
    >>> create_mask(window, 1, 1, 3, 3, device="cpu")[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    return _combined("and_masks", mask_mods, lambda a, b: a & b)


def or_masks(*mask_mods):
    """The mask of what any of the masks keeps."""
    return _combined("or_masks", mask_mods, lambda a, b: a | b)


def _takes_scores(mod):
    """Whether it is a function (score, b, h, q, kv), and not (b, h, q, kv)."""
    count = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in inspect.signature(mod).parameters.values())
    check(count in (4, 5), "flex_attention", "a function of 4 or 5 arguments", count, error=AssertionError)
    return count == 5


def _ranges(sizes, device):
    return [arange(n, device=device) for n in sizes]


def create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    """The (B, H, Q_LEN, KV_LEN) bools of a function (b, h, q, kv) → bool of single indices, or of (score, b, h, q, kv) → score: where that
    is not -∞. B and H may be None, for 1. device: the accelerator, if there is one and no other is named.
    """
    device = device or current_accelerator() or cpu
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    if _takes_scores(mod_fn):
        return ~over_scores(mod_fn, scores=True)(zeros(sizes, device=device), *_ranges(sizes, device)).isneginf()
    return over_scores(mod_fn)(*_ranges(sizes, device))


def create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device=None, BLOCK_SIZE=SIZE, _compile=False, separate_full_blocks=True):
    """The BlockMask of a function (b, h, q, kv) → bool of single indices: whether a score counts. B or H None: all have the same mask.

    BLOCK_SIZE: a number, or a pair (queries, keys). separate_full_blocks: blocks that count as a whole are listed apart.

    >>> create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 8, 8, device="cpu", BLOCK_SIZE=4).sparsity()
    25.0
    """
    check(not _takes_scores(mask_mod), "create_block_mask", "a function (b, h, q, kv) → bool", mask_mod, error=AssertionError)
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    part, whole = blocks_of(create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device), rows, columns, separate_full_blocks)
    return BlockMask.from_kv_blocks(*ordered(part), *((None, None) if whole is None else ordered(whole)), BLOCK_SIZE=(rows, columns),
                                    mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN))


def _check_inputs(query, key, value, enable_gqa, block_mask):
    def must(ok, rule, *got, error=ValueError):
        check(ok, "flex_attention", rule, *got, error=error)

    must(query.device is key.device is value.device, "query, key and value on one device", query.device, key.device, value.device)
    must(min(query.dim(), key.dim(), value.dim()) >= 2, "query, key and value of at least 2 dims", query.shape, key.shape, value.shape)
    must(query.shape[-1] == key.shape[-1], "as many features in query as in key", query.shape, key.shape)
    must(query.dim() == key.dim() == value.dim() == 4, "query, key and value of 4 dims", query.shape, key.shape, value.shape,
         error=NotImplementedError)
    heads, kv_heads = query.shape[1], key.shape[1]
    must(enable_gqa or heads == kv_heads, "as many heads in query as in key, or enable_gqa", heads, kv_heads)
    must(heads % kv_heads == 0, "heads of query that are a multiple of those of key", heads, kv_heads)
    must(query.shape[0] == key.shape[0] or key.shape[0] == 1 and block_mask is not None, "one batch size, or 1 in key and a block_mask",
         query.shape[0], key.shape[0])
    if block_mask is not None:
        must(block_mask.mask_mod is not sliced_mask, "a whole BlockMask", "a part of one", error=RuntimeError)
        must(query.device is block_mask.kv_num_blocks.device, "block_mask on the device of query", query.device,
             block_mask.kv_num_blocks.device, error=RuntimeError)
        must(block_mask.shape[-2:] == (query.shape[2], key.shape[2]), "a block_mask for as many queries and keys, or _adjust",
             block_mask.shape, (query.shape[2], key.shape[2]))


def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False, kernel_options=None,
                   *, return_aux=None):
    """softmax(score_mod(query · keyᵀ · scale) where block_mask counts) · value; rows in which nothing counts are 0.

    query (B, H, L, E), key (B, H, S, E), value (B, H, S, V), or fewer heads in key and value, each for several of query, with
    `enable_gqa`. score_mod(score, b, h, q, kv) → score is written for single scores and their indices. scale: 1/√E unless given.
    return_aux: an AuxRequest (or return_lse for log Σ exp alone). kernel_options: choices for PyTorch's kernels. Without a score_mod it is
    `scaled_dot_product_attention` with a mask; with one, all scores are held in memory. Gradients go to the inputs and to what score_mod
    reads.

    Errors: ValueError, NotImplementedError (other than 4 dims) or RuntimeError for shapes or devices that do not go together.

    >>> import tritorch as torch
    >>> x = torch.ones(1, 1, 3, 2)
    >>> distant = flex_attention(x, x, torch.eye(3).view(1, 1, 3, 3), lambda score, b, h, q, kv: score - (q - kv).abs())
    >>> distant[0, 0, 0]
    tensor([0.6652, 0.2447, 0.0900])
    """
    _check_inputs(query, key, value, enable_gqa, block_mask)
    check(not (return_lse and return_aux is not None), "flex_attention", "return_aux or return_lse", "both", error=ValueError)
    mask = None
    if block_mask is not None and block_mask.mask_mod is not noop_mask:
        sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        mask = over_scores(block_mask.mask_mod)(*_ranges(sizes, query.device))
    if key.shape[0] != query.shape[0]:
        key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    if score_mod is None and not return_lse and return_aux is None and query.dtype is key.dtype is value.dtype:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    out, lse, greatest = _attention(query, key, value, score_mod, mask, scale)
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, greatest if return_aux.max_scores else None)
    if return_lse:
        warnings.warn("flex_attention: return_lse goes away; use return_aux=AuxRequest(lse=True)", FutureWarning, stacklevel=2)
        return out, lse
    return out


def _attention(query, key, value, score_mod, mask, scale):
    """The result, log Σ exp of the scores and the greatest of them, in float32 at least."""
    groups, precise = query.shape[1] // key.shape[1], types.float64 if query.dtype is types.float64 else types.float32
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query.to(precise) @ key.to(precise).mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if score_mod is not None:
        scores = over_scores(score_mod, scores=True)(scores, *_ranges(scores.shape, scores.device))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    hidden = (scores == -math.inf).all(-1)
    lse, greatest = scores.logsumexp(-1).masked_fill(hidden, -math.inf), scores.amax(-1)
    weights = scores.softmax(-1).masked_fill(hidden.unsqueeze(-1), 0)
    return weights.to(query.dtype) @ value.to(query.dtype), lse, greatest
