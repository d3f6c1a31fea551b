"""What an operator does with DTensors: find its plan, bring the tensors to the placements it needs, run on the parts, and record the call
as one of whole tensors, so that gradients, whose rules are written in operators, are DTensors too."""
from math import prod

from tritorch.autograd import graph, modes, slices
from tritorch.autograd.graph import record
from tritorch.autograd.modes import no_grad, state
from tritorch.autograd.places import user_place
from tritorch.dispatch import _check_destination, _view
from tritorch.distributed.tensor import chance, exchange
from tritorch.distributed.tensor.dtensor import DTensor, Gathered, made, of_spec
from tritorch.distributed.tensor.lists import lists  # noqa: F401 the interpreter calls it
from tritorch.distributed.tensor.mixing import same_everywhere
from tritorch.distributed.tensor.placement_types import Partial
from tritorch.distributed.tensor.plans import Call
from tritorch.distributed.tensor.pointwise import rule_of
from tritorch.distributed.tensor.spec import DTensorSpec, TensorMeta, pieces, whole_on_all
from tritorch.dtype import get_default_dtype
from tritorch.errors import check
from tritorch.ops import create
from tritorch.shape import layout
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


class Way:
    """What calls with tensors of the same kinds and the same other arguments do: worked out once."""

    __slots__ = ("plan", "outs", "sizes", "view", "specs", "mesh")

    def __init__(self, plan, promise, mesh):
        self.plan, self.view, self.outs, self.mesh = plan, isinstance(promise, Tensor), outs_of(promise), mesh
        self.sizes = [pieces(shape, mesh, places)[0] for (shape, _), places in zip(self.outs, plan.outs)]
        # strides, too, are those of whole tensors: what depends on them must be the same on all processes
        strides = [promise.strides] if self.view else map(strides_of, (promise,) if type(promise) is tuple else promise)
        self.specs = [DTensorSpec(mesh, places, TensorMeta(layout(shape)[0], s, dtype))
                      for (shape, dtype), places, s in zip(self.outs, plan.outs, strides)]


def outs_of(promise):
    """[(shape, dtype)] of the results that an operator's body promises."""
    if isinstance(promise, Tensor):
        return [(promise.shape, promise.dtype)]
    return [p[:2] for p in ((promise,) if type(promise) is tuple else promise)]


def strides_of(promise):
    """The strides of a promised result, as `empty` would make them."""
    shape, usual, _ = layout(promise[0])
    strides, rule = (*promise[3:], None, None)[:2]
    return usual if strides is None or strides == usual else tuple(strides if rule is None else rule(shape, strides))


ways, KEPT = {}, 4096


def key_of(op, args):
    """What the way of a call depends on, None where that is not all DTensors and plain values, or is new each time."""
    key = [op, get_default_dtype()]
    for a in args:
        if isinstance(a, DTensor):
            spec = a.storage.spec
            key += spec.mesh, spec.placements, spec.tensor_meta
        elif isinstance(a, Tensor) or type(a) in (tuple, list) and any(isinstance(v, Tensor) for v in a):
            return None
        else:
            key += a.__class__, a
    return None if "seed" in op.names or "dropout" in op.names else tuple(key)


def way_of(op, args):
    """(the way of a call, its tensors as DTensors, its arguments)."""
    key = key_of(op, args)
    try:
        found = ways.get(key)
    except TypeError:                                                    # a list among the arguments
        key = found = None
    given = tensors_of(args)
    if found is not None and found.mesh is given[0].storage.spec.mesh:   # an equal one may be of another world, whose groups have ended
        return found, given, args
    mesh = mesh_of(op.__name__, given)
    args = chance.agreed(op, args, mesh, given[0].device)
    promise = op.body(*args)
    tensors = spread_out(op.__name__, given, mesh)
    found = Way(rule_of(op)(Call(op, args, tensors, outs_of(promise), mesh)), promise, mesh)
    if key is not None:
        if len(ways) >= KEPT:
            ways.clear()
        ways[key] = found
    return found, tensors, args


def result(op, args, tensors, way, mesh):
    """The results, without history."""
    plan, was = way.plan, state.grad
    state.grad = False
    try:
        parts = [x.storage.local if x.storage.spec.placements == need else exchange.moved(
            x.storage.local, mesh, x.storage.spec.placements, need, x.shape) for x, need in zip(tensors, plan.needs)]
        found = None
        if 0 in map(prod, way.sizes) or any(0 in x.shape for x in parts):
            found = _of_nothing(op, tensors, way, parts, mesh)
        if found is None and plan.run is None:
            found = op(*put_in(args, parts))
        elif found is None:
            found = plan.run(Call(op, args, tensors, way.outs, mesh), plan, parts)
    finally:
        state.grad = was
    found = found if isinstance(found, (tuple, list)) else (found,)
    return [_finished(way, k, x) for k, x in enumerate(found)]


def _finished(way, k, local):
    """The DTensor of this process's part of a result."""
    spec = way.specs[k]
    assert local.shape == way.sizes[k] and local.dtype is spec.tensor_meta.dtype, (way.outs[k], local.shape, way.sizes[k], spec)
    return of_spec(local if local.base is None else local.detach(), spec)


