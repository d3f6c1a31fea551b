"""Scaled dot-product attention: the operators `attention`, `attention_backward` and `attention_keep`, and the function above them."""
import math

import numpy as np

from tritorch.autograd.modes import state
from tritorch.autograd.parts import empty_alike
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, refuse_misuse
from tritorch.memory_format import dense_strides
from tritorch.ops import attention_cpu, attention_cuda
from tritorch.ops.attention_backends import backends
from tritorch.ops.compare import where
from tritorch.ops.create import arange
from tritorch.ops.draws import place
from tritorch.ops.shaping import cat
from tritorch.shape import broadcast_shapes

# `attention` has twelve parameters: seven tensors, three attributes of the function (what they hold is told at the operator), and the
# place of the dropout's random numbers, which its gradient reads again: seed, offset, and under a captured graph the tensor `base` that
# both count from.
EVERYWHERE = (None, None)                                                # the window without bounds
NO_DROPOUT = (0.0, 0, 0)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *,
                                 window_size=(-1, -1), alibi_slopes=None, generator=None):
    """softmax(query @ keyᵀ · scale + attn_mask) @ value, without storing the scores.

    query (…, H, L, E), key (…, G, S, E) and value (…, G, S, EV), of one floating dtype, give (…, H, L, EV). Leading dims
    broadcast; with enable_gqa H / G query heads share a key head. scale is 1 / √E by default. A bool attn_mask says which key a row may
    attend to, a floating one is added to the scores; it broadcasts to (…, H, L, S). is_causal lets row i attend to keys 0 … i. A row
    that may attend to nothing gives 0; one to whose scores about -9e4 or less is added everywhere (finfo.min, say), the mean of all values.
    Weights are dropped with chance dropout_p and the others scaled by 1 / (1 - dropout_p).
    Beyond PyTorch: window_size = (left, right) lets row i attend to keys i - left … i + right, where -1 is no bound; alibi_slopes, (H) or
    (B, H), take slope · |i - j| off the scores (Press et al., "Train short, test long", 2022). Their cost is that of the keys that are met.
    Raises RuntimeError when shapes or dtypes do not fit, or attn_mask is given together with is_causal; ValueError for another window_size.
    Vaswani et al., "Attention is all you need", 2017; computed as in Dao, "FlashAttention-2", 2023.

    >>> import tritorch as torch
    >>> q, k, v = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 6)
    >>> torch.nn.functional.scaled_dot_product_attention(q, k, v).shape
    tritorch.Size([1, 2, 3, 6])
    """
    try:
        name = "scaled_dot_product_attention"
        check(min(query.ndim, key.ndim, value.ndim) >= 2, name, "query, key and value of at least 2 dims", query.shape, key.shape,
              value.shape)
        check(attn_mask is None or not is_causal, name, "attn_mask or is_causal", "both")
        check(0 <= dropout_p <= 1, name, "0 ≤ dropout_p ≤ 1", dropout_p)
        check(query.shape[-1] == key.shape[-1], name, "query and key of one head size", query.shape, key.shape)
        check(key.shape[-2] == value.shape[-2], name, "as many keys as values", key.shape, value.shape)
        lead, query, key, value, attn_mask = _four_dims(name, query, key, value, attn_mask, enable_gqa)
        scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
        dropout, base = NO_DROPOUT, None
        if dropout_p:
            words = 4 * math.prod(query.shape[:2]) * attention_cpu.counters(query.shape[2], key.shape[2])
            seed, offset, base = place(query.device, generator, words)
            dropout = dropout_p, seed, offset
        window = (None, 0) if is_causal else EVERYWHERE
        if window_size != (-1, -1):
            window = window_of(name, window_size, is_causal)
        if backends.plain():
            out = plain_attention(query, key, value, attn_mask, alibi_slopes, window, scale, dropout, base)
            return out if lead is None else out.reshape(*lead, *out.shape[-2:])
        out = attention(query, key, value, attn_mask, alibi_slopes, None, None, None, window, scale, dropout, base)[0]
        return out if lead is None else out.contiguous().reshape(*lead, *out.shape[-2:])
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def window_of(name, window_size, is_causal=False):
    """(left, right) with None for no bound, from numbers of which -1 says so."""
    fits = isinstance(window_size, (tuple, list)) and len(window_size) == 2 and min(window_size) >= -1
    check(fits, name, "window_size as two numbers of at least -1", window_size, error=ValueError)
    left, right = [None if n < 0 else int(n) for n in window_size]
    return left, 0 if is_causal else right


