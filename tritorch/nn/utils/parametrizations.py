"""Weight and spectral normalisation as parametrizations: the weight is made whenever it is read."""
from tritorch.autograd import no_grad
from tritorch.nn.functional import normalize
from tritorch.nn.module import Module
from tritorch.nn.utils.parametrize import register_parametrization
from tritorch.nn.utils.spectral_norm import as_matrix, draw_vectors, output_dim
from tritorch.nn.utils.weight_norm import lengths
from tritorch.ops.matmul import dot, mv
from tritorch.tensor import Tensor

__all__ = ["spectral_norm", "weight_norm"]


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
