"""How the elements of a tensor are kept, under PyTorch's names: `strided`, or as a sparse tensor keeps them (see tritorch/sparse).

>>> import tritorch as torch
>>> torch.ones(2).layout, torch.ones(2).to_sparse().layout
(tritorch.strided, tritorch.sparse_coo)
"""

from tritorch.errors import check, sentence
from tritorch.own_name import ours


class layout:
    """A way of keeping elements: `strided`, or a sparse one, such as `sparse_csr`."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return ours(self.name)

    def __reduce__(self):
        return self.name                                                 # the one object of that name in this module


strided, sparse_coo, sparse_csr, sparse_csc = layout("strided"), layout("sparse_coo"), layout("sparse_csr"), layout("sparse_csc")
sparse_bsr, sparse_bsc, jagged, _mkldnn = layout("sparse_bsr"), layout("sparse_bsc"), layout("jagged"), layout("_mkldnn")
others: list[type] = []                          # the classes of tensors that are not strided, once there may be some


def only_strided(name, wanted):
    """Refuse what is no layout, and all but strided ones."""
    if wanted is None or wanted is strided:
        return
    check(isinstance(wanted, layout), name, "a layout", type(wanted).__name__, error=TypeError)
    raise NotImplementedError(sentence(name, "the layout strided", wanted, use="x.to_sparse()"))
