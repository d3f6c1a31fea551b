"""PyTorch's names and ranks above the matrix product operators: plain functions."""
from math import prod

from tritorch.dtype import types
from tritorch.errors import answered, check, explained, refuse_misuse, sentence, tensors
from tritorch.memory_format import contiguous_format
from tritorch.ops import products as cards
from tritorch.ops.complex import conj
from tritorch.ops.copy import deliver
from tritorch.ops.create import eye
from tritorch.ops.linear import as_rows
from tritorch.ops.linear import linear as linear_map
from tritorch.pairs import check_number
from tritorch.shape import broadcast_shapes
from tritorch.tensor import own


def _ranks(name, pairs):
    """Raise RuntimeError unless every tensor has the number of dims that stands beside it."""
    try:
        for x, ndim in pairs:
            if x.ndim != ndim:
                dims = " and ".join(str(n) for _, n in pairs)
                raise RuntimeError(sentence(name, f"tensors of {dims} dims", *[t.shape for t, _ in pairs]))
    except AttributeError as error:
        refuse_misuse(error)
        raise


# ------------------------------------------------------------------ products
def matmul(input, other, *, out=None):
    """Matrix product, by the ranks of its operands.

    Both 1-D: their dot product. Both at least 2-D: the product of the last two dims, the dims before them broadcast. A 1-D input is
    a row, a 1-D other a column, and its dim is missing in the result. Also spelled `input @ other`.

    >>> import tritorch as torch
    >>> torch.matmul(torch.ones(2, 3), torch.ones(3))
    tensor([3., 3.])
    """
    try:
        a, b = len(input.shape), len(other.shape)
        if a < 2 or b < 2:
            tensors("matmul", input=input, other=other)
    except AttributeError as error:
        if answer := refuse_misuse(error, "matmul", matmul, (input, other)):
            return answer[0]
        raise
    if a >= 2 and b >= 2:
        if out is not None:
            return cards.matmul.into(out, input, other)
        if b == 2 < a:                                                   # one tall matrix: so is the gradient of other, no batch is summed
            check(input.shape[-1] == other.shape[0], "matmul", "input.shape[-1] == other.shape[-2]", input.shape, other.shape)
            return linear_map(input, other.mT)
        return cards.matmul(input, other)
    check(a and b, "matmul", "operands of at least one dim", f"{a} and {b} dims")
    fits = input.shape[-1] == other.shape[-2 if b > 1 else 0]
    check(fits, "matmul", "input.shape[-1] == other.shape[-2]" if b > 1 else "input.shape[-1] == other.shape[0]", input.shape, other.shape)
    if b == 1:
        column = matmul(input.unsqueeze(0) if a == 1 else input, other.unsqueeze(1))
        return deliver(own(column.reshape(()) if a == 1 else column.squeeze(-1)), out, exact=True)
    return deliver(own(matmul(input.unsqueeze(0), other).squeeze(-2)), out, exact=True)


def mm(input, mat2, out_dtype=None, *, out=None):
    """Product of two matrices; out_dtype may be float32 beside half types.

    >>> import tritorch as torch; torch.mm(torch.eye(2), torch.ones(2, 2))
    tensor([[1., 1.],
            [1., 1.]])
    """
    try:
        _ranks("mm", ((input, 2), (mat2, 2)))
        return _product(input, mat2, out_dtype, out)
    except Exception as error:
        return answered(error)


def _product(a, b, out_dtype, out):
    if out_dtype is not None:
        return _add(None, a, b, 1, 1, out_dtype, out)
    return cards.matmul(a, b) if out is None else cards.matmul.into(out, a, b)


def bmm(input, mat2, out_dtype=None, *, out=None):
    """Products of two equal batches of matrices: (b, m, k) and (b, k, n) give (b, m, n). out_dtype as in `mm`.

    >>> import tritorch as torch; torch.bmm(torch.ones(5, 2, 3), torch.ones(5, 3, 4)).shape
    tritorch.Size([5, 2, 4])
    """
    try:
        _ranks("bmm", ((input, 3), (mat2, 3)))
        check(input.shape[0] == mat2.shape[0], "bmm", "equal batches", input.shape, mat2.shape)
        return _product(input, mat2, out_dtype, out)
    except Exception as error:
        return answered(error)


def mv(input, vec, *, out=None):
    """Matrix (m, k) times vector (k,).

    >>> import tritorch as torch; torch.mv(torch.ones(2, 3), torch.ones(3))
    tensor([3., 3.])
    """
    _ranks("mv", ((input, 2), (vec, 1)))
    return matmul(input, vec, out=out)


def dot(input, tensor, *, out=None):
    """Σ inputᵢ · tensorᵢ of two vectors.

    >>> import tritorch as torch; torch.dot(torch.tensor([2.0, 3.0]), torch.tensor([2.0, 1.0]))
    tensor(7.)
    """
    _ranks("dot", ((input, 1), (tensor, 1)))
    return matmul(input, tensor, out=out)


