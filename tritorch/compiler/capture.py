"""Capturing what a call of a compiled function queues, and ending that wherever it is broken off."""
from __future__ import annotations

import threading

from tritorch.compiler.watch import Refused
from tritorch.cuda import allocator, driver
from tritorch.cuda.graph import CUDAGraph
from tritorch.cuda.stream import current_handle, current_stream, default_stream
from tritorch.errors import OutOfMemoryError

one_at_a_time = threading.RLock()                                        # a replay is impossible while another thread captures


class Capture:
    """Context manager: what is queued inside is captured, on a stream of its own; `play` queues it as a whole. So does the end of a block
    that raises an error, as all before that would have run. With `later` it is only captured."""

    open = played = later = False

    def __init__(self, index, stream, pool):
        self.index, self.stream, self.pool, self.graph = index, stream, pool, CUDAGraph()

    def __enter__(self):
        allocator.empty_cache()                                          # waits; warm-up calls left as much as the graph's pool needs
        self.open = True
        try:
            self.stream.__enter__()
            self.graph.capture_begin(self.pool)
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.end()
        elif self.open and issubclass(kind, OutOfMemoryError):           # eagerly it may fit: nothing of it runs
            self.close()
            raise no_room(error) from error
        elif self.later or issubclass(kind, Refused):
            self.close()
        else:
            self.play()
        return False

    def end(self):
        """The graph is complete, and the caller's stream current again."""
        if self.open:
            try:
                self.graph.capture_end()
            except driver.DriverError as error:
                self.close()
                raise Refused(str(error)) from error
            self._leave()

    def close(self):
        """End a capture that was broken off, at whatever line, and keep nothing of it."""
        if self.open:
            self.graph.abandon()
            self._leave()

    def _leave(self):
        if current_handle(self.index) == self.stream.handle:
            self.stream.__exit__()
        self.open = False

    def play(self):
        """Queue what was captured on the caller's stream, where all that comes now is queued too."""
        self.end()
        if not self.played:
            current_stream(self.index).wait_stream(default_stream(self.index))         # where hooks have memory that the replay reads
            self.graph.replay()
            self.played = True

    def owns(self, place):
        """Whether memory belongs to the capture."""
        return isinstance(place, allocator.Owner) and place.span.pool.private is self.graph.private is not None


def no_room(error):
    """The Refused of a call that would fit eagerly, perhaps."""
    return Refused(f"what needs more memory than there is beside that of eager calls ({str(error).splitlines()[0]})")
