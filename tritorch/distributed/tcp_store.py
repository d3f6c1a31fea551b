"""TCPStore: a table in the process of one rank, whose server is a thread, and the connections of all to it."""
import contextlib
import os
import select
import selectors
import socket
import struct
import threading
import time
import weakref

from tritorch.distributed.failures import DistError, DistNetworkError, DistStoreError, seconds
from tritorch.distributed.stores import CHECK, YES, Store, Table, answered, missed
from tritorch.distributed.wire import Messages, packed
from tritorch.errors import check, sentence

HELLO, WAIT, DONE, FAILED, LATE = 100, 101, 200, 201, 202                # beside the commands of a table: questions and kinds of answers
GREETING = b"tritorch store 1"
GRACE = 5.0                                                              # seconds that the server may be later than it should
_SECONDS = struct.Struct("<d")
_servers = weakref.WeakValueDictionary()                                 # port → the server in this process that several stores may use
_alive = weakref.WeakSet()


class _Client:
    """A connection as the server sees it, with what has come and what is still to go."""

    def __init__(self, sock):
        self.sock, self.messages, self.out, self.waits = sock, Messages(), bytearray(), None


class Server:
    """A thread that answers all clients, one after the other. Waits are kept, until their keys have come or their time is up."""

    def __init__(self, host, port, fd=None):
        self.table, self.waiting, self.clients = Table(), [], 0
        try:
            self.listener = socket.socket(fileno=fd) if fd is not None else _listener(host, port)
        except (OSError, OverflowError) as error:
            raise DistNetworkError(sentence("TCPStore", f"port {port} to be free", error, use="port=0, or another one")) from None
        self.port = self.listener.getsockname()[1]
        self.listener.setblocking(False)
        self.wake, self.woken = socket.socketpair()
        self.selector, self.thread = selectors.DefaultSelector(), threading.Thread(target=self._run, name="tritorch store", daemon=True)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.woken, selectors.EVENT_READ)
        self.closing = None                                              # the time at which it ends, with or without clients
        _alive.add(self)
        self.thread.start()

    def close(self, linger=0.0):
        """End the thread and all connections; clients have `linger` seconds to go by themselves."""
        if self.closing is None:
            self.closing = time.monotonic() + linger
            self.wake.send(b"x")
            self.thread.join(linger + GRACE)
            self.release()

    def release(self):
        """Close what is open in this process."""
        self.closing = 0.0
        for key in list((self.selector.get_map() or {}).values()):
            key.fileobj.close()
        self.selector.close()
        self.wake.close()

    def _run(self):
        while self.closing is None or self.clients and time.monotonic() < self.closing:
            now = time.monotonic()
            for client in [c for c in self.waiting if c.waits[1] <= now]:
                self._wake(client, LATE)
            nearest = min([c.waits[1] for c in self.waiting] + ([self.closing] if self.closing else []), default=None)
            for key, events in self.selector.select(None if nearest is None else max(nearest - now, 0)):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.data is not None:
                    self._serve(key.data, events)
                else:
                    self.woken.recv(1)

    def _accept(self):
        try:
            sock, _ = self.listener.accept()
        except OSError:                                                  # gone again, or no descriptors left
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(sock, selectors.EVENT_READ, _Client(sock))
        self.clients += 1

    def _serve(self, client, events):
        """Answer what has come; who sends what is no message, or is gone, is dropped."""
        try:
            if events & selectors.EVENT_READ:
                piece = client.sock.recv(1 << 16)
                if not piece:
                    return self._drop(client)
                client.messages.bytes += piece
                while (message := client.messages.next()) is not None:
                    self._ask(client, *message)
            self._flush(client)
        except BlockingIOError:
            pass
        except (OSError, DistError, ValueError, struct.error):
            self._drop(client)

    def _ask(self, client, command, fields):
        if command == HELLO:
            client.out += packed(DONE if fields == [GREETING] else FAILED, [GREETING])
        elif command == WAIT:
            keys, patience = fields[1:], _SECONDS.unpack(fields[0])[0]
            client.waits = keys, time.monotonic() + patience
            self.waiting.append(client)
            if self.table.has(keys):
                self._wake(client, DONE)
        else:
            try:
                client.out += packed(DONE, answered(self.table, command, fields))
            except DistError as error:
                client.out += packed(FAILED, [str(error).encode()])
            for other in [c for c in self.waiting if self.table.has(c.waits[0])]:
                self._wake(other, DONE)

    def _wake(self, client, answer):
        self.waiting.remove(client)
        client.waits = None
        client.out += packed(answer, [])
        try:
            self._flush(client)
        except OSError:
            self._drop(client)

    def _flush(self, client):
        while client.out:
            try:
                del client.out[:client.sock.send(client.out)]
            except BlockingIOError:
                break
        self.selector.modify(client.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0), client)

    def _drop(self, client):
        if client in self.waiting:
            self.waiting.remove(client)
        if client.sock.fileno() >= 0:
            self.selector.unregister(client.sock)
            client.sock.close()
            self.clients -= 1


