"""A last layer and the cross entropy of what it gives, in the trace of a call: replaced by what `F.linear_cross_entropy` does, forward and
backward, so that the logits and their gradient are never there as a whole.

The operators keep their places in the call. The product and the casts behind it are put off. Where the losses are asked for, they are made
in pieces of rows, and if the call goes back through them with one factor for all rows (a mean, a sum), the gradients too; these are scaled
when the products of the backward pass ask for them. With a factor for every row the pieces are made once more.
"""
from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import prod
from typing import NamedTuple

from tritorch.compiler.clipping import numbers
from tritorch.compiler.patterns import Pattern
from tritorch.compiler.watch import Seen
from tritorch.dispatch import write
from tritorch.ops.copy import transfer
from tritorch.ops.cross_entropy import cross_entropy_backward_cuda, cross_entropy_cuda
from tritorch.ops.gemm import gemm
from tritorch.ops.linear import as_rows
from tritorch.ops.linear_cross_entropy import backward_cuda, losses_and_gradients, rows_cuda
from tritorch.ops.pointwise import add
from tritorch.shape import contiguous_strides
from tritorch.tensor import empty, strided

HEAD = Pattern("linear + cross_entropy", ("linear", "cross_entropy_rows"), lambda *calls: True, lambda *calls: None, (False,), False,
               "the gradients are scaled behind the products, not before, and that of the weight is summed up piece by piece in float32")


class Head(NamedTuple):
    """Where the pattern applies: the places of its calls in the trace and the role of each, whether one factor scales the gradients of all
    rows (None: there is no way back), the dtype of the weight's gradient, and the event before which all that is left out must be gone."""

    pattern: Pattern
    places: tuple[int, ...]
    roles: tuple[str, ...]
    uniform: bool | None
    dtype: object
    gone: int


def head_at(watch, start, users):
    """The Head whose product is the call at `start`, or None."""
    found = Finder(watch.events, start)
    if not found.begins():
        return None
    left, seen = list(users[found.logits.number]), {start}
    heapify(left)
    while left:
        k = heappop(left)
        if k in seen or k < start:
            continue
        seen.add(k)
        new = found.meet(k, *watch.events[k])
        if new is None:
            return None
        for place in users[new] if new >= 0 else ():
            heappush(left, place)
    return found.head(watch, users)


