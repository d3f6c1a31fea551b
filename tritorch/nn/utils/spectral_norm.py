"""Spectral normalisation by a hook: `weight_orig` is trained, `weight` is made of it before every forward pass.

`parametrizations.spectral_norm` is the newer way, which makes it whenever it is read.
"""
from tritorch.autograd import no_grad
from tritorch.nn.conv import ConvTranspose1d, ConvTranspose2d
from tritorch.nn.functional import normalize
from tritorch.nn.parameter import Parameter
from tritorch.nn.utils.parameter_hook import ParameterHook
from tritorch.ops.matmul import dot, mv


def as_matrix(weight, dim):
    """The weight with `dim` as rows and all other dims as columns."""
    return weight.movedim(dim, 0).flatten(1)


def output_dim(module, dim=None):
    """The dim of a weight that counts outputs: 1 for transposed convolutions, else 0."""
    return dim if dim is not None else int(isinstance(module, (ConvTranspose1d, ConvTranspose2d)))


def draw_vectors(matrix, eps):
    """Random singular vectors to begin with, of length one."""
    return [normalize(matrix.new_empty(size).normal_(0, 1), dim=0, eps=eps) for size in matrix.shape]


class SpectralNorm(ParameterHook):
    """The hook that `spectral_norm` registers."""

    kind = "spectral_norm"

    def __init__(self, name="weight", n_power_iterations=1, dim=0, eps=1e-12):
        if n_power_iterations <= 0:
            raise ValueError(f"spectral_norm: expected n_power_iterations > 0, got {n_power_iterations}")
        self.name, self.dim, self.n_power_iterations, self.eps = name, dim, n_power_iterations, eps

    def compute_weight(self, module, do_power_iteration):
        """weight_orig / σ, where σ = u · weight_orig v; u and v come nearer to the singular vectors first if told so."""
        weight, u, v = (getattr(module, self.name + part) for part in ("_orig", "_u", "_v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    normalize(mv(matrix.t(), u), dim=0, eps=self.eps, out=v)
                    normalize(mv(matrix, v), dim=0, eps=self.eps, out=u)
                u, v = u.clone(), v.clone()                              # the next forward writes them before this one's backward
        return weight / dot(u, mv(matrix, v))

    @staticmethod
    def apply(module, name, n_power_iterations, dim, eps):
        """Put the hook on a module."""
        fn = SpectralNorm(name, n_power_iterations, dim, eps)
        fn.check_free(module, name)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"spectral_norm: expected a parameter, got '{name}', which is None")
        u, v = draw_vectors(as_matrix(weight.detach(), dim), eps)
        del module._parameters[name]
        module.register_parameter(name + "_orig", weight)
        setattr(module, name, weight.detach())
        module.register_buffer(name + "_u", u)
        module.register_buffer(name + "_v", v)
        module.register_forward_pre_hook(fn)
        return fn

    def remove(self, module):
        """Make the weight a parameter again."""
        with no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        for part in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + part)
        module.register_parameter(self.name, Parameter(weight))

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute_weight(module, do_power_iteration=module.training))


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Let `module.weight` be weight_orig / σ, where σ is its largest singular value as `n_power_iterations` of the power method see it.

    Every forward pass in training mode iterates once more. Miyato et al. 2018. The parameter is `weight_orig`; `weight_u` and `weight_v`
    are buffers. `dim` counts the outputs.

    >>> import tritorch as torch
    >>> net = torch.nn.utils.spectral_norm(torch.nn.Linear(20, 40))
    >>> net.weight_orig.shape, net.weight_u.shape
    (tritorch.Size([40, 20]), tritorch.Size([40]))
    """
    SpectralNorm.apply(module, name, n_power_iterations, output_dim(module, dim), eps)
    return module


def remove_spectral_norm(module, name="weight"):
    """Make `module.weight` a parameter again, with the value that it has."""
    return SpectralNorm.take_from(module, name)
