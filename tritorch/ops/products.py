"""Matrix products: the operators `matmul` and `addmm`. `linear` is in linear.py, the functions of PyTorch above them, with its ranks, in
matmul.py."""
import ml_dtypes
import numpy as np

from tritorch.autograd.parts import alone, arrived, joined_grads
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check, sentence
from tritorch.ops.gemm import gemm
from tritorch.pairs import OWN, adjoint, check_number
from tritorch.shape import broadcast_shapes

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_REFUSED = (types.bool, types.float8_e4m3fn, types.float8_e5m2)


def product_shape(name, input, other):
    """Shape of the product of two batches of matrices."""
    a, b = input.shape, other.shape
    check(len(a) >= 2 and len(b) >= 2, name, "matrices", a, b)
    check(a[-1] == b[-2], name, "input.shape[-1] == other.shape[-2]", a, b)
    if len(a) == 2 == len(b):
        return a[0], b[1]
    return (*(a[:-2] if a[:-2] == b[:-2] else broadcast_shapes(name, a[:-2], b[:-2])), a[-2], b[-1])


def one_dtype(name, *tensors):
    """The dtype that all operands have; PyTorch promotes nothing here either."""
    dtype = tensors[0].dtype
    for x in tensors:
        if x.dtype is not dtype:
            raise RuntimeError(f"{name}: expected operands of one dtype, got {' and '.join(str(t.dtype) for t in tensors)}")
    check(dtype not in _REFUSED, name, "a dtype that can be multiplied and added", dtype, error=NotImplementedError)
    return dtype


def affine_dtype(name, input, weight, bias):
    """The dtype of all operands; a bias beside half types may be float32, as the sums that it is added to."""
    wide = bias is None or input.dtype.is_floating_point and bias.dtype is input.dtype.compute
    return one_dtype(name, input, weight) if wide else one_dtype(name, input, weight, bias)


def sum_dtype(name, dtype, out_dtype, added):
    """The dtype of a product of `dtype` that is to be `out_dtype`; what is added to it may have either."""
    wanted = dtype if out_dtype is None else out_dtype
    if wanted is not dtype and wanted is not dtype.compute:
        raise RuntimeError(sentence(name, f"out_dtype {' or '.join(dict.fromkeys((str(dtype), str(dtype.compute))))}", wanted))
    if added is not None and added.dtype not in (dtype, wanted):
        raise RuntimeError(f"{name}: expected input of dtype {' or '.join(dict.fromkeys((str(dtype), str(wanted))))}, got {added.dtype}")
    return wanted


# ------------------------------------------------------------------ on the CPU
def multiply(out, a, b, alpha=1, c=None, beta=1):
    """out = alpha · a @ b + beta · c by BLAS, which takes transposed operands as they are. Half types are rounded once, at the end; out may
    be float32 beside them."""
    if not out.size:
        return
    if a.ndim > 2 and b.ndim == 2 and out.flags.c_contiguous and (c is None or c.ndim == 1):
        rows = out.size // out.shape[-1]                                 # one tall matrix instead of a loop over the batch
        a, out = a.reshape(rows, a.shape[-1]), out.reshape(rows, out.shape[-1])
    half = a.dtype in _HALVES
    acc = np.empty(out.shape, np.float32 if half else out.dtype) if half or c is not None and np.may_share_memory(c, out) else out
    if half:
        a, b = a.astype(np.float32), b.astype(np.float32)
    if alpha == 0:
        acc[...] = 0
    elif a.dtype.kind in "iu" and _largest(a) * _largest(b) * a.shape[-1] < 1 << 53:
        made = np.matmul(a.astype(np.float64), b.astype(np.float64))     # exact, and BLAS knows no integers
        np.copyto(acc, made.astype(np.int64), casting="unsafe")
    elif a.ndim == 2 == b.ndim and acc.flags.c_contiguous:
        a.dot(b, acc)                                                    # 0.6 µs faster than np.matmul
    elif a.shape[-1] == 1 and min(a.ndim, b.ndim) > 1:
        np.multiply(a, b, out=acc)                                       # 64 of 256 × 784: 7 ms, where np.matmul takes 21
    else:
        np.matmul(a, b, out=acc)
    if alpha not in (0, 1):
        acc *= acc.dtype.type(alpha)
    if c is not None and beta != 0:
        c = c.astype(acc.dtype, copy=False) if half else c
        target = out if out.dtype == acc.dtype else acc
        np.add(acc, c if beta == 1 else c * acc.dtype.type(beta), out=target)
        acc = target
    if acc is not out:
        out[...] = acc


