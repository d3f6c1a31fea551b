"""Gradients of what `attention` adds to the scores: the operators `attention_backward_mask` and `attention_backward_slopes`."""
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.ops import attention_cpu, attention_cuda
from tritorch.ops.attention import attention, attention_backward_samples, diagonals, weights_and_slopes


@op(returns=("gm",))
def attention_backward_mask(gradient, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale,
                            dropout, base):
    """Gradient of `attention` for a floating attn_mask, in its shape: that of the scores, dS, summed over the dims in which it is repeated.

        P = exp(scores - lse),  dS = P (gradient @ valueᵀ - Σ gradient · out)

    The scores are computed again, tile by tile. Parameters are those of `attention_backward`.

    >>> import tritorch as torch
    >>> x, y, lse = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.full((1, 1, 2), 1.0986)
    >>> rest = None, None, None, (None, None), 0.0, (0.0, 0, 0), None
    >>> attention_backward_mask(x, x, y, y, torch.zeros(2, 3), None, x, lse, *rest).shape
    tritorch.Size([2, 3])
    """
    return attn_mask.shape, attn_mask.dtype, attn_mask.device


@op(returns=("gs",))
def attention_backward_slopes(gradient, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale,
                              dropout, base):
    """Gradient of `attention` for alibi_slopes, in their shape: -Σ dS · |distance from the diagonal| over the rows and keys of a head.

    dS is that of `attention_backward_mask`; the scores are computed again, tile by tile.

    >>> import tritorch as torch
    >>> x, lse = torch.ones(1, 1, 2, 4), torch.full((1, 1, 2), 0.6931)
    >>> rest = None, None, None, (None, None), 0.0, (0.0, 0, 0), None
    >>> attention_backward_slopes(x, x, x, x, None, torch.ones(1), x, lse, *rest).shape
    tritorch.Size([1])
    """
    return alibi_slopes.shape, alibi_slopes.dtype, alibi_slopes.device


@attention_backward_mask.impl("cpu")
def mask_cpu(gm, *args):
    attention_cpu.bias_backward(gm, False, *args)


@attention_backward_slopes.impl("cpu")
def slopes_cpu(gs, *args):
    attention_cpu.bias_backward(gs, True, *args)


@attention_backward_mask.impl("cuda")
def mask_cuda(gm, *args):
    attention_cuda.bias_backward(gm, False, *args)


@attention_backward_slopes.impl("cuda")
def slopes_cuda(gs, *args):
    attention_cuda.bias_backward(gs, True, *args)


@attention_backward_mask.formula
def mask_formula(gradient, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    slopes = weights_and_slopes(gradient, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base)[1]
    return slopes.sum_to_size(attn_mask.shape).to(attn_mask.dtype)


@attention_backward_slopes.formula
def slopes_formula(gradient, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout,
                   base):
    slopes = weights_and_slopes(gradient, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base)[1]
    away = diagonals(query, key, cu_seq_q, cu_seq_k)[0].abs()
    return -(slopes * away).sum((-2, -1)).sum_to_size(alibi_slopes.shape).to(alibi_slopes.dtype)


@attention.grad("attn_mask")
def attention_grad_mask(g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout,
                        base):
    return attention_backward_mask(g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale,
                                   dropout, base)


@attention.grad("alibi_slopes")
def attention_grad_slopes(g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout,
                          base):
    return attention_backward_slopes(g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window,
                                     scale, dropout, base)


@attention_backward_mask.samples
def attention_backward_mask_samples(make):
    for call in attention_backward_samples(make):
        if call[4] is not None and call[4].dtype.is_floating_point:
            yield call


@attention_backward_slopes.samples
def attention_backward_slopes_samples(make):
    for call in attention_backward_samples(make):
        if call[5] is not None:
            yield call


def _workloads(make, label, bias, numbers):
    """Heads of 64, 2048 rows; `bias` gives (attn_mask, alibi_slopes), of so many numbers."""
    shape = B, H, T, D = 4, 16, 2048, 64
    rest = None, None, None, (None, 0), D ** -0.5, (0.0, 0, 0), None

    def call():
        q, added = make(*shape, dtype=types.bfloat16), bias()
        out, lse = attention(q, q, q, *added, *rest)
        return (out, q, q, q, *added, out, lse, *rest)

    yield f"bf16 B{B}H{H}T{T}D{D} causal {label}", call, 10 * B * H * T * D + 8 * numbers, 2 * B * H * T * T * D


@attention_backward_mask.workloads
def attention_backward_mask_workloads(make):
    yield from _workloads(make, "mask (16, 2048, 2048)", lambda: (make(16, 2048, 2048), None), 16 << 22)
    yield from _workloads(make, "mask (4, 1, 1, 2048)", lambda: (make(4, 1, 1, 2048), None), 4 << 11)


@attention_backward_slopes.workloads
def attention_backward_slopes_workloads(make):
    yield from _workloads(make, "slopes", lambda: (None, make(16)), 16)
