"""Multi-head attention as a function. Vaswani et al. 2017."""
import math
import warnings
from collections import namedtuple

from tritorch.autograd.places import stacklevel
from tritorch.errors import explained
from tritorch.ops.attention import scaled_dot_product_attention
from tritorch.ops.dropout import dropout
from tritorch.ops.matmul import linear
from tritorch.ops.padding import pad
from tritorch.ops.shaping import cat

_Heads = namedtuple("_Heads", ["q", "k", "v", "attn_mask"])


@explained
def multi_head_attention_forward(query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v,
                                 add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training=True, key_padding_mask=None,
                                 need_weights=True, attn_mask=None, use_separate_proj_weight=False, q_proj_weight=None,
                                 k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None, average_attn_weights=True,
                                 is_causal=False):
    """What `nn.MultiheadAttention` computes, from its parameters; the arguments are PyTorch's.

    Query (L, N, E), key (S, N, E_k), value (S, N, E_v), or without N. Returns the output (L, N, E) and, if `need_weights`, the
    attention weights (N, L, S) or (N, num_heads, L, S); else None.
    """
    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = _unsqueezed(query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if query.shape[2] != embed_dim_to_check:
        raise AssertionError(f"multi_head_attention_forward: expected a query of {embed_dim_to_check} features, got {query.shape[2]}")
    if is_causal and attn_mask is None:
        raise RuntimeError("multi_head_attention_forward: is_causal says what attn_mask is, so expected an attn_mask, got None; use "
                           "nn.Transformer.generate_square_subsequent_mask")
    mask_type = None if attn_mask is None else attn_mask.dtype
    key_padding_mask = _canonical_mask(key_padding_mask, "key_padding_mask", mask_type, "attn_mask", query.dtype)
    attn_mask = _canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, check_other=False)
    causal = is_causal and key_padding_mask is None and not need_weights and bias_k is None and not add_zero_attn
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    head = embed_dim_to_check // num_heads
    if head * num_heads != embed_dim_to_check:
        raise AssertionError(f"embed_dim {embed_dim_to_check} not divisible by num_heads {num_heads}")
    q, k, v = _project(query, key, value, in_proj_weight, in_proj_bias, weights, (num_heads, head))
    heads = _extended(q, k, v, None if causal else _check_mask(attn_mask, query, key, num_heads), key_padding_mask,
                      (bias_k, bias_v), add_zero_attn, (static_k, static_v))
    dropout_p = dropout_p if training else 0.0
    if need_weights:
        mixed, scores = _attend_with_weights(heads, dropout_p)
        scores = scores.mean(1) if average_attn_weights else scores
    else:
        mixed, scores = scaled_dot_product_attention(*heads, dropout_p, causal), None
    length, batch, embed = query.shape
    output = linear(mixed.permute(2, 0, 1, 3).reshape(length * batch, embed), out_proj_weight, out_proj_bias)
    output = output.view(length, batch, output.shape[1])
    if not batched:
        output, scores = output.squeeze(1), None if scores is None else scores.squeeze(0)
    return output, scores


def _unsqueezed(query, key, value):
    """With a batch dim; the same tensor stays the same tensor, as one product then projects all three."""
    made = {id(x): x.unsqueeze(1) for x in (query, key, value)}
    return made[id(query)], made[id(key)], made[id(value)]


def _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads):
    if query.ndim not in (2, 3):
        raise AssertionError(f"multi_head_attention_forward: expected a query of 2 dims, or 3 with a batch, got {query.ndim}")
    kind, n = ("batched (3-D)", 3) if query.ndim == 3 else ("unbatched (2-D)", 2)
    if key.ndim != n or value.ndim != n:
        raise AssertionError(f"multi_head_attention_forward: expected a key and a value of {n} dims as the query has, got {key.ndim} and "
                             f"{value.ndim}")
    if key_padding_mask is not None and key_padding_mask.ndim != n - 1:
        raise AssertionError(f"multi_head_attention_forward: expected a key_padding_mask of {n - 1} dims for a query of {n}, got "
                             f"{key_padding_mask.ndim}")
    if attn_mask is not None:
        if attn_mask.ndim not in (2, 3):
            raise AssertionError(f"multi_head_attention_forward: expected an attn_mask of 2 or 3 dims, got {attn_mask.ndim}")
        if n == 2 and attn_mask.ndim == 3 and tuple(attn_mask.shape) != (num_heads, query.shape[0], key.shape[0]):
            raise AssertionError(f"Expected `attn_mask` shape to be {(num_heads, query.shape[0], key.shape[0])} but got {attn_mask.shape}")
    return n == 3


