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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tritorch.autograd.graph import record
from tritorch.autograd.modes import state
from tritorch.compiler.clipping import CLIP, Clipping, numbers, steps_after
from tritorch.compiler.head import HEAD, Losses, head_at
from tritorch.compiler.kept import KEEP, Kept, keep_at
from tritorch.compiler.patterns import LINK, PATTERNS, Pattern
from tritorch.compiler.watch import Seen
from tritorch.dispatch import write
from tritorch.shape import layout
from tritorch.tensor import Tensor, empty, empty_strided, strided


class Match(NamedTuple):
    """Where a pattern applies: the places of its calls in the trace, and for each result in between whether it is wanted (None: the next
    call writes in its place), and the event before which it must be gone if it is not."""

    pattern: Pattern
    places: tuple[int, ...]
    wanted: tuple[bool | None, ...]
    gone: tuple[int, ...] = ()


def matches(watch, inexact):
    """What can be replaced in a call such as the one watched; of patterns that meet in a call, the first of PATTERNS."""
    users, taken, found, kept = defaultdict(list), set(), [], set()
    for k, event in enumerate(watch.events):
        for number in set(numbers(event[1:3])):
            users[number].append(k)
    for start in range(len(watch.events)):
        steps = steps_after(watch, start, users)
        if steps is not None:
            found.append(Match(CLIP, (start, *steps), ()))
        keep = keep_at(watch, start, kept)
        if keep is not None:
            kept.update(keep.weights)
            found.append(keep)
        head = head_at(watch, start, users) if inexact else None
        if head is not None:
            taken.update(head.places)
            found.append(head)
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
        if not later or events[later[0]][0] != name or not _writes_only(events[later[0]], made):
            return None
        places.append(later[0])
        args = _linked(events[later[0]][1], made)
        if made is not None and args.count(LINK) != 1:
            return None
        given.append(args)
        made = _first(events[later[0]][3])
        if len(places) < len(pattern.chain) and type(made) is not Seen:
            return None
    origin = _origin(events, start, given[0][-1], pattern.origin)
    if origin is None or not pattern.fits(*given, *origin) or not _undisturbed(events, places, users, pattern.early):
        return None
    between, last = [_first(events[k][3]).number for k in places[:-1]], places[-1]
    gone = tuple([watch.dead.get(n, 0) for n in between])
    wanted = tuple([None if events[k][2] is not None else
                    users[n][-1] > k or not end or end > last + 1 and not _as_it_was(events, start, end)
                    for n, k, end, start in zip(between, places[1:], gone, places)])
    return Match(pattern, tuple(places), wanted, gone) if all(can or not want for can, want in zip(pattern.keeps, wanted)) else None


def _writes_only(event, made):
    """Whether a call writes nothing that was there before but the result of the one before it in the chain, and that in its own dtype."""
    _, args, out, _ = event
    return out is None or out == made and all(a.dtype is out.dtype for a in args if type(a) is Seen)


def _origin(events, start, made, names):
    """(results, arguments) of the calls that made what the call at `start` reads, the last one first, or None if they are others."""
    found = []
    for name in names:
        start = next((k for k in range(start - 1, -1, -1) if made.number in numbers(_touched(events[k]))), None)
        if start is None or events[start][0] != name:
            return None
        found.append((events[start][3], events[start][1]))
        made = events[start][1][0]
    return found


def _as_it_was(events, start, end):
    """Whether what the call at `start` reads is written by none after it and before `end`, which lies within the trace: what was freed
    after all that may be a result of the call."""
    written = [_written(event) for event in events[start + 1:end]]
    return end < len(events) and not set(numbers(events[start][1])).intersection(numbers(written))


def _written(event):
    """Operators on lists of tensors return nothing, and may write all of them."""
    return event[2] if event[3] is not None else event[1]


def _touched(event):
    """What a call made or wrote."""
    return event[3], _written(event)


def _first(made):
    """The result that a chain goes on with: of several the first."""
    return made[0] if isinstance(made, tuple) and type(made) is not Seen and made else made


def _undisturbed(events, places, users, early):
    """Whether nothing is written, between the first call and the last, that the calls put off read, and nobody reads a further result of
    theirs, unless it is there early."""
    read = set(numbers([events[k][1] for k in places[:-1]]))
    written = [_written(events[k]) for k in range(places[0] + 1, places[-1]) if k not in places]
    others = set(numbers([events[k][3][1:] for k in places[1 if early else 0:-1] if type(events[k][3]) is tuple]))
    return not read.intersection(numbers(written)) and not any(places[0] < k <= places[-1] for n in others for k in users[n])


def _linked(args, before):
    """Arguments with LINK for the result of the call before."""
    def linked(a):
        return a == before if type(a) is Seen else isinstance(a, Tensor) and a.storage is before.storage

    return [LINK if before is not None and linked(a) else a for a in args]


