"""Clipping that the optimizer does as it reads the gradients, so that `clip_grad_norm_` reads them once, for the norm, and writes nothing.

Nobody sees the difference where steps of optimizers are all that reads the clipped gradients, and these are forgotten in the same call.
"""
from __future__ import annotations

import weakref

from tritorch.compiler.patterns import Pattern
from tritorch.compiler.watch import Seen
from tritorch.ops.optimize import update
from tritorch.tensor import strided

PLACE = update.names.index("clip")
CLIP = Pattern("clip_grad_norm_ + optimizer step", ("clip_by_norm", "update"), lambda *calls: True, lambda *calls: None, (False,), True,
               "none: a clipped gradient is rounded before it is used")


def steps_after(watch, start, users):
    """The places of the optimizer steps that can take the clipping at `start` over; None if something else reads the gradients."""
    events = watch.events
    name, args, _, _ = events[start]
    if name != "clip_by_norm":
        return None
    gradients, total = {g.number for g in args[0]}, args[1].number
    later = {g: [k for k in users[g] if k > start] for g in gradients}
    if not all(type(g) is int and g in watch.dead and len(places) == 1 for g, places in later.items()):
        return None
    steps = sorted({places[0] for places in later.values()})
    for k in steps:
        name, (params, given, *others), _, _ = events[k]
        if name != "update" or not {g.number for g in given} <= gradients or gradients & set(numbers([params, *others])):
            return None
    written = [event[2] if event[3] is not None else event[1][:1] for event in events[start + 1:steps[-1]] if event[0] != "update"]
    return None if total in numbers(written) else tuple(steps)


def numbers(tree):
    """The numbers of all memory in nested tuples."""
    for item in tree if isinstance(tree, (tuple, list)) else ():
        if type(item) is Seen:
            yield item.number
        else:
            yield from numbers(item)


class Clipping:
    """One clipping of a call that is left to `count` steps of optimizers."""

    def __init__(self, op, args, count):
        self.op, self.left, (gradients, *self.norm) = op, count, args
        self.where = [(weakref.ref(g.storage), g.shape, g.strides, g.offset, g.dtype) for g in gradients]

    def step(self, args):
        """The arguments of an optimizer's step that clips."""
        self.left -= 1
        return *args[:PLACE], tuple(self.norm), *args[PLACE + 1:]

    def make_up(self):
        """Clip, for whoever may look now, the gradients that are there."""
        found = [(ref(), *rest) for ref, *rest in self.where]
        tensors = [strided(storage, *rest) for storage, *rest in found if storage is not None]
        if tensors:
            self.op.run((tensors, *self.norm))
