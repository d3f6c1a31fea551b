"""Factorizations whose matrices are larger than the blocks of the kernels: as on a GPU, but with small blocks."""
import numpy as np
import pytest
from arrays import draw

import tritorch as torch
from tritorch.ops import cholesky, householder, jacobi, lu, triangular

KINDS = pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: k.__name__)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (cholesky, householder, triangular):
        monkeypatch.setattr(module, "BLOCK", 4)


def near(got, want, kind):
    got, want = got.detach().cpu().numpy(), np.asarray(want)
    assert got.dtype == want.dtype == kind
    np.testing.assert_allclose(got, want, rtol=0, atol=(2e-5 if kind == np.float32 else 1e-12) * max(1, np.abs(want).max(initial=0)))


@KINDS
@pytest.mark.parametrize("upper", [False, True])
def test_triangular(cuda, kind, upper):
    t, b = draw(2, 13, 13, dtype=kind), draw(3, 1, 13, 5, dtype=kind)
    t[:, range(13), range(13)] = 3
    kept = np.triu(t) if upper else np.tril(t)
    got = torch.linalg.solve_triangular(torch.tensor(t, device=cuda), torch.tensor(b, device=cuda), upper=upper)
    near(got, np.linalg.solve(kept, b), kind)


@KINDS
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(cuda, kind, upper):
    a = draw(3, 14, 14, dtype=kind)
    a = a @ a.swapaxes(1, 2) + np.eye(14, dtype=kind)
    want = np.linalg.cholesky(a)
    kept = np.triu(a) + np.tril(7 * a, -1) if upper else np.tril(a) + np.triu(7 * a, 1)          # the other triangle is not read
    near(torch.linalg.cholesky(torch.tensor(kept, device=cuda), upper=upper), want.swapaxes(1, 2) if upper else want, kind)
    a[1, 9, 9] = -1
    assert torch.linalg.cholesky_ex(torch.tensor(a, device=cuda)).info.tolist() == [0, 10, 0]
    with pytest.raises(torch.linalg.LinAlgError, match=r"leading minor of order 10 is not \(batch element 1\)"):
        torch.linalg.cholesky(torch.tensor(a, device=cuda))


@KINDS
@pytest.mark.parametrize("panel", [0, 32, 128])
@pytest.mark.parametrize("shape", [(2, 13, 13), (1, 17, 6), (2, 5, 14)])
def test_lu(cuda, kind, panel, shape, monkeypatch):
    """Panels of one column longer than a block, of two and of more columns."""
    monkeypatch.setattr(lu, "PANEL", {4: panel, 8: panel})
    monkeypatch.setattr(lu, "PIECE", 4)
    a = draw(*shape, dtype=kind)
    a[0, :, 2] = 0
    got, want = [torch.linalg.lu_factor_ex(torch.tensor(a, device=device)) for device in (cuda, "cpu")]
    near(got.LU, want.LU.numpy(), kind)
    assert got.pivots.tolist() == want.pivots.tolist() and got.info.tolist() == want.info.tolist() == [3, 0][:shape[0]]
    P, L, U = torch.linalg.lu(torch.tensor(a, device=cuda))
    near(P @ L @ U, a, kind)
    if shape[1] == shape[2]:
        x = draw(*shape, dtype=kind, seed=1) + 4 * np.eye(13, dtype=kind)
        on = torch.tensor(x, device=cuda)
        near(torch.linalg.solve(on, torch.tensor(a, device=cuda)), np.linalg.solve(x, a), kind)
        near(torch.linalg.inv(on) @ on, np.broadcast_to(np.eye(13, dtype=kind), shape), kind)
        sign, size = np.linalg.slogdet(x)
        near(torch.linalg.slogdet(on).sign, sign, kind)
        near(torch.linalg.slogdet(on).logabsdet, size, kind)
        near(torch.linalg.det(on / 4), np.linalg.det(x / 4), kind)


def test_elimination_without_exchanges(cuda):
    a = draw(9, 9) + 5 * np.eye(9, dtype=np.float32)
    P, L, U = torch.linalg.lu(torch.tensor(a, device=cuda), pivot=False)
    assert P.shape == (0,)
    near(L @ U, a, np.float32)
    with pytest.raises(RuntimeError, match="expected pivot=True on the CPU"):
        torch.linalg.lu(torch.tensor(a), pivot=False)


def test_numbers_that_are_none(cuda):
    a = np.full((3, 6, 6), np.nan, np.float32)
    a[1] = np.eye(6)
    on = torch.tensor(a, device=cuda)
    assert torch.linalg.cholesky_ex(on).info.tolist() == [1, 0, 1]
    assert torch.linalg.det(on).isnan().tolist() == [True, False, True]
    assert torch.linalg.inv(on).isnan().any((1, 2)).tolist() == [True, False, True]