class Fusion:
    """The replacements of one call, which must go as the one that `watch` saw did. `done` are those that were made."""

    def __init__(self, found, watch):
        self.steps = {place: match for match in found for place in match.places if match.pattern is not KEEP}
        self.kept = [Kept(match, watch) for match in found if match.pattern is KEEP]
        self.keeping = {place: kept for kept in self.kept for place in kept.keep.places}
        self.events, self.done = watch.events, []
        self.pending, self.left_out = {}, []                             # match -> [PutOff, …]; (gone, [PutOff, …]), see settle
        self.clippings, self.heads = {}, {}                              # match -> Clipping, match -> Losses

    def run(self, watch, event, op, args, out):
        """An operator of the call."""
        place = len(watch.events)
        if self.left_out or self.heads:
            self.settle(watch, place)
        if (self.steps or self.keeping) and (place >= len(self.events) or event != self.events[place][:3]):
            self.flush(watch)
        if place in self.keeping:
            runs, args = self.keeping[place].run(watch, place, op, args)
            if not runs:
                return None
        match = self.steps.get(place)
        if match is None:
            return watch.proceed(op, args, out)
        if match.pattern is CLIP:
            return self.clip(watch, match, place, op, args)
        if match.pattern is HEAD:
            return self.lose(match, place, op, args, out)
        promises = op.body(*args)
        chain = self.pending.setdefault(match, [])
        given = _linked(args, chain[-1].result if chain else None)
        if place == match.places[-1]:
            return self.replace(watch, match, op, args, given, out, promises)
        if out is not None:
            chain.append(PutOff(op, given, out, []))
            return write(op, out, args, promises, run=_put_off)
        several = isinstance(promises, list)
        promise, *more = promises if several else [promises]
        result = hollow(promise)
        others = [empty(*p) for p in more]
        _note(op, args, (result, *others))
        early = match.pattern.early if place == match.places[0] else None
        if early is not None:
            early(others, *args)
        chain.append(PutOff(op, given, result, others if early is not None else list(map(Unfilled, others))))
        return (result, *others) if several else result

    def replace(self, watch, match, op, args, given, out, promises):
        """Run the kernel in the place of the last call of a chain."""
        calls, unmade = [], []
        for call, wanted, gone in zip(self.pending.pop(match), match.wanted, match.gone):
            unmade = [*unmade, call._replace(result=Unfilled(call.result))]
            if wanted:
                _substantiate(call.result)
                unmade = [PutOff(None, (), call.result, ())]             # from here on what comes behind it can be made
            elif wanted is False:
                self.left_out.append((gone, unmade))
            calls.append(((call.result if wanted else None, *map(_tensor, call.others)), call.args))
        self.done.append(match)
        if out is not None:
            _substantiate(out)
            return write(op, out, args, promises, run=lambda target, *_: match.pattern.fill(*calls, ([target], given)))
        several = isinstance(promises, list)
        outs = [empty(*p) for p in (promises if several else [promises])]
        match.pattern.fill(*calls, (outs, given))
        _note(op, args, outs)
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

    def lose(self, match, place, op, args, out):
        """A call of a last layer and its losses."""
        losses = self.heads.get(match) or self.heads.setdefault(match, Losses(match, hollow, Unfilled))
        made = losses.run(place, op, args, out, op.body(*args))
        if out is None:
            _note(op, args, made if type(made) is tuple else (made,))
        if not losses.left:
            self.done.append(match)
        return made

    def replaced(self, proven=False):
        """What was replaced; `proven`: what a call may replace that goes as this one did."""
        return self.done + [kept.keep for kept in self.kept if kept.done and (not proven or kept.proven())]

    def settle(self, watch, place):
        """Results that kernels left out are gone in time. If one is not, as in no call before, it is computed after all."""
        for match, losses in [*self.heads.items()]:
            if not losses.left and (place >= match.gone or not losses.alive()):
                self.heads.pop(match).make_up(_substantiate)
        left_out, self.left_out = self.left_out, []
        for gone, calls in left_out:
            held = calls[-1].result.storage() is not None
            if held and place < gone:
                self.left_out.append((gone, calls))
            elif held:
                _make_up(watch, calls)

    def flush(self, watch):
        """Nothing is replaced any more; what was put off is computed."""
        self.settle(watch, math.inf)
        clippings, self.clippings = self.clippings, {}
        for clipping in clippings.values():
            clipping.make_up()
        heads, self.heads = self.heads, {}
        for losses in heads.values():
            losses.make_up(_substantiate)
        self.steps, self.keeping, pending, self.pending = {}, {}, self.pending, {}
        for calls in pending.values():
            _make_up(watch, [call._replace(result=Unfilled(call.result)) for call in calls])


class PutOff(NamedTuple):
    """A call whose kernels have not run: its operator (None if they have), its arguments with LINK for the result of the one before, its
    first result and the further ones, which are either filled or Unfilled."""

    op: Callable | None
    args: Sequence
    result: Tensor | Unfilled
    others: Sequence


def _make_up(watch, calls):
    """Compute calls that were put off. Results that nobody has any more get other memory."""
    before = None
    for op, args, result, others in calls:
        made = _tensor(result)
        if op is not None:
            in_place = before is not None and made.storage is before.storage
            if not in_place and result.storage() is not None:
                _substantiate(made)
            op.impls["cuda"](made, *map(_tensor, others), *[before if a is LINK else a for a in args])
        before = made


def _tensor(x):
    return x.tensor() if type(x) is Unfilled else x


def _put_off(*values):
    """In the place of an implementation."""


class Unfilled:
    """A result that a kernel has still to fill, without a hold on it: the one who has it may ask whether somebody else does."""

    def __init__(self, x):
        self.storage, self.facts, self.device = weakref.ref(x.storage), (x.shape, x.strides, x.offset, x.dtype), x.device

    def tensor(self):
        """The result, or other memory where nobody wants it any more."""
        storage, (shape, strides, _, dtype) = self.storage(), self.facts
        return empty_strided(shape, strides, dtype, self.device) if storage is None else strided(storage, *self.facts)


def hollow(promise):
    """A result as it was promised, without memory."""
    return strided(empty((0,), *promise[1:3]).storage, promise[0], strides_of(*promise), 0, promise[1])


def _substantiate(result):
    """Give a result that was put off memory."""
    memory, storage = empty(result.shape, result.dtype, result.device).storage, result.storage
    storage.span, memory.span, storage.ptr = memory.span, storage.span, memory.ptr


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
