"""How sparse tensors look when printed: PyTorch's format, character for character."""
from tritorch.dtype import get_default_dtype, types
from tritorch.printing import contents, suffixed
from tritorch.sparse.compressed import BY_ROWS
from tritorch.sparse.coo import Coo


def _shown(name, part, first):
    """A part with its name, `first` columns in; without elements its size."""
    head = f"{name}=tensor("
    text = head + contents(part, first + len(head))
    return text + (f", size={tuple(part.shape)})" if not part.numel() else ")")


def sparse_repr(x):
    """The text of a sparse tensor.

    >>> import tritorch as torch; torch.eye(2).to_sparse()
    tensor(indices=tensor([[0, 1],
                           [0, 1]]),
           values=tensor([1., 1.]),
           size=(2, 2), nnz=2, layout=tritorch.sparse_coo)
    """
    indent = len("tensor(")
    names = ("indices",) if isinstance(x, Coo) else ("crow_indices", "col_indices") if x.layout in BY_ROWS else (
        "ccol_indices", "row_indices")
    parts = [_shown(name, part, indent) for name, part in zip((*names, "values"), x.parts)]
    return suffixed("tensor(" + (",\n" + " " * indent).join(parts), _suffixes(x), indent, isinstance(x, Coo))


def _suffixes(x):
    """What follows the parts."""
    if x.device.type != "cpu":
        yield f"device='{x.device}'"
    yield f"size={tuple(x.shape)}"
    yield f"nnz={x._nnz()}"
    usual = get_default_dtype()
    if x.dtype not in (usual, usual.to_complex(), types.int64, types.bool):
        yield f"dtype={x.dtype}"
    yield f"layout={x.layout}"
    if x.grad_fn is not None:
        yield f"grad_fn=<{x.grad_fn.name()}>"
    elif x.requires_grad:
        yield "requires_grad=True"
