"""Matrix products of groups that follow each other in one tensor, in one launch: the experts of a mixture, whose loads differ."""
import numpy as np

from tritorch.cuda import tuner
from tritorch.cuda.launch import kernels, launch
from tritorch.dispatch import common_device, op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.create import tensor
from tritorch.ops.faults import fault_word
from tritorch.ops.gemm import hardware
from tritorch.ops.matmul import bmm
from tritorch.ops.products import multiply, one_dtype
from tritorch.precision import dot_precision
from tritorch.shape import cdiv, next_power_of_2

K = kernels("grouped")
# BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages by bytes of a number
TILES = {2: ((128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)),
         4: ((64, 64, 32, 4, 3), (128, 128, 16, 8, 3)), 8: ((32, 32, 16, 4, 3),)}
ASCENDING = "offs that ascend from 0 to at most the size of the dim"
SIMULATED = (16, 16, 32, 4, 3)


def _checked(name, a, b, offs):
    dtype = one_dtype(name, a, b)
    check(dtype.is_floating_point, name, "floating tensors", dtype)
    check(offs.dtype is types.int32 and offs.ndim == 1, name, "offs as a vector of int32", offs.dtype, offs.shape)
    return dtype, common_device(name, a, b, offs)


def _places(offs, size):
    """(start, end) of each group, on the CPU."""
    starts = [0, *offs[:-1]]
    for start, end in zip(starts, offs):
        check(start <= end <= size, "grouped_mm", ASCENDING, end)
    return zip(starts, offs)


def _start(kernel, key, args, grid, rest):
    """Launch with the tile that the tuner chooses; grid(tile) is the grid, rest(tile) are the constexprs that depend on it."""
    a = args[1]
    tiles = TILES[a.dtype.itemsize] if hardware() else (SIMULATED,)
    candidates = [dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, num_warps=warps, num_stages=stages) for m, n, k, warps, stages in tiles]
    precision = dot_precision(a.dtype)

    def run(tile):
        launch(kernel, grid(tile), *args, PRECISION=precision, **rest(tile), **tile)

    run(tuner.choose("grouped", (a.dtype.name, precision, *key), candidates, run=run) if hardware() else candidates[0])


# ------------------------------------------------------------------ groups of rows
@op
def grouped_rows(input, mat2, offs):
    """Rows of each group times the group's own matrix.

        out[offs[g − 1] : offs[g]] = input[offs[g − 1] : offs[g]] @ mat2[g]

    input (m, k), mat2 (g, k, n), of one floating dtype, and offs (g,) int32, where the groups end, ascending, at most m, give (m, n); rows
    after the last group are 0. Raises RuntimeError when shapes or dtypes do not fit.

    >>> import tritorch as torch
    >>> grouped_rows(torch.ones(3, 2), torch.tensor([[[1.0], [1.0]], [[5.0], [5.0]]]), torch.tensor([1, 3], dtype=torch.int32))
    tensor([[ 2.],
            [10.],
            [10.]])
    """
    check(input.ndim == 2 and mat2.ndim == 3 and input.shape[1] == mat2.shape[1] and offs.shape == mat2.shape[:1], "grouped_mm",
          "(m, k), (g, k, n) and an end for each group", input.shape, mat2.shape, offs.shape)
    return (input.shape[0], mat2.shape[2]), *_checked("grouped_mm", input, mat2, offs)


@grouped_rows.impl("cpu")
def grouped_rows_cpu(out, input, mat2, offs):
    out[...] = 0
    for (start, end), matrix in zip(_places(offs, len(input)), mat2):
        rows = np.empty((end - start, out.shape[1]), out.dtype)
        multiply(rows, input[start:end], matrix)
        out[start:end] = rows