class Finder:
    """Goes through the calls that read or write the logits, what is cast from them, and their gradient."""

    def __init__(self, events, start):
        self.events, self.start, self.roles, self.stages = events, start, {start: "product"}, {}
        self.lse = self.uniform = self.losses = self.dtype = None

    def begins(self):
        """Whether the call is the product of rows and a matrix, of one floating dtype."""
        name, args, into, made = self.events[self.start]
        if name not in ("linear", "matmul") or into is not None or type(made) is not Seen:
            return False
        self.x, self.weight, self.bias = (*args, None)[:3]
        self.turned = name == "matmul"
        rows = type(self.x) is type(self.weight) is Seen and len(self.weight.shape) == 2 and len(self.x.shape) >= 2
        if not rows or not self.x.dtype.is_floating_point or self.x.strides != contiguous_strides(self.x.shape):
            return False
        self.logits, self.stages = made, {made.number: "logits"}
        self.count, (self.classes, self.inner) = prod(made.shape[:-1]), self.weight.shape[::-1] if self.turned else self.weight.shape
        return self.bias is None or self.bias.shape == (self.classes,)

    def meet(self, k, name, args, into, made):
        """What a call is: the number of what it makes besides, -1 for nothing; None for a call that disturbs."""
        first = args[0]
        stage = self.stages.get(first.number) if type(first) is Seen else None
        more = {a.number for a in (*args[1:], into) if type(a) is Seen} & self.stages.keys()
        if name == "cross_entropy_backward":
            return self.slopes(k, args, into, made) if stage is None else None
        if stage is not None and not more and into is None and type(made) is Seen:
            if made.number == first.number:                              # a view
                return -1
            if name == "copy_to" and {args[1], first.dtype} <= {self.x.dtype, self.x.dtype.compute} and args[2].type == "cuda":
                return self.role(k, "cast", made.number, stage)
            if name in ("linear", "matmul") and stage == "slope" and args[1].number == self.weight.number:
                return self.of_input(k, name, args, made)
        if name == "cross_entropy_rows" and stage == "logits" and not more:
            return self.of_rows(k, args, made)
        return self.of_weight(k, name, args, made) if name in ("matmul", "addmm", "linear_gradients") else None

    def role(self, k, role, number=-1, stage=None):
        self.roles[k] = role
        if number >= 0:
            self.stages[number] = stage
        return number

    def of_rows(self, k, args, made):
        shape = (self.count, self.classes)
        if self.losses is not None or (args[0].shape, args[0].strides, args[0].offset) != (shape, contiguous_strides(shape), 0):
            return None
        self.losses, self.lse = args, made[2].number
        return self.role(k, "losses")

    def slopes(self, k, args, into, made):
        """The gradient of the logits, of the same targets, in new memory or in their place."""
        alike = self.losses is not None and [_place(a) for a in args[1:3]] == [_place(a) for a in self.losses[:2]]
        if self.uniform is not None or not alike or args[4:] != self.losses[2:] or args[3].number != self.lse:
            return None
        self.uniform = args[0].strides == (0,)
        self.stages[made.number] = "slope"
        return self.role(k, "slope", made.number, "slope")

    def of_input(self, k, name, args, made):
        """slope @ weight: by `linear` with the weight turned."""
        weight, bias = (*args[1:], None)[:2]
        turned = name == "linear"
        shape = (self.inner, self.classes) if turned else (self.classes, self.inner)
        fits = bias is None and "input" not in self.roles.values() and weight.shape == shape
        straight = fits and (weight.strides == self.weight.strides) == (turned is self.turned)
        shape = (*args[0].shape[:-1], self.classes)
        return self.role(k, "input") if straight and args[0].dtype is self.x.dtype and args[0].shape == shape else None

    def of_weight(self, k, name, args, made):
        """slopeᵀ @ x, alone, added to sums so far, or with the sums of its rows, the gradient of the bias; of `x @ weight` xᵀ @ slope."""
        product = (args[0] if name != "linear_gradients" else args[0]._replace(shape=args[0].shape[::-1]), args[1])
        if name == "addmm":
            product, (beta, alpha) = args[1:3], args[3:5]
            if beta != 1 or alpha != 1:
                return None
        slope, x = product[::-1] if self.turned else product
        fits = type(slope) is type(x) is Seen and self.stages.get(slope.number) == "slope" and x.number == self.x.number
        shapes = ((self.count, self.classes), (self.inner, self.count)) if self.turned else ((self.classes, self.count),
                                                                                             (self.count, self.inner))
        sums = {a.number for a in (args[:1] if name == "addmm" else args[3:]) if type(a) is Seen}
        role = "weight and bias" if name == "linear_gradients" else "weight"
        if not fits or (slope.shape, x.shape) != shapes or slope.dtype is not self.x.dtype or sums & self.stages.keys() \
                or (self.bias is None) != (role == "weight") or role in self.roles.values():
            return None
        self.dtype = (made[0] if role != "weight" else made).dtype
        return self.role(k, role)

    def head(self, watch, users):
        """The Head, if nothing is missing, what is read stays as it is, and all that is left out is gone in time."""
        roles, last = set(self.roles.values()), max(self.roles)
        back = {"slope", "input", "weight" if self.bias is None else "weight and bias"}
        if "losses" not in roles or roles & {"slope", "input", "weight", "weight and bias"} not in (set(), back):
            return None
        if not self.stages.keys() <= watch.dead.keys() - watch.returned:
            return None
        gone = max(watch.dead[n] for n in self.stages)
        if self.uniform and any(self.roles.get(k) != "slope" for k in users[self.lse]):
            return None
        ordered = tuple(sorted(self.roles))
        losses = next(k for k in ordered if self.roles[k] == "losses")
        for first, given in (self.start, (self.x, self.weight, self.bias)), (losses, self.losses[1:]):
            written = [event[2] if event[3] is not None else event[1] for event in self.events[first + 1:max(gone, last + 1)]]
            if set(numbers(given)) & set(numbers(written)):
                return None
        return Head(HEAD, ordered, tuple([self.roles[k] for k in ordered]), self.uniform, self.dtype, gone)


def _place(x):
    return x if type(x) is not Seen else x[:5]


