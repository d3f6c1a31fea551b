"""Transforms of vectors and matrices: to the simplex, to triangles with a positive diagonal, to correlations."""
import math

from tritorch.distributions import constraints
from tritorch.distributions.parameters import tril_matrix_to_vec, vec_to_tril_matrix
from tritorch.distributions.transforms.elementwise import clipped_sigmoid
from tritorch.distributions.transforms.transform import Transform, too_few
from tritorch.dtype import finfo
from tritorch.errors import check
from tritorch.linalg import cholesky
from tritorch.nn.functional import logsigmoid, pad, softplus
from tritorch.ops.create import arange, eye
from tritorch.shape import Size


class SoftmaxTransform(Transform):
    """y = exp(x) / Σ exp(x) over the last dim. Not bijective: `inv` is the logarithm.

    >>> import tritorch as torch; torch.distributions.SoftmaxTransform()(torch.tensor([0.0, 1.0]))
    tensor([0.2689, 0.7311])
    """

    domain, codomain = constraints.real_vector, constraints.simplex

    def __eq__(self, other):
        return isinstance(other, SoftmaxTransform)

    def _call(self, x):
        return x.softmax(-1)

    def _inverse(self, y):
        return y.log()

    def forward_shape(self, shape):
        too_few(self, shape, 1)
        return shape

    inverse_shape = forward_shape


class StickBreakingTransform(Transform):
    """K - 1 numbers to K probabilities: each takes a share, sigmoid(x[k] - log(K - 1 - k)), of what is left of a stick.

    The offsets make x = 0 the middle of the simplex (Stan's reference manual, simplex transform).

    >>> import tritorch as torch; torch.distributions.StickBreakingTransform()(torch.tensor([0.0, 1.0]))
    tensor([0.3333, 0.4874, 0.1793])
    """

    domain, codomain, bijective = constraints.real_vector, constraints.simplex, True

    def __eq__(self, other):
        return isinstance(other, StickBreakingTransform)

    def _call(self, x):
        share = clipped_sigmoid(x - _left(x).log())
        return pad(share, (0, 1), value=1) * pad((1 - share).cumprod(-1), (1, 0), value=1)

    def _inverse(self, y):
        y = y[..., :-1]
        rest = (1 - y.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)         # rounding may leave less than nothing
        return y.log() - rest.log() + _left(y).log()

    def log_abs_det_jacobian(self, x, y):
        x = x - _left(x).log()
        return (-x + logsigmoid(x) + y[..., :-1].log()).sum(-1)          # 1 - sigmoid(x) = exp(-x) sigmoid(x)

    def forward_shape(self, shape):
        too_few(self, shape, 1)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape):
        too_few(self, shape, 1)
        return Size((*shape[:-1], shape[-1] - 1))


def _left(x):
    """How many pieces are still to be cut: n, n - 1, …, 1."""
    return arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device)


class LowerCholeskyTransform(Transform):
    """A square matrix to a lower triangle whose diagonal is the exponential of the matrix's.

    >>> import tritorch as torch; torch.distributions.LowerCholeskyTransform()(torch.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def __eq__(self, other):
        return isinstance(other, LowerCholeskyTransform)

    def _call(self, x):
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y):
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """A square matrix to L Lᵀ, for the triangle L that `LowerCholeskyTransform` makes of it.

    >>> import tritorch as torch; torch.distributions.PositiveDefiniteTransform()(torch.ones(2, 2))
    tensor([[7.3891, 2.7183],
            [2.7183, 8.3891]])
    """

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def __eq__(self, other):
        return isinstance(other, PositiveDefiniteTransform)

    def _call(self, x):
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.mT

    def _inverse(self, y):
        return LowerCholeskyTransform().inv(cholesky(y))


class CorrCholeskyTransform(Transform):
    """D(D - 1)/2 numbers to the Cholesky factor of a D × D matrix of correlations.

    tanh makes them canonical partial correlations z; row i is z[i, j] √Π(1 - z[i, k]²) over k < j, with 1 for z[i, i]
    (D. Lewandowski, D. Kurowicka and H. Joe, Generating random correlation matrices, 2009).

    >>> import tritorch as torch; torch.distributions.CorrCholeskyTransform()(torch.tensor([0.5]))
    tensor([[1.0000, 0.0000],
            [0.4621, 0.8868]])
    """

    domain, codomain, bijective = constraints.real_vector, constraints.corr_cholesky, True

    def _call(self, x):
        eps = finfo(x.dtype).eps
        z = vec_to_tril_matrix(x.tanh().clamp(-1 + eps, 1 - eps), -1)
        rest = (1 - z**2).sqrt().cumprod(-1)
        return (z + eye(z.shape[-1], dtype=z.dtype, device=z.device)) * pad(rest[..., :-1], (1, 0), value=1)

    def _inverse(self, y):
        rest = pad((1 - (y * y).cumsum(-1))[..., :-1], (1, 0), value=1)
        z = tril_matrix_to_vec(y, -1) / tril_matrix_to_vec(rest, -1).sqrt()
        return (z.log1p() - (-z).log1p()) / 2

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        rest = tril_matrix_to_vec(1 - (y * y).cumsum(-1), -2)
        return 0.5 * rest.log().sum(-1) - 2 * (x + softplus(-2 * x) - math.log(2)).sum(-1)

    def forward_shape(self, shape):
        too_few(self, shape, 1)
        n = shape[-1]
        d = round((0.25 + 2 * n) ** 0.5 + 0.5)
        check(d * (d - 1) // 2 == n, "CorrCholeskyTransform", "as many numbers as a triangle has", n, error=ValueError)
        return Size((*shape[:-1], d, d))

    def inverse_shape(self, shape):
        too_few(self, shape, 2)
        d = shape[-1]
        check(shape[-2] == d, "CorrCholeskyTransform", "a square matrix", tuple(shape), error=ValueError)
        return Size((*shape[:-2], d * (d - 1) // 2))