@grouped_rows.impl("cuda")
def grouped_rows_cuda(out, input, mat2, offs):
    (M, N), (groups, k, _) = out.shape, mat2.shape
    if out.numel():
        def grid(tile):
            return ((cdiv(M, tile["BLOCK_M"]) + groups + 1) * cdiv(N, tile["BLOCK_N"]),)

        word, number = fault_word(out.device, "grouped_mm", ASCENDING, RuntimeError)
        args = out, input, mat2, offs.contiguous(), word, *out.strides, *input.strides, *mat2.strides, groups, M, N, k, number
        _start(K.grouped_rows_kernel, ("rows", groups, M, N, k), args, grid,
               lambda tile: dict(EVEN_K=k % tile["BLOCK_K"] == 0, ALL=next_power_of_2(groups + 1)))


@grouped_rows.grad("input")
def grouped_rows_grad_input(g, mat2, offs):
    return grouped_rows(g, mat2.mT, offs)


@grouped_rows.grad("mat2")
def grouped_rows_grad_mat2(g, input, offs):
    return grouped_sums(input.mT, g, offs)


def _ends(make, *ends):
    return tensor(ends, dtype=types.int32, device=make(1).device)


@grouped_rows.samples
def grouped_rows_samples(make):
    yield make(7, 3), make(2, 3, 4), _ends(make, 3, 7)
    yield make(40, 19), make(4, 19, 18), _ends(make, 5, 5, 29, 36)
    yield make(5, 0), make(2, 0, 3), _ends(make, 2, 5)
    yield make(0, 3), make(2, 3, 4), _ends(make, 0, 0)


@grouped_rows.errors
def grouped_rows_errors(make):
    yield (make(5, 3), make(2, 3, 4), make(2, integer=True, low=0, high=5)), {}, RuntimeError, "offs as a vector of int32"
    yield (make(5, 3), make(2, 4, 4), _ends(make, 2, 5)), {}, RuntimeError, "(m, k), (g, k, n) and an end for each group"


