"""CUDA tensors between ranks, on the simulated GPU: through the host with gloo, and by nccl4py's API, which a module stands in for."""
import os

import fake_nccl
import numpy as np
import pytest
from worlds import world

import tritorch as torch
from tritorch import distributed as dist

pytestmark = pytest.mark.skipif("TRITORCH_PTX" in os.environ, reason="the GPU made of PTX is a part of its process")
Op = dist.ReduceOp


def on_gpu(values, dtype=np.float32):
    return torch.from_numpy(np.array(values, dtype)).cuda()


def every(rank, size, group):
    """Each collective."""
    added(rank, size, group)
    moved(rank, size, group)
    sent(rank, size, group)


def added(rank, size, group):
    """Tensors that are contiguous or not."""
    total = size * (size + 1) / 2
    for x in (on_gpu([rank + 1.0] * 6), on_gpu([rank + 1.0] * 12).view(2, 6)[:, ::2].t()):
        assert dist.all_reduce(x, group=group) is None and x.cpu().unique().tolist() == [total]
        y = on_gpu([[rank, 2], [3, 4], [5, 6]]).t()
        dist.broadcast(y, 1, group=group)
        assert y.cpu().tolist() == [[1, 3, 5], [2, 4, 6]]
        work = dist.all_reduce(y, Op.AVG, group=group, async_op=True)
        assert work.wait() and y.cpu()[0, 0].item() == 1 and work.is_completed() and work.get_future().value()[0] is y
    b = on_gpu([rank == 0, rank == 1, False], bool)
    dist.all_reduce(b, group=group)
    assert b.cpu().tolist() == [True, True, False]
    z = on_gpu([rank + 1])
    dist.reduce(z, 0, Op.PRODUCT, group=group)
    assert z.item() == (2 if rank == 0 else 2)
    part = on_gpu([0.0])
    dist.reduce_scatter_tensor(part, on_gpu([1.0, 10.0]), group=group)
    assert part.item() == [2, 20][rank]
    dist.reduce_scatter(part, [on_gpu([3.0]), on_gpu([4.0])], Op.MAX, group=group)
    assert part.item() == [3, 4][rank]


def moved(rank, size, group):
    outs = [on_gpu([0] * 2, np.int16) for _ in range(size)]
    dist.all_gather(outs, on_gpu([rank, 5], np.int16), group=group)
    assert [o.cpu().tolist() for o in outs] == [[r, 5] for r in range(size)]
    out = on_gpu([[0.0] * 2] * size)
    dist.all_gather_into_tensor(out, on_gpu([rank, 7]), group=group)
    assert out.cpu().tolist() == [[r, 7] for r in range(size)]
    part = on_gpu([0.0])
    outs = [on_gpu([0.0]) for _ in range(size)] if rank == 1 else None
    dist.gather(on_gpu([rank + 0.5]), outs, 1, group=group)
    assert rank == 0 or [o.item() for o in outs] == [0.5, 1.5]
    dist.scatter(part, [on_gpu([8.0]), on_gpu([9.0])] if rank == 0 else None, group=group)
    assert part.item() == 8 + rank
    outs = [on_gpu([0.0]) for _ in range(size)]
    dist.all_to_all(outs, [on_gpu([10.0 * rank + r]) for r in range(size)], group=group)
    assert [o.item() for o in outs] == [10.0 * r + rank for r in range(size)]
    out = on_gpu([0.0] * (3 if rank == 0 else 5))
    dist.all_to_all_single(out, on_gpu(range(4)), [1, 2] if rank == 0 else [3, 2], [[1, 3], [2, 2]][rank], group=group)
    assert out.cpu().tolist() == ([0, 0, 1] if rank == 0 else [1, 2, 3, 2, 3])


def sent(rank, size, group):
    part = on_gpu([0.0])
    ops = [dist.P2POp(dist.isend, on_gpu([rank + 0.0]), 1 - rank, group), dist.P2POp(dist.irecv, part, 1 - rank, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert part.item() == 1 - rank
    if rank == 0:
        dist.send(on_gpu([42.0]), 1, group=group)
    else:
        assert dist.recv(part, 0, group=group) == 0 and part.item() == 42
    dist.barrier(group)
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank}, group=group)
    assert found == [{"rank": 0}, {"rank": 1}]


def by_host(rank, size):
    with torch.cuda.simulate(seed=rank):
        every(rank, size, None)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = on_gpu([1.0] * 50_000)
            x.copy_(on_gpu([2.0] * 50_000))
            work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert x.cpu().unique().tolist() == [4.0]


def by_nccl(rank, size):
    fake_nccl.install()
    assert dist.is_nccl_available()
    with torch.cuda.simulate(seed=rank):
        group = dist.new_group([0, 1], backend="nccl")
        assert dist.get_backend(group) == "nccl" and dist.get_backend_config(group) == "cuda:nccl"
        every(rank, size, group)
        for call, kind in ((lambda: dist.all_reduce(on_gpu([1], np.int64), Op.BXOR, group=group), "BXOR"),
                           (lambda: dist.all_reduce(on_gpu([1], np.int16), group=group), "int16"),
                           (lambda: dist.all_reduce(torch.ones(1), group=group), "on cpu"),
                           (lambda: dist.recv(on_gpu([1]), group=group), "any")):
            with pytest.raises(RuntimeError, match=kind):
                call()
        both = dist.new_group([0, 1], backend="cpu:gloo,cuda:nccl")
        assert dist.get_backend_config(both) == "cpu:gloo,cuda:nccl"
        for x in (torch.ones(2), on_gpu([1.0])):
            dist.all_reduce(x, group=both)
            assert x.cpu()[0].item() == 2
        dist.destroy_process_group(group)


def beside(rank, size):
    """Collectives travel on a stream of their own: what was queued before comes first, `wait` and futures keep what comes after behind
    them, and memory that the program has let go of stays theirs."""
    fake_nccl.install()
    for seed in range(4):
        with torch.cuda.simulate(seed=size * seed + rank):
            group = dist.new_group([0, 1], backend="nccl")
            x = on_gpu([1.0] * 3000) * 2 + rank
            work = dist.all_reduce(x, group=group, async_op=True)
            y = on_gpu([3.0] * 3000) + 1
            dist.all_reduce(on_gpu([5.0] * 3000) + 1, group=group, async_op=True)                    # nobody keeps it
            z = on_gpu([7.0] * 3000) + 1
            work.wait()
            x *= 2
            future = dist.all_reduce(y, group=group, async_op=True).get_future().then(lambda f: f.value()[0] / size)
            first, out = on_gpu([rank] * 3000), on_gpu([0.0] * 3000)
            ops = [dist.P2POp(dist.isend, first + 1, 1 - rank, group), dist.P2POp(dist.irecv, out, 1 - rank, group)]
            for sent in dist.batch_isend_irecv(ops):
                sent.wait()
            out += 1
            other = torch.cuda.Stream()
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                assert [t.cpu().unique().tolist() for t in (x, future.value(), z, out)] == [[10], [4], [8], [3 - rank]]
            dist.destroy_process_group(group)


@pytest.mark.parametrize("check", [by_host, by_nccl, beside], ids=lambda f: f.__name__)
def test_collectives_of_cuda_tensors(check, tmp_path):
    world(check, 2, tmp_path)
