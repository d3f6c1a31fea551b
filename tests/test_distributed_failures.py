"""What goes wrong between ranks is found, named, and told to all: deaths, delays, different calls, forks, hostile guests."""
import os
import socket
import sys
import threading
import time
from datetime import timedelta

import pytest
from worlds import error_of, world

import tritorch as torch
from tritorch import distributed as dist

SHORT = timedelta(seconds=1)


def died(rank, size):
    dist.barrier()
    if rank == 1:
        time.sleep(0.2)                                                  # the others are through the barrier, too
        os._exit(3)
    if rank == 0:
        found = error_of(lambda: dist.recv(torch.ones(1), 1))            # a message of a dead rank is not waited for
        assert found[0] == "DistBackendError" and "rank 1" in found[1] and found[2] < 5
    return error_of(lambda: dist.all_reduce(torch.ones(200_000)))


def test_a_rank_dies(tmp_path):
    results = world(died, 3, tmp_path)
    assert results[1] == "it has ended"
    for name, text, seconds in (results[0], results[2]):
        assert name == "DistBackendError" and text.startswith("all_reduce: expected") and "rank 1" in text and seconds < 5


def late(rank, size):
    if rank == 2:
        time.sleep(1.5)
    first = error_of(lambda: dist.broadcast(torch.ones(3), 2))
    return first, error_of(dist.barrier), error_of(lambda: dist.send(torch.ones(1), (rank + 1) % size))


def test_a_rank_is_late(tmp_path):
    for rank, (first, second, third) in enumerate(world(late, 3, tmp_path, timeout=SHORT)):
        assert first[0] == second[0] == third[0] == "DistBackendError" and "broadcast: expected rank 2 to take part within 1 s" in second[1]
        assert first[2] < 5 and second[2] < 5 and ("gave up" in first[1] or rank < 2)


def private(rank, size):
    """A message that does not come in time is nobody else's trouble."""
    if rank == 0:
        found = error_of(lambda: dist.recv(torch.ones(1), 1, tag=1)), error_of(lambda: dist.recv(torch.ones(1), tag=2))
        assert all(f[0] == "DistBackendError" and 0.3 < f[2] < 5 for f in found) and "rank 1" in found[0][1] and "any rank" in found[1][1]
        x = torch.zeros(1)
        dist.recv(x, 1)
        assert x.item() == 5
    else:
        dist.send(torch.full((1,), 5.0), 0)
    dist.barrier(timeout=timedelta(seconds=20))


def test_a_message_that_does_not_come(tmp_path):
    world(private, 2, tmp_path, timeout=timedelta(seconds=0.5))


CALLS = {
    "size": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(4)), "4 float32", "3 float32"),
    "large": (lambda: dist.all_reduce(torch.ones(30_000)), lambda: dist.all_reduce(torch.ones(30_001)), "30001 float32", "30000 float32"),
    "dtype": (lambda: dist.broadcast(torch.ones(3), 0), lambda: dist.broadcast(torch.ones(3).double(), 0), "3 float64", "3 float32"),
    "op": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX), "MAX", "SUM"),
    "call": (lambda: dist.barrier(), lambda: dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1)), "barrier", "all_gather"),
    "root": (lambda: dist.broadcast(torch.ones(3), 0), lambda: dist.reduce(torch.ones(3), 0), "broadcast", "reduce"),
}


def different(rank, size, key):
    found = error_of(CALLS[key][rank])
    return found if found[0] != "nothing" else error_of(dist.barrier)    # who only sends hears of it at the next call


@pytest.mark.parametrize("key", CALLS)
def test_ranks_call_different_things(key, tmp_path):
    results = world(different, 2, tmp_path, key)
    texts = " ".join(text for _, text, _ in results)
    assert all(name == "DistBackendError" and seconds < 5 for name, _, seconds in results), results
    assert all(word in texts for word in CALLS[key][2:]) and "rank 0" in texts and "rank 1" in texts


def absent(rank, size):
    if rank in (1, 2):
        time.sleep(1.5)
        return ["none", "", 0]
    return error_of(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.7), wait_all_ranks=True) if rank == 0 else
                    dist.monitored_barrier())


def test_monitored_barrier_names_who_is_missing(tmp_path):
    results = world(absent, 4, tmp_path)
    assert results[0][0] == results[3][0] == "DistBackendError" and "the ranks [1, 2] within 0.7 s" in results[0][1]
    assert "gave up" in results[3][1]


def whole(rank, size):
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    work = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="within 0.1 s"):
            work.wait(timedelta(seconds=0.1))
        dist.send(torch.ones(1), 1)
        assert work.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(1))
    dist.barrier()


def test_a_wait_that_runs_out(tmp_path):
    world(whole, 2, tmp_path)


def forked(rank, size):
    dist.barrier()
    child = os.fork()
    if not child:                                                        # is not of the world, and ends without harm to it
        os._exit(int(dist.is_initialized()))
    assert os.waitpid(child, 0)[1] == 0
    x = torch.ones(100_000)
    dist.all_reduce(x)
    assert x[0].item() == size


def test_a_forked_process_has_no_part(tmp_path):
    world(forked, 2, tmp_path)


def leaves(rank, size, path):
    """Nothing stays open: descriptors, threads; and the next world of the same processes works."""
    dist.destroy_process_group()
    before, store = None, dist.FileStore(path)
    for _ in range(3):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        group = dist.new_group([0, 1])
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        dist.isend(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.destroy_process_group()
        now = len(os.listdir("/proc/self/fd")), threading.active_count()
        assert before in (None, now), (before, now)
        before = now


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_nothing_stays_open(tmp_path):
    world(leaves, 2, tmp_path, tmp_path / "again")


def guests(rank, size):
    """Who does not know the token is turned away while ranks meet."""
    from tritorch.distributed.gloo import mesh
    store = dist.PrefixStore("guests", dist.world._world.store)
    if rank == 0:
        listening = threading.Thread(target=intrude, args=(store,))
        listening.start()
        socks = mesh.connected(store, 0, 2, 20)
        listening.join()
    else:
        store.wait(["intruded"])
        socks = mesh.connected(store, 1, 2, 20)
    assert list(socks) == [1 - rank]
    socks[1 - rank].close()


def intrude(store):
    store = store.clone()
    host, port, _, _, name = store.get("gloo/0").decode().split()
    for words in (b"GET / HTTP/1.0\r\n\r\n" * 4, b"tritorch\x01\0\0\0" + b"0" * 16, b""):
        with socket.create_connection((host, int(port)), 5) as sock:
            sock.sendall(words)
        if sys.platform == "linux":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.connect("\0" + name)
                sock.sendall(words)
    store.set("intruded", "1")


def test_guests_are_turned_away(tmp_path):
    world(guests, 2, tmp_path)


def garbage(rank, size):
    """Bytes that are no message end the group with a sentence."""
    dist.barrier()
    engine = dist.group.WORLD._get_backend("cpu").engine
    if rank == 0:
        engine.links[1].sock.send(b"\xff" * 64)
    return error_of(lambda: [dist.barrier() for _ in range(3)])


def test_bytes_that_are_no_message(tmp_path):
    results = world(garbage, 2, tmp_path)
    assert results[1][0] == "DistBackendError" and "no message" in results[1][1] and results[0][0] == "DistBackendError"
