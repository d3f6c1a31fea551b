"""Frames of signals, which overlap, and signals added up of frames: each is the gradient of the other."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import view
from tritorch.pairs import Parts
from tritorch.shape import cdiv
from tritorch.tensor import strided

K = kernels("frames")


@op
def frames(input, size, step):
    """The frames of `size` that begin every `step` along the last dim of (…, T), a view: (…, count, size).

    >>> import tritorch as torch; from tritorch.ops.frames import frames
    >>> frames(torch.arange(4), 2, 1).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    check(input.ndim > 0 and 0 < size <= input.shape[-1], "frames", f"a last dim of at least {size}", input.shape)
    check(step > 0, "frames", "a step of at least 1", step)
    count, stride = (input.shape[-1] - size) // step + 1, input.strides[-1]
    return strided(input.storage, (*input.shape[:-1], count, size), (*input.strides[:-1], step * stride, stride), input.offset, input.dtype)


@op
def overlap_add(input, step, length):
    """Frames (…, count, size) added up to a signal (…, length), frame f from f · step on, what lies behind its end cut off.

    >>> import tritorch as torch; from tritorch.ops.frames import overlap_add
    >>> overlap_add(torch.ones(3, 2), 1, 4).tolist()
    [1.0, 2.0, 2.0, 1.0]
    """
    check(input.dtype.to_real() in (types.float32, types.float64), "overlap_add", "frames of single or double precision", input.dtype)
    return (*input.shape[:-2], length), input.dtype, input.device


overlap_add.complex = Parts()


@overlap_add.impl("cpu")
def overlap_add_cpu(out, input, step, length):
    count, size = input.shape[-2:]
    layers = cdiv(size, step)
    made = np.zeros((*out.shape[:-1], count + layers, step), out.dtype)
    for layer in reversed(range(layers)):
        part = input[..., layer * step:(layer + 1) * step]
        made[..., layer:layer + count, :part.shape[-1]] += part
    made = made.reshape(*out.shape[:-1], (count + layers) * step)
    fits = min(made.shape[-1], length)
    out[..., :fits], out[..., fits:] = made[..., :fits], 0


@overlap_add.impl("cuda")
def overlap_add_cuda(out, input, step, length):
    """One pass; sums are in one order, so that results are the same each time."""
    if not input.numel():
        out.fill_(0)
    if not out.numel() or not input.numel():
        return
    target = out if out.ndim < 3 or out.is_contiguous() else out.new_empty(out.shape)
    count, size = input.shape[-2:]
    x, y, block = view.reshape(input.detach(), -1, count, size), view.reshape(target, -1, length), tile(1024, 1 << 16)
    launch(K.overlap_add_kernel, (y.shape[0] * cdiv(length, block),), y, x, *y.strides, *x.strides, length, count, size, step,
           cdiv(size, step), BLOCK=block)
    if target is not out:
        out.copy_(target)


@frames.grad("input")
def frames_grad(g, input_shape, step):
    return overlap_add(g, step, input_shape[-1])


@overlap_add.grad("input")
def overlap_add_grad(g, input_shape, step):
    count, size = input_shape[-2:]
    reach = (count - 1) * step + size
    return frames(g[..., :reach] if g.shape[-1] >= reach else _longer(g, reach), size, step)


def _longer(g, length):
    """With zeros behind."""
    return overlap_add(g.unsqueeze(-2), g.shape[-1], length)


def precise(make):
    """The dtype of samples, in which half precision is float32."""
    return make.dtype if make.dtype.to_real() in (types.float32, types.float64) else types.float32


@frames.samples
def frames_samples(make):
    kind = precise(make)
    yield make(7, dtype=kind), 3, 2
    yield make(2, 9, dtype=kind), 4, 3
    yield make(2, 2, 5, dtype=kind), 5, 1
    yield make(0, 4, dtype=kind), 2, 1


@overlap_add.samples
def overlap_add_samples(make):
    kind = precise(make)
    yield make(3, 4, dtype=kind), 2, 8
    yield make(2, 3, 5, dtype=kind), 2, 11
    yield make(2, 1, 2, 3, dtype=kind), 4, 6
    yield make(2, 0, 3, 2, dtype=kind), 1, 4


@overlap_add.errors
def overlap_add_errors(make):
    yield (make(3, 4, integer=True), 2, 8), {}, RuntimeError, "single or double precision"


@overlap_add.workloads
def overlap_add_workloads(make):
    yield "64 of 1000 frames of 512 every 128", lambda: (make(64, 1000, 512, grad=False), 128, 128384), 4 * 64 * 128 * 5000, 0
