"""FSDPModule: what modules can do besides once they are sharded."""
import contextlib
import functools
import weakref

from tritorch.autograd.modes import no_grad
from tritorch.distributed.fsdp.group import Phase
from tritorch.distributed.world import new_group
from tritorch.errors import check

_new_init = [True]


def state_of(module):
    """The State that fully_shard gave a module, or None."""
    return vars(module).get("_fsdp_state")


class UnshardHandle:
    """What `unshard(async_op=True)` returns."""

    def __init__(self, groups=()):
        self._groups = groups

    def wait(self):
        """The module has its whole parameters, for what the current stream is given from now on."""
        groups, self._groups = self._groups, ()
        for group in groups:
            group.wait()


class FSDPModule:
    """The class of modules that `fully_shard` was applied to, besides their own. Settings hold from the next pass on; with `recurse`
    they are those of all sharded modules below, too."""

    def __new__(cls, *args, **kwargs):
        """An object of the class that the module had before: containers make parts of themselves so."""
        plain = cls.__mro__[2]
        made = plain.__new__(plain, *args, **kwargs)
        if _new_init[0]:
            made.__init__(*args, **kwargs)
        return made

    def __deepcopy__(self, memo):
        raise AssertionError("deepcopy: expected a module that is not sharded; use state_dict() to copy one that is")

    def _get_fsdp_state(self):
        return state_of(self)

    def _fsdp_groups(self, recurse=False):
        for module in self.modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                yield from state_of(module).groups

    # -------------------------------------------------------------- parameters
    def reshard(self):
        """Give the memory of the whole parameters back; the module has its shards. Modules below it are left alone."""
        for group in self._fsdp_groups():
            group.reshard()

    def unshard(self, async_op=False):
        """Gather the parameters, in the dtype in which they are computed with. With `async_op` it is only begun: `wait()` of the
        UnshardHandle that is returned, or forward, waits for them. Modules below it are left alone."""
        groups = list(self._fsdp_groups())
        for group in groups:
            group.adopt()
            group.unshard(async_op)
        handle = UnshardHandle(groups)
        if async_op:
            return handle
        handle.wait()
        return None

    def _apply(self, *args, **kwargs):
        for group in self._fsdp_groups(True):
            group.reshard(entirely=True)
        made = super()._apply(*args, **kwargs)
        for group in self._fsdp_groups():
            group.adopt()
        return made

    # -------------------------------------------------------------- which passes do what
    def reset_iter_state(self):
        """Make the root ready for a new iteration after an error in forward or backward: parameters are sharded, gradients that had not
        come to the shards are lost. RuntimeError for a module below the root."""
        with no_grad():
            state_of(self).start_anew()

    def set_is_last_backward(self, is_last_backward):
        """Whether the gradients of the shards have to be there when the next backward pass is over; False before all but the last of
        several."""
        state_of(self).iteration.last = is_last_backward

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """Whether gradients are averaged over all ranks. Without it they add up in each rank, of the size of the whole parameters, until
        a backward pass with it."""
        for group in self._fsdp_groups(recurse):
            group.reduce_grads = group.all_reduce_grads = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """On a mesh of two dims, whether gradients are averaged over replicas, too. Without it they add up in each, sharded."""
        for group in self._fsdp_groups(recurse):
            group.all_reduce_grads = requires_all_reduce

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """Whether parameters are sharded again after forward. ValueError for no bool."""
        check(isinstance(reshard_after_forward, bool), "set_reshard_after_forward", "a bool", reshard_after_forward, error=ValueError)
        for module in self.modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                state_of(module).automatic = False
        for group in self._fsdp_groups(recurse):
            group.home = group.meshes.after_forward(reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward, *, recurse=True):
        """Whether parameters are sharded again after backward. Without it they need not be gathered for the next forward pass of several
        between two steps of the optimizer."""
        for group in self._fsdp_groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_unshard_in_backward(self, unshard_in_backward):
        """Whether parameters are gathered for backward; those of an embedding are not read there."""
        for group in self._fsdp_groups():
            group.unshard_in_backward = unshard_in_backward

    # -------------------------------------------------------------- early
    def set_modules_to_forward_prefetch(self, modules):
        """Sharded modules whose parameters are gathered while forward of this one computes."""
        state_of(self).next_forward = _states("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules):
        """Sharded modules whose parameters are gathered while backward of this one computes. Without it that is the one whose forward
        came before."""
        state_of(self).next_backward = _states("set_modules_to_backward_prefetch", modules)

    def set_post_optim_event(self, event):
        """An event after which parameters may be gathered, in the next forward pass: they are what the optimizer's step has left. Without
        it they are gathered behind all that the current stream has been given then."""
        state_of(self).iteration.optimizer_event = event

    # -------------------------------------------------------------- averages
    def set_gradient_divide_factor(self, factor):
        """What sums of gradients are divided by; without it the number of ranks."""
        for group in self._fsdp_groups():
            group.divide_factor = factor

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable):
        """Whether backends are to add only, and gradients are divided apart."""
        for group in self._fsdp_groups():
            group.force_sum = enable

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params, *, recurse=True):
        """Whether parameters to which no gradient came get zeros: needed where ranks use different ones."""
        for group in self._fsdp_groups(recurse):
            group.unused_too = reduce_scatter_unused_params

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers, *, recurse=True):
        """How many groups may have gradients under way at once (1 unless set): more of them wait less and take more memory."""
        check(isinstance(max_input_buffers, int) and not isinstance(max_input_buffers, bool), "set_reduce_scatter_max_input_buffers",
              "an int", type(max_input_buffers).__name__, error=TypeError)
        check(max_input_buffers > 0, "set_reduce_scatter_max_input_buffers", "at least 1", max_input_buffers, error=ValueError)
        for group in self._fsdp_groups(recurse):
            group.buffers = max_input_buffers
            group.communication.buffers = max(group.communication.buffers, max_input_buffers)

    def set_all_reduce_hook(self, hook, *, stream=None):
        """Call `hook(tensor)` with the averages of this rank's part, to change them in place, before they become gradients; on a CUDA
        stream of one's own, unless the mesh has two dims. ValueError for a stream there."""
        for group in self._fsdp_groups():
            check(stream is None or group.meshes.replicas is None, "set_all_reduce_hook", "no stream on a mesh of 2 dims", stream,
                  error=ValueError)
            group.all_reduce_hook, group.hook_stream = hook, stream

    def set_separate_reduce_scatter_group(self, enable=True, *, recurse=True):
        """Whether gradients travel in groups of their own: backends do what is in one group one after the other."""
        made = {}
        for group in self._fsdp_groups(recurse):
            ranks = tuple(group.meshes.shards.ranks)
            if enable and ranks not in made:
                made[ranks] = group.reducers or new_group(list(ranks), use_local_synchronization=True, sort_ranks=False,
                                                          group_desc="fsdp_reduce_scatter")
            group.reducers = made[ranks] if enable else None


