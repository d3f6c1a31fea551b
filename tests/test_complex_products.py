"""Products of complex matrices, what is solved and factored of them, and convolutions."""
import numpy as np
import pytest

import tritorch as torch
from tritorch.autograd import gradcheck
from tritorch.cuda import compiler, driver
from tritorch.cuda.dry import DryDriver
from tritorch.ops import complex_gemm

F = torch.nn.functional


def numbers(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def definite(n, seed=0):
    a = numbers(n, n, seed=seed)
    return a @ a.conj().T + np.eye(n)


def near(got, want, tolerance=2e-5):
    got, want = got.detach().cpu().numpy(), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(np.abs(want).max(initial=0), 1))


# ------------------------------------------------------------------ on a GPU by real products
@pytest.mark.parametrize("way", ["b", "a", "product"])
@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_every_way_multiplies(cuda, monkeypatch, way, kind):
    monkeypatch.setattr(complex_gemm, "cheapest", lambda *_: way)
    a, b, c = numbers(2, 5, 7), numbers(7, 3, seed=1), numbers(2, 5, 3, seed=2)
    turns = (lambda x: x, lambda x: x.mT.contiguous().mT)
    for turn_a in turns:
        for turn_b in turns:
            x, y, z = [turn(torch.tensor(v, dtype=kind, device=cuda)) for turn, v in ((turn_a, a), (turn_b, b), (turn_a, c))]
            near(torch.matmul(x, y.expand(2, 7, 3)), a @ b)
            near(torch.baddbmm(z, x, y.expand(2, 7, 3), beta=0.5, alpha=-2), 0.5 * c - 2 * (a @ b))
            near(torch.baddbmm(z[:, :, :1], x, y.expand(2, 7, 3), beta=2), 2 * c[:, :, :1] + a @ b)
            near(z.clone().baddbmm_(x, y.expand(2, 7, 3), beta=1j), 1j * c + a @ b)
            near(torch.addmm(z[0, 0], x[0], y, beta=3), 3 * c[0, 0] + a[0] @ b)
            if way != "product":                                         # which leaves the choice where a factor is complex
                near(torch.addmm(z[0], x[0], y, alpha=1 - 2j), c[0] + (1 - 2j) * (a[0] @ b))


def test_what_is_ignored(cuda):
    for where in torch.device("cpu"), cuda:
        lost = torch.full((3, 3), complex("nan"), device=where)
        some = torch.tensor(numbers(3, 3), dtype=torch.complex64, device=where)
        near(torch.addmm(lost, some, some, beta=0), some.cpu().numpy() @ some.cpu().numpy())
        near(torch.addmm(some, lost, some, alpha=0), some.cpu().numpy())
        near(some[:, :0] @ some[:0], np.zeros((3, 3)))


def test_no_more_is_launched_than_the_rows_between_and_the_product():
    def names(call):
        with driver.using(DryDriver(90)), compiler.recording() as record:
            call(lambda *shape, dtype=torch.complex64: torch.empty(*shape, dtype=dtype, device="cuda"))
            return [spec.kernel.__name__ for spec in record.values()]

    real = names(lambda made: made(512, 512, dtype=torch.float32) @ made(512, 256, dtype=torch.float32))
    assert names(lambda made: made(512, 256) @ made(256, 128)) == ["turned_kernel", *real]
    few = names(lambda made: F.linear(made(4, 512), made(1024, 512)))    # these rows, not the weight's, are made twice as many
    assert few[0] == "turned_kernel" and few[-1] == "unary_strided" and "unary" not in "".join(few[:-1])
    tall = names(lambda made: made(4096, 8).mT @ made(4096, 8))
    assert "turned_kernel" not in tall and tall[-1] == "binary_strided"
    few, many = torch.zeros(4, 512, dtype=torch.complex64), torch.zeros(1024, 512, dtype=torch.complex64)
    assert complex_gemm.cheapest(4, 1024, 512, torch.zeros(4, 1024), few, many.mT, False) == "a"
    assert complex_gemm.cheapest(8, 8, 4096, torch.zeros(8, 8), torch.zeros(4096, 8).mT, torch.zeros(4096, 8), False) == "product"
    assert complex_gemm.cheapest(8, 8, 4096, torch.zeros(8, 8), torch.zeros(4096, 8).mT, torch.zeros(4096, 8), True) != "product"


