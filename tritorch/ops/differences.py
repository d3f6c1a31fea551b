"""Derivatives of sampled functions by finite differences of second order."""
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops import slicing
from tritorch.ops.shaping import cat
from tritorch.shape import wrap_dim
from tritorch.tensor import Tensor

NAME = "gradient"


@explained
def gradient(input, *, spacing=1, dim=None, edge_order=1):
    """The derivative along each of some dims, all by default: a tuple of tensors of the input's shape.

    `spacing` is the distance of neighbours: a number for all dims, a number for each, or for each a vector of coordinates. Inside, the
    derivative of the parabola through a sample and its neighbours; at the ends that of the line (edge_order 1) or parabola (2) through the
    last samples. Fornberg, Generation of Finite Difference Formulas on Arbitrarily Spaced Grids, 1988.

    >>> import tritorch as torch; torch.gradient(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    (tensor([3., 4., 6., 7.]),)
    """
    check(edge_order in (1, 2), NAME, "edge_order 1 or 2", edge_order)
    dims = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    dims = [wrap_dim(d, input.ndim, NAME) for d in dims]
    check(len(set(dims)) == len(dims), NAME, "dims that differ", dims)
    for d in dims:
        check(input.shape[d] > edge_order, NAME, f"at least {edge_order + 1} elements along dim {d}", input.shape[d])
    return tuple([_along(input, d, step, edge_order) for d, step in zip(dims, _steps(spacing, len(dims)))])


def _steps(spacing, count):
    """The spacing along each dim: a number or a vector of coordinates. None is 1."""
    if isinstance(spacing, Tensor):
        check(not spacing.shape, NAME, "a number, or a list of vectors, as spacing", tuple(spacing.shape), error=TypeError)
        return [spacing.item()] * count
    if not isinstance(spacing, (tuple, list)):
        return [1 if spacing is None else spacing] * count
    check(len(spacing) == count, NAME, f"a spacing for each of {count} dims", len(spacing))
    kinds = {isinstance(s, Tensor) for s in spacing}
    check(len(kinds) <= 1, NAME, "numbers or tensors as spacing, not both", spacing, error=TypeError)
    return spacing


def _along(x, d, step, edge_order):
    """The derivative along dim d."""
    n = x.shape[d]

    def part(start, length=1):
        return slicing.narrow(x, d, start, length)

    if not isinstance(step, Tensor):
        inner = (part(2, n - 2) - part(0, n - 2)) / (2 * step)
        if edge_order == 1:
            return cat([(part(1) - part(0)) / step, inner, (part(n - 1) - part(n - 2)) / step], d)
        return cat([(-3 * part(0) + 4 * part(1) - part(2)) / (2 * step), inner,
                    (3 * part(n - 1) - 4 * part(n - 2) + part(n - 3)) / (2 * step)], d)
    check(step.ndim == 1 and step.numel() == n, NAME, f"{n} coordinates along dim {d}", tuple(step.shape))
    whole = x.dtype if x.dtype.has_gradients else types.get_default_dtype()
    gaps = step.to(x.device, step.dtype if step.dtype.has_gradients else whole).diff()
    before, after = [g.reshape([-1 if k == d else 1 for k in range(x.ndim)]) for g in (gaps[:-1], gaps[1:])]
    inner = _slope(part(0, n - 2), part(1, n - 2), part(2, n - 2), before, after, 0)
    first, last = gaps[0], gaps[-1]
    if edge_order == 1:
        return cat([(part(1) - part(0)) / first, inner, (part(n - 1) - part(n - 2)) / last], d)
    return cat([_slope(part(0), part(1), part(2), first, gaps[1], -1), inner,
                _slope(part(n - 3), part(n - 2), part(n - 1), gaps[-2], last, 1)], d)


def _slope(a, b, c, before, after, place):
    """The derivative of the parabola through three samples, at the first (-1), the middle (0) or the last (1) of them."""
    left, right = (b - a) / before, (c - b) / after
    if place < 0:
        return left - (right - left) * (before / (before + after))
    if place > 0:
        return right + (right - left) * (after / (before + after))
    return (left * after + right * before) / (before + after)
