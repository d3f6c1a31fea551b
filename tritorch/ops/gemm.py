"""How a matrix product is laid out on the kernels of triton_kernels/matmul.py: geometry, tile sizes, splits of K, TMA or pointers."""
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.cuda.launch import TensorDescriptor, kernels, launch, tile
from tritorch.ops.rows import coalesce
from tritorch.precision import dot_precision
from tritorch.shape import broadcast_strides, cdiv, contiguous_strides, extent, next_power_of_2
from tritorch.tensor import empty

K = kernels("matmul")

# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, and the share of the fastest tile's rate that the tile reaches when it fills the GPU.
# "odd" are 16-bit operands whose rows do not start at multiples of 16 bytes: they cannot be copied asynchronously and need registers.
TILES = {
    "tma": ((128, 256, 64, 8, 3, 1.0), (128, 128, 64, 8, 4, 0.9)),
    "half": ((128, 256, 64, 8, 3, 1.0), (128, 128, 64, 4, 3, 0.9), (64, 128, 64, 4, 4, 0.7), (128, 64, 64, 4, 4, 0.7),
             (64, 64, 64, 4, 4, 0.5), (32, 64, 64, 4, 4, 0.3), (64, 32, 64, 4, 4, 0.3), (16, 64, 128, 4, 4, 0.15),
             (64, 16, 128, 4, 4, 0.15)),
    "odd": ((128, 128, 32, 8, 3, 1.0), (64, 64, 32, 4, 3, 0.6), (16, 64, 64, 4, 3, 0.2), (64, 16, 64, 4, 3, 0.2)),
    "tf32": ((128, 128, 32, 8, 3, 1.0), (128, 64, 32, 4, 3, 0.8), (64, 128, 32, 4, 3, 0.8), (64, 64, 32, 4, 4, 0.55),
             (16, 64, 64, 4, 4, 0.15), (64, 16, 64, 4, 4, 0.15)),
    "bf16": ((128, 128, 32, 8, 3, 1.0), (64, 64, 32, 4, 3, 0.55), (16, 64, 64, 4, 3, 0.15), (64, 16, 64, 4, 3, 0.15)),
    "ieee": ((128, 128, 16, 8, 3, 1.0), (64, 128, 16, 8, 3, 0.8), (128, 64, 16, 8, 3, 0.8), (64, 64, 16, 4, 3, 0.7),
             (32, 32, 32, 4, 3, 0.35), (16, 64, 32, 4, 3, 0.3), (64, 16, 32, 4, 3, 0.3)),
    "fp64": ((64, 64, 16, 4, 3, 1.0), (32, 32, 16, 4, 3, 0.6), (16, 16, 32, 4, 3, 0.3)),
    "int8": ((128, 128, 64, 8, 3, 1.0), (64, 64, 64, 4, 3, 0.55), (16, 64, 64, 4, 3, 0.2), (64, 16, 64, 4, 3, 0.2)),
    "sum": ((32, 32, 8, 4, 2, 1.0), (16, 16, 16, 4, 2, 0.6)),
}
GROUP_M = 8


class Plan(NamedTuple):
    """Everything about a product but its pointers and scalars."""

    grid: tuple
    geometry: tuple
    options: dict
    splits: int
    parts: tuple
    sum_geometry: tuple
    tma: dict | None


def gemm(out, a, b, c=None, alpha=1, beta=1):
    """out = alpha · a @ b + beta · c on a CUDA device: a (…, m, k), b (…, k, n) and c broadcast to out (…, m, n)."""
    if not out.numel():
        return
    dtype = a.dtype
    c, alpha, beta, nothing = None if beta == 0 else c, _scalar(alpha, dtype), _scalar(beta, dtype), alpha == 0
    aligned = dtype.itemsize != 2 or not (a.data_ptr() | b.data_ptr() | out.data_ptr()) & 15
    p = plan(out.shape, out.strides, a.shape, a.strides, b.shape, b.strides, None if c is None else (c.shape, c.strides), dtype,
             dot_precision(dtype), hardware(), aligned, nothing)
    if p.tma is not None:
        run_tma(p, out, a, b, c, alpha, beta)
    elif p.splits == 1:
        launch(K.matmul_kernel, p.grid, out, a, b, c, *p.geometry, alpha, beta, **p.options)
    else:
        parts = empty(p.parts, dtype.compute, out.device)
        launch(K.matmul_kernel, p.grid, parts, a, b, None, *p.geometry, None, None, **p.options)
        block = tile(256, 4096)
        launch(K.split_sum_kernel, (cdiv(out.numel(), block),), out, parts, c, *p.sum_geometry, alpha, beta, BLOCK=block)


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


