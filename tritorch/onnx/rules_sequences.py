"""What models of sequences are made of: attention, recurrent layers."""
from tritorch.dtype import types
from tritorch.onnx.rules import rule
from tritorch.onnx.rules_shapes import plain
from tritorch.tracing.sizes import Baked

MINUS_INFINITY = float("-inf")


@rule("attention")
def attention(g, query, key, value, attn_mask, alibi_slopes, cu_seq_q, cu_seq_k, longest, window, scale, dropout, base):
    """softmax(query @ keyᵀ · scale + mask) @ value; rows that may attend to nothing are 0."""
    if longest is not None or dropout[0]:
        raise Baked("packed sequences" if longest is not None else "dropout")
    k, v = _repeated(g, key, query), _repeated(g, value, query)
    scores = g.op("MatMul", g.op("Mul", query, g.like(scale)), g.permuted(k, [0, 1, 3, 2]))
    kept = _window(g, query.shape[2], key.shape[2], window)
    if alibi_slopes is not None:
        apart = g.cast(g.op("Abs", _difference(g, query.shape[2], key.shape[2])), query.dtype)
        slopes = g.op("Reshape", g.like(alibi_slopes), g.constant([0, -1, 1, 1] if alibi_slopes.ndim == 2 else [1, -1, 1, 1]))
        scores = g.op("Sub", scores, g.op("Mul", slopes, apart))
    if attn_mask is not None and attn_mask.dtype is not types.bool:
        scores = g.op("Add", scores, g.like(attn_mask))
    elif attn_mask is not None:
        kept = g.x(attn_mask) if kept is None else g.op("And", kept, attn_mask)
    if kept is not None:
        scores = g.op("Where", kept, scores, g.like(MINUS_INFINITY))
    weights = g.op("Softmax", scores, axis=-1)
    if attn_mask is not None or window[0] is not None:                   # else a row attends at least to the first key
        nothing = g.op("Equal", g.reduced("ReduceMax", scores, [3], True), g.like(MINUS_INFINITY))
        weights = g.op("Where", nothing, g.like(0.0), weights)
    return g.op("MatMul", weights, v), None


def _repeated(g, x, query):
    """Heads of keys and values as often as queries share them."""
    B, G, S, E = x.shape
    H = query.shape[1]
    if G == H:
        return g.x(x)
    wide = g.op("Expand", g.unsqueezed(x, 2), g.sizes([B, G, H // G, S, E]))
    return g.reshape(wide, [B, H, S, E]) if sum(map(plain, (B, S))) else g.op("Reshape", wide, g.op("Concat", g.sizes([B, H, S]),
                                                                                                 g.constant([E]), axis=0))


def _difference(g, L, S):
    """Key minus row, (L, S)."""
    rows, keys = (g.op("Range", g.constant(0), g.number(n, types.int64), g.constant(1)) for n in (L, S))
    return g.op("Sub", g.unsqueezed(keys, 0), g.unsqueezed(rows, 1))


def _window(g, L, S, window):
    """Which keys a row may attend to, or None for all."""
    left, right = window
    if left is None and right is None:
        return None
    apart = _difference(g, L, S)
    kept = None if right is None else g.op("LessOrEqual", apart, g.number(right, types.int64))
    if left is not None:
        before = g.op("GreaterOrEqual", apart, g.op("Neg", g.number(left, types.int64)))
        kept = before if kept is None else g.op("And", kept, before)
    return kept


# gates in ONNX's order, by their places in PyTorch's; the operator and its attributes
LAYERS = {"LSTM": ((0, 3, 1, 2), "LSTM", {}), "GRU": ((1, 0, 2), "GRU", {"linear_before_reset": 1}),
          "RNN_TANH": ((0,), "RNN", {"activations": ["Tanh"]}), "RNN_RELU": ((0,), "RNN", {"activations": ["Relu"]})}


@rule("recurrent_layer")
def recurrent_layer(g, data, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h=None, c=None, mode="LSTM", steps=None, reverse=False):
    """ONNX's layer of the same name, forward; the other way on what is turned around. Rows of one step are a cell."""
    if steps is not None and len(steps) > 1:
        raise Baked("packed sequences")
    order, kind, options = LAYERS[mode]
    hidden = int(weight_hh.shape[1])

    def ordered(p):
        parts = [g.sliced(g.like(p), 0, k * hidden, (k + 1) * hidden) for k in order]
        return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=0)

    zeros = None if bias_ih is not None and bias_hh is not None else g.constant([0.0] * len(order) * hidden, data.dtype)
    bias = None
    if bias_ih is not None or bias_hh is not None:
        bias = g.unsqueezed(g.op("Concat", *[zeros if p is None else ordered(p) for p in (bias_ih, bias_hh)], axis=0), 0)
    x = _turned(g, data) if reverse else g.x(data) if steps is None else g.unsqueezed(data, 0)
    states = [None if s is None else g.unsqueezed(s, 0) for s in (h, c)][:2 if mode == "LSTM" else 1]
    outs = g.op(kind, x, g.unsqueezed(ordered(weight_ih), 0), g.unsqueezed(ordered(weight_hh), 0), bias, None, *states,
                outputs=3 if mode == "LSTM" else 2, hidden_size=hidden, **options)
    out = g.squeezed(outs[0], *((1,) if steps is None else (0, 1)))
    return (_turned(g, out) if reverse else out), g.squeezed(outs[1], 0), g.squeezed(outs[2], 0) if mode == "LSTM" else None, None, None


def _turned(g, x):
    return g.op("Slice", x, g.constant([-1]), g.constant([-2**63 + 1]), g.constant([0]), g.constant([-1]))
