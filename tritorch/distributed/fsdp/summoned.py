"""Whole parameters outside of forward and backward, in the dtype of their shards."""
import contextlib

from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.device import cpu
from tritorch.distributed.tensor.dtensor import made
from tritorch.errors import check
from tritorch.nn.parameter import Parameter
from tritorch.ops.create import empty
from tritorch.shape import layout
from tritorch.tensor import strided


@no_grad()
def wholes(group):
    """{cut: its whole parameter}, in new memory: one all-gather for the parameters of each dtype."""
    found, ranks = {}, group.meshes.size
    for flat in group.flats:
        kind, count, rank = flat.memory.dtype, flat.count, group.meshes.rank
        buffer = empty(ranks * count, dtype=kind, device=group.device)
        own = buffer.narrow(0, count * rank, count)
        own.copy_(flat.memory)
        whole = buffer
        if ranks > 1:
            dist.all_gather_into_tensor(buffer, own, group.meshes.shards)
            whole = empty(ranks * count, dtype=kind, device=group.device)
        for cut in flat.cuts:
            if ranks > 1:
                cut.whole_from(buffer.view(ranks, -1), whole)
            found[cut] = cut.place.gathered(strided(whole.storage, cut.shape, layout(cut.shape)[1], cut.start * ranks, kind))
    return found


def part_of(cut, group, whole):
    """This rank's part of a whole tensor."""
    first = min(group.meshes.rank * cut.rows, cut.shape[cut.dim])
    return cut.place.local(whole).narrow(cut.dim, first, cut.own[cut.dim])


@contextlib.contextmanager
def summon(states, name, writeback, rank0_only, offload_to_cpu, with_grads):
    """A context in which the modules of some units have their whole parameters."""
    check(not (with_grads and offload_to_cpu), name, "with_grads or offload_to_cpu", "both", error=NotImplementedError)
    check(not (writeback and rank0_only), name, "writeback=False with rank0_only=True", "True", error=NotImplementedError)
    check(not any(state.summoned for state in states), name, "no context inside of another", "one", error=AssertionError)
    with contextlib.ExitStack() as stack:
        for state in states:
            state.summoned = True
            stack.callback(setattr, state, "summoned", False)
            for group in state.sharded():
                whole, grads = wholes(group), {cut: full_grad(cut, group.device) for cut in group.cuts} if with_grads else {}
                if not rank0_only or state.modules[0]().rank == 0:
                    stack.enter_context(registered(group, whole, grads, writeback, offload_to_cpu))
        yield


@contextlib.contextmanager
def registered(group, whole, grads, writeback, offload_to_cpu):
    """A context in which modules have these parameters, and after it their shards, with what was written to them."""
    for cut in group.cuts:
        full = Parameter(whole[cut].to(cpu) if offload_to_cpu else whole[cut], cut.sharded.requires_grad)
        grad = grads.get(cut)
        full.grad = None if grad is None else grad.to(full.device)
        cut.register(full)
    try:
        yield
    finally:
        with no_grad():
            for cut in group.cuts:
                full = cut.registered()
                cut.register(cut.sharded)
                if writeback:
                    take_back(cut, group, full, grads)


def take_back(cut, group, full, grads):
    """Write this rank's part of a whole parameter, and of its gradient if that was there, to the shards."""
    cut.sharded.storage.local.copy_(part_of(cut, group, full.detach()))
    if cut in grads:
        if full.grad is None:
            cut.sharded.grad = None
        else:
            cut.sharded.grad = cut.place.spread(part_of(cut, group, full.grad.detach()).to(cut.sharded.storage.local.device, copy=True))


def full_grad(cut, device):
    """The whole gradient of a parameter, as far as it has come to the shards."""
    grad = cut.sharded.grad
    check(cut.place.inner is None or grad is None, "summon_full_params", "with_grads=False with DTensors of tensor parallelism", "True",
          error=NotImplementedError)
    return None if grad is None else whole_of(grad, device)


def whole_of(x, device):
    """A whole tensor on a device; a part that is on the CPU goes there before it travels, as backends want it."""
    x = x.detach()
    return made(x.storage.local.to(device), x.device_mesh, x.placements, tuple(x.shape)).full_tensor()
