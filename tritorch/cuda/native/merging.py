"""Dims that a loop need not tell apart: `tl.sort` works on tensors of 2 × 2 × … × 2, along whose last dim there are two lanes at most."""
from __future__ import annotations

import math

from .emit import LANES, Buffer


def merged(at, ops, shape):
    """The shape of the loops over elementwise operators that touch no memory but buffers: of neighbouring dims that all of them treat alike
    the last one has the elements of all, the others one. Row by row these are the same elements, in the same order."""
    wide = [d for d, size in enumerate(shape) if size > 1]
    if len(wide) < 2 or shape[wide[-1]] >= LANES or any(op.name in ("tt.load", "tt.store") for op in ops):
        return shape
    gone = broadcasts(at, ops, len(shape))
    result, run = [1] * len(shape), []
    for d, following in zip(wide, [*wide[1:], None]):
        run.append(d)
        if following is None or any((d in dims) != (following in dims) for dims in gone):
            result[d], run = math.prod(shape[e] for e in run), []
    return tuple(result)


def broadcasts(at, ops, rank):
    """For each tt.broadcast below the operators, the dims along which it repeats."""
    found, seen = set(), set()
    waiting = [(result, tuple(range(rank))) for op in ops for result in op.results]
    while waiting:
        value, dims = waiting.pop()
        held, op = at.held.get(value), value.op
        if (value, dims) in seen or not value.type.shape or isinstance(held, Buffer):
            continue
        seen.add((value, dims))
        if held is not None or op is None:
            waiting += [(held.initial, dims)] if held is not None else []
            continue
        if op.name == "tt.expand_dims":
            dims = tuple(d for i, d in enumerate(dims) if i != op.attributes["axis"])
        elif op.name == "tt.broadcast":
            sizes = zip(dims, op.operands[0].type.shape, value.type.shape)
            found.add(frozenset(d for d, before, after in sizes if before < after))
        waiting += [(operand, dims) for operand in op.operands]
    return found
