"""How masked tensors are made."""
from tritorch.masked.maskedtensor.core import MaskedTensor

__all__ = ["as_masked_tensor", "masked_tensor"]


def masked_tensor(data, mask, requires_grad=False):
    """A copy of `data` with a mask of its shape, bools, True where an element counts: a leaf, as `tensor` makes.

    >>> import tritorch as torch
    >>> torch.masked.masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    MaskedTensor(
      [  1.0000,       --]
    )
    """
    return MaskedTensor(data, mask, requires_grad)


def as_masked_tensor(data, mask):
    """`data` with a mask, and with its history: gradients of what does not count are 0.

    >>> import tritorch as torch; x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.masked.as_masked_tensor(x * x, torch.tensor([True, False])).sum().backward(); x.grad
    tensor([2., 0.])
    """
    return MaskedTensor._from_values(data, mask)
