"""Rows of channels seen as images of one line: what is written for images does them, too."""
from tritorch.dispatch import op
from tritorch.errors import check
from tritorch.memory_format import contiguous_format, suggested
from tritorch.tensor import strided


@op
def as_lines(x):
    """(N, C, L) seen as (N, C, 1, L). Formats are for tensors of 4 and 5 dims: where strides would say channels last, the one of the new
    dim, which nothing is reached by, says otherwise, and results are contiguous, as PyTorch's are.

    >>> import tritorch as torch; from tritorch.ops.lines import as_lines
    >>> as_lines(torch.zeros(2, 3, 5)).shape
    tritorch.Size([2, 3, 1, 5])
    """
    check(len(x.shape) == 3, "as_lines", "rows of channels (N, C, L)", x.shape)
    (n, c, length), (batch, channel, place) = x.shape, x.strides
    shape, strides = (n, c, 1, length), (batch, channel, place * length, place)
    if suggested(shape, strides) is not contiguous_format:
        strides = batch, channel, batch * (n + 1), place
    return strided(x.storage, shape, strides, x.offset, x.dtype)


@as_lines.grad("x")
def as_lines_grad(g):
    return g.squeeze(2)


@as_lines.samples
def as_lines_samples(make):
    yield make(2, 3, 4),
    yield make(0, 3, 4),


@as_lines.errors
def as_lines_errors(make):
    yield (make(2, 3),), {}, RuntimeError, "rows of channels"
