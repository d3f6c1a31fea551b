"""The half-Cauchy distribution."""
import math

from tritorch.distributions.cauchy import Cauchy
from tritorch.distributions.folded import Folded
from tritorch.interop import as_tensor


class HalfCauchy(Folded):
    """|x| for x of Cauchy(0, scale).

    >>> import tritorch as torch; torch.distributions.HalfCauchy(2.0).icdf(torch.tensor(0.5))
    tensor(2.)
    """

    _parameters = ()

    def __init__(self, scale, validate_args=None):
        super().__init__(Cauchy(0, scale, validate_args=False), validate_args)

    mean = property(lambda self: self.scale.new_full(self._batch_shape, math.inf), doc="Infinite.")
    variance = property(lambda self: self.base_dist.variance, doc="Infinite.")

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return super().log_prob(as_tensor(value, self.scale.dtype, self.scale.device))
