"""Products of 8-bit numbers: float8 with scales, int8 with 32-bit sums."""
import enum

import numpy as np

from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import store_rounded
from tritorch.ops.gemm import gemm
from tritorch.ops.products import multiply, product_shape

EIGHT = types.float8_e4m3fn, types.float8_e5m2


def _fits(scale, shape):
    return scale.numel() == 1 or scale.shape == shape


# ------------------------------------------------------------------ floating numbers and their scales
@op
def scaled_product(mat1, mat2, scale_a, scale_b, bias=None, out_dtype=None, fast=False):
    """A product of two matrices whose rows and columns have scales, rounded once.

        out[i, j] = scale_a[i] · scale_b[j] · Σₖ mat1[i, k] · mat2[k, j] + bias[j]

    mat1 (m, k) and mat2 (k, n) are float8 of either kind, or of one floating dtype; scale_a one number or (m, 1), scale_b one number or
    (1, n), bias (n,), all floating; out_dtype, floating, is that of mat1 if None. Sums are kept in float32; `fast` lets
    Hopper's matrix units keep theirs of float8 products, which have fewer bits. Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> a, b = torch.tensor([[1.0, 2.0]]).to(torch.float8_e4m3fn), torch.tensor([[3.0], [4.0]]).to(torch.float8_e5m2)
    >>> scaled_product(a, b, torch.tensor(0.5), torch.tensor(10.0), None, torch.float32)
    tensor([[55.]])
    """
    name, dtype = "scaled_mm", mat1.dtype
    check(mat1.ndim == 2 == mat2.ndim, name, "two matrices", mat1.shape, mat2.shape)
    m, n = product_shape(name, mat1, mat2)
    alike = dtype.is_floating_point and (dtype is mat2.dtype or dtype in EIGHT and mat2.dtype in EIGHT)
    check(alike, name, "float8 matrices, or two of one floating dtype", dtype, mat2.dtype)
    check(_fits(scale_a, (m, 1)) and _fits(scale_b, (1, n)), name, f"one scale or ({m}, 1) of them, and one or (1, {n})", scale_a.shape,
          scale_b.shape)
    check(bias is None or bias.shape == (n,), name, f"a bias of shape ({n},)", None if bias is None else bias.shape)
    out_dtype = dtype if out_dtype is None else out_dtype
    for kind in (scale_a.dtype, scale_b.dtype, out_dtype, *([] if bias is None else [bias.dtype])):
        check(kind.is_floating_point, name, "floating scales, bias and out_dtype", kind)
    return (m, n), out_dtype, common_device(name, mat1, mat2, scale_a, scale_b)


@scaled_product.impl("cpu")
def scaled_product_cpu(out, mat1, mat2, scale_a, scale_b, bias, out_dtype, fast):
    kind = np.promote_types(np.float32, out.dtype if mat1.dtype.itemsize == 1 else mat1.dtype) if out.dtype.itemsize > 1 else np.float32
    acc = np.empty(out.shape, kind)
    multiply(acc, mat1.astype(kind), mat2.astype(kind))
    acc *= scale_a.reshape(-1, 1).astype(kind) * scale_b.reshape(1, -1).astype(kind)
    acc = acc if bias is None else acc + bias.astype(kind)
    store_rounded(out, acc)


@scaled_product.impl("cuda")
def scaled_product_cuda(out, mat1, mat2, scale_a, scale_b, bias, out_dtype, fast):
    gemm(out, mat1, mat2, bias, (scale_a, scale_b), fast=fast)


@scaled_product.formula
def scaled_product_formula(mat1, mat2, scale_a, scale_b, bias, out_dtype, fast):
    kind = out_dtype or mat1.dtype
    product = mat1.to(kind.compute) @ mat2.to(kind.compute) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return (product if bias is None else product + bias).to(kind)


