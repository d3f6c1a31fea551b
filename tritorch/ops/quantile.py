"""Order statistics by sorting: median, mode, quantile."""
import math

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops import compare, copy, create, slicing, view
from tritorch.ops.bounds import every
from tritorch.ops.destinations import deliver_all
from tritorch.ops.extremes import lowest
from tritorch.ops.lerp import lerp
from tritorch.ops.medians import middle, middle_of_all
from tritorch.ops.reduce import sum
from tritorch.ops.sorting import sort
from tritorch.return_types import result
from tritorch.shape import wrap_dim
from tritorch.tensor import Tensor

median_result, mode_result = result("median", "values indices"), result("mode", "values indices")


def _of_none(input):
    """The median of no elements: NaN, or the least of whole numbers."""
    return create.new_full(input, (), math.nan if input.dtype.is_floating_point else lowest(input.dtype))


def median(input, dim=None, keepdim=False, *, out=None):
    """The middle element in order (the lower of two), and with `dim` where it is; NaN if there is a NaN.

    >>> import tritorch as torch; torch.tensor([3.0, 1.0, 2.0, 5.0]).median()
    tensor(2.)
    """
    return _median("median", input, dim, keepdim, out, False)


def nanmedian(input, dim=None, keepdim=False, *, out=None):
    """As `median`, of the elements that are not NaN."""
    return _median("nanmedian", input, dim, keepdim, out, True)


def _median(name, input, dim, keepdim, out, skip):
    if dim is None:
        check(out is None and not keepdim, name, "a dim for out= and keepdim", "none", error=TypeError)
        return middle_of_all(input, skip) if input.numel() else _of_none(input)
    wrap_dim(dim, len(input.shape), name)
    found = middle(input, dim, skip)
    return deliver_all(median_result, [view.unsqueeze(x, dim) for x in found] if keepdim and input.shape else found, out)


def mode(input, dim=-1, keepdim=False, *, out=None):
    """The most frequent element along `dim` (the smallest of several), and the last place where it occurs."""
    if not input.shape:
        return deliver_all(mode_result, (input.clone(), create.zeros((), dtype=types.int64, device=input.device)), out)
    d = wrap_dim(dim, len(input.shape), "mode")
    values, places = sort(view.movedim(input, d, -1), -1)
    n = values.shape[-1]
    number = create.arange(n, device=input.device).expand(values.shape)
    starts = create.ones(*values.shape, dtype=types.bool, device=input.device)
    starts[..., 1:] = values[..., 1:] != values[..., :-1]
    start = compare.where(starts, number, 0).cummax(-1).values            # where the run of each element began
    best = (number - start).argmax(-1, keepdim=True)                     # the first of the longest runs, at its end
    found = [view.movedim(x.gather(-1, best), -1, d) for x in (values, places)]
    found = found if keepdim else [view.squeeze(x, d) for x in found]
    return deliver_all(mode_result, found, out)


def quantile(input, q, dim=None, keepdim=False, *, interpolation="linear", out=None):
    """The value below which the share q (a number or a vector of them) of the elements lies; NaN for a row that holds NaN.

    >>> import tritorch as torch; torch.arange(5.0).quantile(0.25)
    tensor(1.)
    """
    return copy.deliver(_quantile("quantile", input, q, dim, keepdim, interpolation), out, exact=True)


def nanquantile(input, q, dim=None, keepdim=False, *, interpolation="linear", out=None):
    """As `quantile`, of the elements that are not NaN."""
    return copy.deliver(_quantile("nanquantile", input, q, dim, keepdim, interpolation), out, exact=True)


def _quantile(name, input, q, dim, keepdim, interpolation):
    check(input.dtype in (types.float32, types.float64), name, "float32 or float64", input.dtype)
    check(interpolation in ("linear", "lower", "higher", "midpoint", "nearest"), name, "a known interpolation", repr(interpolation))
    single = not isinstance(q, Tensor) or not q.shape
    check(not isinstance(q, Tensor) or q.dtype is input.dtype, name, f"q of {input.dtype}", getattr(q, "dtype", None))
    q = q if isinstance(q, Tensor) else create.tensor(q, dtype=input.dtype, device=input.device)
    check(q.is_meta or bool(every((q >= 0) & (q <= 1)).all()), name, "q between 0 and 1", q)
    ndim = len(input.shape)
    d = 0 if dim is None else wrap_dim(dim, ndim, name)
    rows = sort(view.reshape(input, -1) if dim is None or not ndim else view.movedim(input, d, -1), -1).values
    n = rows.shape[-1]
    check(n > 0, name, "a tensor that is not empty", input.shape)
    made = view.movedim(_between(rows, view.reshape(q, -1), interpolation, name == "nanquantile"), -1, 0)
    if keepdim:
        made = view.reshape(made, -1, *[1] * ndim) if dim is None or not ndim else view.unsqueeze(made, d + 1)
    return slicing.select(made, 0, 0) if single else made


def _between(rows, q, interpolation, ignore_nan):
    """The quantiles q of sorted rows, along the last dim; NaN lies at the end of a row, and unless ignored is all its quantiles."""
    n = rows.shape[-1]
    last = compare.clamp(sum(~compare.isnan(rows), -1, True) - 1, min=0) if ignore_nan else n - 1
    rank = q * last if ignore_nan else compare.where(compare.isnan(rows[..., -1:]), float(last), q * last)
    low = rank.floor().to(types.int64)
    weight = {"linear": rank - low, "lower": rank * 0, "higher": (rank > low).to(rank.dtype), "midpoint": (rank > low).to(rank.dtype) * 0.5,
              "nearest": rank.round() - low}[interpolation]
    shape = (*rows.shape[:-1], q.shape[0])
    below, above = [rows.gather(-1, view.expand_to(k, shape)) for k in (low, compare.clamp(low + 1, max=n - 1))]
    return lerp(below, compare.where(weight > 0, above, below), weight)
