"""How processes meet: stores, URLs and the environment; what is wrong with them; backends of one's own; meshes of ranks."""
import os
import socket
import threading
import time
from datetime import timedelta

import pytest
from worlds import error_of, free_port, world

import tritorch as torch
from tritorch import distributed as dist
from tritorch.distributed import wire

SHORT = timedelta(seconds=0.2)


@pytest.fixture(params=["tcp", "hash", "file", "prefix"])
def store(request, tmp_path):
    made = {"tcp": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True), "hash": dist.HashStore,
            "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
            "prefix": lambda: dist.PrefixStore("a/b", dist.TCPStore("127.0.0.1", 0, is_master=True))}[request.param]()
    made.set_timeout(SHORT)
    return made


def test_a_store(store):
    store.set("a", "1")
    store.set("bytes", b"\x00\xff")
    assert store.get("a") == b"1" and store.get("bytes") == b"\x00\xff" and store.num_keys() == 2 and store.timeout == SHORT
    assert store.add("n", 5) == 5 and store.add("n", -7) == -2 and store.get("n") == b"-2" and store.add("a", 2) == 3
    assert store.check(["a", "n"]) and not store.check(["a", "none"]) and store.check([])
    assert store.compare_set("k", "x", "y") == b"x" and store.compare_set("k", "", "y") == b"y" and store.compare_set("k", "z", "w") == b"y"
    assert store.compare_set("k", "y", b"w") == b"w" == store.get("k")
    assert store.delete_key("k") is True and store.delete_key("k") is False
    store.multi_set(["p", "q"], ["1", b"2"])
    store.append("p", "0")
    assert store.multi_get(["p", "q"]) == [b"10", b"2"] and store.has_extended_api()
    store.queue_push("queue", "x")
    store.queue_push("queue", "y")
    assert store.queue_len("queue") == 2 and store.queue_pop("queue") == b"x" and store.queue_pop("queue", block=False) == b"y"
    assert len(store.list_keys()) == store.num_keys() == 5
    for call, kind in ((lambda: store.get("none"), dist.DistStoreError), (lambda: store.wait(["a", "none"], SHORT), dist.DistStoreError),
                       (lambda: store.queue_pop("queue"), dist.DistStoreError), (lambda: store.queue_pop("u", False), dist.QueueEmptyError),
                       (lambda: store.add("bytes", 1), dist.DistStoreError), (lambda: store.set("a", 3), TypeError),
                       (lambda: store.set(3, "a"), TypeError), (lambda: store.add("n", "1"), TypeError),
                       (lambda: store.wait("a"), TypeError),
                       (lambda: store.multi_set(["a"], []), dist.DistStoreError)):
        with pytest.raises(kind):
            call()
    assert store.get("a") == b"3"                                        # a refusal does no harm


def test_who_waits_is_told(store):
    store.set_timeout(timedelta(seconds=10))
    other = store.clone()
    later = threading.Timer(0.05, lambda: other.set("late", "x"))
    later.start()
    assert store.get("late") == b"x"
    later.join()
    calls = [threading.Thread(target=lambda s=s: s.barrier("all", 2)) for s in (store, store.clone())]
    for call in calls:
        call.start()
    for call in calls:
        call.join(10)
        assert not call.is_alive()


def test_a_store_that_goes(tmp_path):
    before = set(threading.enumerate())
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    guest = dist.TCPStore("127.0.0.1", master.port, timeout=timedelta(seconds=5))
    waits = []
    waiting = threading.Thread(target=lambda: waits.append(error_of(lambda: guest.get("never"))))
    waiting.start()
    time.sleep(0.1)
    master._close()
    waiting.join(10)
    assert waits[0][0] == "DistNetworkError" and "has ended" in waits[0][1] and waits[0][2] < 4
    with pytest.raises(dist.DistNetworkError):
        guest.set("a", "b")
    path = tmp_path / "file"
    first, second = dist.FileStore(str(path), 2), dist.FileStore(str(path), 2)
    first.set("a", "b")
    assert second.get("a") == b"b"
    del first
    assert path.exists()
    del second
    assert not path.exists()
    assert set(threading.enumerate()) <= before


