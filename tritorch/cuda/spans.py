"""Spans: how the allocator cuts segments and joins the pieces again. No driver here, only addresses and sizes."""

from __future__ import annotations

import gc
from bisect import bisect_left, insort

from tritorch.cuda.ledger import SMALL

ROOMY = 16                                                 # segments, 32 MiB of small ones: clearing shelves each time made 24 of 29
                                                           # requests of a small network's step miss, 5 µs each
HUGE, SHARE = 1 << 30, 8                                   # a free span beyond 1 GiB is kept from requests below an eighth of it


class Span:
    """A run of bytes in a segment, linked to its neighbours by address; `nbytes` of it were asked for.

    free: it is among its pool's fits. small: its segment belongs to the small pool. home: where it goes when its block dies.
    """

    __slots__ = ("ptr", "size", "nbytes", "small", "free", "home", "before", "after", "pool", "journal", "dirty")

    def __init__(self, ptr, size, small, pool, before=None, after=None):
        self.ptr, self.size, self.small, self.pool, self.journal, self.dirty = ptr, size, small, pool, pool.journal, pool.dirty
        self.before, self.after = before, after
        self.nbytes, self.free, self.home = 0, False, None


class Pool(dict):
    """The memory of one stream. As a dict: size -> shelf, the spans of exactly that size that were freed last.

    Shelves are used without a lock (see allocator.py), everything else under the allocator's lock. `dirty` has the sizes
    of all shelves that are not empty (and of some that are): whoever puts a span on a shelf adds its size afterwards.
    """

    __slots__ = ("memory", "stream", "private", "journal", "dirty", "fits", "segments")

    def __init__(self, memory, stream, private=None):
        self.memory, self.stream, self.private, self.journal, self.dirty = memory, stream, private, memory.ledger.journal, set()
        self.fits = [], []                                 # sorted (size, ptr, span): free spans of the large and of the small pool
        self.segments = {}                                 # address -> its first span, which stays the first for ever

    def __missing__(self, size):
        return self.setdefault(size, [])

    def take(self, size, join=True, spare=True):
        """The best fit, cut to size, or None. With `join` what lies on the shelves is joined first, else it stays for its own sizes.
        With `spare` a huge span is not cut for little: GPT-2's logits would be missing 3 GiB where Adam's moments settled."""
        if join:
            self.clear_shelves()
        elif self[size]:
            return self[size].pop()
        fits = self.fits[size <= SMALL]
        found = bisect_left(fits, (size,))
        if found == len(fits) or spare and fits[found][0] > max(HUGE, SHARE * size):
            return None
        return self.cut(fits.pop(found)[2], size)

    def add_segment(self, ptr, segment_size, size):
        """A fresh segment, cut to size."""
        span = self.segments[ptr] = Span(ptr, segment_size, size <= SMALL, self)
        return self.cut(span, size)

    def cut(self, span, size):
        """The first `size` bytes of a free span that was taken out of the fits; the rest goes back there."""
        if span.size > size:
            rest = Span(span.ptr + size, span.size - size, span.small, self, span, span.after)
            if rest.after is not None:
                rest.after.before = rest
            span.size, span.after, rest.free = size, rest, True
            insort(self.fits[span.small], (rest.size, rest.ptr, rest))
        span.free, span.home = False, self[size]
        return span

    def clear_shelves(self):
        """Put every shelved span among the fits, joined with its free neighbours."""
        while self.dirty:
            size = self.dirty.pop()
            shelf = self[size]
            while shelf and size:
                try:
                    span = shelf.pop()
                except IndexError:                         # a hit in another thread was faster
                    break
                self.store(span)

    def store(self, span):
        if span.after is not None and span.after.free:
            self.join(span, self.unlist(span.after))
        if span.before is not None and span.before.free:
            below = self.unlist(span.before)
            self.join(below, span)
            span = below
        span.free = True
        insort(self.fits[span.small], (span.size, span.ptr, span))

    def join(self, below, above):
        below.size += above.size
        below.after = above.after
        if below.after is not None:
            below.after.before = below

    def unlist(self, span):
        fits = self.fits[span.small]
        place = bisect_left(fits, (span.size, span.ptr))
        if place < len(fits) and fits[place][2] is span:   # else Ctrl-C came when it was on its way: no other must go in its place
            del fits[place]
        return span

    def is_roomy(self, size):
        """Whether a small request may have a new segment rather than clear the shelves that others are about to take from."""
        return size <= SMALL and len(self.segments) < ROOMY

    def drop_segments(self):
        """Take the segments that are wholly free out of the pool, one by one: yields (address, size, small)."""
        self.clear_shelves()
        for ptr, span in list(self.segments.items()):
            if span.free and span.after is None:
                self.unlist(span)
                del self.segments[ptr]
                yield ptr, span.size, span.small

    def spans(self):
        """All spans, segment by segment, in address order."""
        for ptr in sorted(self.segments):
            span = self.segments[ptr]
            while span is not None:
                yield span
                span = span.after


class Still:
    """Stops the cyclic garbage collector inside: a finalizer that allocates would break in. Used under the lock of all pools, which is
    the interpreter's own, because Ctrl-C may come wherever a function of Python begins or calls one: what it leaves undone here, the
    next use makes good."""

    def __init__(self):
        self.restore = False

    def __enter__(self):
        self.restore = gc.isenabled() or self.restore
        gc.disable()

    def __exit__(self, *exception):
        if self.restore:
            self.restore = False
            gc.enable()
