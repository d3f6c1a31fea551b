"""Methods of all tensors that make sparse ones, or that sparse ones alone answer; `tritorch.sparse` loads with the first of the former."""
from importlib import import_module

from tritorch.errors import sentence


def _of(home, name):
    return getattr(import_module("tritorch.sparse." + home), name)


def to_sparse(self, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    """The tensor in a sparse layout, COO unless told otherwise: its elements that are not 0, whose number is read from the device, or with
    `sparse_dim` the slices of the dims behind that many.

    >>> import tritorch as torch; torch.eye(2).to_sparse().indices()
    tensor([[0, 1],
            [0, 1]])
    """
    return _of("construct", "to_sparse")(self, sparse_dim, layout, blocksize, dense_dim)


def to_sparse_coo(self):
    """The tensor in the layout `sparse_coo`: its elements that are not 0."""
    return _of("construct", "to_sparse")(self)


def to_sparse_csr(self, dense_dim=None):
    """The matrices in the layout `sparse_csr`, the last `dense_dim` dims dense."""
    return _of("construct", "to_layout")(self, "sparse_csr", None, dense_dim)


def to_sparse_csc(self, dense_dim=None):
    """The matrices in the layout `sparse_csc`, the last `dense_dim` dims dense."""
    return _of("construct", "to_layout")(self, "sparse_csc", None, dense_dim)


def to_sparse_bsr(self, blocksize, dense_dim=None):
    """The matrices in the layout `sparse_bsr`: the blocks of these two sizes in which there is an element that is not 0."""
    return _of("construct", "to_layout")(self, "sparse_bsr", blocksize, dense_dim)


def to_sparse_bsc(self, blocksize, dense_dim=None):
    """The matrices in the layout `sparse_bsc`: the blocks of these two sizes in which there is an element that is not 0."""
    return _of("construct", "to_layout")(self, "sparse_bsc", blocksize, dense_dim)


def sparse_mask(self, mask):
    """The elements at the places of the sparse tensor `mask`, in its layout; other elements are dropped.

    >>> import tritorch as torch
    >>> torch.ones(2, 2).sparse_mask(torch.eye(2).to_sparse()).to_dense()
    tensor([[1., 0.],
            [0., 1.]])
    """
    return _of("coo", "sparse_mask")(self, mask)


def smm(self, mat):
    """`tritorch.smm` of this tensor."""
    return _of("products", "smm")(self, mat)


def sspaddmm(self, mat1, mat2, *, beta=1, alpha=1):
    """`tritorch.sspaddmm` of this tensor."""
    return _of("products", "sspaddmm")(self, mat1, mat2, beta=beta, alpha=alpha)


def sparse_dim(self):
    """How many dims the indices tell of: none in a strided tensor."""
    return 0


def dense_dim(self):
    """How many dims, the last ones, each value has: all in a strided tensor."""
    return len(self.shape)


def _question(name, layouts, error=RuntimeError):
    """What a strided tensor says to a question that only tensors of some layouts answer."""
    def method(self, *args, **kwargs):
        raise error(sentence(name, f"a tensor of layout {layouts}", self.layout, use="x.to_sparse()"))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Tensors of layout {layouts} have `{name}`; others raise {error.__name__}."
    return method


METHODS = {f.__name__: f for f in (to_sparse, to_sparse_coo, to_sparse_csr, to_sparse_csc, to_sparse_bsr, to_sparse_bsc, sparse_mask, smm,
                                   sspaddmm, sparse_dim, dense_dim)}
METHODS.update(_dimI=sparse_dim, _dimV=dense_dim)
METHODS.update({name: _question(name, "sparse_coo") for name in ("coalesce", "is_coalesced", "indices")})
METHODS.update({name: _question(name, "sparse_coo", NotImplementedError) for name in (
    "_indices", "_values", "_coalesced_", "sparse_resize_", "sparse_resize_and_clear_", "resize_as_sparse_")})
METHODS.update({name: _question(name, "sparse_csr or sparse_bsr") for name in ("crow_indices", "col_indices")})
METHODS.update({name: _question(name, "sparse_csc or sparse_bsc") for name in ("ccol_indices", "row_indices")})
METHODS.update(values=_question("values", "sparse_coo, or a compressed one"), _nnz=_question("_nnz", "sparse_coo, or a compressed one",
                                                                                           NotImplementedError))
