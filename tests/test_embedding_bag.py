"""Bags of rows: every mode against a loop in Python, gradients of every kind, what is scaled, and what is refused."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import EmbeddingBag
from tritorch.nn import functional as F

INDEX, OFFSETS = np.array([4, 1, 1, 0, 3, 1, 4, 4, 2]), np.array([0, 3, 3, 7])
TABLE = np.random.default_rng(0).standard_normal((5, 37))


def bags_of(index, offsets):
    return np.split(index, offsets[1:]) if index.ndim == 1 else list(index)


def by_loop(table, index, offsets, mode, padding=None, weights=None):
    out = np.zeros((len(bags_of(index, offsets)), table.shape[1]))
    factors = bags_of(np.ones(index.shape) if weights is None else weights, offsets)
    for k, (bag, factor) in enumerate(zip(bags_of(index, offsets), factors)):
        rows, factor = table[bag[bag != padding]], factor[bag != padding]
        if len(rows):
            out[k] = {"sum": (rows * factor[:, None]).sum(0), "mean": rows.mean(0), "max": rows.max(0)}[mode]
    return out


def slopes(table, index, offsets, mode, g, padding=None):
    """The gradient of the table, by adding up."""
    out = np.zeros_like(table)
    for k, bag in enumerate(bags_of(index, offsets)):
        bag = bag[bag != padding]
        if mode == "max" and len(bag):
            np.add.at(out, (bag[table[bag].argmax(0)], np.arange(table.shape[1])), g[k])
        else:
            np.add.at(out, bag, g[k] / (max(len(bag), 1) if mode == "mean" else 1))
    return out


@pytest.mark.parametrize("where", ["cpu", "simulated"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", ["offsets", "last", "rows"])
def test_modes(cuda, where, mode, kind):
    device = torch.device("cpu") if where == "cpu" else cuda
    index = INDEX.reshape(3, 3) if kind == "rows" else INDEX
    offsets = None if kind == "rows" else torch.tensor(np.append(OFFSETS, 9) if kind == "last" else OFFSETS, device=device)
    for padding in (None, 1, -4):
        leaf = torch.tensor(TABLE.T.copy(), device=device).T.detach().requires_grad_()
        out = F.embedding_bag(torch.tensor(index, device=device).int(), leaf, offsets, mode=mode, padding_idx=padding,
                              include_last_offset=kind == "last")
        skipped = None if padding is None else padding % 5
        np.testing.assert_allclose(out.detach().cpu().numpy(), by_loop(TABLE, index, OFFSETS, mode, skipped), rtol=1e-12, atol=1e-13)
        g = np.random.default_rng(1).standard_normal(tuple(out.shape))
        out.backward(torch.tensor(g, device=device))
        np.testing.assert_allclose(leaf.grad.cpu().numpy(), slopes(TABLE, index, OFFSETS, mode, g, skipped), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("where", ["cpu", "simulated"])
def test_sample_weights_and_their_gradients(cuda, where):
    device = torch.device("cpu") if where == "cpu" else cuda
    table, weights = [torch.tensor(x, device=device).requires_grad_() for x in (TABLE, np.linspace(-1, 2, 9))]
    call = torch.tensor(INDEX, device=device), table, torch.tensor(OFFSETS, device=device)
    out = F.embedding_bag(*call, mode="sum", per_sample_weights=weights, padding_idx=3)
    want = by_loop(TABLE, INDEX, OFFSETS, "sum", 3, weights.detach().cpu().numpy())
    np.testing.assert_allclose(out.detach().cpu().numpy(), want, rtol=1e-12, atol=1e-13)
    g_table, g_weights = torch.autograd.grad(out.square().sum() / 2, (table, weights), create_graph=True)
    owners = np.repeat([0, 2, 3], [3, 4, 2])
    np.testing.assert_allclose(g_weights.detach().cpu().numpy(), np.where(INDEX == 3, 0, (TABLE[INDEX] * want[owners]).sum(1)), rtol=1e-12)
    assert not g_table.detach()[3].any()
    second, = torch.autograd.grad(g_weights.sum(), table)                # of second order
    step = 1e-6
    moved = [by_loop(TABLE + s * np.eye(5, 37), INDEX, OFFSETS, "sum", 3, weights.detach().cpu().numpy()) for s in (step, -step)]
    tables = [TABLE + s * np.eye(5, 37) for s in (step, -step)]
    first = [np.where(INDEX == 3, 0, (t[INDEX] * m[owners]).sum(1)).sum() for t, m in zip(tables, moved)]
    assert second.cpu().numpy()[range(5), range(5)].sum() == pytest.approx((first[0] - first[1]) / (2 * step), rel=1e-7)


def test_embedding_scaled_by_frequency(cuda):
    for device in (torch.device("cpu"), cuda):
        layer = torch.nn.Embedding.from_pretrained(torch.tensor(TABLE), freeze=False, scale_grad_by_freq=True, padding_idx=3).to(device)
        layer(torch.tensor(INDEX.reshape(3, 3), device=device)).sum().backward()
        np.testing.assert_allclose(layer.weight.grad.cpu().numpy(), (np.arange(5) != 3)[:, None].repeat(37, 1), rtol=1e-12)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_scaled_by_frequency(cuda, mode):
    times = np.bincount(INDEX, minlength=5)
    for device in (torch.device("cpu"), cuda):
        layer = EmbeddingBag.from_pretrained(torch.tensor(TABLE), freeze=False, mode=mode, scale_grad_by_freq=True).to(device)
        layer(torch.tensor(INDEX, device=device), torch.tensor(OFFSETS, device=device)).sum().backward()
        want = slopes(TABLE, INDEX, OFFSETS, mode, np.ones((4, 37))) / times[:, None]
        np.testing.assert_allclose(layer.weight.grad.cpu().numpy(), want, rtol=1e-12)


def test_largest_norm():
    layer = EmbeddingBag.from_pretrained(torch.tensor(TABLE), max_norm=1.0, mode="sum")
    layer(torch.tensor([[0, 3]]))
    norms = layer.weight.norm(dim=1)
    assert norms[[0, 3]].tolist() == pytest.approx([1, 1], rel=1e-6) and (norms[[1, 2, 4]] > 1).all()


def test_first_of_equal_and_nan():
    """A later element counts only if it is greater, as in PyTorch."""
    table = torch.tensor([[1.0], [float("nan")], [1.0], [2.0]], requires_grad=True)
    index = torch.tensor([[0, 2, 2], [0, 1, 3], [1, 3, 3]])
    out, owners, sizes, chosen = torch.embedding_bag(table, index.reshape(-1), torch.tensor([0, 3, 6]), mode=2)
    assert out.detach().reshape(-1).tolist()[:2] == [1, 2] and out.detach()[2].isnan().all()
    assert chosen.reshape(-1).tolist() == [0, 3, 1] and sizes.tolist() == [3, 3, 3] and owners.tolist() == [0] * 3 + [1] * 3 + [2] * 3


def test_long_bags_in_half_types(cuda):
    """More rows of a bag, and bags of a row, than are taken at once; the same bits each time."""
    rng = np.random.default_rng(2)
    index, offsets = rng.integers(0, 3, 300), np.sort(np.append(0, rng.integers(0, 300, 40)))
    for kind in (torch.float32, torch.bfloat16):
        leaf = torch.tensor(rng.standard_normal((3, 5)), dtype=kind, device=cuda).requires_grad_()
        found = []
        for _ in range(2):
            leaf.grad = None
            out = F.embedding_bag(torch.tensor(index).cuda(), leaf, torch.tensor(offsets).cuda(), mode="sum")
            out.backward(torch.ones_like(out))
            found.append((out.detach().cpu().float().numpy(), leaf.grad.cpu().float().numpy()))
        want = by_loop(leaf.detach().cpu().double().numpy(), index, offsets, "sum")
        np.testing.assert_allclose(found[0][0], want, rtol=1e-2 if kind is torch.bfloat16 else 1e-5, atol=1e-5)
        np.testing.assert_allclose(found[0][1], np.bincount(index)[:, None].repeat(5, 1), rtol=4e-3 if kind is torch.bfloat16 else 1e-6)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(*found))


def test_errors(cuda):
    table, index, offsets = torch.tensor(TABLE), torch.tensor(INDEX), torch.tensor(OFFSETS)
    for args, options, kind, words in (
        ((index, table), {}, ValueError, "a vector of offsets"), ((index.float(), table, offsets), {}, RuntimeError, "int64 or int32"),
        ((index.reshape(3, 3), table, offsets), {}, ValueError, "no offsets"), ((index.reshape(3, 3, 1), table), {}, ValueError, "1 or 2"),
        ((index, table, offsets + 1), {}, RuntimeError, "offsets from 0"), ((index, table, offsets * 2), {}, RuntimeError, "up to 9"),
        ((index, table, offsets), dict(mode="min"), ValueError, "a mode among"),
        ((index, table, offsets), dict(mode="max", scale_grad_by_freq=True), ValueError, "scale_grad_by_freq"),
        ((index, table, offsets), dict(padding_idx=5), RuntimeError, "a padding_idx in [-5, 4]"),
        ((index, table, offsets), dict(per_sample_weights=index.double()), NotImplementedError, "for mode 'sum' alone"),
        ((index, table, offsets), dict(per_sample_weights=index.float(), mode="sum"), RuntimeError, "of tritorch.float64"),
        ((index, table.long(), offsets), {}, RuntimeError, "a weight of a floating dtype"),
        ((index + 1, table, offsets), {}, RuntimeError, "expected indices in [0, 4], got 5"),
    ):
        with pytest.raises(kind) as caught:
            F.embedding_bag(*args, **options)
        assert words in str(caught.value)
    for given in ((index + 1, offsets, "inside the table, got 5"), (index, torch.tensor([0, 3, 2]), "do not fall")):
        with pytest.raises(RuntimeError, match=given[2]):
            F.embedding_bag(given[0].cuda(), table.cuda(), given[1].cuda()).sum().item()
    with pytest.raises(ValueError, match="sparse for modes sum and mean"):
        EmbeddingBag(3, 2, sparse=True, mode="max")(torch.tensor([[0]]))
    layer = EmbeddingBag(3, 2, mode="sum", padding_idx=-1, max_norm=1.0)
    assert repr(layer) == "EmbeddingBag(3, 2, max_norm=1.0, mode='sum', padding_idx=2)"
    assert F.embedding_bag(torch.zeros(0, 3, dtype=torch.int64), table).shape == (0, 37)