def _listener(host, port):
    """A socket for IPv4 and, where there is one, IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server((host, port), backlog=1024)


class TCPStore(Store):
    """A store whose values are in the process that made it with `is_master=True`; all processes reach it at `host_name`:`port`.

    `port` 0 is a free one, `store.port`. With `world_size` the master waits until so many processes have come, unless
    `wait_for_workers=False`. Raises DistNetworkError where the port is taken or nobody answers, DistStoreError for what does not come
    within `timeout`. Everybody who reaches the port can use the store: it is for networks whose hosts trust each other.

    >>> from tritorch import distributed as dist
    >>> store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    >>> other = dist.TCPStore("127.0.0.1", store.port)
    >>> other.set("a", "1")
    >>> store.get("a")
    b'1'
    """

    def __init__(self, host_name, port, world_size=None, is_master=False, timeout=300.0, wait_for_workers=True, multi_tenant=False,
                 master_listen_fd=None, use_libuv=True):
        self._patience, self.host, self.server, self._sock = seconds("TCPStore", timeout), host_name, None, None
        self._alone, self._messages = threading.RLock(), Messages()
        if is_master:
            self.server = _servers.get(port) if multi_tenant else None
            self.server = self.server or Server("", port, master_listen_fd)
            port = self.server.port
            if multi_tenant:
                _servers[port] = self.server
        self.port = port
        self._connect()
        if world_size is not None and world_size > 0 and wait_for_workers:
            self._gather(world_size, is_master)

    def _gather(self, world_size, is_master):
        until, count = time.monotonic() + self._patience, self.add("\0come", 1)
        while is_master and count < world_size:
            if time.monotonic() > until:
                self._close()
                raise DistStoreError(sentence("TCPStore", f"{world_size} processes within {self._patience:g} s", count))
            time.sleep(0.005)
            count = self.add("\0come", 0)

    def _connect(self):
        until, nap = time.monotonic() + self._patience, 0.02
        while True:
            try:
                self._sock = socket.create_connection((self.host, self.port), timeout=max(until - time.monotonic(), 0.01))
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sock.setblocking(False)
                _alive.add(self)
                return self._ask(HELLO, [GREETING], self._patience)
            except (OSError, OverflowError, DistNetworkError) as error:  # the server may be yet to come
                self._release()
                if time.monotonic() + nap >= until:
                    raise DistNetworkError(sentence("TCPStore", f"a server at {self.host}:{self.port} within {self._patience:g} s",
                                                    error)) from None
            time.sleep(nap)
            nap = min(2 * nap, 0.5)

    # -------------------------------------------------------------- questions
    def _call(self, command, fields):
        return self._ask(command, fields, self._patience)

    def _wait(self, keys, patience):
        if self._ask(CHECK, keys, self._patience)[0] != YES:
            self._ask(WAIT, [_SECONDS.pack(patience), *keys], patience, keys)

    def _ask(self, command, fields, patience, keys=()):
        with self._alone:
            check(self._sock is not None, "TCPStore", "an open connection", "a closed one", error=DistNetworkError)
            try:
                kind, answer = self._exchange(packed(command, fields), time.monotonic() + patience + GRACE)
            except (OSError, DistNetworkError) as error:
                self._release()                                          # what comes later would be the answer to something else
                raise DistNetworkError(sentence("TCPStore", f"an answer of {self.host}:{self.port}", error)) from None
        if kind == LATE:
            raise missed("TCPStore", keys, patience)
        check(kind == DONE, "TCPStore", "a store of this version", "another", error=DistNetworkError) if command == HELLO else None
        if kind != DONE:
            raise DistStoreError(answer[0].decode("utf-8", "replace") if answer else "TCPStore: the server refused")
        return answer

    def _exchange(self, out, until):
        while out:
            self._ready(select.POLLOUT, until)
            out = out[self._sock.send(out):]
        while (answer := self._messages.next()) is None:
            self._ready(select.POLLIN, until)
            piece = self._sock.recv(1 << 16)
            if not piece:
                raise DistNetworkError("a closed connection (the process with the server has ended?)")
            self._messages.bytes += piece
        return answer

    def _ready(self, events, until):
        poll = select.poll()
        poll.register(self._sock, events)
        if not poll.poll(max(until - time.monotonic(), 0) * 1000):
            raise DistNetworkError("nothing in time")

    # -------------------------------------------------------------- beginnings and ends
    def num_keys(self):
        """How many keys there are."""
        return len(self.list_keys())

    def list_keys(self):
        """All keys."""
        return [key for key in super().list_keys() if key[:1] != "\0"]

    def clone(self):
        """The same store by another connection."""
        return TCPStore(self.host, self.port, timeout=self._patience)

    def _release(self):
        if self._sock is not None:
            self._sock.close()
        self._sock, self._messages = None, Messages()

    def _close(self, linger=0.0):
        """End the connection, and the server if it is here and no other store of this process uses it: when its clients have gone, or after
        `linger` seconds."""
        self._release()
        server, self.server = self.server, None
        if server is not None and not any(isinstance(o, TCPStore) and o.server is server for o in list(_alive)):
            server.close(linger)

    def __del__(self):
        try:
            self._close()
        except Exception:                                                # Python may be about to end
            pass

    def __repr__(self):
        return f"TCPStore({self.host}:{self.port}{', with the server' if self.server else ''})"


def _forget():
    """A forked process has neither the thread nor a connection of its own: it closes its copies."""
    for one in list(_alive):
        if isinstance(one, Server):
            one.release()
        else:
            one._alone = threading.RLock()
            one._release()
            one.server = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
