"""Hooks for `DistributedDataParallel.register_comm_hook`: gradients travel as they are, or in 16 bits, which is half the way for float32.

The state of a hook is the process group, None for the group of all processes.
"""
from tritorch import distributed as dist
from tritorch.dtype import bfloat16, float16

__all__ = ["allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper"]


def _average(group, tensor):
    """A Future of the averages over all ranks, in the memory of `tensor`."""
    group = dist.group.WORLD if group is None else group
    tensor.div_(group.size())                                            # before the sum, which may be too large for 16 bits
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda future: future.value()[0])


def _compressed(dtype, group, bucket):
    buffer = bucket.buffer()
    return _average(group, buffer.to(dtype, copy=True)).then(lambda future: buffer.copy_(future.value()))


def allreduce_hook(process_group, bucket):
    """The average over all ranks: what happens without a hook.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.algorithms.ddp_comm_hooks import default_hooks
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    >>> model.register_comm_hook(None, default_hooks.allreduce_hook)
    >>> model(torch.ones(1, 2)).backward(); model.module.weight.grad
    tensor([[1., 1.]])
    >>> dist.destroy_process_group()
    """
    return _average(process_group, bucket.buffer())


def fp16_compress_hook(process_group, bucket):
    """The average over all ranks, divided and summed in float16: gradients above 65504 become infinite, below 6e-8 zero."""
    return _compressed(float16, process_group, bucket)


def bf16_compress_hook(process_group, bucket):
    """The average over all ranks, divided and summed in bfloat16: float32's range with 8 bits of precision."""
    return _compressed(bfloat16, process_group, bucket)


def _wrapper(dtype, hook, name):
    def wrapped(state, bucket):
        whole = bucket.buffer()
        bucket.set_buffer(whole.to(dtype))
        return hook(state, bucket).then(lambda future: whole.copy_(future.value()))

    wrapped.__name__ = wrapped.__qualname__ = name
    return wrapped


def fp16_compress_wrapper(hook):
    """A hook that gives `hook` a bucket in float16 and makes of its result what the gradients are."""
    return _wrapper(float16, hook, "fp16_compress_wrapper_hook")


def bf16_compress_wrapper(hook):
    """A hook that gives `hook` a bucket in bfloat16 and makes of its result what the gradients are."""
    return _wrapper(bfloat16, hook, "bf16_compress_wrapper_hook")