def test_which_products_conjugate():
    x, y = [torch.tensor(numbers(5, seed=k)) for k in (0, 1)]
    near(torch.dot(x, y), (x.numpy() * y.numpy()).sum(), 1e-12)
    near(torch.vdot(x, y), (x.numpy().conj() * y.numpy()).sum(), 1e-12)
    near(torch.linalg.vecdot(x, y), (x.numpy().conj() * y.numpy()).sum(), 1e-12)
    near(torch.inner(x, y), (x.numpy() * y.numpy()).sum(), 1e-12)
    near(torch.einsum("i,i", x, y), (x.numpy() * y.numpy()).sum(), 1e-12)
    near(torch.cov(torch.stack([x, y])), np.cov(np.stack([x, y])), 1e-12)
    near(torch.corrcoef(torch.stack([x, y])), np.corrcoef(np.stack([x, y])), 1e-12)


def test_mixed_and_refused():
    real, x = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.complex64)
    for call in (lambda: real @ x, lambda: torch.vdot(x[0], real[0]), lambda: F.linear(x, real), lambda: torch.linalg.solve(x, real),
                 lambda: torch.linalg.vecdot(x, real), lambda: torch.addmm(real, real, real, beta=1j),
                 lambda: torch.addr(real, real[0], real[0], alpha=1j), lambda: F.conv1d(x[None], real[None])):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(NotImplementedError, match="softmax|real tensors|floating"):
        F.mse_loss(x, x)
    near(F.l1_loss(x * 1j, x), np.sqrt(2))


