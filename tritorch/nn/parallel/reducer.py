"""The reducer of DistributedDataParallel: gradients become the averages over all ranks while the backward pass goes on.

A hook on each parameter tells that its gradient is complete. When all gradients of a bucket are, and all buckets before it are under way,
it travels (`all_reduce(async_op=True)`, or what the communication hook does); at the end of the pass all are waited for and the averages
become the parameters' gradients. All ranks have the same buckets and send them in the same order. Li et al., "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""
import weakref

from tritorch import distributed as dist
from tritorch.autograd.engine import queue_callback
from tritorch.autograd.modes import no_grad, state
from tritorch.cuda.watching import host_work
from tritorch.distributed.gradient_bucket import GradBucket
from tritorch.dtype import int32
from tritorch.errors import check
from tritorch.nn.parallel.buckets import Bucket, assign, is_there
from tritorch.ops.create import tensor
from tritorch.tensor import Tensor

NAME = "DistributedDataParallel"


class Reducer:
    """The buckets of some parameters, [(name, parameter)], and how far the backward pass has come.

    `finds_unused`: parameters may be without a gradient, in each pass others; `static`: in each pass the same ones, which the first shows.
    """

    def __init__(self, named, group, limits, finds_unused=False, as_view=False, static=False, skips_unused=False):
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self.group, self.as_view, self.static, self.skips_unused = group, as_view, static, skips_unused
        self.finds_unused = finds_unused and not static
        self.buckets = [Bucket(i, numbers, self.parameters) for i, numbers in enumerate(assign(self.parameters, limits))]
        self.home = {k: bucket for bucket in self.buckets for k in bucket.numbers}
        self.hook, self.shared = None, None                              # (state, hook) of the user; the Work that counts ranks, of join
        self.learned, self.times = False, [0] * len(named)               # of a static graph: how often the hook of each parameter is called
        self.used, self.anywhere = [False] * len(named), ()              # whether a gradient came since the last reduction, here and in all
        self.outputs, self.through = [], False                           # nodes of what forward returned; whether a pass came through them
        self.sum_of_used = None                                          # the Work that sums `used` over all ranks
        self.armed, self.divisor, self.run = False, None, no_run         # whether gradients travel; over how many ranks; the pass that runs
        self.forget()
        own = weakref.ref(self)                                          # weakly, for the parameters own their hooks
        self.handles = [p.register_post_accumulate_grad_hook(hook_of(own, k)) for k, p in enumerate(self.parameters)]

    def __del__(self):
        for handle in getattr(self, "handles", ()):
            handle.remove()

    def forget(self):
        """Ready for a backward pass: nothing has come."""
        self.ready, self.next = [False] * len(self.parameters), 0
        self.left = list(self.times)                                     # hook calls still to come, of a static graph
        for bucket in self.buckets:
            bucket.forget()

    @property
    def learns(self):
        """Whether this is the first pass of a static graph."""
        return self.static and not self.learned

    @property
    def alone(self):
        """Whether gradients are averages already."""
        return self.hook is None and not self.as_view and self.group.size() == 1

    # -------------------------------------------------------------- the forward pass
    def prepare(self):
        """A forward pass begins whose gradients are to be reduced."""
        if not self.alone:
            host_work(f"the all_reduce of gradients in {NAME}")
        if any(self.ready) or self.left != self.times:
            missing = [name for name, ready in zip(self.names, self.ready) if not ready]
            raise RuntimeError(f"{NAME}: expected a gradient for every parameter from the backward passes before this forward pass, got "
                               f"none for {', '.join(missing[:20])}{', …' if len(missing) > 20 else ''}; use " + (
                                   "static_graph=False where the graph changes" if self.static else
                                   "find_unused_parameters=True, and all outputs of forward in the loss"))

    def arm(self, nodes):
        """A forward pass is over: the next gradients are to be reduced. `nodes` are where its outputs came from."""
        self.armed = True
        if self.finds_unused:
            self.outputs += map(weakref.ref, nodes)

    # -------------------------------------------------------------- the backward pass
    def arrived(self, k):
        """The gradient of parameter k is complete, as far as this pass of the engine goes."""
        if self.finds_unused or self.learns:
            self.used[k] = True
        if not self.armed:
            return
        check(not state.run.create, NAME, "backward() without create_graph=True (what comes from other ranks has no gradient)", "it",
              use="autograd.grad()")
        run = outermost()
        first = run is not self.run()
        if first:
            self.run = weakref.ref(run)
            queue_callback(self.end)
        if self.learns:
            self.times[k] += 1
            return
        if first:
            self.mark_unused(run)
        if self.static:
            if not self.left[k]:
                raise RuntimeError(f"{NAME}: expected the graph of the first backward pass, got a gradient more of {self.names[k]}; use "
                                   "static_graph=False")
            self.left[k] -= 1
            if self.left[k]:
                return
        self.mark(k)

    def mark_unused(self, run):
        """Parameters that this pass does not come to have no gradient to wait for, if it goes through what forward returned."""
        if self.static and not any(self.ready):
            for k, times in enumerate(self.times):
                if not times:
                    self.mark(k)
        if not self.finds_unused:
            return
        reached = run.reached()
        outputs = [node for node in (ref() for ref in self.outputs) if node is not None]
        if not outputs or not reached.isdisjoint(outputs):
            self.through = True                                          # at the end of the pass all that is missing is unused
            for k, p in enumerate(self.parameters):
                if p.node not in reached and not self.ready[k]:
                    self.mark(k)

    def mark(self, k):
        """Parameter k has all of its gradient; buckets that are full now travel, in their order."""
        if self.ready[k]:
            raise RuntimeError(f"{NAME}: expected one complete gradient of {self.names[k]} from a backward pass, got a second; use each "
                               "checkpointed part once or with use_reentrant=False, one backward() for all outputs, or static_graph=True")
        self.ready[k] = True
        self.home[k].missing -= 1
        with no_grad():
            while self.next < len(self.buckets) and not self.buckets[self.next].missing:
                self.send(self.buckets[self.next])
                self.next += 1
                if self.next == len(self.buckets) and (self.finds_unused or self.learns):
                    self.send_used()

    def send(self, bucket):
        """Let a bucket travel."""
        skipped = self.skips_unused and (self.finds_unused or self.static) and not any(self.used[k] for k in bucket.numbers)
        if not skipped and not self.alone:
            bucket.fill()
            bucket.future = self.averaged(bucket)

    def averaged(self, bucket):
        """What to wait for until the bucket has the averages over all ranks."""
        if self.hook is not None:
            hook_state, hook = self.hook
            made = hook(hook_state, GradBucket(bucket.index, bucket.flat, bucket.views, bucket.parameters,
                                           bucket.index + 1 == len(self.buckets)))
            check(hasattr(made, "wait"), NAME, "a Future from the communication hook", type(made).__name__)
            return made
        divisor = self.over()
        if divisor != 1:
            bucket.flat.mul_(1 / divisor)                                # before the sum, which may be too large for a half type
        return dist.all_reduce(bucket.flat, group=self.group, async_op=True)

    def over(self):
        """How many ranks the average is over."""
        if self.divisor is None:
            if self.shared is None:
                self.divisor = self.group.size()
            else:
                self.shared.wait()
                self.divisor = self.shared.result()[0].item()
        return self.divisor

    def send_used(self):
        """Start to count in how many ranks each parameter got a gradient."""
        total = tensor(self.used, dtype=int32, device=self.parameters[0].device)
        self.sum_of_used = dist.all_reduce(total, group=self.group, async_op=True), total

    def end(self):
        """The backward pass is over, and with it the iteration if all buckets are under way."""
        if self.learns or self.through:
            for k, ready in enumerate(self.ready):
                if not ready:
                    self.mark(k)
        if self.next < len(self.buckets):
            return                                                       # another pass brings the rest
        self.finish()

    def reduce_now(self):
        """Gradients that have added up without travelling do so now, outside of a backward pass: those of a pipeline's microbatches."""
        self.prepare()
        for k in range(len(self.ready)):
            self.mark(k)
        self.finish()

    def finish(self):
        """Wait for all buckets, and put the averages in their places."""
        with no_grad():
            if self.sum_of_used is not None:
                work, total = self.sum_of_used
                work.wait()
                self.anywhere = total.tolist()
            for bucket in self.buckets:
                if bucket.future is not None:
                    self.receive(bucket)
        self.armed, self.divisor, self.sum_of_used, self.learned = False, None, None, True
        self.outputs, self.through = [], False
        if not self.static:
            self.used = [False] * len(self.used)
        self.forget()

    def take_part(self):
        """What a backward pass does, by a rank that has no gradients (see `join`): it gets the averages of the others."""
        with no_grad():
            for bucket in self.buckets:
                bucket.room().zero_()
                bucket.future = self.averaged(bucket)
            if self.finds_unused or self.learns:
                self.send_used()
        self.finish()

    def receive(self, bucket):
        """Wait for a bucket, and give its parameters their gradients."""
        made = bucket.future.wait()
        if self.hook is not None:
            made = made[0] if isinstance(made, (list, tuple)) else made
            check(isinstance(made, Tensor), NAME, "a tensor in the Future of the communication hook", type(made).__name__)
            if made.storage is not bucket.flat.storage or made.offset != bucket.flat.offset:
                bucket.flat.copy_(made.reshape(bucket.flat.shape))
        for k, p, view in zip(bucket.numbers, bucket.parameters, bucket.views):
            if (self.finds_unused or self.static) and not self.anywhere[k]:
                continue                                                 # unused in all ranks: its gradient is what it was
            if self.as_view and p.dtype is view.dtype and p.device is view.device:
                if not is_there(p._grad, view):
                    p.grad = view
            elif p._grad is None:
                p.grad = view.clone()
            else:
                p._grad.copy_(view)


def no_run():
    """A reference to no backward pass."""


def outermost():
    """The backward pass that the user asked for; the one that runs may be of a checkpoint in it."""
    run = state.run
    while run.outer is not None:
        run = run.outer
    return run


def hook_of(own, k):
    """What parameter k calls when its gradient has come."""
    def hook(_):
        reducer = own()
        if reducer is not None:
            reducer.arrived(k)

    return hook