def _largest(x):
    """The largest magnitude of an array of integers."""
    return max(int(x.max(initial=0)), -int(x.min(initial=0)))


# ------------------------------------------------------------------ matmul
@op
def matmul(input, other):
    """Matrix product of the last two dims; the dims before them broadcast.

        out[…, i, j] = Σₖ input[…, i, k] · other[…, k, j]

    input (…, m, k) and other (…, k, n), of one dtype, give (…, m, n). Any dtype but bool. Half types are summed in float32, integers
    wrap around; on a GPU `tritorch.set_float32_matmul_precision` says how float32 is multiplied.
    Raises RuntimeError when the shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> torch.ones(2, 3) @ torch.ones(3, 1)
    tensor([[3.],
            [3.]])
    """
    return product_shape("matmul", input, other), one_dtype("matmul", input, other), common_device("matmul", input, other)


matmul.exact, matmul.complex = True, OWN


@matmul.impl("cpu")
def matmul_cpu(out, input, other):
    multiply(out, input, other)


@matmul.impl("cuda")
def matmul_cuda(out, input, other):
    gemm(out, input, other)


def with_arrived(name, shape, a, b, alpha=1):
    """alpha · a @ b, plus what the input of that name and shape has got already from others that read it: added as it is stored. None if
    that was all added to the `.grad` of a leaf."""
    if alpha == 1 and alone(name):
        return a @ b
    fits = a.ndim > 1 and (b.ndim == 2 or a.shape[:-2] == b.shape[:-2]) and (*a.shape[:-1], b.shape[-1]) == shape
    if fits and joined_grads(lambda total: add_product(total, a, b, alpha), (a, b), name):
        return None
    others = arrived(name) if fits else None
    return a @ b if others is None and alpha == 1 else addmm(others, a, b, 1, alpha)


def add_product(total, a, b, alpha=1):
    """total += alpha · a @ b; it may be float32 beside half types."""
    addmm.into(total, total, a, b, 1, alpha, total.dtype)


@matmul.grad("input")
def matmul_grad_input(g, other, input_shape):
    return with_arrived("input", input_shape, g, adjoint(other))


@matmul.grad("other")
def matmul_grad_other(g, input, other_shape):
    return with_arrived("other", other_shape, adjoint(input), g)


@matmul.samples
def matmul_samples(make):
    yield make(3, 4), make(4, 5)
    yield make(17, 33), make(33, 19)
    yield make(2, 3, 4), make(2, 4, 5)
    yield make(3, 1, 2, 5), make(4, 5, 3)
    yield make(3, 2, 5), make(5, 3)
    yield make(2, 70), make(70, 1)
    yield make(1, 1), make(1, 1)
    yield make(3, 0), make(0, 2)
    yield make(0, 3, 2), make(2, 4)
    yield make(4, 7, integer=True, low=-9, high=9), make(7, 3, integer=True, low=-9, high=9)


@matmul.errors
def matmul_errors(make):
    yield (make(3, 4), make(5, 6)), {}, RuntimeError, "expected input.shape[-1] == other.shape[-2], got (3, 4) and (5, 6)"
    yield (make(2, 3, 4), make(3, 4, 5)), {}, RuntimeError, "shapes that broadcast"
    yield (make(3, 4), make(4, 5, dtype=types.float64)), {}, RuntimeError, "operands of one dtype"
    yield (make(3), make(3, 4)), {}, RuntimeError, "matrices"


@matmul.workloads
def matmul_workloads(make):
    for n in (512, 1024, 2048, 4096, 8192):
        yield (f"bf16 {n}³", lambda n=n: (make(n, n, dtype=types.bfloat16), make(n, n, dtype=types.bfloat16)), 6 * n * n, 2 * n ** 3)
    for n in (1024, 4096):
        yield f"fp32 {n}³", lambda n=n: (make(n, n), make(n, n)), 12 * n * n, 2 * n ** 3
    yield ("bf16 128 × 1024³", lambda: (make(128, 1024, 1024, dtype=types.bfloat16), make(128, 1024, 1024, dtype=types.bfloat16)),
           6 * 128 << 20, 2 * 128 << 30)


