"""Values that must lie within bounds: the CPU looks at once, a GPU reports where the host next waits for it (tritorch/cuda/faults.py)."""
import numpy as np

from tritorch.cuda.launch import kernels
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.ops.faults import fault_word
from tritorch.ops.filling import filled
from tritorch.storage import Batched

K = kernels("indexing")
TINY, HUGE = 5e-324, float(np.finfo(np.float64).max)                     # above zero, and not infinite


def every(x):
    """x itself; inside of vmap, where it is one sample, all of them. Checks look at it: a value that all have may be asked for."""
    while type(x.storage) is Batched:
        x = x.storage.level.whole(x.detach())
    return x


@op
def within(x, low, high, name, expected):
    """x itself, if every element is from low to high (NaN is not); else RuntimeError: `name`: expected `expected`, got …

    >>> import tritorch as torch
    >>> within(torch.tensor([0, 2]), 0, 2, "one_hot", "class values in [0, 2]")
    tensor([0, 2])
    """
    return x.shape, x.dtype, x.device


@within.impl("cpu")
def within_cpu(out, x, low, high, name, expected):
    bad = ~((x >= np.float64(low)) & (x <= np.float64(high)))            # a plain number would take the dtype of x, where it may be 0
    if bad.any():
        check(False, name, expected, x[bad].flat[0])
    out[...] = x


@within.impl("cuda")
def within_cuda(out, x, low, high, name, expected):
    word, number = fault_word(out.device, name, expected, RuntimeError)
    filled(out, K.within_kernel, word, x.contiguous(), out.numel(), np.float64(low), np.float64(high), number)


@within.grad("x")
def within_grad(g):
    return g


@within.samples
def within_samples(make):
    for shape in ((3, 5), (), (0, 2), (1300,)):
        yield make(*shape), -HUGE, HUGE, "within", "finite numbers"
    yield make(2, 7, integer=True, low=0, high=3), 0, 3, "within", "numbers up to 3"


@within.errors
def within_errors(make):
    yield (make(3, positive=True), -1.0, 0.0, "within", "negative numbers"), {}, RuntimeError, "expected negative numbers"


@within.workloads
def within_workloads(make):
    yield "16M float32", lambda: (make(1 << 24), -HUGE, HUGE, "within", "finite numbers"), 8 << 24, 0
