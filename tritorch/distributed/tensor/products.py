"""Rules of products, layers, convolutions and attention."""
from tritorch.distributed.tensor.placement_types import Partial, Shard
from tritorch.distributed.tensor.plans import P, Plan, R, S, by_mesh_dim, chosen, rule
from tritorch.distributed.tensor.pointwise import shifted, sums
from tritorch.distributed.tensor.spec import pieces
from tritorch.ops.attention_cpu import counters


def _cut_anywhere(call):
    """Whether there is anything but whole tensors."""
    return any(type(p) is not type(R) for x in call.tensors for p in x.placements)


def _linear_sums(call):
    """The reductions under which a sum of products is the product of sums."""
    return [p for p in sums(call) if p.reduce_op in ("sum", "avg")]


def to_order(names):
    """A rule that also says how to write into a destination of given placements."""
    def verb(fn):
        fn.to_order = True
        return rule(*names.split())(fn)

    return verb


# ------------------------------------------------------------------ matrices
@to_order("matmul addmm")
@by_mesh_dim
def products(call, n):
    """Rows, columns, matrices of a batch, or pieces of what is summed."""
    a, b = ("input", "other") if call.op.__name__ == "matmul" else ("mat1", "mat2")
    x, y, shape = call[a], call[b], call.outs[0][0]
    added = call["input"] if a == "mat1" and call["input"] is not None else None

    def way(out, **given):
        if added is not None:
            given["input"] = out if type(out) is Partial else shifted(added, shape, out.dim)
        return call.given(**given), [out]

    last = len(shape) - 1
    if not _cut_anywhere(call):
        return
    for d in range(last - 1):
        if shape[d] > 1:
            yield way(S(d), **{a: shifted(x, (*shape[:-2], *x.shape[-2:]), d), b: shifted(y, (*shape[:-2], *y.shape[-2:]), d)})
    yield way(S(last - 1), **{a: S(x.ndim - 2)})
    yield way(S(last), **{b: S(y.ndim - 1)})
    yield way(P, **{a: S(x.ndim - 1), b: S(y.ndim - 2)})
    for p in _linear_sums(call):
        yield way(p, **{a: p})
        yield way(p, **{b: p})


# ------------------------------------------------------------------ layers
def _bias(call, name, shape, out):
    """The placement of what is added to a result: of a sum over processes each has a share."""
    bias = call[name]
    return R if bias is None else out if type(out) is Partial else shifted(bias, shape, out.dim)


@to_order("linear linear_activation linear_residual")
@by_mesh_dim
def layers(call, n):
    """Rows, features of the result, or pieces of what is summed."""
    if not _cut_anywhere(call) or call.op.__name__ == "linear_residual" and call["p"]:
        return
    shape, results = call.outs[0][0], len(call.outs)

    def way(out, **given):
        for name in ("bias", "residual"):
            if name in call.where:
                given[name] = _bias(call, name, shape, out)
        return call.given(**given), [out] * results

    last = len(shape) - 1
    for d in range(last):
        if d in call.cut():
            yield way(S(d), input=S(d))
    yield way(S(last), weight=S(0))
    if call.op.__name__ != "linear_activation":
        yield way(P, input=S(last), weight=S(1))
        for p in _linear_sums(call):
            yield way(p, input=p)
            yield way(p, weight=p)


@rule("linear_slope")
@by_mesh_dim
def slopes(call, n):
    """Rows, or features of the result."""
    last = len(call.outs[0][0]) - 1
    for d in sorted({*call.cut(0), *call.cut(call.where["pre"])}):
        if d < last:
            yield call.given(g_out=S(d), pre=S(d)), [S(d)]
    if _cut_anywhere(call):
        yield call.given(weight=S(1), pre=S(last)), [S(last)]