# ------------------------------------------------------------------ addmm
@op(aliasable=("input",))
def addmm(input, mat1, mat2, beta=1, alpha=1, out_dtype=None):
    """A matrix product added to something that broadcasts to it, in one kernel.

        out = beta · input + alpha · mat1 @ mat2

    mat1 (…, m, k), mat2 (…, k, n), input broadcasts to (…, m, n) or is None; one dtype. With beta = 0 the values of input are ignored, NaN
    too. out_dtype may be float32 beside half types, and then input as well: `addmm.into(total, total, a, b, 1, 1, torch.float32)` adds a
    product to a sum that is kept in float32, in one pass. Raises RuntimeError when the shapes or dtypes do not fit, and for a fractional
    beta or alpha of integers, which PyTorch cuts off.

    >>> import tritorch as torch
    >>> torch.addmm(torch.ones(2), torch.ones(2, 3), torch.ones(3, 2), beta=2)
    tensor([[5., 5.],
            [5., 5.]])
    """
    shape = product_shape("addmm", mat1, mat2)
    dtype = sum_dtype("addmm", one_dtype("addmm", mat1, mat2), out_dtype, input)
    whole = isinstance(beta, int) and isinstance(alpha, int)
    check(whole or dtype.has_gradients, "addmm", "a whole beta and alpha for integers", beta, alpha)
    check_number("addmm", dtype, beta, alpha)
    if input is None:
        return shape, dtype, common_device("addmm", mat1, mat2)
    check(broadcast_shapes("addmm", input.shape, shape) == tuple(shape), "addmm", f"input that broadcasts to {tuple(shape)}", input.shape)
    return shape, dtype, common_device("addmm", mat1, mat2)


addmm.exact, addmm.complex = True, OWN


@addmm.impl("cpu")
def addmm_cpu(out, input, mat1, mat2, beta, alpha, out_dtype):
    multiply(out, mat1, mat2, alpha, input, beta)


@addmm.impl("cuda")
def addmm_cuda(out, input, mat1, mat2, beta, alpha, out_dtype):
    gemm(out, mat1, mat2, input, alpha, beta)


@addmm.grad("input")
def addmm_grad_input(g, beta):
    return g if beta == 1 else g * beta.conjugate()


@addmm.grad("mat1")
def addmm_grad_mat1(g, mat2, alpha, mat1_shape):
    return with_arrived("mat1", mat1_shape, g.to(mat2.dtype), adjoint(mat2), alpha.conjugate())


@addmm.grad("mat2")
def addmm_grad_mat2(g, mat1, alpha, mat2_shape):
    return with_arrived("mat2", mat2_shape, adjoint(mat1), g.to(mat1.dtype), alpha.conjugate())


@addmm.samples
def addmm_samples(make):
    yield make(5), make(3, 4), make(4, 5)
    yield make(3, 5), make(3, 4), make(4, 5), 0.5, -2.0
    yield make(3, 1), make(2, 3, 4), make(2, 4, 5), 2, 3
    yield make(18), make(19, 40), make(40, 18), 0.0, 1.5
    yield make(3, 5), make(3, 0), make(0, 5), 0.5
    yield make(3, 5), make(3, 4), make(4, 5), 1, 0
    yield None, make(3, 4), make(4, 5), 1, 2
    yield make(3, 2, integer=True, low=-9, high=9), make(3, 4, integer=True, low=-9, high=9), make(4, 2, integer=True, low=-9, high=9), 2, 3


@addmm.errors
def addmm_errors(make):
    yield (make(3), make(3, 4), make(4, 5)), {}, RuntimeError, "broadcast"
    yield (make(1, 1, 5), make(3, 4), make(4, 5)), {}, RuntimeError, "input that broadcasts to (3, 5)"
    yield (make(5), make(3, 4), make(5, 5)), {}, RuntimeError, "input.shape[-1] == other.shape[-2]"
    yield (make(2, integer=True), make(3, 4, integer=True), make(4, 2, integer=True), 1, 0.5), {}, RuntimeError, "expected a whole beta and"
    yield (make(5), make(3, 4), make(4, 5), 1, 1, types.int32), {}, RuntimeError, "expected out_dtype tritorch.float32, got tritorch.int32"
    yield (make(5, dtype=types.float64), make(3, 4), make(4, 5)), {}, RuntimeError, "expected input of dtype tritorch.float32"


@addmm.workloads
def addmm_workloads(make):
    n = 4096
    half = dict(dtype=types.bfloat16)
    yield "bf16 4096³", lambda: tuple(make(n, n, **half) for _ in range(3)), 8 * n * n, 2 * n ** 3
    rows, n, k = 16384, 768, 3072
    yield (f"bf16 {n}x{k}x{rows} to a float32 sum",
           lambda: (make(n, k), make(rows, n, **half).mT, make(rows, k, **half), 1, 1, types.float32),
           2 * rows * (n + k) + 8 * n * k, 2 * n * k * rows)