def _four_dims(name, query, key, value, attn_mask, enable_gqa):
    """(shape before the last two dims of the result, or None where it is as it should be; the operands with four dims and one batch)."""
    if query.ndim == key.ndim == value.ndim == 4 and query.shape[0] == key.shape[0] == value.shape[0]:
        batch, lead = query.shape[:1], None
    else:
        batch = broadcast_shapes(name, query.shape[:-3], key.shape[:-3], value.shape[:-3])
        lead = (*batch, *(query.shape[-3:-2] if enable_gqa else broadcast_shapes(name, *[x.shape[-3:-2] for x in (query, key, value)])))
        query, key, value = [_batched(x, batch) for x in (query, key, value)]
        if attn_mask is not None and attn_mask.ndim > 4:
            attn_mask = _batched(attn_mask, batch)
    H, G, GV = query.shape[1], key.shape[1], value.shape[1]
    if enable_gqa:
        check(G and GV and H % G == 0 and H % GV == 0, name, "key and value heads that divide the query heads", H, f"{G} and {GV}")
        if G != GV:                                                      # repeated, the two agree
            key, value = [x.unsqueeze(2).expand(-1, -1, H // x.shape[1], -1, -1).reshape(x.shape[0], H, *x.shape[2:]) for x in (key, value)]
    elif not H == G == GV:
        heads = broadcast_shapes(name, (H,), (G,), (GV,))[0]
        query = query.expand(-1, heads, -1, -1)
        if not G == GV == 1:                                             # one head of keys and values is a group as it is
            key, value = key.expand(-1, heads, -1, -1), value.expand(-1, heads, -1, -1)
    return lead, query, key, value, attn_mask


def _batched(x, batch):
    """With one batch dim and one head dim."""
    while x.ndim < 3:
        x = x.unsqueeze(0)
    x = x.expand(*batch, *x.shape[-3:])
    return x if x.ndim == 4 else x.reshape(math.prod(batch), *x.shape[-3:])


# ------------------------------------------------------------------ the operator
@op(returns=("out", "lse"))
def attention(query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    """Attention of query (B, H, L, E) to key (B, G, S, E) and value (B, G, S, EV): the result, and log Σ exp of each row of scores.

    H / G query heads share a key head. attn_mask (bool or added) broadcasts to (B, H, L, S), alibi_slopes to (B, H). window is (left,
    right): row i may attend to the keys i - left … i + right; None is no bound. dropout is (p, seed, offset): score (b, h, i, j) takes the
    random bits of `tritorch.philox` at its own place after offset. With cu_seq_q and cu_seq_k, (N + 1) integers, B is 1 and sequence n has
    the rows cu_seq_q[n] … cu_seq_q[n + 1] and the keys likewise; longest is (most rows, most keys) of a sequence, and the last row of a
    sequence stands at its last key.

    >>> import tritorch as torch
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> attention(x, x, x, None, None, None, None, None, (None, 0), 0.5, (0.0, 0, 0), None)[1]
    tensor([[[0.0000, 0.6931]]])
    """
    B, H, L, E = query.shape
    G, S, EV = value.shape[1:]
    check(key.shape == (B, G, S, E) and value.shape[0] == B and (H == 0 or G and H % G == 0), "attention", "query, key and value that fit",
          query.shape, key.shape, value.shape)
    dtype = query.dtype
    check(key.dtype is dtype and value.dtype is dtype, "attention", "query, key and value of one dtype", dtype, key.dtype, value.dtype)
    check(dtype.is_floating_point and dtype.itemsize > 1, "attention", "a floating dtype of at least 16 bits", dtype)
    if attn_mask is not None:
        check(attn_mask.dtype in (types.bool, dtype, dtype.compute), "attention", f"attn_mask of dtype bool or {dtype}", attn_mask.dtype)
        check(broadcast_shapes("attention", attn_mask.shape, (B, H, L, S)) == (B, H, L, S), "attention",
              f"attn_mask that broadcasts to {(B, H, L, S)}", attn_mask.shape)
    if alibi_slopes is not None:
        check(alibi_slopes.shape in ((H,), (B, H)) and alibi_slopes.dtype.is_floating_point, "attention",
              f"floating alibi_slopes of shape {(H,)} or {(B, H)}", alibi_slopes.shape, alibi_slopes.dtype)
    if longest is not None:
        check(B == 1 and attn_mask is None and not dropout[0] and cu_seq_q.shape == cu_seq_k.shape and cu_seq_q.ndim == 1 and len(cu_seq_q)
              and not cu_seq_q.dtype.is_floating_point and not cu_seq_k.dtype.is_floating_point, "attention",
              "packed sequences in one batch, without attn_mask and dropout, their places in query and key integers of one shape (N + 1,)",
              B, cu_seq_q.shape, cu_seq_k.shape)
    device = common_device("attention", query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k)
    strides = _order((B, H, L, EV), device, query, key, value, longest is None, dropout[0])
    return [((B, H, L, EV), dtype, device, strides), ((B, H, L), dtype.compute, device)]


def _order(shape, device, query, key, value, alone, dropped):
    """Strides of the result, as PyTorch's: heads lie as the query's do, joining them again is no copy. What PyTorch composes of products on
    the CPU, as all on meta, is contiguous."""
    if device.type != "cuda" and alone:
        even = shape[-1] == query.shape[-1] and all(x.strides[-1] == 1 for x in (query, key, value))
        if device.type == "meta" or not even or dropped or not shape[2] or not key.shape[2]:
            return None
    return dense_strides(shape, query.strides)


attention.impl("cpu")(attention_cpu.forward)
attention.impl("cuda", passes={"dropout": {1: int, 2: int}})(attention_cuda.forward)


@attention.grad("query", "key", "value")
def attention_grad(g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    values = g_out, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base
    together = None if state.grad else empty_alike(query, key, value, g=g_out)         # parts of one projection, and so their gradients
    return attention_backward(*values) if together is None else attention_backward.into(together, *values)


@attention.samples
def attention_samples(make):
    def call(q, k, v, mask=None, dropout_p=0.0, window=EVERYWHERE, scale=0.5, slopes=None, cu=(None, None, None)):
        return q, k, v, mask, slopes, *cu, window, scale, (dropout_p, 7, 3), None

    def places(*starts):
        return sum([(make(1, integer=True, low=n, high=n + 1),) for n in starts], ())

    causal = None, 0
    yield call(make(2, 2, 5, 4), make(2, 2, 7, 4), make(2, 2, 7, 3))
    yield call(make(1, 2, 19, 3), make(1, 2, 19, 3), make(1, 2, 19, 3), window=causal)
    yield call(make(1, 4, 3, 5), make(1, 2, 18, 5), make(1, 2, 18, 5), window=causal)
    yield call(make(2, 2, 3, 4), make(2, 1, 5, 4), make(2, 1, 5, 4), mask=make(2, 1, 3, 5), scale=1.0)
    yield call(make(1, 2, 4, 2), make(1, 2, 6, 2), make(1, 2, 6, 2), mask=make(4, 6, integer=True, low=0, high=2).bool())
    yield call(make(1, 2, 4, 3), make(1, 2, 6, 3), make(1, 2, 6, 3), dropout_p=0.4)
    yield call(make(1, 2, 18, 2), make(1, 2, 21, 2), make(1, 2, 21, 2), window=(2, 1), slopes=make(2))
    starts = cat(places(0, 1, 1, 18)).int(), cat(places(0, 3, 5, 9))
    yield call(make(1, 2, 18, 2), make(1, 1, 9, 2), make(1, 1, 9, 2), window=(3, 0), cu=(*starts, (17, 4)), slopes=make(1, 2))
    yield call(make(1, 1, 2, 3), make(1, 1, 0, 3), make(1, 1, 0, 3))
    yield call(make(0, 2, 2, 3), make(0, 2, 4, 3), make(0, 2, 4, 3))


@attention.errors
def attention_errors(make):
    q, ints = make(1, 2, 3, 4), make(3, 3, integer=True, low=0, high=2)
    rest = EVERYWHERE, 0.5, (0.0, 0, 0), None
    yield (q, make(1, 2, 5, 3), make(1, 2, 5, 4), None, None, None, None, None, *rest), {}, RuntimeError, "query, key and value that fit"
    yield (q, q, q, make(3, 4), None, None, None, None, *rest), {}, RuntimeError, "broadcast"
    yield (q, q, q, ints, None, None, None, None, *rest), {}, RuntimeError, "attn_mask of dtype bool"
    yield (q, q, q, None, make(3), None, None, None, *rest), {}, RuntimeError, "alibi_slopes of shape"
    yield (q, q, q, None, None, ints, ints, (3, 3), *rest), {}, RuntimeError, "packed sequences"


def _workloads(make, tensors, products):
    """Under a causal mask half of the products are asked for."""
    for b, h, t, d, causal in ((16, 12, 1024, 64, True), (4, 32, 4096, 64, True), (4, 16, 4096, 128, True), (1, 16, 16384, 128, True),
                               (4, 16, 4096, 128, False)):
        qkv = [make(b, h, t, d, dtype=types.bfloat16) for _ in range(3)]
        call = (*qkv, None, None, None, None, None, (None, 0) if causal else EVERYWHERE, 1 / math.sqrt(d), (0.0, 0, 0), None)
        label = f"bf16 B{b}H{h}T{t}D{d} causal={causal}"
        yield label, call, tensors * 2 * b * h * t * d, products * b * h * t * t * d * (1 if causal else 2)


@attention.workloads
def attention_workloads(make):
    for label, call, moved, flops in _workloads(make, 4, 2):
        yield label, lambda call=call: call, moved, flops


# ------------------------------------------------------------------ its gradient
@op(returns=("gq", "gk", "gv"))
def attention_backward(g, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    """Gradients of `attention` for query, key and value, from its result and lse; the weights are computed again, block by block.

        P = exp(scores - lse),  dS = P (g @ valueᵀ - Σ g · out),  gv = Pᵀ @ g,  gq = scale · dS @ key,  gk = scale · dSᵀ @ query

    >>> import tritorch as torch
    >>> x, lse, rest = torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), 0.6931), (None, None, None, (None, None), 0.5, (0.0, 0, 0), None)
    >>> [gx.shape for gx in attention_backward(x + 1, x, x, x, None, None, x, lse, *rest)]
    [tritorch.Size([1, 1, 2, 4]), tritorch.Size([1, 1, 2, 4]), tritorch.Size([1, 1, 2, 4])]
    """
    return [(x.shape, x.dtype, x.device, dense_strides(x.shape, x.strides)) for x in (query, key, value)]


attention_backward.impl("cpu")(attention_cpu.backward)
attention_backward.impl("cuda", passes={"dropout": {1: int, 2: int}})(attention_cuda.backward)


@attention_backward.formula
def attention_backward_formula(g, query, key, value, attn_mask, alibi_slopes, out, lse, cu_seq_q, cu_seq_k, longest, window, scale, dropout,
                               base):
    weights, slopes = weights_and_slopes(g, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base)
    group = query.shape[1] // max(key.shape[1], 1)
    return (slopes @ repeated(key, group)) * scale, shared(slopes.mT @ query, group) * scale, shared(weights.mT @ g, group)


def weights_and_slopes(g, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base):
    """The weights that met value, and the gradient of the scores, both (B, H, L, S), in operators that can be differentiated."""
    p, keep = weights_and_keep(query, key, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base)
    slopes, weights = g @ repeated(value, query.shape[1] // max(key.shape[1], 1)).mT, p
    if keep is not None:
        slopes, weights = slopes * keep, p * keep
    return weights, p * (slopes - (p * slopes).sum(-1, keepdim=True))


def weights_and_keep(query, key, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, window, scale, dropout, base):
    """The weights before dropout and the factors of dropout (None without), both (B, H, L, S)."""
    scores = (query @ repeated(key, query.shape[1] // max(key.shape[1], 1)).mT) * scale
    away, seen = diagonals(query, key, cu_seq_q, cu_seq_k)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(scores.dtype).unsqueeze(-1).unsqueeze(-1) * away.abs()
    if attn_mask is not None:
        scores = where(attn_mask, scores, -math.inf) if attn_mask.dtype is types.bool else scores + attn_mask
    for bound, within in zip(window, (lambda left: away >= -left, lambda right: away <= right)):
        if bound is not None:
            seen = within(bound) if seen is None else seen & within(bound)
    if seen is not None:
        scores = where(seen, scores, -math.inf)
    p = scores
    if scores.shape[-1]:
        blind = scores.detach().amax(-1, keepdim=True) == -math.inf      # rows that see no key: weights of 0, not NaN
        p = where(blind, 0.0, where(blind, 0.0, scores).softmax(-1))
    return p, attention_keep(scores.detach(), *dropout, base) if dropout[0] else None


def plain_attention(query, key, value, attn_mask, alibi_slopes, window, scale, dropout, base):
    """The result of `attention` by products and softmax, with the scores stored: what SDPBackend.MATH asks for."""
    p, keep = weights_and_keep(query, key, attn_mask, alibi_slopes, None, None, window, scale, dropout, base)
    return (p if keep is None else p * keep) @ repeated(value, query.shape[1] // max(value.shape[1], 1))


def diagonals(query, key, cu_seq_q, cu_seq_k):
    """(how far each key is to the right of the diagonal of its row, (L, S); whether they are of one sequence, None: all are)."""
    i, j = arange(query.shape[2], device=query.device), arange(key.shape[2], device=query.device)
    if cu_seq_q is None:
        return j - i.unsqueeze(-1), None
    (of_i, from_end_i), (of_j, from_end_j) = [_in_sequence(n, cu.long()) for n, cu in ((i, cu_seq_q), (j, cu_seq_k))]
    return from_end_j - from_end_i.unsqueeze(-1), of_j == of_i.unsqueeze(-1)


def _in_sequence(n, cu):
    """The sequence of each place, and where it lies, counted from the end of the sequence."""
    of = (n.unsqueeze(-1) >= cu[1:-1]).sum(-1)
    return of, n - cu[1:][of]


def repeated(x, group):
    """A head of keys or values for every query head."""
    return x if group == 1 else x.unsqueeze(2).expand(-1, -1, group, -1, -1).reshape(x.shape[0], -1, *x.shape[2:])


def shared(x, group):
    """The opposite of `repeated`: sums over the query heads of a group."""
    return x if group == 1 else x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)


@attention_backward.samples
def attention_backward_samples(make):
    # derivatives for query, key and value hold where out and lse follow them, as they do in attention's own second-order test
    for *tensors, longest, window, scale, dropout, base in attention_samples(make):
        q, k, v, mask, slopes, *cu = [None if x is None else x.detach() for x in tensors]
        out, lse = attention(q, k, v, mask, slopes, *cu, longest, window, scale, dropout, base)
        yield make(*out.shape), q, k, v, mask, slopes, out, lse, *cu, longest, window, scale, dropout, base


@attention_backward.workloads
def attention_backward_workloads(make):
    for label, args, moved, flops in _workloads(make, 8, 5):
        def call(args=args):
            out, lse = attention(*args)
            return out, *args[:5], out, lse, *args[5:]

        yield label, call, moved, flops


# ------------------------------------------------------------------ its dropout
@op
def attention_keep(scores, dropout_p, seed, offset, base):
    """The factors of attention's dropout for scores (B, H, L, S): 0 with chance dropout_p, else 1 / (1 - dropout_p).

    >>> import tritorch as torch
    >>> attention_keep(torch.zeros(1, 1, 1, 4), 0.5, 0, 0, None)
    tensor([[[[0., 2., 2., 0.]]]])
    """
    return scores.shape, scores.dtype, scores.device


@attention_keep.impl("cpu")
def attention_keep_cpu(out, scores, dropout_p, seed, offset, base):
    L, S = out.shape[2:]
    for matrix, (b, h) in enumerate(np.ndindex(out.shape[:2])):
        out[b, h] = attention_cpu.kept(seed, offset, matrix, slice(0, L), L, S, dropout_p, out.dtype)


@attention_keep.impl("cuda", passes={"seed": int, "offset": int})
def attention_keep_cuda(out, scores, dropout_p, seed, offset, base):
    attention_cuda.keep(out, dropout_p, seed, offset, base)


@attention_keep.samples
def attention_keep_samples(make):
    yield make(2, 1, 3, 5, grad=False), 0.3, 11, 5, None
    yield make(1, 2, 2, 8, grad=False), 1.0, -3, 1 << 40, None
    yield make(1, 1, 0, 4, grad=False), 0.5, 0, 0, None


@attention_keep.workloads
def attention_keep_workloads(make):
    yield "16M fp32", lambda: (make(4, 4, 1024, 1024), 0.1, 0, 0, None), 1 << 26, 0
