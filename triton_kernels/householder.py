"""Householder reflections I - τ v vᵀ: a panel of columns made triangular by them, and their product in the compact form I - V T Vᵀ.
(R. Schreiber and C. Van Loan, "A storage-efficient WY representation for products of Householder transformations", 1989.)"""
import triton
import triton.language as tl

from .scalar import sqrt


@triton.jit
def reflection(alpha, below, most):
    """(β, τ, 1 / (α - β)) of the reflection that makes (α, x) to (β, 0), from `below`, the sum of (x / most)², as LAPACK chooses them."""
    scaled = alpha / tl.where(most == 0, 1, most)
    norm = most * sqrt(scaled * scaled + below)
    beta = tl.where(alpha >= 0, -norm, norm)
    plain = below == 0
    beta = tl.where(plain, alpha, beta)
    tau = tl.where(plain, 0, (beta - alpha) / tl.where(plain, 1, beta))
    return beta, tau, 1 / tl.where(plain, 1, alpha - beta)


@triton.jit
def reflect_kernel(a_ptr, v_ptr, tau_ptr, stride_b, stride_m, stride_n, stride_vb, stride_vm, stride_vn, stride_t, m, w, steps,
                   STEP: tl.constexpr, M: tl.constexpr, W: tl.constexpr):
    """A panel (m, w) of each matrix of a batch becomes R, with the reflections' vectors below its diagonal; these go to v as well, with
    their ones and zeros. In registers: in those of one thread what is of a row, where columns are contiguous. m counts STEPs of rows: so
    many lie on one side of the last one."""
    batch = tl.program_id(0).to(tl.int64)
    m = m * STEP
    r = tl.arange(0, M)
    c = tl.arange(0, W)
    i = r[:, None]
    j = c[None, :]
    at = a_ptr + batch * stride_b + i.to(tl.int64) * stride_m + j.to(tl.int64) * stride_n
    inside = (i < m) & (j < w)
    a = tl.load(at, mask=inside, other=0)
    for k in range(steps):
        column = tl.sum(tl.where(j == k, a, 0), 1)
        alpha = tl.sum(tl.where(r == k, column, 0), 0)
        most = tl.max(tl.where(r >= k, tl.abs(column), 0), 0)
        small = tl.where(r > k, column / tl.where(most == 0, 1, most), 0)
        beta, tau, scale = reflection(alpha, tl.sum(small * small, 0), most)
        v = tl.where(r > k, column * scale, tl.where(r == k, 1, 0).to(a.dtype))
        v = tl.where((tau == 0) & (r > k), 0, v)
        along = tl.sum(v[:, None] * tl.where((i >= k) & (j > k), a, 0), 0) * tau
        a = tl.where((j > k) & (i >= k), a - v[:, None] * along[None, :], a)
        a = tl.where((j == k) & (i >= k), tl.where(i == k, beta, v[:, None]), a)
        tl.store(tau_ptr + batch * stride_t + k, tau)
    tl.store(at, a, mask=inside)
    tl.store(v_ptr + batch * stride_vb + i.to(tl.int64) * stride_vm + j.to(tl.int64) * stride_vn,
             tl.where(i > j, a, tl.where(i == j, 1, 0).to(a.dtype)), mask=inside)


@triton.jit
def beside_kernel(a_ptr, v_ptr, tau_ptr, stride_b, stride_m, stride_n, stride_vb, stride_vm, stride_vn, stride_t, m, n, steps,
                  STEP: tl.constexpr, M: tl.constexpr, W: tl.constexpr):
    """The reflections of a panel, one after the other, on W of the columns (m, n) beside it."""
    tiles = tl.cdiv(n, W)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    m = m * STEP
    r = tl.arange(0, M)
    j = (tl.program_id(0) % tiles * W + tl.arange(0, W)).to(tl.int64)[None, :]
    at = a_ptr + batch * stride_b + r[:, None].to(tl.int64) * stride_m + j * stride_n
    inside = (r < m)[:, None] & (j < n)
    a = tl.load(at, mask=inside, other=0)
    v_ptr += batch * stride_vb + r.to(tl.int64) * stride_vm
    for k in range(steps):
        v = tl.load(v_ptr + k * stride_vn, mask=(r >= k) & (r < m), other=0)
        tau = tl.load(tau_ptr + batch * stride_t + k)
        along = tl.sum(tl.where((r >= k)[:, None], v[:, None] * a, 0), 0) * tau
        a = tl.where((r >= k)[:, None], a - v[:, None] * along[None, :], a)
    tl.store(at, a, mask=inside)


@triton.jit
def long_reflect_kernel(a_ptr, v_ptr, tau_ptr, stride_b, stride_m, stride_vb, stride_vm, stride_t, m, BLOCK: tl.constexpr):
    """A panel of one column, of any length: in pieces."""
    batch = tl.program_id(0).to(tl.int64)
    a_ptr += batch * stride_b
    v_ptr += batch * stride_vb
    i = tl.arange(0, BLOCK)
    alpha = tl.load(a_ptr)
    most = tl.abs(tl.zeros((BLOCK,), a_ptr.dtype.element_ty) + alpha)
    for start in range(0, m, BLOCK):
        row = (start + i).to(tl.int64)
        x = tl.load(a_ptr + row * stride_m, mask=row < m, other=0)
        most = tl.maximum(most, tl.abs(x), propagate_nan=tl.PropagateNan.ALL)
    most = tl.max(most, 0)
    below = tl.zeros((BLOCK,), a_ptr.dtype.element_ty)
    for start in range(0, m, BLOCK):
        row = (start + i).to(tl.int64)
        x = tl.load(a_ptr + row * stride_m, mask=(row > 0) & (row < m), other=0) / tl.where(most == 0, 1, most)
        below += x * x
    beta, tau, scale = reflection(alpha, tl.sum(below, 0), most)
    tl.debug_barrier()                                                   # rows are written from here on
    for start in range(0, m, BLOCK):
        row = (start + i).to(tl.int64)
        x = tl.load(a_ptr + row * stride_m, mask=row < m, other=0)
        x = tl.where(tau == 0, 0, x * scale)
        tl.store(a_ptr + row * stride_m, tl.where(row == 0, beta, x), mask=row < m)
        tl.store(v_ptr + row * stride_vm, tl.where(row == 0, 1, x), mask=row < m)
    tl.store(tau_ptr + batch * stride_t, tau)


@triton.jit
def compact_kernel(t_ptr, g_ptr, tau_ptr, stride_t, w, W: tl.constexpr):
    """T of I - V T Vᵀ, upper triangular, from VᵀV and τ: column by column."""
    batch = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, W)
    i = r[:, None]
    j = r[None, :]
    t = tl.zeros((W, W), t_ptr.dtype.element_ty)
    for k in range(w):
        g = tl.load(g_ptr + batch * w * w + r * w + k, mask=r < k, other=0)
        tau = tl.load(tau_ptr + batch * stride_t + k)
        column = tl.where(r < k, -tau * tl.sum(t * g[None, :], 1), tl.where(r == k, tau, 0))
        t = tl.where(j == k, column[:, None], t)
    tl.store(t_ptr + batch * w * w + i * w + j, t, mask=(i < w) & (j < w))
