"""hash_tensor: one number of 64 bits that tells whether elements changed."""
import numpy as np

from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops.copy import deliver
from tritorch.ops.extremes import check_not_empty
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.reduce import dims_of
from tritorch.ops.rows import kept
from tritorch.pairs import refuse


@op
def xor_bits(input, dim=None, keepdim=False):
    """The exclusive or, bit by bit, of int64 elements over `dim`.

    >>> import tritorch as torch; xor_bits(torch.tensor([1, 3, 4])).item()
    6
    """
    check(input.dtype is types.int64, "xor_bits", "int64", input.dtype)
    return kept(input.shape, dims_of(dim, input.ndim, "hash_tensor"), keepdim), types.int64, input.device


@xor_bits.impl("cpu")
def xor_bits_cpu(out, x, dim, keepdim):
    out[...] = np.bitwise_xor.reduce(x, axis=dims_of(dim, x.ndim, "hash_tensor"), keepdims=keepdim)


@xor_bits.impl("cuda")
def xor_bits_cuda(out, x, dim, keepdim):
    reduce_rows([out], [x], dims_of(dim, x.ndim, "hash_tensor"), keepdim, Monoid("sum", "xor"), types.int64)


@xor_bits.samples
def xor_bits_samples(make):
    numbers = dict(integer=True, low=-(1 << 40), high=1 << 40)
    for shape, *rest in (((3, 5),), ((2, 3, 5), 1), ((2, 3, 7), (0, -1)), ((4, 9), 0, True), ((37, 43), -1), ((),), ((3, 0, 2), 2)):
        yield make(*shape, **numbers).to(types.int64), *rest


@xor_bits.errors
def xor_bits_errors(make):
    yield (make(2, 3, integer=True).to(types.int64), 2), {}, IndexError, "expected a dim in [-2, 1], got 2"
    yield (make(2, 3),), {}, RuntimeError, "expected int64"


@xor_bits.workloads
def xor_bits_workloads(make):
    yield "16M int64", lambda: (make(1 << 24, integer=True, low=0, high=1 << 40),), 8 << 24, 1 << 24


@explained
def hash_tensor(input, dim=None, keepdim=False, *, mode=0, out=None):
    """The exclusive or of the bits of elements, each as float64 or int64, over `dim` (an int or a tuple; None for all).

    There is no other mode than 0. The result is int64: tensors have no uint64, in which PyTorch has the same bits. Raises RuntimeError or
    IndexError where there is no element.

    >>> import tritorch as torch
    >>> torch.hash_tensor(torch.tensor([[1, 2], [4, 4]])), torch.hash_tensor(torch.tensor([[1.0, 2.0], [4.0, 4.0]]), 1)
    (tensor(3), tensor([9218868437227405312,                   0]))
    """
    check(mode == 0, "hash_tensor", "mode 0", mode)
    if input.dtype.is_complex:
        refuse("hash_tensor", input)
    over_all = dim is None or dim == () or dim == []
    check(input.numel() or not over_all, "hash_tensor", "an element, or a dim", tuple(input.shape))
    check_not_empty("hash_tensor", input, dims_of(dim, input.ndim, "hash_tensor"))
    bits = input.detach().double().view(types.int64) if input.dtype.is_floating_point else input.to(types.int64)
    return deliver(xor_bits(bits, dim, keepdim), out, exact=True)
