"""The continuous Bernoulli distribution: numbers between 0 and 1, with the Bernoulli distribution's likelihood, normalized."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.parameters import Either, broadcast_all, clamp_probs, lazy_property
from tritorch.errors import check
from tritorch.nn.functional import binary_cross_entropy_with_logits
from tritorch.ops.bounds import every
from tritorch.ops.compare import where
from tritorch.ops.random import rand


class ContinuousBernoulli(Either, ExponentialFamily):
    """C(p) p^x (1 - p)^(1 - x) in [0, 1] (G. Loaiza-Ganem and J. P. Cunningham, arXiv:1907.06845).

    Between the two `lims` around 1/2, where formulas are 0/0, Taylor series take their place.

    >>> import tritorch as torch; torch.distributions.ContinuousBernoulli(torch.tensor([0.5, 0.9])).mean
    tensor([0.5000, 0.6699])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support, has_rsample, _parameters, _mean_carrier_measure = constraints.unit_interval, True, ("probs", "logits"), 0

    def __init__(self, probs=None, logits=None, lims=(0.499, 0.501), validate_args=None):
        self._take(probs, logits)
        self._lims = lims
        if probs is not None:
            if validate_args and self.probs.device.type == "cpu":        # unless asked, what lies outside is moved inside, as in PyTorch
                check(bool(every(constraints.unit_interval.check(self.probs.detach())).all()), "ContinuousBernoulli", "probs in [0, 1]",
                      self.probs.detach(), error=ValueError)
            self.probs = clamp_probs(self.probs)
        super().__init__(self._param.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new._lims = self._lims
        return new

    @lazy_property
    def probs(self):
        """The parameter p."""
        return clamp_probs(self.logits.sigmoid())

    def _steep(self):
        """(where p is outside the two limits, p with the lower limit where it is not)."""
        p, (low, high) = self.probs, self._lims
        steep = (p <= low) | (p > high)
        return steep, where(steep, p, low)

    def _cont_bern_log_norm(self):
        """log C(p), C = 2 artanh(1 - 2p) / (1 - 2p)."""
        steep, p = self._steep()
        formula = ((-p).log1p() - p.log()).abs().log() - (1 - 2 * p).abs().log()
        x = (self.probs - 0.5) ** 2
        return where(steep, formula, math.log(2) + (4 / 3 + 104 / 45 * x) * x)

    @property
    def mean(self):
        """p / (2p - 1) + 1 / (2 artanh(1 - 2p))."""
        steep, p = self._steep()
        x = self.probs - 0.5
        return where(steep, p / (2 * p - 1) + 1 / ((-p).log1p() - p.log()), 0.5 + (1 / 3 + 16 / 45 * x**2) * x)

    @property
    def variance(self):
        """(p - 1) p / (1 - 2p)² + 1 / (2 artanh(1 - 2p))²."""
        steep, p = self._steep()
        x = (self.probs - 0.5) ** 2
        formula = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / ((-p).log1p() - p.log()) ** 2
        return where(steep, formula, 1 / 12 - (1 / 15 - 128 / 945 * x) * x)

    _natural_params = property(lambda self: (self.logits,))

    def _log_normalizer(self, x):
        low, high = self._lims[0] - 0.5, self._lims[1] - 0.5
        steep = (x <= low) | (x > high)
        cut = where(steep, x, low)
        return where(steep, cut.expm1().abs().log() - cut.abs().log(), 0.5 * x + x**2 / 24 - x**4 / 2880)

    def rsample(self, sample_shape=()):
        return self.icdf(rand(self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return self._cont_bern_log_norm() - binary_cross_entropy_with_logits(logits, value, reduction="none")

    def cdf(self, value):
        if self._validate_args:
            self._validate_sample(value)
        steep, p = self._steep()
        inner = where(steep, (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1), value)
        return where(value <= 0, 0.0, where(value >= 1, 1.0, inner))

    def icdf(self, value):
        steep, p = self._steep()
        rest = (-p).log1p()
        return where(steep, ((-p + value * (2 * p - 1)).log1p() - rest) / (p.log() - rest), value)

    def entropy(self):
        log_0, log_1 = (-self.probs).log1p(), self.probs.log()
        return self.mean * (log_0 - log_1) - self._cont_bern_log_norm() - log_0
