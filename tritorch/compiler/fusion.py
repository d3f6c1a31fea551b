"""Fusion: which chains of a trace a pattern covers, and the call in which they are replaced.

A chain is replaced only where the trace of two equal calls shows that nobody reads or writes in between what its operators read and
make, and where a result that the kernel leaves out is read by nobody and gone, by its reference count, before anything that it is made of
is written. In the call the first operators of a chain are put off; the last one runs the kernel. Should the call turn out other than the
trace, what was put off or left out is made up for.
"""
from __future__ import annotations

import math
import weakref
from collections import defaultdict
from typing import NamedTuple

from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.compiler.clipping import CLIP, Clipping, numbers, steps_after
from tritorch.compiler.patterns import LINK, PATTERNS, Pattern
from tritorch.compiler.watch import Seen, home
from tritorch.shape import layout
from tritorch.tensor import empty, empty_strided, strided


class Match(NamedTuple):
    """Where a pattern applies: the places of its calls in the trace, and for each result in between whether it is wanted, and the event
    before which it must be gone if it is not."""

    pattern: Pattern
    places: tuple[int, ...]
    wanted: tuple[bool, ...]
    gone: tuple[int, ...] = ()


def matches(watch, inexact):
    """What can be replaced in a call such as the one watched; of patterns that meet in a call, the first of PATTERNS."""
    users, taken, found = defaultdict(list), set(), []
    for k, event in enumerate(watch.events):
        for number in set(numbers(event[1:3])):
            users[number].append(k)
    for start in range(len(watch.events)):
        steps = steps_after(watch, start, users)
        if steps is not None:
            found.append(Match(CLIP, (start, *steps), ()))
    for pattern in [p for p in PATTERNS if p.exact or inexact]:
        for start in range(len(watch.events)):
            match = _match(watch, pattern, start, users)
            if match is not None and not taken.intersection(match.places):
                taken.update(match.places)
                found.append(match)
    return found


def _match(watch, pattern, start, users):
    """The pattern with its first call at `start`, or None."""
    events, places, made, given = watch.events, [], None, []
    for name in pattern.chain:
        later = [k for k in users[made.number] if k > places[-1]] if places else [start]
        if not later or events[later[0]][0] != name or events[later[0]][2] is not None:
            return None
        places.append(later[0])
        args = _linked(events[later[0]][1], made)
        if made is not None and args.count(LINK) != 1:
            return None
        given.append(args)
        made = _first(events[later[0]][3])
        if len(places) < len(pattern.chain) and type(made) is not Seen:
            return None
    if not pattern.fits(*given) or not _undisturbed(events, places, users):
        return None
    between, last = [_first(events[k][3]).number for k in places[:-1]], places[-1]
    gone = tuple([watch.dead.get(n, 0) for n in between])
    wanted = tuple([users[n][-1] > k or not end or end > last + 1 and not _as_it_was(events, start, end)
                    for n, k, end, start in zip(between, places[1:], gone, places)])
    return Match(pattern, tuple(places), wanted, gone) if all(can or not want for can, want in zip(pattern.keeps, wanted)) else None


def _as_it_was(events, start, end):
    """Whether what the call at `start` reads is written by none after it and before `end`, which lies within the trace: what was freed
    after all that may be a result of the call."""
    return end < len(events) and not set(numbers(events[start][1])).intersection(numbers(_written(events, start + 1, end)))


def _written(events, start, end):
    """Operators on lists of tensors return nothing, and may write all of them."""
    return [events[k][2] if events[k][3] is not None else events[k][1] for k in range(start, end)]


def _first(made):
    """The result that a chain goes on with: of several the first."""
    return made[0] if isinstance(made, tuple) and type(made) is not Seen and made else made


def _undisturbed(events, places, users):
    """Whether nothing is written, between the first call and the last, that the calls put off read, and nobody reads a further result of
    theirs."""
    read = set(numbers([events[k][1] for k in places[:-1]]))
    written = _written(events, places[0] + 1, places[-1])
    others = set(numbers([events[k][3][1:] for k in places[:-1] if type(events[k][3]) is tuple]))
    return not read.intersection(numbers(written)) and not any(places[0] < k <= places[-1] for n in others for k in users[n])


def _linked(args, before):
    """Arguments with LINK for the result of the call before."""
    return [LINK if before is not None and (a is before or type(a) is Seen and a == before) else a for a in args]


