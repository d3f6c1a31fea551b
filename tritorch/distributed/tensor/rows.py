"""Rules of operators that work along some dims of their tensors and may be cut along the others: reductions, softmax, norms, sorting."""
from math import prod

from tritorch.distributed.tensor import exchange
from tritorch.distributed.tensor.placement_types import Partial, Shard
from tritorch.distributed.tensor.plans import P, Plan, R, S, by_mesh_dim, full_pieces, rule
from tritorch.distributed.tensor.pointwise import sums
from tritorch.ops.cross_entropy import class_dim
from tritorch.ops.reduce import dims_of
from tritorch.shape import wrap_dim

# what joins the results of pieces of the reduced dims, by operator
JOINS = {"sum": "sum", "nansum": "sum", "count_nonzero": "sum", "mean": "avg", "amax": "max", "amin": "min", "prod": "product",
         "any": "max", "all": "min"}


def pieces_along(call, d, k=0):
    """How many pieces of a dim of a tensor there are."""
    x = call.tensors[k]
    return prod([n for n, p in zip(call.mesh.shape, x.placements) if p == S(d)])


def _joinable(call, d):
    """Whether this mesh dim cuts a reduced dim d such that the results of the pieces make the whole one."""
    how, rows, many = JOINS.get(call.op.__name__), call.tensors[0].shape[d], pieces_along(call, d)
    if how is None or call.tensors[0].placements[call.at] != S(d):
        return False
    even = rows > 0 and rows % many == 0
    if call.op.__name__ in ("any", "all"):
        return True
    return how in ("sum", "product") or even or how != "avg" and many == call.mesh.shape[call.at] and full_pieces(rows, many)


@by_mesh_dim
def reductions(call, n):
    """Of one tensor over some dims: what is cut along others stays so, what is cut along these is a part of the result."""
    x, name = call.tensors[0], call.op.__name__
    keep = "keepdim" in call.op.names and call["keepdim"]
    dims = dims_of(call["dim"], x.ndim, name)
    for d in call.cut():
        if d not in dims:
            yield [S(d)], [S(d if keep else d - sum(e < d for e in dims))] * len(call.outs)
        elif _joinable(call, d):
            yield [S(d)], [Partial(JOINS[name])]
    for p in sums(call):
        linear = name == "mean" or name == "sum" and p.reduce_op in ("sum", "avg")
        if linear and p.reduce_op in ("sum", "avg") or name in ("amax", "amin") and JOINS[name] == p.reduce_op:
            yield [p], [p]


rule(*"""sum nansum count_nonzero mean amax amin prod any all argmax argmin amin_amax max_along min_along variance deviation std_mean
    var_mean logsumexp""".split())(reductions)


@rule("vector_norm")
def vector_norm(call, wanted=None):
    """The norm of what each process has, and then the norm of these."""
    x, ndim, keep = call.tensors[0], call.tensors[0].ndim, call["keepdim"]
    dims = dims_of(call["dim"], ndim, "vector_norm")
    need = tuple([p if type(p) is Shard else R for p in x.placements])
    out = [R if p is R or p.dim in dims else S(p.dim if keep else p.dim - sum(e < p.dim for e in dims)) for p in need]
    return Plan([need], [tuple(out)], _joint_norm if any(p is not R and p.dim in dims for p in need) else None)


def _joint_norm(call, plan, parts):
    (x,), power, dims = parts, float(call["ord"]), dims_of(call["dim"], call.tensors[0].ndim, "vector_norm")
    kind = call.outs[0][1].compute
    if all(x.shape[d] for d in dims):
        out = call.op(x, power, call["dim"], call["keepdim"], None).to(kind)
    else:
        out = x.abs().sum(dims, keepdim=call["keepdim"]).to(kind) + (float("inf") if power == -float("inf") else 0.0)
    for k, p in enumerate(plan.needs[0]):
        if type(p) is Shard and p.dim in dims:
            out = exchange.joined_norm(out, call.mesh.get_group(k), power)
    return out.to(call.outs[0][1])


