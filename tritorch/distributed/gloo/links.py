"""A connection to another rank: messages that have come and are awaited, and those that wait to go."""
import socket
import struct
from collections import deque
from selectors import EVENT_READ, EVENT_WRITE

import numpy as np

from tritorch.distributed.failures import DistBackendError
from tritorch.errors import sentence

MARK = 0x7447
COLLECTIVE, MESSAGE, FAILURE = range(3)                                  # kinds: of a collective's number, of a tag, of a last word
_HEADER = struct.Struct("<HBBBBHQQQ")                                    # mark, kind, call, dtype, op, root, number, elements, bytes
ENOUGH = 8 << 20                                                         # bytes that are read from one rank before others have their turn
LONGEST_WORD = 1 << 16
STORED = 256 << 20                                                       # bytes that nobody has asked for, before the sender waits


class Transfer:
    """Bytes on their way to or from a rank, for a task."""

    __slots__ = ("rank", "key", "sign", "view", "done", "task", "error", "turn")

    def __init__(self, rank, key, sign, view):
        self.rank, self.key, self.sign, self.view = rank, key, sign, view
        self.done, self.task, self.error, self.turn = False, None, None, 0


class Queues(dict):
    """A queue for each key; none is ever empty."""

    def put(self, key, value):
        self.setdefault(key, deque()).append(value)

    def pop_first(self, key):
        queue = self[key]
        first = queue.popleft()
        if not queue:
            del self[key]
        return first

    def remove(self, key, value):
        self[key].remove(value)
        if not self[key]:
            del self[key]


class Arrived:
    """A message that nobody had asked for when it came."""

    __slots__ = ("sign", "view", "whole", "turn", "taker")

    def __init__(self, sign, nbytes, turn):
        self.sign, self.view, self.whole, self.turn, self.taker = sign, memoryview(np.empty(nbytes, np.uint8)), False, turn, None


