"""Weight normalisation by a hook: `weight_g` and `weight_v` are trained, `weight` is made of them before every forward pass.

`parametrizations.weight_norm` is the newer way, which makes it whenever it is read.
"""
import warnings

from tritorch.nn.parameter import Parameter
from tritorch.nn.utils.parameter_hook import ParameterHook


def lengths(v, dim):
    """‖v‖ over all dims but one, which are kept, or over all of them if `dim` is -1."""
    if dim == -1:
        return v.norm(2)
    others = [d for d in range(v.ndim) if d != dim % v.ndim]
    return v.norm(2, others, keepdim=True) if others else v.abs()


class WeightNorm(ParameterHook):
    """The hook that `weight_norm` registers."""

    kind = "weight_norm"

    def __init__(self, name, dim):
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module):
        """g · v / ‖v‖."""
        v = getattr(module, self.name + "_v")
        return v * (getattr(module, self.name + "_g") / lengths(v, self.dim))

    @staticmethod
    def apply(module, name, dim):
        """Put the hook on a module."""
        fn = WeightNorm(name, dim)
        fn.check_free(module, name)
        weight = getattr(module, name)
        del module._parameters[name]
        module.register_parameter(name + "_g", Parameter(lengths(weight.detach(), fn.dim)))
        module.register_parameter(name + "_v", Parameter(weight.detach()))
        setattr(module, name, fn.compute_weight(module))
        module.register_forward_pre_hook(fn)
        return fn

    def remove(self, module):
        """Make the weight a parameter again."""
        weight = self.compute_weight(module).detach()
        delattr(module, self.name)
        del module._parameters[self.name + "_g"]
        del module._parameters[self.name + "_v"]
        setattr(module, self.name, Parameter(weight))

    def __call__(self, module, inputs):
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module, name="weight", dim=0):
    """Let `module.weight` be g · v / ‖v‖: its lengths over all dims but `dim` (None: over all) are trained by themselves.

    Salimans and Kingma 2016. The parameters are `weight_g` and `weight_v`.

    >>> import tritorch as torch
    >>> net = torch.nn.utils.weight_norm(torch.nn.Linear(20, 40))
    >>> net.weight_g.shape, net.weight_v.shape
    (tritorch.Size([40, 1]), tritorch.Size([40, 20]))
    """
    warnings.warn("nn.utils.weight_norm is the old form of nn.utils.parametrizations.weight_norm",
                  FutureWarning, stacklevel=2)
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module, name="weight"):
    """Make `module.weight` a parameter again, with the value that it has."""
    return WeightNorm.take_from(module, name)
