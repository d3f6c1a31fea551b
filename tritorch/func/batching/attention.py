"""Rules of attention and recurrent layers. Samples join the dim of batches."""
from tritorch.func.batching.calls import all_the_same, each, each_its_own, rule
from tritorch.func.batching.folding import fold, padded, repeated, unfold
from tritorch.ops import create
from tritorch.ops.compare import where

ROWS_OR_KEYS = "g", "gradient", "query", "key", "value", "out", "lse"


# ------------------------------------------------------------------ attention
@rule("attention", table=each_its_own)
@rule("attention")
def attention(call):
    """Samples are batches; where they share keys and values of several batches they are more query heads of each key head instead."""
    mask, shared, (batches, heads, *_) = call["attn_mask"], call.where[:4] == [True, False, False, False], call.sample("key").shape
    if shared and batches > 1 and heads and not call["dropout"][0] and (mask is None or mask.shape[-3:-2] in ((), (1,))):
        return _of_groups(call)
    return _attention(call)


@rule("attention_backward", table=each_its_own)
@rule("attention_backward")
def attention_backward(call):
    return _attention(call)


@rule("attention_backward_mask", table=each_its_own)
@rule("attention_backward_mask")
def attention_backward_mask(call):
    return _attention(call, "attn_mask")


@rule("attention_backward_slopes", table=each_its_own)
@rule("attention_backward_slopes")
def attention_backward_slopes(call):
    return _attention(call, "alibi_slopes")


@rule("attention_keep", table=each_its_own)
def attention_keep(call):
    return unfold(call.op(*call.put(scores=fold(call.all(0)))), call.size, call.promises[0][0])


@rule("attention_keep", table=all_the_same)
def one_keep(call):
    shape, dtype, device = call.promises[0]
    return repeated(call.op(*call.put(scores=create.empty(shape, dtype=dtype, device=device))), call.size)


def _attention(call, own=None):
    """The results; `own`: what each sample has a gradient of, so that it has one of its own."""
    if call["dropout"][0] and not call.level.draws(call.op, call.given):
        return each(call)                                                # the same numbers for all
    if call["longest"] is None:
        return _of_batches(call, own)
    if not call.differs("cu_seq_q") and not call.differs("cu_seq_k"):
        return _of_heads(call, own)
    return each(call) if own or call.differs("alibi_slopes") else _of_rows(call)


def _put(call, dim, **changed):
    """The arguments with what has rows or keys folded in a dim."""
    folded = {name: fold(call.all(k), dim) for k, name in enumerate(call.op.names) if name in ROWS_OR_KEYS}
    return call.put(**folded, **changed)


def _results(call, made, shape_of):
    made = made if type(made) is tuple else (made,)
    return tuple([shape_of(x, promise[0]) for x, promise in zip(made, call.promises)])


def _of_batches(call, own):
    """(size · B, H, L, E)."""
    size, batch, dropout = call.size, call.sample("query").shape[0], call["dropout"]
    added = {name: _added(call, name, rank, batch, name == own) for name, rank in (("attn_mask", 4), ("alibi_slopes", 2))}
    if dropout[0]:
        added["dropout"] = (*dropout[:2], dropout[2].outside(call.level))
    made = call.op(*_put(call, 0, **added))
    if own is None:
        return _results(call, made, lambda x, shape: unfold(x, size, shape))
    shape, dtype = call.promises[0][:2]
    made = made.reshape(size, batch, *made.shape[1:])
    if len(shape) < (4 if own == "attn_mask" else 2) or shape[0] != batch:                   # one for all batches of a sample
        made = made.sum(1, dtype=dtype.compute).to(dtype)
    return made.reshape(size, *shape)


def _added(call, name, rank, batch, own):
    """A mask or slopes for all batches of all samples."""
    x, size = call[name], call.size
    if x is None:
        return None
    if not call.differs(name) and not own:
        if len(x.shape) < rank or x.shape[0] != batch:
            return x
        if batch == 1:
            return x.reshape(x.shape[1:])
    x = padded(x if call.differs(name) else repeated(x, size), rank)
    return fold(x.expand(size, batch, *x.shape[2:]))


