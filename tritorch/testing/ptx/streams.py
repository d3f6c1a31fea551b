"""Streams, events and graphs of the stand-in for the driver, with the driver's rules about captures.

Work is done when it is queued. While a stream is captured its work becomes nodes of a graph: each knows the nodes that have to come before
it, as the bits of a number. What a capture forbids is refused with the driver's code and spoils the capture, as the programming guide says
(CUDA Graphs, prohibited and unhandled operations): to wait for or ask about what is captured, to wait for what was queued outside, to leave
work unjoined. A launch of a graph runs its nodes in an order by chance among those that their dependencies allow.
"""
import itertools
import random
import time

from tritorch.testing.ptx.codes import Code

TIMELESS = 2                                        # CU_EVENT_DISABLE_TIMING


class Capture:
    """A graph that is being recorded; `tails` tells for each of its streams which nodes are before the next one. `remarks` are nodes that
    only the machine knows, of memory that comes and goes: a driver would not miss them."""

    def __init__(self, origin):
        self.origin, self.tails, self.nodes, self.remarks, self.valid = origin, {origin: 0}, [], 0, True

    def add(self, stream, work, remark=False):
        before, node = self.tails[stream], 1 << len(self.nodes)
        self.tails[stream] = before | node
        self.remarks |= node if remark else 0
        self.nodes.append((stream, before, work))

    def joined(self):
        return self.tails[self.origin] | self.remarks == (1 << len(self.nodes)) - 1


class Event:
    """`at` is the time of the last record, None before the first; `capture` and `tail` say what it stands for in a graph."""

    def __init__(self, flags):
        self.flags, self.at, self.capture, self.tail = flags, None, None, 0


class Graph(list):
    """The nodes of a finished capture."""


class Executable(list):
    """Ready to be launched."""

    def run(self, draw):
        queues = {}
        for number, (stream, before, work) in enumerate(self):
            queues.setdefault(stream, []).append((number, before, work))
        done, queues = 0, [iter(queue) for queue in queues.values()]
        heads = [next(queue) for queue in queues]
        while heads:
            ready = [i for i, (_, before, _) in enumerate(heads) if not before & ~done]
            i = draw.choice(ready)
            number, _, work = heads[i]
            work()
            done |= 1 << number
            heads[i] = next(queues[i], None)
            if heads[i] is None:
                del heads[i], queues[i]


