"""Matrix products on a GPU: from tensors to the geometry that kernels take. gemm_choice.py ranks the kernels that would do, the tuner may
know better, gemm_run.py starts the one."""
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from tritorch.cuda import driver, tuner
from tritorch.cuda.device import current_device
from tritorch.cuda.launch import compiled_for_host, kernels, tile
from tritorch.ops import gemm_choice as choice
from tritorch.ops import gemm_host
from tritorch.ops.gemm_pairs import joined, paired
from tritorch.ops.gemm_run import RUN
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.pointwise import add
from tritorch.ops.rows import coalesce
from tritorch.precision import dot_precision
from tritorch.shape import broadcast_strides, cdiv, extent
from tritorch.tensor import empty, empty_strided

ACTIVATIONS = kernels("activation")
MOST = 0x7FF00000                   # what 32-bit numbers in kernels reach: offsets, and TMA's coordinates


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


def gemm(out, a, b, c=None, alpha=1, beta=1, activation=None, pre=None, slope=None, row_sums=None, fast=False,
         behind=None):
    """out = alpha · a @ b + beta · c on a CUDA device: a (…, m, k), b (…, k, n) and c broadcast to out (…, m, n).

    alpha is a number, or tensors that hold one number each or one for every row and column of out (m, n). `fast`: sums of float8 products
    may be as inexact as the matrix units make them.

    `activation` is the name of a function in triton_kernels/activation.py that is applied to that, rounded to out's dtype; `pre`, laid out
    as out, takes the values before it. `slope` names the derivative of one: out = slope(alpha · a @ b, c). `row_sums`, (m,) in a's compute
    dtype and contiguous, takes Σₖ a[:, k] of one matrix, with c added to what is there: on Hopper from the tiles that the product has in
    shared memory anyway. `behind`: what
    `behind` in triton_kernels/matmul.py takes, for a contiguous out (m, n) and a residual like it; n is even if elements are dropped.
    """
    if not out.numel():
        if row_sums is not None:
            total(row_sums, a, c is not None)
        return
    dtype = a.dtype
    if dtype.is_complex:
        from tritorch.ops.complex_gemm import complex_gemm

        return complex_gemm(gemm, out, a, b, c, alpha, beta)
    nothing, precision = type(alpha) is not tuple and alpha == 0, dot_precision(dtype)
    c, alpha, beta = None if beta == 0 else c, _scalar(alpha, dtype), _scalar(beta, dtype)
    aligned = not (a.data_ptr() | b.data_ptr() | out.data_ptr() | (0 if pre is None else pre.data_ptr())) & 15
    machine, inside = hardware(), row_sums is not None and dtype.itemsize == 2
    more = slope or activation or behind and ("residual" if len(behind) == 1 else "dropout") or inside and "sums"
    p = problem(out.shape, out.strides, a.shape, a.strides, b.shape, b.strides, None if c is None else (c.shape, c.strides), dtype,
                precision + " fast" if fast and precision == "fp8" else precision, machine, aligned, nothing, more,
                not driver.on_host(), out.dtype.itemsize)
    beta = behind or beta
    fused = dict(SLOPE=slope and getattr(ACTIVATIONS, slope), ACTIVATION=activation and getattr(ACTIVATIONS, activation))

    def run(candidate, out=out, row_sums=row_sums):
        options = {name: value for name, value in candidate.items() if name not in ("kernel", "splits")}
        kind = candidate["kernel"]
        sums = {"sums": row_sums} if inside and kind == "gluon" else {}
        RUN[kind](p, candidate.get("splits", 1), (out, pre, a, b, c, alpha, beta), fused, options, **sums)
        if row_sums is not None and not sums:
            total(row_sums, a, c is not None)

    def trial(candidate):                                                # one of many: not into what the next one adds to
        adds = c is not None and c.storage is out.storage
        spare = [x if x is None or not adds else empty_strided(x.shape, x.strides, x.dtype, x.device) for x in (out, row_sums)]
        run(candidate, *spare)

    run(tuner.choose("matmul", p.key, p.candidates, run=trial) if machine else p.candidates[0])


def total(out, x, adds):
    """The sums of a matrix's rows; `adds`: to what is in out."""
    sums = empty(out.shape, out.dtype, out.device) if adds else out
    reduce_rows([sums], [x], (1,), False, Monoid("sum", "sum"), out.dtype)
    if adds:
        add.impls["cuda"](out, out, sums, 1)


def _scalar(value, dtype):
    """A factor as the kernel wants it: None leaves it out."""
    if type(value) is tuple:
        rows, columns = value
        return (rows, 0 if rows.numel() == 1 else rows.strides[0], columns, 0 if columns.numel() == 1 else columns.strides[-1])
    if value == 1:
        return None
    return int(value) if not dtype.is_floating_point else np.float64(value) if dtype.name == "float64" else float(value)