# ------------------------------------------------------------------ convolutions
@pytest.mark.parametrize("groups, stride, padding", [(1, 1, 0), (2, 2, 1)])
def test_convolutions_are_those_of_the_parts(cuda, groups, stride, padding):
    x, w, b = numbers(2, 4, 6, 5), numbers(6, 4 // groups, 3, 2, seed=1), numbers(6, seed=2)
    how = dict(stride=stride, padding=padding, groups=groups)
    (xr, xi), (wr, wi) = [[torch.tensor(v.real), torch.tensor(v.imag)] for v in (x, w)]
    want = (F.conv2d(xr, wr, **how) - F.conv2d(xi, wi, **how)).numpy() + 1j * (F.conv2d(xr, wi, **how) + F.conv2d(xi, wr, **how)).numpy()
    for where in torch.device("cpu"), cuda:
        X, W, B = [torch.tensor(v, dtype=torch.complex64, device=where, requires_grad=True) for v in (x, w, b)]
        for image in X, X.detach().contiguous(memory_format=torch.channels_last):
            made = F.conv2d(image, W, B, **how)
            near(made, want + b[:, None, None])
        G = torch.tensor(numbers(*want.shape, seed=3), dtype=torch.complex64, device=where)
        gx, gw, gb = torch.autograd.grad(F.conv2d(X, W, B, **how), (X, W, B), G)
        # what the map takes to G, its adjoint takes back: <G, A d> = <A* G, d>
        moved = torch.tensor(numbers(*x.shape, seed=4), dtype=torch.complex64, device=where)
        near((G.conj() * F.conv2d(moved, W, **how)).sum(), (gx.conj() * moved).sum().detach().cpu().numpy(), 1e-4)
        moved = torch.tensor(numbers(*w.shape, seed=5), dtype=torch.complex64, device=where)
        near((G.conj() * F.conv2d(X, moved, **how)).sum(), (gw.conj() * moved).sum().detach().cpu().numpy(), 1e-4)
        near(gb, G.sum((0, 2, 3)).cpu().numpy())
        back = F.conv_transpose2d(G, W.detach().conj(), **how, output_padding=0 if stride == 1 else 1)
        near(gx, back.cpu().numpy())


# ------------------------------------------------------------------ linear algebra
def test_solutions_on_a_gpu(cuda):
    for kind, tolerance in (torch.complex64, 1e-4), (torch.complex128, 1e-11):
        a, b = numbers(2, 6, 6) + 3 * np.eye(6), numbers(2, 6, 2, seed=1)
        A, B = [torch.tensor(v, dtype=kind, device=cuda) for v in (a, b)]
        near(torch.linalg.solve(A, B), np.linalg.solve(a, b), tolerance)
        near(torch.linalg.solve(A, B.mT, left=False).mT, np.linalg.solve(a.swapaxes(-1, -2), b), tolerance)
        near(torch.linalg.inv(A), np.linalg.inv(a), tolerance)
        near(torch.matrix_power(A, -2), np.linalg.matrix_power(a, -2), tolerance)
        near(torch.linalg.pinv(A[:, :, :3]), np.linalg.pinv(a[:, :, :3]), tolerance)
    a, b = numbers(5, 3), numbers(5, 2, seed=1)
    for left, right in (a, b), (a.T, b[:3]):
        A, B = [torch.tensor(v, device=cuda).requires_grad_() for v in (left, right)]
        made = torch.linalg.lstsq(A, B).solution
        near(made, np.linalg.lstsq(left, right, rcond=None)[0], 1e-10)
    there = torch.autograd.grad(made.abs().sum(), (A, B))
    A, B = [x.detach().cpu().requires_grad_() for x in (A, B)]
    for x, y in zip(there, torch.autograd.grad(torch.linalg.lstsq(A, B, driver="gels").solution.abs().sum(), (A, B))):
        near(x, y.numpy(), 1e-10)
    singular = torch.ones(3, 3, dtype=torch.complex64, device=cuda)
    singular[0, 0] = 2
    assert torch.linalg.inv_ex(singular).info.item() == torch.linalg.inv_ex(singular.cpu()).info.item() == 3
    with pytest.raises(torch.linalg.LinAlgError, match="place 3"):
        torch.linalg.inv(singular)


def test_triangles_read_what_they_may_read(cuda):
    a, b = numbers(5, 5) + 3 * np.eye(5), numbers(5, 2, seed=1)
    for where in torch.device("cpu"), cuda:
        for upper in (False, True):
            for unit in (False, True):
                T = torch.tensor(np.where((np.triu if upper else np.tril)(np.ones((5, 5))), a, complex("nan")), device=where)
                if unit:
                    T.diagonal().fill_(complex("nan"))
                want = np.triu(a, 1) if upper else np.tril(a, -1)
                want = np.linalg.solve(want + (np.eye(5) if unit else np.diag(np.diag(a))), b)
                near(torch.linalg.solve_triangular(T, torch.tensor(b, device=where), upper=upper, unitriangular=unit), want, 1e-11)


def test_cholesky_factors(cuda):
    h = definite(6)
    for where in torch.device("cpu"), cuda:
        H = torch.tensor(h + 1j * np.diag(np.arange(6)), device=where)                # imaginary parts of the diagonal do not count
        H[0, 1:] = complex("nan")                                        # nor does the other triangle
        near(torch.linalg.cholesky(H), np.linalg.cholesky(h), 1e-11)
        U = torch.linalg.cholesky(torch.tensor(h, device=where), upper=True)
        near(U, np.linalg.cholesky(h).conj().T, 1e-11)
        near(torch.cholesky_solve(torch.tensor(numbers(6, 2), device=where), U, upper=True), np.linalg.solve(h, numbers(6, 2)), 1e-10)
        near(torch.cholesky_inverse(U, upper=True), np.linalg.inv(h), 1e-10)
        bad = np.diag([1.0, 2.0, -1.0, 1.0]).astype(complex)
        assert torch.linalg.cholesky_ex(torch.tensor(bad, device=where)).info.item() == 3


def test_values_on_a_gpu(cuda):
    h, a = definite(4), numbers(2, 3, 4)
    for upper in (False, True):
        H = torch.tensor(np.where((np.triu if upper else np.tril)(np.ones((4, 4))), h, complex("nan")), device=cuda)
        near(torch.linalg.eigvalsh(H, UPLO="U" if upper else "L"), np.linalg.eigvalsh(h), 1e-11)
    A = torch.tensor(a, device=cuda)
    near(torch.linalg.svdvals(A), np.linalg.svd(a, compute_uv=False), 1e-11)
    near(torch.linalg.svdvals(A.mT), np.linalg.svd(a, compute_uv=False), 1e-11)
    near(torch.linalg.matrix_norm(A, "nuc"), np.linalg.norm(a, "nuc", (-2, -1)), 1e-11)
    assert torch.linalg.matrix_rank(A @ A.mH).tolist() == [3, 3] and torch.linalg.svdvals(A[:0]).shape == (0, 3)
    equal = torch.eye(3, dtype=torch.complex128, device=cuda)            # values that are equal, and still have gradients
    for f, make in (torch.linalg.eigvalsh, lambda x: x + x.mH), (torch.linalg.svdvals, lambda x: x):
        x = torch.tensor(numbers(3, 3, seed=2), device=cuda).requires_grad_()
        here = x.detach().cpu().requires_grad_()
        first, want = [torch.autograd.grad((f(make(v)) * f(make(v)).exp()).sum(), v, create_graph=True)[0] for v in (x, here)]
        near(first, want.detach().numpy(), 1e-9)
        second, want = [torch.autograd.grad(g.abs().square().sum(), v)[0] for g, v in ((first, x), (want, here))]
        near(second, want.numpy(), 1e-8)
        y = equal.clone().requires_grad_()
        near(torch.autograd.grad(f(y).sum(), y)[0], np.eye(3), 1e-11)
    with pytest.raises(torch.linalg.LinAlgError, match="finite numbers"):
        torch.linalg.svdvals(A * float("nan"))


def test_what_has_no_kernel_names_the_way_out(cuda):
    A = torch.tensor(numbers(3, 3), device=cuda)
    for f in torch.linalg.qr, torch.linalg.eigh, torch.linalg.svd, torch.linalg.det, torch.linalg.slogdet, torch.linalg.lu_factor:
        with pytest.raises(NotImplementedError, match=r"expected real tensors on a GPU, got complex ones; use x.cpu\(\)"):
            f(A)


def test_determinants_and_their_logarithms():
    A = torch.tensor(numbers(3, 4, 4)).requires_grad_()
    sign, size = torch.linalg.slogdet(A)
    assert sign.dtype is torch.complex128 and size.dtype is torch.float64
    near(sign * size.exp(), np.linalg.det(A.detach().numpy()), 1e-12)
    near(torch.logdet(A).exp(), np.linalg.det(A.detach().numpy()), 1e-12)
    small = A[0, :3, :3].detach().requires_grad_()
    assert gradcheck(lambda x: (*torch.linalg.slogdet(x), torch.logdet(x), torch.linalg.det(x)), (small,), fast_mode=True)
    sign, size = torch.linalg.slogdet(torch.zeros(2, 2, dtype=torch.complex64))
    assert sign.item() == 0 and size.item() == -np.inf


def test_factors_put_together():
    A = torch.tensor(numbers(2, 5, 3))
    Q, R = torch.linalg.qr(A)
    near(Q @ R, A.numpy(), 1e-12)
    near(Q.mH @ Q, np.broadcast_to(np.eye(3), (2, 3, 3)), 1e-12)
    assert not R.diagonal(0, -2, -1).imag.any()
    square, _ = torch.linalg.qr(A, mode="complete")
    a, tau = torch.geqrf(A[0])
    near(torch.ormqr(a, tau, A[0], transpose=True)[:3], R[0].numpy(), 1e-12)
    near(torch.ormqr(a, tau, A[0].mH, left=False)[:, :3], R[0].mH.numpy(), 1e-12)
    near(torch.linalg.householder_product(a, tau), square[0, :, :3].numpy(), 1e-12)
    U, S, Vh = torch.linalg.svd(A)
    near(U[..., :3] * S.unsqueeze(-2) @ Vh, A.numpy(), 1e-12)
    near(U @ U.mH, np.broadcast_to(np.eye(5), (2, 5, 5)), 1e-12)
    H = A @ A.mH
    L, V = torch.linalg.eigh(H)
    near(V * L.unsqueeze(-2) @ V.mH, H.numpy(), 1e-12)
    P, low, up = torch.linalg.lu(A)
    near(P @ low @ up, A.numpy(), 1e-12)
    LU = torch.linalg.lu_factor(H + torch.eye(5))
    B = torch.tensor(numbers(2, 5, 2, seed=1))
    near((H + torch.eye(5)).mH @ torch.linalg.lu_solve(*LU, B, adjoint=True), B.numpy(), 1e-11)
    near(torch.linalg.lu_solve(*LU, B.mT, left=False) @ (H + torch.eye(5)), B.mT.numpy(), 1e-11)
    near(torch.linalg.lstsq(A, A @ B[:, :3]).solution, B[:, :3].numpy(), 1e-11)


def test_the_exponential_of_i_times_a_hermitian_matrix_is_unitary(cuda):
    for where in torch.device("cpu"), cuda:
        H = torch.tensor(definite(4), device=where)
        U = torch.linalg.matrix_exp(1j * H)
        near(U @ U.mH, np.eye(4), 1e-11)
        near(torch.linalg.matrix_exp(-1j * H) @ U, np.eye(4), 1e-11)