@scaled_product.samples
def scaled_product_samples(make):
    yield make(3, 4), make(4, 5), make(1, positive=True), make(1, 1, positive=True)
    yield make(3, 4), make(4, 5), make(3, 1, positive=True), make(1, 5, positive=True), make(5)
    yield make(17, 70), make(70, 19), make(17, 1, positive=True), make(1, positive=True), make(19)
    yield make(1, 33), make(33, 9), make(1, 1, positive=True), make(1, 9, positive=True)
    yield make(0, 4), make(4, 5), make(1), make(1)
    yield make(3, 0), make(0, 5), make(1), make(1), make(5)


@scaled_product.errors
def scaled_product_errors(make):
    one = make(1)
    yield (make(3, 4), make(5, 6), one, one), {}, RuntimeError, "expected input.shape[-1] == other.shape[-2], got (3, 4) and (5, 6)"
    yield (make(3, 4), make(4, 6), make(4), one), {}, RuntimeError, "one scale or (3, 1) of them, and one or (1, 6)"
    yield (make(3, 4), make(4, 6, dtype=types.bfloat16), one, one), {}, RuntimeError, "float8 matrices, or two of one floating dtype"
    yield (make(3, 4), make(4, 6), one, one, make(3)), {}, RuntimeError, "a bias of shape (6,)"


@scaled_product.workloads
def scaled_product_workloads(make):
    eight = dict(dtype=types.float8_e4m3fn, grad=False)
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (64, 4096, 4096)):
        for rows in (False, True):
            yield (f"float8 {m}x{n}x{k}, {'row' if rows else 'tensor'}-wise",
                   lambda m=m, n=n, k=k, rows=rows: (make(m, k, **eight), make(n, k, **eight).mT, make(m, 1) if rows else make(1),
                                                     make(1, n) if rows else make(1), None, types.bfloat16), m * k + n * k + 2 * m * n,
                   2 * m * n * k)


class ScalingType(enum.Enum):
    """How a matrix was scaled: by one number, or each row of mat_a and column of mat_b by its own."""

    TensorWise = 0
    RowWise = 1


def scaled_mm(mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a=None, swizzle_b=None, bias=None,
              output_dtype=types.bfloat16, contraction_dim=(), use_fast_accum=False):
    """The product of float8 matrices mat_a (m, k) and mat_b (k, n) times their scales, in output_dtype.

        out[i, j] = scale_a[i] · scale_b[j] · Σₖ mat_a[i, k] · mat_b[k, j] + bias[j]

    Each of float8_e4m3fn or float8_e5m2; float32 scales by ScalingType: one for a tensor (TensorWise), or one for each row of mat_a (m, 1)
    and column of mat_b (1, n) (RowWise). A mat_b that is the transpose of contiguous memory is read as it lies; any other layout costs a
    copy, or the slower kernel. use_fast_accum: see `scaled_product`. Raises ValueError when dtypes, scales or recipes do not fit.

    >>> import tritorch as torch
    >>> F, a, one = torch.nn.functional, torch.ones(2, 3).to(torch.float8_e4m3fn), torch.tensor(1.0)
    >>> F.scaled_mm(a, a.mT, one, F.ScalingType.TensorWise, one, F.ScalingType.TensorWise)
    tensor([[3., 3.],
            [3., 3.]], dtype=tritorch.bfloat16)
    """
    recipes = [r[0] if isinstance(r, (list, tuple)) and len(r) == 1 else r for r in (scale_recipe_a, scale_recipe_b)]
    known = recipes[0] == recipes[1] and recipes[0] in ScalingType
    check(known, "scaled_mm", "one ScalingType for both, TensorWise or RowWise", *recipes, error=ValueError)
    check(not contraction_dim and not any(swizzle_a or ()) and not any(swizzle_b or ()), "scaled_mm", "no contraction_dim and no swizzle",
          contraction_dim, swizzle_a, swizzle_b, error=ValueError)
    scales = [s[0] if isinstance(s, (list, tuple)) and len(s) == 1 else s for s in (scale_a, scale_b)]
    rows = scales[0].shape == (mat_a.shape[0], 1) and scales[1].shape == (1, mat_b.shape[-1])
    fits = rows if recipes[0] is ScalingType.RowWise else scales[0].numel() == 1 == scales[1].numel()
    check(fits, "scaled_mm", f"scales that are {recipes[0].name}", *[s.shape for s in scales], error=ValueError)
    return _scaled_mm(mat_a, mat_b, *scales, bias, None, output_dtype, use_fast_accum)


