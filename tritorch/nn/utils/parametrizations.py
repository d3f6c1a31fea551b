"""Orthogonal weights, weight and spectral normalisation as parametrizations: the weight is made whenever it is read."""
from tritorch import linalg
from tritorch.autograd import no_grad
from tritorch.dtype import finfo
from tritorch.nn.functional import normalize
from tritorch.nn.module import Module
from tritorch.nn.utils.parametrize import register_parametrization
from tritorch.nn.utils.spectral_norm import as_matrix, draw_vectors, output_dim
from tritorch.nn.utils.weight_norm import lengths
from tritorch.ops.compare import where
from tritorch.ops.create import eye
from tritorch.ops.householder import geqrf
from tritorch.ops.matmul import dot, mv
from tritorch.ops.random import randn
from tritorch.ops.shaping import cat
from tritorch.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

MAPS = "matrix_exp", "cayley", "householder"


class _WeightNorm(Module):
    def __init__(self, dim=0):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g, weight_v):
        return weight_v * (weight_g / lengths(weight_v, self.dim))

    def right_inverse(self, weight):
        return lengths(weight, self.dim), weight


def weight_norm(module, name="weight", dim=0):
    """Let `module.weight` be g · v / ‖v‖: its lengths over all dims but `dim` (None: over all) are trained by themselves.

    Salimans and Kingma 2016. g and v are `module.parametrizations.weight.original0` and `original1`; a state dict of the older
    `tritorch.nn.utils.weight_norm` is loaded too.

    >>> import tritorch as torch
    >>> net = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(20, 40))
    >>> net.parametrizations.weight.original0.shape, net.weight.shape
    (tritorch.Size([40, 1]), tritorch.Size([40, 20]))
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def take_older_names(state_dict, prefix, *_):
        if f"{prefix}{name}_g" in state_dict and f"{prefix}{name}_v" in state_dict:
            for i, part in enumerate("gv"):
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = state_dict.pop(f"{prefix}{name}_{part}")

    module._register_load_state_dict_pre_hook(take_older_names)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight, n_power_iterations=1, dim=0, eps=1e-12):
        super().__init__()
        ndim = weight.ndim
        if not -ndim <= dim < ndim:
            raise IndexError(f"spectral_norm: expected dim from {-ndim} to {ndim - 1}, got {dim}")
        if n_power_iterations <= 0:
            raise ValueError(f"spectral_norm: expected n_power_iterations > 0, got {n_power_iterations}")
        self.dim, self.eps, self.n_power_iterations = dim % ndim, eps, n_power_iterations
        if ndim > 1:                                                     # the norm of a vector is its length
            matrix = as_matrix(weight.detach(), self.dim)
            for side, vector in zip("uv", draw_vectors(matrix, eps), strict=True):
                self.register_buffer(f"_{side}", vector)
            self._iterate(matrix, 15)

    def _iterate(self, matrix, times):
        with no_grad():
            for _ in range(times):
                normalize(mv(matrix, self._v), dim=0, eps=self.eps, out=self._u)
                normalize(mv(matrix.t(), self._u), dim=0, eps=self.eps, out=self._v)

    def forward(self, weight):
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()                          # the next forward writes them before this one's backward
        return weight / dot(u, mv(matrix, v))

    def right_inverse(self, value):
        return value


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Let `module.weight` be original / σ, where σ is its largest singular value as the power method sees it.

    The method begins with 15 iterations, and makes `n_power_iterations` more whenever the weight is read in training mode. Miyato et
    al. 2018. `dim` counts the outputs.

    >>> import tritorch as torch
    >>> net = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(20, 40))
    >>> net.parametrizations.weight.original.shape, net.parametrizations.weight[0]._u.shape
    (tritorch.Size([40, 20]), tritorch.Size([40]))
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"spectral_norm: expected the name of a parameter or buffer of {type(module).__name__}, got '{name}'")
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, output_dim(module, dim), eps))


class _Orthogonal(Module):
    """The parametrization of `orthogonal`. Matrices that are wider than high are seen transposed: n is the larger size, k the other."""

    def __init__(self, weight, orthogonal_map, use_trivialization):
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X):
        wide = X.size(-2) < X.size(-1)
        X = X.mT if wide else X
        n, k = X.size(-2), X.size(-1)
        if self.orthogonal_map == "householder":
            vectors = X.tril(-1)                                         # each with the 1 on the diagonal that it begins with
            Q = linalg.householder_product(vectors, 2.0 / (1.0 + (vectors * vectors).sum(-2)))
            Q = Q * X.diagonal(dim1=-2, dim2=-1).int().unsqueeze(-2)     # ±1: the signs, which are not trained
        else:
            lower = X.tril()
            if k < n:
                lower = cat([lower, lower.new_zeros(*lower.shape[:-1], n - k)], -1)
            skew = lower - lower.mH
            if self.orthogonal_map == "matrix_exp":
                Q = linalg.matrix_exp(skew)
            else:
                one = eye(n, dtype=X.dtype, device=X.device)
                Q = linalg.solve(one - 0.5 * skew, one + 0.5 * skew)
            Q = Q[..., :k]
        if hasattr(self, "base"):
            Q = self.base @ Q
        return Q.mT if wide else Q

    def right_inverse(self, value):
        if value.shape != self.shape:
            raise ValueError(f"orthogonal: expected a matrix or batch of matrices of shape {tuple(self.shape)}, got {tuple(value.shape)}")
        wide = value.size(-2) < value.size(-1)
        Q = value.mT if wide else value
        n, k = Q.size(-2), Q.size(-1)
        if hasattr(self, "base"):
            others = randn(*Q.shape[:-1], n - k, dtype=Q.dtype, device=Q.device)             # further columns, to be orthogonal to these
            self.base = Q.clone() if k == n and _is_orthogonal(Q) else _made_orthogonal(cat([Q, others], -1))
            start = value.new_zeros(value.shape)
            start.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
            return start
        if self.orthogonal_map != "householder":
            raise NotImplementedError(f"orthogonal: expected orthogonal_map='householder' or use_trivialization=True for a weight that is "
                                      f"assigned, got orthogonal_map='{self.orthogonal_map}', which has no inverse")
        vectors, tau = geqrf(Q)
        signs = vectors.diagonal(dim1=-2, dim2=-1)
        signs.copy_(where((signs < 0) == (tau == 0), 1.0, -1.0))         # tau 0: no reflection, where forward makes one
        return vectors.mT if wide else vectors


def _is_orthogonal(Q):
    one = eye(Q.size(-1), dtype=Q.dtype, device=Q.device)
    return bool(((Q.mH @ Q - one).abs() <= 10 * Q.size(-2) * finfo(Q.dtype).eps).all())


def _made_orthogonal(A):
    """Q of A = Q R whose R has a diagonal of no negative numbers."""
    vectors, tau = geqrf(A)
    return linalg.householder_product(vectors, tau) * vectors.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)


def orthogonal(module, name="weight", orthogonal_map=None, *, use_trivialization=True):
    """Let `module.weight`, a matrix or a batch of them (…, n, k), be orthogonal (unitary if complex): QᴴQ = 1 for n ≥ k, QQᴴ = 1 else.

    What is trained is a lower triangle X, for k < n filled up with zeros, and A = X − Xᴴ. orthogonal_map says how it becomes Q:
    "matrix_exp" Q = exp(A), "cayley" Q = (1 − A/2)⁻¹ (1 + A/2), of both the first k columns, and "householder" Q = H₁ … H_k,
    Hᵢ = 1 − 2 vᵢvᵢᵀ / |vᵢ|² with the columns of X below its diagonal for v, of real weights alone. None: matrix_exp for square or complex
    weights, householder else. use_trivialization: Q is multiplied by a fixed orthogonal matrix from the left, the buffer `base`, which is
    the weight at first or what was assigned last, made orthogonal; without it only "householder" has an inverse.

    A weight of fewer than two dims, another name of a map and a complex weight with "householder" raise ValueError. (M. Lezcano-Casado,
    "Trivializations for gradient-based optimization on manifolds", 2019; N. Higham, "Functions of matrices", 2008.)

    >>> import tritorch as torch
    >>> net = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(20, 40))
    >>> Q = net.weight
    >>> Q.shape, bool((Q.mT @ Q - torch.eye(20)).abs().max() < 1e-5)
    (tritorch.Size([40, 20]), True)
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"orthogonal: expected the name of a parameter or buffer of {type(module).__name__}, got '{name}'")
    if weight.ndim < 2:
        raise ValueError(f"orthogonal: expected a matrix or a batch of matrices, got a weight of {weight.ndim} dims")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.size(-2) == weight.size(-1) or weight.is_complex() else "householder"
    if orthogonal_map not in MAPS:
        raise ValueError(f"orthogonal: expected orthogonal_map to be one of {', '.join(map(repr, MAPS))}, got {orthogonal_map!r}")
    if orthogonal_map == "householder" and weight.is_complex():
        raise ValueError("orthogonal: expected a real weight for orthogonal_map='householder', got a complex one")
    return register_parametrization(module, name, _Orthogonal(weight, orthogonal_map, use_trivialization), unsafe=True)
