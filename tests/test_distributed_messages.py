"""Messages between ranks, objects, and groups of some ranks."""
import time

import pytest
from worlds import error_of, world

import tritorch as torch
from tritorch import distributed as dist
from tritorch.distributed.gloo import links


def messages(rank, size):
    other = 1 - rank
    if rank == 0:
        dist.send(torch.arange(3.0), 1)
        dist.send(torch.full((2,), 7), dst=1, tag=5)
        dist.send(torch.full((2,), 6), dst=1, tag=4)                     # taken before the one of tag 5
        dist.isend(torch.ones(300_000), group_dst=1).wait()
        for i in range(5):
            dist.send(torch.tensor(i), 1, tag=9)
    else:
        x = torch.empty(2, 3).t()[:, 0]
        assert dist.recv(x, 0) == 0 and x.tolist() == [0, 1, 2]
        a, b = torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
        assert dist.recv(b, tag=4) == 0 and dist.recv(a, group_src=0, tag=5) == 0
        assert (a[0].item(), b[0].item()) == (7, 6)
        big = torch.zeros(300_000)
        assert dist.irecv(big).wait() and (big == 1).all()
        found = [torch.empty((), dtype=torch.int64) for _ in range(5)]
        works = [dist.irecv(x, 0, tag=9) for x in found]
        for work in reversed(works):
            work.wait()
        assert [x.item() for x in found] == list(range(5)) and works[0].source_rank() == 0
    inbox, outbox = torch.empty(200_000), torch.full((200_000,), float(rank))
    ops = [dist.P2POp(dist.isend, outbox, other), dist.P2POp(dist.irecv, inbox, group_peer=other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (inbox == other).all() and repr(ops[0]).startswith(f"P2POp(isend pg=0, group_src={rank}, group_dst={other}")
    late = torch.empty(1)
    early = dist.all_reduce(torch.ones(1), async_op=True)                # beside messages
    work = dist.irecv(late, other) if rank else None
    dist.barrier()
    if rank:
        assert not work.is_completed()
    dist.barrier()
    if not rank:
        dist.send(torch.ones(1), other)
    else:
        work.wait()
    early.wait()


def anyone(rank, size):
    if rank:
        dist.send(torch.full((3,), float(rank)), 0, tag=rank % 2)
        return
    x = torch.empty(3)
    found = set()
    for _ in range((size - 1) // 2):
        r = dist.recv(x, tag=0)
        assert r == x[0].item() and r % 2 == 0
        found.add(r)
    works = [dist.irecv(torch.empty(3), tag=1) for _ in range(size // 2)]
    for work in works:
        work.wait()
        found.add(work.source_rank())
        assert work.result()[0][0].item() == work.source_rank()
    assert found == set(range(1, size))


def refusals(rank, size):
    if rank == 0:
        for x in (torch.ones(4), torch.ones(3).to(torch.int32), torch.ones(3)):
            dist.send(x, 1)
        dist.barrier()
        return
    x = torch.zeros(3)
    for kind in ("4 float32", "3 int32"):
        name, text, _ = error_of(lambda: dist.recv(x, 0))
        assert name == "DistBackendError" and kind in text and "3 float32 on rank 1" in text and not x.any()
    dist.recv(x, 0)                                                      # the group lives on
    assert x.tolist() == [1, 1, 1]
    for call, kind in ((lambda: dist.send(x, 1), ValueError), (lambda: dist.send(x, 5), ValueError), (lambda: dist.send(x), ValueError),
                       (lambda: dist.send(x, 0, tag=-1), RuntimeError), (lambda: dist.send([x], 0), TypeError),
                       (lambda: dist.P2POp(dist.send, x, 0), ValueError), (lambda: dist.batch_isend_irecv([]), IndexError),
                       (lambda: dist.batch_isend_irecv([x]), ValueError)):
        with pytest.raises(kind):
            call()
    dist.barrier()


def flooded(rank, size):
    """What nobody asks for is stored up to a limit, then the sender waits; what is asked for comes in any case."""
    links.STORED = 100_000
    dist.barrier()
    if rank == 0:
        works = [dist.isend(torch.full((20_000,), float(i)), 1, tag=i) for i in range(6)] + [dist.isend(torch.ones(500_000), 1, tag=6)]
        dist.barrier()
        assert all(work.wait() for work in works)
        return
    link = dist.group.WORLD._get_backend("cpu").engine.links[0]
    until = time.monotonic() + 20
    while link.stored < links.STORED and time.monotonic() < until:
        time.sleep(0.005)
    assert 100_000 <= link.stored < 200_000
    work = dist.barrier(async_op=True)
    for tag in (0, 1, 2, 3, 4, 5, 6):
        x = torch.zeros(500_000 if tag == 6 else 20_000)
        dist.recv(x, 0, tag=tag)
        assert (x == (1 if tag == 6 else tag)).all()
    assert work.wait() and link.stored == 0 and not link.arrived and not link.awaited


def objects(rank, size):
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(size)]
    found = [None] * size if rank == 1 else None
    dist.gather_object(("o", rank), found, dst=1)
    assert rank != 1 or found == [("o", r) for r in range(size)]
    pair = [rank, {1, 2}] if rank == 2 else [None, None]
    dist.broadcast_object_list(pair, 2)
    assert pair == [2, {1, 2}]
    out = [None]
    dist.scatter_object_list(out, ["a", "bcd", None][:size] if rank == 0 else None)
    assert out == [["a", "bcd", None][rank]]
    if rank == 0:
        dist.send_object_list(["one", 2], 1)
    elif rank == 1:
        pair = [None, None]
        assert dist.recv_object_list(pair) == 0 and pair == ["one", 2]
    with pytest.raises(ValueError):
        dist.all_gather_object([None], 1)


def groups(rank, size):
    first, odd = dist.new_group([0, 1, 2]), dist.new_group([3, 1])
    assert dist.get_world_size(first) == (3 if rank < 3 else -1) and dist.get_rank(odd) == {1: 0, 3: 1}.get(rank, -1)
    x = torch.tensor([float(rank)])
    if rank == 3:
        with pytest.warns(UserWarning, match="does not belong"):
            assert dist.all_reduce(x, group=first) is None
        assert first is dist.GroupMember.NON_GROUP_MEMBER
    else:
        dist.all_reduce(x, group=first)
        assert x.item() == 3
    if rank in (1, 3):
        assert dist.get_process_group_ranks(odd) == [1, 3] and dist.get_global_rank(odd, 1) == 3 and dist.get_group_rank(odd, 3) == 1
        y = torch.tensor([float(rank)])
        dist.broadcast(y, 3, group=odd)
        assert y.item() == 3
        assert rank == 3 and dist.send(y, 1, group=odd) is None or rank == 1 and dist.recv(y, group=odd) == 3
        with pytest.raises(ValueError, match="one of \\[1, 3\\]"):
            dist.broadcast(y, 0, group=odd)
    mine, every = dist.new_subgroups(2)
    assert len(every) == 2 and dist.get_process_group_ranks(mine) == [rank // 2 * 2, rank // 2 * 2 + 1]
    z = torch.tensor([rank])
    dist.all_reduce(z, group=mine)
    assert z.item() == (1 if rank < 2 else 5)
    half = dist.split_group(split_ranks=[[3, 0], [2]])
    assert (half is None) == (rank == 1) and (half is None or dist.get_world_size(half) == (1 if rank == 2 else 2))
    if half is not None:
        z = torch.tensor([rank])
        dist.all_reduce(z, group=half)
        assert z.item() == (2 if rank == 2 else 3)
    local = dist.new_group([0, 3], use_local_synchronization=True) if rank in (0, 3) else None
    if local is not None:
        dist.barrier(local)
        dist.destroy_process_group(local)
    turned = dist.new_group([2, 0], sort_ranks=False, backend="gloo")
    assert rank not in (0, 2) or dist.get_rank(turned) == (rank == 0) and dist.get_backend(turned) == "gloo"
    for ranks in ([0, 0], [9], [0, 1, 2, 3, 4]):
        with pytest.raises(ValueError):
            dist.new_group(ranks)
    dist.barrier()


@pytest.mark.parametrize("size, check", [(2, messages), (5, anyone), (2, refusals), (2, flooded), (3, objects), (4, groups)],
                         ids=lambda v: getattr(v, "__name__", v))
def test_messages(size, check, tmp_path):
    world(check, size, tmp_path)
