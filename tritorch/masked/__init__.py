"""Tensors some of whose elements count, and what they amount to, under the names of torch.masked.

Functions take `mask=`: bools (other dtypes are cast) that broadcast to the input, True where an element counts; None counts all. The rest
has the neutral value of the reduction in its place: of nothing a sum is 0, a product 1, a maximum -inf, a mean NaN. `dtype` is that of the
result, by default the input's, also of cumsum and of the places argmax and argmin find, but int64 for sums and products of whole numbers.
A `MaskedTensor` carries its mask along.

>>> import tritorch as torch; x, kept = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
>>> torch.masked.mean(x, 1, mask=kept), torch.masked.amax(x, 1, mask=kept), torch.masked.softmax(x, 1, mask=kept)
(tensor([1.5000]), tensor([2.]), tensor([[0.2689, 0.7311, 0.0000]]))
>>> torch.masked.masked_tensor(x, kept).mean(1)
MaskedTensor(
  [  1.5000]
)
"""
from tritorch.masked.functions import (
    amax,
    amin,
    argmax,
    argmin,
    cumprod,
    cumsum,
    log_softmax,
    logaddexp,
    logsumexp,
    mean,
    median,
    norm,
    normalize,
    prod,
    softmax,
    softmin,
    std,
    sum,
    var,
)

LATER = "MaskedTensor", "as_masked_tensor", "is_masked_tensor", "masked_tensor"
__all__ = ["MaskedTensor", "amax", "amin", "argmax", "argmin", "as_masked_tensor", "cumprod", "cumsum", "is_masked_tensor",
           "log_softmax", "logaddexp", "logsumexp", "masked_tensor", "mean", "median", "norm", "normalize", "prod", "softmax", "softmin",
           "std", "sum", "var"]


def __getattr__(name):
    """A class that sees calls is made when somebody asks for it: public functions then look for its objects."""
    if name in LATER:
        from tritorch.masked import maskedtensor

        found = globals()[name] = getattr(maskedtensor, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
