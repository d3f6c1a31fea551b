"""QR factors by Householder reflections, and products with these."""
import numpy as np

from tritorch.cuda.launch import kernels, launch
from tritorch.dispatch import common_device, op
from tritorch.errors import check, sentence
from tritorch.ops import copy, create
from tritorch.ops.composite import composite
from tritorch.ops.copy import transfer
from tritorch.ops.destinations import deliver_all
from tritorch.ops.matrices import (
    block,
    check_matrices,
    column_major,
    deliver,
    each,
    lapack,
    place_for,
    precise,
    product,
    scratch,
    subtract_product,
    three,
    turned,
    unfolded,
    working,
)
from tritorch.ops.shaping import cat
from tritorch.ops.triangles import diag_embed, triangle
from tritorch.ops.triangular import substitute
from tritorch.pairs import HOST, adjoint
from tritorch.return_types import result
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import own, strided

K = kernels("householder")
BLOCK = 64                                                               # reflections that act on what is left as one product
PANEL = {4: 1 << 15, 8: 1 << 13}                                         # elements of so many bytes that one kernel has in registers
PIECE = 4096                                                             # elements of a piece of a column that is longer than a panel
geqrf_result = result("geqrf", "a tau")
qr_result = result("qr", "Q R")


# ------------------------------------------------------------------ on a GPU
def reduce_columns(a):
    """Make each matrix of a batch (batch, m, n) upper triangular, in place, the reflections' vectors below the diagonal. Returns
    (V, τ, [T of every BLOCK columns])."""
    batch, m, n = a.shape
    k = min(m, n)
    v, tau, compact = turned(scratch(a, batch, k, m)), scratch(a, batch, k), []
    v.fill_(0)
    for start in range(0, k, BLOCK):
        end = min(start + BLOCK, k)
        narrow(a, v, tau, start, end)
        rows = start, m
        compact.append(compact_form(block(v, rows, (start, end)), part(tau, start, end)))
        if end < n:
            apply(block(a, rows, (end, n)), block(v, rows, (start, end)), turned(compact[-1]))
    return v, tau, compact