def _scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False, *, out=None):
    """`torch.nn.functional.scaled_mm`, the scaling told from the shapes of the scales; out_dtype None is that of self.

    >>> import tritorch as torch
    >>> a, one = torch.ones(2, 3).to(torch.float8_e4m3fn), torch.tensor(1.0)
    >>> torch._scaled_mm(a, a.mT, one, one, out_dtype=torch.float32)
    tensor([[3., 3.],
            [3., 3.]])
    """
    check(self.dtype in EIGHT and mat2.dtype in EIGHT, "scaled_mm", "float8 matrices", self.dtype, mat2.dtype, error=ValueError)
    check(scale_a.dtype is types.float32 is scale_b.dtype, "scaled_mm", "float32 scales", scale_a.dtype, scale_b.dtype, error=ValueError)
    single = scale_a.numel() == 1 == scale_b.numel()
    rows = scale_a.shape == self.shape[:1] + (1,) and scale_b.shape == (1,) + mat2.shape[1:]
    check(single or rows, "scaled_mm", "one scale for each matrix, or one for each row and column", scale_a.shape, scale_b.shape,
          error=ValueError)
    check(scale_result is None, "scaled_mm", "no scale_result", "one", use="scale_a")
    args = self, mat2, scale_a, scale_b, bias, out_dtype, bool(use_fast_accum)
    return scaled_product(*args) if out is None else scaled_product.into(out, *args)


# ------------------------------------------------------------------ whole numbers
@op
def int_product(mat1, mat2):
    """The product of two int8 matrices in int32, which wraps around.

        out[i, j] = Σₖ mat1[i, k] · mat2[k, j]

    mat1 (m, k) and mat2 (k, n) give (m, n). Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> torch._int_mm(torch.full((1, 3), 100, dtype=torch.int8), torch.full((3, 1), 100, dtype=torch.int8))
    tensor([[30000]], dtype=tritorch.int32)
    """
    check(mat1.ndim == 2 == mat2.ndim, "_int_mm", "two matrices", mat1.shape, mat2.shape)
    shape = product_shape("_int_mm", mat1, mat2)
    check(mat1.dtype is types.int8 is mat2.dtype, "_int_mm", "int8 matrices", mat1.dtype, mat2.dtype)
    return shape, types.int32, common_device("_int_mm", mat1, mat2)


@int_product.impl("cpu")
def int_product_cpu(out, mat1, mat2):
    np.matmul(mat1, mat2, out=out, dtype=np.int32)


@int_product.impl("cuda")
def int_product_cuda(out, mat1, mat2):
    gemm(out, mat1, mat2)


@int_product.samples
def int_product_samples(make):
    eight = dict(integer=True, dtype=types.int8, low=-128, high=128)
    yield make(3, 4, **eight), make(4, 5, **eight)
    yield make(19, 70, **eight), make(70, 18, **eight)
    yield make(1, 70, **eight), make(70, 5, **eight)
    yield make(3, 0, **eight), make(0, 5, **eight)


@int_product.errors
def int_product_errors(make):
    whole = dict(integer=True, dtype=types.int8)
    yield (make(3, 4), make(4, 5)), {}, RuntimeError, "expected int8 matrices"
    yield (make(3, 4, **whole), make(5, 6, **whole)), {}, RuntimeError, "expected input.shape[-1] == other.shape[-2]"


@int_product.workloads
def int_product_workloads(make):
    n, whole = 4096, dict(integer=True, dtype=types.int8)
    yield f"int8 {n}³", lambda: (make(n, n, **whole), make(n, n, **whole).mT), 6 * n * n, 2 * n ** 3


def _int_mm(self, mat2, *, out=None):
    """`int_product`: int8 (m, k) times int8 (k, n) in int32."""
    return int_product(self, mat2) if out is None else int_product.into(out, self, mat2)