def vdot(input, other, *, out=None):
    """Σ conj(inputᵢ) · otherᵢ of two vectors.

    >>> import tritorch as torch; torch.vdot(torch.tensor([1j, 1.0]), torch.tensor([2j, 1.0]))
    tensor(3.+0.j)
    """
    _ranks("vdot", ((input, 1), (other, 1)))
    return dot(conj(input), other, out=out)


def inner(input, other, *, out=None):
    """Sums of products over the last dim of both: shape input.shape[:-1] + other.shape[:-1]. With a 0-dim operand: the product.

    >>> import tritorch as torch; torch.inner(torch.ones(2, 3), torch.ones(4, 3)).shape
    tritorch.Size([2, 4])
    """
    if not input.ndim or not other.ndim:
        return deliver(input * other, out)
    check(input.shape[-1] == other.shape[-1], "inner", "input.shape[-1] == other.shape[-1]", input.shape, other.shape)
    shape = input.shape[:-1] + other.shape[:-1]
    return deliver(linear_map(as_rows(input), as_rows(other)).reshape(shape), out)


def outer(input, vec2, *, out=None):
    """inputᵢ · vec2ⱼ of two vectors.

    >>> import tritorch as torch; torch.outer(torch.tensor([1, 2]), torch.tensor([3, 4]))
    tensor([[3, 4],
            [6, 8]])
    """
    _ranks("outer", ((input, 1), (vec2, 1)))
    return deliver(input.unsqueeze(1) * vec2, out)


ger = outer


def linear(input, weight, bias=None):
    """input @ weightᵀ + bias over the last dim: input (…, k), weight (n, k) or (k,), bias (n,).

    >>> import tritorch as torch
    >>> torch.nn.functional.linear(torch.ones(3), torch.ones(2, 3), torch.tensor([0.0, 1.0]))
    tensor([3., 4.])
    """
    try:
        if len(weight.shape) == 1:
            product = matmul(input, weight)
            return product if bias is None else product + bias
        return linear_map(input, weight, bias)
    except Exception as error:
        return answered(error)


@explained
def bilinear(input1, input2, weight, bias=None):
    """outₙ = Σᵢⱼ input1ᵢ · weightₙᵢⱼ · input2ⱼ + biasₙ over the last dims.

    input1 (…, i), input2 (…, j), weight (n, i, j) and bias (n,) give (…, n).

    >>> import tritorch as torch
    >>> torch.nn.functional.bilinear(torch.ones(5, 2), torch.ones(5, 3), torch.ones(4, 2, 3)).shape
    tritorch.Size([5, 4])
    """
    check(weight.ndim == 3 and input1.shape[:-1] == input2.shape[:-1], "bilinear", "equal leading dims and a weight of 3 dims",
          input1.shape, input2.shape, weight.shape)
    n, i, j = weight.shape
    check(input1.shape[-1] == i and input2.shape[-1] == j, "bilinear", f"last dims of {i} and {j}", input1.shape, input2.shape)
    rows = as_rows(input1) @ weight.permute(1, 0, 2).reshape(i, n * j)
    product = matmul(rows.reshape(-1 if n * j else prod(input1.shape[:-1]), n, j), as_rows(input2).unsqueeze(-1))
    product = product.reshape(*input1.shape[:-1], n)
    return product if bias is None else product + bias


