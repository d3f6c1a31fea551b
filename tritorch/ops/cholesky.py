"""Cholesky factors of symmetric positive definite matrices, and what is solved with them."""
from math import prod

import numpy as np

from tritorch.cuda.launch import kernels, launch
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import LinAlgError, check, sentence
from tritorch.ops import copy, create
from tritorch.ops.bounds import every
from tritorch.ops.composite import composite
from tritorch.ops.matrices import (
    block,
    check_matrices,
    column_major,
    deliver,
    each,
    lapack,
    place_for,
    precise,
    refuse,
    subtract_product,
    turned,
    unfolded,
    working,
)
from tritorch.ops.triangles import diag_embed, triangle
from tritorch.ops.triangular import solve_in_place, substitute
from tritorch.pairs import OWN, adjoint
from tritorch.shape import next_power_of_2
from tritorch.tensor import strided

K = kernels("cholesky")
BLOCK = 64                                                               # rows that one kernel factors; products do the rest
NOT_DEFINITE = "positive definite matrices", "one whose leading minor of order {} is not"


@op(returns=("L", "info"))
def cholesky_factor(A, upper):
    """(L, info): A = L Lᵀ with L lower triangular, or A = LᵀL with L upper triangular if `upper`, of which triangle of A alone is read.
    info is 0, or the order of the first leading minor that is not positive; of L then holds what was found until there, and NaN."""
    check_matrices("linalg.cholesky", True, A=A)
    return [(A.shape, A.dtype, A.device, column_major(A.shape)), (A.shape[:-2], types.int32, A.device)]


@cholesky_factor.impl("cpu")
def cholesky_factor_cpu(L, info, A, upper):
    factor = lapack("potrf", A)

    def one(a):
        made, code = factor(a, lower=not upper, clean=1) if a.size else (a, 0)
        lost = np.flatnonzero(np.isnan(made.diagonal()))                 # which LAPACK may not notice
        return made, lost[0] + 1 if lost.size and not code else code

    each(one, (L, info), A)


@cholesky_factor.impl("cuda")
def cholesky_factor_cuda(L, info, A, upper):
    if L.dtype.is_complex:
        from tritorch.ops.embedded import cholesky_embedded

        return cholesky_embedded(L, info, A, upper)
    codes = place_for(info, prod(info.shape))
    codes.fill_(0)
    if not L.numel():
        deliver(info, codes)
        return
    source, target = (turned(A.detach()), turned(L)) if upper else (A.detach(), L)
    n = A.shape[-1]
    a = working(source, target if n <= BLOCK else None)
    for start in range(0, n, BLOCK):
        here, left = (start, min(start + BLOCK, n)), (min(start + BLOCK, n), n)
        corner = block(a, here, here)
        rows = corner.shape[-1]
        launch(K.cholesky_kernel, (a.shape[0],), corner, codes, *a.strides, rows, start, N=next_power_of_2(rows),
               num_warps=4 if rows > 32 else 1)
        if left[0] < n:
            panel = block(a, left, here)
            solve_in_place(turned(panel), corner, False, False)          # Lᵢⱼ Lⱼⱼᵀ = Aᵢⱼ
            subtract_product(block(a, left, left), panel, turned(panel))
    if n > BLOCK:
        triangle.impls["cuda"](target, strided(a.storage, target.shape, unfolded(target.shape, a), a.offset, a.dtype), 0, False)
    else:
        deliver(target, a)
    deliver(info, codes)


cholesky_factor.complex = OWN


@cholesky_factor.grad("A")
def cholesky_factor_grad(g_L, L, upper):
    lower, g = (adjoint(L), adjoint(g_L)) if upper else (L, g_L)
    return symmetric(solve_both(lower, halved(adjoint(lower) @ g)))


def halved(x):
    """The lower triangle, of the diagonal a half."""
    return triangle(x, -1, False) + diag_embed(x.diagonal(0, -2, -1) / 2)


