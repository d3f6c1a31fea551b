"""Rules of views: which dims of the result come from which dims of the tensor. The parts are viewed, so that memory stays shared."""
from math import prod

from tritorch.distributed.tensor.placement_types import Partial, Shard
from tritorch.distributed.tensor.plans import Plan, R, S, rule
from tritorch.distributed.tensor.spec import pieces
from tritorch.shape import wrap_dim


def viewed(names, dims):
    """The rule of views: `dims(call)` is {dim of the tensor: dim of the result} of those that may stay cut. What is still to be reduced
    stays so."""
    def verb(run):
        @rule(*names.split())
        def plan(call, wanted=None):
            found, x = dims(call), call.tensors[0]
            need = tuple([p if type(p) is Partial or type(p) is Shard and p.dim in found else R for p in x.placements])
            out = tuple([S(found[p.dim]) if type(p) is Shard else p for p in need])
            return Plan([need], [out], run)

        return run

    return verb


def own_sizes(call, plan):
    """The sizes of this process's part of the result."""
    return pieces(call.outs[0][0], call.mesh, plan.outs[0])[0]


# ------------------------------------------------------------------ dims that only change places
def _others(call, *gone):
    """All dims of the tensor but those, in order."""
    keep = [d for d in range(call.tensors[0].ndim) if d not in gone]
    return {d: k for k, d in enumerate(keep)}


def _dim(call, name):
    return wrap_dim(call[name], call.tensors[0].ndim, call.op.__name__)


def _permuted(call):
    return {wrap_dim(d, call.tensors[0].ndim, "permute"): k for k, d in enumerate(call["dims"])}


def _transposed(call):
    ndim = call.tensors[0].ndim
    order = list(range(ndim))
    if ndim:
        a, b = _dim(call, "dim0"), _dim(call, "dim1")
        order[a], order[b] = b, a
    return {d: k for k, d in enumerate(order)}


def _same(call, plan, parts):
    """The same call on the part."""
    return call.op(parts[0], *call.args[1:])


viewed("permute_dims", _permuted)(_same)
viewed("transpose", _transposed)(_same)
viewed("select", lambda call: _others(call, _dim(call, "dim")))(_same)
viewed("unfold", lambda call: {d: d for d in range(call.tensors[0].ndim) if d != _dim(call, "dimension")})(_same)
viewed("part_of view_as_real", lambda call: _others(call))(_same)
viewed("view_as_complex", lambda call: _others(call, call.tensors[0].ndim - 1))(_same)


def _unsqueezed_dims(call):
    ndim = call.tensors[0].ndim
    at = wrap_dim(call["dim"], ndim + 1, "unsqueeze")
    return {d: d + (d >= at) for d in range(ndim)}


viewed("diagonal", lambda call: _others(call, _dim(call, "dim1"), _dim(call, "dim2")))(_same)
viewed("unsqueeze", _unsqueezed_dims)(_same)


def _squeezed_dims(call):
    x = call.tensors[0]
    return [d for d in [wrap_dim(d, x.ndim, "squeeze") for d in call["dims"]] if x.ndim and x.shape[d] == 1]


@viewed("squeeze_dims", lambda call: _others(call, *_squeezed_dims(call)))
def _squeezed(call, plan, parts):
    return call.op(parts[0], tuple(_squeezed_dims(call)))                # a part may have size 1 where the whole has not


def _sliced_dims(call):
    d, x = call["dim"], call.tensors[0]
    whole = (call["start"], call["stop"], call["step"]) == (0, x.shape[d], 1)
    return _others(call) if whole else {e: e for e in range(x.ndim) if e != d}


@viewed("slice_dim", _sliced_dims)
def _sliced(call, plan, parts):
    if call["dim"] in {p.dim for p in plan.needs[0] if type(p) is Shard}:
        return parts[0].detach()
    return call.op(parts[0], *call.args[1:])


def _expanded_dims(call):
    x, shape = call.tensors[0], call.outs[0][0]
    lead = len(shape) - x.ndim
    return {d: d + lead for d in range(x.ndim) if x.shape[d] == shape[d + lead]}


@viewed("expand_to", _expanded_dims)
def _expanded(call, plan, parts):
    return call.op(parts[0], own_sizes(call, plan))


def _retyped_dims(call):
    x, shape = call.tensors[0], call.outs[0][0]
    return {d: d for d in range(x.ndim) if x.shape == shape or d < x.ndim - 1}


@rule("view_as_dtype")
def retyped(call, wanted=None):
    """Other numbers in the same memory: nothing may be left to reduce."""
    found, x = _retyped_dims(call), call.tensors[0]
    need = tuple([p if type(p) is Shard and p.dim in found else R for p in x.placements])
    return Plan([need], [need], _same)


# ------------------------------------------------------------------ another shape
def groups_of(old, new):
    """Pairs of runs of dims, (of the old shape, of the new one), as short as can be, that have as many elements."""
    out, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        mine, theirs, a, b = [], [], 1, 1
        if i < len(old):
            mine, a, i = [i], old[i], i + 1
        if j < len(new):
            theirs, b, j = [j], new[j], j + 1
        while a != b:
            if (a < b or j >= len(new)) and i < len(old):
                mine.append(i)
                a, i = a * old[i], i + 1
            elif j < len(new):
                theirs.append(j)
                b, j = b * new[j], j + 1
            else:
                break
        out.append((mine, theirs))
    return out


def _reshaped_dims(call, x, shape):
    """{dim of the tensor: dim of the result} of those that stay cut: they lead their runs, and pieces of both begin alike."""
    found = {}
    if 0 in shape:
        return {d: d for d in range(x.ndim) if x.shape == shape}
    for mine, theirs in groups_of(x.shape, shape):
        mine, theirs = [d for d in mine if x.shape[d] != 1], [d for d in theirs if shape[d] != 1]
        if mine and theirs:
            d, e = mine[0], theirs[0]
            sizes = [n for n, p in zip(call.mesh.shape, x.placements) if p == S(d)]
            a, b = x.shape[d], shape[e]
            inner, outer = prod([x.shape[k] for k in mine[1:]]), prod([shape[k] for k in theirs[1:]])
            n = prod(sizes)
            even = a % n == 0 == b % n
            if a == b or even or len(sizes) == 1 and -(-a // n) * inner == -(-b // n) * outer:
                found[d] = e
    return found


@viewed("view_as_shape", lambda call: _reshaped_dims(call, call.tensors[0], call.outs[0][0]))
def _reshaped(call, plan, parts):
    return parts[0].reshape(own_sizes(call, plan))