@lru_cache(maxsize=4096)
def plan(shape, so, shape_a, sa, shape_b, sb, c, dtype, precision, machine, aligned, no_product):
    """The Plan of a product; it depends on shapes, strides, dtype and machine alone."""
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
    kind = kind_of(dtype, precision, k, aligned and _even(am, sa[-1]) and _even(*sb[-2:]))
    kind, blocks = choose(kind, M, N, k, prod(batch), dtype.itemsize, machine, sa[-1] == 1, sb[-2] == 1)
    block_m, block_n, block_k, warps, stages = blocks
    programs = cdiv(M, block_m) * cdiv(N, block_n) * prod(batch)
    splits, span = split(programs, k, block_k, machine)
    spans = ((M, N), (om, so[-1])), ((M, k), (am, sa[-1])), ((k, N), sb[-2:]), ((M, N), (cm, sc[-1]))
    options = dict(DOT=kind != "sum", PRECISION=precision, EVEN_K=k == splits * span, WIDE=max(extent(*s) for s in spans) > 0x7FF00000,
                   BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=GROUP_M, num_warps=warps, num_stages=stages)
    first = (_batches(batch, ob, ab, bb, cb), 0, om, so[-1])
    if splits > 1:
        first = (_batches(batch, [s * M * N for s in contiguous_strides(batch)], ab, bb, cb), prod(batch) * M * N, N, 1)
    tma = None
    if aligned and splits == 1 and machine and machine[2] in (9, 10) and dtype.name in ("float16", "bfloat16") and len(batch) == 1:
        tma = plan_tma(batch[0], M, N, k, (ob[0], om, so[-1]), (ab[0], am, sa[-1]), (bb[0], *sb[-2:]), (cb[0], cm, sc[-1]), machine)
    return Plan((programs, splits), (*first, am, sa[-1], *sb[-2:], cm, sc[-1], M, N, k, span), options, splits, (splits, *shape),
                (_batches(batch, ob, ab, bb, cb), om, so[-1], cm, sc[-1], splits, M, N, prod(shape)), tma)


def _batches(shape, *strides):
    """Sizes and strides of the batch dims as the kernels take them."""
    return None if prod(shape) == 1 else tuple([n for row in (shape, *strides) for n in row])


def _even(row, column):
    """Whether one step is 1 and the other a multiple of 16 bytes of a 16-bit type."""
    return column == 1 and row % 8 == 0 or row == 1 and column % 8 == 0


def kind_of(dtype, precision, k, even):
    """The row of TILES for a product of enough rows and columns."""
    if dtype.name == "int8" and k < 1 << 17:                             # beyond that an int32 sum could saturate where it must wrap
        return "int8"
    if not dtype.is_floating_point:
        return "sum"
    return "fp64" if dtype.itemsize == 8 else precision if dtype.itemsize == 4 else "half" if even else "odd"