def _of_nothing(op, tensors, way, parts, mesh):
    """The results of a process that has no element of a tensor, if they have none either or are shares of a sum: implementations need not
    know of all kinds of nothing."""
    plan = way.plan
    lacks = any(not x.numel() and whole.numel() for x, whole in zip(parts, tensors)) and not any(Partial() in p for p in plan.needs)
    if all(not prod(size) or lacks and plan.run is None and Partial() in places for size, places in zip(way.sizes, plan.outs)):
        device = parts[0].device if parts else mesh.device_type
        return [create.zeros(size, dtype=dtype, device=device) for size, (_, dtype) in zip(way.sizes, way.outs)]
    return None


def call(op, args):
    """A call that makes its results."""
    way, tensors, args = way_of(op, args)
    outs = result(op, args, tensors, way, tensors[0].storage.spec.mesh)
    if way.view:
        mine, source = outs[0].storage.local, tensors[0].storage
        stayed = source.spec.placements == way.plan.needs[0] and "_gathered" not in args[0].__dict__      # on all processes or on none
        if stayed and (mine.storage is source.local.storage or not mine.numel()):
            return _view(op, args, outs[0])
        if outs[0].numel():
            outs[0]._gathered = True
    if state.grad:
        record(op, args, outs)
    elif modes.inferred and state.inference:
        for out in outs:
            out._inference = True
    return outs[0] if len(op.returns) == 1 else tuple(outs)


def write(op, args, out):
    """A call in place or with out=."""
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for o in outs:
        if "_gathered" in o.__dict__:
            raise Gathered(f"{op.__name__}: expected a DTensor that has memory of its own, got a view whose elements came from other "
                           "processes, so that its base would not be written; use an operator that makes a new tensor")
    key = _key_of_write(op, args, outs)
    plan, tensors = written.get(key), None
    if plan is None:
        mesh = mesh_of(op.__name__, (*outs, *tensors_of(args)))
        args = chance.agreed(op, args, mesh, outs[0].device)
        promise = op.body(*args)
        _check(op, outs, args, promise)
        tensors = spread_out(op.__name__, tensors_of(args), mesh)
    node = slices.prepare(op, outs, args) if state.grad else None
    if node is not None and outs[0].base is not None:
        raise RuntimeError(f"{op.__name__}: expected a DTensor that is no view to write in where gradients are recorded, got a view; "
                           "use the operator that makes a new tensor")
    with no_grad():
        if plan is not None:
            _direct(op, args, tensors_of(args), outs, plan)
        else:
            plan = _written(Call(op, args, tensors, outs_of(promise), mesh), outs, promise)
            if key is not None and plan is not None:
                if len(written) >= KEPT:
                    written.clear()
                written[key] = plan
    writer = user_place()
    for o in outs:
        o.storage.version += 1
        o.storage.writer = writer
    if node is not None:
        slices.rebase(outs[0], node) if len(outs) == 1 else graph.hang(node, outs)
    return out


written = {}                                                             # plans of calls that write straight into the parts


def _key_of_write(op, args, outs):
    """What such a plan depends on, or None."""
    key = key_of(op, args)
    if key is None or not all(isinstance(o, DTensor) and not o._inference for o in outs):
        return None
    key = key, *[(o.storage.spec.mesh, o.storage.spec.placements, o.storage.spec.tensor_meta) for o in outs]
    try:
        hash(key)
    except TypeError:                                                    # a list among the arguments
        return None
    return key


def _check(op, outs, args, promise):
    for o, p in zip(outs, (promise,) if type(promise) is tuple else promise):
        if not (isinstance(o, Tensor) and o.shape == p[0] and o.dtype is p[1] and not o._inference):
            _check_destination(op, o, *p[:3], args)


def _direct(op, args, tensors, outs, plan):
    """Run on the parts into the parts of the destinations."""
    parts = [exchange.moved(x.storage.local, x.device_mesh, x.placements, need, x.shape) for x, need in zip(tensors, plan.needs)]
    parts_of_outs = [o.storage.local for o in outs]
    if any(x.numel() for x in parts_of_outs):
        op.into(parts_of_outs[0] if len(outs) == 1 else tuple(parts_of_outs), *put_in(args, parts))


def _written(seen, outs, promise):
    """Run into the destinations where a plan can give them what placements they have, and return it; else copy."""
    wanted = [o.placements if isinstance(o, DTensor) else whole_on_all(seen.mesh) for o in outs]
    rule = rule_of(seen.op)
    plan = rule(seen, wanted) if getattr(rule, "to_order", False) and all(isinstance(o, DTensor) for o in outs) else None
    if plan is not None and plan.run is None:
        _direct(seen.op, seen.args, seen.tensors, outs, plan)
        return plan
    way = Way(rule(seen), promise, seen.mesh)
    for o, new, places in zip(outs, result(seen.op, seen.args, seen.tensors, way, seen.mesh), wanted):
        target = o.storage.local if isinstance(o, DTensor) else o
        target.copy_(exchange.moved(new.storage.local, seen.mesh, new.placements, places, new.shape))
    return None