def hardware():
    """(multiprocessors, shared memory of a block in bytes, major compute capability, 0 where kernels run on the processors of the host);
    None: the simulated device wants its own tiles."""
    if not tile(1, 0):
        return None
    return _facts(current_device())


@lru_cache
def _facts(index):
    facts = driver.current().device_properties(index)
    return facts.multi_processor_count, facts.shared_memory_per_block_optin, 0 if compiled_for_host() else facts.major


driver.watchers.append(_facts.cache_clear)


# ------------------------------------------------------------------ geometry
@lru_cache(maxsize=4096)
def problem(shape, so, shape_a, sa, shape_b, sb, c, dtype, precision, machine, aligned, no_product, fused, compiles, out_size=None):
    """The Problem of a product; it depends on shapes, strides, dtype and machine alone. `compiles`: kernels run as machine code.
    `out_size`: bytes of a number of the result, which may be wider than the operands'."""
    out_size = out_size or dtype.itemsize
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
    kind = kind_of(dtype, precision, k, aligned and _even(am, sa[-1]) and _even(*sb[-2:]))
    by_tma = dtype.name in ("float16", "bfloat16") or kind in ("tf32", "fp8", "fp8 fast", "int8")
    deep = k >= choice.LEAST_BOX or kind == "half" and k and M * N * batch[0] >= choice.STORING      # TMA fills the rest with zeros
    if by_tma and machine and machine[2] in (9, 10) and aligned and len(batch) == 1 and deep and max(M, N, k) <= MOST:
        boxes = boxes_of(batch[0], M, N, k, o, a, b, c_strides if form == "tile" else None, dtype.itemsize, out_size)
    if kind == "ieee" and machine and machine[2] == 9 and compiles and aligned and len(batch) == 1 and max(M, N, k) <= MOST:
        boxes = whole_boxes(batch[0], M, N, k, a, b)
    found = candidates(kind, M, N, k, prod(batch), dtype.itemsize, machine, a, b, boxes, compiles, fused)
    size = choice.size_class(M, N, prod(batch))
    layout = f"{'n' if a[2] == 1 else 't'}{'n' if b[2] == 1 else 't'}{'' if boxes is None else ' tma'}{size}"
    key = (kind, layout, fused or ("wider" if out_size > dtype.itemsize else ""), prod(batch), M, N, k)
    wide = max(extent(*s) for s in spans) > MOST
    return Problem(shape, batch, M, N, k, o, a, b, c_strides, dtype, precision.split()[0], kind != "sum", form, wide, boxes, key, found)


def candidates(kind, M, N, k, batch, itemsize, machine, a, b, boxes, compiles, fused):
    """The ways to compute a product that gemm_choice.py proposes. Long, as each kernel has conditions of its own."""
    if (M == 1 or N == 1) and kind not in ("fp8", "fp8 fast") and fused not in ("residual", "dropout"):
        along_k = a[2] == 1 if M > 1 else b[1] == 1
        found = choice.vector(max(M, N), k, batch, along_k, machine, itemsize)
        return choice.likeliest((found, 8), (choice.each(M, N, k, batch, machine), 1))
    groups = []                                                          # of equals those of the first group come first
    if boxes is not None and kind != "ieee":
        copies = {name: choice.copying(batch * k * {"a": M, "b": N}[name], itemsize, machine) for name in boxes["copied"]}
        extra, leaving = sum(copies.values()), choice.copying(batch * M * N, boxes["sizes"][1], machine) if boxes["leaves"] else 0
        hopper = compiles and machine[2] == 9 and kind != "fp8"          # Gluon adds up sums of a few products, too coarse for fp8
        there = leaving if not boxes["scattered"] else 0
        if hopper and boxes["across"]:
            found = choice.gluon(M, N, k, batch, machine, *boxes["sizes"], across=True)
            groups.append((choice.later(found, extra - copies.get("b", 0), there), 4))
        if hopper:
            behind = bool(fused) and fused not in ("residual", "dropout", "sums")
            found = choice.later(choice.gluon(M, N, k, batch, machine, *boxes["sizes"], behind=behind), extra, there)
            groups.append((found, 2 if boxes["across"] else 10))
        if hopper and kind == "half":
            groups.append((paired(found, M, N, batch, machine), 5))
            groups.append((joined(found, M, N, k, batch, machine) if fused not in ("residual", "dropout") else [], 4))
        if hopper and kind == "half" and not boxes["copied"]:
            groups.append((choice.whole(M, N, k, batch, machine), 8))
            if M <= choice.LINES < N and fused not in ("residual", "dropout"):
                groups.append((choice.whole(N, M, k, batch, machine, swapped=True), 3))
        found = choice.persistent(M, N, k, batch, machine, *boxes["sizes"], kind == "fp8")
        groups.append((choice.later(found, extra, leaving), 2 if hopper else 4))
    if machine and machine[2] == 0:
        found = gemm_host.plain(M, N, k, batch, itemsize, machine[0])
    else:
        found = choice.plain(kind, M, N, k, batch, itemsize, machine)
    groups.append((choice.later(found, 0 if boxes is None else choice.ADDRESSES, 0), 6 if kind != "ieee" else 3))
    if kind not in ("fp8", "fp8 fast") and fused not in ("residual", "dropout"):
        groups.append((choice.each(M, N, k, batch, machine), 1))
    if kind == "ieee" and boxes is not None:
        groups.append((choice.groups(M, N, k, batch, machine, boxes["b"][0]), 6))
        if M <= choice.SWAPPED and M < N and fused not in ("residual", "dropout"):
            groups.append((choice.groups(N, M, k, batch, machine, not boxes["a"][0], True), 4))
        groups.append((choice.whole(M, N, k, batch, machine, True), 8))
    if kind == "ieee" and machine and machine[2] >= 8 and (choice.LEAST_EXACT if machine[2] > 8 else choice.CAREFUL) <= k:
        groups.append((choice.plain("parts", M, N, k, batch, itemsize, machine), 3))
    if kind == "ieee" and machine and machine[2] in (9, 10) and len(a[0]) == 1 and 2 * choice.CAREFUL <= k and max(M, N, k) <= MOST:
        groups.append((choice.exact(M, N, k, batch, machine), 3))
        if compiles and machine[2] == 9:
            groups.append((choice.exact(M, N, k, batch, machine, True), 3))
    if fused and (fused in ("dropout", "sums") or fused.endswith("_backward")):
        groups = [([f for f in found if choice.leaves_room(f[1], fused)], count) for found, count in groups]
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
    if dtype.itemsize in (1, 4):
        return precision
    return "fp64" if dtype.itemsize == 8 else "half" if even else "odd"


