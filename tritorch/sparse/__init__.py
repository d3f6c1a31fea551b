"""Sparse tensors: `tritorch.sparse_coo_tensor`, CSR, CSC, BSR and BSC, and what is computed with them.

A sparse tensor is made of dense ones, indices and values, and all that is computed with it is computed with those, by operators of
dense tensors: `coo.py` and `compressed.py` are the layouts, `construct.py` how they are made, `instead.py` which operators take them.
Dense tensors pay nothing for it.

>>> import tritorch as torch
>>> adjacency = torch.sparse_coo_tensor([[0, 1, 1], [1, 0, 1]], [1.0, 1.0, 2.0], (2, 2))
>>> torch.sparse.mm(adjacency, torch.eye(2))
tensor([[0., 1.],
        [1., 2.]])
"""
from tritorch.errors import check
from tritorch.sparse import instead as _instead  # noqa: F401  (it tells the operators what to do)
from tritorch.sparse.base import Sparse
from tritorch.sparse.construct import check_sparse_tensor_invariants
from tritorch.sparse.gradcheck import as_sparse_gradcheck
from tritorch.sparse.products import addmm as _addmm
from tritorch.sparse.products import matmul as _matmul
from tritorch.sparse.products import sampled_addmm, spdiags, times
from tritorch.sparse.reductions import log_softmax, softmax, sum


def mm(sparse, dense, *, out=None):
    """The product of two matrices of which one is sparse: strided, or sparse where both are. Unlike that of `tritorch.mm`, the gradient of
    a sparse matrix in front has its places, and no others.

    >>> import tritorch as torch; torch.sparse.mm(torch.eye(2).to_sparse(), torch.ones(2, 2))
    tensor([[1., 1.],
            [1., 1.]])
    """
    check(len(sparse.shape) == 2 == len(dense.shape), "mm", "matrices", tuple(sparse.shape), tuple(dense.shape))
    one_sided = isinstance(sparse, Sparse) and not isinstance(dense, Sparse)
    if not isinstance(sparse, Sparse) and not isinstance(dense, Sparse):
        made = sparse.mm(dense)
    else:
        made = times(sparse, dense, "SparseAddmm", True) if one_sided else _matmul(sparse, dense)
    return made if out is None else _instead.delivered("mm", out, made)


def addmm(mat, mat1, mat2, *, beta=1.0, alpha=1.0):
    """beta · mat + alpha · mat1 @ mat2 with a sparse mat1, whose gradient has its places.

    >>> import tritorch as torch; torch.sparse.addmm(torch.ones(2, 2), torch.eye(2).to_sparse(), torch.ones(2, 2), beta=2.0)
    tensor([[3., 3.],
            [3., 3.]])
    """
    return _addmm(mat, mat1, mat2, beta, alpha, None, True)


__all__ = ["addmm", "as_sparse_gradcheck", "check_sparse_tensor_invariants", "log_softmax", "mm", "sampled_addmm", "softmax", "spdiags",
           "sum"]