@KINDS
@pytest.mark.parametrize("panel", [0, 32, 128])
@pytest.mark.parametrize("shape", [(2, 13, 13), (1, 17, 6), (2, 5, 14)])
def test_qr(cuda, kind, panel, shape, monkeypatch):
    """Panels of one column longer than a block, of two and of more columns; as many reflections as columns, or more than act at once."""
    monkeypatch.setattr(householder, "PANEL", {4: panel, 8: panel})
    monkeypatch.setattr(householder, "PIECE", 4)
    a = draw(*shape, dtype=kind)
    a[0, :, 2] = 0
    on = torch.tensor(a, device=cuda)
    for mode in ("reduced", "complete"):
        Q, R = torch.linalg.qr(on, mode)
        want = [np.linalg.qr(x, mode) for x in a]
        near(Q, np.stack([q for q, _ in want]), kind)
        near(R, np.stack([r for _, r in want]), kind)
    packed = torch.geqrf(on)
    near(torch.linalg.qr(on, "r").R, R[:, :min(shape[1:])].cpu().numpy(), kind)
    near(torch.ormqr(*packed, on, transpose=True), R.cpu().numpy(), kind) if shape[1] >= shape[2] else None
    if shape[1] >= shape[2]:
        near(torch.linalg.householder_product(*packed), Q[..., :shape[2]].cpu().numpy(), kind)


def test_columns_of_extreme_sizes(cuda):
    """Their squares overflow, or vanish."""
    for size in (1e30, 1e-30):
        a = draw(6, 4) * np.float32(size)
        Q, R = torch.linalg.qr(torch.tensor(a, device=cuda))
        near(Q.mT @ Q, np.eye(4, dtype=np.float32), np.float32)
        near(Q @ (R / size), a / np.float32(size), np.float32)


def spectrum(kind):
    """Symmetric matrices of 36 rows: a random one, one with equal eigenvalues."""
    a = draw(2, 36, 36, dtype=np.float64)
    q = np.linalg.qr(a[1])[0]
    a[0], a[1] = a[0] + a[0].T, q @ np.diag(np.arange(36) // 13) @ q.T
    return a.astype(kind)


@KINDS
def test_eigh(cuda, kind, monkeypatch):
    """Several blocks, the last one not full; and in one kernel."""
    a = spectrum(kind)
    want = np.linalg.eigvalsh(a.astype(np.float64)).astype(kind)
    for pair, count in ((16, 1), (32, 2)):
        monkeypatch.setattr(jacobi, "PAIR", pair)
        kept = torch.tensor(np.tril(a) + np.triu(7 * a, 1), device=cuda)                         # the other triangle is not read
        L, V = torch.linalg.eigh(kept[:count])
        near(L, want[:count], kind)
        near(V.mT @ V, np.broadcast_to(np.eye(36, dtype=kind), a[:count].shape), kind)
        near(V * L.unsqueeze(-2) @ V.mT, a[:count], kind)
    near(torch.linalg.eigvalsh(kept * 1e30) / 1e30, want, kind)                                  # squares overflow
    a[1, 5, 3] = np.nan
    with pytest.raises(torch.linalg.LinAlgError, match=r"expected finite numbers, got others \(batch element 1\)"):
        torch.linalg.eigh(torch.tensor(a, device=cuda))


@KINDS
def test_svd(cuda, kind, monkeypatch):
    """Several blocks, the last one not full; and in one kernel: tall, wide, of less rank than columns."""
    tall = draw(2, 41, 36, dtype=kind)
    tall[1] = tall[1, :, :7] @ draw(7, 36, dtype=kind)
    monkeypatch.setattr(jacobi, "PAIR", 16)
    for a in (tall, tall[1:].swapaxes(1, 2), tall[:, :9, :6] * kind(1e-30)):
        U, S, Vh = torch.linalg.svd(torch.tensor(a, device=cuda), full_matrices=False)
        near(S, np.linalg.svd(a, compute_uv=False), kind)
        for q in (U, Vh.mT):
            near(q.mT @ q, np.broadcast_to(np.eye(q.shape[-1], dtype=kind), (len(a), *[q.shape[-1]] * 2)), kind)
        near(U * S.unsqueeze(-2) @ Vh, a, kind)


def test_svd_of_square_factors(cuda):
    for shape in ((5, 2), (2, 5), (3, 3), (2, 0)):
        U, S, Vh = torch.linalg.svd(torch.tensor(draw(*shape), device=cuda))
        near(U @ U.mT, np.eye(shape[0], dtype=np.float32), np.float32)
        near(Vh @ Vh.mT, np.eye(shape[1], dtype=np.float32), np.float32)
        near(U[:, :S.shape[0]] * S @ Vh[:S.shape[0]], draw(*shape), np.float32)
    with pytest.raises(torch.linalg.LinAlgError, match="expected finite numbers"):
        torch.linalg.svdvals(torch.full((3, 3), np.inf, device=cuda))
