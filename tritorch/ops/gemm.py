"""Matrix products on a GPU: from tensors to the geometry that kernels take, and the start of the kernel that gemm_choice.py ranks first
or the tuner has found to be fastest."""
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from tritorch.cuda import driver, tuner
from tritorch.cuda.device import current_device
from tritorch.cuda.launch import TensorDescriptor, kernels, launch, tile
from tritorch.ops import gemm_choice as choice
from tritorch.ops.gemm_choice import GROUP_M
from tritorch.ops.rows import coalesce
from tritorch.precision import dot_precision
from tritorch.shape import broadcast_strides, cdiv, contiguous_strides, extent
from tritorch.tensor import empty

K, VECTOR, PERSISTENT, GLUON = [kernels(name) for name in ("matmul", "matvec", "matmul_persistent", "matmul_gluon")]
ACTIVATIONS = kernels("activation")


class Problem(NamedTuple):
    """Everything about a product but its pointers and scalars. Rows of the batch have joined M where one b serves them all."""

    shape: tuple
    batch: tuple
    M: int
    N: int
    k: int
    out: tuple
    """Of each operand: its batch strides, row stride and column stride."""
    a: tuple
    b: tuple
    c: tuple
    dtype: object
    precision: str
    dot: bool
    form: str | None
    wide: bool
    boxes: dict | None
    key: tuple
    candidates: list


def gemm(out, a, b, c=None, alpha=1, beta=1, activation=None, pre=None, slope=None):
    """out = alpha · a @ b + beta · c on a CUDA device: a (…, m, k), b (…, k, n) and c broadcast to out (…, m, n).

    `activation` is the name of a function in triton_kernels/activation.py that is applied to that, rounded to out's dtype; `pre`, laid out
    as out, takes the values before it. `slope` names the derivative of one: out = slope(alpha · a @ b, c).
    """
    if not out.numel():
        return
    dtype = a.dtype
    c, nothing, alpha, beta = None if beta == 0 else c, alpha == 0, _scalar(alpha, dtype), _scalar(beta, dtype)
    aligned = not (a.data_ptr() | b.data_ptr() | out.data_ptr() | (0 if pre is None else pre.data_ptr())) & 15
    machine = hardware()
    p = problem(out.shape, out.strides, a.shape, a.strides, b.shape, b.strides, None if c is None else (c.shape, c.strides), dtype,
                dot_precision(dtype), machine, aligned, nothing, slope or activation, driver.current().name != "simulated")
    fused = dict(SLOPE=slope and getattr(ACTIVATIONS, slope), ACTIVATION=activation and getattr(ACTIVATIONS, activation))
    tensors = out, pre, a, b, c, alpha, beta

    def run(candidate):
        options = {name: value for name, value in candidate.items() if name not in ("kernel", "splits")}
        RUN[candidate["kernel"]](p, candidate.get("splits", 1), tensors, fused, options)

    run(tuner.choose("matmul", p.key, p.candidates, run=run) if machine else p.candidates[0])


def _scalar(value, dtype):
    """A factor as the kernel wants it: None leaves it out."""
    if value == 1:
        return None
    return int(value) if not dtype.is_floating_point else np.float64(value) if dtype.name == "float64" else float(value)


def hardware():
    """(multiprocessors, shared memory of a block in bytes, major compute capability); None: the simulated device wants its own tiles."""
    if not tile(1, 0):
        return None
    return _facts(current_device())


@lru_cache
def _facts(index):
    facts = driver.current().device_properties(index)
    return facts.multi_processor_count, facts.shared_memory_per_block_optin, facts.major


driver.watchers.append(_facts.cache_clear)


