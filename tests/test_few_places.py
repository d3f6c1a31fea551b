"""Sums over equal indices where few of many rows are named: the others are neither read nor written."""
import numpy as np
import pytest

import tritorch as torch
from bench import launches

INDICES = {"any": lambda rng, n, rows: rng.integers(0, rows, n), "one": lambda rng, n, rows: np.full(n, rows - 1),
           "hot": lambda rng, n, rows: np.where(rng.random(n) < 0.8, rows // 2, rng.integers(0, rows, n))}


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("rows, n, width", [(5000, 900, 3), (400, 99, 1), (9, 2, 70)])
def test_index_add_in_place(kind, rows, n, width, cuda):
    rng = np.random.default_rng(n)
    index, x, source = INDICES[kind](rng, n, rows), rng.standard_normal((rows, width)), rng.standard_normal((n, width))
    want = x.copy()
    np.add.at(want, index, 0.5 * source)
    target = torch.tensor(x, dtype=torch.float32, device=cuda)
    target.index_add_(0, torch.tensor(index, device=cuda), torch.tensor(source, dtype=torch.float32, device=cuda), alpha=0.5)
    np.testing.assert_allclose(target.cpu().numpy(), want, rtol=1e-5, atol=1e-4)
    least = x.copy()
    np.minimum.at(least, index, source)
    target = torch.tensor(x, device=cuda)
    spread = torch.tensor(np.repeat(index[:, None], width, 1), device=cuda)
    np.testing.assert_array_equal(target.scatter_reduce_(0, spread, torch.tensor(source, device=cuda), "amin").cpu().numpy(), least)


def test_gradients_of_picked_elements(cuda):
    """gather, x[i] and x[i, j], whose indices repeat and count from the end."""
    rng = np.random.default_rng(0)
    x, rows, columns = rng.standard_normal((40, 60)), rng.integers(-40, 40, 90), rng.integers(-60, 60, 90)
    for pick, shape in ((lambda t, i, j: t[i, j], (90,)), (lambda t, i, j: t[i[:9]], (9, 60)), (lambda t, i, j: t[:, j[:9]], (40, 9)),
                        (lambda t, i, j: t.gather(1, (j % 60)[:40, None]), (40, 1)),
                        (lambda t, i, j: t.gather(1, (j % 60)[:80].view(40, 2)), (40, 2)),
                        (lambda t, i, j: t[i[:30, None], j[None, :3]], (30, 3))):
        g, found = rng.standard_normal(shape), []
        for device in ("cpu", cuda):
            leaf = torch.tensor(x, device=device, requires_grad=True)
            made = pick(leaf, torch.tensor(rows, device=device), torch.tensor(columns, device=device))
            made.backward(torch.tensor(g, device=device))
            found += [made.detach().cpu().numpy(), leaf.grad.cpu().numpy()]
        np.testing.assert_array_equal(found[0], found[2])
        np.testing.assert_allclose(found[1], found[3], rtol=1e-12, atol=1e-12)


def test_few_launches():
    with launches.accounting() as account:
        x, i = torch.ones(64, 5000, device="cuda", requires_grad=True), torch.zeros(64, dtype=torch.int64, device="cuda")
        account.launches.clear()
        x[i, i].detach()
        assert [launch.kernel for launch in account.launches] == ["indexing.joint_places_kernel", "indexing.take_rows_kernel"]
        picked = x.gather(1, i[:, None])
        account.launches.clear()
        torch.autograd.grad(picked, x, torch.ones(64, 1, device="cuda"))
        assert account.launches[-1].kernel == "indexing.put_kernel" and len(account.launches) <= 3
