"""What tests/test_distributed_mpi.py has mpiexec run: the collectives of the backend mpi, of two or three ranks."""
import numpy as np

import tritorch as torch
from tritorch import distributed as dist

Op = dist.ReduceOp


def main():
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        x = torch.full((2, 3), rank + 1).to(dtype).t()
        dist.all_reduce(x)
        assert (x.float() == total).all() and x.dtype is dtype
        dist.all_reduce(x, Op.AVG)
        assert (x.float() == total).all()
        dist.reduce(x, 1, Op.MAX)
        outs = [torch.empty(r + 1).to(dtype) for r in range(size)]
        dist.all_gather(outs, torch.full((rank + 1,), rank).to(dtype))
        assert [o.float().tolist() for o in outs] == [[r] * (r + 1) for r in range(size)]
        part = torch.empty(2).to(dtype)
        dist.reduce_scatter_tensor(part, torch.arange(2 * size).to(dtype))
        assert part.float().tolist() == [2 * rank * size, (2 * rank + 1) * size]
        dist.reduce_scatter(part, [torch.full((2,), r).to(dtype) for r in range(size)], Op.AVG)
        assert part.float().tolist() == [rank, rank]
    b = torch.tensor([rank == 0, True])
    dist.all_reduce(b, Op.PRODUCT)
    assert b.tolist() == [False, True]
    moved(rank, size)
    messages(rank, size)
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    assert all(work.wait() for work in works) and works[2].get_future().then(lambda f: f.value()[0][0].item()).wait() == size
    group = dist.new_group([0, 1])
    if rank < 2:
        y = torch.tensor([rank])
        dist.broadcast(y, 1, group=group)
        assert y.item() == 1
    dist.barrier()
    dist.destroy_process_group()
    print("well done", rank, flush=True)


def moved(rank, size):
    out = torch.empty(size, 2)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
    assert out[:, 1].tolist() == list(range(size))
    outs = [torch.empty(1) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.full((1,), float(rank)), outs, 1)
    assert rank != 1 or [o.item() for o in outs] == list(range(size))
    x = torch.empty(1)
    dist.scatter(x, [torch.tensor([10.0 + r]) for r in range(size)] if rank == 0 else None)
    assert x.item() == 10 + rank
    outs = [torch.empty(1) for _ in range(size)]
    dist.all_to_all(outs, [torch.tensor([10.0 * rank + r]) for r in range(size)])
    assert [o.item() for o in outs] == [10 * r + rank for r in range(size)]
    out = torch.empty(size * (rank + 1))
    dist.all_to_all_single(out, torch.from_numpy(np.full(total := size * (size + 1) // 2, rank, np.float32)), [rank + 1] * size,
                           [r + 1 for r in range(size)])
    assert out.tolist() == [r for r in range(size) for _ in range(rank + 1)] and total
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)]


def messages(rank, size):
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=3)
        dist.isend(torch.ones(2), 1).wait()
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        x = torch.zeros(3)
        assert dist.recv(x, tag=3) == 0 and x.tolist() == [1, 1, 1]
        work = dist.irecv(torch.zeros(2), 0)
        assert work.wait() and work.is_completed() and work.source_rank() == 0
        try:
            dist.recv(x, 0)
        except dist.DistBackendError as error:
            assert "12 bytes" in str(error)
        else:
            raise AssertionError("a message of another size")


if __name__ == "__main__":
    main()
