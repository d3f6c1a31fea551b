"""Hooks for `FullyShardedDataParallel.register_comm_hook`: gradients travel as they are, or in 16 bits.

Each gets a state, the gradients of a unit, and, unless every rank keeps all, where this rank's part of the averages is to be.
"""
from tritorch import distributed as dist
from tritorch.dtype import bfloat16, float16, float32
from tritorch.errors import check

__all__ = ["DefaultState", "LowPrecisionState", "allreduce_hook", "bf16_compress_hook", "fp16_compress_hook", "reduce_scatter_hook"]


class DefaultState:
    """The process group of a hook. Sums are divided by its size: by a part of it before, so that they do not become too large, and by the
    rest after. ValueError without a group.

    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> DefaultState(dist.group.WORLD).gradient_predivide_factor
    1.0
    >>> dist.destroy_process_group()
    """

    def __init__(self, process_group):
        check(process_group is not None, type(self).__name__, "a process group", "none", error=ValueError)
        self.process_group, self.world_size = process_group, process_group.size()
        self.gradient_predivide_factor = self._get_gradient_predivide_factor(self.world_size)
        self.gradient_postdivide_factor = self.world_size / self.gradient_predivide_factor

    @staticmethod
    def _get_gradient_predivide_factor(world_size):
        factor = 1
        while world_size % factor == 0 and world_size / factor > factor:
            factor *= 2
        return float(factor)


class LowPrecisionState(DefaultState):
    """The same for hooks that travel with fewer digits. Gradients come back in the dtype in which the hook got them, whatever
    `parameter_type` says."""

    def __init__(self, process_group, parameter_type=float32):
        super().__init__(process_group)
        self.parameter_type = parameter_type


def allreduce_hook(state, grad):
    """The average over all ranks, in place: what happens without a hook under NO_SHARD."""
    grad.div_(state.gradient_predivide_factor)
    dist.all_reduce(grad, group=state.process_group)
    grad.div_(state.gradient_postdivide_factor)


def reduce_scatter_hook(state, grad, output):
    """This rank's part of the average over all ranks, in `output`: what happens without a hook otherwise."""
    grad.div_(state.gradient_predivide_factor)
    dist.reduce_scatter_tensor(output, grad, group=state.process_group)
    output.div_(state.gradient_postdivide_factor)


def _compressed(kind, state, grad, output):
    low = grad.to(kind)
    if output is None:
        allreduce_hook(state, low)
        grad.copy_(low)
        return
    part = output.to(kind)
    reduce_scatter_hook(state, low, part)
    output.copy_(part)


def fp16_compress_hook(state, grad, output=None):
    """The average over all ranks, in float16 on the way."""
    _compressed(float16, state, grad, output)


def bf16_compress_hook(state, grad, output=None):
    """The average over all ranks, in bfloat16 on the way."""
    _compressed(bfloat16, state, grad, output)