# ------------------------------------------------------------------ geometry
@lru_cache(maxsize=4096)
def problem(shape, so, shape_a, sa, shape_b, sb, c, dtype, precision, machine, aligned, no_product, fused, compiles):
    """The Problem of a product; it depends on shapes, strides, dtype and machine alone. `compiles`: kernels run as machine code."""
    M, N, k = shape[-2], shape[-1], 0 if no_product else shape_a[-1]
    sc = broadcast_strides(*c, shape) if c else (0,) * len(shape)
    sa = broadcast_strides(shape_a, sa, (*shape[:-1], shape_a[-1]))
    sb = broadcast_strides(shape_b, sb, (*shape[:-2], *shape_b[-2:]))
    # rows join the batch, and come back as its last dim: where b is the same for all of a batch, its rows become one tall matrix
    batch, strides = coalesce((*shape[:-2], M), so[:-1], sa[:-1], (*sb[:-2], 0), sc[:-1])
    rows = (1, 0, 0, 0, 0)
    if strides[2][-1] == 0:
        rows = (batch[-1], *[s[-1] for s in strides])
        batch, strides = (batch[:-1], tuple([s[:-1] for s in strides])) if len(batch) > 1 else ((1,), ((0,),) * 4)
    M, om, am, _, cm = rows
    ob, ab, bb, cb = strides
    o, a, b, c_strides = (ob, om, so[-1]), (ab, am, sa[-1]), (bb, *sb[-2:]), (cb, cm, sc[-1])
    spans = ((M, N), o[1:]), ((M, k), a[1:]), ((k, N), b[1:]), ((M, N), c_strides[1:])
    form = None if c is None else "tile" if cm and sc[-1] else "column" if cm else "row"
    boxes = None
    if machine and machine[2] in (9, 10) and dtype.name in ("float16", "bfloat16") and aligned and len(batch) == 1 and k >= 64:
        boxes = {name: described(batch[0], *size, (s[0][0], *s[1:])) for name, size, s in (("a", (M, k), a), ("b", (k, N), b),
                                                                                           ("out", (M, N), o))}
        if None in boxes.values() or boxes["out"][0]:
            boxes = None
    kind = kind_of(dtype, precision, k, aligned and _even(am, sa[-1]) and _even(*sb[-2:]))
    found = candidates(kind, M, N, k, prod(batch), dtype.itemsize, machine, a, b, boxes, compiles)
    key = (kind, None if boxes is None else (boxes["a"][0], boxes["b"][0]), fused or "", prod(batch), M, N, k)
    wide = max(extent(*s) for s in spans) > 0x7FF00000
    return Problem(shape, batch, M, N, k, o, a, b, c_strides, dtype, precision, kind != "sum", form, wide, boxes, key, found)


def candidates(kind, M, N, k, batch, itemsize, machine, a, b, boxes, compiles):
    """The ways to compute a product that gemm_choice.py proposes."""
    if M == 1 or N == 1:
        along_k = a[2] == 1 if M > 1 else b[1] == 1
        return choice.likeliest((choice.vector(max(M, N), k, batch, along_k, machine), 8))
    groups = [(choice.plain(kind, M, N, k, batch, itemsize, machine), 6)]
    if boxes is not None:
        groups.append((choice.persistent(M, N, k, batch, machine), 2 if compiles and machine[2] == 9 else 4))
        if compiles and machine[2] == 9:
            groups.append((choice.gluon(M, N, k, batch, machine), 4))
    return choice.likeliest(*groups)


def _even(row, column):
    """Whether one step is 1 and the other a multiple of 16 bytes of a 16-bit type."""
    return column == 1 and row % 8 == 0 or row == 1 and column % 8 == 0


def kind_of(dtype, precision, k, even):
    """The row of gemm_choice.TILES for a product of enough rows and columns."""
    if dtype.name == "int8" and k < 1 << 17:                             # beyond that an int32 sum could saturate where it must wrap
        return "int8"
    if not dtype.is_floating_point:
        return "sum"
    return "fp64" if dtype.itemsize == 8 else precision if dtype.itemsize == 4 else "half" if even else "odd"


def described(batch, rows, columns, strides):
    """(transposed, shape, strides) of a 16-bit matrix batch as TMA reads it, or None where it cannot."""
    step, row, column = strides
    turned = column != 1
    if turned:
        rows, columns, row, column = columns, rows, column, row
    step = step if batch > 1 else rows * row
    if column != 1 or row % 8 or step % 8 or row < columns or step <= 0:
        return None
    return turned, (batch, rows, columns), (step, row, 1)


# ------------------------------------------------------------------ starting kernels
def _batches(shape, *strides):
    """Sizes and strides of the batch dims as the kernels take them."""
    return None if prod(shape) == 1 else tuple([n for row in (shape, *strides) for n in row])


def _geometry(p, splits):
    """`batches`, then out's strides between splits, rows and columns; parts of a split product are one after the other."""
    if splits == 1:
        return _batches(p.batch, p.out[0], p.a[0], p.b[0], p.c[0]), 0, *p.out[1:]
    parts = [s * p.M * p.N for s in contiguous_strides(p.batch)]
    return _batches(p.batch, parts, p.a[0], p.b[0], p.c[0]), prod(p.batch) * p.M * p.N, p.N, 1


