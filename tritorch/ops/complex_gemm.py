"""Products of complex matrices on a GPU as real ones, with the four real multiplications of a complex one, by the kernels and in the
precision of real products. A row of complex numbers in memory is a row of twice as many real ones, so that with i-fold rows between those
of b

    out (M, 2N) = a (M, 2K) @ b' (2K, 2N),      b' rows: Re b₀₀ Im b₀₀ …  and  -Im b₀₀ Re b₀₀ …

needs no more than b'. Or it is done to a, for outᵀ = bᵀ aᵀ; or the columns of a are rows of twice as many numbers, and the product of these
with the rows of b, (2M, 2N), holds in its even rows Re a · b and in its odd ones Im a · b. What moves the fewest bytes is taken."""

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.ops.copy import transfer
from tritorch.ops.loops import COMPLEX, as_number, compute_name, launch_elementwise
from tritorch.ops.matrices import three
from tritorch.pairs import lengthened
from tritorch.shape import cdiv, next_power_of_2
from tritorch.tensor import empty, strided

K = kernels("complex_product")


def complex_gemm(gemm, out, a, b, c=None, alpha=1, beta=1):
    """out = alpha · a @ b + beta · c of complex tensors, as `gemm`, which multiplies real ones."""
    if not out.numel():
        return
    c, a = None if beta == 0 else c, _narrowed(a) if alpha == 0 else a
    way = cheapest(out.shape[-2], out.shape[-1], a.shape[-1], out, a, b, isinstance(alpha, complex))
    rows = _flowing(out) and way == "b"
    inside = c is None or not isinstance(beta, complex) and _flowing(c) and c.shape[-1:] == out.shape[-1:]
    if rows and inside:
        gemm(lengthened(out), lengthened(a), turned(b, alpha), None if c is None else lengthened(c), 1, beta)
        return
    if way == "product" and c is None:
        _four(gemm, out, a, b, alpha)
        return
    made = empty(out.shape, out.dtype, out.device)
    if way == "b":
        gemm(lengthened(made), lengthened(a), turned(b, alpha))
    elif way == "a":
        made = _transposed(empty((*out.shape[:-2], out.shape[-1], out.shape[-2]), out.dtype, out.device))
        gemm(lengthened(_transposed(made)), lengthened(_transposed(b)), turned(_transposed(a), alpha))
    else:
        _four(gemm, made, a, b, alpha)
    if c is None:
        transfer(out, made)
    else:
        launch_elementwise(out, (made, c), COMPLEX.add, out.dtype, (beta,))


def cheapest(M, N, k, out, a, b, turns):
    """What to do, by the bytes that move besides those of the product, in numbers: "b" or "a" expanded, or the "product" put together."""
    lie_a, lie_b = _flowing(a), _flowing(_transposed(b))
    sizes = {"b": 4 * k * N + (0 if lie_a else 2 * M * k) + (0 if _flowing(out) else 2 * M * N),
             "a": 4 * k * M + (0 if lie_b else 2 * k * N) + 2 * M * N,
             "product": 5 * M * N + (0 if _flowing(_transposed(a)) else 2 * M * k) + (0 if _flowing(b) else 2 * k * N)}
    if turns:
        del sizes["product"]
    return min(sizes, key=sizes.get)


def _four(gemm, out, a, b, alpha):
    """All products of parts, and out = Re a · b + i · Im a · b of them."""
    *lead, M, N = out.shape
    parts = empty((*lead, 2 * M, 2 * N), out.dtype.parts, out.device)
    gemm(parts, _transposed(lengthened(_transposed(a))), lengthened(b), alpha=alpha)
    strides = (*[s // 2 for s in parts.strides[:-2]], 2 * N, 1)
    even, odd = [strided(parts.storage, out.shape, strides, k * N, out.dtype) for k in (0, 1)]
    launch_elementwise(out, (even, odd), COMPLEX.add, out.dtype, (1j,))


def turned(b, alpha=1, conjugate=False):
    """alpha · b (…, k, n), or that conjugated, with i-fold rows between its rows, as a real tensor (…, 2k, 2n)."""
    made, b = empty((*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1]), b.dtype.parts, b.device), three(b)
    batch, k, n = b.shape
    if b.numel():
        across = b.strides[1] == 1 != b.strides[2]
        block_n = min(tile(32 if across else 128, 256), next_power_of_2(n))
        block_k = min(tile(1024, 1 << 14) // block_n, next_power_of_2(k))
        launch(K.turned_kernel, (cdiv(k, block_k) * cdiv(n, block_n), batch), strided(made.storage, (made.numel() // 2,), (1,), 0, b.dtype),
               b, *b.strides, k, n, None if alpha == 1 else as_number(alpha, b.dtype), COMPUTE=compute_name(b.dtype),
               CONJUGATE=conjugate, BLOCK_K=block_k, BLOCK_N=block_n)
    return made


def _flowing(x):
    """Whether the numbers of a row follow each other."""
    return not x.shape or x.strides[-1] == 1 or x.shape[-1] == 1


def _transposed(x):
    return strided(x.storage, (*x.shape[:-2], x.shape[-1], x.shape[-2]), (*x.strides[:-2], x.strides[-1], x.strides[-2]), x.offset, x.dtype)


def _narrowed(a):
    """a without columns: a product whose factors count for nothing."""
    return strided(a.storage, (*a.shape[:-1], 0), a.strides, a.offset, a.dtype)
