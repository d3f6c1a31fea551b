"""The normal distribution of vectors."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.distribution import Distribution
from tritorch.distributions.parameters import lazy_property
from tritorch.errors import check
from tritorch.linalg import cholesky, cholesky_ex, solve_triangular
from tritorch.ops.cholesky import cholesky_inverse
from tritorch.ops.create import eye
from tritorch.ops.random import randn
from tritorch.ops.shaping import broadcast_shapes


class OfCovariance(Distribution):
    """The base of those that are given a covariance matrix, its inverse (the precision matrix), or its Cholesky factor (scale_tril): one
    of the three, whose names are those of the parameters. The others are computed when asked for."""

    matrix_constraints = {"covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
                          "scale_tril": constraints.lower_cholesky}

    def _one_of(self, error, **matrices):
        """(name, matrix) of the one that is given."""
        given = [(name, m) for name, m in matrices.items() if m is not None]
        check(len(given) == 1, type(self).__name__, "one of covariance_matrix, precision_matrix and scale_tril", [n for n, _ in given],
              error=error)
        (name, matrix), = given
        check(len(matrix.shape) >= 2, type(self).__name__, f"{name} of two dims or more", matrix.shape, error=ValueError)
        return name, matrix

    def _keep(self, name, matrix):
        """The matrix for the whole batch, and, once it has been checked, by `_factor` the factor without the batch's repetitions."""
        self.__dict__[name] = matrix.expand(*self._batch_shape, -1, -1)

    def _factor(self, name, matrix):
        if name == "covariance_matrix":
            matrix = factor(matrix)
        elif name == "precision_matrix":                                 # P = U Uᵀ with U upper triangular; the factor is U⁻ᵀ
            upper = factor(matrix.flip((-2, -1))).flip((-2, -1))
            matrix = solve_triangular(upper.mT, eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device), upper=False)
        self._unbroadcasted_scale_tril = matrix

    def _whole(self, matrix):
        return matrix.expand(*self._batch_shape, -1, -1)

    @lazy_property
    def scale_tril(self):
        """The Cholesky factor L of the covariance matrix."""
        return self._whole(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self):
        """L Lᵀ."""
        return self._whole(self._unbroadcasted_scale_tril @ self._unbroadcasted_scale_tril.mT)

    @lazy_property
    def precision_matrix(self):
        """(L Lᵀ)⁻¹."""
        return self._whole(cholesky_inverse(self._unbroadcasted_scale_tril))

    def _half_log_det(self):
        return self._unbroadcasted_scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class MultivariateNormal(OfCovariance):
    """exp(-(x - loc)ᵀ Σ⁻¹ (x - loc) / 2) / √det(2πΣ), for Σ = L Lᵀ = P⁻¹: `covariance_matrix`, `scale_tril` and `precision_matrix`.

    >>> import tritorch as torch
    >>> p = torch.distributions.MultivariateNormal(torch.zeros(2), covariance_matrix=torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> p.log_prob(torch.tensor([[0.0, 0.0], [1.0, 1.0]])), p.precision_matrix
    (tensor([-2.3872, -2.7205]), tensor([[ 0.6667, -0.3333],
            [-0.3333,  0.6667]]))
    """

    arg_constraints = {"loc": constraints.real_vector, **OfCovariance.matrix_constraints}
    support, has_rsample = constraints.real_vector, True
    _parameters = "loc", "covariance_matrix", "precision_matrix", "scale_tril"

    def __init__(self, loc, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        check(len(loc.shape) > 0, "MultivariateNormal", "loc of at least one dim", loc.shape, error=ValueError)
        name, matrix = self._one_of(ValueError, covariance_matrix=covariance_matrix, precision_matrix=precision_matrix,
                                    scale_tril=scale_tril)
        self._batch_shape = broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        self._keep(name, matrix)
        self.loc = loc.expand(*self._batch_shape, -1)
        super().__init__(self._batch_shape, loc.shape[-1:], validate_args)
        self._factor(name, matrix)

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new._unbroadcasted_scale_tril = self._unbroadcasted_scale_tril
        return new

    mean = mode = property(lambda self: self.loc, doc="loc.")

    @property
    def variance(self):
        """The diagonal of Σ."""
        return (self._unbroadcasted_scale_tril**2).sum(-1).expand(*self._batch_shape, -1)

    def rsample(self, sample_shape=()):
        z = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + times_vectors(self._unbroadcasted_scale_tril, z)

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        square = mahalanobis(self._unbroadcasted_scale_tril, value - self.loc)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + square) - self._half_log_det()

    def entropy(self):
        found = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._half_log_det()
        return found.expand(self._batch_shape)


def factor(matrix):
    """The Cholesky factor. On a device, where nothing waits for a check, there are NaN for what is not positive definite."""
    return cholesky(matrix) if matrix.device.type == "cpu" else cholesky_ex(matrix)[0]


def times_vectors(matrix, x):
    """matrix @ x, for vectors x."""
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)


def mahalanobis(lower, x):
    """xᵀ (L Lᵀ)⁻¹ x = |L⁻¹x|², for vectors x of as many dims as the batch of L has, or more: those are columns of one system."""
    batch, vectors = len(lower.shape) - 2, x.shape[:-1]
    more = len(vectors) - batch
    columns = x.reshape(-1, *x.shape[more:]).movedim(0, -1)              # (…, n, how many)
    square = (solve_triangular(lower, columns, upper=False) ** 2).sum(-2)
    return square.movedim(-1, 0).reshape(vectors)
