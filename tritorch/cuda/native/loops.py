"""The loops over a tensor, and which operators go into one."""
from __future__ import annotations

import contextlib

from .emit import LANES
from .points import Point


class Group:
    """Pending operators of one shape, which become one loop, with vectors along `axis` (None: any will do). `early`: values in buffers that
    the loop writes over, which it reads before."""

    def __init__(self, shape, axis):
        self.shape, self.axis, self.ops, self.early = shape, axis, [], []

    def takes(self, shape, axis):
        return self.shape == shape and (axis is None or self.axis in (None, axis))


class Loops:
    """The loops over a tensor: `with rows() as point` those over all dims but `axis` (else the last dim of more than one element), and in
    them `with lane_loop(point) as point` the one along it, in steps of `lanes`."""

    def __init__(self, em, shape, lanes=LANES, axis=None):
        self.em, self.shape = em, shape
        axes = [d for d, n in enumerate(shape) if n > 1]
        self.axis = axis if axis is not None else axes[-1] if axes else None
        self.length = shape[self.axis] if axes else 1
        self.lanes = min(lanes, self.length)

    @contextlib.contextmanager
    def rows(self):
        """A point whose lanes are a whole row."""
        with contextlib.ExitStack() as stack:
            indices = [stack.enter_context(self.em.loop("0", str(n))) if d != self.axis else "0" for d, n in enumerate(self.shape)]
            yield Point(tuple(indices), self.axis if self.length > 1 else None, self.length)

    @contextlib.contextmanager
    def along(self, row, sure=None, end=None):
        """Points of a row, or before `end`; `sure` has what is known of all of its accesses."""
        with self.em.loop("0", end or str(self.length), self.lanes) as i:
            indices = tuple(i if d == self.axis else index for d, index in enumerate(row.indices))
            yield Point(indices, self.axis if self.lanes > 1 else None, self.lanes, dict(row.known), sure)

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        return self.stack.enter_context(self.along(self.stack.enter_context(self.rows())))

    def __exit__(self, *error):
        return self.stack.__exit__(*error)