@to_order("linear_gradients")
@by_mesh_dim
def layer_gradients(call, n):
    """Sums over rows, of which each process may have some; features of either side."""
    if not _cut_anywhere(call):
        return
    yield call.given(g=S(0), input=S(0), weight_total=P, bias_total=P), [P, P]
    yield call.given(g=S(1), weight_total=S(0), bias_total=S(0)), [S(0), S(0)]
    yield call.given(input=S(1), weight_total=S(1)), [S(1), R]
    for p in _linear_sums(call):
        yield call.given(g=p, weight_total=p, bias_total=p), [p, p]


@rule("feed_forward_layers")
@by_mesh_dim
def feed_forward(call, n):
    """Rows; or the first layer by features of its result, and the second by those of its input."""
    if not _cut_anywhere(call):
        return
    last = len(call.outs[0][0]) - 1
    for d in call.cut():
        if d < last:
            given = {name: shifted(call[name], (*call.outs[0][0][:-1], call[name].shape[-1]), d)
                     for name in ("bias1", "bias2") if name in call.where}
            yield call.given(input=S(d), **given), [S(d)] * 3
    bias1 = call["bias1"]
    yield call.given(weight1=S(0), bias1=R if bias1 is None else S(bias1.ndim - 1), weight2=S(1), bias2=P), [P, S(last), S(last)]


@rule("table_rows")
def table(call, wanted=None):
    """A table cut by rows gives zeros for the rows of others, to be summed; else indices or features may be cut."""
    return _table(call, wanted) if _row_cut(call) is None else _table_by_rows(call)


def _row_cut(call):
    """The mesh dim that cuts the rows of the table, if one alone does."""
    found = [k for k, p in enumerate(call["weight"].placements) if p == S(0)]
    return found[0] if len(found) == 1 and call["padding_idx"] is not None and not call["by_freq"] else None


@by_mesh_dim
def _table(call, n):
    for d in call.cut(1):
        yield call.given(index=S(d)), [S(d)]
    if 1 in call.cut(0):
        yield call.given(weight=S(1)), [S(call["index"].ndim)]


def _table_by_rows(call):
    """Along one mesh dim each process looks up the rows that it has."""
    at, needs, index_needs, outs = _row_cut(call), [], [], []
    for k, (p, q) in enumerate(zip(call["weight"].placements, call["index"].placements)):
        keeps = k != at and type(q) is Shard
        needs.append(S(0) if k == at else R if keeps else p if type(p) is Shard else R)
        index_needs.append(q if keeps else R)
        outs.append(P if k == at else q if keeps else S(call["index"].ndim) if type(p) is Shard else R)
    return Plan([tuple(needs), tuple(index_needs)], [tuple(outs)], _looked_up)


def _looked_up(call, plan, parts):
    weight, index = parts
    at, place = _row_cut(call), call.mesh.get_coordinate()
    rows, first = Shard.local_shard_size_and_offset(call["weight"].shape[0], call.mesh.shape[at], place[at])
    mine = (index >= first) & (index < first + rows)
    if not rows:
        return weight.new_zeros(*index.shape, weight.shape[1])
    out = call.op(weight, (index - first).clamp(0, rows - 1), -1, False)
    return out * mine.unsqueeze(-1).to(out.dtype)


@rule("table_gradient")
@by_mesh_dim
def table_gradient(call, n):
    """A sum over the indices that each process has; features may be cut."""
    for d in sorted({*call.cut(0), *call.cut(1)}):
        if d < call["index"].ndim:
            yield [S(d), S(d)], [P]
        else:
            yield [S(d), R], [S(1)]
    for p in _linear_sums(call):
        yield call.given(rows=p), [p]


# ------------------------------------------------------------------ images
@rule("convolution")
@by_mesh_dim
def convolution(call, n):
    """Images, or channels of the result."""
    if 0 in call.cut():
        yield call.given(input=S(0)), [S(0)]
    if call["groups"] == 1 and 0 in call.cut(1):
        yield call.given(weight=S(0), bias=S(0)), [S(1)]


@rule("convolution_input")
@by_mesh_dim
def convolution_input(call, n):
    """Images; or a sum over channels."""
    if 0 in call.cut():
        yield call.given(gradient=S(0)), [S(0)]
    if call["groups"] == 1 and (0 in call.cut(1) or 1 in call.cut(0)):
        yield call.given(gradient=S(1), weight=S(0)), [P]


