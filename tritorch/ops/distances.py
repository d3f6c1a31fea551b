"""Sums over pairs of numbers that nothing is written of before they are added up: losses of all elements, distances of all rows."""
import math

import numpy as np

from tritorch.dispatch import common_device, op
from tritorch.dtype import promote
from tritorch.errors import check
from tritorch.ops import loss_terms, view
from tritorch.ops.arrays import single
from tritorch.ops.monoids import Monoid, reduce_rows
from tritorch.ops.statistics import norm_monoid
from tritorch.shape import broadcast_shapes

MANY = 25                                                                # rows beyond which a product of matrices pays
BLOCK = 1 << 20                                                          # differences that are there at once on the CPU


# ------------------------------------------------------------------ losses of all elements
@op
def loss_of_all(x, y, kind, bend, mean):
    """The sum over all elements of the terms of a loss, or their mean: `kind` is a name in loss_terms.KINDS, `bend` its number. Terms are
    not rounded to half types, of which a sum is one rounding."""
    check(x.shape == y.shape, "loss", "operands of one shape", x.shape, y.shape)
    return (), promote(x, y), common_device("loss", x, y)


@loss_of_all.impl("cpu")
def loss_of_all_cpu(out, x, y, kind, bend, mean):
    total = np.sum(loss_terms.on_arrays(kind, single(x), single(y), bend), dtype=np.promote_types(out.dtype, np.float32))
    out[...] = total / np.asarray(x.size, total.dtype) if mean else total


@loss_of_all.impl("cuda")
def loss_of_all_cuda(out, x, y, kind, bend, mean):
    monoid = Monoid(kind, "sum", "mean" if mean else "first", source="distances")
    reduce_rows([out], [x, y], tuple(range(len(x.shape))), False, monoid, out.dtype.compute, param=bend)


def _arriving(g, shape, mean):
    return view.expand_to(g / max(math.prod(shape), 1) if mean else g, shape)


@loss_of_all.grad("x")
def loss_of_all_grad_x(g, x, y, kind, bend, mean):
    return loss_terms.grad_x(kind, _arriving(g, x.shape, mean), x, y, bend)


@loss_of_all.grad("y")
def loss_of_all_grad_y(g, x, y, kind, bend, mean):
    return loss_terms.grad_y(kind, _arriving(g, x.shape, mean), x, y, bend)


@loss_of_all.samples
def loss_of_all_samples(make):
    for kind in loss_terms.KINDS:
        yield make(3, 5, low=0.1, high=0.9), make(3, 5, low=0.1, high=0.9), kind, 0.25, kind != "l1"
    yield make(2, 300), make(2, 300), "mse", 0.0, False
    yield make(0, 2), make(0, 2), "mse", 0.0, False
    yield make(), make(), "huber", 0.5, True


@loss_of_all.workloads
def loss_of_all_workloads(make):
    x, y = make(1 << 24, grad=False), make(1 << 24, grad=False)
    yield "16M fp32", lambda: (x, y, "mse", 0.0, True), 2 * x.nbytes, 0


# ------------------------------------------------------------------ distances of all rows
def _both(x1, x2):
    """The rows of both beside each other: (..., P, R, M), without memory of their own."""
    lead = broadcast_shapes("cdist", x1.shape[:-2], x2.shape[:-2])
    shape = (*lead, x1.shape[-2], x2.shape[-2], x1.shape[-1])
    return [view.expand_to(view.unsqueeze(x, d), shape) for x, d in ((x1, -2), (x2, -3))]


@op
def distances(x1, x2, p):
    """‖x1_i - x2_j‖_p for all rows i of x1 (..., P, M) and j of x2 (..., R, M): (..., P, R). Differences are added up as they are made, so
    that memory is needed for the result alone."""
    check(x1.dtype.is_floating_point, "cdist", "a floating dtype", x1.dtype)
    lead = broadcast_shapes("cdist", x1.shape[:-2], x2.shape[:-2])
    return (*lead, x1.shape[-2], x2.shape[-2]), x1.dtype, common_device("cdist", x1, x2)


def _norms(x, p):
    """Norms along the last dim of a numpy array."""
    if p == 0:
        return np.count_nonzero(x, axis=-1)
    if p == math.inf:
        return np.max(np.abs(x), axis=-1, initial=0)
    return np.sqrt(np.vecdot(x, x)) if p == 2 else np.sum(np.abs(x) ** x.dtype.type(p), -1) ** x.dtype.type(1 / p)


