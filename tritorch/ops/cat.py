"""The operator behind cat and stack: tensors one after the other, up to eight of them in one launch."""
import itertools
from math import gcd, prod

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.dispatch import common_device, op
from tritorch.dtype import promote, types
from tritorch.errors import check
from tritorch.memory_format import like_image, suggested
from tritorch.ops import slicing
from tritorch.ops.copy import transfer
from tritorch.ops.tiling import even_parts
from tritorch.pairs import OWN, both
from tritorch.repeat import repeating
from tritorch.shape import cdiv, memory_order, wrap_dim
from tritorch.tensor import in_order, strided

K = kernels("shaping")
TOGETHER = 8                                                             # tensors in one launch
SHORT = 16                                                               # elements of the longest rows that are written with others


@op
def concatenated(tensors, dim, sizes):
    """The tensors one after the other along `dim`, in which they have `sizes`."""
    check(len(tensors) > 0, "cat", "at least one tensor", "none")
    parts = [t for t in tensors if t.shape != (0,)] or tensors[:1]       # PyTorch lets empty 1-d tensors pass
    first = parts[0].shape
    check(len(first) > 0, "cat", "tensors of at least one dim", "0 dims")
    d = wrap_dim(dim, len(first), "cat")
    for t in parts[1:]:
        fits = len(t.shape) == len(first) and all(a == b for k, (a, b) in enumerate(zip(t.shape, first)) if k != d)
        check(fits, "cat", f"sizes that agree in all dims but {d}", first, t.shape)
    total = sum([t.shape[d] for t in parts])
    shape = (*first[:d], total, *first[d + 1:])
    together = len({suggested(t.shape, t.strides) for t in parts}) == 1
    return shape, promote(*tensors), common_device("cat", *parts), like_image(shape, parts[0]) if together else None


def _concatenated_cuda(out, tensors, dim, sizes):
    parts = [t for t in tensors if t.numel()]
    d = wrap_dim(dim, len(out.shape), "cat")
    if out.dtype is types.complex128 and all(t.dtype is out.dtype and t.ndim == out.ndim for t in parts):
        out, parts = both(out), [both(t) for t in parts]                 # words of 64 bits
    if not out.is_contiguous() and all(t.ndim == out.ndim for t in parts):             # channels last: the same with the dims in that order
        order, parts = out.strides, [in_order(t, out.strides) for t in parts]
        out, d = in_order(out, order), memory_order(order).index(d)
    if out.is_contiguous() and all(t.dtype is out.dtype and t.storage.device is out.storage.device and t.is_contiguous() for t in parts):
        _join(out, parts, d)
    else:
        concatenated_any(out, parts, d, sizes)


_run, *_again = repeating(_concatenated_cuda, concatenated)
concatenated.impl("cuda", raw=True)(_run)                                # raw: empty 1-d tensors may be on the CPU
concatenated.repeat(*_again)


def _join(out, parts, d):
    """Contiguous tensors of one dtype one after the other, `TOGETHER` of them in one launch."""
    rows, inner = prod(out.shape[:d]), prod(out.shape[d + 1:])
    total, start = out.shape[d] * inner, 0
    for first in range(0, len(parts), TOGETHER):
        some = parts[first:first + TOGETHER]
        widths = tuple([t.shape[d] * inner for t in some])
        starts = tuple([start + n for n in itertools.accumulate((0, *widths[:-1]))])
        start = starts[-1] + widths[-1]
        if total <= SHORT and len(parts) <= TOGETHER:
            return _join_short(out, tuple(some), starts, widths, total)
        even = gcd(16, total, *starts, *widths)
        most = max(4096 // out.dtype.itemsize, 512)
        n = tile(even_parts(max(widths), most), 1024)
        m = tile(max(most // n, 1), 64)
        launch(K.join_kernel, (cdiv(rows, m) * cdiv(max(widths), n), len(some)), out, tuple(some), starts, widths, total, rows,
               EVEN=1 if even == 16 else even, BLOCK_M=m, BLOCK_N=n)


def _join_short(out, parts, starts, widths, total):
    """All of them at once, in whole lines of memory: two bfloat16 columns of 16M take 33 µs, not 48."""
    block, n = tile(1024, 1 << 14), out.numel()
    if len(parts) in (2, 4, 8) and total == len(parts):
        block = block // 2 if total == 8 else block
        launch(K.interleave_kernel, (cdiv(n // total, block),), out, parts, n // total, LOG=total.bit_length() - 1, BLOCK=block)
    elif 3 <= len(parts) == total and out.dtype.itemsize <= 4:           # three columns of 16M bfloat16: 48 µs, not 86 (predicted)
        log, rows = 3 if out.dtype.itemsize < 4 else 2, n // total
        block = tile(64, 1 << 12)
        launch(K.lace_kernel, (cdiv(cdiv(rows, 1 << log), block),), out, parts, rows, LOG=log, WIDE=n + (block * total << log) >= 1 << 31,
               BLOCK=block, num_warps=2)
    else:
        launch(K.join_short_kernel, (cdiv(n, block),), out, parts, starts, widths, n, TOTAL=total, WIDE=n >= 1 << 31,
               BLOCK=block)


@concatenated.impl("cpu", raw=True)
def concatenated_any(out, tensors, dim, sizes):
    d, start = wrap_dim(dim, len(out.shape), "cat"), 0
    for t in tensors:
        if t.shape == (0,) and len(out.shape) != 1:
            continue
        shape = list(out.shape)
        shape[d] = t.shape[d]
        transfer(strided(out.storage, tuple(shape), out.strides, out.offset + start * out.strides[d], out.dtype), t)
        start += t.shape[d]


concatenated.complex = OWN


@concatenated.grad("tensors")
def concatenated_grad(g, dim, sizes):
    pieces, start, d = [], 0, wrap_dim(dim, len(g.shape), "cat")
    for n in sizes:
        pieces.append(g.new_zeros(0) if n is None else slicing.slice_dim(g, d, start, start + n, 1))
        start += n or 0
    return tuple(pieces)


@concatenated.samples
def concatenated_samples(make):
    yield (make(2, 3), make(4, 3)), 0, (2, 4)
    yield (make(2, 3), make(2, 1), make(2, 0)), -1, (3, 1, 0)
    yield (make(5),), 0, (5,)
    yield (make(9, 1), make(9, 1), make(9, 1)), 1, (1, 1, 1)
    yield (make(0), make(3, 2)), 0, (None, 3)
    yield (make(3, grad=False), make(2, integer=True)), 0, (3, 2)


@concatenated.workloads
def concatenated_workloads(make):
    for kind in types.float32, types.bfloat16:
        n = (1 << 16) // kind.itemsize
        for dim in 0, 1:
            yield (f"2 x ({n}, 4096) {kind.name}, dim {dim}",
                   lambda n=n, kind=kind, dim=dim: ((make(n, 4096, dtype=kind),) * 2, dim, ((n, n), (4096, 4096))[dim]), 1 << 30, 0)
