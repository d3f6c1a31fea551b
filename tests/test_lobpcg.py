"""lobpcg against numpy's eigh: ends of spectra, B, preconditioners, batches, sparse matrices, gradients."""
import numpy as np
import pytest
from arrays import draw

import tritorch as torch


def symmetric(*shape, seed=0):
    a = draw(*shape, dtype=np.float64, seed=seed)
    return a + a.swapaxes(-1, -2)


def near(got, want, tolerance=1e-6):
    np.testing.assert_allclose(got.detach().cpu().numpy(), want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_both_ends():
    a = symmetric(2, 12, 12)
    A, want = torch.tensor(a), np.linalg.eigvalsh(a)
    for largest in (True, False):
        E, V = torch.lobpcg(A, k=3, largest=largest, tol=1e-9)
        near(E, want[:, :-4:-1] if largest else want[:, :3])
        near(A @ V, (V * E.unsqueeze(-2)).numpy())
        near(V.mT @ V, np.broadcast_to(np.eye(3), (2, 3, 3)), 1e-9)
    E, V = torch.lobpcg(A[0], X=torch.eye(12, dtype=A.dtype)[:, :2], niter=-1)
    near(E, want[0, :-3:-1])


def test_on_a_device(cuda):
    a = symmetric(6, 6)
    A = torch.tensor(a, device=cuda, requires_grad=True)
    E, V = torch.lobpcg(A, k=2, tol=1e-9)                                # six vectors at the second step: all there are
    near(E, np.linalg.eigvalsh(a)[:-3:-1])
    E[0].backward()
    near(A.grad, (V[:, :1] @ V[:, :1].mT).detach().cpu().numpy(), 1e-5)


def test_pencils_preconditioners_and_more_vectors_than_asked_for():
    a, b = symmetric(20, 20), symmetric(20, 20, seed=3)
    a, b = a @ a + np.eye(20), b @ b + 20 * np.eye(20)
    A, B = torch.tensor(a), torch.tensor(b)
    want = np.linalg.eigvals(np.linalg.solve(b, a)).real
    E, V = torch.lobpcg(A, k=2, B=B, largest=False, n=4, iK=torch.linalg.inv(A), tol=1e-9)
    near(E, np.sort(want)[:2])
    near(V.mT @ B @ V, np.eye(2), 1e-9)
    near(A @ V, (B @ V * E).numpy())


def test_sparse_and_whole_numbers():
    values = torch.arange(1.0, 41.0)
    sparse = torch.sparse_coo_tensor(torch.arange(40).expand(2, 40), values, (40, 40))
    E, V = torch.lobpcg(sparse, k=2)
    near(E, np.array([40.0, 39.0]), 1e-5)
    assert torch.lobpcg(torch.arange(9).diag(), largest=False)[0].abs().item() < 1e-5


def test_trackers_see_and_end_it():
    seen = []

    def tracker(worker):
        seen.append((worker.ivars["istep"], worker.E.shape, worker.tvars["rerr"].shape))
        worker.bvars["force_stop"] = len(seen) == 3

    A = torch.tensor(symmetric(30, 30))
    torch.lobpcg(A, k=2, tol=0.0, tracker=tracker)
    assert [s[0] for s in seen] == [0, 1, 2] and seen[0][1:] == ((2,), (2,))
    torch.lobpcg(A, k=2, tol=0.0, niter=5, tracker=lambda worker: seen.append((worker.ivars["istep"],)))
    assert [s[0] for s in seen[3:]] == [0, 1, 2, 3, 4, 5]


def test_gradients():
    start = torch.tensor(draw(6, 2, dtype=np.float64, seed=5))

    def program(A):
        E, V = torch.lobpcg(A, k=2, X=start, tol=1e-13, niter=2)
        return E, (V ** 2), V @ V.mT                                     # the signs of vectors are not told

    assert torch.autograd.gradcheck(program, torch.tensor(symmetric(6, 6), requires_grad=True), eps=1e-6, atol=1e-5)


def test_what_is_refused():
    A = torch.eye(9)
    for call, error, words in ((lambda: torch.lobpcg(A, k=4), ValueError, "at least 12 rows"),
                               (lambda: torch.lobpcg(A[:8]), RuntimeError, "square"),
                               (lambda: torch.lobpcg(A, method="x"), ValueError, "'ortho' or 'basic'"),
                               (lambda: torch.lobpcg(A, X=torch.ones(8, 1)), RuntimeError, "X of shape"),
                               (lambda: torch.lobpcg(A, k=0), ValueError, "eigenpairs"),
                               (lambda: torch.lobpcg(A, B=torch.eye(3)), RuntimeError, "B of the shape")):
        with pytest.raises(error, match=words):
            call()
