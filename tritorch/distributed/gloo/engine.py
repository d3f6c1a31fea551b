"""The thread of a group that sends and receives. What collectives do is written as generators (see `schedules`), which it runs.

Collectives run one after the other, in the order of the calls, which is the same on all ranks; single messages run beside them. A
generator gets transfers from `send` and `receive` and yields those it has to wait for. A failed or late collective ends the group: ranks
do not know any more what the others have.
"""
import itertools
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque

from tritorch.distributed.failures import DistBackendError
from tritorch.distributed.gloo.links import COLLECTIVE, Link, Queues, Transfer
from tritorch.distributed.gloo.signs import described
from tritorch.errors import sentence

LAST = 1.0                                                               # seconds for last words
LINGER = 5.0                                                             # seconds for the last bytes to go when a group ends
_engines = weakref.WeakSet()


class Late(Exception):
    """Thrown into the generator of a task whose time is up."""


class Task:
    """A collective or a message: its generator, the Work that is told of the end, and how long it may take."""

    __slots__ = ("name", "steps", "work", "patience", "until", "waiting", "sign", "key", "ordered", "private")

    def __init__(self, name, work, patience, sign, ordered=True):
        self.name, self.work, self.patience, self.sign, self.ordered = name, work, patience, sign, ordered
        self.steps = self.until = self.waiting = self.key = None
        self.private = False                                             # whether only it fails when it is late


