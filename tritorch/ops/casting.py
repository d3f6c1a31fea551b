"""Casts of many tensors by one launch."""
from tritorch.cuda.launch import kernels
from tritorch.errors import check
from tritorch.ops.copy import transfer
from tritorch.ops.multitensor import launch_rows, multi_tensor

K = kernels("optimize")


@multi_tensor("tensors", writes="outs")
def cast_all(outs, tensors):
    """out = x for each of `outs` and `tensors`: pairs of one shape, contiguous, the outs of one dtype.

    >>> import tritorch as torch
    >>> low = torch.empty(2, dtype=torch.bfloat16); cast_all([low], [torch.tensor([1.0, 2.5])]); low
    tensor([1.0000, 2.5000], dtype=tritorch.bfloat16)
    """
    fits = all(o.shape == x.shape and o.is_contiguous() and x.is_contiguous() and o.dtype is outs[0].dtype for o, x in zip(outs, tensors))
    check(fits and len(outs) == len(tensors), "cast_all", "contiguous tensors in pairs of one shape, the outs of one dtype",
          [(o.dtype, tuple(o.shape)) for o in outs], [tuple(x.shape) for x in tensors])


@cast_all.impl("cpu")
def cast_all_cpu(outs, tensors):
    for out, x in zip(outs, tensors):
        transfer(out, x)


@cast_all.impl("cuda")
def cast_all_cuda(outs, tensors):
    launch_rows(K.cast_kernel, [tensors, outs], outs[0])
