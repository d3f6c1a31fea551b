"""Eigenvalues and eigenvectors of any square matrices, and losses that may not depend on the phases of complex vectors."""
import numpy as np
import pytest

import tritorch as torch


def numbers(*shape, seed=0, real=False):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) + (0 if real else 1j * rng.standard_normal(shape))
    return torch.tensor(values)


def check_slopes(f, x, orders=2):
    """The gradient of a real loss of f(x), and that of one of the gradient, along a random direction."""
    seeds = iter(range(10, 100))

    def loss(outs):
        outs = outs if isinstance(outs, tuple) else (outs,)
        return sum([(numbers(*o.shape, seed=next(seeds), real=not o.dtype.is_complex) * o).sum().real for o in outs])

    first, d = next(seeds), numbers(*x.shape, seed=7, real=not x.dtype.is_complex)
    for order in range(orders):
        def value(x, f=f, first=first):
            nonlocal seeds
            seeds = iter(range(first, 100))
            return loss(f(x))

        x = x.detach().requires_grad_()
        slope = (torch.autograd.grad(value(x), x)[0].conj() * d).sum().real.item()
        high, low = [value((x.detach() + s * d).requires_grad_()).item() for s in (1e-6, -1e-6)]
        assert abs(slope - (high - low) / 2e-6) <= 1e-5 * max(abs(slope), 1), f"order {order + 1}: {slope} for {(high - low) / 2e-6}"
        f, first = lambda x, value=value: torch.autograd.grad(value(x), x, create_graph=True)[0], 50


def put_together(A):
    """f(A) by its eigenvalues and eigenvectors, which does not depend on how these are turned or ordered."""
    L, V = torch.linalg.eig(A)
    return V @ torch.diag_embed(L.exp()) @ torch.linalg.inv(V)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5, 5), (1, 1), (0, 0), (0, 3, 3)])
def test_they_are_what_they_are(kind, shape):
    A = numbers(*shape).to(kind) if kind.is_complex else numbers(*shape, real=True).to(kind)
    found = torch.linalg.eig(A)
    L, V = found
    assert found.eigenvalues is L and found.eigenvectors is V and str(found).startswith("tritorch.return_types.linalg_eig(")
    assert L.dtype is V.dtype is kind.to_complex() and L.shape == shape[:-1] and V.shape == shape
    close = {"rtol": 0, "atol": 1e-4 if kind.itemsize // (1 + kind.is_complex) == 4 else 1e-12}
    torch.testing.assert_close(A.to(V.dtype) @ V, V * L.unsqueeze(-2), **close)
    torch.testing.assert_close(V.abs().square().sum(-2), torch.ones(shape[:-1], dtype=kind.to_real()), **close)
    alone = torch.linalg.eigvals(A)
    order = np.argsort(alone.numpy(), -1), np.argsort(L.numpy(), -1)
    torch.testing.assert_close(np.take_along_axis(alone.numpy(), order[0], -1), np.take_along_axis(L.numpy(), order[1], -1), **close)


def test_real_matrices_have_conjugate_pairs():
    L, V = torch.linalg.eig(torch.tensor([[0.0, -2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64))
    torch.testing.assert_close(L, torch.tensor([2j, -2j, 3 + 0j], dtype=torch.complex128))
    assert torch.equal(V[:, 1], V[:, 0].conj()) and not V[:, 2].imag.any()


def test_a_gpu_has_the_same_through_the_host(cuda):
    for A in numbers(2, 3, 3), numbers(3, 3, real=True):
        here, there = A.clone().requires_grad_(), A.to(cuda).requires_grad_()
        for x, y in zip(torch.linalg.eig(A), torch.linalg.eig(A.to(cuda))):
            assert y.device == cuda and torch.equal(x, y.cpu())
        assert torch.equal(torch.linalg.eigvals(A), torch.linalg.eigvals(A.to(cuda)).cpu())
        for x in here, there:
            put_together(x).abs().sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_gradients_to_second_order():
    for A in numbers(3, 3), numbers(2, 2, 2, seed=1), numbers(3, 3, seed=2, real=True):
        for f in put_together, torch.linalg.eigvals, lambda x: torch.linalg.eig(x)[1].abs():
            check_slopes(f, A)
    A.requires_grad_()
    assert torch.autograd.grad(put_together(A).real.sum(), A)[0].dtype is torch.float64


def test_forward_mode():
    A, T = numbers(3, 3), numbers(3, 3, seed=1)
    _, moved = torch.func.jvp(torch.linalg.eigvals, (A,), (T,))
    high, low = [torch.linalg.eigvals(A + s * T) for s in (1e-6, -1e-6)]
    torch.testing.assert_close(moved, (high - low) / 2e-6, rtol=1e-6, atol=1e-8)


def test_losses_that_depend_on_phases_raise():
    A = numbers(3, 3).requires_grad_()
    H = (A + A.mH).detach().requires_grad_()
    for loss in (torch.linalg.eig(A)[1].real.sum(), torch.linalg.eigh(H)[1].imag.sum(), torch.linalg.svd(A)[0].real.sum(),
                 (torch.linalg.svd(A)[0] * torch.linalg.svd(A)[2]).real.sum()):
        with pytest.raises(RuntimeError, match="expected a loss that does not depend on the phases of complex vectors"):
            loss.backward()


def test_losses_that_do_not_are_differentiated():
    A, wide = numbers(3, 3).requires_grad_(), numbers(2, 3, seed=3).requires_grad_()

    def hermitian(x):
        L, V = torch.linalg.eigh((x + x.mH) / 2)
        return V.abs(), V @ torch.diag_embed(L.exp() + 0j) @ V.mH

    def svd(x):
        U, S, Vh = torch.linalg.svd(x, full_matrices=False)
        return U.abs(), Vh.abs(), U @ torch.diag_embed(S.exp() + 0j) @ Vh

    for f, x in (hermitian, A), (svd, A), (svd, wide), (svd, wide.detach().mT.requires_grad_()):
        check_slopes(f, x)


def test_what_is_refused():
    for f in torch.linalg.eig, torch.linalg.eigvals:
        with pytest.raises(RuntimeError, match=r"expected finite numbers, got others \(batch element 1\)"):
            f(torch.stack([torch.eye(2), torch.full((2, 2), float("nan"))]))
        with pytest.raises(RuntimeError, match="square matrices"):
            f(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="float32 or float64"):
            f(torch.ones(2, 2, dtype=torch.int64))
        with pytest.raises(NotImplementedError, match="float32 or float64"):
            f(torch.ones(2, 2).half())


def test_destinations():
    A, out = numbers(2, 2), torch.empty(2, dtype=torch.complex128)
    assert torch.linalg.eigvals(A, out=out) is out and torch.equal(out, torch.linalg.eigvals(A))
    pair = torch.empty(2, dtype=torch.complex128), torch.empty(2, 2, dtype=torch.complex128)
    torch.linalg.eig(A, out=pair)
    assert torch.equal(pair[1], torch.linalg.eig(A)[1])
