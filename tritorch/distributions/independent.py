"""Several outcomes that are drawn together and count as one."""
from tritorch.distributions.distribution import Distribution
from tritorch.errors import check


class Independent(Distribution):
    """A distribution whose last batch dims are dims of its outcome: log_prob and entropy are summed over them."""

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        ndims = len(base_distribution.batch_shape)
        check(reinterpreted_batch_ndims <= ndims, "Independent", f"at most {ndims} dims", reinterpreted_batch_ndims, error=ValueError)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        at = ndims - reinterpreted_batch_ndims
        super().__init__(base_distribution.batch_shape[:at], (*base_distribution.batch_shape[at:], *base_distribution.event_shape),
                         validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample)
    mean = property(lambda self: self.base_dist.mean, doc="The mean.")
    mode = property(lambda self: self.base_dist.mode, doc="The mode.")
    variance = property(lambda self: self.base_dist.variance, doc="The variance.")

    def _sum(self, x):
        return x.sum(tuple(range(-self.reinterpreted_batch_ndims, 0))) if self.reinterpreted_batch_ndims else x

    def expand(self, batch_shape, _instance=None):
        within = self.base_dist.batch_shape[len(self._batch_shape):]
        return Independent(self.base_dist.expand((*batch_shape, *within)), self.reinterpreted_batch_ndims)

    def sample(self, sample_shape=()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return self._sum(self.base_dist.log_prob(value))

    def entropy(self):
        return self._sum(self.base_dist.entropy())

    def __repr__(self):
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
