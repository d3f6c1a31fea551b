"""Inverses, solutions and factors of matrices beside PyTorch's, and what multiplies back to the matrix."""
import numpy as np
import pytest
from oracle import torch as pytorch

import tritorch as torch

RNG = np.random.default_rng(0)
SQUARE, TALL = RNG.standard_normal((3, 4, 4)).astype("f4"), RNG.standard_normal((2, 6, 3)).astype("f4")
POSITIVE = SQUARE @ SQUARE.swapaxes(1, 2) + np.eye(4, dtype="f4")
RIGHT, VECTOR = RNG.standard_normal((3, 4, 2)).astype("f4"), RNG.standard_normal((3, 4)).astype("f4")
PROGRAMS = ["t.linalg.inv(s)", "t.inverse(s)", "s.inverse()", "t.linalg.det(s)", "t.det(s)", "t.logdet(p)", "t.linalg.slogdet(s)[1]",
            "t.linalg.solve(s, r)", "t.linalg.solve(s[0], r[0, :, 0])", "t.linalg.solve(s, r.mT, left=False)", "t.linalg.solve(s, v)"]
WITHOUT = ["t.linalg.cholesky(p)", "t.linalg.cholesky(p, upper=True)", "t.cholesky(p)", "t.linalg.svdvals(a)", "t.svd(a).S",
           "t.linalg.svd(a).S", "t.linalg.eigvalsh(p)", "t.linalg.eigh(p).eigenvalues", "t.linalg.pinv(a)", "a.pinverse()",
           "t.linalg.lstsq(a, r[:2, :1].expand(2, 6, 2)).solution", "t.linalg.qr(a).R.abs()", "t.linalg.slogdet(s)[0]",
           "t.linalg.pinv(a @ a.mT, rtol=1e-3)"]


def run(lib, program, grad):
    values = {k: lib.from_numpy(x.copy()).requires_grad_(grad) for k, x in dict(s=SQUARE, a=TALL, p=POSITIVE, r=RIGHT, v=VECTOR).items()}
    made = eval(program, {"t": lib, **values})
    if grad:
        (made * lib.arange(made.numel()).reshape(made.shape)).sum().backward()
    return [made.detach().numpy(), *[x.grad.numpy() for x in values.values() if x.grad is not None]]


@pytest.mark.parametrize("program, grad", [*[(p, True) for p in PROGRAMS], *[(p, False) for p in WITHOUT]])
def test_as_pytorch(program, grad):
    for ours, theirs in zip(run(torch, program, grad), run(pytorch, program, grad), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


def test_factors_multiply_back_on_a_device(cuda):
    a, p = torch.from_numpy(TALL).to(cuda), torch.from_numpy(POSITIVE).to(cuda)
    U, S, Vh = torch.linalg.svd(a, full_matrices=False)
    Q, R = torch.linalg.qr(a)
    values, vectors = torch.linalg.eigh(p)
    for made, given in ((U @ torch.diag_embed(S) @ Vh, a), (Q @ R, a), (vectors @ torch.diag_embed(values) @ vectors.mT, p),
                        (torch.linalg.cholesky(p) @ torch.linalg.cholesky(p).mT, p)):
        assert made.device.type == "cuda"
        np.testing.assert_allclose(made.cpu().numpy(), given.cpu().numpy(), atol=2e-5)
    assert torch.linalg.svd(a).U.shape == (2, 6, 6) and torch.linalg.qr(a, mode="complete").Q.shape == (2, 6, 6)


def test_what_they_refuse():
    for call in (lambda: torch.linalg.inv(torch.zeros(2, 2)), lambda: torch.linalg.inv(torch.ones(2, 3)),
                 lambda: torch.linalg.inv(torch.ones(2)), lambda: torch.linalg.cholesky(-torch.eye(2)),
                 lambda: torch.linalg.svd(torch.ones(2, 2, requires_grad=True)),
                 lambda: torch.linalg.eigh(torch.ones(2, 2).half()), lambda: torch.linalg.qr(torch.eye(2), mode="r")):
        with pytest.raises(RuntimeError, match="expected"):
            call()
