"""Attention of sequences of different lengths that lie one after the other."""
from typing import NamedTuple

from tritorch.errors import check
from tritorch.ops.attention import attention, window_of


class AuxRequest(NamedTuple):
    """What `varlen_attn` returns beside the result."""

    lse: bool = False


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
                enable_gqa=False, alibi_slopes=None, num_splits=None):
    """softmax(query @ keyᵀ · scale) @ value, for each of N sequences by itself; nothing is padded.

    query (T_q, H, E), key (T_k, G, E) and value (T_k, G, EV), of one floating dtype, give (T_q, H, EV). Sequence n has the rows cu_seq_q[n]
    … cu_seq_q[n + 1] of query and cu_seq_k[n] … cu_seq_k[n + 1] of key and value (integer tensors of N + 1 places; cu_seq_k None: the
    same); at most max_q and max_k. With enable_gqa H / G query heads share a key head. window_size is (left, right), -1 for no bound: rows
    and keys of a sequence are counted from its end, and row i may attend to keys i - left … i + right, so (-1, 0) is causal. A row that may
    attend to nothing gives 0, so does one of no sequence. With return_aux=AuxRequest(lse=True) log Σ exp of the scores, (T_q, H), comes as
    well. Beyond PyTorch: alibi_slopes (H) take slope · |i - j| off the scores. Sums are never split over programs, so num_splits changes
    nothing: a sequence gives the same bits in any company. PyTorch's seqused_k and block_table, for paged caches, are not taken. Raises
    ValueError when heads or windows do not fit, RuntimeError for other shapes and dtypes.

    >>> import tritorch as torch
    >>> x, places = torch.ones(7, 2, 4), torch.tensor([0, 3, 7])
    >>> varlen_attn(x, x, x, places, places, 4, 4, window_size=(-1, 0)).shape
    tritorch.Size([7, 2, 4])
    """
    name = "varlen_attn"
    check(query.ndim == key.ndim == value.ndim == 3, name, "packed query, key and value (T, H, D)", query.shape, key.shape, value.shape)
    heads, shared = query.shape[1], key.shape[1]
    check(heads == shared or enable_gqa and shared and heads % shared == 0, name, "as many key heads as query heads, or with enable_gqa a "
          "divisor of their number", shared, heads, error=ValueError)
    q, k, v = [x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    cu_seq_k = cu_seq_q if cu_seq_k is None else cu_seq_k
    out, lse = attention(q, k, v, None, alibi_slopes, cu_seq_q, cu_seq_k, (max_q, max_k), window_of(name, window_size), scale, (0.0, 0, 0),
                         None)
    out = out.squeeze(0).transpose(0, 1)
    return (out, lse.squeeze(0).transpose(0, 1).detach()) if return_aux is not None and return_aux.lse else out
