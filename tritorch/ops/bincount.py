"""How many elements fall into each bin: `bincount`, and the operator that it and `histc` count with."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, sm_count, tile
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.shaping import stack
from tritorch.ops.slicing import narrow
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty

K = kernels("bincount")
FEW = 1024                                                               # bins that a program counts apart


@op
def tally(input, bins, low, high, even):
    """How many elements are in each of `bins` bins, int64: with `even` in equal parts of [low, high], the last of which has both its ends,
    else equal to 0, 1, …, bins - 1. Others are not counted."""
    check(bins >= 0, "tally", "a number of bins that is not negative", bins)
    return (bins,), types.int64, input.storage.device


@tally.impl("cpu")
def tally_cpu(out, input, bins, low, high, even):
    x = input.reshape(-1)
    if even:
        x = x.astype(np.float64)
        x = x[(x >= low) & (x <= high)]
        x = np.minimum(np.floor((x - low) * (bins / (high - low))).astype(np.int64), bins - 1)
    else:
        x = x[(x >= 0) & (x < bins)].astype(np.int64)
    out[...] = np.bincount(x, minlength=bins)


@tally.impl("cuda")
def tally_cuda(out, input, bins, low, high, even):
    n, block = input.numel(), tile(4096, 1 << 14)
    if not bins or not n:
        out.fill_(0)
        return
    x, bounds = input.contiguous(), [np.float64(v) for v in (low, high, bins / (high - low) if even else 1)]
    if bins > tile(FEW, 64):
        target = out if out.is_contiguous() else empty(out.shape, out.dtype, out.device)
        target.fill_(0)
        launch(K.tally_many_kernel, (cdiv(n, block // 4),), target, x, n, *bounds, bins, EVEN=even, BLOCK=block // 4)
        if target is not out:
            out.copy_(target)
        return
    held = max(next_power_of_2(bins), 32)
    chunk = cdiv(cdiv(n, 4 * sm_count()), block) * block
    counts = empty((cdiv(n, chunk), held), types.int32, out.device)
    launch(K.tally_kernel, (counts.shape[0],), counts, x, n, chunk, *bounds, bins, EVEN=even, BINS=held, BLOCK=block)
    reduce_rows([out], [narrow(counts, 1, 0, bins)], (0,), False, Monoid("sum", "sum"), types.int64)


@tally.samples
def tally_samples(make):
    yield make(3, 40, integer=True, low=-2, high=9), 7, 0.0, 0.0, False
    yield make(200, integer=True, low=0, high=99), 100, 0.0, 0.0, False
    yield make(7, 9, grad=False), 5, -1.0, 1.5, True
    yield make(300, grad=False), 80, -1.0, 1.0, True
    yield make(0, integer=True), 3, 0.0, 0.0, False
    yield make(integer=True, low=0, high=3), 4, 0.0, 0.0, False


@tally.workloads
def tally_workloads(make):
    x = make(1 << 24, grad=False)
    yield "16M fp32 in 100 bins", lambda: (x, 100, -1.0, 1.0, True), x.nbytes, 0
    yield "16M int64 in 4096 bins", lambda: (make(1 << 24, integer=True, low=0, high=4096), 4096, 0.0, 0.0, False), 2 * x.nbytes, 0


def bincount(input, weights=None, minlength=0):
    """How often each number from 0 up occurs in a vector of integers, or the sum of their weights."""
    check(len(input.shape) == 1 and not input.dtype.is_floating_point, "bincount", "a vector of integers", input.dtype, input.shape)
    check(minlength >= 0, "bincount", "a minlength of at least 0", minlength)
    least, most = stack(list(input.aminmax())).tolist() if input.numel() else (0, -1)
    check(least >= 0, "bincount", "integers that are not negative", least)
    size = max(int(most) + 1, minlength)
    if weights is None:
        return tally(input, size, 0.0, 0.0, False)
    kind = types.float64 if weights.dtype is not types.float32 else types.float32
    return create.zeros(size, dtype=kind, device=input.device).index_add(0, input.to(types.int64), weights.to(kind))
