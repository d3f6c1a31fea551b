"""How integers stand for numbers: one scale for a tensor or one for each channel, with a zero point or without.

>>> import tritorch as torch
>>> torch.per_channel_symmetric, isinstance(torch.per_tensor_affine, torch.qscheme)
(tritorch.per_channel_symmetric, True)
"""
from tritorch.own_name import ours


class qscheme:
    """The kind of a scheme; its values are the names of this module."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return ours(self.name)

    def __reduce__(self):
        return self.name                                                 # the one object of that name in this module


per_tensor_affine, per_tensor_symmetric = qscheme("per_tensor_affine"), qscheme("per_tensor_symmetric")
per_channel_affine, per_channel_symmetric = qscheme("per_channel_affine"), qscheme("per_channel_symmetric")
per_channel_affine_float_qparams = qscheme("per_channel_affine_float_qparams")


def is_per_channel(scheme):
    """Whether each channel has a scale of its own."""
    return scheme in (per_channel_affine, per_channel_symmetric, per_channel_affine_float_qparams)


def is_symmetric(scheme):
    """Whether 0 lies in the middle of the range."""
    return scheme in (per_tensor_symmetric, per_channel_symmetric)
