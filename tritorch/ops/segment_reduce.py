"""Reductions of consecutive segments along a dim."""
import math

from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops import compare, copy, create, slicing
from tritorch.ops.bounds import every
from tritorch.ops.scatter import index_reduce
from tritorch.ops.sorting import searchsorted
from tritorch.shape import prod, wrap_dim

NAME = "segment_reduce"
JOINED = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "amax": "amax", "min": "amin", "amin": "amin"}
EMPTY = {"sum": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}


@explained
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None, out=None):
    """The "sum", "mean", "prod", "max" or "min" of each of the segments into which a dim is cut: `lengths` (…, segments) one after the
    other, or `offsets` (…, segments + 1), where they begin and the last ends; "…" are the dims of data before `axis`.

    A segment counts `initial` too, for "mean" as part of its sum; without it an empty one gives 0, NaN, 1, -∞ or ∞. Lengths have to cover
    the dim unless `unsafe`. data has a floating dtype. Raises RuntimeError where shapes or lengths do not fit.

    >>> import tritorch as torch
    >>> torch.segment_reduce(torch.tensor([1.0, 2.0, 3.0]), "sum", lengths=torch.tensor([1, 2]))
    tensor([1., 5.])
    """
    check(isinstance(reduce, str) and reduce in JOINED, NAME, f"a reduction among {', '.join(JOINED)}", repr(reduce))
    check(indices is None, NAME, "lengths or offsets, not indices", indices)
    check(data.dtype.is_floating_point, NAME, "data of a floating dtype", data.dtype, error=NotImplementedError)
    check(lengths is not None or offsets is not None, NAME, "lengths or offsets", None)
    axis = wrap_dim(axis, data.ndim, NAME)
    given = offsets if offsets is not None else lengths
    check(given.dtype in (types.int64, types.int32), NAME, "lengths or offsets of int64 or int32", given.dtype, error=NotImplementedError)
    fits = given.ndim == axis + 1 and given.shape[:axis] == data.shape[:axis]
    check(fits, NAME, f"lengths or offsets of shape {(*data.shape[:axis], 'segments')}", tuple(given.shape))
    starts, ends = (given[..., :-1], given[..., 1:]) if offsets is not None else _ends(given, data.shape[axis], unsafe)
    made = _reduced(data, JOINED[reduce], starts, ends, axis)
    counts = (ends - starts).reshape(*ends.shape, *[1] * (data.ndim - axis - 1))
    if initial is not None:
        made = _with_initial(made, JOINED[reduce], initial)
    if reduce == "mean":
        mean = made / counts.to(data.dtype)
        made = mean if initial is None else compare.where(counts > 0, mean, made)
    return copy.deliver(made, out)


def _ends(lengths, n, unsafe):
    """Where segments of these lengths begin and end."""
    if not unsafe:
        check(lengths.numel() > 0, NAME, "at least one length", 0)
    if not (unsafe or lengths.is_meta):
        check(bool(every(lengths >= 0).all()), NAME, "lengths that are not negative", lengths)
        check(bool(every(lengths.sum(-1) == n).all()), NAME, f"lengths that sum to {n} in every row", lengths)
    ends = lengths.cumsum(-1)
    return ends - lengths, ends


def _with_initial(made, join, initial):
    """What is made of a segment and a number; a number that is as large as the largest element stands behind it."""
    if join in ("amax", "amin"):
        return compare.where(made < initial if join == "amax" else made > initial, initial, made)
    return made + initial if join == "sum" else made * initial


def _reduced(data, join, starts, ends, axis):
    """Rows of the dims behind the axis, joined where they are of one segment; what is in none goes to a row that is cut off."""
    lead, n, rest, segments = prod(data.shape[:axis]), data.shape[axis], data.shape[axis + 1:], ends.shape[-1]
    at = create.arange(n, device=data.device).expand(*data.shape[:axis], n)
    owners = searchsorted(ends.contiguous(), at.contiguous(), right=True)
    if segments:
        owners = compare.where(at < starts[..., :1], segments, owners)
    index = (owners.reshape(lead, n) + create.arange(lead, device=data.device).unsqueeze(1) * (segments + 1)).reshape(-1)
    rows, width = data.reshape(lead * n, prod(rest)), prod(rest)
    base = create.full((lead * (segments + 1), width), EMPTY[join], dtype=data.dtype, device=data.device)
    out = base.index_add(0, index, rows) if join == "sum" else index_reduce(base, 0, index, rows, join, include_self=False)
    return slicing.narrow(out.reshape(*data.shape[:axis], segments + 1, *rest), axis, 0, segments)
