"""Collectives of the gloo backend between real processes, against numpy: operations, dtypes, layouts, sizes, messages, objects, groups."""
import numpy as np
import pytest
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch.distributed.gloo import mesh, schedules

Op = dist.ReduceOp
HALF = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def values(rank, n, dtype):
    """What a rank has: small numbers, drawn by rank."""
    rng = np.random.default_rng(rank)
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, n).astype(bool))
    x = rng.integers(0 if dtype is torch.uint8 else -3, 4, n) if not dtype.is_floating_point else rng.uniform(-2, 2, n)
    return torch.from_numpy(np.asarray(x, np.float64)).to(dtype)


def together(op, arrays):
    wide = [a.astype(bool if a.dtype == bool else np.int64 if a.dtype.kind in "iu" else np.float64) for a in arrays]
    if wide[0].dtype == bool and op in (Op.SUM, Op.MAX):
        return np.logical_or.reduce(wide)
    f = {Op.SUM: np.add, Op.AVG: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum, Op.BAND: np.bitwise_and,
         Op.BOR: np.bitwise_or, Op.BXOR: np.bitwise_xor}[op]
    total = f.reduce(wide)
    if op is Op.AVG:
        total = total / len(wide) if total.dtype.kind == "f" else np.trunc(total / len(wide)).astype(np.int64)
    return total


def operations(dtype):
    numbers = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
    if dtype is torch.bool:
        return [Op.SUM, Op.MAX, Op.BAND, Op.BOR, Op.BXOR]
    return [*numbers, Op.AVG] + ([] if dtype.is_floating_point else [Op.BAND, Op.BOR, Op.BXOR])


def close(x, wanted, dtype):
    got = x.to(torch.float64).numpy() if dtype.is_floating_point else x.numpy()
    tolerance = HALF.get(dtype, 1e-5 if dtype is torch.float32 else 1e-12) if dtype.is_floating_point else 0
    wanted = wanted.astype(got.dtype)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=4 * tolerance)


def reductions(rank, size):
    schedules.BLOCK = 1 << 14                                            # several blocks to a part
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
                  torch.uint8, torch.bool):
        for n in (0, 1, 7, 40_003):
            arrays = [values(r, n, dtype).numpy() for r in range(size)]
            for op in operations(dtype) if n == 7 else operations(dtype)[:1]:
                wanted = together(op, arrays)
                x = values(rank, n, dtype)
                assert dist.all_reduce(x, op) is None
                close(x, wanted, dtype)
                x = values(rank, n, dtype)
                dist.reduce(x, size - 1, op)
                close(x, wanted if rank == size - 1 else arrays[rank], dtype)
            parts = [values(10 * rank + r, n, dtype) for r in range(size)]
            out = torch.empty(n, dtype=dtype)
            dist.reduce_scatter(out, parts)
            wanted = together(Op.SUM, [values(10 * r + rank, n, dtype).numpy() for r in range(size)])
            close(out, wanted, dtype)
            out = torch.empty(n, dtype=dtype)
            dist.reduce_scatter_tensor(out, torch.cat(parts))
            close(out, wanted, dtype)


def bits(rank, size):
    """Sums whose last bits depend on the order: the same on all ranks, and again."""
    found = []
    schedules.BLOCK = 1 << 16
    for n in (50, 30_000, 300_000):
        rng = np.random.default_rng(rank)
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 6, n)).astype(np.float32)
        runs = [torch.from_numpy(x.copy()) for _ in range(2)]
        for y in runs:
            dist.all_reduce(y)
        assert torch.equal(*runs)
        found.append(runs[0].numpy().tobytes())
    return found


def movements(rank, size):
    schedules.BLOCK = 1 << 14
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int8, torch.bool):
        for shape in ((), (0,), (3,), (5, 7), (300, 311)):
            n = int(np.prod(shape))

            def of(r, n=n, shape=shape, dtype=dtype):
                return ((torch.arange(n) + r) % 2).to(dtype).reshape(shape)

            x = of(rank)
            dist.broadcast(x, size - 1)
            assert same(x, of(size - 1))
            outs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(outs, of(rank))
            assert all(same(out, of(r)) for r, out in enumerate(outs))
            out = torch.empty((size, *shape), dtype=dtype)
            dist.all_gather_into_tensor(out, of(rank))
            assert all(same(out[r], of(r)) for r in range(size))
            outs = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == 1 else None
            dist.gather(of(rank), outs, dst=1)
            assert rank != 1 or all(same(out, of(r)) for r, out in enumerate(outs))
            x = torch.empty(shape, dtype=dtype)
            dist.scatter(x, [of(3 * r) for r in range(size)] if rank == 0 else None)
            assert same(x, of(3 * rank))
            outs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_to_all(outs, [of(rank + r) for r in range(size)])
            assert all(same(out, of(r + rank)) for r, out in enumerate(outs))


def same(x, y):
    return x.shape == y.shape and x.numpy().tobytes() == y.numpy().tobytes()