def narrow(a, v, tau, begin, end):
    """The columns from begin to end of a, in panels that fit into registers."""
    batch, m, _ = a.shape
    while begin < end:
        tall = next_power_of_2(m - begin)
        stop = min(begin + max(PANEL[a.dtype.itemsize] // tall, 1), end)
        rows, w = (begin, m), stop - begin
        panel, vectors, factors = block(a, rows, (begin, stop)), block(v, rows, (begin, stop)), part(tau, begin, stop)
        beside, wide = block(a, rows, (stop, end)), next_power_of_2(w)
        step = 1 if (m - begin) % 4 else 4
        facts = *a.strides, *v.strides, tau.strides[0], (m - begin) // step
        how = dict(STEP=step, M=tall, W=wide, num_warps=max(1, min(16, tall * wide // 1024)))
        if tall <= PANEL[a.dtype.itemsize]:
            launch(K.reflect_kernel, (batch,), panel, vectors, factors, *facts, w, min(m - begin, w), **how)
            if stop < end:
                launch(K.beside_kernel, (batch * cdiv(end - stop, wide),), beside, vectors, factors, *facts, end - stop, w, **how)
        else:
            launch(K.long_reflect_kernel, (batch,), panel, vectors, factors, *a.strides[:2], *v.strides[:2], tau.strides[0], m - begin,
                   BLOCK=min(PIECE, tall), num_warps=8)
            if stop < end:
                apply(beside, vectors, turned(compact_form(vectors, factors)))
        begin = stop


def part(tau, begin, end):
    """Some of the factors of each matrix."""
    return strided(tau.storage, (tau.shape[0], end - begin), tau.strides, tau.offset + begin * tau.strides[1], tau.dtype)


def compact_form(v, tau):
    """T of I - V T Vᵀ, the product of the reflections."""
    batch, _, w = v.shape
    gram, t = scratch(v, batch, w, w), scratch(v, batch, w, w)
    product(gram, turned(v), v)
    launch(K.compact_kernel, (batch,), t, gram, tau, tau.strides[0], w, W=next_power_of_2(w), num_warps=4 if w > 32 else 1)
    return t


def apply(c, v, t):
    """c = (I - V T Vᵀ) c in place; with Tᵀ in T's place the reflections act in the opposite order."""
    batch, w, n = c.shape[0], v.shape[-1], c.shape[-1]
    along, turns = scratch(c, batch, w, n), scratch(c, batch, w, n)
    product(along, turned(v), c)
    product(turns, t, along)
    subtract_product(c, v, turns)


def apply_all(c, v, compact, transposed=False, identity=False):
    """c = Q c, or Qᵀ c, for the product Q of all reflections; `identity`: c was the identity, and only what changes is touched."""
    k, m = v.shape[-1], v.shape[-2]
    starts = range(0, k, BLOCK)
    for start, t in list(zip(starts, compact))[::1 if transposed else -1]:
        rows = start, m
        columns = start if identity else 0, c.shape[-1]
        apply(block(c, rows, columns), block(v, rows, (start, min(start + BLOCK, k))), turned(t) if transposed else t)


# ------------------------------------------------------------------ reflections
@op(returns=("a", "tau"))
def geqrf_factors(A):
    """(a, tau) of A (…, m, n): R on and above the diagonal of a, and below it the vectors, without their ones, of the reflections
    I - τ v vᵀ whose product is Q."""
    check_matrices("geqrf", A=A)
    return [(A.shape, A.dtype, A.device, column_major(A.shape)), ((*A.shape[:-2], min(A.shape[-2:])), A.dtype, A.device)]


@geqrf_factors.impl("cpu")
def geqrf_factors_cpu(a, tau, A):
    factor = lapack("geqrf", A)
    each(lambda x: factor(x)[:2] if x.size else (x, np.empty(0)), (a, tau), A)


@geqrf_factors.impl("cuda")
def geqrf_factors_cuda(a, tau, A):
    if a.numel():
        made = turned(working(turned(A.detach()), turned(a)))
        _, factors, _ = reduce_columns(made)
        deliver(turned(a), turned(made))
        deliver(tau, factors)


@geqrf_factors.samples
def geqrf_factors_samples(make):
    kind = dict(dtype=precise(make))
    for shape in ((3, 3), (2, 5, 3), (2, 4), (1, 1), (0, 2, 2), (2, 0)):
        yield make(*shape, **kind),


@geqrf_factors.workloads
def geqrf_factors_workloads(make):
    for batch, m, n in ((1, 4096, 4096), (1, 512, 512), (1, 1 << 20, 32), (4096, 32, 32)):
        yield f"{batch} of {m}x{n} fp32", lambda b=batch, m=m, n=n: (make(b, m, n, grad=False),), 8 * batch * m * n, 2 * batch * m * n * n


@op
def reflected(A, tau, other, transpose):
    """Q other, or Qᵀ other if `transpose`, for the product Q of the reflections that A (…, m, k) and tau (…, k) describe as `geqrf` does;
    other is (…, m, n) with the same dims in front."""
    name = "linalg.householder_product"
    check_matrices(name, A=A, other=other)
    check(tau.dtype is A.dtype, name, f"tau of {A.dtype}", tau.dtype)
    check(len(tau.shape) > 0 and A.shape[-2] == other.shape[-2] and min(A.shape[-2:]) >= tau.shape[-1], name,
          "at least as many rows and columns as reflections", A.shape, tau.shape)
    check(A.shape[:-2] == tau.shape[:-1] == other.shape[:-2], name, "equal batches", A.shape, tau.shape, other.shape)
    return other.shape, other.dtype, common_device(name, A, tau, other), column_major(other.shape)


@reflected.impl("cpu")
def reflected_cpu(out, A, tau, other, transpose):
    made, k = other.copy(), tau.shape[-1]
    tau = tau.conj() if transpose else tau
    for i in range(k) if transpose else reversed(range(k)):
        v = np.concatenate([np.ones((*A.shape[:-2], 1, 1), A.dtype), A[..., i + 1:, i:i + 1]], -2)
        made[..., i:, :] -= tau[..., i, None, None] * (v @ (v.swapaxes(-1, -2).conj() @ made[..., i:, :]))
    out[...] = made


@reflected.impl("cuda")
def reflected_cuda(out, A, tau, other, transpose):
    if not out.numel():
        return
    c, k = working(other, out), tau.shape[-1]
    if k:
        v, factors = vectors_of(three(A), k), three(tau.unsqueeze(-1))
        factors = strided(factors.storage, factors.shape[:2], factors.strides[:2], factors.offset, factors.dtype)
        factors = factors if factors.strides[1] == 1 else factors.contiguous()
        compact = [compact_form(block(v, (start, v.shape[1]), (start, min(start + BLOCK, k))), part(factors, start, min(start + BLOCK, k)))
                   for start in range(0, k, BLOCK)]
        apply_all(c, v, compact, transpose)
    deliver(out, c)


def vectors_of(a, k):
    """The vectors of the first k reflections with their ones and zeros."""
    v = turned(scratch(a, a.shape[0], k, a.shape[1]))
    triangle.impls["cuda"](v, block(a, (0, a.shape[1]), (0, k)), -1, False)
    strided(v.storage, v.shape[::2], (v.strides[0], v.strides[1] + v.strides[2]), v.offset, v.dtype).fill_(1)
    return v


@reflected.formula
def reflected_formula(A, tau, other, transpose):
    k, made = tau.shape[-1], other
    tau = tau.conj() if transpose and tau.dtype.is_complex else tau
    V = triangle(A[..., :k], -1, False) + create.eye(A.shape[-2], k, dtype=A.dtype, device=A.device)
    for i in range(k) if transpose else reversed(range(k)):
        v = V[..., i:i + 1]
        made = made - tau[..., i, None, None] * (v @ (adjoint(v) @ made))
    return made


@reflected.samples
def reflected_samples(make):
    kind = dict(dtype=precise(make))
    yield make(3, 2, **kind), make(2, **kind), make(3, 4, **kind), False
    yield make(2, 4, 3, **kind), make(2, 2, **kind), make(2, 4, 4, **kind), True
    yield make(2, 2, **kind), make(0, **kind), make(2, 1, **kind), False
    yield make(2, 4, **kind), make(2, **kind), make(2, 3, **kind), True                # wide, as ormqr takes them
    yield make(0, 2, 2, **kind), make(0, 1, **kind), make(0, 2, 2, **kind), False


@reflected.workloads
def reflected_workloads(make):
    n = 4096
    yield "4096² fp32", lambda: (make(n, n, grad=False), make(n, grad=False), make(n, n, grad=False), False), 12 * n * n, 4 * n ** 3


# ------------------------------------------------------------------ QR
@op(returns=("Q", "R"))
def qr_factors(A, complete):
    """(Q, R) with A = Q R, for A (…, m, n): Q (…, m, k) has orthonormal columns, R (…, k, n) is upper triangular; k = min(m, n), or m if
    `complete`."""
    check_matrices("linalg.qr", A=A)
    lead, (m, n) = A.shape[:-2], A.shape[-2:]
    k = m if complete else min(m, n)
    Q, R = (*lead, m, k), (*lead, k, n)
    return [(Q, A.dtype, A.device, column_major(Q)), (R, A.dtype, A.device, column_major(R))]


@qr_factors.impl("cpu")
def qr_factors_cpu(Q, R, A, complete):
    if not Q.shape[-1]:
        return
    if not A.shape[-1]:
        Q[...] = np.eye(A.shape[-2], Q.shape[-1])
        return
    factor, form = lapack("geqrf", A), lapack("ungqr" if A.dtype.kind == "c" else "orgqr", A)
    m, k = Q.shape[-2:]

    def one(x):
        packed, tau = factor(x)[:2]
        wide = np.zeros((m, k), x.dtype, order="F")
        wide[:, :min(k, packed.shape[1])] = packed[:, :k]
        return form(wide, tau)[0], np.triu(packed[:k])

    each(one, (Q, R), A)


@qr_factors.impl("cuda")
def qr_factors_cuda(Q, R, A, complete):
    if not Q.numel():
        return
    q = place_for(Q, Q.numel() // (Q.shape[-2] * Q.shape[-1]), *Q.shape[-2:])
    transfer(q, copy.broadcast_view(create.eye(*Q.shape[-2:], dtype=Q.dtype, device=Q.device), q.shape))
    if A.numel():
        a = turned(working(turned(A.detach())))
        v, _, compact = reduce_columns(a)
        apply_all(q, v, compact, identity=True)
        triangle.impls["cuda"](R, strided(a.storage, R.shape, unfolded(R.shape, a), a.offset, a.dtype), 0, True)
    deliver(Q, q)


qr_factors.complex = geqrf_factors.complex = reflected.complex = HOST


@qr_factors.grad("A")
def qr_factors_grad(g_Q, g_R, Q, R, complete):
    """S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions", 2010; for wide matrices D. Roberts and
    L. Roberts, "QR and LQ decomposition matrix backpropagation algorithms for square, wide, and deep matrices", 2020."""
    m, n = Q.shape[-2], R.shape[-1]
    if complete and m > n:
        raise RuntimeError(sentence("linalg.qr", "mode='reduced' where gradients of tall matrices are wanted", "mode='complete'"))
    if m >= n:
        return square_part(g_Q, g_R, Q, R)
    beside, g_beside = R[..., m:], g_R[..., m:]
    left = square_part(g_Q + Q @ (beside @ adjoint(g_beside)), g_R[..., :m], Q, R[..., :m])
    return cat([left, Q @ g_beside], -1)


def square_part(g_Q, g_R, Q, R):
    """Of A = Q R with square R."""
    both = R @ adjoint(g_R) - adjoint(g_Q) @ Q
    below = triangle(both, -1, False)
    both = below + adjoint(below) + diag_embed(both.diagonal(0, -2, -1).real)          # the diagonal of R is real
    return adjoint(substitute(R, adjoint(g_Q + Q @ both), True, False))


@qr_factors.samples
def qr_factors_samples(make):
    kind = dict(dtype=precise(make))
    for shape, complete in (((3, 3), False), ((2, 5, 3), False), ((2, 4), True), ((2, 2, 3), False), ((1, 1), True), ((0, 2, 2), False),
                            ((2, 0), False), ((0, 2), False)):
        yield make(*shape, **kind), complete


@qr_factors.errors
def qr_factors_errors(make):
    yield (make(3), False), {}, RuntimeError, "linalg.qr: expected a matrix or a batch of matrices"
    yield (make(2, 2, integer=True), False), {}, RuntimeError, "matrices of float32 or float64"


@qr_factors.workloads
def qr_factors_workloads(make):
    for batch, m, n in ((1, 4096, 4096), (1, 512, 512), (4096, 32, 32)):
        yield f"{batch} of {m}x{n} fp32", lambda b=batch, m=m, n=n: (make(b, m, n, grad=False),
                                                                     False), 12 * batch * m * n, 8 * batch * m * n * n // 3


# ------------------------------------------------------------------ PyTorch's names above it
@composite
def geqrf(input, *, out=None):
    """(a, tau): R and the reflections of a QR factorization as LAPACK packs them; `linalg.householder_product` makes Q of them.

    R is on and above the diagonal of a, below it are the vectors of the reflections I - τ v vᵀ, v starting with a one that is left out.
    There is no gradient.

    >>> import tritorch as torch
    >>> torch.geqrf(torch.tensor([[3.0], [4.0]]))
    tritorch.return_types.geqrf(
    a=tensor([[-5.0000],
            [ 0.5000]]),
    tau=tensor([1.6000]))
    """
    return deliver_all(geqrf_result, geqrf_factors(input.detach()), out)


@composite
def householder_product(input, tau, *, out=None):
    """The first n columns of the product of reflections I - τᵢ vᵢ vᵢᵀ: input (…, m, n) holds vᵢ below the diagonal of column i, tau is (…,
    k), m ≥ n ≥ k. float32 or float64.

    >>> import tritorch as torch
    >>> a, tau = torch.geqrf(torch.tensor([[3.0], [4.0]]))
    >>> torch.linalg.householder_product(a, tau)
    tensor([[-0.6000],
            [-0.8000]])
    """
    check_matrices(name := "linalg.householder_product", A=input)
    check(input.shape[-2] >= input.shape[-1], name, "at least as many rows as columns", input.shape)
    identity = create.eye(*input.shape[-2:], dtype=input.dtype, device=input.device).expand(input.shape)
    return copy.deliver(reflected(input, tau, identity, False), out)


@composite
def orgqr(input, input2, *, out=None):
    """`linalg.householder_product` under its older name."""
    return householder_product(input, input2, out=out)


@composite
def ormqr(input, input2, input3, left=True, transpose=False, *, out=None):
    """Q input3 (input3 Q if not `left`, with Qᴴ if `transpose`) for the product Q (…, m, m) of reflections that input and input2 describe
    as `geqrf` does.

    >>> import tritorch as torch
    >>> a, tau = torch.geqrf(torch.tensor([[3.0], [4.0]]))
    >>> torch.ormqr(a, tau, torch.tensor([[3.0], [4.0]]), transpose=True)
    tensor([[-5.],
            [ 0.]])
    """
    if left:
        return copy.deliver(reflected(input, input2, input3, transpose), out, exact=True)
    made = reflected(input, input2, adjoint(input3), not transpose)
    return copy.deliver(own(adjoint(made.contiguous())), out, exact=True)               # its columns are contiguous, too


@composite
def qr(input, some=True, *, out=None):
    """`linalg.qr` under its older name: mode 'reduced', or 'complete' if not `some`.

    >>> import tritorch as torch
    >>> torch.qr(torch.tensor([[3.0], [4.0]])).R
    tensor([[-5.]])
    """
    return deliver_all(qr_result, qr_factors(input, not some), out)