def _in_parts(p, splits, block_k, tensors, fused, start):
    """start(how many splits, elements of K in each, tensors, what is fused), then the sum of the parts if there are several."""
    span = choice.span_of(p.k, block_k, splits)
    splits = cdiv(p.k, span) if span else 1
    if splits == 1:
        return start(1, span, tensors, fused, p.form)
    out, pre, a, b, c, alpha, beta = tensors
    parts = empty((splits, *p.shape), p.dtype.compute, out.device)
    start(splits, span, (parts, None, a, b, None, None, None), dict(SLOPE=None, ACTIVATION=None), None)
    block, total = tile(256, 4096), out.numel()
    launch(K.split_sum_kernel, (cdiv(total, block),), out, pre, parts, c, _batches(p.batch, p.out[0], p.a[0], p.b[0], p.c[0]), *p.out[1:],
           *p.c[1:], p.M, p.N, total, alpha, beta, SPLITS=splits, BLOCK=block, **fused)


def run_plain(p, splits, tensors, fused, options):
    """The tiled kernel of any layout."""
    programs = choice.tiles_of(p.M, p.N, prod(p.batch), options["BLOCK_M"], options["BLOCK_N"])

    def start(splits, span, tensors, fused, form):
        *pointers, alpha, beta = tensors
        launch(K.matmul_kernel, (programs, splits), *pointers, *_geometry(p, splits), *p.a[1:], *p.b[1:], *p.c[1:], p.M, p.N, p.k, span,
               alpha, beta, FORM=form, DOT=p.dot, PRECISION=p.precision, EVEN_K=p.k == splits * span, WIDE=p.wide, GROUP_M=GROUP_M, **fused,
               **options)

    _in_parts(p, splits, options["BLOCK_K"], tensors, fused, start)


def run_vector(p, splits, tensors, fused, options):
    """A matrix times a vector: b is the matrix if M is 1, else a."""
    N, turned = max(p.M, p.N), p.M == 1
    w, x, along = ((p.b[2], p.b[1]), p.a[2], 2) if turned else (p.a[1:], p.b[1], 1)

    def start(splits, span, tensors, fused, form):
        out, pre, a, b, c, alpha, beta = tensors
        batches, step, *strides = _geometry(p, splits)
        launch(VECTOR.matvec_kernel, (cdiv(N, options["BLOCK_N"]) * prod(p.batch), splits), out, pre, *((b, a) if turned else (a, b)), c,
               batches, step, strides[along - 1], *w, x, p.c[along], N, p.k, span, alpha, beta, EVEN_K=p.k == splits * span, WIDE=p.wide,
               TURNED=turned, **fused, **options)

    _in_parts(p, splits, options["BLOCK_K"], tensors, fused, start)


def run_by_tma(kernel, p, tensors, fused, options):
    """A persistent kernel: as many programs as multiprocessors."""
    out, pre, a, b, c, alpha, beta = tensors
    block_m, block_n, block_k = [options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    programs = min(choice.tiles_of(p.M, p.N, p.batch[0], block_m, block_n), hardware()[0])
    boxes = (("out", block_m, block_n // options["PIECES"]), ("a", block_m, block_k), ("b", block_k, block_n))
    boxes = {name: box(p.boxes[name], rows, columns) for name, rows, columns in boxes}
    out, pre, a, b = [x if x is None else TensorDescriptor(x, *boxes[name]) for x, name in ((out, "out"), (pre, "out"), (a, "a"), (b, "b"))]
    launch(kernel, (programs,), out, pre, a, b, c, p.c[0][0], *p.c[1:], p.batch[0], p.M, p.N, p.k, alpha, beta, TRANS_A=p.boxes["a"][0],
           TRANS_B=p.boxes["b"][0], FORM=p.form, PROGRAMS=programs, GROUP_M=GROUP_M, **fused, **options)


def box(matrix, rows, columns):
    """(block, shape, strides) of a descriptor of a matrix batch."""
    turned, shape, strides = matrix
    return (1, columns, rows) if turned else (1, rows, columns), shape, strides


RUN = {
    "plain": run_plain, "vector": run_vector,
    "persistent": lambda p, splits, *rest: run_by_tma(PERSISTENT.matmul_persistent_kernel, p, *rest),
    "gluon": lambda p, splits, *rest: run_by_tma(GLUON.matmul_gluon_kernel, p, *rest),
}
