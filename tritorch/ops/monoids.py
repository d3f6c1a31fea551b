"""Reductions on the GPU: a monoid (`triton_kernels/monoids.py`) run over the rows of any layout."""
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import compiled_for_host, kernels, launch, sm_count, tile
from tritorch.dtype import types
from tritorch.ops.rows import chunk_of, few_tiles, forms, half, lanes_of, remember, row_strides, rows, vector_of
from tritorch.ops.tiling import even_parts
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, part

K, FUNCTIONS, COMPLEX = kernels("reduce"), kernels("monoids"), kernels("complex_monoids")
INNERMOST = 16                                                           # elements from which on the last of several dims has its own tiles
STEPS = {"argmax", "argmin", "moments", "logsumexp"}                                  # monoids that take one more element in a cheaper way


GROUPED = {"moments"}                                                    # whose states are of all that a thread has, not of each element


class Monoid(NamedTuple):
    """A reduction by the names of its device functions: <lift>_lift, <combine>_combine, _step and _fold, <finish>_finish.

    `states` are the dtypes of its state; None stands for the accumulator's. `source` names the kernels that <lift>_lift is among.
    """

    lift: str
    combine: str
    finish: str = "first"
    states: tuple = (None,)
    source: str = "monoids"


@lru_cache(maxsize=512)
def functions(monoid):
    """The device functions of a monoid as launch keywords: those of the first stage alone, those of both."""
    step = monoid.combine + ("_step" if monoid.combine in STEPS else "_combine")
    lift = getattr(COMPLEX if monoid.lift.startswith("pair_") else kernels(monoid.source), monoid.lift + "_lift")
    step, fold, finish = [getattr(COMPLEX if name.startswith("pair_") else FUNCTIONS, name) for name in (
        step, monoid.combine + "_fold", monoid.finish + "_finish")]
    return {"LIFT": lift, "STEP": step}, {"FOLD": fold, "FINISH": finish}


@remember
def plan(shape, dims, count, *strides):
    """What follows from layouts alone: the geometry, and what each operand varies along."""
    geometry = rows(shape, dims, *strides)
    return geometry, forms(geometry, count)


WAYS = ((4096, 4, 8), (16384, 16, 4), (8192, 8, 4), (8192, 8, 8), (4096, 8, 8), (2048, 4, 8), (4096, 4, 4))
"""Elements of a tile (half of it where the state is more than one value, of 16 bits a quarter), warps, programs a multiprocessor where rows
are cut. Sums of 512 MiB take, the first way and the last, 192 and 213 µs of all in bfloat16, 190 and 192 in float32, 197 and 209 of columns
in bfloat16, 189 and 205 in float32, on an H100: with four programs of four warps too little is under way."""
CUT = {1: (2048, 4), 2: (4096, 8)}
"""By values of a state: elements of a tile, and warps, where eight programs a multiprocessor cut rows of at most 16 bits an element, or of
8 where the state is one value. With fewer bytes on their way memory waits: argmax of 256 MiB takes 72 µs, not 109, in bfloat16 and 109 µs,
not 455, in bool, a sum 79 µs, not 96, in bool (predicted)."""


HELD = 33
"""Narrow tiles that a row may be: all of it is then loaded at once, no tile but the last asks where it ends, and few threads exchange what
they found. Sums of 7 columns take 77 µs, not 175, a variance of 100 columns 97 µs, not 562 (predicted for 10 and 1 million rows). Means
of 2^18 rows of 49 take 14.1 µs in float32 and 7.7 µs in bfloat16, not 16.7 and 11.0 in eight columns at a time. Long rows
of bytes, with a state of one value, are held, too: any of rows of 4096 takes 65 µs, not 108, a sum 93 µs, not 160 (predicted, 256 MiB)."""


def held_tiles(M, N, vector, itemsize, states, processors):
    """Ways to hold rows: a few threads have one, or a warp has."""
    found = [{**way, "pieces": 1} for way in few_tiles(M, N, False, vector, 4 if N > 16 else 1)[:3]]
    n = 32 * vector
    if not found and M >= 8 * processors and cdiv(N, n) <= HELD and (N < 1024 or states > 2 or itemsize == states == 1):
        found.append({"BLOCK_M": 4, "BLOCK_N": n, "pieces": 1, "num_warps": 4, "HELD": cdiv(N, n)})
    return found


HOST_ROWS, HOST_COLUMNS = 256, 4096
"""On the host: how many rows that are next to each other in memory are a tile of one column, and up to how many columns, which are then
added one after the other."""