def boxes_of(batch, M, N, k, out, a, b, c, itemsize, out_size):
    """How TMA reads a and b and writes out; how it reads the matrix c, None where it cannot, is "added"; "copied" names the operands that
    must be copied first, because TMA cannot read them as they lie, or because matrix units take 8- and 32-bit numbers along K alone, and
    "leaves" says that out must be copied from where TMA can write it; "scattered", that the kernel in Gluon can write it all the same.
    "across": b as it lies, where 32 bits wide it would be copied and need not be (see matmul_gluon.py)."""
    copied, operands, across = [], {}, None
    for name, rows, columns, s, turned in (("a", M, k, a, False), ("b", k, N, b, True)):
        found = described(batch, rows, columns, (s[0][0], *s[1:]), itemsize)
        if itemsize == 4 and name == "b" and found is not None and not found[0]:
            across = found
        if found is None or itemsize != 2 and found[0] != turned:
            copied.append(name)
            turned = s[2] != 1 and s[1] == 1 if itemsize == 2 else turned
            found = padded(batch if s[0][0] else 1, rows, columns, turned, itemsize)
        operands[name] = found
    written = described(batch, M, N, (out[0][0], *out[1:]), out_size)
    leaves = written is None or written[0] or N * out_size % 16 != 0     # TMA writes the last 16 bytes of a row as a whole
    added = described(batch, M, N, (c[0][0], *c[1:]), out_size) if c and (batch == 1 or c[0][0]) else None
    return {**operands, "across": across, "out": padded(batch, M, N, False, out_size) if leaves else written, "leaves": leaves,
            "scattered": leaves and out[2] == 1,
            "added": None if added is None or added[0] else added, "copied": copied, "sizes": (itemsize, out_size)}


def whole_boxes(batch, M, N, k, a, b):
    """How TMA reads float32 operands that a kernel cuts into parts itself; None where it cannot read both as they lie."""
    found = {"a": described(batch, M, k, (a[0][0], *a[1:]), 4), "b": described(batch, k, N, (b[0][0], *b[1:]), 4)}
    return None if None in found.values() or k < choice.LEAST_EXACT else found


def padded(batch, rows, columns, turned, itemsize):
    """What `described` says of a copy of a matrix batch in rows, or columns if `turned`, of whole 16 bytes."""
    if turned:
        rows, columns = columns, rows
    step = cdiv(columns * itemsize, 16) * 16 // itemsize
    return turned, (batch, rows, columns), (rows * step, step, 1)


def described(batch, rows, columns, strides, itemsize):
    """(transposed, shape, strides) of a matrix batch as TMA reads it, or None where it cannot."""
    step, row, column = strides
    turned = column != 1
    if turned:
        rows, columns, row, column = columns, rows, column, row
    if batch == 1 or not step:                                           # one matrix, if need be for all of the batch
        batch, step = 1, rows * row
    if column != 1 or row * itemsize % 16 or step * itemsize % 16 or row < columns or step <= 0:
        return None
    return turned, (batch, rows, columns), (step, row, 1)
