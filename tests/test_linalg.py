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
    for found in (torch.lu(on(a)), on(a).lu(get_infos=True)[:2], torch.lu(on(a), True, False, (on(a) * 0, pivots * 0))):
        assert torch.equal(found[0], LU) and torch.equal(found[1], pivots)


def test_singular_matrices():
    x = np.ones((2, 3, 3))
    x[0] = np.eye(3)
    refused(torch.linalg.LinAlgError, r"linalg.inv: .*zero at place 2 of its diagonal \(batch element 1\)", lambda: torch.linalg.inv(on(x)))
    refused(torch.linalg.LinAlgError, "linalg.solve: ", lambda: torch.linalg.solve(on(x), on(x)))
    refused(torch.linalg.LinAlgError, "lu: ", lambda: torch.lu(on(x)))
    assert torch.lu(on(x), get_infos=True)[2].tolist() == [0, 2]
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
    assert shown == "tritorch.return_types.linalg_slogdet(\nsign=tensor(1.),\nlogabsdet=tensor(0.))"


# ------------------------------------------------------------------ what is made of singular values
def test_norms_and_conditions():
    for shape in ((4, 4), (2, 3, 5)):
        x = draw(*shape, dtype=DOUBLE)
        for p in (2, -2, "nuc", "fro", 1, -1, np.inf, -np.inf):
            near(torch.linalg.matrix_norm(on(x), p), np.linalg.norm(x, p, (-2, -1)))
            near(torch.linalg.matrix_norm(on(x), p, (-1, 0), True), np.linalg.norm(x, p, (-1, 0), True))
            if len(shape) == 2:
                near(torch.linalg.cond(on(x), p), np.linalg.cond(x, p), 1e-9)
        near(torch.nuclear_norm(on(x)), np.linalg.norm(x, "nuc", (-2, -1)))
    near(torch.norm(on(x[0]), "nuc"), np.linalg.norm(x[0], "nuc"))
    assert torch.linalg.cond(torch.ones(2, 2), 1).item() == np.inf and torch.linalg.matrix_norm(torch.ones(2, 0), 1).item() == 0
    assert torch.linalg.cond(torch.zeros(2, 0, 0)).tolist() == [0, 0]
    refused(RuntimeError, "linalg.cond: expected p", lambda: torch.linalg.cond(on(x), 3))
    refused(RuntimeError, "expected square matrices", lambda: torch.linalg.cond(on(x), 1))
    refused(IndexError, "not empty", lambda: torch.linalg.matrix_norm(torch.ones(2, 0), -2))


def test_ranks_and_pseudo_inverses():
    x = draw(2, 5, 3, dtype=DOUBLE)
    x[1, :, 2] = x[1, :, 0]
    assert torch.linalg.matrix_rank(on(x)).tolist() == [3, 2] and torch.linalg.matrix_rank(on(x), 1e9).tolist() == [0, 0]
    assert torch.linalg.matrix_rank(on(x), atol=on(1e9), rtol=on(np.array([0.0, 1.0]))).tolist() == [0, 0]
    near(torch.linalg.pinv(on(x)), np.linalg.pinv(x))
    near(torch.pinverse(on(x[0])), np.linalg.pinv(x[0]))
    near(torch.linalg.pinv(on(x), 0.9), np.linalg.pinv(x, 0.9))
    s = x.swapaxes(1, 2) @ x
    near(torch.linalg.pinv(on(np.tril(s)), hermitian=True), np.linalg.pinv(s), 1e-9)
    assert torch.linalg.matrix_rank(on(np.tril(s)), hermitian=True).tolist() == [3, 2]
    for f in (torch.linalg.pinv, torch.linalg.matrix_rank, torch.linalg.svdvals, torch.linalg.cond):
        refused(torch.linalg.LinAlgError, "expected finite numbers", lambda: f(on(np.full((2, 2), np.inf))))