def test_no_server_and_no_port():
    port = free_port()
    name, text, seconds = error_of(lambda: dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.3)))
    assert name == "DistNetworkError" and f"127.0.0.1:{port} within 0.3 s" in text and seconds < 3
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with pytest.raises(dist.DistNetworkError, match=f"port {store.port} to be free"):
        dist.TCPStore("127.0.0.1", store.port, is_master=True)
    with pytest.raises(dist.DistStoreError, match="2 processes within 0.2 s, got 1"):
        dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=SHORT)


def test_hostile_bytes():
    """What is no message is dropped, with its sender alone; lengths that lie are found out."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    good = wire.packed(0, [b"a", b"b"])
    lies = [b"GET / HTTP/1.1\r\n\r\n", good[:12] + b"\xff\xff\xff\x7f" + good[16:], good[:4] + b"\xff\xff\xff\xff" + good[8:],
            wire.packed(77, []), wire.packed(0, [b"odd"]), wire.packed(1, [b"n", b"x"]), wire.packed(101, [b""]), wire.packed(1, [])]
    for lie in lies:
        with socket.create_connection(("127.0.0.1", store.port), 5) as sock:
            sock.sendall(lie)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 12):
                pass
    store.set("x", "y")
    assert store.get("x") == b"y"
    for data in (good[:5], good[:-1]):
        messages = wire.Messages()
        messages.bytes += data
        assert messages.next() is None


def met(rank, size, how, place):
    dist.destroy_process_group()
    timeout = timedelta(seconds=20)
    if how == "env":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="localhost", MASTER_PORT=str(place))
        dist.init_process_group(timeout=timeout)
        assert dist.get_backend() == "undefined" and dist.get_backend_config().startswith("cpu:gloo")
    elif how == "tcp":
        dist.init_process_group("GLOO", init_method=f"tcp://127.0.0.1:{place}?rank={rank}", world_size=size, timeout=timeout)
    else:
        store = dist.TCPStore("127.0.0.1", place, size, rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size and repr(dist.group.WORLD).endswith(f"rank {rank} of {size})")


@pytest.mark.parametrize("how", ["env", "tcp", "store"])
def test_ranks_meet(how, tmp_path):
    world(met, 2, tmp_path, how, free_port())


class Counted(dist.Store):
    """A store of one's own, which has what is needed to meet."""

    def __init__(self, path):
        self.inner, self.calls = dist.FileStore(path), 0

    def set(self, key, value):
        self.calls += 1
        self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def add(self, key, amount):
        return self.inner.add(key, amount)

    def wait(self, keys, timeout=timedelta(seconds=20)):
        self.inner.wait(keys, timeout)


def met_by_ones_own(rank, size, path):
    dist.destroy_process_group()
    store = Counted(path)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    assert x.item() == size and store.calls > 0


def test_ranks_meet_by_a_store_of_ones_own(tmp_path):
    world(met_by_ones_own, 2, tmp_path, str(tmp_path / "own"))


def never(rank, size, port):
    dist.destroy_process_group()
    if rank:
        return error_of(lambda: None)
    timeout = timedelta(seconds=1)
    return error_of(lambda: dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2, timeout=timeout))


def test_a_rank_that_never_comes(tmp_path):
    name, text, seconds = world(never, 2, tmp_path, free_port())[0]
    assert name == "DistBackendError" and "the ranks [1] within 1 s" in text and seconds < 8