@remember
def tiles(M, N, inner, across, itemsize, states, processors, vector=1, grouped=False):
    """Candidates: tiles, and into how many pieces (a power of two) to cut few long rows. `inner` is the last dim of several columns' dims
    where tiles shall not pass its end; `vector`: elements that a thread can load at once; `grouped`: for all that it
    has of a row it has one state."""
    found, columns = [], inner or max(N, 1)
    if processors and N and not across and not inner:
        found += held_tiles(M, N, vector, itemsize, states, processors)
    if processors and states == 2 and itemsize <= 2 and not across and not inner and N >= 1024 and M >= 8 * processors:
        # a warp has a row: no warp waits for another at its end, which costs most where little is read and a state is two values
        found.append({"BLOCK_M": 4, "BLOCK_N": 512 // itemsize, "pieces": 1, "num_warps": 4})
    if states in CUT and itemsize <= min(states, 2) and M < processors and not across and not inner and N >= 8 * CUT[states][0]:
        n, warps = CUT[states]
        pieces = min(_power_below(8 * processors // M), _power_below(cdiv(N, n)), 1024)
        found.append({"BLOCK_M": 1, "BLOCK_N": n, "pieces": pieces, "num_warps": warps})
    for limit, warps, per_sm in WAYS if processors else WAYS[:1]:
        limit = limit if states == 1 or grouped else limit // max(8 // itemsize, 2)
        m = min(next_power_of_2(M), max(512 // itemsize, 64)) if across else 1
        n = even_parts(inner, limit // m) if inner else min(next_power_of_2(N), limit // m)
        whole = 512 // itemsize * warps                                  # rows of which each thread has some, 16 bytes of a column, alone
        if across and (n <= 16 or M >= 4 * processors * whole):         # no exchange: 76.6 µs, not 217.8, for 7 columns (predicted)
            n, m = min(n, 16), whole
        m = min(next_power_of_2(M), max(limit // n, m))
        if not processors:
            m, n = min(half(M), 1024), min(half(columns), 1024)
        wanted = per_sm * processors // cdiv(M, m) if processors else 2
        pieces = max(min(_power_below(wanted), _power_below(N // columns * cdiv(columns, n)), 1024), 1)
        way = {"BLOCK_M": m, "BLOCK_N": n, "pieces": pieces, "num_warps": warps}
        if way not in found:
            found.append(way)
    return tuple(found)


def _power_below(n):
    return 1 << max(n.bit_length() - 1, 0)


PAIRED = {"sum": 2, "prod": 2, "logsumexp": 3, "recurrence": 4}
"""Values of a state of complex numbers, by how they are combined; the functions for them are named as those for real ones, pair_ in front.
They take the two parts of an element, which kernels make of a word where the operand is of complex64."""


def operands(x):
    """A complex tensor as what kernels load: words of 64 bits, or of complex128 the two parts."""
    return (x,) if x.dtype is types.complex64 else (part(x, 0), part(x, 1))


def both_parts(tensors):
    """The two parts of each complex tensor."""
    return [part(x, which) for x in tensors for which in (0, 1)]


def _paired(outs, inputs, monoid):
    """The same reduction of complex numbers, in terms of real ones."""
    lift, combine, finish, states, _ = monoid
    if outs[0].dtype.is_complex:
        outs, combine, finish, states = both_parts(outs), f"pair_{combine}", f"pair_{finish}", (None,) * PAIRED[combine]
    return outs, [t for x in inputs for t in operands(x)], Monoid(f"pair_{lift}", combine, finish, states), inputs[0].dtype.parts


def reduce_rows(outs, inputs, dims, keepdim, monoid, acc, identity=0, param=0.0):
    """Reduce `inputs`, of one shape, over `dims` into `outs` on the GPU: in one launch or, where there are few long rows, in two."""
    if inputs[0].dtype.is_complex:
        outs, inputs, monoid, acc = _paired(outs, inputs, monoid)
    strides = [row_strides(o, dims, keepdim) for o in outs] + [x.strides for x in inputs]
    geometry, kinds = plan(inputs[0].shape, dims, len(inputs), *strides)
    M, shape_m, stride_m, N, shape_n, stride_n, across, wide, align = geometry
    if not M:
        return
    first, both = functions(monoid)
    param, size = np.float64(param) if acc is types.float64 else float(param), inputs[0].dtype.itemsize
    inner = shape_n[-1] if len(shape_n) > 1 and shape_n[-1] >= INNERMOST and N else 0
    vector, grouped = min(16 // size, align) if inner else vector_of(geometry, size), monoid.combine in GROUPED

    def run(way):
        m, n, pieces, warps = way["BLOCK_M"], way["BLOCK_N"], way["pieces"], way["num_warps"]
        width = cdiv(inner, n) * n if inner else N
        padded = N // inner * width if inner else N
        chunk = chunk_of(padded, n, pieces)
        targets = tuple(outs) if pieces == 1 else tuple([empty((pieces, M), s or acc, outs[0].device) for s in monoid.states])
        threads = (lanes_of(m, n, warps, across, min(vector, n)), min(vector, n)) if grouped else identity
        even = N > 0 and M % m == (inner or N) % n == 0 and cdiv(padded, chunk) == pieces
        launch(K.reduce_kernel, (cdiv(M, m), pieces), targets, tuple(inputs), shape_m, stride_m, shape_n, stride_n, M, padded,
               max(width, 1), chunk, N, param, **first, **both, FORMS=kinds, IDENTITY=threads, ACC=getattr(K.tl, acc.name),
               OUTS=len(outs), WIDE=wide or chunk * pieces >= 1 << 31, EVEN=even, INNER=bool(inner), SPLIT=pieces > 1, NEAR=grouped,
               ALIGN=min(align, n), HELD=way.get("HELD", 0), BLOCK_M=m, BLOCK_N=n, num_warps=warps)
        if pieces > 1:
            m = min(m, max(4096 // pieces, 1))
            launch(K.merge_kernel, (cdiv(M, m),), tuple(outs), targets, shape_m, stride_m, M, N, param, **both, BLOCK_M=m, SPLITS=pieces)

    ways = tiles(M, N, inner, across, size, len(monoid.states), tile(1, 0) and sm_count(), vector_of(geometry, size), grouped)
    if compiled_for_host() and across and N <= HOST_COLUMNS:
        ways = ({"BLOCK_M": min(next_power_of_2(M), HOST_ROWS), "BLOCK_N": 8, "pieces": 1, "num_warps": 4},)
    run(ways[0] if len(ways) == 1 else tuner.choose("reduce", (monoid.combine, size, across, M, N, inner), ways, K.reduce_kernel, run))
