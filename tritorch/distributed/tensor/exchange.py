"""Bringing a tensor from placements to others: which collectives, along which dims of the mesh. On local tensors, without gradients.

What is cut unevenly travels in pieces of the largest size: a dim of n rows cut for k processes is k · ceil(n / k) rows, of which the last
are not read.
"""
import math

from tritorch.autograd.modes import no_grad
from tritorch.distributed import collectives as dist
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.errors import check
from tritorch.ops import create, shaping
from tritorch.tensor import empty

OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN, "product": ReduceOp.PRODUCT}
watchers = []                                                            # functions (name of a collective, group) that are told of each


def tell(name, group):
    """A collective is done, or its like."""
    for watcher in watchers:
        watcher(name, group)


# ------------------------------------------------------------------ collectives on one dim of a tensor
def _rows_first(x, dim):
    return x if dim == 0 else x.movedim(dim, 0)


def _rows_back(x, dim):
    return x if dim == 0 else x.movedim(0, dim).contiguous()


def _padded(x, rows):
    """x with so many rows, the last of them unset, contiguous."""
    if x.shape[0] == rows:
        return x.contiguous()
    out = create.zeros(rows, *x.shape[1:], dtype=x.dtype, device=x.device)
    if x.shape[0]:
        out[:x.shape[0]].copy_(x)
    return out


def gather(x, group, dim, rows):
    """The pieces of all ranks along a dim, which has so many rows, one after the other."""
    most, x = -(-rows // group.size()), _rows_first(x, dim)
    out = empty((most * group.size(), *x.shape[1:]), x.dtype, x.device)
    if out.numel():
        tell("all_gather_into_tensor", group)
        dist.all_gather_into_tensor(out, _padded(x, most), group)
    return _rows_back(out if rows == out.shape[0] else out[:rows], dim)


def reduce(x, group, op):
    """The values of all ranks, reduced."""
    out = x.clone() if x.is_contiguous() else x.contiguous()
    if out.numel():
        tell("all_reduce", group)
        dist.all_reduce(out, OPS[op], group)
    return out


def joined_norm(x, group, power):
    """The norm of what all ranks have together, of the norm of what each has."""
    if math.isinf(power):
        return reduce(x, group, "max" if power > 0 else "min")
    return reduce(x, group, "sum") if power == 0 else reduce(x ** power, group, "sum") ** (1 / power)


def reduce_to_piece(x, group, dim, op):
    """This rank's piece along a dim of the values of all ranks, reduced."""
    rows, size, x = x.shape[dim], group.size(), _rows_first(x, dim)
    most = -(-rows // size)
    out = empty((most, *x.shape[1:]), x.dtype, x.device)
    if out.numel():
        tell("reduce_scatter_tensor", group)
        dist.reduce_scatter_tensor(out, _padded(x, most * size), OPS[op], group)
    mine = Shard.local_shard_size_and_offset(rows, size, group.rank())[0]
    return _rows_back(out if mine == most else out[:mine], dim)


def turn(x, group, old, new, rows):
    """A piece along the dim `old`, which has so many rows in all, for one along the dim `new`."""
    size, mine = group.size(), group.rank()
    kept = Shard.local_shard_size_and_offset(x.shape[new], size, mine)[0]
    parts = [piece(x, new, size, r).contiguous() for r in range(size)]
    shapes = []
    for r in range(size):
        shape = list(x.shape)
        shape[old], shape[new] = Shard.local_shard_size_and_offset(rows, size, r)[0], kept
        shapes.append(tuple(shape))
    given = shaping.cat([part.reshape(-1) for part in parts])
    counts = [math.prod(shape) for shape in shapes]
    got = empty((sum(counts),), x.dtype, x.device)
    tell("all_to_all_single", group)
    dist.all_to_all_single(got, given, counts, [part.numel() for part in parts], group)
    return shaping.cat([part.reshape(shape) for part, shape in zip(got.split(counts), shapes)], old)


def piece(x, dim, size, rank):
    """A view of the piece of a rank along a dim."""
    rows, first = Shard.local_shard_size_and_offset(x.shape[dim], size, rank)
    return x.narrow(dim, first, rows)


def shared(x, op, group):
    """Values whose reduction is x: of a sum equal shares, of whole numbers all on the first rank."""
    check(op != "product", "redistribute", "sum, avg, max or min for a tensor that each rank has", op)
    if op != "sum":
        return x
    return x / group.size() if x.dtype.has_gradients else x if group.rank() == 0 else create.zeros_like(x)


# ------------------------------------------------------------------ from placements to placements
@no_grad()
def moved(x, mesh, old, new, shape):
    """This process's part, x, of a tensor of that shape, under new placements. The result may be x itself, or share its memory."""
    place = mesh.get_coordinate()
    if old == new or place is None:
        return x
    old = list(old)
    for k in _opened(old, new):                                          # from the last mesh dim on: it cut last
        x = gather(x, mesh.get_group(k), old[k].dim, _rows(shape, mesh, old, k, old[k].dim, place))
        old[k] = Replicate()
    for k, (was, will) in enumerate(zip(list(old), new)):
        if was != will:
            x = _step(x, mesh.get_group(k), was, will, lambda k=k, was=was: _rows(shape, mesh, old, k, was.dim, place))
            old[k] = will
    return x


def _opened(old, new):
    """The mesh dims, last first, along which pieces have to be put together before anything else: they cut a dim of the tensor that an
    earlier mesh dim begins or ceases to cut."""
    return [k for k in reversed(range(len(old))) if type(old[k]) is Shard
            and any(old[j] != new[j] and old[k] in (old[j], new[j]) for j in range(k))]


def _rows(shape, mesh, placements, k, dim, place):
    """The rows of a dim that mesh dim k cuts: what the mesh dims before it have left."""
    rows = shape[dim]
    for j in range(k):
        if placements[j] == Shard(dim):
            rows = Shard.local_shard_size_and_offset(rows, mesh.shape[j], place[j])[0]
    return rows


def _step(x, group, was, will, rows):
    """One mesh dim from a placement to another."""
    if type(was) is Partial:
        if type(will) is Shard:
            return reduce_to_piece(x, group, will.dim, was.reduce_op)
        x = reduce(x, group, was.reduce_op)
        return shared(x, will.reduce_op, group) if type(will) is Partial else x
    if type(was) is Shard:
        if type(will) is Shard:
            return turn(x, group, was.dim, will.dim, rows())
        x = gather(x, group, was.dim, rows())
    if type(will) is Shard:
        return piece(x, will.dim, group.size(), group.rank()).contiguous()
    return shared(x, will.reduce_op, group) if type(will) is Partial else x
