"""The Wishart distribution of covariance matrices."""
import math
import warnings
from numbers import Number

from tritorch.distributions import constraints
from tritorch.distributions.chi2 import Chi2
from tritorch.distributions.exp_family import ExponentialFamily
from tritorch.distributions.multivariate_normal import OfCovariance
from tritorch.dtype import finfo
from tritorch.errors import check
from tritorch.linalg import slogdet
from tritorch.ops.bounds import every
from tritorch.ops.cholesky import cholesky_solve
from tritorch.ops.compare import where
from tritorch.ops.create import arange, full
from tritorch.ops.gamma_functions import mvlgamma
from tritorch.ops.random import randn
from tritorch.ops.shaping import broadcast_shapes
from tritorch.shape import Size


class Wishart(OfCovariance, ExponentialFamily):
    """Σ z zᵀ over `df` normal vectors z of covariance Σ, as in `MultivariateNormal`, and its continuation to all df > p - 1.

    By the decomposition of M. S. Bartlett (1933): L A Aᵀ Lᵀ, where A is lower triangular, below its diagonal normal, on it a root of χ²
    numbers with df, df - 1, … degrees of freedom.

    >>> import tritorch as torch; torch.distributions.Wishart(3.0, torch.eye(2)).log_prob(torch.eye(2))
    tensor(-3.5310)
    """

    support, has_rsample, _mean_carrier_measure = constraints.positive_definite, True, 0
    _parameters = "df", "covariance_matrix", "precision_matrix", "scale_tril", "_unbroadcasted_scale_tril", "_dist_chi2"

    def __init__(self, df, covariance_matrix=None, precision_matrix=None, scale_tril=None, validate_args=None):
        name, matrix = self._one_of(AssertionError, covariance_matrix=covariance_matrix, precision_matrix=precision_matrix,
                                    scale_tril=scale_tril)
        df = full((), df, dtype=matrix.dtype, device=matrix.device) if isinstance(df, Number) else df
        self._batch_shape, p = broadcast_shapes(matrix.shape[:-2], df.shape), matrix.shape[-1]
        self.df = df.expand(self._batch_shape)
        if df.device.type == "cpu":
            check(not bool(every(df <= p - 1).any()), "Wishart", f"df above {p - 1}", df.detach(), error=ValueError)
            if bool(every(df < p).any()):
                warnings.warn(f"Wishart: samples for df < {p} are nearly singular", stacklevel=2)
        self._keep(name, matrix)
        super().__init__(self._batch_shape, matrix.shape[-2:], validate_args)
        self._factor(name, matrix)
        self._unbroadcasted_scale_tril = self._whole(self._unbroadcasted_scale_tril)
        self._dist_chi2 = Chi2(self.df.unsqueeze(-1) - arange(p, dtype=matrix.dtype, device=matrix.device), validate_args)

    arg_constraints = property(lambda self: {**self.matrix_constraints, "df": constraints.greater_than(self._event_shape[-1] - 1)},
                               doc="df > p - 1, and those of the matrices.")
    _matrix_df = property(lambda self: self.df.unsqueeze(-1).unsqueeze(-1))
    mean = property(lambda self: self._matrix_df * self.covariance_matrix, doc="df · Σ.")

    @property
    def mode(self):
        """(df - p - 1) Σ where that is positive, else NaN."""
        factor = self._matrix_df - self._event_shape[-1] - 1
        return where(factor <= 0, math.nan, factor) * self.covariance_matrix

    @property
    def variance(self):
        """df (Σ[i, j]² + Σ[i, i] Σ[j, j])."""
        diagonal = self.covariance_matrix.diagonal(dim1=-2, dim2=-1)
        return self._matrix_df * (self.covariance_matrix**2 + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def _draw(self, sample_shape):
        factor = self._unbroadcasted_scale_tril
        roots = self._dist_chi2.rsample(sample_shape).sqrt().clamp(min=finfo(factor.dtype).eps)
        below = randn(self._extended_shape(sample_shape), dtype=factor.dtype, device=factor.device).tril(-1)
        made = factor @ (below + roots.diag_embed())
        return made @ made.mT

    def rsample(self, sample_shape=(), max_try_correction=None):
        """Outcomes. On the CPU those that rounding has made singular are drawn again, up to `max_try_correction` (10) times."""
        sample_shape = Size(sample_shape)
        sample = self._draw(sample_shape)
        for _ in range(10 if max_try_correction is None else max_try_correction):
            if sample.device.type != "cpu":
                break
            regular = self.support.check(sample.detach())
            if bool(every(regular).all()):
                break
            warnings.warn("Wishart: a singular sample is drawn again", stacklevel=2)
            sample = where(regular.unsqueeze(-1).unsqueeze(-1), sample, self._draw(sample_shape))
        return sample

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        df, p = self.df, self._event_shape[-1]
        norm = df * (p * math.log(2) / 2 + self._half_log_det()) + mvlgamma(df / 2, p)
        trace = cholesky_solve(value, self._unbroadcasted_scale_tril).diagonal(dim1=-2, dim2=-1).sum(-1)
        return (df - p - 1) / 2 * slogdet(value)[1] - trace / 2 - norm

    def entropy(self):
        half, p = self.df / 2, self._event_shape[-1]
        steps = arange(p, dtype=half.dtype, device=half.device) / 2
        digammas = (half.unsqueeze(-1) - steps).digamma().sum(-1)
        size = (p + 1) * (p * math.log(2) / 2 + self._half_log_det())
        return size + mvlgamma(half, p) - (self.df - p - 1) / 2 * digammas + half * p

    _natural_params = property(lambda self: (-self.precision_matrix / 2, (self.df - self._event_shape[-1] - 1) / 2))

    def _log_normalizer(self, x, y):
        p = self._event_shape[-1]
        half = y + (p + 1) / 2
        return half * (p * math.log(2) - slogdet(-2 * x)[1]) + mvlgamma(half, p)