def choose(kind, M, N, k, batch, itemsize, machine, rows_a, columns_b):
    """Kind of product and tile: the one whose waves over the GPU take least time, at the rate that the table gives."""
    if M == 1 or N == 1:
        return "sum", vector_tile(M, N, k, rows_a if M > 1 else columns_b, machine)
    if machine is None:                                                  # the simulated device: few, huge tiles, yet more than one
        side = 1024 if kind != "sum" else 32
        halves = [min(max(next_power_of_2(n) // 2, 16), side) for n in (M, N)]
        return kind, (*halves, min(max(next_power_of_2(k), 16), side), 4, 3)
    sms, shared, _ = machine
    fitting = [t for t in TILES[kind] if (t[0] + t[1]) * t[2] * itemsize * t[4] <= shared]
    best = min(fitting, key=lambda t: (cdiv(cdiv(M, t[0]) * cdiv(N, t[1]) * batch, sms) * t[0] * t[1] / t[5], -t[0] * t[1]))
    return kind, best[:5]


def vector_tile(M, N, k, along_k, machine):
    """Matrix times vector is a sum of products: every element of the matrix is read once, along its rows."""
    if machine is None:
        long, block_k = min(max(next_power_of_2(max(M, N)) // 2, 1), 256), min(next_power_of_2(max(k, 1)), 1024)
    elif M == N:
        long, block_k = 1, min(next_power_of_2(max(k, 1)), 1024)
    else:
        long, block_k = (8, 256) if along_k else (128, 16)
    return (long, 1, block_k, 4, 3) if M > 1 else (1, long, block_k, 4, 3)


def split(programs, k, block_k, machine):
    """Pieces of K and the elements of each: where the result has too few tiles to fill the GPU, several programs share one."""
    sms = machine[0] if machine else 4
    wanted = min(sms // max(programs, 1), k // (4 * block_k) if machine else cdiv(k, block_k), 64)
    if wanted < 2:
        return 1, cdiv(k, block_k) * block_k
    span = cdiv(cdiv(k, block_k), wanted) * block_k
    return cdiv(k, span), span


# ------------------------------------------------------------------ TMA
def plan_tma(batch, M, N, k, so, sa, sb, sc, machine):
    """How the persistent TMA kernel would do it, or None where it cannot or the plain one is as good. Strides are (batch, row, column)."""
    a, b, o = [_described(batch, rows, columns, s) for rows, columns, s in ((M, k, sa), (k, N, sb), (M, N, so))]
    if k < 64 or a is None or b is None or o is None or o[0]:
        return None
    sms, shared, _ = machine
    fitting = [t for t in TILES["tma"] if ((t[0] + t[1]) * t[2] * t[4] + t[0] * t[1]) * 2 <= shared - 1024]
    tiles = [(cdiv(M, t[0]) * cdiv(N, t[1]) * batch, t) for t in fitting]
    tiles = [(n, t) for n, t in tiles if 2 * n > sms]
    if not tiles:
        return None
    n, (block_m, block_n, block_k, warps, stages, _) = min(tiles, key=lambda x: cdiv(x[0], sms) * x[1][0] * x[1][1] / x[1][5])
    return dict(a=_boxes(a, block_m, block_k), b=_boxes(b, block_k, block_n), out=_boxes(o, block_m, block_n),
                geometry=(*sc, batch, M, N, k), programs=min(n, sms),
                options=dict(TRANS_A=a[0], TRANS_B=b[0], PROGRAMS=min(n, sms), BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
                             GROUP_M=GROUP_M, num_warps=warps, num_stages=stages))


def _described(batch, rows, columns, strides):
    """(transposed, shape, strides) of a 16-bit matrix batch as TMA reads it, or None where it cannot."""
    step, row, column = strides
    turned = column != 1
    if turned:
        rows, columns, row, column = columns, rows, column, row
    step = step if batch > 1 else rows * row
    if column != 1 or row % 8 or step % 8 or row < columns or step <= 0:
        return None
    return turned, (batch, rows, columns), (step, row, 1)


def _boxes(described, rows, columns):
    turned, shape, strides = described
    return (1, columns, rows) if turned else (1, rows, columns), shape, strides


def run_tma(p, out, a, b, c, alpha, beta):
    """Start the persistent kernel of a Plan."""
    t = p.tma
    launch(K.matmul_tma_kernel, (t["programs"],), *[TensorDescriptor(x, *t[name]) for x, name in ((out, "out"), (a, "a"), (b, "b"))], c,
           *t["geometry"], alpha, beta, **t["options"])