def _pieces(x1, x2):
    """Pieces of rows of x1 with the differences of their rows to those of x2."""
    step = max(BLOCK // max(x2[..., 0, :].size * x2.shape[-2], 1), 1) if x2.size else max(x1.shape[-2], 1)
    for k in range(0, x1.shape[-2], step):
        yield slice(k, k + step), x1[..., k:k + step, None, :] - x2[..., None, :, :]


@distances.impl("cpu")
def distances_cpu(out, x1, x2, p):
    for rows, apart in _pieces(single(x1), single(x2)):
        out[..., rows, :] = _norms(apart, p)


@distances.impl("cuda")
def distances_cuda(out, x1, x2, p):
    if not x1.shape[-1]:
        out.fill_(0)
        return
    monoid, identity = norm_monoid(p)
    reduce_rows([out], _both(x1, x2), (len(out.shape),), False, monoid._replace(source="distances"), out.dtype.compute, identity, p)


@distances.grad("x1")
def distances_grad_x1(g, x1, x2, out, p):
    return _slope(g, out, x1, x2, p)


@distances.grad("x2")
def distances_grad_x2(g, x1, x2, out, p):
    return _slope(g.mT, out.mT, x2, x1, p)


def _slope(g, distance, x1, x2, p):
    """In x1. Of many rows, as in PyTorch, by a product of matrices, for which both are moved near 0 together: of 2048 by 2048 rows of 64
    that takes a tenth of the time. Which differences are the largest is only known of those that are rounded like them: so all are made."""
    if p == 0:
        return x1.new_zeros(x1.shape)
    if p == 2 and max(distance.shape[-2:]) > MANY and x1.dtype.itemsize >= 4 and x2.numel():
        centre, each = x2.detach().mean(-2, True), g / distance.masked_fill(distance == 0, math.inf)
        return (x1 - centre) * each.sum(-1, True) - each @ (x2 - centre)
    return (distance_slope_formula if p == math.inf else distance_slope)(g, distance, x1, x2, p)


@distances.samples
def distances_samples(make):
    for p in (2.0, 1.0, 3.0, math.inf, 0.0, 1.5):
        yield make(4, 3), make(5, 3), p
    yield make(2, 1, 3, 2), make(3, 4, 2), 2.0
    yield make(0, 3), make(2, 3), 2.0
    yield make(2, 0), make(3, 0), 2.0
    yield make(9, 70), make(40, 70), 2.0


@distances.workloads
def distances_workloads(make):
    x = make(1 << 12, 64, grad=False)
    yield "4096 by 4096 rows of 64 fp32", lambda: (x, x, 2.0), 4 << 24, 3 << 30


@op
def distance_slope(gradient, distance, x1, x2, p):
    """Σ over j of the gradient of the distance between x1_i and x2_j in x1_i, times `gradient`_ij; 0 between equal rows."""
    lead = broadcast_shapes("cdist", x1.shape[:-2], x2.shape[:-2])
    return (*lead, *x1.shape[-2:]), x1.dtype, x1.device


SLOPES = {1: "sign", 2: "straight"}


@distance_slope.impl("cpu")
def distance_slope_cpu(out, gradient, distance, x1, x2, p):
    gradient, distance = single(gradient)[..., None], single(distance)[..., None]
    for rows, apart in _pieces(single(x1), single(x2)):
        g, d = gradient[..., rows, :, :], distance[..., rows, :, :]
        if p == 0:
            made = g * 0 * apart
        elif p == 1:
            made = g * np.sign(np.where(apart == apart, apart, 0))
        else:
            share = np.abs(apart) / np.where(d == 0, 1, d)
            made = np.where((apart == 0) | (d == 0), 0, g * np.sign(apart) * share ** share.dtype.type(p - 1))
        out[..., rows, :] = made.sum(-2)


@distance_slope.impl("cuda")
def distance_slope_cuda(out, gradient, distance, x1, x2, p):
    if p == 0 or not x2.shape[-2]:
        out.fill_(0)
        return
    both = _both(x1, x2)
    each = [view.expand_to(view.unsqueeze(v, -1), both[0].shape) for v in (gradient, distance)]
    monoid = Monoid(SLOPES.get(p, "power") + "_slope", "sum", source="distances")
    reduce_rows([out], [*each, *both], (len(out.shape) - 1,), False, monoid, out.dtype.compute, param=p)


@distance_slope.formula
def distance_slope_formula(gradient, distance, x1, x2, p):
    apart, g, d = x1.unsqueeze(-2) - x2.unsqueeze(-3), gradient.unsqueeze(-1), distance.unsqueeze(-1)
    if p in (0, 1, math.inf):
        keep = 0 if p == 0 else 1 if p == 1 else (apart.abs() == d).to(x1.dtype)
        return (g * apart.sign() * keep).sum(-2)
    scale = g / d.masked_fill(d == 0, 1) ** (p - 1)
    power = apart if p == 2 else (apart.sign() * apart.abs().masked_fill(apart == 0, 1) ** (p - 1)).masked_fill(apart == 0, 0)
    return (power * scale.masked_fill(d == 0, 0)).sum(-2)


@distance_slope.samples
def distance_slope_samples(make):
    for p in (2.0, 1.0, 3.0, 0.0):
        x1, x2 = make(4, 3), make(5, 3)
        yield make(4, 5), distances(x1.detach(), x2.detach(), p), x1, x2, p
    yield make(2, 3, 4), make(2, 3, 4, positive=True), make(2, 3, 2), make(4, 2), 2.0


@distance_slope.workloads
def distance_slope_workloads(make):
    x, g = make(1 << 11, 64, grad=False), make(1 << 11, 1 << 11, grad=False)
    yield "2048 by 2048 rows of 64 fp32", lambda: (g, g, x, x, 2.0), 2 * g.nbytes, 4 << 28
