"""How processes meet: a URL, or the environment, says where the store is, and who one is."""
import os
from datetime import timedelta
from urllib.parse import parse_qs, urlparse

from tritorch.distributed.failures import default_pg_timeout
from tritorch.distributed.file_store import FileStore
from tritorch.distributed.tcp_store import TCPStore
from tritorch.errors import check, sentence

_handlers = {}


def register_rendezvous_handler(scheme, handler):
    """Have URLs that begin with `scheme`:// handled by `handler(url, **kwargs)`, a generator of (store, rank, world_size)."""
    check(scheme not in _handlers, "register_rendezvous_handler", "a scheme without a handler", f"{scheme}://")
    _handlers[scheme] = handler


def rendezvous(url, rank=-1, world_size=-1, **kwargs):
    """A generator of (store, rank, world_size) for a URL: env://, tcp://host:port or file:///path; `rank` and `world_size` may be in it,
    as in tcp://host:port?rank=0&world_size=2."""
    check(isinstance(url, (str, bytes)), "rendezvous", "a str as init_method", type(url).__name__)
    check(isinstance(rank, int), "rendezvous", "a whole number as rank", type(rank).__name__)
    check(isinstance(world_size, int), "rendezvous", "a whole number as world_size", type(world_size).__name__)
    found = urlparse(url)
    scheme = found.scheme or "env"
    check(scheme in _handlers, "rendezvous", "env://, tcp://host:port or file:///path", f"{found.scheme}://")
    told = {key: values[-1] for key, values in parse_qs(found.query).items()}
    rank, world_size = _told("rank", rank, told), _told("world_size", world_size, told)
    return _handlers[scheme](url, rank=rank, world_size=world_size, **kwargs)


def _told(name, value, told):
    if value == -1 and name in told:
        check(told[name].lstrip("-").isdigit(), "rendezvous", f"a whole number as {name}", told[name], error=ValueError)
        return int(told[name])
    return value


def _need(scheme, rank, world_size):
    check(rank >= 0, "rendezvous", f"a rank with {scheme}://", "none", error=ValueError)
    check(world_size > 0, "rendezvous", f"a world_size with {scheme}://", "none", error=ValueError)


def _file(url, rank=-1, world_size=-1, timeout=default_pg_timeout, **kwargs):
    path = urlparse(url).path
    check(bool(path), "rendezvous", "file:///path", url, error=ValueError)
    _need("file", rank, world_size)
    store = FileStore(path, world_size)
    store.set_timeout(timeout)
    yield store, rank, world_size
    check(False, "rendezvous", "to meet once", "a second time")


def _tcp(url, rank=-1, world_size=-1, timeout=default_pg_timeout, **kwargs):
    found = urlparse(url)
    check(found.port is not None and found.hostname, "rendezvous", "tcp://host:port", url, error=ValueError)
    _need("tcp", rank, world_size)
    yield _meet(found.hostname, found.port, rank, world_size, timeout), rank, world_size
    check(False, "rendezvous", "to meet once", "a second time")


def _env(url, rank=-1, world_size=-1, timeout=default_pg_timeout, **kwargs):
    def environment(name, least=None):
        text = os.environ.get(name)
        check(text is not None, "init_process_group", f"the environment variable {name} for env://", "none", error=ValueError,
              use="python -m tritorch.distributed.run, or tcp:// as init_method")
        if least is None:
            return text
        check(text.isdigit() and int(text) >= least, "init_process_group", f"a number ≥ {least} in {name}", repr(text), error=ValueError)
        return int(text)

    rank = environment("RANK", 0) if rank == -1 else rank
    world_size = environment("WORLD_SIZE", 1) if world_size == -1 else world_size
    yield _meet(environment("MASTER_ADDR"), environment("MASTER_PORT", 1), rank, world_size, timeout), rank, world_size
    check(False, "rendezvous", "to meet once", "a second time")


def _meet(host, port, rank, world_size, timeout):
    if not 0 <= rank < world_size:
        raise ValueError(sentence("init_process_group", f"a rank from 0 to {world_size - 1}", rank))
    return TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout, wait_for_workers=False, multi_tenant=True)


def given(timeout):
    """A timedelta: of a number of seconds, or None for the usual one."""
    if timeout is None:
        return default_pg_timeout
    check(isinstance(timeout, timedelta), "init_process_group", "a datetime.timedelta as timeout", repr(timeout), error=TypeError)
    return timeout


for _scheme, _handler in (("env", _env), ("tcp", _tcp), ("file", _file)):
    register_rendezvous_handler(_scheme, _handler)