def test_wrong_arguments(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    hashed = dist.HashStore()
    for arguments, kind, text in (
            (dict(backend="pigeons"), ValueError, "a backend among"), (dict(world_size=2, rank=0), ValueError, "MASTER_ADDR"),
            (dict(world_size=2), ValueError, "RANK"), (dict(init_method="ftp://x"), RuntimeError, "env://"),
            (dict(init_method="tcp://x"), ValueError, "host:port"), (dict(init_method="file:///x"), ValueError, "rank"),
            (dict(store=hashed), AssertionError, "world_size"), (dict(store=hashed, init_method="env://"), AssertionError, "both"),
            (dict(store=3, rank=0, world_size=1), TypeError, "Store"), (dict(timeout=3), TypeError, "timedelta"),
            (dict(backend="cpu:pigeons", rank=0, world_size=1, store=hashed), ValueError, "cpu:gloo")):
        if "cpu:" in arguments.get("backend", ""):
            arguments.update(world_size=2)
        with pytest.raises(kind, match=text):
            dist.init_process_group(**arguments)
        assert not dist.is_initialized()
    with pytest.raises(AssertionError):
        dist.destroy_process_group()


class Counting(dist.ProcessGroup):
    """A backend that counts its calls."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.calls = []

    def allreduce(self, tensors, opts=None, timeout=None):
        self.calls.append((len(tensors), opts.reduceOp))
        work = dist.Work("all_reduce", tensors)
        work.finish()
        return work


def test_a_backend_of_ones_own():
    dist.Backend.register_backend("counting", Counting, devices="cpu")
    assert dist.Backend.COUNTING == "counting" and dist.is_backend_available("counting")
    dist.init_process_group("counting", rank=0, world_size=1)
    try:
        assert dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX) is None
        assert dist.group.WORLD._get_backend("cpu").calls == [(1, dist.ReduceOp.MAX)] and dist.get_backend() == "counting"
        with pytest.raises(RuntimeError, match="counting|Counting"):
            dist.broadcast(torch.ones(2), 0)
    finally:
        dist.destroy_process_group()
    with pytest.raises(ValueError):
        dist.Backend(3)


def meshes(rank, size):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    assert repr(mesh) == "DeviceMesh((a=2, b=2), 'cpu', stride=(2, 1))" and mesh.get_coordinate() == (rank // 2, rank % 2)
    assert dist.get_process_group_ranks(mesh.get_group("a")) == [rank % 2, rank % 2 + 2] and mesh.get_local_rank("b") == rank % 2
    x = torch.tensor([rank])
    dist.all_reduce(x, group=mesh["b"].get_group())
    assert x.item() == (1 if rank < 2 else 5) and repr(mesh["a"]) == "DeviceMesh((a=2), 'cpu', stride=(2,))"
    assert mesh["b"].mesh.tolist() == [rank // 2 * 2, rank // 2 * 2 + 1] and mesh.mesh.dtype is torch.int32
    assert mesh.size(0) == mesh.ndim == 2
    flat = dist.init_device_mesh("cpu", (4,))
    assert flat.get_group() is dist.group.WORLD and repr(flat) == "DeviceMesh((4,), 'cpu', stride=(1,))"
    part = dist.DeviceMesh("cpu", [[2, 3]])
    assert part.get_coordinate() == (None if rank < 2 else (0, rank - 2)) and part != flat and flat == dist.DeviceMesh("cpu", [0, 1, 2, 3])
    assert dist.DeviceMesh.from_group(dist.group.WORLD, "cpu") == flat and len(mesh.get_all_groups()) == 2 and mesh.get_rank() == rank
    other = dist.init_device_mesh("cpu", (4, 1), mesh_dim_names=("a", "b"), backend_override={"a": "gloo"})
    assert other.get_group("a") is not dist.group.WORLD and dist.get_backend(other.get_group(0)) == "gloo"
    for call, kind in ((lambda: dist.init_device_mesh("cpu", (4,), backend_override={"z": "gloo"}), RuntimeError),
                       (lambda: mesh["c"], KeyError), (lambda: mesh["b", "a"], KeyError), (lambda: mesh.get_group(), RuntimeError),
                       (lambda: flat["a"], RuntimeError), (lambda: dist.init_device_mesh("cpu", (3, 3)), RuntimeError),
                       (lambda: dist.init_device_mesh("cpu:0", (4,)), RuntimeError), (lambda: dist.DeviceMesh("cpu", [1, 1]), ValueError)):
        with pytest.raises(kind):
            call()
    dist.barrier()


def test_meshes(tmp_path):
    world(meshes, 4, tmp_path)


def test_where_pytorch_keeps_the_names():
    from tritorch.distributed.distributed_c10d import ReduceOp, _get_default_group, _rank_not_in_group

    assert ReduceOp is dist.ReduceOp and all(hasattr(dist, name) for name in dist.__all__)
    with pytest.raises(ValueError, match="init_process_group"):
        _get_default_group()
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        assert _get_default_group() is dist.group.WORLD and not _rank_not_in_group(None)
    finally:
        dist.destroy_process_group()