class Fusion:
    """The replacements of one call, which must go as the trace `events` did. `done` are those that were made."""

    def __init__(self, found, events):
        self.steps = {place: match for match in found for place in match.places}
        self.events, self.done = events, []
        self.pending, self.left_out = {}, []                             # match -> [(operator, arguments, result, others), …]; see settle
        self.clippings = {}                                              # match -> Clipping

    def run(self, watch, event, op, args, out):
        """An operator of the call."""
        place = len(watch.events)
        if self.left_out:
            self.settle(watch, place)
        if self.steps and (place >= len(self.events) or event != self.events[place][:3]):
            self.flush(watch)
        match = self.steps.get(place)
        if match is None:
            return watch.proceed(op, args, out)
        if match.pattern is CLIP:
            return self.clip(watch, match, place, op, args)
        promises = op.body(*args)
        if place == match.places[-1]:
            return self.replace(watch, match, op, args, promises)
        several = isinstance(promises, list)
        promise, *more = promises if several else [promises]
        result = strided(empty((0,), *promise[1:3]).storage, promise[0], strides_of(*promise), 0, promise[1])
        others = [empty(*p) for p in more]
        _note(op, args, (result, *others))
        self.pending.setdefault(match, []).append((op, args, result, [Unfilled(x) for x in others]))
        return (result, *others) if several else result

    def replace(self, watch, match, op, args, promises):
        """Run the kernel in the place of the last call of a chain."""
        several = isinstance(promises, list)
        outs = [empty(*p) for p in (promises if several else [promises])]
        calls, before = [], None
        for (earlier, given, result, others), wanted, gone in zip(self.pending.pop(match), match.wanted, match.gone):
            if wanted:
                _substantiate(watch, result)
            else:
                self.left_out.append((gone, earlier, given, Unfilled(result), others))
            calls.append(((result if wanted else None, *[x.tensor() for x in others]), _linked(given, before)))
            before = result
        match.pattern.fill(*calls, (outs, _linked(args, before)))
        _note(op, args, outs)
        self.done.append(match)
        return tuple(outs) if several else outs[0]

    def clip(self, watch, match, place, op, args):
        """A clipping is put off; a step that follows does it, and after the last one nobody looks."""
        if place == match.places[0]:
            self.clippings[match] = Clipping(op, args, len(match.places) - 1)
            return
        clipping = self.clippings[match]
        watch.proceed(op, clipping.step(args), None)
        if not clipping.left:
            self.done.append(match)

    def settle(self, watch, place):
        """Results that kernels left out are gone in time. If one is not, as in no call before, it is computed after all."""
        left_out, self.left_out = self.left_out, []
        for entry in left_out:
            gone, op, args, made, others = entry
            if made.storage() is not None and place <= gone:
                self.left_out.append(entry)
            elif made.storage() is not None:
                result = made.tensor()
                _substantiate(watch, result)
                op.impls["cuda"](result, *[x.tensor() for x in others], *args)

    def flush(self, watch):
        """Nothing is replaced any more; what was put off is computed."""
        self.settle(watch, math.inf)
        clippings, self.clippings = self.clippings, {}
        for clipping in clippings.values():
            clipping.make_up()
        self.steps, pending, self.pending = {}, self.pending, {}
        for calls in pending.values():
            for op, args, result, others in calls:
                _substantiate(watch, result)
                op.impls["cuda"](result, *[x.tensor() for x in others], *args)


class Unfilled:
    """A result that a kernel has still to fill, without a hold on it: the one who has it may ask whether somebody else does."""

    def __init__(self, x):
        self.storage, self.facts, self.device = weakref.ref(x.storage), (x.shape, x.strides, x.offset, x.dtype), x.device

    def tensor(self):
        """The result, or other memory where nobody wants it any more."""
        storage, (shape, strides, _, dtype) = self.storage(), self.facts
        return empty_strided(shape, strides, dtype, self.device) if storage is None else strided(storage, *self.facts)


def _substantiate(watch, result):
    """Give a result that was put off memory, known to the trace by the number that the result has."""
    memory, storage = empty(result.shape, result.dtype, result.device), result.storage
    watch.numbers[home(memory)] = watch.numbers[home(result)]
    storage.owner, storage.ptr, storage.nbytes = memory.storage.owner, memory.storage.ptr, memory.storage.nbytes


def strides_of(shape, dtype, device, strides=None, rule=None):
    """The strides that a promise leads to; they are without gaps."""
    usual = layout(shape)[1]
    return usual if strides is None or strides == usual else strides if rule is None else rule(shape, strides)


def _note(op, args, outs):
    """As an operator call ends."""
    if state.grad:
        record(op, args, outs)
    elif state.inference:
        for out in outs:
            out._inference = True
