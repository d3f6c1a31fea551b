"""Streams, events and graphs of the simulated device: work waits in queues and runs in any order that the events allow."""
from __future__ import annotations

import collections
import time

from tritorch.cuda.driver import DriverError

FULL = 2048                                         # queued items at which launching waits, as a real device does


class Mark:
    """One record of an event: it has happened or not. Recorded during a capture, it stands for nodes of the graph instead."""

    __slots__ = ("done", "time", "capture", "nodes")

    def __init__(self, capture=None, nodes=frozenset()):
        self.done, self.time, self.capture, self.nodes = False, 0.0, capture, nodes

    def happen(self):
        self.done, self.time = True, time.perf_counter()


class Node:
    """A piece of work in a graph and the nodes it comes after."""

    __slots__ = ("run", "after")

    def __init__(self, run, after):
        self.run, self.after = run, after


class Capture:
    """A graph being recorded: its nodes, and per stream the nodes that the next one comes after."""

    def __init__(self, origin):
        self.origin, self.nodes, self.ends, self.broken = origin, [], {origin: frozenset()}, None

    def add(self, stream, run):
        node = Node(run, self.ends[stream])
        self.nodes.append(node)
        self.ends[stream] = frozenset((node,))

    def unjoined(self):
        """True when some work does not come before the end of the stream that the capture began on."""
        seen, todo = set(), list(self.ends[self.origin])
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo.extend(node.after)
        return len(seen) < len(self.nodes)


class Stream:
    __slots__ = ("name", "device", "queue", "capture")

    def __init__(self, name, device):
        self.name, self.device, self.queue, self.capture = name, device, collections.deque(), None

    def ready(self):
        """The head may run: it is not a wait for a mark that has not happened."""
        return self.queue[0][0] is None or self.queue[0][0].done


class Queues:
    """All streams. An item is (mark to wait for or None, what to run or None)."""

    def __init__(self, random):
        self.random, self.count = random, 0
        self.streams = []

    def add(self, stream):
        self.streams.append(stream)
        return stream

    def remove(self, stream):
        self.finish(stream)
        self.streams.remove(stream)

    def push(self, stream, run):
        """Queue work, or record it where a capture is under way."""
        if stream.capture is not None:
            self.recording(stream).add(stream, run)
            return
        self.refuse_default(stream)
        self.append(stream, (None, run))
        if self.count > FULL:
            self.until(lambda: self.count <= FULL // 2)

    def append(self, stream, item):
        """Queue an item and nothing else: a tensor may die anywhere, also while an item runs, so nothing may run and fail here."""
        stream.queue.append(item)
        self.count += 1

    def record(self, stream):
        """A new mark at the end of a stream."""
        if stream.capture is not None:
            return Mark(self.recording(stream), stream.capture.ends[stream])
        mark = Mark()
        self.append(stream, (None, mark.happen))
        return mark

    def wait(self, stream, mark):
        """What is queued on `stream` from now on comes after `mark`. A mark inside a capture draws the stream into it."""
        if mark.capture is not None:
            if mark.capture not in (s.capture for s in self.streams):
                raise DriverError("stream_wait_event: cudaErrorInvalidValue: the event was recorded in a capture that has ended")
            if stream.capture not in (None, mark.capture):
                raise DriverError("stream_wait_event: cudaErrorStreamCaptureMerge: the event belongs to another capture")
            stream.capture = mark.capture
            mark.capture.ends[stream] = mark.capture.ends.get(stream, frozenset()) | mark.nodes
        elif stream.capture is not None:
            if not mark.done:
                self.invalidate(stream.capture, "stream_wait_event",
                                "cudaErrorStreamCaptureIsolation: the event was recorded outside the capture")
        else:
            self.append(stream, (mark, None))

    # running

    def step(self):
        """Run one item that may run, drawn by the seed; False when there is none."""
        ready = [stream for stream in self.streams if stream.queue and stream.ready()]
        if not ready:
            return False
        stream = ready[0] if len(ready) == 1 else self.random.choice(ready)
        _, run = stream.queue.popleft()
        self.count -= 1
        if run is not None:
            run()
        return True

    def until(self, reached):
        while not reached():
            if not self.step():
                raise DriverError("synchronize: the streams wait for each other in a circle, or for an event that cannot happen")

    def finish(self, stream):
        self.until(lambda: not stream.queue)

    def progress(self):
        """Some work happens, as it does on a device while the host looks at it."""
        for _ in range(self.random.randint(0, 4)):
            if not self.step():
                break

    # capturing

    def recording(self, stream):
        capture = stream.capture
        if capture.broken:
            raise DriverError(f"cudaErrorStreamCaptureInvalidated: the capture failed before this call: {capture.broken}")
        return capture

    def invalidate(self, capture, call, why):
        capture.broken = f"{call}: {why}"
        raise DriverError(capture.broken)

    def refuse(self, stream, call):
        """Waiting is impossible while a stream is recorded."""
        if stream.capture is not None:
            self.invalidate(stream.capture, call, "cudaErrorStreamCaptureUnsupported: expected no capture under way,"
                            " because nothing runs during one")

    def refuse_default(self, stream):
        if stream.name == 0:
            for other in self.streams:
                if other.capture is not None and other.device == stream.device:
                    self.invalidate(other.capture, "default stream", "cudaErrorStreamCaptureImplicit: expected no work on the"
                                    " default stream while another stream is captured")

    def begin(self, stream):
        if stream.name == 0 or stream.capture is not None:
            raise DriverError("capture_begin: cudaErrorStreamCaptureUnsupported: expected a stream that is neither the"
                              " default one nor captured")
        stream.capture = Capture(stream)

    def end(self, stream):
        capture = stream.capture
        if capture is None or capture.origin is not stream:
            raise DriverError("capture_end: cudaErrorIllegalState: expected the stream that the capture began on")
        for member in self.streams:
            if member.capture is capture:
                member.capture = None
        if capture.broken:
            raise DriverError(f"capture_end: cudaErrorStreamCaptureInvalidated: {capture.broken}")
        if capture.unjoined():
            raise DriverError("capture_end: cudaErrorStreamCaptureUnjoined: work on another stream was captured"
                              " that the first stream never waits for")
        return list(capture.nodes)

    def replay(self, nodes):
        """Run a graph: every node after those it depends on, otherwise in an order drawn by the seed."""
        waiting = {node: len(node.after) for node in nodes}
        followers = collections.defaultdict(list)
        for node in nodes:
            for before in node.after:
                followers[before].append(node)
        ready = [node for node in nodes if not node.after]
        while ready:
            node = ready.pop(self.random.randrange(len(ready)))
            node.run()
            for follower in followers[node]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
