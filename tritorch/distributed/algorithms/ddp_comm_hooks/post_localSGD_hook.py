"""A hook for `DistributedDataParallel.register_comm_hook`: after some iterations gradients are averaged over neighbours alone.

What is common to all processes then comes from averages of the parameters, which the program makes now and then (Lin et al., 2020).
"""
from tritorch import distributed as dist
from tritorch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from tritorch.futures import Future

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """Gradients are averaged over `process_group` (None: all processes) up to iteration `start_localSGD_iter`, and over `subgroup` from
    there on (None: the processes of a machine with GPUs), or not at all without `post_local_gradient_allreduce`."""

    def __init__(self, process_group, subgroup, start_localSGD_iter, post_local_gradient_allreduce=True):
        self.process_group, self.subgroup, self.start_localSGD_iter = process_group, subgroup, start_localSGD_iter
        self.post_local_gradient_allreduce, self.iter = post_local_gradient_allreduce, 0

    def maybe_increase_iter(self, bucket):
        """Count an iteration at its last bucket."""
        self.iter += bucket.is_last()


def post_localSGD_hook(state, bucket):
    """The average over the group that `state` says."""
    if state.iter < state.start_localSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    if not state.post_local_gradient_allreduce:
        future = Future()
        future.set_result(bucket.buffer())
        return future
    if state.subgroup is None:
        state.subgroup, _ = dist.new_subgroups()
    return allreduce_hook(state.subgroup, bucket)
