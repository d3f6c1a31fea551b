"""Copies of weights in the low dtype of autocast that outlive a call, so that a replay need not cast the weights anew: the steps of
optimizers that follow in the call write them beside the weights.

A cast may be left out of a graph where the trace shows that nothing but these steps writes the weights, none before the cast, and that
nobody has the copies any more when they are written. Before every replay the writes to the weights are counted: where anything else has
written one since (a checkpoint, an average of weights, another recording), all are cast first.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from tritorch.compiler.clipping import numbers
from tritorch.compiler.patterns import Pattern
from tritorch.compiler.watch import home
from tritorch.cuda.graph import replays
from tritorch.cuda.stream import default_stream
from tritorch.cuda.stream import stream as on_stream
from tritorch.errors import OutOfMemoryError
from tritorch.ops.casting import cast_all
from tritorch.storage import counts_writes, next_seq
from tritorch.tensor import empty

KEEP = Pattern("casts of weights, kept from call to call,", ("cast_all", "update"), lambda *calls: True, lambda *calls: None, (False,),
               True, "none: an optimizer's step rounds what it stores")


class Keep(NamedTuple):
    """Where casts are left out: their place in the trace, then those of the steps that write the copies; the numbers of the weights, and
    how often a step writes one of them."""

    pattern: Pattern
    places: tuple[int, ...]
    weights: tuple[int, ...]
    writes: int


def keep_at(watch, start, taken):
    """The Keep whose cast is the call at `start`, or None. `taken`: weights of which there are copies already."""
    name, args, _, _ = watch.events[start]
    if name != "cast_all":
        return None
    lows, weights = {x.number: x for x in args[0]}, {x.number: x for x in args[1]}
    alone = len(weights) == len(args[1]) and not taken.intersection(weights)
    if not alone or any(type(n) is not int or n in watch.returned for n in (*lows, *weights)) or not lows.keys() <= watch.dead.keys():
        return None
    steps, first, writes = [], {}, 0
    for k, event in enumerate(watch.events):
        written = weights.keys() & set(_written(event))
        if written and (k < start or not _is_step_of(event, [weights[n] for n in written])):
            return None
        if written:
            steps.append(k)
            writes += len(written)
            first.update({n: k for n in written if n not in first})
    gone = all(watch.dead[low] <= first.get(n, math.inf) for low, n in zip(lows, weights))
    if not gone or not steps and watch.differentiable:                   # weights that are trained elsewhere are new in every call
        return None
    return Keep(KEEP, (start, *steps), tuple(weights), writes)


def _written(event):
    """The numbers of all memory that a call may write."""
    name, args, into, made = event
    return numbers([into if made is not None else args[0] if name == "cast_all" else args])


def _is_step_of(event, weights):
    """Whether a call is the step of an optimizer, in which each of the weights is one parameter and nothing else."""
    name, args, _, _ = event
    if name != "update":
        return False
    found, others = [p[:5] for p in args[0]], set(numbers(args[1:]))
    return all(found.count(w[:5]) == 1 == [p[0] for p in found].count(w.number) and w.number not in others for w in weights)


class Copies:
    """Copies of weights in memory of their own; a hook of graphs that read them. `known` is how often the weights had been written when the
    copies were as they are, None where nobody can tell."""

    def __init__(self, weights, dtype):
        self.weights, self.memories = [w.detach() for w in weights], [home(w) for w in weights]
        self.lows, self.known = [empty(w.shape, dtype, w.device) for w in weights], None

    def __call__(self):
        """Before a replay: cast the weights if any has been written since `note`."""
        next_seq()                                                       # somebody looks, so other recordings have to count: see settle
        if self.written() != self.known:
            cast_all.run((self.lows, self.weights))
        self.known = None

    def written(self):
        """Changes with every write to a weight."""
        return sum([memory.version + memory.others for memory in self.memories]), replays[0]

    def note(self):
        """After a recording's replay: the copies are as the weights."""
        self.known = self.written()


class Kept:
    """The Keep of one call; `watch` is that of the call before. Copies are made only where a call is captured: in others the steps write to
    memory that nobody reads."""

    def __init__(self, keep, watch):
        self.keep, self.left, self.lows, self.copies = keep, len(keep.places), {}, None
        self.memories = [watch.met[n]() for n in keep.weights]
        self.counted = all(map(counts_writes, self.memories))
        self.before = self.moved()

    @property
    def done(self):
        """Whether all of it was met."""
        return not self.left and bool(self.lows)

    def moved(self):
        return sum([memory.version + memory.others for memory in self.memories]) if self.counted else 0

    def proven(self):
        """Whether the steps were all that wrote the weights in this call, also by what a trace does not show."""
        return self.counted and self.moved() - self.before == self.keep.writes

    def run(self, watch, place, op, args):
        """A call of the Keep: (what is left to do of it, its arguments)."""
        self.left -= 1
        if place == self.keep.places[0]:
            return self.cast(watch, *args), args
        if not self.lows:
            return True, args
        own = [self.lows.get(id(home(p))) for p in args[0]]
        own = [p if low is None else low if type(low) is not tuple else empty(p.shape, *low) for low, p in zip(own, args[0])]
        return True, (*args, *[None] * (len(op.names) - 1 - len(args)), own)

    def cast(self, watch, lows, weights):
        """The cast: whether it has to run."""
        if not self.counted:
            return True
        if watch.capture is None or not watch.capture.open:
            self.lows = {id(home(w)): (low.dtype, low.device) for low, w in zip(lows, weights)}
            return True
        key, known = (lows[0].dtype, *map(id, self.memories)), watch.owner.copies
        try:
            with on_stream(default_stream(watch.index)):                 # not of the graph: what it writes otherwise lies elsewhere
                self.copies = known.get(key) or Copies(weights, lows[0].dtype)
        except OutOfMemoryError:                                         # the graph casts, as without this
            return True
        known[key], graph = self.copies, watch.capture.graph
        graph.before_replay(self.copies)
        for low, mine, w in zip(lows, self.copies.lows, weights):
            graph.keep(mine.storage)
            watch.numbers[mine.storage] = watch.numbers[low.storage]
            low.storage, self.lows[id(home(w))] = mine.storage, mine
        return False