def layouts(rank, size):
    """Transposed, gapped and shared memory: results land in it, and the rest stays."""
    whole = torch.zeros(4, 6)
    view = whole.t()[1:5:2]                                              # gapped and transposed
    view.fill_(rank + 1.0)
    dist.all_reduce(view)
    total = size * (size + 1) / 2
    assert (view == total).all() and whole.sum().item() == total * view.numel()
    dist.broadcast(view, 1)
    rows = torch.zeros(size, 2, 8)
    dist.all_gather([rows[r, :, ::2] for r in range(size)], torch.full((4, 2), float(rank)).t())
    assert all((rows[r, :, ::2] == r).all() and not rows[r, :, 1::2].any() for r in range(size))
    x = torch.ones(3).expand(2, 3)
    out = torch.empty(size * 2, 3)
    dist.all_gather_into_tensor(out, x)
    assert (out == 1).all()
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.tolist() == [size] * 3 and leaf.requires_grad and leaf.is_leaf


def uneven(rank, size):
    outs = [torch.empty(r, dtype=torch.int64) for r in range(size)]
    dist.all_gather(outs, torch.full((rank,), rank))
    assert [out.tolist() for out in outs] == [[r] * r for r in range(size)]
    given = [r + 1 for r in range(size)]                                 # row counts: rank r gives i + 1 rows to rank i
    x = torch.arange(float(sum(given))).reshape(-1, 1) + 100 * rank
    out = torch.empty(size * (rank + 1), 1)
    dist.all_to_all_single(out, x, [rank + 1] * size, given)
    start = sum(given[:rank])
    wanted = [100 * r + start + i for r in range(size) for i in range(rank + 1)]
    assert out.flatten().tolist() == wanted
    y = torch.empty(2 * size)
    dist.all_to_all_single(y, torch.arange(2.0 * size) + 10 * rank)
    assert y.tolist() == [10 * r + 2 * rank + i for r in range(size) for i in range(2)]


def asynchronous(rank, size):
    xs = [torch.full((n,), float(rank + 1)) for n in (3, 50_000, 7, 0, 200_000)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    halved = works[1].get_future().then(lambda f: f.value()[0].div_(2))
    barrier = dist.barrier(async_op=True)
    for work, x in zip(works, xs):
        assert isinstance(work, dist.Work) and work.wait() is True and work.is_completed() and work.is_success()
        assert work.result()[0] is x and work.get_future().value()[0] is x
    total = size * (size + 1) / 2
    assert (halved.wait() == total / 2).all() and (xs[4] == total).all() and halved.value() is xs[1]
    assert barrier.wait()
    pair = [torch.ones(2), torch.ones(100_000)]
    assert dist.all_reduce_coalesced(pair, Op.MAX, async_op=True).wait()
    dist.all_gather_coalesced([[torch.empty(2)] for _ in range(size)], [torch.ones(2)])
    y = torch.zeros(1)
    if rank == 0:                                                        # a callback, on the thread that would do it, cannot wait
        message, work = dist.irecv(y, 1), dist.all_reduce(torch.ones(1), async_op=True)
        waits = work.get_future().then(lambda _: message.wait())
        for r in range(1, size):
            dist.send(y, r)
        with pytest.raises(RuntimeError, match="callback"):
            waits.wait()
    else:
        dist.recv(y, 0)
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0)
    assert rank or message.wait() and y.item() == 1
    dist.barrier()


def saved(rank, size):
    """A tensor that was saved for a gradient and overwritten by a collective is found out."""
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    dist.all_reduce(y.detach())
    with pytest.raises(RuntimeError, match="all_reduce|modified|written|in place"):
        y.sum().backward()


CHECKS = [(2, reductions), (3, reductions), (4, movements), (3, layouts), (4, uneven), (3, asynchronous), (2, saved)]


@pytest.mark.parametrize("size, check", CHECKS, ids=lambda v: getattr(v, "__name__", v))
def test_collectives(size, check, tmp_path):
    world(check, size, tmp_path)


def test_ranks_on_other_machines(tmp_path, monkeypatch):
    """They are connected by TCP."""
    monkeypatch.setattr(mesh, "machine", lambda: "")
    world(asynchronous, 2, tmp_path)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_get_the_same_bits(size, tmp_path):
    found = world(bits, size, tmp_path)
    assert all(other == found[0] for other in found)


def many(rank, size):
    """More ranks than send small arrays to everybody: trees."""
    x = torch.arange(5) + rank
    dist.all_reduce(x, Op.AVG)
    assert x.tolist() == [int(np.trunc(i + (size - 1) / 2)) for i in range(5)]
    y = torch.full((3,), float(rank))
    dist.reduce(y, 2)
    assert y[0].item() == (size * (size - 1) / 2 if rank == 2 else rank)
    dist.broadcast(y, 4)
    assert y[0].item() == 4
    out = torch.empty(size, 2)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
    assert out[:, 0].tolist() == list(range(size))
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(size)))
    assert part.item() == rank * size
    dist.barrier()


def test_nine_ranks(tmp_path):
    world(many, 9, tmp_path)
