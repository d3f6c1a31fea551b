"""The half-normal distribution."""
import math

from tritorch.distributions.folded import Folded
from tritorch.distributions.normal import Normal


class HalfNormal(Folded):
    """|x| for x of Normal(0, scale).

    >>> import tritorch as torch; torch.distributions.HalfNormal(2.0).mean
    tensor(1.5958)
    """

    _parameters = ()

    def __init__(self, scale, validate_args=None):
        super().__init__(Normal(0, scale, validate_args=False), validate_args)

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi), doc="scale √(2/π).")
    variance = property(lambda self: self.scale**2 * (1 - 2 / math.pi), doc="scale² (1 - 2/π).")
