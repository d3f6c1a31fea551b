"""Collectives that gradients flow through: those of the sum of all ranks' losses, differentiated by hand; twice where it matters."""
import pytest
from worlds import world

import tritorch as torch
from tritorch import distributed as dist
from tritorch.distributed import _functional_collectives as funcol
from tritorch.distributed.nn import functional as f

Op = dist.ReduceOp


def weight(rank, i=0):
    """What rank r multiplies with before it adds up: its loss is weight · result."""
    return torch.tensor([1.0 + rank, 2.0 * rank - 1]) + i


def total(size, i=0):
    return sum((weight(r, i) for r in range(size)), torch.zeros(2))


def gradients(rank, size):
    def of(call, n=1):
        """Gradients of this rank's inputs, `n` of them."""
        xs = [torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(n)]
        outs = call(*xs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        sum((out * weight(rank, i)).sum() for i, out in enumerate(outs)).backward()
        return [x.grad if x.grad is not None else None for x in xs], outs

    same = torch.equal
    (g,), _ = of(lambda x: f.all_reduce(x))
    assert same(g, total(size))
    (g,), _ = of(lambda x: f.all_reduce(x, Op.AVG))
    torch.testing.assert_close(g, total(size) / size)
    (g,), (out,) = of(lambda x: f.broadcast(x * (rank + 1), 1))
    assert out.tolist() == [2, 4] and same(g, 2 * total(size) if rank == 1 else torch.zeros(2))
    (g,), (out,) = of(lambda x: f.reduce(x, 1))
    assert same(g, weight(1)) and out.tolist() == ([size, 2 * size] if rank == 1 else [1, 2])
    (g,), outs = of(lambda x: f.gather(x + rank, 0))
    assert same(g, weight(0, rank)) and [o[0].item() for o in outs] == ([1.0 + r for r in range(size)] if rank == 0 else [0.0] * size)
    gs, (out,) = of(lambda *xs: f.scatter([x + i for i, x in enumerate(xs)], 1), size)
    assert out[0].item() == 1 + rank and all(same(g, weight(i) if rank == 1 else torch.zeros(2)) for i, g in enumerate(gs))
    gs, (out,) = of(lambda *xs: f.reduce_scatter(torch.empty(2), list(xs)), size)
    assert out.tolist() == [size, 2 * size] and all(same(g, weight(i)) for i, g in enumerate(gs))
    (g,), outs = of(lambda x: f.all_gather(x + rank))
    assert same(g, total(size, rank)) and [o[0].item() for o in outs] == [1.0 + r for r in range(size)]
    gs, outs = of(lambda *xs: f.all_to_all([torch.empty(2) for _ in xs], [x + rank for x in xs]), size)
    assert [o[0].item() for o in outs] == [1.0 + r for r in range(size)] and all(same(g, weight(i, rank)) for i, g in enumerate(gs))
    x = torch.arange(float(2 * size), requires_grad=True)
    y = f.all_to_all_single(torch.empty(2 * size), x)
    (y * torch.arange(2.0 * size) * (rank + 1)).sum().backward()
    assert x.grad.view(size, 2).tolist() == [[(r + 1) * (2.0 * rank + i) for i in range(2)] for r in range(size)]
    twice(rank, size)
    with pytest.raises(RuntimeError, match="SUM or AVG"):
        f.all_reduce(x, Op.MAX)
    assert f.all_reduce(torch.tensor(rank), Op.MAX).item() == size - 1


def twice(rank, size):
    """s = Σ x_r; each loss is s³/3: the gradient of all n is n s², and that of all n gradients 2 n² s."""
    x = torch.tensor(1.0 + rank, requires_grad=True)
    s = f.all_reduce(x)
    (g,) = torch.autograd.grad(s ** 3 / 3, x, create_graph=True)
    n, value = size, size * (size + 1) / 2
    assert g.item() == n * value ** 2
    (second,) = torch.autograd.grad(g, x)
    assert second.item() == 2 * n * n * value


def test_gradients(tmp_path):
    world(gradients, 3, tmp_path)


def functional(rank, size):
    """The same by the functions that return what they make, by group, mesh and dim of a mesh."""
    mesh = dist.init_device_mesh("cpu", (size,))
    x = torch.arange(2.0 * size).reshape(size, 2) + 10 * rank
    before, everyone = x.clone(), [torch.arange(2.0 * size).reshape(size, 2) + 10 * r for r in range(size)]
    total = sum(everyone)
    for group in (dist.group.WORLD, mesh, (mesh, 0)):
        assert torch.equal(funcol.all_reduce(x, "sum", group), total)
        for dim in (0, 1, -1):
            assert torch.equal(funcol.all_gather_single(x, dim, group), torch.cat(everyone, dim))
        assert torch.equal(funcol.reduce_scatter_single(x, "sum", 0, group), total[rank:rank + 1])
        assert torch.equal(funcol.reduce_scatter_single(x.t(), "max", 1, group), everyone[-1].t()[:, rank:rank + 1])
        assert torch.equal(funcol.all_to_all_single(x, None, None, group), torch.cat([y[rank:rank + 1] for y in everyone]))
        assert torch.equal(funcol.broadcast(x, size - 1, group), everyone[-1])
        assert torch.equal(funcol.permute_tensor(x, [(r + 1) % size for r in range(size)], group), everyone[rank - 1].flatten())
    assert torch.equal(x, before) and funcol.wait_tensor(x) is x
    ins, outs = [r + 1 for r in range(size)], [rank + 1] * size
    rows = torch.full((sum(ins), 2), 1.0 + rank, requires_grad=True)
    got = funcol.all_to_all_single_autograd(rows, outs, ins, mesh)
    assert got[:, 0].tolist() == [1.0 + r for r in range(size) for _ in range(rank + 1)]
    ((rank + 1) * got).sum().backward()
    assert rows.grad[:, 0].tolist() == [r + 1.0 for r in range(size) for _ in range(r + 1)]
    for wrong, kind in ((lambda: funcol.all_reduce(x, "middle", mesh), RuntimeError),
                        (lambda: funcol.all_reduce(x, "sum", [0]), ValueError),
                        (lambda: funcol.reduce_scatter_single(x[:1], "sum", 0, mesh), AssertionError)):
        with pytest.raises(kind):
            wrong()


def test_functional_collectives(tmp_path):
    world(functional, 3, tmp_path)