class Link:
    """One rank's socket. `engine` is told of transfers that are done, and of failures."""

    def __init__(self, rank, sock, engine):
        self.rank, self.sock, self.engine = rank, sock, engine
        self.gone, self.stored, self.mute, self.events = None, 0, False, EVENT_READ
        self.out = deque()                                               # [transfer or None, views that are left]
        self.awaited, self.arrived = Queues(), Queues()                  # transfers and messages by key
        self._header, self._start = memoryview(bytearray(_HEADER.size)), 0
        self._rest = self._into = None                                   # what is still to come of the message, and whose it is
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)   # a host that vanishes is noticed

    # -------------------------------------------------------------- to go
    def send(self, transfer):
        """Queue bytes. Those of `transfer.view` must stay as they are until it is done."""
        kind, number = transfer.key
        header = _HEADER.pack(MARK, kind, *transfer.sign[:4], number, transfer.sign[4], len(transfer.view))
        self.out.append([transfer, [memoryview(header), transfer.view]])
        if len(self.out) == 1:
            self.write()

    def last_word(self, text):
        """Say why this rank gives up, after the message that is halfway, if there is one."""
        word = text.encode()[:LONGEST_WORD]
        while self.out and (len(self.out) > 1 or self._whole(self.out[0][1])):
            self.out.pop()
        self.out.append([None, [memoryview(_HEADER.pack(MARK, FAILURE, 0, 0, 0, 0, 0, 0, len(word)) + word)]])
        self.write()

    def _whole(self, views):
        """Whether nothing of a message has gone yet."""
        return len(views) == 2 and len(views[0]) == _HEADER.size

    def pending(self):
        """Whether there is something to go that may still go."""
        return bool(self.out) and not self.mute and self.gone is None

    def write(self):
        """Send as much as goes now."""
        while self.out and not self.gone:
            transfer, views = self.out[0]
            try:
                sent = self.sock.sendmsg(views)
            except BlockingIOError:
                break
            except OSError:                                              # reading tells why
                self.mute = True
                break
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]
            else:
                self.out.popleft()
                if transfer is not None:
                    self.engine.finished(transfer)
        self.engine.watch(self)

    # -------------------------------------------------------------- to come
    def receive(self, transfer):
        """Await a message, or take the one that has come."""
        if transfer.key in self.arrived:
            self.take(self.arrived.pop_first(transfer.key), transfer)
        else:
            self.awaited.put(transfer.key, transfer)

    def take(self, message, transfer):
        """Give a message that has come, or is coming, to who asks now."""
        message.taker = transfer
        self.stored -= len(message.view)
        if message.whole:
            self._give(message)
        self.engine.watch(self)

    def _give(self, message):
        transfer = message.taker
        if self._fits(transfer, message.sign, len(message.view)):
            transfer.view[:] = message.view
        self.engine.finished(transfer)

    def _fits(self, transfer, sign, nbytes):
        if transfer.error is None and (transfer.sign != sign or nbytes != len(transfer.view)):
            transfer.error = self.engine.difference(transfer, sign, nbytes)
        return transfer.error is None

    def read(self):
        """Receive what has come. A task goes on as soon as its bytes are there, so that its next request finds them in the socket."""
        enough = ENOUGH
        try:
            while enough > 0 and not self.gone and not self.engine.broken and self.stored < STORED:
                header = self._rest is None
                count = self.sock.recv_into(self._header[self._start:] if header else self._rest)
                if not count:
                    return self.lost("a closed connection (has its process ended?)")
                enough -= count
                if not header:
                    self._rest = self._rest[count:]
                else:
                    self._start += count
                    if self._start < _HEADER.size:
                        continue
                    self._begin(*_HEADER.unpack(self._header))
                if self._rest is not None and not len(self._rest):
                    self._end()
                    self.engine.advance()
        except BlockingIOError:
            pass
        except (OSError, MemoryError, ValueError) as error:
            self.lost(str(error))
        self.engine.watch(self)

    def _begin(self, mark, kind, call, dtype, op, root, number, numel, nbytes):
        if mark != MARK or kind > FAILURE or kind == FAILURE and nbytes > LONGEST_WORD:
            raise ValueError("bytes that are no message")
        self._start, sign = 0, (call, dtype, op, root, numel)
        transfer = None if kind == FAILURE else self.engine.wanted(self, (kind, number))
        if transfer is None:
            self._into = Arrived(sign, nbytes, self.engine.turn())
            if kind == FAILURE:
                self._into.taker = FAILURE
            else:
                self.arrived.put((kind, number), self._into)
                if kind == COLLECTIVE:
                    self.engine.unexpected(self, number)
                self.stored += nbytes
            self._rest = self._into.view
        else:
            self._into, transfer.rank = transfer, self.rank
            self._rest = transfer.view if self._fits(transfer, sign, nbytes) else memoryview(np.empty(nbytes, np.uint8))

    def _end(self):
        into, self._into, self._rest = self._into, None, None
        if isinstance(into, Transfer):
            self.engine.finished(into)
        elif into.taker is FAILURE:
            self.engine.give_up(DistBackendError(bytes(into.view).decode("utf-8", "replace")), passed_on=True)
        else:
            into.whole = True
            if into.taker is not None:
                self._give(into)

    # -------------------------------------------------------------- the end
    def lost(self, why):
        """Nothing comes or goes any more: who waits is told so."""
        if self.gone is None:
            self.gone = why
            self.engine.first_lost = self.rank if self.engine.first_lost is None else self.engine.first_lost
            self.engine.watch(self)
            waiting = [t for queue in self.awaited.values() for t in queue] + [t for t, _ in self.out if t is not None]
            if isinstance(self._into, Transfer):
                waiting.append(self._into)
            elif self._into is not None and isinstance(self._into.taker, Transfer):
                waiting.append(self._into.taker)
            self.awaited.clear()
            self.out.clear()
            for transfer in waiting:
                self.engine.fail(transfer, self.reason())
            self.engine.lost_one()

    def reason(self):
        """In words, for the task that needed this rank. Who was lost first may be the cause."""
        first = self.engine.first_lost
        before = f" (and rank {first} is gone since before)" if first not in (None, self.rank) else ""
        return lambda name: DistBackendError(sentence(name, f"rank {self.rank} to take part", self.gone + before))

    def wishes(self):
        """What the selector is to look for."""
        if self.gone is not None:
            return 0
        return (EVENT_READ if self.stored < STORED and not self.engine.broken else 0) | (EVENT_WRITE if self.pending() else 0)

    def forget(self, transfer):
        """A transfer that nobody waits for any more: what is still to come of it is dropped."""
        if self._into is transfer:
            self._into = Arrived(transfer.sign, len(self._rest), 0)
            self._rest, self._into.taker = self._into.view, None
            return
        if isinstance(self._into, Arrived) and self._into.taker is transfer:
            self._into.taker = None
        elif transfer in self.awaited.get(transfer.key, ()):
            self.awaited.remove(transfer.key, transfer)

    def close(self):
        """Close the socket; what was sent still arrives."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.sock.close()