def solve_both(lower, x):
    """L⁻ᵀ x L⁻¹, of complex numbers with the adjoint in the place of the transpose."""
    upper = adjoint(lower)
    return adjoint(substitute(upper, adjoint(substitute(upper, x, True, False)), True, False))


def symmetric(x):
    """The symmetric, or Hermitian, part."""
    return (x + adjoint(x)) / 2


@cholesky_factor.samples
def cholesky_factor_samples(make):
    yield definite(make, 3, 3), False
    yield definite(make, 2, 4, 4), True
    yield definite(make, 1, 1), False
    yield definite(make, 2, 0, 0), False
    yield definite(make, 0, 2, 2), True


def definite(make, *shape):
    """A sample of symmetric positive definite matrices."""
    x = make(*shape, dtype=precise(make), grad=False)
    x = x @ adjoint(x) / max(shape[-1], 1)
    x.diagonal(0, -2, -1).add_(1)
    return x.requires_grad_()


@cholesky_factor.errors
def cholesky_factor_errors(make):
    yield (make(2, 3), False), {}, RuntimeError, "linalg.cholesky: expected square matrices, got (2, 3)"
    yield (make(3), False), {}, RuntimeError, "a matrix or a batch of matrices"
    yield (make(2, 2, integer=True), False), {}, RuntimeError, "matrices of float32 or float64, got tritorch.int64"


@cholesky_factor.workloads
def cholesky_factor_workloads(make):
    for batch, n in ((1, 4096), (1, 512), (4096, 32)):
        yield f"{batch} of {n}x{n} fp32", lambda batch=batch, n=n: (definite(make, batch, n, n).detach(),
                                                                    False), 8 * batch * n * n, batch * n ** 3 // 3


# ------------------------------------------------------------------ PyTorch's names above it
def checked_factor(name, A, upper, out):
    """The Cholesky factor, or a LinAlgError. Waits for the device."""
    L, info = cholesky_factor(A, upper)
    refuse(name, info, *NOT_DEFINITE)
    return copy.deliver(L, out, exact=name == "linalg.cholesky")


@composite
def cholesky(input, upper=False, *, out=None):
    """`linalg.cholesky` under its older name.

    >>> import tritorch as torch
    >>> torch.cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), upper=True)
    tensor([[2., 1.],
            [0., 2.]])
    """
    return checked_factor("cholesky", input, upper, out)


@composite
def cholesky_solve(input, input2, upper=False, *, out=None):
    """X with A X = B, from the Cholesky factor L of A (its transpose if `upper`): B = input (…, n, k), L = input2 (…, n, n).

    >>> import tritorch as torch
    >>> torch.cholesky_solve(torch.tensor([[8.0]]), torch.tensor([[2.0]]))
    tensor([[2.]])
    """
    check_matrices("cholesky_solve", False, B=input, L=input2)
    check(input2.shape[-1] == input2.shape[-2] == input.shape[-2], "cholesky_solve", "a square input2 of input's rows", input2.shape,
          input.shape)
    lower = adjoint(input2) if upper else input2
    return copy.deliver(substitute(adjoint(lower), substitute(lower, input, False, False), True, False), out)


@composite
def cholesky_inverse(input, upper=False, *, out=None):
    """A⁻¹ from the Cholesky factor of A (its transpose if `upper`).

    >>> import tritorch as torch
    >>> torch.cholesky_inverse(torch.tensor([[2.0]]))
    tensor([[0.2500]])
    """
    check_matrices("cholesky_inverse", True, L=input)
    if input.is_cpu and (every(input.detach()).diagonal(0, -2, -1) == 0).any():
        raise LinAlgError(sentence("cholesky_inverse", "no zeros on the diagonal", "a factor that is singular"))
    lower = adjoint(input) if upper else input
    half = substitute(lower, create.eye(input.shape[-1], dtype=input.dtype, device=input.device), False, False)
    return copy.deliver(substitute(adjoint(lower), half, True, False), out)


