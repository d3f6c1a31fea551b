"""The gradients of some parameters on their way: the average over all ranks, of which each gets the part of its shards."""
from tritorch import distributed as dist
from tritorch.cuda.event import Event
from tritorch.device import cpu
from tritorch.distributed.fsdp.flat import ALIGNED, starts
from tritorch.distributed.options import ReduceOp
from tritorch.dtype import bfloat16, float32
from tritorch.ops.copy import pinned
from tritorch.ops.create import empty, zeros
from tritorch.ops.shaping import cat
from tritorch.tensor import Leaf, strided


class Reduction:
    """One reduce-scatter, and an all-reduce over replicas. `cuts` and `grads` belong together; `kind` is the dtype that travels.

    All memory is taken on the program's stream, and kept until that has waited for the streams on which it is used."""

    def __init__(self, group, cuts, grads, kind):
        self.cuts, self.kind, self.event = cuts, kind, None
        self.meshes, self.replicas, self.offload = group.meshes, group.meshes.replicas, group.offload
        self.alone, self.owner = not group.all_reduce_grads, group       # alone: nothing goes to the other replicas yet
        self.hook, self.hook_stream = group.all_reduce_hook, group.hook_stream
        self.comm_hook = group.comm_hook
        self.before, self.after, self.op, self.replica_op = divisors(group, kind) if self.comm_hook is None else (None,) * 4
        size = self.meshes.size
        self.places, self.count = starts(cuts)
        dense = all(cut.even() and cut.count % ALIGNED == 0 for cut in cuts)
        self.input = (empty if dense else zeros)(size, self.count, dtype=kind, device=group.device)
        if dense and all(cut.dim == 0 for cut in cuts) and all(grad.dtype is kind for grad in grads):
            cat([grad.reshape(size, cut.count) for cut, grad in zip(cuts, grads)], 1, out=self.input)    # a launch for eight of them
        else:
            for cut, start, grad in zip(cuts, self.places, grads):
                cut.parts_of(grad, self.input, start)
        make = lambda kind: empty(self.count, dtype=kind, device=group.device)
        self.output = make(kind) if size > 1 else self.input.view(-1)
        dtype = cuts[0].sharded.dtype
        self.result = self.output if dtype is kind else make(dtype)
        self.work = self.partial = None

    def begin(self):
        """Send the gradients."""
        if self.comm_hook is not None:
            self.comm_hook(self.output) if self.meshes.size == 1 else self.comm_hook(self.input.view(-1), self.output)
            return
        if self.before not in (None, 1):
            self.input.mul_(1 / self.before)
        if self.meshes.size > 1:
            ranks = self.owner.reducers or self.meshes.shards
            self.work = dist.reduce_scatter_tensor(self.output, self.input, self.op, ranks, async_op=True)

    def scattered(self):
        """Wait for this rank's part."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()

    def finish(self):
        """Wait for this rank's part, and put it into the gradients of the shards."""
        self.scattered()
        self.partial = self.owner.partial.pop(self.key, None)
        if self.partial is not None:
            self.output += self.partial
        if self.replicas is not None and self.comm_hook is None:
            if self.alone:
                self.owner.partial[self.key] = self.output
                return
            dist.all_reduce(self.output, self.replica_op, self.replicas)
        if self.hook is not None:
            self.hook(self.output)
        if self.after not in (None, 1):
            self.output.mul_(1 / self.after)
        self._land()

    @property
    def key(self):
        """What tells the reductions of a group apart."""
        return tuple([id(cut) for cut in self.cuts])

    def _land(self):
        """Add the averages to the gradients of the shards, in their dtype."""
        flat = self.result
        if flat is not self.output:
            flat.copy_(self.output)
        if self.offload is not None and flat.device is not cpu:
            flat = self._to_host(flat)
        for cut, start in zip(self.cuts, self.places):
            part = strided(flat.storage, cut.own, cut.part_in(flat).strides, start, flat.dtype)
            old = cut.sharded._grad
            if old is None:
                cut.sharded.grad = cut.place.spread(part)
            else:
                old.storage.local.add_(part)
            call_hooks(cut.sharded)

    def _to_host(self, flat):
        waits = not self.offload.pin_memory or any(cut.sharded._grad is not None or hooked(cut.sharded) for cut in self.cuts)
        if waits:
            return flat.to(cpu)
        host = pinned(flat.shape, flat.dtype).copy_(flat, non_blocking=True)
        event = Event()
        event.record()
        self.owner.arriving.append(event)
        return host


def hooked(parameter):
    """Whether somebody wants to know when a parameter's gradient has come."""
    return type(parameter.node) is Leaf and parameter.node.hooks is not None and bool(parameter.node.hooks.accumulated)


def call_hooks(parameter):
    """Tell who wanted to know that a parameter's gradient has come."""
    if hooked(parameter):
        for hook in list(parameter.node.hooks.accumulated.values()):
            hook(parameter)


def divisors(group, kind):
    """(what gradients are divided by before they are added, and after, the operations over shards and over replicas).

    The sum of float32 and bfloat16 values cannot become too large, and the backend divides it. Half of the divisor, as a power of two,
    comes before the sum for the others: the sum of float16 values does not become too large then, nor each of them too small."""
    meshes, factor = group.meshes, group.divide_factor
    ranks = meshes.size * (1 if meshes.replicas is None else meshes.replicas.size())
    risky = kind not in (float32, bfloat16)
    if not risky and not group.force_sum and factor is None:
        op = ReduceOp.SUM if ranks == 1 else ReduceOp.AVG
        return None, None, op, op
    factor = float(ranks if factor is None else factor)
    before = 1
    while risky and factor % before == 0 and factor / before > before:
        before *= 2
    return before, factor / before, ReduceOp.SUM, ReduceOp.SUM


