"""Counters by which the programs of a launch tell who of them comes last: zero before it, and again behind it.

So nobody has to clear them, as long as no two launches that use them run at a time: every stream has its own, and in a graph, whose replays
may meet others' work, every stream that it was recorded from.
"""
from tritorch.cuda import driver
from tritorch.cuda.allocator import Block, take
from tritorch.cuda.stream import OnlyStream, captures, current_handle, is_capturing

MOST = 2048                                                              # of a launch
_kept: dict = {}                                                         # (device index, stream) -> Counters
_aside: dict = {}                                                        # device index -> the stream that clears while another is captured
driver.watchers += _kept.clear, _aside.clear


class Counters:
    """Memory straight from the driver, since it is never given back."""

    def __init__(self, stream):
        self.ptr = driver.current().alloc(4 * MOST)
        driver.current().fill(self.ptr, 0, 4, MOST, stream)


class Recorded(Block):
    """The counters of a graph, for what is recorded from one stream."""

    __slots__ = ("stream",)


def here(index):
    """The counters for a launch on the current stream of a device; `ptr` is where they are."""
    stream = current_handle(index)
    if captures and is_capturing(index, stream):
        return _recorded(index, stream)
    found = _kept.get((index, stream))
    return found or _kept.setdefault((index, stream), Counters(stream))


def _recorded(index, stream):
    graph = captures[index]
    for owner in graph.kept:
        if isinstance(owner, Recorded) and owner.stream == stream:
            return owner
    aside = _aside.get(index) or _aside.setdefault(index, OnlyStream(index, priority=-1))
    found = Recorded()
    found.span, found.stream = take(4 * MOST, (index, aside.handle)), stream
    driver.current().fill(found.ptr, 0, 4, MOST, aside.handle)           # now, so that no replay does it again
    driver.current().stream_synchronize(aside.handle)
    graph.keep(found)
    return found
