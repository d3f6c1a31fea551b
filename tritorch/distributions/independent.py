"""Several outcomes that are drawn together and count as one."""
from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import sum_rightmost
from tritorch.errors import check


class Independent(Distribution):
    """A distribution whose last batch dims are dims of its outcome: log_prob and entropy are summed over them.

    >>> import tritorch as torch; torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), 1.0), 1)
    Independent(Normal(loc: torch.Size([3, 2]), scale: torch.Size([3, 2])), 1)
    """

    arg_constraints, _parameters = {}, ("base_dist",)

    def __init__(self, base_distribution, reinterpreted_batch_ndims, validate_args=None):
        ndims = len(base_distribution.batch_shape)
        check(reinterpreted_batch_ndims <= ndims, "Independent", f"at most {ndims} dims", reinterpreted_batch_ndims, error=ValueError)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        at = ndims - reinterpreted_batch_ndims
        super().__init__(base_distribution.batch_shape[:at], (*base_distribution.batch_shape[at:], *base_distribution.event_shape),
                         validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample, doc="Whether gradients flow through outcomes.")
    has_enumerate_support = property(lambda self: not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support,
                                     doc="Whether the outcomes can be listed.")
    mean = property(lambda self: self.base_dist.mean, doc="The mean.")
    mode = property(lambda self: self.base_dist.mode, doc="The mode.")
    variance = property(lambda self: self.base_dist.variance, doc="The variance.")

    @constraints.dependent_property
    def support(self):
        """That of the base; an event is valid where all of its values are."""
        own, ndims = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(own, ndims) if ndims else own

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.reinterpreted_batch_ndims = self.reinterpreted_batch_ndims
        return new

    def sample(self, sample_shape=()):
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape=()):
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value):
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self):
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand=True):
        check(self.reinterpreted_batch_ndims == 0, "Independent", "no dims of the batch in an event, to enumerate",
              self.reinterpreted_batch_ndims, error=NotImplementedError)
        return self.base_dist.enumerate_support(expand)

    def __repr__(self):
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