# ------------------------------------------------------------------ products added to something
def addmm(input, mat1, mat2, out_dtype=None, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · mat1 @ mat2, input broadcast to the product of two matrices. out_dtype, and then input's dtype, may be float32
    beside half types.

    >>> import tritorch as torch
    >>> torch.addmm(torch.ones(2), torch.ones(2, 3), torch.ones(3, 2), beta=2)
    tensor([[5., 5.],
            [5., 5.]])
    """
    try:
        _ranks("addmm", ((mat1, 2), (mat2, 2)))
        return _add(input, mat1, mat2, beta, alpha, out_dtype, out)
    except Exception as error:
        return answered(error)


def baddbmm(input, batch1, batch2, out_dtype=None, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · batch1 @ batch2 for equal batches of matrices. out_dtype as in `addmm`."""
    try:
        _ranks("baddbmm", ((batch1, 3), (batch2, 3)))
        check(batch1.shape[0] == batch2.shape[0], "baddbmm", "equal batches", batch1.shape, batch2.shape)
        return _add(input, batch1, batch2, beta, alpha, out_dtype, out)
    except Exception as error:
        return answered(error)


def addbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · Σ_b batch1[b] @ batch2[b]: one product, the batch being part of what is summed over."""
    _ranks("addbmm", ((batch1, 3), (batch2, 3)))
    (b, m, k), n = batch1.shape, batch2.shape[2]
    check(batch2.shape[:2] == (b, k), "addbmm", f"batch2 of shape ({b}, {k}, n)", batch2.shape)
    return _add(input, batch1.permute(1, 0, 2).reshape(m, b * k), batch2.reshape(b * k, n), beta, alpha, None, out)


def addmv(input, mat, vec, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · mat @ vec."""
    _ranks("addmv", ((mat, 2), (vec, 1)))
    check(mat.shape[1] == vec.shape[0], "addmv", "mat.shape[1] == vec.shape[0]", mat.shape, vec.shape)
    broadcast_shapes("addmv", input.shape, mat.shape[:1])
    return deliver(_add(input.unsqueeze(-1), mat, vec.unsqueeze(1), beta, alpha, None, None).squeeze(-1), out, exact=True)


def addr(input, vec1, vec2, *, beta=1, alpha=1, out=None):
    """beta · input + alpha · outer(vec1, vec2). With beta = 0 the values of input are ignored."""
    _ranks("addr", ((vec1, 1), (vec2, 1)))
    product = vec1.unsqueeze(1) * vec2
    check_number("addr", product.dtype, alpha, beta)
    whole = product.dtype.has_gradients or input.dtype.has_gradients
    check(whole or isinstance(beta, int) and isinstance(alpha, int), "addr", "a whole beta and alpha for integers", beta, alpha)
    if product.dtype is input.dtype is types.bool:                       # bools stay bools: and, or
        beta, alpha = bool(beta), bool(alpha)
    product = product if alpha == 1 else product * alpha
    fits = broadcast_shapes("addr", input.shape, product.shape) == product.shape
    check(fits, "addr", f"input that broadcasts to {product.shape}", input.shape)
    return deliver(product if beta == 0 else (input if beta == 1 else input * beta) + product, out)


def _add(input, a, b, beta, alpha, out_dtype, out):
    args = input, a, b, beta, alpha, out_dtype
    return cards.addmm(*args) if out is None else cards.addmm.into(out, *args)


# ------------------------------------------------------------------ more than two matrices
def chain_matmul(*matrices, out=None):
    """The product of several matrices in the order that needs the fewest multiplications.

    >>> import tritorch as torch; torch.chain_matmul(torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 1)).shape
    tritorch.Size([2, 1])
    """
    check(len(matrices) > 0, "chain_matmul", "at least one matrix", "none")
    _ranks("chain_matmul", [(m, 2) for m in matrices])
    sizes = [m.shape[0] for m in matrices] + [matrices[-1].shape[1]]
    best = {(i, i): (0, i) for i in range(len(matrices))}
    for length in range(1, len(matrices)):
        for i in range(len(matrices) - length):
            j = i + length
            best[i, j] = min((best[i, s][0] + best[s + 1, j][0] + sizes[i] * sizes[s + 1] * sizes[j + 1], s) for s in range(i, j))
    return deliver(_chained(matrices, best, 0, len(matrices) - 1), out)


def _chained(matrices, best, i, j):
    """The product of the i-th to the j-th, split as `best` says."""
    s = best[i, j][1]
    return matrices[i] if i == j else mm(_chained(matrices, best, i, s), _chained(matrices, best, s + 1, j))


@explained
def matrix_power(input, n, *, out=None):
    """The n-th power of square matrices (…, m, m), for n < 0 of their inverses, by repeated squaring.

    >>> import tritorch as torch; torch.matrix_power(torch.tensor([[1, 1], [0, 1]]), 5)
    tensor([[1, 5],
            [0, 1]])
    """
    check(input.ndim >= 2 and input.shape[-1] == input.shape[-2], "matrix_power", "square matrices", input.shape)
    if n < 0:
        from tritorch.ops.solving import inverse

        return inverse(input, out=out) if n == -1 else matrix_power(inverse(input), -n, out=out)
    if n == 0:
        ones = eye(input.shape[-1], dtype=input.dtype, device=input.device)
        return deliver(input.clone(memory_format=contiguous_format).copy_(ones), out)      # of the input: its gradient is zeros
    result, square = None, input
    while n:
        if n & 1:
            result = square if result is None else result @ square
        n >>= 1
        square = square @ square if n else square
    return deliver(result.clone(memory_format=contiguous_format) if result is input else result, out)


def kron(input, other, *, out=None):
    """Kronecker product: every element of input times all of other.

    >>> import tritorch as torch; torch.kron(torch.tensor([1, 2]), torch.tensor([1, 1, 1]))
    tensor([1, 1, 1, 2, 2, 2])
    """
    ndim = max(input.ndim, other.ndim)
    a, b = [(1,) * (ndim - x.ndim) + tuple(x.shape) for x in (input, other)]
    spread = input.reshape([n for m in a for n in (m, 1)]) * other.reshape([n for m in b for n in (1, m)])
    return deliver(spread.reshape([m * n for m, n in zip(a, b)]), out)
