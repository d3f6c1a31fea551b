"""Attention under the names of PyTorch's kernels for it in `tritorch.ops.aten`, which policies of checkpoints look for."""
import math

from tritorch.errors import check
from tritorch.ops.attention import EVERYWHERE, NO_DROPOUT, attention
from tritorch.tensor import empty


def _attention(query, key, value, dropout_p, is_causal, scale, attn_mask=None):
    check(not dropout_p, "_scaled_dot_product_flash_attention", "no dropout", dropout_p, use="nn.functional.scaled_dot_product_attention")
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    return attention(query, key, value, attn_mask, None, None, None, None, (None, 0) if is_causal else EVERYWHERE, scale, NO_DROPOUT, None)


def flash_attention_for_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """(softmax(query @ keyᵀ · scale + attn_mask) @ value, log Σ exp of each row of scores), of tensors (B, H, L, E).

    >>> import tritorch as torch
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[1]
    tensor([[[0.6931, 0.6931]]])
    """
    return _attention(query, key, value, dropout_p, is_causal, scale, attn_mask)


def flash_attention(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """As `flash_attention_for_cpu`, and what there is in PyTorch beside: no places of sequences, the longest of queries and of keys, and
    empty tensors for the state of the generator and the weights.

    >>> import tritorch as torch
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)[2:6]
    (None, None, 2, 2)
    """
    out, lse = _attention(query, key, value, dropout_p, is_causal, scale)
    nothing = [empty((0,), query.dtype, query.device) for _ in range(3)]
    return out, lse, None, None, query.shape[-2], key.shape[-2], *nothing