def test_gradients_where_values_are_equal():
    for f, want in ((torch.linalg.eigvalsh, 1.0), (torch.linalg.svdvals, 1.0), (torch.linalg.pinv, -1.0), (torch.linalg.inv, -1.0)):
        x = on(np.eye(3), grad=True)
        made = f(x)
        (made.sum() if made.ndim == 1 else made.diagonal().sum()).backward()
        near(x.grad, want * np.eye(3))
    for f in (lambda x: torch.linalg.norm(x, 2), lambda x: torch.linalg.matrix_norm(x, -2)):          # which of them it is, nobody knows
        x = on(np.eye(3), grad=True)
        f(x).backward()
        near(x.grad, np.eye(3) / 3)


def test_a_power_of_zero_moves_by_nothing():
    x = on(np.eye(2) * 3, grad=True)
    torch.linalg.matrix_power(x, 0).sum().backward()
    near(x.grad, np.zeros((2, 2)))


def test_least_squares():
    b = draw(2, 5, 2, dtype=DOUBLE)
    for shape in ((2, 5, 3), (2, 5, 5), (2, 5, 7)):
        a = draw(*shape, dtype=DOUBLE)
        want = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(a, b)])
        for driver in ("gels", "gelsy", "gelsd", "gelss"):
            found = torch.linalg.lstsq(on(a), on(b), driver=driver)
            near(found.solution, want, 1e-9)
            near(torch.linalg.lstsq(on(a), on(b[..., 0]), driver=driver).solution, want[..., 0], 1e-9)
            assert found.rank.tolist() == ([] if driver == "gels" else [min(shape[1:])] * 2)
            if shape[2] == 3 and driver != "gelsy":
                near(found.residuals, ((a @ want - b) ** 2).sum(-2), 1e-9)
    refused(RuntimeError, "expected driver 'gels' or", lambda: torch.linalg.lstsq(on(a), on(b), driver="x"))
    refused(RuntimeError, "as many rows in b", lambda: torch.linalg.lstsq(on(a), on(b[:, :3])))
    refused(torch.linalg.LinAlgError, "full rank", lambda: torch.linalg.lstsq(on(0 * a), on(b), driver="gels"))


def test_least_squares_on_a_device(cuda):
    for shape in ((5, 3), (3, 5)):
        a, b = draw(*shape, dtype=DOUBLE), draw(shape[0], 2, dtype=DOUBLE)
        near(torch.linalg.lstsq(on(a, cuda), on(b, cuda)).solution, np.linalg.lstsq(a, b, rcond=None)[0], 1e-9)
    refused(RuntimeError, "expected driver 'gels', got 'gelsd'", lambda: torch.linalg.lstsq(on(a, cuda), on(b, cuda), driver="gelsd"))


# ------------------------------------------------------------------ functions of matrices, equations of tensors
def test_exponentials():
    from scipy.linalg import expm

    x = draw(3, 4, 4, dtype=DOUBLE) * np.array([0.01, 1.0, 20.0])[:, None, None]
    near(torch.linalg.matrix_exp(on(x)), np.stack([expm(v) for v in x]), 1e-11)
    want = expm(x[1].astype(np.float32).astype(DOUBLE))
    near(torch.matrix_exp(on(x[1].astype(np.float32))), want, 2e-5)
    for kind in (torch.bfloat16, torch.float16):
        half = on(x[1]).to(kind)
        assert torch.equal(torch.matrix_exp(half), torch.matrix_exp(half.float()).to(kind))
    assert torch.linalg.matrix_exp(on(np.full((2, 2), np.nan))).isnan().all() and torch.matrix_exp(torch.ones(0, 2, 2)).shape == (0, 2, 2)
    a = on(x[1], grad=True)
    assert torch.autograd.gradcheck(torch.linalg.matrix_exp, (a,))