@rule("convolution_weight")
@by_mesh_dim
def convolution_weight(call, n):
    """A sum over images; or channels of the gradient."""
    if 0 in call.cut(0) or 0 in call.cut(1):
        yield [S(0), S(0)], [P]
    if call["groups"] == 1 and 1 in call.cut(0):
        yield [S(1), R], [S(0)]


@rule(*"""avg_pool avg_pool_input max_pool max_pool_input max_pool_values avg_pool_volume avg_pool_volume_input max_pool_volume
    max_pool_volume_input max_pool_volume_values resize resize_back edge_pad edge_pad_back unfold_images fold_images""".split())
@by_mesh_dim
def pools(call, n):
    """Images and, but where they are taken apart to blocks, channels."""
    for d in (0,) if call.op.__name__ in ("unfold_images", "fold_images") else (0, 1):
        if any(d in call.cut(k) for k in range(len(call.tensors))):
            yield [S(d)] * len(call.tensors), [S(d)] * len(call.outs)


# ------------------------------------------------------------------ attention
def _attends(call, n):
    """Placements along which attention may be cut: (of q, k, v; of the mask and slopes; the dim)."""
    q, k = call["query"], call["key"]
    if call["cu_seq_q"] is not None:
        return
    mask, slopes = call["attn_mask"], call["alibi_slopes"]
    shape = (*q.shape[:3], k.shape[2])
    for d in (0, 1, 2):
        uneven = d == 1 and (q.shape[1] != k.shape[1] and (q.shape[1] % call.mesh.size() or k.shape[1] % call.mesh.size()))
        moved = d == 2 and (tuple(call["window"]) != (None, None) or slopes is not None or call["dropout"][0] > 0)
        if not uneven and not moved and shape[d] > 1:
            yield d, {"attn_mask": R if mask is None else shifted(mask, shape, d),
                      "alibi_slopes": R if slopes is None else shifted(slopes, q.shape[:2], d)}


def _attention(call, n):
    for d, others in _attends(call, n) if _cut_anywhere(call) else ():
        keys = R if d == 2 else S(d)
        if "g" in call.where:
            yield call.given(g=S(d), query=S(d), key=keys, value=keys, out=S(d), lse=S(d), **others), [S(d), *[P if d == 2 else S(d)] * 2]
        else:
            yield call.given(query=S(d), key=keys, value=keys, **others), [S(d), S(d)]


def _dropped(call, plan, parts):
    """Each process drops by numbers that no other one takes; where samples are cut, by those that whole tensors would take."""
    (batch, *_), offsets = pieces(call["query"].shape, call.mesh, plan.needs[call.where["query"]])
    (_, heads, rows, _), keys = call["query"].shape, call["key"].shape[2]
    p, seed, offset = call["dropout"]
    shift = (offsets[0] * heads + offsets[1] * batch) * counters(rows, keys)
    args, rest = list(call.args), iter(parts)
    args[call.op.names.index("dropout")] = p, seed, offset + shift
    return call.op(*[next(rest) if name in call.where else a for name, a in zip(call.op.names, args)])


@rule("attention", "attention_backward")
def attention(call, wanted=None):
    """Samples, heads, or, where each row may attend to all keys, rows; the gradients of keys are then sums over rows."""
    return chosen(call, lambda n: _attention(call, n), _dropped if call["dropout"][0] else None, wanted)


@rule("rotary_embedding")
@by_mesh_dim
def rotary(call, n):
    """Any dim but the features."""
    x = call["input"]
    for d in call.cut():
        if d < x.ndim - 1:
            given = {name: shifted(call[name], (*x.shape[:-1], call[name].shape[-1]), d) for name in ("cos", "sin")}
            yield call.given(input=S(d), **given), [S(d)]
    for p in _linear_sums(call):
        yield call.given(input=p), [p]