class Losses:
    """A Head in a call: what it has made so far. `hollow(promise)` makes a result without memory, of which `values` knows weakly."""

    def __init__(self, head, hollow, unfilled):
        self.head, self.hollow, self.unfilled, self.left = head, hollow, unfilled, len(head.places)
        self.values, self.target = [], None                              # (result, its stage); (target, class weights, …)
        self.made_lse = self.factor = None

    def run(self, place, op, args, out, promises):
        """An operator of the Head: its results."""
        self.left -= 1
        role = self.head.roles[self.head.places.index(place)]
        return getattr(self, role.replace(" ", "_"))(op, args, out, promises)

    def put_off(self, stage, promise):
        result = self.hollow(promise)
        self.values.append((self.unfilled(result), stage))
        return result

    # -------------------------------------------------------------- forward
    def product(self, op, args, out, promise):
        x, weight, bias = (*args, None)[:3]
        self.x, self.bias, self.turned = as_rows(x.detach()), bias, op.__name__ == "matmul"
        self.matrix = weight.detach().mT if self.turned else weight
        return self.put_off("logits", promise)

    def cast(self, op, args, out, promise):
        return self.put_off("slope" if self.factor is not None else "logits", promise)

    def losses(self, op, args, out, promises):
        loss, weights, lse = outs = [empty(*p) for p in promises]
        self.dtype, self.target = args[0].dtype, args[1:]
        if self.head.uniform:
            self.made_lse = self.unfilled(lse)
            losses_and_gradients(loss, weights, *self.gradients(), self.x, self.matrix, self.bias, *self.target)
        else:
            rows_cuda(loss, weights, lse, self.x, self.matrix, self.bias, *self.target)
        return tuple(outs)

    def gradients(self):
        """Memory for those of input, weight and bias."""
        x, weight, bias = self.x, self.matrix, self.bias
        self.gx, self.gw = empty(x.shape, x.dtype, x.device), empty(weight.shape, self.head.dtype, x.device)
        self.gb = empty((0,) if bias is None else bias.shape, x.dtype.compute, x.device)
        return self.gx, self.gw, self.gb

    # -------------------------------------------------------------- backward
    def slope(self, op, args, out, promise):
        self.factor, lse = args[0], args[3]
        if not self.head.uniform:
            target, *rest = self.target
            backward_cuda(*self.gradients(), self.factor, self.x, self.matrix, self.bias, target, lse, *rest)
        if out is None:
            return self.put_off("slope", promise)
        self.values = [(made, "slope" if made.storage() is out.storage else stage) for made, stage in self.values]
        return write(op, out, args, promise, run=lambda *_: None)

    def take(self, name):
        """A gradient, which is the caller's from now on, times the factor of all rows where it lacks that."""
        g = getattr(self, name)
        setattr(self, name, None)
        return g.mul_(strided(self.factor.storage, (), (), self.factor.offset, self.factor.dtype)) if self.head.uniform else g

    def input(self, op, args, out, promise):
        g = self.take("gx")
        return strided(g.storage, promise[0], contiguous_strides(promise[0]), g.offset, g.dtype)

    def weight_and_bias(self, op, args, out, promises):
        return _sums(op, args, out, promises, args[3:5], [self.take("gw"), self.take("gb")])

    def weight(self, op, args, out, promise):
        g = self.take("gw")
        total = args[0] if op.__name__ == "addmm" else None
        found = _sums(op, args, None if out is None else (out,), [promise], (total,), [g.mT if self.turned else g])
        return found[0] if out is None else out

    # -------------------------------------------------------------- where a call turns out other than the trace
    def alive(self):
        """What was put off and is still there."""
        return [(made, stage) for made, stage in self.values if made.storage() is not None]

    def make_up(self, substantiate):
        """Compute what was put off and left out, for whoever may look now."""
        for made, stage in self.alive():
            result = made.tensor()
            substantiate(result)
            z = self.logits()
            if stage == "slope":
                _, _, lse = self.rows(z)
                target, *rest = self.target
                cross_entropy_backward_cuda(z, self.factor, z, target, lse, *rest)
            flat = strided(result.storage, z.shape, z.strides, result.offset, result.dtype)
            transfer(flat, z)
        self.values = []
        if self.made_lse is not None and self.made_lse.storage() is not None:
            transfer(self.made_lse.tensor(), self.rows(self.logits())[2])
            self.made_lse = None

    def logits(self):
        """The logits as the cross entropy reads them."""
        x, weight = self.x, self.matrix
        z = empty((x.shape[0], weight.shape[0]), x.dtype, x.device)
        gemm(z, x, weight.mT, self.bias)
        dtype = z.dtype if self.target is None else self.dtype
        if dtype is z.dtype:
            return z
        cast = empty(z.shape, dtype, z.device)
        transfer(cast, z)
        return cast

    def rows(self, z):
        """Losses, weights of targets and logarithms of sums."""
        outs = [empty((z.shape[0],), z.dtype.compute, z.device) for _ in range(3)]
        cross_entropy_cuda(*outs, z, *self.target)
        return outs


def _sums(op, args, outs, promises, totals, gradients):
    """The gradients, added to sums so far where there are some, in the memory of `outs` if they are given."""
    def run(*values):
        for target, total, g in zip(values, totals, gradients):
            if total is None:
                transfer(target, g)
            else:
                add.impls["cuda"](target, total, g, 1)

    if outs is not None:
        return write(op, outs if len(outs) > 1 else outs[0], args, promises if len(outs) > 1 else promises[0], run=run)
    if totals[0] is None and all(g.is_contiguous() and g.dtype is p[1] for g, p in zip(gradients, promises)):
        return tuple(gradients)
    made = tuple([empty(*p[:3]) for p in promises])
    run(*made)
    return made
