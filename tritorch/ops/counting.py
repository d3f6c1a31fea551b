"""Places and numbers of elements: `nonzero_static`, `histogramdd`, and `range`, which counts its end."""
import math
import warnings

from tritorch.device import as_device
from tritorch.dtype import types
from tritorch.errors import check, explained, sentence, whole_numbers
from tritorch.layout import only_strided
from tritorch.ops import compare, copy, create, linspace
from tritorch.ops.shaping import stack
from tritorch.ops.sorting import searchsorted
from tritorch.return_types import result
from tritorch.shape import prod
from tritorch.tensor import Tensor

histogramdd_result = result("histogramdd", "hist bin_edges")


@explained
def nonzero_static(input, *, size, fill_value=-1, out=None):
    """The places of the first `size` elements that are not zero, one row each; rows that are left have fill_value. Nobody waits for a
    device to count.

    >>> import tritorch as torch; torch.nonzero_static(torch.tensor([[0, 1], [2, 0]]), size=3).tolist()
    [[0, 1], [1, 0], [-1, -1]]
    """
    size, = whole_numbers("nonzero_static", "size", (size,))
    check(size >= 0, "nonzero_static", "a size of at least 0", size)
    if not input.ndim:
        return copy.deliver(create.empty(size, 0, dtype=types.int64, device=input.device), out, exact=True)
    kept = (input.detach() != 0).reshape(-1)
    order = kept.cumsum(0, dtype=types.int64) - 1
    slot = compare.where(kept & (order < size), order, size)             # all others share a slot that is cut off
    flat = create.full((size + 1,), -1, dtype=types.int64, device=input.device)
    flat = flat.scatter(0, slot, create.arange(input.numel(), device=input.device))[:size]
    columns, rest = [], flat.clamp(min=0)
    for n in reversed(input.shape):
        columns.append(compare.where(flat < 0, fill_value, rest % max(n, 1)))
        rest = rest // max(n, 1)
    return copy.deliver(stack(columns[::-1], 1), out, exact=True)


@explained
def histogramdd(input, bins, *, range=None, weight=None, density=False):
    """(hist, bin_edges): how many points, or how much of `weight`, fall into each box of a grid. input (…, D) has points of D coordinates.

    `bins` is a number of equal parts, or one for each coordinate, of `range`, (low, high) of each in a row, by default that of the data; or
    a sorted tensor of edges for each. A bin holds its lower edge, the last one both. With `density` the integral over all boxes is 1.

    >>> import tritorch as torch
    >>> hist, edges = torch.histogramdd(torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), bins=[2, 1])
    >>> hist.tolist(), [e.tolist() for e in edges]
    ([[1.0], [2.0]], [[0.0, 1.0, 2.0], [0.0, 2.0]])
    """
    name = "histogramdd"
    check(input.ndim >= 2, name, "an input of at least 2 dims", input.ndim)
    check(input.dtype in (types.float32, types.float64), name, "float32 or float64", input.dtype, error=NotImplementedError)
    check(weight is None or weight.dtype is input.dtype, name, f"weights of {input.dtype}", getattr(weight, "dtype", None))
    check(weight is None or weight.shape == input.shape[:-1], name, f"weights of shape {tuple(input.shape[:-1])}",
          getattr(weight, "shape", None))
    points, D = input.detach().reshape(-1, input.shape[-1]), input.shape[-1]
    edges = _edges(name, points, bins, range, D)
    place, inside = 0, None
    for d, edge in enumerate(edges):
        x = points[:, d].contiguous()
        within = (x >= edge[0]) & (x <= edge[-1])
        inside = within if inside is None else inside & within
        place = place * (edge.numel() - 1) + (searchsorted(edge, x, right=True) - 1).clamp(0, edge.numel() - 2)
    sizes = [edge.numel() - 1 for edge in edges]
    counted = create.ones(points.shape[0], dtype=input.dtype, device=input.device) if weight is None else weight.detach().reshape(-1)
    hist = create.zeros(prod(sizes), dtype=input.dtype, device=input.device)
    hist = hist.index_add(0, place, counted.masked_fill(~inside, 0)).reshape(sizes)
    if density:
        hist = hist / hist.sum()
        for d, edge in enumerate(edges):
            hist = hist / edge.diff().reshape([-1 if k == d else 1 for k, _ in enumerate(edges)])
    return histogramdd_result(hist, tuple(edges))


def _edges(name, points, bins, span, D):
    """The edges of each coordinate."""
    if isinstance(bins, (tuple, list)) and bins and isinstance(bins[0], Tensor):
        check(len(bins) == D, name, f"edges for each of {D} coordinates", len(bins))
        check(span is None, name, "no range where edges are given", span)
        for edge in bins:
            check(edge.ndim == 1 and edge.numel() > 1, name, "vectors of at least 2 edges", tuple(edge.shape))
            check(edge.dtype is points.dtype, name, f"edges of {points.dtype}", edge.dtype)
        return [edge.detach().clone() for edge in bins]
    counts = [bins] * D if isinstance(bins, int) else list(bins)
    check(len(counts) == D, name, f"a number of bins for each of {D} coordinates", len(counts))
    for count in counts:
        check(count > 0, name, "at least 1 bin", count)
    check(span is None or len(span) == 2 * D, name, f"a range of {2 * D} numbers", None if span is None else len(span))
    found = []
    for d, count in enumerate(counts):
        x = points[:, d]
        low, high = span[2 * d:2 * d + 2] if span is not None else (x.min().item(), x.max().item()) if x.numel() else (0.0, 1.0)
        check(math.isfinite(low) and math.isfinite(high) and low <= high, name, "a finite range that does not fall", (low, high))
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        found.append(linspace.linspace(low, high, count + 1, dtype=points.dtype, device=points.device))
    return found


def range(start, end, step=1, *, out=None, dtype=None, layout=None, device=None, requires_grad=False):
    """The numbers from `start` up to and with `end`, every `step`, of the default dtype. `arange`, which leaves out its end, is what Python
    does, and what PyTorch recommends.

    >>> import tritorch as torch, warnings; warnings.simplefilter("ignore"); torch.range(1, 3)
    tensor([1., 2., 3.])
    """
    only_strided("range", layout)
    warnings.warn("range: its end belongs to it, other than that of Python's range; use arange, whose end does not", stacklevel=2)
    start, end, step = [v.item() if isinstance(v, Tensor) else v for v in (start, end, step)]
    check(step != 0, "range", "a step other than 0", step)
    check(math.isfinite(start) and math.isfinite(end), "range", "finite bounds", (start, end))
    check((end - start) * step >= 0, "range", "bounds in the direction of the step", (start, end), step)
    dtype = out.dtype if out is not None else types.get_default_dtype() if dtype is None else types.as_dtype(dtype)
    if dtype.is_complex:
        raise NotImplementedError(sentence("range", "a real dtype", dtype))
    if not dtype.is_floating_point:
        start, end, step = int(start), int(end), int(step)
        check(step != 0, "range", "a step other than 0", step)
    made = create.ramp(start, step, int((end - start) / step + 1), dtype, as_device(device) if out is None else out.device)
    made = copy.deliver(made, out)
    return made.requires_grad_() if requires_grad else made