def _of_heads(call, own):
    """Packed sequences of the same lengths in all samples: (1, size · H, L, E)."""
    slopes = call["alibi_slopes"]
    if slopes is not None:
        slopes = call.all("alibi_slopes").reshape(call.size * slopes.shape[-1])
    made = call.op(*_put(call, 1, alibi_slopes=slopes))
    if own:
        return made.reshape(call.size, *call.promises[0][0])
    return _results(call, made, lambda x, shape: unfold(x, call.size, shape, 1))


def _of_rows(call):
    """Packed sequences of other lengths in each sample, one after the other: (1, H, size · L, E). What is in no sequence is between those
    of two samples."""
    size, ends, inside = call.size, {}, {}
    for name, of in (("cu_seq_q", "query"), ("cu_seq_k", "key")):
        length, cu = call.sample(of).shape[2], call.all(name).long()
        place = create.arange(length, device=cu.device)
        ends[name] = (cu + create.arange(size, device=cu.device).unsqueeze(1) * length).reshape(-1)
        inside[of] = (place >= cu[:, :1]) & (place < cu[:, -1:])
    made = call.op(*_put(call, 2, **ends))
    kinds = ["query", "key", "key"] if call.op.__name__ == "attention_backward" else ["query", "query"]
    empty = 0, float("-inf") if call.op.__name__ == "attention" else 0, 0
    found = []
    for x, promise, of, nothing in zip(made, call.promises, kinds, empty):
        seen = inside[of].reshape(size, 1, 1, -1)
        found.append(where(seen.unsqueeze(-1) if len(promise[0]) == 4 else seen, unfold(x, size, promise[0], 2), nothing))
    return tuple(found)


def _of_groups(call):
    """(B, size · H, L, E), the samples next to each other in the heads that share a key head; there is one mask for all heads."""
    size, slopes, (B, H), G = call.size, call["alibi_slopes"], call.sample("query").shape[:2], call["key"].shape[1]

    def gathered(x):                                                     # (size, B, H, …)
        x = x.reshape(size, B, G, H // G, *x.shape[3:]).movedim(0, 2)
        return x.reshape(B, size * H, *x.shape[4:])

    if slopes is not None:
        slopes = call.all("alibi_slopes")
        slopes = gathered(padded(slopes, 2).expand(size, B, H))
    made = call.op(*call.put(query=gathered(call["query"]), alibi_slopes=slopes))
    return _results(call, made, lambda x, shape: x.reshape(B, G, size, H // G, *shape[2:]).movedim(2, 0).reshape(size, *shape))


# ------------------------------------------------------------------ recurrent layers
@rule("recurrent_layer")
def recurrent_layer(call):
    """With one set of weights for all, samples are next to each other in the dim of sequences, so that in each step those that go on still
    come first. Layers with weights of their own are called one after the other."""
    weights = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
    return each(call) if any(map(call.differs, weights)) else _side_by_side(call, ("data", "h", "c"))


@rule("recurrent_layer_backward")
def recurrent_layer_backward(call):
    return each(call) if call.differs("weight_hh") else _side_by_side(call, [n for n in call.op.names[:9] if n != "weight_hh"])


def _side_by_side(call, names):
    size, changed = call.size, {}
    for name in names:
        x = call.all(name)
        if x is not None and len(x.shape) > 2:                           # others are empty: what only an LSTM has
            x = x.movedim(0, -2)
            changed[name] = x.reshape(*x.shape[:-3], x.shape[-3] * size, x.shape[-1])
    steps = call["steps"]
    made = call.op(*call.put(**changed, steps=steps if steps is None else tuple([n * size for n in steps])))
    return tuple([x.reshape(*shape[:-1], size, shape[-1]).movedim(-2, 0) if len(shape) > 1 else repeated(x, size)
                  for x, (shape, *_) in zip(made, call.promises)])