def _states(name, modules):
    for module in modules:
        check(isinstance(module, FSDPModule), name, "modules that fully_shard was applied to", type(module).__name__, error=ValueError)
    return [state_of(module) for module in modules]


def register_fsdp_forward_method(module, method_name):
    """Let a method be a forward pass, too: parameters are gathered for it. Nothing happens to a module that is not sharded. ValueError
    for a method that it has not."""
    if not isinstance(module, FSDPModule):
        return
    check(hasattr(module, method_name), "register_fsdp_forward_method", f"a method of {type(module).__name__}", method_name,
          error=ValueError)
    own, plain = weakref.ref(module), getattr(type(module), method_name, None)
    bound = None if plain is not None else getattr(module, method_name)

    @functools.wraps(plain or bound)
    def method(*args, **kwargs):
        self = own()
        state, call = state_of(self), bound if plain is None else plain.__get__(self)
        if state.phase is Phase.FORWARD:                                 # called by another forward of the module
            return call(*args, **kwargs)
        args, kwargs = state._before(self, args, kwargs)
        return state._after(call(*args, **kwargs), 0)

    setattr(module, method_name, method)


def share_comm_ctx(modules):
    """Let several roots have the same streams. ValueError for a module that is not sharded."""
    states = _states("share_comm_ctx", modules)
    for state in states[1:]:
        state.communication = states[0].communication
        for group in state.groups:
            group.communication = states[0].communication


@contextlib.contextmanager
def disable_fsdp_module_new_init():
    """A context in which `FSDPModule.__new__` does not call `__init__`."""
    before, _new_init[0] = _new_init[0], False
    try:
        yield
    finally:
        _new_init[0] = before


__all__ = ["FSDPModule", "UnshardHandle", "disable_fsdp_module_new_init", "register_fsdp_forward_method", "share_comm_ctx"]
