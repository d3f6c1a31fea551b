"""The parameters that are gathered together: those of one module, or of several, without those of the groups below."""
import enum
import weakref

from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad, state
from tritorch.cuda.stream import current_stream
from tritorch.device import cpu
from tritorch.distributed.fsdp.communication import Communication
from tritorch.distributed.fsdp.containers import mapped, tensors_with_gradients
from tritorch.distributed.fsdp.flat import flats_of
from tritorch.distributed.fsdp.meshes import NAME
from tritorch.distributed.fsdp.policies import CPUOffloadPolicy
from tritorch.distributed.fsdp.reduction import Reduction
from tritorch.errors import check
from tritorch.ops.create import zeros
from tritorch.profiler.recorder import record_function


class Phase(enum.Enum):
    """Where a group, or a module with one, is in an iteration."""

    IDLE, FORWARD, BEFORE_BACKWARD, AFTER_BACKWARD = range(4)


SHARDED, KEPT, WHOLE = "sharded", "kept", "whole"                        # KEPT: by a smaller group of ranks, after forward


class Group:
    """`cuts` are its parameters, `home` the group of ranks among which they stay sharded between forward and backward (None: each has
    the whole)."""

    def __init__(self, cuts, modules, meshes, home, device, mp_policy, offload_policy):
        self.cuts, self.modules, self.meshes, self.home, self.device = cuts, [weakref.ref(m) for m in modules], meshes, home, device
        self.mp_policy = mp_policy
        self.offload = offload_policy if isinstance(offload_policy, CPUOffloadPolicy) else None
        self.phase, self.form, self.gathered, self.label = Phase.IDLE, SHARDED, None, ""
        self.communication, self.places = Communication(), []            # places: in the order of forward, of passes to come
        self.reduce_grads = self.all_reduce_grads = self.reshard_after_backward = self.unshard_in_backward = True
        self.unused_too, self.force_sum, self.divide_factor, self.buffers = False, False, None, 1
        self.all_reduce_hook = self.hook_stream = self.comm_hook = None      # comm_hook: what brings gradients to their ranks
        self.reducers = None                                             # ranks among which gradients travel, if not the same
        self.partial, self.arriving, self.flats = {}, [], []             # partial: not yet added over replicas; arriving: on the CPU
        self.adopt()
        self._watch_state_dicts()

    def gathered_dtype(self, dtype):
        """The dtype in which parameters of a dtype are gathered."""
        return self.mp_policy.param_dtype if self.mp_policy.param_dtype and dtype.is_floating_point else dtype

    # -------------------------------------------------------------- the shards
    def adopt(self):
        """What modules have as their parameters is sharded from now on: they were loaded, moved or cast."""
        for cut in self.cuts:
            if self.form is SHARDED:
                cut.sharded = cut.registered()
        if any(cut.sharded.is_meta for cut in self.cuts) or self.flats and all(flat.holds() for flat in self.flats):
            return
        with no_grad():
            self.flats = flats_of(self.cuts, self.meshes.size, self.gathered_dtype, self.device, self.offload)

    def prepare(self):
        """Before the first pass. RuntimeError where parameters have no memory, or not the one that they should have."""
        self.adopt()
        names = [cut.name for cut in self.cuts if cut.sharded.is_meta]
        check(not names, NAME, "parameters with memory", f"{names} on meta", use="to_empty() and reset_parameters() before")
        if self.offload is not None:
            names = [cut.name for cut in self.cuts if cut.sharded.device is not cpu]
            check(not names, NAME, "parameters on the CPU with CPUOffloadPolicy", names, use='to_empty(device="cpu")')

    def _watch_state_dicts(self):
        """State dicts have the shards, and loading finds them in their places."""
        own = weakref.ref(self)

        def shard(*_):
            group = own()
            if group is not None:
                group.reshard(entirely=True)

        def take(*_):
            group = own()
            if group is not None:
                group.adopt()

        for module in {place[0]() for cut in self.cuts for place in cut.places}:
            module.register_state_dict_pre_hook(shard)
            module._register_load_state_dict_pre_hook(shard)
            module.register_load_state_dict_post_hook(take)

    # -------------------------------------------------------------- sharded and whole
    def unshard(self, alone=False):
        """Begin to gather the parameters, unless that has been done. `alone`: on the current stream."""
        if self.gathered is not None or self.form is WHOLE or self.phase is Phase.BEFORE_BACKWARD and not self.unshard_in_backward:
            return
        if not self.flats:
            self.prepare()
        ranks = self.home if self.form is KEPT else self.meshes.shards
        alone = alone or self.phase not in (Phase.FORWARD, Phase.BEFORE_BACKWARD) or ranks.size() == 1
        with record_function("FSDP.all_gather"), no_grad(), self.communication.gathering(alone):
            self.gathered = [flat.gather(ranks) for flat in self.flats], alone

    def wait(self):
        """The modules have their whole parameters, for what the current stream is given from now on."""
        if self.gathered is None:
            return
        (gathered, alone), self.gathered = self.gathered, None
        forward = self.phase is Phase.FORWARD
        if forward:
            self.communication.let_go()
        with no_grad():
            for flat, one in zip(self.flats, gathered):
                flat.receive(one)
        for cut in self.cuts:
            if cut.full.requires_grad is not cut.sharded.requires_grad:
                cut.full.requires_grad = cut.sharded.requires_grad
            cut.register(cut.full)
        self.form = WHOLE
        if not alone:
            self.communication.received(gathered, forward)

    def reshard(self, entirely=False):
        """Give the memory of the whole parameters back, if that is wanted now."""
        if self.phase is Phase.FORWARD and not entirely:
            if self.home is None:
                return
            if self.home is not self.meshes.shards:
                self._keep()
                return
        if self.form is not SHARDED:
            self.form = SHARDED
            for cut in self.cuts:
                cut.register(cut.sharded)
            for flat in self.flats:
                flat.kept = None
                flat.release()

    def _keep(self):
        with no_grad():
            for flat in self.flats:
                flat.keep(self.home)
                flat.release()
        if self.communication.beside:                                    # what is gathered next, there, reads what was copied here
            self.communication.gathers.wait_stream(current_stream())
        for cut in self.cuts:
            cut.register(cut.sharded)
        self.form = KEPT

    # -------------------------------------------------------------- forward
    def before_forward(self, args, kwargs):
        """Whole parameters, and inputs that tell when their gradients are there."""
        begins = self.phase is not Phase.FORWARD
        self.phase = Phase.FORWARD
        self.unshard()
        self.wait()
        return self._watched(args, kwargs) if begins and state.grad else (args, kwargs)

    def _watched(self, args, kwargs):
        found = list(tensors_with_gradients((args, kwargs)))
        if not found:
            return args, kwargs
        passed = dict(zip(map(id, found), Passed.apply(self, *found)))
        return mapped(lambda x: passed.get(id(x), x), (args, kwargs))

    def after_forward(self):
        """Sharded again. Inside of a backward pass, where a checkpoint runs forward again, what comes next needs the parameters."""
        if state.run is None:
            self.reshard()
            if state.grad:                                               # else no backward pass comes, which forgets it
                self.places.append(len(self.communication.order))
                self.communication.order.append(weakref.ref(self))
        self.phase = Phase.IDLE

    # -------------------------------------------------------------- backward
    def before_backward(self, prefetches):
        """Whole parameters once more, and those of the group whose backward comes next are on their way."""
        if self.phase is Phase.BEFORE_BACKWARD:
            return
        self.phase = Phase.BEFORE_BACKWARD
        self.unshard()
        self.wait()
        if prefetches and self.places:
            place = self.places.pop()
            before = self.communication.order[place - 1]() if 0 < place <= len(self.communication.order) else None
            if before is not None:
                before.fetch(Phase.BEFORE_BACKWARD)

    def fetch(self, phase):
        """Begin to gather for a pass that has not come here yet."""
        was, self.phase = self.phase, phase
        try:
            self.unshard()
        finally:
            self.phase = was

    def after_backward(self):
        """All gradients of this pass are there: they travel, unless they are to add up, and the parameters are sharded again."""
        self.phase = Phase.AFTER_BACKWARD
        self._complete()
        with no_grad():
            self._add_up()
            ready = self._ready() if self.reduce_grads else []
            if self.reshard_after_backward:
                self.reshard()
            if not self.reduce_grads:
                self._collect()
            for kind, (cuts, grads) in ready:
                with record_function("FSDP.reduce_scatter"):
                    self.communication.reduce(Reduction(self, cuts, grads, kind))

    def has_gradients(self):
        """Whether gradients have come since they were reduced."""
        return self.reduce_grads and any(cut.full is not None and cut.full._grad is not None for cut in self.cuts)

    def _complete(self):
        """Gradients that the pass would hand out at its end, because streams meet in them or somebody wants to see them, come now."""
        run = state.run
        if run is not None and run.late:
            for cut in self.cuts:
                if cut.full is not None and run.late.get(cut.full.node) is not None:
                    run.finish(cut.full.node)

    def _add_up(self):
        for cut in self.cuts:
            grad = None if cut.collected is None else cut.grad()
            if grad is not None:
                cut.collected += grad
                cut.full.grad = None

    def _collect(self):
        """Gradients that add up without travelling do so in the dtype of the reduction."""
        kind = self.mp_policy.reduce_dtype
        for cut in self.cuts:
            grad = cut.grad()
            if kind is not None and grad is not None and grad.dtype is not kind:
                cut.collected, cut.full.grad = grad.to(kind), None

    def _ready(self):
        """[(dtype that travels, (parameters, gradients))], mostly one."""
        found = {}
        for cut in self.cuts:
            if cut.full is None:
                continue
            grad = cut.collected if cut.collected is not None else cut.grad()
            if grad is None and self.unused_too and cut.full.requires_grad:
                grad = zeros(cut.shape, dtype=cut.full.dtype, device=self.device)
            cut.collected = cut.full.grad = None
            if grad is not None:
                cuts, grads = found.setdefault((cut.sharded.dtype, self.mp_policy.reduce_dtype or grad.dtype), ([], []))
                cuts.append(cut)
                grads.append(grad.detach())
        return [(kind, pair) for (_, kind), pair in found.items()]

    def end(self):
        """The backward pass is over."""
        for event in self.arriving:
            event.synchronize()
        self.arriving.clear()
        self.places.clear()
        self._forget_gathered()

    def _forget_gathered(self):
        """What was gathered for nobody."""
        if self.gathered is not None:
            (gathered, alone), self.gathered = self.gathered, None
            for one in gathered:
                if one.work is not None:
                    one.work.wait()
            if not alone:
                self.communication.received(gathered, False)

    def start_anew(self):
        """Forget a pass that has failed."""
        self.end()
        self.partial.clear()
        self.phase = Phase.IDLE
        for cut in self.cuts:
            cut.collected = None
            if cut.full is not None:
                cut.full.grad = None
        self.reshard()


class Passed(Function):
    """The inputs of a module. When their gradients are there the backward pass has left the module: it runs the latest nodes first."""

    @staticmethod
    def forward(ctx, group, *inputs):
        ctx.group = group
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        ctx.group.after_backward()
        return None, *gradients