def test_equations_of_tensors():
    a = draw(2, 3, 6, dtype=DOUBLE)
    near(torch.linalg.tensorinv(on(a)), np.linalg.tensorinv(a))
    near(torch.linalg.tensorsolve(on(a), on(a[..., 0])), np.linalg.tensorsolve(a, a[..., 0]))
    moved = draw(6, 4, 4, 3, 2, dtype=DOUBLE)
    b = draw(4, 3, 2, dtype=DOUBLE)
    near(torch.linalg.tensorsolve(on(moved), on(b), (0, 2)), np.linalg.tensorsolve(moved, b, (0, 2)), 1e-9)
    refused(RuntimeError, "as many elements", lambda: torch.linalg.tensorinv(on(a), 1))
    refused(RuntimeError, "at least 1", lambda: torch.linalg.tensorinv(on(a), 0))
    near(torch.linalg.vander(on(a[0]), N=4), np.stack([np.vander(v, 4, increasing=True) for v in a[0]]))
    refused(RuntimeError, "N of at least 2", lambda: torch.linalg.vander(on(a), N=1))
    near(torch.linalg.matrix_power(on(a[0, :, :3]), -2), np.linalg.matrix_power(a[0, :, :3], -2), 1e-9)


def test_the_greatest_singular_values():
    low = draw(2, 9, 3, dtype=DOUBLE) @ draw(3, 7, dtype=DOUBLE)
    for x in (low, low.swapaxes(1, 2)):
        U, S, V = torch.svd_lowrank(on(x), q=4)
        near(U * S.unsqueeze(-2) @ V.mT, x, 1e-9)
        near(S[..., :3], np.linalg.svd(x, compute_uv=False)[..., :3], 1e-9)
        near(torch.svd_lowrank(on(x), 4, M=on(x) / 2)[1] * 2, S.numpy(), 1e-9)
    U, S, V = torch.pca_lowrank(on(low), q=4)
    near(U * S.unsqueeze(-2) @ V.mT, low - low.mean(1, keepdims=True), 1e-9)
    refused(ValueError, "expected q between 0 and 7", lambda: torch.pca_lowrank(on(low), 8))
    assert torch.svd_lowrank(torch.ones(2, 3), 6)[1].shape == (2,)


def test_destinations_that_results_can_be_cast_to():
    a, eye = on(draw(3, 3) / 4 + 2 * np.eye(3, dtype=np.float32)), torch.eye(3)
    for f in (lambda **kw: torch.cholesky(a @ a.mT, **kw), lambda **kw: torch.cholesky_inverse(a.tril(), **kw),
              lambda **kw: torch.cholesky_solve(eye, a.tril(), **kw), lambda **kw: torch.linalg.pinv(a, **kw),
              lambda **kw: torch.linalg.householder_product(a, a[0], **kw), lambda **kw: torch.linalg.eigvals(a, **kw)):
        made = f()
        wide = torch.zeros(made.shape, dtype=torch.complex128 if made.is_complex() else torch.float64)
        assert f(out=wide) is wide and torch.equal(wide, made.to(wide.dtype))
        refused(RuntimeError, "can be cast to", lambda f=f, made=made: f(out=torch.zeros(made.shape, dtype=torch.int64)))
    refused(RuntimeError, "a destination of", lambda: torch.linalg.cholesky(eye, out=eye.double()))