def _canonical_mask(mask, mask_name, other_type, other_name, target_type, check_other=True):
    """The mask as numbers that are added to the scores."""
    if mask is None:
        return None
    if not (mask.dtype.name == "bool" or mask.is_floating_point()):
        raise AssertionError(f"{mask_name}: expected a bool or floating mask, got {mask.dtype}")
    if check_other and other_type is not None and other_type is not mask.dtype:
        warnings.warn(f"{mask_name} and {other_name} have different dtypes, which is deprecated", stacklevel=stacklevel())
    return mask if mask.is_floating_point() else mask.new_zeros(mask.shape, dtype=target_type).masked_fill_(mask, float("-inf"))


def _check_mask(mask, query, key, num_heads):
    """The attention mask as (1 or batch · heads, L, S)."""
    if mask is None:
        return None
    length, batch, _ = query.shape
    expected = (length, key.shape[0]) if mask.ndim == 2 else (batch * num_heads, length, key.shape[0])
    if tuple(mask.shape) != expected:
        raise RuntimeError(f"The shape of the {mask.ndim}D attn_mask is {mask.shape}, but should be {expected}.")
    return mask.unsqueeze(0) if mask.ndim == 2 else mask


def _project(query, key, value, weight, bias, separate, heads):
    """Query, key and value through their projections, by heads; in one product where they are the same tensor."""
    if separate is None and key.shape != value.shape:
        raise AssertionError(f"multi_head_attention_forward: expected a key and a value of one shape, got {key.shape} and {value.shape}")
    if separate is not None and key.shape[:2] != value.shape[:2]:
        raise AssertionError(f"multi_head_attention_forward: expected key and value of one length and batch, got "
                             f"{tuple(key.shape[:2])} and {tuple(value.shape[:2])}")
    if separate is None and query is key and key is value:
        return linear(query, weight, bias).unflatten(-1, (3, *heads)).permute(2, 1, 3, 0, 4).unbind()        # 6 views less than by parts
    if separate is None and key is value:
        embed = query.shape[-1]
        (w_q, w_kv), (b_q, b_kv) = weight.split([embed, 2 * embed]), (None, None) if bias is None else bias.split([embed, 2 * embed])
        return [_by_heads(x, heads) for x in (linear(query, w_q, b_q), *linear(key, w_kv, b_kv).chunk(2, -1))]
    weights, biases = separate or weight.chunk(3), (None,) * 3 if bias is None else bias.chunk(3)
    return [_by_heads(linear(x, w, b), heads) for x, w, b in zip((query, key, value), weights, biases)]


def _by_heads(x, heads):
    """(L, N, E) seen as (N, heads, L, E / heads)."""
    return x.unflatten(-1, heads).permute(1, 2, 0, 3)


def _extended(q, k, v, attn_mask, key_padding_mask, biases, add_zero_attn, static):
    """Heads with the extra key and value at the end, and the masks made to fit."""
    batch, num_heads, _, head = q.shape
    extra = 0
    if biases[0] is not None:
        k, v = (cat([x, _by_heads(bias.expand(1, batch, -1), (num_heads, head))], 2) for x, bias in zip((k, v), biases))
        extra += 1
    k, v = (x if given is None else given.view(batch, num_heads, *given.shape[1:]) for x, given in zip((k, v), static))
    if add_zero_attn:
        k, v = (pad(x, (0, 0, 0, 1)) for x in (k, v))
        extra += 1
    if extra:
        attn_mask, key_padding_mask = (None if mask is None else pad(mask, (0, extra)) for mask in (attn_mask, key_padding_mask))
    if attn_mask is not None:
        attn_mask = attn_mask.unsqueeze(0) if attn_mask.shape[0] == 1 else attn_mask.view(batch, num_heads, *attn_mask.shape[1:])
    if key_padding_mask is not None:
        if tuple(key_padding_mask.shape) != (batch, k.shape[2]):
            raise AssertionError(f"Expected key_padding_mask to be of shape {(batch, k.shape[2] - extra)}, "
                                 f"but got {(key_padding_mask.shape[0], key_padding_mask.shape[1] - extra)}")
        padding = key_padding_mask.view(batch, 1, 1, -1)
        attn_mask = padding if attn_mask is None else attn_mask + padding
    return _Heads(q, k, v, attn_mask)


def _attend_with_weights(heads, dropout_p):
    scores = (heads.q * math.sqrt(1.0 / heads.q.shape[-1])) @ heads.k.transpose(-2, -1)
    if heads.attn_mask is not None:
        scores = scores + heads.attn_mask
    scores = scores.softmax(-1)
    if dropout_p > 0.0:
        scores = dropout(scores, dropout_p)
    return scores @ heads.v, scores