class Engine:
    """The connections of a group and their thread. `submit` is for all threads, everything else is the engine's own."""

    def __init__(self, rank, socks, label):
        self.rank, self.size, self.broken, self.first_lost = rank, len(socks) + 1, None, None
        self.links = {r: Link(r, sock, self) for r, sock in socks.items()}
        self.anyone, self.ended = Queues(), -1                           # transfers for a message of any rank; the last call that has ended
        self.turn, self._numbers = itertools.count(1).__next__, itertools.count()
        self._new, self._lock, self._closing, self._finish = deque(), threading.Lock(), None, True
        self._queue, self._running, self._loose, self._ready = deque(), None, set(), deque()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)                                    # a full one wakes, too
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for link in self.links.values():
            self._selector.register(link.sock, selectors.EVENT_READ, link)
        self.thread = threading.Thread(target=self._run, name=f"tritorch gloo {label}", daemon=True)
        _engines.add(self)
        self.thread.start()

    # -------------------------------------------------------------- for all threads
    def submit(self, task, steps):
        """Have a task done: `steps(task)` makes its generator. Collectives are numbered here, in the order of the calls."""
        task.work._worker = self.thread
        with self._lock:
            if task.ordered:
                task.key = COLLECTIVE, next(self._numbers)
            task.steps = steps(task)
            broken = self.broken or self._closing and DistBackendError("the group was destroyed")
            if not broken:
                self._new.append(task)
        if broken:
            task.work.finish(_renamed(broken, task.name))
        else:
            self._rouse()

    def close(self, finish=True):
        """End the thread: when collectives are done (with `finish`) and what was sent is gone, or after LINGER seconds."""
        with self._lock:
            self._closing, self._finish = self._closing or time.monotonic() + LINGER, finish
        if self.thread is not threading.current_thread():
            self._rouse()
            self.thread.join(LINGER + 1)

    def _rouse(self):
        try:
            self._wake.send(b"x")
        except OSError:                                                  # full, or closed meanwhile
            pass

    # -------------------------------------------------------------- for generators
    def send(self, task, rank, view, sign=None):
        """Bytes on their way to a rank."""
        transfer = Transfer(rank, task.key, sign or task.sign, view)
        link = self.links[rank]
        if link.gone:
            self.fail(transfer, link.reason())
        else:
            link.send(transfer)
        return transfer

    def receive(self, task, rank, view, sign=None):
        """Bytes that come from a rank; None: from any one, which `transfer.rank` tells."""
        transfer = Transfer(rank, task.key, sign or task.sign, view)
        transfer.turn = self.turn()
        if rank is not None:
            link = self.links[rank]
            link.receive(transfer)
            if link.gone and not transfer.done:
                link.awaited.pop(task.key, None)
                self.fail(transfer, link.reason())
            return transfer
        found = [(link.arrived[task.key][0].turn, r) for r, link in self.links.items() if task.key in link.arrived]
        if found:
            transfer.rank = min(found)[1]
            self.links[transfer.rank].receive(transfer)
        else:
            self.anyone.put(task.key, transfer)
            self.lost_one()
        return transfer

    # -------------------------------------------------------------- for links
    def wanted(self, link, key):
        """The transfer that a message of this key is for: the one that asked first, for this rank or for any."""
        queues = [queues for queues in (link.awaited, self.anyone) if key in queues]
        return min(queues, key=lambda q: q[key][0].turn).pop_first(key) if queues else None

    def finished(self, transfer):
        """All bytes are there, or gone."""
        transfer.done = True
        if transfer.task is not None:
            self._ready.append(transfer.task)
            transfer.task = None

    def fail(self, transfer, error):
        """It will never be done. `error` makes one for the name of a task."""
        transfer.error = transfer.error or error
        self.finished(transfer)

    def lost_one(self):
        """Who waits for any rank is told when none is left."""
        if all(link.gone for link in self.links.values()):
            for transfer in [t for queue in self.anyone.values() for t in queue]:
                self.fail(transfer, lambda name: DistBackendError(sentence(name, "a rank that could send", "none: all are gone")))
            self.anyone.clear()

    def difference(self, transfer, sign, nbytes):
        """The error of two ranks that have called different things."""
        ours, theirs = described(transfer.sign, len(transfer.view)), described(sign, nbytes)
        rank = transfer.rank
        return lambda name: DistBackendError(sentence(name, "the same call on all ranks", f"{ours} on rank {self.rank}",
                                                      f"{theirs} on rank {rank if rank is not None else '?'}"))

    def unexpected(self, link, number):
        """A message of a collective that nobody waits for: of one to come, or the other rank is in another one."""
        if number <= self.ended:
            self.give_up(self.too_much(link.rank, link.arrived[COLLECTIVE, number][0])("collective"))

    def too_much(self, rank, message):
        """The error of a message that no call here has waited for."""
        theirs = described(message.sign, len(message.view))
        return lambda name: DistBackendError(sentence(name, "the same call on all ranks", f"{theirs} on rank {rank}",
                                                      f"another call on rank {self.rank}, which did not wait for it"))

    def watch(self, link):
        """Have the selector look for what this link can use now."""
        events = link.wishes()
        if events != link.events:
            if not events:
                self._selector.unregister(link.sock)
            elif link.events:
                self._selector.modify(link.sock, events, link)
            else:
                self._selector.register(link.sock, events, link)
            link.events = events

    # -------------------------------------------------------------- the thread
    def _run(self):
        try:
            while not self.broken and not self._over():
                self._turn()
        except BaseException as error:                                   # nobody may wait for ever
            self.give_up(DistBackendError(f"{type(error).__name__}: {error}"))
        self.give_up(DistBackendError("the group was destroyed"), tell=False)
        self._flush()
        for link in self.links.values():
            link.close()
        self._release()

    def _turn(self):
        self._take()
        for key, events in self._selector.select(self._nap()):
            if key.data is None:
                self._woken.recv(1 << 12)
            elif not self.broken:
                if events & selectors.EVENT_WRITE:
                    key.data.write()
                if events & selectors.EVENT_READ and not self.broken:
                    key.data.read()
        self.advance()
        self._expire()

    def _flush(self):
        """Let last words go."""
        until = time.monotonic() + LAST
        for link in self.links.values():
            self.watch(link)
        while any(link.pending() for link in self.links.values()) and time.monotonic() < until:
            for key, _ in self._selector.select(max(until - time.monotonic(), 0)):
                if key.data is not None:
                    key.data.write()
                else:
                    self._woken.recv(1 << 12)

    def _over(self):
        if self._closing is None:
            return False
        busy = self._finish and (self._running or self._queue or self._new) or any(l.pending() for l in self.links.values())
        return not busy or time.monotonic() > self._closing

    def _take(self):
        while self._new:
            task = self._new.popleft()
            if task.ordered:
                self._queue.append(task)
            else:
                self._loose.add(task)
                self._start(task)
        self.advance()

    def _next(self):
        while self._queue and self._running is None and not self.broken:
            self._running = self._queue.popleft()
            self._start(self._running)

    def _start(self, task):
        task.until = time.monotonic() + task.patience
        self._step(task)

    def advance(self):
        """Go on with the tasks whose transfers are done."""
        while not self.broken:
            self._next()
            if not self._ready:
                return
            task = self._ready.popleft()
            self._step(task, task.waiting.error and task.waiting.error(task.name))

    def _step(self, task, error=None):
        try:
            while True:
                task.waiting = task.steps.throw(error) if error else next(task.steps)
                if not task.waiting.done:
                    task.waiting.task = task
                    return
                error = task.waiting.error and task.waiting.error(task.name)
        except StopIteration:
            self._end(task, None)
        except Late:
            rank = task.waiting.rank
            self._end(task, DistBackendError(sentence(task.name, f"{'any rank' if rank is None else f'rank {rank}'} to take part within "
                                                                 f"{task.patience:.3g} s", "nothing")))
        except Exception as failure:
            self._end(task, failure)

    def _end(self, task, error):
        if task.ordered:
            self._running, self.ended = None, task.key[1]
            for link in self.links.values():
                if error is None and task.key in link.arrived:
                    error = self.too_much(link.rank, link.arrived[task.key][0])(task.name)
        self._loose.discard(task)
        if error is not None and not task.private:
            self.give_up(error)
        task.work.finish(error)

    def _tasks(self):
        return [*self._loose, *([self._running] if self._running else ())]

    def _nap(self):
        nearest = min([t.until for t in self._tasks()] + [self._closing or float("inf")])
        return None if nearest == float("inf") else max(nearest - time.monotonic(), 0)

    def _expire(self):
        now = time.monotonic()
        for task in [t for t in self._tasks() if t.until <= now]:
            waiting = task.waiting
            if task.private and not waiting.done:
                self._forget(waiting)
            if not waiting.done:
                waiting.task = None
                self._step(task, Late())

    def _forget(self, transfer):
        for link in self.links.values():
            link.forget(transfer)
        if transfer in self.anyone.get(transfer.key, ()):
            self.anyone.remove(transfer.key, transfer)

    def give_up(self, error, tell=True, passed_on=False):
        """Fail everything, now and later. The others hear why, also of what this rank has heard itself: it closes its connections, and they
        may notice that first."""
        with self._lock:
            if self.broken:
                return
            self.broken = error
            waiting = [*self._tasks(), *self._queue, *self._new]
        for link in self.links.values():
            if tell:
                link.last_word(str(error) if passed_on else f"rank {self.rank} gave up: {error}")
        self._running = None
        for tasks in (self._queue, self._new, self._loose, self._ready):
            tasks.clear()
        for task in waiting:
            task.steps.close()
            task.work.finish(_renamed(error, task.name))

    def _release(self):
        self._selector.close()
        self._woken.close()
        self._wake.close()


def _renamed(error, name):
    return DistBackendError(sentence(name, "a group whose ranks all take part", f"one that has failed before ({error})"))


def _forget():
    """A forked process has no such thread: it closes its copies of the sockets, and leaves those of its parent open."""
    for engine in list(_engines):
        engine._lock = threading.Lock()
        engine.broken = DistBackendError("the process was forked, and has no part in the group")
        for link in engine.links.values():
            link.sock.close()
        engine._release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