class Streams:
    """The part of the stand-in that orders work."""

    def __init__(self):
        self.objects, self.handles, self.captures = {0: "stream"}, itertools.count(0x5001), {}
        self.draw = random.Random(self.seed)

    def _new(self, thing):
        handle = next(self.handles)
        self.objects[handle] = thing
        return Code.SUCCESS, handle

    def _is(self, handle, kind):
        found = self.objects.get(int(handle))
        return found == "stream" if kind == "stream" else isinstance(found, kind)

    def _forget(self, handle, kind):
        if not int(handle) or not self._is(handle, kind):
            return (Code.INVALID_HANDLE,)
        del self.objects[int(handle)]
        return (Code.SUCCESS,)

    def _spoil(self, code, *captures):
        """The call is refused, and the captures with it."""
        for capture in captures:
            capture.valid = False
        return (code,)

    def _do(self, stream, work):
        """Now, or when the graph is launched that the stream is captured into."""
        if not self._is(stream, "stream"):
            return (Code.INVALID_HANDLE,)
        capture = self.captures.get(int(stream))
        if capture is None:
            work()
        elif not capture.valid:
            return (Code.STREAM_CAPTURE_INVALIDATED,)
        else:
            capture.add(int(stream), work)
        return (Code.SUCCESS,)

    # ------------------------------------------------------------------ streams
    def cuStreamCreateWithPriority(self, flags, priority):
        return self._new("stream") if flags in (0, 1) else (Code.INVALID_VALUE, 0)

    def cuStreamDestroy(self, stream):
        return self._forget(stream, "stream")

    def cuStreamSynchronize(self, stream):
        """Also cuStreamQuery: all that was queued is done."""
        if not self._is(stream, "stream"):
            return (Code.INVALID_HANDLE,)
        capture = self.captures.get(int(stream))
        return self._spoil(Code.STREAM_CAPTURE_UNSUPPORTED, capture) if capture else (Code.SUCCESS,)

    cuStreamQuery = cuStreamSynchronize

    def cuCtxSynchronize(self):
        return self._spoil(Code.STREAM_CAPTURE_UNSUPPORTED, *self.captures.values()) if self.captures else (Code.SUCCESS,)

    def cuStreamWaitEvent(self, stream, event, flags):
        """A stream that waits for an event of a capture belongs to the capture from then on."""
        if not self._is(stream, "stream") or not self._is(event, Event) or flags:
            return (Code.INVALID_HANDLE,)
        mine, event = self.captures.get(int(stream)), self.objects[int(event)]
        theirs = event.capture
        if event.at is None:
            return (Code.SUCCESS,)
        if mine is not None and not mine.valid:
            return (Code.STREAM_CAPTURE_INVALIDATED,)
        if theirs is None:
            return (Code.SUCCESS,) if mine is None else self._spoil(Code.STREAM_CAPTURE_ISOLATION, mine)
        if theirs not in self.captures.values():                # that capture is over: the event stands for nothing that runs
            return self._spoil(Code.CAPTURED_EVENT, *filter(None, [mine]))
        if mine is not None and mine is not theirs:
            return self._spoil(Code.STREAM_CAPTURE_MERGE, mine, theirs)
        if not int(stream):
            return self._spoil(Code.STREAM_CAPTURE_IMPLICIT, theirs)
        if not theirs.valid:
            return (Code.INVALID_VALUE,)
        self.captures[int(stream)] = theirs
        theirs.tails[int(stream)] = theirs.tails.get(int(stream), 0) | event.tail
        return (Code.SUCCESS,)

    # ------------------------------------------------------------------ events
    def cuEventCreate(self, flags):
        return self._new(Event(flags)) if flags in (0, 1, 2, 3) else (Code.INVALID_VALUE, 0)

    def cuEventDestroy(self, event):
        return self._forget(event, Event)

    def cuEventRecord(self, event, stream):
        if not self._is(stream, "stream") or not self._is(event, Event):
            return (Code.INVALID_HANDLE,)
        event, capture = self.objects[int(event)], self.captures.get(int(stream))
        if capture is not None and not capture.valid:
            return (Code.STREAM_CAPTURE_INVALIDATED,)
        event.at, event.capture = time.perf_counter(), capture
        event.tail = 0 if capture is None else capture.tails[int(stream)]
        return (Code.SUCCESS,)

    def cuEventQuery(self, event):
        """Also cuEventSynchronize: what was recorded has happened."""
        if not self._is(event, Event):
            return (Code.INVALID_HANDLE,)
        capture = self.objects[int(event)].capture
        return (Code.SUCCESS,) if capture is None else self._spoil(Code.CAPTURED_EVENT, capture)

    cuEventSynchronize = cuEventQuery

    def cuEventElapsedTime(self, start, end):
        if not self._is(start, Event) or not self._is(end, Event):
            return Code.INVALID_HANDLE, 0.0
        both = self.objects[int(start)], self.objects[int(end)]
        if any(event.flags & TIMELESS or event.at is None for event in both):
            return Code.INVALID_HANDLE, 0.0
        if any(event.capture for event in both):
            return Code.CAPTURED_EVENT, 0.0
        return Code.SUCCESS, 1e3 * (both[1].at - both[0].at)

    # ------------------------------------------------------------------ graphs
    def cuStreamBeginCapture(self, stream, mode):
        if not int(stream):
            return (Code.STREAM_CAPTURE_UNSUPPORTED,)
        if not self._is(stream, "stream"):
            return (Code.INVALID_HANDLE,)
        if int(stream) in self.captures:
            return (Code.ILLEGAL_STATE,)
        self.captures[int(stream)] = Capture(int(stream))
        return (Code.SUCCESS,)

    def cuStreamEndCapture(self, stream):
        """Ends the capture for all of its streams, unless it began on another one."""
        capture = self.captures.get(int(stream))
        if capture is None:
            return Code.ILLEGAL_STATE, 0
        if capture.origin != int(stream):
            return Code.STREAM_CAPTURE_UNMATCHED, 0
        self.captures = {handle: other for handle, other in self.captures.items() if other is not capture}
        if not capture.valid:
            return Code.STREAM_CAPTURE_INVALIDATED, 0
        return self._new(Graph(capture.nodes)) if capture.joined() else (Code.STREAM_CAPTURE_UNJOINED, 0)

    def cuStreamIsCapturing(self, stream):
        if not self._is(stream, "stream"):
            return Code.INVALID_HANDLE, 0
        capture = self.captures.get(int(stream))
        return Code.SUCCESS, 0 if capture is None else 1 if capture.valid else 2

    def cuGraphInstantiate(self, graph, flags):
        return self._new(Executable(self.objects[int(graph)])) if self._is(graph, Graph) else (Code.INVALID_VALUE, 0)

    def cuGraphLaunch(self, executable, stream):
        if not self._is(executable, Executable):
            return (Code.INVALID_VALUE,)
        return self._do(stream, lambda work=self.objects[int(executable)]: work.run(self.draw))

    def cuGraphDestroy(self, graph):
        return self._forget(graph, Graph)

    def cuGraphExecDestroy(self, executable):
        return self._forget(executable, Executable)