def test_autocast_leaves_matrices_alone():
    x = draw(4, 4) / 4 + 2 * np.eye(4, dtype=np.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for f in (torch.linalg.inv, torch.linalg.matrix_exp, torch.linalg.pinv, lambda a: torch.linalg.lstsq(a, a).solution):
            got = f(on(x))
            assert got.dtype is torch.float32
            near(got, f(on(x.astype(DOUBLE))).numpy(), 1e-5)
        half = on(x).to(torch.bfloat16)
        assert torch.linalg.inv(half).dtype is torch.linalg.qr(half).R.dtype is torch.float32          # PyTorch casts these on the CPU
        refused(NotImplementedError, "float32 or float64", lambda: torch.linalg.det(half))


# ------------------------------------------------------------------ LDL
@pytest.mark.parametrize("kind", [DOUBLE, np.complex128])
def test_ldl_factors_and_what_is_solved_with_them(kind, cuda):
    """A is made anew from its factors, as the LAPACK manual says: A = P L D Lᴴ Pᵀ, step by step."""
    a = draw(3, 5, 5, dtype=DOUBLE) + (1j * draw(3, 5, 5, dtype=DOUBLE, seed=4) if kind is np.complex128 else 0)
    b = draw(5, 2, dtype=DOUBLE, seed=7).astype(kind)
    for hermitian in (False, True):
        full = (a + a.swapaxes(1, 2).conj() if hermitian else a + a.swapaxes(1, 2)) * np.where(np.eye(5), 0.01, 1)
        for device in ("cpu", cuda):
            LD, pivots = torch.linalg.ldl_factor(on(full, device), hermitian=hermitian)
            assert (pivots < 0).any() and pivots.dtype is torch.int32 and LD.triu(1).abs().max().item() == 0
            near(on(np.stack([rebuilt(f, p, hermitian) for f, p in zip(LD.cpu().numpy(), pivots.cpu().numpy())])), full)
            near(torch.linalg.ldl_solve(LD, pivots, on(b, device), hermitian=hermitian), np.linalg.solve(full, b))
            made = torch.linalg.ldl_factor_ex(on(np.tril(full), device), hermitian=hermitian, check_errors=True)
            assert made.info.tolist() == [0, 0, 0] and made.LD.tolist() == LD.tolist()
        factors, h = (LD.cpu(), pivots.cpu()), hermitian
        assert torch.autograd.gradcheck(lambda v, factors=factors, h=h: torch.linalg.ldl_solve(*factors, v, hermitian=h), on(b, grad=True))


def rebuilt(factors, pivots, hermitian):
    """The matrix that LAPACK's factors, in the lower triangle, stand for."""
    n, k, steps = len(factors), 0, []
    while k < n:
        wide = 1 + (pivots[k] < 0)
        move, lower = np.eye(n), np.eye(n, dtype=factors.dtype)
        last, place = k + wide - 1, abs(pivots[k]) - 1
        move[[last, place]] = move[[place, last]]
        lower[k + wide:, k:k + wide] = factors[k + wide:, k:k + wide]
        steps.append((k, wide, move @ lower))
        k += wide
    middle, product = np.zeros_like(factors), np.eye(n)
    for k, wide, step in steps:
        middle[k:k + wide, k:k + wide] = np.tril(factors[k:k + wide, k:k + wide])
        if wide == 2:
            middle[k, k + 1] = middle[k + 1, k].conj() if hermitian else middle[k + 1, k]
        product = product @ step
    return product @ middle @ (product.conj().T if hermitian else product.T)


def test_ldl_of_what_has_none():
    zeros = torch.zeros(2, 2, 2)
    assert torch.linalg.ldl_factor_ex(zeros).info.tolist() == [1, 1]
    refused(torch.linalg.LinAlgError, "zero at place 1", lambda: torch.linalg.ldl_factor(zeros))
    refused(torch.linalg.LinAlgError, "zero at place 1", lambda: torch.linalg.ldl_factor_ex(zeros, check_errors=True))
    LD, pivots = torch.linalg.ldl_factor(on(np.diag([1.0, -2.0]), grad=True))
    refused(NotImplementedError, "backward", lambda: LD.sum().backward())
    out = torch.empty(2, 1, dtype=torch.float64)
    assert torch.linalg.ldl_solve(LD.detach(), pivots, on(np.ones((2, 1))), out=out) is out and out.tolist() == [[1.0], [-0.5]]
    for wrong in (0, 3, -3):                                              # of which LAPACK would read what is not its own
        bad = pivots * 0 + wrong
        refused(RuntimeError, f"pivots between 1 and 2, or -2 and -1, got {wrong}",
                lambda bad=bad: torch.linalg.ldl_solve(LD.detach(), bad, on(np.ones((2, 1)))))
