"""Sums over equal indices on the GPU: the indices are sorted, then each row of the result joins its own segment, in order."""
import math

import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import compiled_for_host, kernels, launch, sm_count, tile
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.copy import transfer
from tritorch.ops.ordering import sort_rows
from tritorch.pairs import lengthened
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty

K = kernels("segments")
JOINS = {"sum": "plus", "prod": "mul", "amax": "maximum", "amin": "minimum"}
TILES = [{"ELEMENTS": elements, "WIDTH": width, "num_warps": warps, **more} for elements, width, warps, more in (
    (1024, 1024, 4, {}), (1024, 1024, 2, {"AHEAD": 2, "REGISTERS": 48}), (1024, 1024, 2, {}), (1024, 1024, 1, {"REGISTERS": 96}),
    (2048, 1024, 4, {}), (512, 512, 4, {}), (512, 512, 1, {}))]
"""Without REGISTERS ptxas takes so few that it adds up one word of a row before it loads the next. Fewer warps compute fewer addresses for
a row, and more rows are under way."""
SIMULATED = [{"ELEMENTS": 4096, "WIDTH": 64, "AHEAD": 2, "num_warps": 4}]
COLUMNS = 128                                                   # from here on programs of the host share them
WALKED = 4096                                                   # places of a program of the host


def identity(kind, dtype):
    """What does not change a number that it is joined with."""
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.is_floating_point:
        return -math.inf if kind == "amax" else math.inf
    return -1 << 63 if kind == "amax" else (1 << 63) - 1


def join_rows(out, base, places, src, kind="sum", alpha=1, skip=-1, weights=None, taps=1, owners=None):
    """out[r] = base[r] joined with alpha · src[i] for the i with places[i] = r, in their order; -1 is no place.

    `out` is contiguous, (rows, width); `base` may be `out` itself, or None: then rows that no place names are 0, as is the row `skip`.
    With `taps` each row of src has so many places, src[i // taps], with `owners` it is src[owners[i]] that goes to place i; with `weights`
    times weights[i]. Complex numbers are summed as twice as many real ones. Long, as it settles all that the kernel is told.
    """
    if out.dtype.is_complex:
        check(kind == "sum", "scatter_reduce", "real tensors for reductions other than sums on a GPU", out.dtype, use="x.cpu()")
        out, base, src = [None if x is None else lengthened(x) for x in (out, base, src)]
    rows, width = out.shape
    n = places.shape[0]
    if not out.numel() or not n and base is out:
        return
    wide = types.int64 if max(n, rows) >= 1 << 31 else types.int32
    accumulator = types.float32 if out.dtype.compute is types.float32 else types.float64 if out.dtype is types.float64 else types.int64
    factor = None if alpha == 1 else np.float64(alpha) if accumulator is types.float64 else float(alpha) if accumulator is types.float32 \
        else int(alpha)
    if compiled_for_host() and kind == "sum":
        return _walked(out, base, places, src, weights, owners, factor, skip, taps, accumulator)
    ordered, order = empty((1, n), places.dtype, out.device), empty((1, n), wide, out.device)
    sort_rows(ordered, order, places.reshape(1, n).contiguous(), bits=rows.bit_length())
    few = base is out and skip < 0 and 4 * n < rows              # then segments are looked for among the places, not for all rows
    rows = n if few else rows
    bounds, block = empty((rows + 1,), wide, out.device), tile(256, 16384)
    if compiled_for_host() and n and not few:
        launch(K.walked_bounds_kernel, (cdiv(n, WALKED),), bounds, ordered, n, rows, PIECE=WALKED)
    else:
        launch(K.bounds_kernel, (cdiv(rows + 1, block),), bounds, ordered, n, rows, HEADS=few, STEPS=n.bit_length(), BLOCK=block)
    long = tile(256, 16)
    common = {"JOIN": getattr(K, JOINS[kind]), "IDENTITY": identity(kind, accumulator), "LONG": long, "TAPS": taps}
    pieces = None
    if n > long:
        pieces, block = empty((cdiv(n, long), 2, width), accumulator, out.device), min(tile(1024, 64), next_power_of_2(width))
        launch(K.pieces_kernel, (cdiv(n, long) * cdiv(width, block),), pieces, src, weights, owners, ordered, order,
               None if few else bounds, n, width, *src.strides, **common, ALL=getattr(K, f"{kind}_all"), STEPS=n.bit_length(),
               BLOCK_N=max(min(tile(4096, 256) // block, long), 1), BLOCK_R=block)

    candidates = tile(TILES if width >= 64 else TILES[5:] + TILES[:5], SIMULATED)

    def run(choice, target=out):
        block_r = min(choice["WIDTH"], next_power_of_2(width))
        block_n = max(choice["ELEMENTS"] // block_r, 1)
        most = {"maxnreg": choice["REGISTERS"]} if "REGISTERS" in choice else {}
        launch(K.segments_kernel, (cdiv(rows, block_n) * cdiv(width, block_r),), target, base, src, weights, owners, order, bounds,
               pieces, ordered if few else None, rows, width, *((0, 0) if base is None else base.strides), *src.strides, factor, skip,
               **common, TOUCHED=base is target, AHEAD=choice.get("AHEAD", 1), BLOCK_N=block_n, BLOCK_R=block_r,
               num_warps=choice["num_warps"], **most)

    def trial(choice):                                          # in place it would add again and again
        run(choice, empty(out.shape, out.dtype, out.device) if base is out else out)

    run(tuner.choose("segments", (out.dtype.name, n, rows, width), candidates, K.segments_kernel, trial))


def _walked(out, base, places, src, weights, owners, factor, skip, taps, accumulator):
    """The sum on the host, where a thread adds up rows faster than it sorts their places: in the result, or in a wider one."""
    rows, width = out.shape
    totals = out if out.dtype is accumulator else empty(out.shape, accumulator, out.device)
    if base is None:
        totals.fill_(0)
    elif base is not totals:
        transfer(totals, base)
    block = min(next_power_of_2(cdiv(width, 2 * sm_count())), 1024) if width > COLUMNS else next_power_of_2(width)
    launch(K.walked_sum_kernel, (cdiv(width, block),), totals, src, weights, owners, places.contiguous(), places.shape[0], width,
           *src.strides, factor, skip, TAPS=taps, BLOCK_R=block)
    if totals is not out:
        transfer(out, totals)
