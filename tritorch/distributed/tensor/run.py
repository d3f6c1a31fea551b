"""What an operator does with DTensors: find its plan, bring the tensors to the placements it needs, run on the parts, and record the call
as one of whole tensors, so that gradients, whose rules are written in operators, are DTensors too."""
from math import prod

from tritorch.autograd import graph, modes, slices
from tritorch.autograd.graph import record
from tritorch.autograd.modes import no_grad, state
from tritorch.autograd.places import user_place
from tritorch.dispatch import _check_destination, _view
from tritorch.distributed.tensor import chance, exchange
from tritorch.distributed.tensor.dtensor import DTensor, made
from tritorch.distributed.tensor.lists import lists  # noqa: F401 the interpreter calls it
from tritorch.distributed.tensor.mixing import same_everywhere
from tritorch.distributed.tensor.placement_types import Partial
from tritorch.distributed.tensor.plans import Call, rules, whole
from tritorch.distributed.tensor.spec import pieces, whole_on_all
from tritorch.errors import check
from tritorch.ops import create
from tritorch.tensor import Tensor

def tensors_of(args):
    """All tensors among arguments, in order."""
    out = []
    for a in args:
        if isinstance(a, Tensor):
            out.append(a)
        elif type(a) in (tuple, list):
            out += [v for v in a if isinstance(v, Tensor)]
    return out


def put_in(args, tensors):
    """The arguments with other tensors in the places of theirs."""
    rest = iter(tensors)
    return [next(rest) if isinstance(a, Tensor) else type(a)(next(rest) if isinstance(v, Tensor) else v for v in a)
            if type(a) in (tuple, list) else a for a in args]


def mesh_of(name, tensors):
    """The mesh of all DTensors among tensors."""
    found = None
    for x in tensors:
        if isinstance(x, DTensor):
            mesh = x.storage.spec.mesh
            if found is not None and found is not mesh and found != mesh:
                check(False, name, f"DTensors on one mesh, {found}", mesh)
            found = mesh
    return found


def spread_out(name, tensors, mesh):
    """Ordinary tensors among DTensors as DTensors that are whole on each process, if they are the same on all; others are refused."""
    out = []
    for x in tensors:
        if not isinstance(x, DTensor):
            if not same_everywhere(x):
                raise RuntimeError(f"{name}: got mixed tritorch.Tensor and DTensor, expected DTensors alone; use DTensor.from_local or "
                                   f"distribute_tensor for the tensor of shape {tuple(x.shape)}")
            x = made(x.detach(), mesh, whole_on_all(mesh), x.shape, x.strides)
        out.append(x)
    return out


def prepared(op, args):
    """(the call as rules see it, what the operator's body says)."""
    given = tensors_of(args)
    mesh = mesh_of(op.__name__, given)
    args = chance.agreed(op, args, mesh, given[0].device)
    promise = op.body(*args)
    view = isinstance(promise, Tensor)
    outs = [(promise.shape, promise.dtype)] if view else [p[:2] for p in ((promise,) if type(promise) is tuple else promise)]
    return Call(op, args, spread_out(op.__name__, given, mesh), outs, mesh), promise


def result(call, plan):
    """The results, without history."""
    with no_grad():
        parts = [exchange.moved(x.storage.local, call.mesh, x.placements, need, x.shape) for x, need in zip(call.tensors, plan.needs)]
        sizes = [pieces(shape, call.mesh, places)[0] for (shape, _), places in zip(call.outs, plan.outs)]
        found = None if all(map(prod, sizes)) and all(map(prod, [x.shape for x in parts])) else _of_nothing(call, plan, parts, sizes)
        if found is None:
            found = call.op(*put_in(call.args, parts)) if plan.run is None else plan.run(call, plan, parts)
    found = found if isinstance(found, (tuple, list)) else (found,)
    assert [x.shape for x in found] == sizes, (call.op.__name__, [x.shape for x in found], sizes, plan.needs, plan.outs)
    return [made(local.detach() if local.base is not None else local, call.mesh, places, shape)
            for local, (shape, _), places in zip(found, call.outs, plan.outs)]


def _of_nothing(call, plan, parts, sizes):
    """The results of a process that has no element of a tensor, if they have none either or are shares of a sum: implementations need not
    know of all kinds of nothing."""
    lacks = any(not x.numel() and whole.numel() for x, whole in zip(parts, call.tensors)) and not any(Partial() in p for p in plan.needs)
    if all(not prod(size) or lacks and plan.run is None and Partial() in places for size, places in zip(sizes, plan.outs)):
        device = parts[0].device if parts else call.mesh.device_type
        return [create.zeros(size, dtype=dtype, device=device) for size, (_, dtype) in zip(sizes, call.outs)]
    return None


def call(op, args):
    """A call that makes its results."""
    seen, promise = prepared(op, args)
    args = seen.args
    plan = rules.get(op.__name__, whole)(seen)
    outs = result(seen, plan)
    if isinstance(promise, Tensor) and outs[0].storage.local.storage is seen.tensors[0].storage.local.storage:
        return _view(op, args, outs[0])
    if state.grad:
        record(op, args, outs)
    elif modes.inferred and state.inference:
        for out in outs:
            out._inference = True
    return outs[0] if len(op.returns) == 1 else tuple(outs)


def write(op, args, out):
    """A call in place or with out=."""
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    mesh = mesh_of(op.__name__, (*outs, *tensors_of(args)))
    args = chance.agreed(op, args, mesh, outs[0].device)
    promise = op.body(*args)
    promises = (promise,) if type(promise) is tuple else promise
    for o, p in zip(outs, promises):
        if not (isinstance(o, Tensor) and o.shape == p[0] and o.dtype is p[1] and not o._inference):
            _check_destination(op, o, *p[:3], args)
    node = slices.prepare(op, outs, args) if state.grad else None
    if node is not None and outs[0].base is not None:
        raise RuntimeError(f"{op.__name__}: expected a DTensor that is no view to write in where gradients are recorded, got a view; "
                           "use the operator that makes a new tensor")
    seen = Call(op, args, spread_out(op.__name__, tensors_of(args), mesh), [p[:2] for p in promises], mesh)
    with no_grad():
        _written(seen, outs)
    writer = user_place()
    for o in outs:
        o.storage.version += 1
        o.storage.writer = writer
    if node is not None:
        slices.rebase(outs[0], node) if len(outs) == 1 else graph.hang(node, outs)
    return out


def _written(seen, outs):
    """Run on the parts into the parts of the destinations where the plan can give them what placements they have, else copy."""
    wanted = [o.placements if isinstance(o, DTensor) else whole_on_all(seen.mesh) for o in outs]
    direct = rules.get(seen.op.__name__, whole)
    plan = direct(seen, wanted) if getattr(direct, "to_order", False) and all(isinstance(o, DTensor) for o in outs) else None
    if plan is not None and plan.run is None:
        parts = [exchange.moved(x.storage.local, seen.mesh, x.placements, need, x.shape) for x, need in zip(seen.tensors, plan.needs)]
        locals_ = [o.storage.local for o in outs]
        seen.op.into(locals_[0] if len(outs) == 1 else tuple(locals_), *put_in(seen.args, parts))
        return
    for o, new, places in zip(outs, result(seen, direct(seen)), wanted):
        target = o.storage.local if isinstance(o, DTensor) else o
        target.copy_(exchange.moved(new.storage.local, seen.mesh, new.placements, places, new.shape))
