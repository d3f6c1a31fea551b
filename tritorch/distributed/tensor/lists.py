"""Operators on lists of tensors: optimizers' steps and norms of gradients, on the parts of DTensors."""
import functools
import math

from tritorch.autograd.modes import no_grad
from tritorch.distributed import collectives as dist
from tritorch.distributed.options import ReduceOp
from tritorch.distributed.tensor import exchange
from tritorch.distributed.tensor.dtensor import DTensor, made, redistributed
from tritorch.distributed.tensor.placement_types import Partial, Replicate, Shard
from tritorch.distributed.tensor.spec import whole_on_all
from tritorch.errors import check
from tritorch.ops import create


@no_grad()
def lists(op, args):
    """Run an operator of lists on the parts. Rows are placed as their first tensor is."""
    if op.__name__ == "norm_parts":
        return norms(op, *args)
    args = [redistributed(a, whole_on_all(a.device_mesh)).storage.local if isinstance(a, DTensor) else a for a in args]
    columns, meshes = [k for k in op.columns if args[k] is not None], {}
    rows = [_row(op.__name__, row, [k in op.writes for k in columns], meshes) for row in zip(*[args[k] for k in columns])]
    places = [k for k, row in enumerate(rows) if row[0].numel()]         # kernels need not know of empty parts
    given = list(args)
    for k, a in enumerate(args):
        if k in columns:
            given[k] = [rows[i][columns.index(k)] for i in places]
        elif type(a) is list and len(a) == len(rows):
            given[k] = [a[i] for i in places]
    op(*given)
    if op.__name__ == "scale_by" and args[2] is not None:                # whether an element was infinite anywhere
        for mesh in meshes.values():
            for k in range(mesh.ndim) if mesh.get_coordinate() is not None else ():
                exchange.tell("all_reduce", mesh.get_group(k))
                dist.all_reduce(args[2], ReduceOp.MAX, mesh.get_group(k))
    return None


def _row(name, row, written, meshes):
    """The parts of tensors that belong together."""
    first = row[0]
    if not any(isinstance(x, DTensor) for x in row):
        return row
    check(isinstance(first, DTensor), name, "DTensors beside a DTensor alone", f"a tensor of shape {tuple(first.shape)}")
    factors = name in ("scale_by", "clip_by_norm")                       # what they multiply may still be to be summed up
    check(not first._spec.sums or factors and not {"max", "min", "product"} & {getattr(p, "reduce_op", None) for p in first.placements},
          name, "DTensors that are Shard or Replicate", first.placements)
    meshes[id(first.device_mesh)] = first.device_mesh
    out = []
    for x, writes in zip(row, written):
        if not isinstance(x, DTensor):
            check(not writes, name, f"a DTensor placed {first.placements}", f"a tensor of shape {tuple(x.shape)}")
            x = made(x.detach(), first.device_mesh, whole_on_all(first.device_mesh), x.shape, x.strides)
        check(not writes or x.placements == first.placements, name, f"a DTensor placed {first.placements}", x.placements)
        out.append(redistributed(x, first.placements).storage.local)
    return tuple(out)


# ------------------------------------------------------------------ the norm of many tensors
def norms(op, tensors, power, parts):
    """For each way in which they are cut, the norm of DTensors, a DTensor of one element where all are on one mesh."""
    groups, meshes = {}, []
    for x in tensors:
        if isinstance(x, DTensor):
            x = redistributed(x, [Replicate() if type(p) is Partial else p for p in x.placements])
            mesh = next((m for m in meshes if m == x.device_mesh), None)
            if mesh is None:
                meshes.append(mesh := x.device_mesh)
            cut = tuple(k for k, p in enumerate(x.placements) if type(p) is Shard)
            groups.setdefault((meshes.index(mesh), cut), []).append(x.storage.local)
        else:
            groups.setdefault((None, ()), []).append(x)
    one = len(meshes) == 1 and (None, ()) not in groups
    for (place, cut), some in groups.items():
        found = _norm(op, some, power)
        mesh = None if place is None else meshes[place]
        for k in cut if mesh is not None and mesh.get_coordinate() is not None else ():
            found = exchange.joined_norm(found, mesh.get_group(k), power)
        parts.setdefault(found.storage.device, []).append(made(found, mesh, whole_on_all(mesh), ()) if one else found)


def _norm(op, tensors, power):
    """The norm of all elements of the parts, of which there may be none."""
    full, found = [x for x in tensors if x.numel()], {}
    if full:
        op(full, power, found)
    scalars = [x.to(tensors[0].device) for some in found.values() for x in some]
    if len(scalars) == 1:
        return scalars[0]
    if not scalars:
        return create.full((), math.inf if power == -math.inf else 0.0, dtype=tensors[0].dtype.compute, device=tensors[0].device)
    return functools.reduce(lambda x, y: _both(x, y, power), scalars)


def _both(x, y, power):
    """The norm of two norms."""
    if math.isinf(power):
        return x.maximum(y) if power > 0 else x.minimum(y)
    return x + y if power == 0 else (x ** power + y ** power) ** (1 / power)
