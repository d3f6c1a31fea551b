"""How the elements of a tensor are kept, under PyTorch's names: here always `strided`. The others are there to be compared with.

>>> import tritorch as torch
>>> torch.ones(2).layout, torch.ones(2).layout == torch.sparse_coo
(tritorch.strided, False)
"""


from tritorch.errors import check, sentence


class layout:
    """A way of keeping elements: `strided`, or one of those that are not supported, such as `sparse_csr`."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"tritorch.{self.name}"

    def __reduce__(self):
        return self.name                                                 # the one object of that name in this module


strided, sparse_coo, sparse_csr, sparse_csc = layout("strided"), layout("sparse_coo"), layout("sparse_csr"), layout("sparse_csc")
sparse_bsr, sparse_bsc, jagged, _mkldnn = layout("sparse_bsr"), layout("sparse_bsc"), layout("jagged"), layout("_mkldnn")


def only_strided(name, wanted):
    """Refuse what is no layout, and those that tensors do not have."""
    if wanted is None or wanted is strided:
        return
    check(isinstance(wanted, layout), name, "a layout", type(wanted).__name__, error=TypeError)
    raise NotImplementedError(sentence(name, "the layout strided, which all tensors have", wanted))
