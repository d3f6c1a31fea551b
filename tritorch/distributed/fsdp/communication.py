"""What the groups of one root share: streams, and the order of what travels."""
import contextlib
from collections import deque

from tritorch.cuda.event import Event
from tritorch.cuda.stream import Stream, current_stream
from tritorch.cuda.stream import stream as on_stream
from tritorch.device import cpu


class Communication:
    """Where collectives are begun. On a GPU each kind has a stream, so that it waits for what it needs and not for all that the program has
    queued: parameters are gathered beside the layer before, gradients are averaged beside the layer after. Elsewhere backends work on
    their own between `async_op=True` and `wait()`."""

    def __init__(self):
        self.device = self.gathers = self.reductions = self.replicas = None
        self.held = None                                                 # what was gathered last in forward, and the event of its copy
        self.pending = deque()                                           # reductions under way, oldest first
        self.buffers = 1                                                 # how many of them may have memory of their own
        self.order = []                                                  # groups, weakly, in the order in which their forward ended

    def begin(self, device, beside):
        """Make the streams, if the backend works beside streams."""
        self.device = device
        if device is not cpu and beside:
            self.gathers, self.reductions = Stream(device, -1), Stream(device, -1)
            self.replicas = Stream(device)

    @property
    def beside(self):
        """Whether there are streams."""
        return self.gathers is not None

    # -------------------------------------------------------------- gathering
    @contextlib.contextmanager
    def gathering(self, alone):
        """A context in which parameters are gathered; `alone`: behind what the current stream has been given."""
        if not self.beside or alone:
            yield
            return
        with on_stream(self.gathers):
            yield

    def after_optimizer(self, event):
        """Parameters that are gathered from now on are those of now, or those of the time of an event."""
        if self.beside:
            if event is None:
                self.gathers.wait_stream(current_stream())
            else:
                self.gathers.wait_event(event)

    def received(self, gathered, later):
        """The copy out of a buffer is queued: the buffer may be used again after it, or if `later` after the next one, so that the next
        parameters can come meanwhile."""
        if self.beside:
            event = Event()
            event.record()
            if later:
                self.held = gathered, event
            else:
                self.gathers.wait_event(event)

    def let_go(self):
        """Use what was held again."""
        if self.held is not None:
            self.gathers.wait_event(self.held[1])
            self.held = None

    # -------------------------------------------------------------- averages
    def reduce(self, reduction):
        """Begin a reduction, after the oldest have been finished so far that there is room."""
        self.make_room()
        if self.beside:
            self.reductions.wait_stream(current_stream())
            with on_stream(self.reductions):
                reduction.begin()
            self._finish_beside(reduction)
        else:
            reduction.begin()
        self.pending.append(reduction)

    def make_room(self):
        """Finish the oldest reductions until one more may begin."""
        while len(self.pending) >= self.buffers:
            self._end(self.pending.popleft())

    def _finish_beside(self, reduction):
        stream = self.replicas if reduction.replicas is not None else reduction.hook_stream
        if stream is not None:                                           # the next parts need not wait for this
            with on_stream(self.reductions):
                reduction.scattered()
            stream.wait_stream(self.reductions)
        with on_stream(stream or self.reductions):
            reduction.finish()
            reduction.event = Event()
            reduction.event.record()

    def _end(self, reduction):
        if self.beside:
            current_stream().wait_event(reduction.event)
        else:
            reduction.finish()

    def finish(self):
        """All gradients are in their places, for whatever the current stream is given next."""
        while self.pending:
            self._end(self.pending.popleft())
