"""The normal distribution of vectors whose covariance is a diagonal and a few directions."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.multivariate_normal import factor, mahalanobis, times_vectors
from tritorch.distributions.parameters import lazy_property
from tritorch.errors import check
from tritorch.linalg import solve_triangular
from tritorch.ops.create import eye
from tritorch.ops.random import randn
from tritorch.ops.shaping import broadcast_tensors
from tritorch.ops.triangles import diag_embed


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of n numbers with the covariance W Wᵀ + D, for W = `cov_factor` (…, n, m) and a diagonal D = `cov_diag` (…, n).

    Only m × m matrices, I + WᵀD⁻¹W, are factored: the inverse is D⁻¹ - D⁻¹W (I + WᵀD⁻¹W)⁻¹ WᵀD⁻¹ (Woodbury), and the determinant is
    that of D times that of the small matrix.

    >>> import tritorch as torch
    >>> torch.distributions.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)).covariance_matrix
    tensor([[2., 1.],
            [1., 2.]])
    """

    arg_constraints = {"loc": constraints.real_vector, "cov_factor": constraints.independent(constraints.real, 2),
                       "cov_diag": constraints.independent(constraints.positive, 1)}
    support, has_rsample, _parameters = constraints.real_vector, True, ("loc", "cov_factor", "cov_diag")

    def __init__(self, loc, cov_factor, cov_diag, validate_args=None):
        name, (n, dims) = "LowRankMultivariateNormal", (loc.shape[-1:], len(cov_factor.shape))
        check(len(loc.shape) > 0, name, "loc of at least one dim", loc.shape, error=ValueError)
        check(dims >= 2 and cov_factor.shape[-2] == n[0], name, f"cov_factor of shape (…, {n[0]}, m)", cov_factor.shape, error=ValueError)
        check(cov_diag.shape[-1:] == n, name, f"cov_diag of shape (…, {n[0]})", cov_diag.shape, error=ValueError)
        try:
            at, self.cov_factor, diag = broadcast_tensors(loc.unsqueeze(-1), cov_factor, cov_diag.unsqueeze(-1))
        except RuntimeError as error:
            raise ValueError(f"{name}: {error}") from error
        self.loc, self.cov_diag = at[..., 0], diag[..., 0]
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        self._capacitance_tril = factor(_plus_identity(cov_factor.mT / cov_diag.unsqueeze(-2) @ cov_factor))
        super().__init__(self.loc.shape[:-1], n, validate_args)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        for name in ("_unbroadcasted_cov_factor", "_unbroadcasted_cov_diag", "_capacitance_tril"):
            setattr(new, name, getattr(self, name))
        return new

    mean = mode = property(lambda self: self.loc, doc="loc.")

    def _whole(self, x, dims):
        return x.expand(*self._batch_shape, *[-1] * dims)

    @lazy_property
    def variance(self):
        """The diagonal of the covariance."""
        return self._whole((self._unbroadcasted_cov_factor**2).sum(-1) + self._unbroadcasted_cov_diag, 1)

    @lazy_property
    def scale_tril(self):
        """The Cholesky factor of the covariance."""
        root = self._unbroadcasted_cov_diag.sqrt().unsqueeze(-1)
        scaled = self._unbroadcasted_cov_factor / root
        return self._whole(root * factor(_plus_identity(scaled @ scaled.mT)), 2)

    @lazy_property
    def covariance_matrix(self):
        """W Wᵀ + D."""
        w = self._unbroadcasted_cov_factor
        return self._whole(w @ w.mT + diag_embed(self._unbroadcasted_cov_diag), 2)

    @lazy_property
    def precision_matrix(self):
        """(W Wᵀ + D)⁻¹."""
        a = self._half()
        return self._whole(diag_embed(self._unbroadcasted_cov_diag.reciprocal()) - a.mT @ a, 2)

    def _half(self):
        """A with AᵀA = D⁻¹ - (W Wᵀ + D)⁻¹."""
        scaled = self._unbroadcasted_cov_factor.mT / self._unbroadcasted_cov_diag.unsqueeze(-2)
        return solve_triangular(self._capacitance_tril, scaled, upper=False)

    def _log_det(self):
        return 2 * self._capacitance_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1) + self._unbroadcasted_cov_diag.log().sum(-1)

    def _mahalanobis(self, x):
        scaled = self._unbroadcasted_cov_factor.mT / self._unbroadcasted_cov_diag.unsqueeze(-2)
        return (x**2 / self._unbroadcasted_cov_diag).sum(-1) - mahalanobis(self._capacitance_tril, times_vectors(scaled, x))

    def rsample(self, sample_shape=()):
        shape, options = self._extended_shape(sample_shape), dict(dtype=self.loc.dtype, device=self.loc.device)
        along, each = randn((*shape[:-1], self.cov_factor.shape[-1]), **options), randn(shape, **options)
        return self.loc + times_vectors(self._unbroadcasted_cov_factor, along) + self._unbroadcasted_cov_diag.sqrt() * each

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + self._log_det() + self._mahalanobis(value - self.loc))

    def entropy(self):
        found = 0.5 * (self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_det())
        return found.expand(self._batch_shape)


def _plus_identity(x):
    return x + eye(x.shape[-1], dtype=x.dtype, device=x.device)