# ------------------------------------------------------------------ along one dim, which the result has too
def _along(call):
    dim = call["dims"] if "dims" in call.op.names else call["dim"]
    ndim = call.tensors[0].ndim
    return {wrap_dim(d, ndim, call.op.__name__) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))} if ndim else set()


@by_mesh_dim
def along_a_dim(call, n):
    """All tensors and results cut along the same dim, not the one that the operator works along."""
    along, ndim = _along(call), call.tensors[0].ndim
    for d in sorted({d for k in range(len(call.tensors)) for d in call.cut(k)} - along):
        if all(x.ndim == ndim for x in call.tensors):
            yield [S(d)] * len(call.tensors), [S(d)] * len(call.outs)


rule(*"""softmax log_softmax softmax_backward log_softmax_backward cumsum cumprod reverse_cumsum logcumsumexp cummax_pair cummin_pair
    sorted_first glu glu_backward flip_dims roll_dims linear_recurrence""".split())(along_a_dim)


@rule("gather", "pick", "scatter_add", "scatter_join", "scatter_write")
@by_mesh_dim
def places(call, n):
    """Elements that indices name along a dim: the others may be cut where all tensors have the same size."""
    x, along = call.tensors[0], _along(call)
    for d in sorted({d for k in range(len(call.tensors)) for d in call.cut(k)}):
        if all(t.ndim == x.ndim for t in call.tensors):
            if d not in along and all(t.shape[d] == x.shape[d] for t in call.tensors):
                yield [S(d)] * len(call.tensors), [S(d)]
            elif d in along and call.op.__name__ == "gather":
                yield call.given(index=S(d)), [S(d)]


@rule("index_select")
@by_mesh_dim
def selected(call, n):
    """Slices that an index names."""
    if not call["input"].ndim:
        return
    (along,) = _along(call)
    for d in call.cut():
        if d != along:
            yield call.given(input=S(d)), [S(d)]
    if call["index"].ndim and call.cut(1):
        yield call.given(index=S(0)), [S(along)]


@rule("index_add")
@by_mesh_dim
def added(call, n):
    """Slices that an index names, of the sum."""
    x, source = call["input"], call["source"]
    for d in sorted({*call.cut(0), *call.cut(2)} - _along(call)) if x.ndim == source.ndim else ():
        yield call.given(input=S(d), source=S(d)), [S(d)]


@rule("triangle")
@by_mesh_dim
def triangle(call, n):
    """Matrices: batches may be cut."""
    for d in call.cut():
        if d < call.tensors[0].ndim - 2:
            yield [S(d)], [S(d)]
    for p in sums(call):
        if p.reduce_op in ("sum", "avg"):
            yield [p], [p]


@rule("concatenated")
@by_mesh_dim
def joined(call, n):
    """Tensors one after the other: cut along another dim than that."""
    ndim = len(call.outs[0][0])
    (along,) = {wrap_dim(call["dim"], ndim, "cat")}
    if all(x.ndim == ndim for x in call.tensors):
        for d in sorted({d for k in range(len(call.tensors)) for d in call.cut(k)} - {along}):
            yield [S(d)] * len(call.tensors), [S(d)]
        for p in sums(call):
            yield [p] * len(call.tensors), [p]


@rule("constant_pad")
@by_mesh_dim
def padded(call, n):
    """The dims that get nothing may be cut."""
    x, pad = call.tensors[0], call["pad"]
    for d in call.cut():
        k = 2 * (x.ndim - 1 - d)
        if not any(pad[k:k + 2]):
            yield [S(d)], [S(d)]


# ------------------------------------------------------------------ norms of rows
def _leading(call):
    """The dims before those that are normalized."""
    x, statistics = call.tensors[1 if "g" in call.where else 0], "statistics" in (*call.op.names, *call.op.returns)
    if "normalized_shape" in call.op.names:
        return range(x.ndim - len(call["normalized_shape"]))
    return range(call["statistics"].ndim - 1 if statistics else call["rstd"].ndim)


