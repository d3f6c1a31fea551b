"""tritorch.linalg against numpy: values, shapes, errors, gradients that the cards do not cover."""
import numpy as np
import pytest
from arrays import draw

import tritorch as torch

DOUBLE = np.float64


def on(x, device="cpu", grad=False):
    return torch.tensor(x, device=device, requires_grad=grad)


def near(got, want, tolerance=1e-11):
    np.testing.assert_allclose(got.detach().cpu().numpy(), want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max(initial=0)))


def refused(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


# ------------------------------------------------------------------ Cholesky and triangular systems
def test_what_is_solved_with_a_cholesky_factor():
    a, b = draw(2, 4, 4, dtype=DOUBLE), draw(4, 3, dtype=DOUBLE)
    a = a @ a.swapaxes(1, 2) + np.eye(4)
    for upper in (False, True):
        factor = torch.cholesky(on(a), upper)
        near(factor.mT @ factor if upper else factor @ factor.mT, a)
        near(torch.cholesky_solve(on(b), factor, upper), np.linalg.solve(a, b))
        near(torch.cholesky_inverse(factor, upper), np.linalg.inv(a))
    out = torch.empty(0, dtype=torch.float64)
    assert torch.linalg.cholesky(on(a), out=out) is out and out.shape == (2, 4, 4)
    refused(RuntimeError, "float64", lambda: torch.linalg.cholesky(on(a), out=torch.empty(0)))


def test_triangular_systems_from_the_right():
    t, b = draw(3, 3, dtype=DOUBLE) + 3 * np.eye(3), draw(2, 5, 3, dtype=DOUBLE)
    for upper in (False, True):
        kept = np.triu(t) if upper else np.tril(t)
        got = torch.linalg.solve_triangular(on(t), on(b), upper=upper, left=False)
        near(got @ on(kept), b)
        ones = kept - np.diag(np.diag(kept)) + np.eye(3)
        near(torch.linalg.solve_triangular(on(t), on(b), upper=upper, left=False, unitriangular=True) @ on(ones), b)
        near(torch.triangular_solve(on(b).mT, on(t), upper, True).solution, np.linalg.solve(kept.T, b.swapaxes(1, 2)))


# ------------------------------------------------------------------ LU, solutions, determinants
def test_vectors_and_sides_of_solve():
    a, b = draw(2, 3, 3, dtype=DOUBLE), draw(2, 3, 4, dtype=DOUBLE)
    near(torch.linalg.solve(on(a), on(b)), np.linalg.solve(a, b))
    near(torch.linalg.solve(on(a), on(b[..., 0])), np.linalg.solve(a, b[..., :1])[..., 0])
    near(torch.linalg.solve(on(a), on(b[0, :, 0])), np.linalg.solve(a, b[0, :, :1])[..., 0])
    near(torch.linalg.solve(on(a[0]), on(b)), np.linalg.solve(a[0], b))
    near(torch.linalg.solve(on(a), on(b.swapaxes(1, 2)), left=False) @ on(a), b.swapaxes(1, 2))
    LU, pivots = torch.linalg.lu_factor(on(a))
    for adjoint in (False, True):
        m = a.swapaxes(1, 2) if adjoint else a
        near(torch.linalg.lu_solve(LU, pivots, on(b), adjoint=adjoint), np.linalg.solve(m, b))
        near(torch.linalg.lu_solve(LU, pivots, on(b.swapaxes(1, 2)), left=False, adjoint=adjoint) @ on(m), b.swapaxes(1, 2))
    near(on(b).lu_solve(LU, pivots), np.linalg.solve(a, b))


def test_singular_matrices():
    x = np.ones((2, 3, 3))
    x[0] = np.eye(3)
    refused(torch.linalg.LinAlgError, r"linalg.inv: .*zero at place 2 of its diagonal \(batch element 1\)", lambda: torch.linalg.inv(on(x)))
    refused(torch.linalg.LinAlgError, "linalg.solve: ", lambda: torch.linalg.solve(on(x), on(x)))
    refused(torch.linalg.LinAlgError, "linalg.lu_factor: ", lambda: torch.linalg.lu_factor(on(x)))
    refused(torch.linalg.LinAlgError, "linalg.inv_ex: ", lambda: torch.linalg.inv_ex(on(x), check_errors=True))
    assert torch.linalg.inv_ex(on(x)).info.tolist() == torch.linalg.solve_ex(on(x), on(x)).info.tolist() == [0, 2]
    assert torch.linalg.det(on(x)).tolist() == [1, 0] and torch.linalg.slogdet(on(x)).sign.tolist() == [1, 0]
    assert torch.logdet(on(x)).tolist() == [0, -np.inf] and torch.logdet(on(-x)).isnan().tolist() == [True, False]


def test_gradient_of_a_determinant_that_is_zero():
    x = on(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]]), grad=True)
    torch.linalg.det(x).backward()
    near(x.grad, np.array([[3.0, -6, 3], [3, -6, 3], [-3, 6, -3]]), 1e-9)           # the cofactors


def test_packed_factors():
    a = draw(2, 3, 5, dtype=DOUBLE)
    LU, pivots, info = torch.linalg.lu_factor_ex(on(a))
    P, L, U = torch.lu_unpack(LU, pivots)
    near(P @ L @ U, a)
    assert info.tolist() == [0, 0] and P.shape == (2, 3, 3) and L.shape == (2, 3, 3) and U.shape == (2, 3, 5)
    assert [x.numel() for x in torch.lu_unpack(LU, pivots, unpack_data=False)] == [18, 0, 0]
    assert [x.numel() for x in torch.lu_unpack(LU, pivots, unpack_pivots=False)] == [0, 18, 30]


# ------------------------------------------------------------------ what all have in common
def test_dtypes_and_shapes_that_are_refused():
    whole, half, vector = torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.float16), torch.ones(3)
    for name in ONE:
        f = getattr(torch.linalg, name)
        refused(RuntimeError, "expected matrices of float32 or float64, got tritorch.int64", lambda: f(whole))
        refused(NotImplementedError, "expected matrices of float32 or float64, got tritorch.float16", lambda: f(half))
        refused(RuntimeError, "expected a matrix or a batch of matrices", lambda: f(vector))
        refused(TypeError, "expected a tensor as ", lambda: f([1.0]))


ONE = """eigh eigvalsh svd svdvals qr cholesky cholesky_ex lu lu_factor lu_factor_ex inv inv_ex det slogdet""".split()


def test_how_results_show_themselves():
    shown = repr(torch.linalg.slogdet(torch.eye(2)))
    assert shown == "torch.return_types.linalg_slogdet(\nsign=tensor(1.),\nlogabsdet=tensor(0.))"
