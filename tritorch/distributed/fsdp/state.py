"""What happens around the forward and backward passes of a module that is sharded: the hooks."""
import warnings
import weakref

from tritorch.autograd.engine import queue_callback
from tritorch.autograd.hooks import register_hook
from tritorch.autograd.modes import state as modes
from tritorch.autograd.places import stacklevel
from tritorch.cuda.watching import host_work
from tritorch.device import cpu
from tritorch.distributed.fsdp.communication import Communication
from tritorch.distributed.fsdp.containers import cast, mapped, tensors_with_gradients
from tritorch.distributed.fsdp.group import Phase
from tritorch.distributed.fsdp.meshes import NAME
from tritorch.errors import check
from tritorch.profiler.recorder import record_function


class Iteration:
    """What the states below one root share besides their communication."""

    def __init__(self):
        self.states, self.root = [], None                                # states: weakly, outer ones first; root: whose forward runs
        self.run = lambda: None                                          # the backward pass that ends with `State.over`
        self.last, self.optimizer_event = True, None                     # last: gradients are to be there when backward is over

    def all(self):
        """The states that there still are."""
        return [s for s in (ref() for ref in self.states) if s is not None]


class State:
    """Of one call of fully_shard, on one module or several, which share its `groups`: one, or none if there are no parameters."""

    def __init__(self, modules, device, mp_policy, automatic):
        self.modules, self.device, self.mp_policy, self.automatic = [weakref.ref(m) for m in modules], device, mp_policy, automatic
        self.groups, self.is_root, self.phase = [], None, Phase.IDLE
        self.iteration, self.communication = Iteration(), Communication()
        self.next_forward, self.next_backward, self.prefetches = [], [], True    # states to gather for early; whether others are
        self.left = set()                                                # numbers of the modules whose forward is still to come, of several
        for k, module in enumerate(modules):
            module._fsdp_state = self
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
            module.register_forward_hook(lambda _, args, output, k=k: self._after(output, k), always_call=len(modules) > 1)

    # -------------------------------------------------------------- the first pass
    def begin(self):
        """Before the first forward pass: this state is a root, those of the modules below are not."""
        if self.is_root is not None:
            return
        check(len(self.modules) == 1, NAME, "a root of one module", f"{len(self.modules)}")
        root, self.is_root, states = self.modules[0](), True, []
        for name, module in root.named_modules():
            state = vars(module).get("_fsdp_state")
            if state is None or state in states:
                continue
            if state is not self:
                check(state.is_root is None, NAME, "a first forward pass through the outermost module", f"one of {name} before")
                state.is_root = False
            states.append(state)
        if self.automatic:                                               # its parameters would be gathered again at once
            for group in self.groups:
                group.home = None
        self._share(states)
        names = {id(p): name for name, p in root.named_parameters()}
        for cut in [cut for state in states for group in state.groups for cut in group.cuts]:
            cut.name = names.get(id(cut.registered()), cut.name)
        for state in states:
            for group in state.groups:
                group.prepare()

    def _share(self, states):
        """One communication for all, and labels of groups."""
        self.iteration.states = [weakref.ref(s) for s in states]
        groups = [group for state in states for group in state.groups]
        self.communication.begin(self.device, all(beside(group) for group in groups))
        self.communication.buffers = max([group.buffers for group in groups], default=1)
        seen = {}
        for state in states:
            state.iteration, state.communication = self.iteration, self.communication
            for group in state.groups:
                group.communication = self.communication
                for cut in group.cuts:
                    check(cut.origin not in seen, NAME, "each parameter in one group", f"{cut.name} in two", error=ValueError,
                          use="fully_shard([module_a, module_b]) for modules that share parameters")
                    seen[cut.origin] = cut

    # -------------------------------------------------------------- forward
    def _before(self, module, args, kwargs):
        if self.phase is Phase.BEFORE_BACKWARD and not self._reduced():  # a checkpoint that runs again what is in it
            for group in self.groups:
                group.unshard()
                group.wait()
            return self._cast_inputs(args, kwargs)
        first = self.phase is not Phase.FORWARD
        self.phase = Phase.FORWARD
        if len(self.modules) > 1 and not self.left:
            self.left = set(range(len(self.modules)))
        if first:
            args, kwargs = self._root_before(args, kwargs)
        args, kwargs = self._cast_inputs(args, kwargs)
        with record_function("FSDP.pre_forward"):
            for group in self.groups:
                args, kwargs = group.before_forward(args, kwargs)
            if first:
                for state in self.next_forward:
                    for group in state.groups:
                        group.fetch(Phase.FORWARD)
        return args, kwargs

    def _reduced(self):
        """Whether the gradients of an earlier forward have come already, in the backward pass that runs."""
        return bool(self.groups) and all(group.phase is Phase.AFTER_BACKWARD for group in self.groups)

    def _root_before(self, args, kwargs):
        """What is done once for all states below the module whose forward begins."""
        self.begin()
        if self.iteration.root is not None and self.iteration.root() is not None:
            return args, kwargs
        host_work("the gathering of parameters by fully_shard")
        self.iteration.root = weakref.ref(self)
        self.communication.after_optimizer(self.iteration.optimizer_event)
        self.iteration.optimizer_event = None
        if self.device is not cpu:
            args, kwargs = mapped(lambda x: x.to(self.device), (args, kwargs))
        return args, kwargs

    def _cast_inputs(self, args, kwargs):
        if self.mp_policy.cast_forward_inputs and self.mp_policy.param_dtype is not None:
            return cast(self.mp_policy.param_dtype, (args, kwargs))
        return args, kwargs

    def _cast_output(self, output):
        return output if self.mp_policy.output_dtype is None else cast(self.mp_policy.output_dtype, output)

    def _after(self, output, k):
        if len(self.modules) > 1:
            due = k in self.left
            self.left.discard(k)
            if self.left or not due:                                     # other modules of the group are still to come
                return self._cast_output(output)
        if self.phase is not Phase.BEFORE_BACKWARD:
            output = self._complete(output)
            if self.iteration.root is not None and self.iteration.root() is self:
                output = self._root_after(output)
        return self._cast_output(output)

    def _complete(self, output):
        """Forward of all modules is over."""
        with record_function("FSDP.post_forward"):
            for group in self.groups:
                group.after_forward()
        self._watch(output)
        self.phase = Phase.IDLE
        return output

    def _root_after(self, output):
        for state in reversed(self.iteration.all()):
            if state is not self and state.left:                         # of several modules not all were needed
                output = state._cast_output(state._complete(output))
                state.left.clear()
        self.communication.let_go()
        self.iteration.root = None
        return output

    def title(self):
        """The classes of the modules, as they were before."""
        return ", ".join(type(m()).__mro__[2].__name__ for m in self.modules)

    def _watch(self, output):
        """When a gradient comes to an output, the parameters are needed."""
        if not modes.grad:
            return
        for x in tensors_with_gradients(output):
            if x._base is not None:
                warnings.warn(f"{NAME}: forward of {self.title()} returned a view. A write in place to it goes another way back than "
                              "through the hook that gathers parameters; use out-of-place operators on it, or x.clone() before",
                              UserWarning, stacklevel=stacklevel())
            register_hook(x, self._before_backward)

    # -------------------------------------------------------------- backward
    def _before_backward(self, _):
        self.phase = Phase.BEFORE_BACKWARD
        run = modes.run
        while run.outer is not None:
            run = run.outer
        if run is not self.iteration.run():
            self.iteration.run = weakref.ref(run)
            queue_callback(self._over)
        with record_function("FSDP.pre_backward"):
            for group in self.groups:
                group.before_backward(self.prefetches and not self.next_backward)
            for state in self.next_backward:
                for group in reversed(state.groups):
                    group.fetch(Phase.BEFORE_BACKWARD)

    def _over(self):
        """The backward pass is over: groups to whose inputs no gradient came are still to be reduced."""
        iteration = self.iteration
        iteration.root, iteration.run = None, lambda: None
        with record_function("FSDP.root_post_backward"):
            for state in iteration.all():
                state.left.clear()
                for group in state.groups:
                    if group.phase is not Phase.AFTER_BACKWARD or group.has_gradients():
                        group.after_backward()
                    group.phase = Phase.IDLE
                state.phase = Phase.IDLE
            if iteration.last:
                self.communication.finish()
                self.communication.order.clear()
                for state in iteration.all():
                    for group in state.groups:
                        group.end()

    reduce_now = _over                                                   # of gradients that have added up in several passes, after these

    def start_anew(self):
        """Forget an iteration that has failed."""
        check(self.is_root is not False, "reset_iter_state", "the root of what fully_shard was applied to", "a module below it")
        iteration = self.iteration
        iteration.root, iteration.run = None, lambda: None
        self.communication.let_go()
        self.communication.finish()
        self.communication.order.clear()
        for state in iteration.all() or [self]:
            state.left.clear()
            state.phase = Phase.IDLE
            for group in state.groups:
                group.start_anew()


def beside(group):
    """Whether the backend of a group works beside streams: gloo does not, which brings tensors to the host."""
    ranks = group.meshes.shards
    return ranks.size() == 1 or ranks._get_backend(group.device).name() != "gloo"