@grouped_rows.workloads
def grouped_rows_workloads(make):
    half, (m, groups, k, n) = dict(dtype=types.bfloat16), (16384, 8, 2048, 4096)
    yield (f"bf16 {m} rows to {groups} experts {k}x{n}", lambda: (make(m, k, **half), make(groups, k, n, **half), _ends(make, *[
        m * (i + 1) // groups for i in range(groups)])), 2 * (m * k + groups * k * n + m * n), 2 * m * n * k)


# ------------------------------------------------------------------ groups of the inner dim
@op
def grouped_sums(input, mat2, offs):
    """The product of each group of columns of one matrix with the same rows of another.

        out[g] = input[:, offs[g − 1] : offs[g]] @ mat2[offs[g − 1] : offs[g]]

    input (m, k), mat2 (k, n), of one floating dtype, and offs (g,) int32, where the groups end, ascending, at most k, give (g, m, n).

    >>> import tritorch as torch
    >>> grouped_sums(torch.ones(1, 3), torch.ones(3, 1), torch.tensor([1, 3], dtype=torch.int32)).flatten()
    tensor([1., 2.])
    """
    check(input.ndim == 2 == mat2.ndim and input.shape[1] == mat2.shape[0], "grouped_mm", "(m, k) and (k, n)", input.shape, mat2.shape)
    return (*offs.shape, input.shape[0], mat2.shape[1]), *_checked("grouped_mm", input, mat2, offs)


@grouped_sums.impl("cpu")
def grouped_sums_cpu(out, input, mat2, offs):
    for (start, end), matrix in zip(_places(offs, len(mat2)), out):
        product = np.empty(matrix.shape, out.dtype)
        multiply(product, input[:, start:end], mat2[start:end])
        matrix[...] = product


@grouped_sums.impl("cuda")
def grouped_sums_cuda(out, input, mat2, offs):
    groups, M, N = out.shape
    if out.numel():
        def grid(tile):
            return (cdiv(M, tile["BLOCK_M"]) * cdiv(N, tile["BLOCK_N"]) * groups,)

        word, number = fault_word(out.device, "grouped_mm", ASCENDING, RuntimeError)
        args = (out, input, mat2, offs.contiguous(), word, *out.strides, *input.strides, *mat2.strides, groups, M, N, input.shape[1],
                number)
        _start(K.grouped_sums_kernel, ("sums", groups, M, N, input.shape[1]), args, grid, lambda tile: {})


@grouped_sums.grad("input")
def grouped_sums_grad_input(g, mat2, offs):
    return grouped_rows(mat2, g.mT, offs).mT                             # columns of input are rows of mat2


@grouped_sums.grad("mat2")
def grouped_sums_grad_mat2(g, input, offs):
    return grouped_rows(input.mT, g, offs)


@grouped_sums.samples
def grouped_sums_samples(make):
    yield make(3, 7), make(7, 4), _ends(make, 3, 7)
    yield make(19, 40), make(40, 18), _ends(make, 5, 5, 29, 36)
    yield make(3, 0), make(0, 4), _ends(make, 0, 0)


@grouped_sums.errors
def grouped_sums_errors(make):
    yield (make(5, 3), make(4, 4), _ends(make, 2, 3)), {}, RuntimeError, "(m, k) and (k, n)"


@grouped_sums.workloads
def grouped_sums_workloads(make):
    half, (m, groups, k, n) = dict(dtype=types.bfloat16), (2048, 8, 16384, 4096)
    yield (f"bf16 {groups} groups of {k // groups}, {m}x{n}", lambda: (make(m, k, **half), make(k, n, **half), _ends(make, *[
        k * (i + 1) // groups for i in range(groups)])), 2 * (m * k + k * n + groups * m * n), 2 * m * n * k)


def grouped_mm(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None):
    """Products of groups of matrices in one launch; `offs` (g,) int32 says where the groups of the dim that is cut up end.

    | mat_a | mat_b | result | group j, from offs[j - 1] to offs[j] |
    |---|---|---|---|
    | (m, k) | (g, k, n) | (m, n) | rows of mat_a, times mat_b[j]; rows after the last group are 0 |
    | (g, m, k) | (k, n) | (m, n) | columns of mat_b, which mat_a[j] multiplies; columns after the last group are 0 |
    | (m, k) | (k, n) | (g, m, n) | of k: result[j] is the product of these columns and rows |
    | (g, m, k) | (g, k, n) | (g, m, n) | without offs: mat_a[j] @ mat_b[j] |

    Any floating dtype, which out_dtype may name but not change; no bias. (PyTorch takes bfloat16 alone.) Raises RuntimeError when shapes
    or dtypes do not fit or offs does not ascend to at most the size of the dim: at once on the CPU, on CUDA when the host next waits.

    >>> import tritorch as torch
    >>> a, b, ends = torch.ones(3, 2), torch.ones(2, 2, 4), torch.tensor([1, 3], dtype=torch.int32)
    >>> torch.nn.functional.grouped_mm(a, b, offs=ends).shape
    tritorch.Size([3, 4])
    """
    check(bias is None, "grouped_mm", "no bias", "one")
    check(out_dtype in (None, mat_a.dtype), "grouped_mm", f"out_dtype {mat_a.dtype}", out_dtype)
    ranks = mat_a.ndim, mat_b.ndim
    check(ranks in ((2, 2), (2, 3), (3, 2), (3, 3)), "grouped_mm", "tensors of 2 or 3 dims", mat_a.shape, mat_b.shape)
    check((offs is None) == (ranks == (3, 3)), "grouped_mm", "offs unless both have 3 dims", "none" if offs is None else "offs")
    if ranks == (3, 3):
        return bmm(mat_a, mat_b)
    if ranks == (3, 2):
        return grouped_rows(mat_b.mT, mat_a.mT, offs).mT
    return grouped_rows(mat_a, mat_b, offs) if ranks == (2, 3) else grouped_sums(mat_a, mat_b, offs)
