"""How the ranks of a group find each other by their store: each is connected to each."""
import contextlib
import os
import secrets
import select
import socket
import struct
import time
from datetime import timedelta

from tritorch.distributed.failures import DistBackendError, DistStoreError
from tritorch.errors import check, sentence

_GREETING = struct.Struct("<8sI16s")                                     # a mark, who comes, and what only readers of the store know
MARK = b"tritorch"


def connected(store, rank, size, patience):
    """{rank: socket} of all others. Raises DistBackendError for ranks that do not come in time."""
    until, socks = time.monotonic() + patience, {}
    (host, bound), token, place = own_address(store), secrets.token_bytes(16), machine()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(_family(host), socket.SOCK_STREAM))
        listener.bind((bound, 0))
        listeners = [listener]
        name = f"tritorch-{secrets.token_hex(16)}"
        if place:
            listeners.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
            listeners[1].bind("\0" + name)
        for one in listeners:
            one.listen(size)
        store.set(f"gloo/{rank}", f"{host} {listener.getsockname()[1]} {token.hex()} {place or '-'} {name}")
        try:
            for other in range(rank):
                socks[other] = _connect(store, rank, other, until, place)
            _accept(listeners, socks, rank, size, token, until, patience)
        except BaseException:
            for sock in socks.values():
                sock.close()
            raise
    return socks


def machine():
    """What names this host's running system and its network, so that ranks on it are connected by Unix sockets, which move twice the
    bytes in a second (6 GB/s for 2.6); "" where there are none without files."""
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    return ""


def _family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def own_address(store):
    """(an address at which the others reach this process, one to listen at): that of the interface GLOO_SOCKET_IFNAME, or by which it
    reaches the store's server, or by which it reaches others, or 127.0.0.1."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name:
        return (_interface(name.split(",")[0]),) * 2
    store = getattr(store, "_underlying_non_prefix_store", store)
    sock = getattr(store, "_sock", None)
    if sock is not None:
        host = sock.getsockname()[0].split("%")[0]
        return host, "" if _local(host) and not _local(store.host) else host         # a name for others may mean 127.0.1.1 on its own host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))                              # sends nothing; an address that is for examples
            host = probe.getsockname()[0]
        except OSError:
            host = "127.0.0.1"
    return host, host


def _local(host):
    return host in ("localhost", "::1") or host.startswith("127.")


def _interface(name):
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            found = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))          # SIOCGIFADDR
        except OSError as error:
            raise DistBackendError(sentence("GLOO_SOCKET_IFNAME", "a network interface with an address", f"{name} ({error})")) from None
    return socket.inet_ntoa(found[20:24])


def _connect(store, rank, other, until, place):
    key = f"gloo/{other}"
    try:
        store.wait([key], timedelta(seconds=max(until - time.monotonic(), 0)))
        host, port, token, there, name = store.get(key).decode().split()
    except DistStoreError as error:
        raise DistBackendError(sentence("init_process_group", f"rank {other} to come in time", error)) from None
    try:
        if place and there == place:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            if _local(host):                                             # it is where the server of the store is
                host = getattr(getattr(store, "_underlying_non_prefix_store", store), "host", host)
            sock = socket.create_connection((host, int(port)), max(until - time.monotonic(), 0.01))
    except OSError as error:
        raise DistBackendError(sentence("init_process_group", f"rank {other} at {host}:{port}", error)) from None
    try:
        if place and there == place:
            sock.connect("\0" + name)
        sock.sendall(_GREETING.pack(MARK, rank, bytes.fromhex(token)))
    except OSError as error:
        sock.close()
        raise DistBackendError(sentence("init_process_group", f"rank {other} at {host}:{port}", error)) from None
    return sock


def _accept(listeners, socks, rank, size, token, until, patience):
    """Wait for the higher ranks. Who does not know the token, or says nothing, is turned away."""
    while len(socks) < size - 1:
        ready, _, _ = select.select(listeners, [], [], max(until - time.monotonic(), 0))
        if not ready:
            missing = [r for r in range(size) if r != rank and r not in socks]
            check(False, "init_process_group", f"the ranks {missing} within {patience:.3g} s", "no connection", error=DistBackendError)
        sock, _ = ready[0].accept()
        try:
            sock.settimeout(min(5.0, max(until - time.monotonic(), 0.01)))
            mark, other, known = _GREETING.unpack(_read(sock, _GREETING.size))
        except (OSError, struct.error):
            sock.close()
            continue
        if mark == MARK and secrets.compare_digest(known, token) and rank < other < size and other not in socks:
            socks[other] = sock
        else:
            sock.close()


def _read(sock, count):
    out = b""
    while len(out) < count and (piece := sock.recv(count - len(out))):
        out += piece
    return out