@rule("layer_norm_rows", "rms_norm_rows")
@by_mesh_dim
def norms(call, n):
    """Rows may be on any process; parameters on all."""
    for d in call.cut():
        if d in _leading(call):
            yield call.given(input=S(d)), [S(d), S(d + (call.op.returns[1] == "statistics"))]


@rule("layer_norm_backward", "rms_norm_backward")
@by_mesh_dim
def norms_backward(call, n):
    """The gradients of parameters are sums over all rows."""
    for d in sorted({*call.cut(0), *call.cut(1)}):
        if d in _leading(call):
            yield call.given(g=S(d), input=S(d), statistics=S(d + 1), rstd=S(d)), [S(d), *[P] * (len(call.outs) - 1)]


@rule("group_norm_rows", "group_norm_backward")
@by_mesh_dim
def groups(call, n):
    """Samples may be on any process; the gradients of parameters are sums over them."""
    if any(0 in call.cut(k) for k in range(len(call.tensors))):
        back = "g" in call.where
        yield call.given(g=S(0), input=S(0), mean=S(0), rstd=S(0)), [S(0), P, P] if back else [S(0)] * 3


@rule("residual_norm", "residual_norm_backward")
@by_mesh_dim
def residuals(call, n):
    """As norms; with dropout all on each process."""
    if "p" in call.op.names and call["p"]:
        return
    back = "g" in call.where
    lead = call["mean"].ndim if back else call["input"].ndim - len(call["normalized_shape"])
    for d in sorted({d for k in range(2) for d in call.cut(k)}):
        if d < lead:
            if back:
                beside = {"g_sum": S(d)} if "g_sum" in call.where else {}
                yield call.given(g=S(d), **beside, total=S(d), mean=S(d), rstd=S(d)), [S(d), P, P]
            else:
                yield call.given(input=S(d), residual=S(d)), [S(d)] * 4


# ------------------------------------------------------------------ losses
@rule("nll_rows")
@by_mesh_dim
def losses(call, n):
    """Samples may be on any process."""
    x = call["input"]
    dim = class_dim(x)
    for d in sorted({*call.cut(call.where["input"]), *[e + (e >= dim) for e in call.cut(call.where["target"])]} - {dim}):
        row = S(d - (d > dim))
        yield call.given(input=S(d), target=row, gradient=row, lse=row), [S(d)] if "gradient" in call.where else [row] * len(call.outs)


@rule("nll_backward")
@by_mesh_dim
def losses_back(call, n):
    """The same for the gradient."""
    dim = min(call["target"].ndim, 1)
    for d in sorted({*call.cut(call.where["target"]), *call.cut(call.where["gradient"])}):
        yield call.given(target=S(d), gradient=S(d)), [S(d + (d >= dim))]


@rule("weighted_mean")
def weighted_mean(call, wanted=None):
    """The sums of what each process has, added up."""
    places = tuple([p if type(p) is Shard else R for p in call["loss"].placements])
    return Plan([places, places], [(R,) * call.mesh.ndim] * 2, _weighted_mean)


def _weighted_mean(call, plan, parts):
    loss, total = [x.sum(dtype=x.dtype.compute) for x in parts]
    for k, p in enumerate(plan.needs[0]):
        if type(p) is Shard:
            loss, total = [exchange.reduce(x, call.mesh.get_group(k), "sum") for x in (loss, total)]
    return loss / total, total


@rule("loss_of_all")
@by_mesh_dim
def loss_of_all(call, n):
    """The terms of what each process has; means of pieces of equal size."""
    for d in sorted({*call.cut(0), *call.cut(1)}):
        if not call["mean"]:
            yield [S(d), S(d)], [P]
        elif call.tensors[0].shape[d] and call.tensors[0].shape[d] % call.mesh.size() == 0:
            yield [S(d), S(d)], [Partial("avg")]
