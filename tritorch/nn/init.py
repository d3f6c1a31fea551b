"""Initialisation of parameters, in place and outside the gradient graph."""
import math
import warnings

import numpy as np

from tritorch.autograd.modes import no_grad
from tritorch.errors import explained
from tritorch.tensor import from_array

_GAINS = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75}
_UNIT_GAINS = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")


def calculate_gain(nonlinearity, param=None):
    """The factor that keeps the variance of activations: sqrt(2) for relu, 5/3 for tanh, sqrt(2 / (1 + a²)) for leaky_relu.

    >>> from tritorch.nn import init
    >>> round(init.calculate_gain("leaky_relu", 0.2), 4)
    1.3868
    """
    if nonlinearity in _UNIT_GAINS:
        return 1.0
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity != "leaky_relu":
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    if param is None:
        param = 0.01
    if isinstance(param, bool) or not isinstance(param, (int, float)):
        raise ValueError(f"calculate_gain: expected a number as negative_slope, got {param!r}")
    return math.sqrt(2.0 / (1 + param**2))


@explained
@no_grad()
def uniform_(tensor, a=0.0, b=1.0, generator=None):
    """Fill with values from U(a, b).

    >>> import tritorch as torch
    >>> w = torch.nn.init.uniform_(torch.empty(300), -0.5, 0.5)
    >>> bool((w >= -0.5).all() and (w < 0.5).all())
    True
    """
    return tensor.uniform_(a, b, generator=generator)


@explained
@no_grad()
def normal_(tensor, mean=0.0, std=1.0, generator=None):
    """Fill with values from N(mean, std²).

    >>> import tritorch as torch
    >>> torch.nn.init.normal_(torch.empty(2, 3), std=0.02).shape
    tritorch.Size([2, 3])
    """
    return tensor.normal_(mean, std, generator=generator)


@explained
@no_grad()
def trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0, generator=None):
    """Fill with values from N(mean, std²) restricted to [a, b], by the inverse of its distribution function.

    >>> import tritorch as torch
    >>> w = torch.nn.init.trunc_normal_(torch.empty(300), std=0.02, a=-0.04, b=0.04)
    >>> bool((w.abs() <= 0.04).all())
    True
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(f"trunc_normal_: mean {mean} lies more than 2 std from [{a}, {b}]: hardly a normal distribution is left",
                      stacklevel=3)
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2.0))) for bound in (a, b))
    return tensor.uniform_(low, high, generator=generator).erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)


@explained
@no_grad()
def constant_(tensor, val):
    """Fill with one value.

    >>> import tritorch as torch
    >>> torch.nn.init.constant_(torch.empty(2), 0.5)
    tensor([0.5000, 0.5000])
    """
    return tensor.fill_(val)


@explained
@no_grad()
def ones_(tensor):
    """Fill with ones."""
    return tensor.fill_(1.0)


@explained
@no_grad()
def zeros_(tensor):
    """Fill with zeros."""
    return tensor.zero_()


@explained
@no_grad()
def eye_(tensor):
    """Make a matrix the identity: a linear layer that keeps its input, as far as there are outputs.

    >>> import tritorch as torch
    >>> torch.nn.init.eye_(torch.empty(2, 3)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    tensor.zero_().diagonal().fill_(1.0)
    return tensor


@explained
@no_grad()
def dirac_(tensor, groups=1):
    """Make the weight of a convolution keep its input channels: in each group a one in the middle of channel i of output i.

    >>> import tritorch as torch
    >>> torch.nn.init.dirac_(torch.empty(2, 2, 3))[0]
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError(f"dirac_: expected a tensor of 3 to 5 dims, got {tensor.ndim}")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    middle = tuple(size // 2 for size in tensor.shape[2:])
    tensor.zero_()
    for outputs in tensor.split(tensor.shape[0] // groups):
        outputs[(slice(None), slice(None), *middle)].diagonal().fill_(1.0)
    return tensor


def _calculate_fan_in_and_fan_out(tensor):
    if tensor.ndim < 2:
        raise ValueError(f"fan_in and fan_out: expected a tensor of 2 dims or more, got {tensor.ndim}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _calculate_correct_fan(tensor, mode):
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"expected mode 'fan_in' or 'fan_out', got {mode!r}")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


@explained
def xavier_uniform_(tensor, gain=1.0, generator=None):
    """Fill from U(-a, a), a = gain · sqrt(6 / (fan_in + fan_out)). Glorot and Bengio 2010.

    >>> import tritorch as torch
    >>> w = torch.nn.init.xavier_uniform_(torch.empty(30, 20))
    >>> bool((w.abs() <= (6 / 50) ** 0.5).all())
    True
    """
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


@explained
def xavier_normal_(tensor, gain=1.0, generator=None):
    """Fill from N(0, std²), std = gain · sqrt(2 / (fan_in + fan_out)). Glorot and Bengio 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


@explained
def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fill from U(-b, b), b = gain · sqrt(3 / fan). He et al. 2015.

    >>> import tritorch as torch
    >>> bool(torch.nn.init.kaiming_uniform_(torch.empty(4, 6), nonlinearity="relu").abs().max() <= 1)
    True
    """
    if 0 in tensor.shape:
        warnings.warn("nothing to initialize in a tensor of no elements", stacklevel=2)
        return tensor
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _calculate_correct_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


@explained
def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu", generator=None):
    """Fill from N(0, std²), std = gain / sqrt(fan). He et al. 2015.

    >>> import tritorch as torch
    >>> w = torch.nn.init.kaiming_normal_(torch.empty(300, 200), nonlinearity="relu")
    >>> abs(w.std().item() - 0.1) < 0.01
    True
    """
    if 0 in tensor.shape:
        warnings.warn("nothing to initialize in a tensor of no elements", stacklevel=2)
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode)), generator)


@explained
@no_grad()
def orthogonal_(tensor, gain=1, generator=None):
    """Fill with a matrix of orthonormal rows or columns (all dims after the first are one), times `gain`. Saxe et al. 2013.

    >>> import tritorch as torch
    >>> w = torch.nn.init.orthogonal_(torch.empty(2, 3))
    >>> torch.allclose(w @ w.T, torch.eye(2), atol=1e-6)
    True
    """
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: expected a tensor of 2 dims or more, got {tensor.ndim}")
    if 0 in tensor.shape or tensor.is_meta:
        return tensor
    rows = tensor.shape[0]
    random = tensor.new_empty((rows, tensor.numel() // rows)).normal_(0, 1, generator=generator).cpu().float().array
    tall = rows >= random.shape[1]
    q, r = np.linalg.qr(random if tall else random.T)
    q = q * np.sign(np.diag(r))                                          # makes the distribution uniform: Mezzadri 2006
    tensor.copy_(from_array(np.ascontiguousarray(q if tall else q.T, dtype=np.float32)).view(tensor.shape))
    return tensor.mul_(gain)


@explained
@no_grad()
def sparse_(tensor, sparsity, std=0.01, generator=None):
    """Fill a matrix from N(0, std²), and the fraction `sparsity` of every column with zeros. Martens 2010."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    zeros = math.ceil(sparsity * tensor.shape[0])
    ranks = tensor.new_empty(tensor.shape).uniform_(generator=generator).argsort(0).argsort(0)
    return tensor.normal_(0, std, generator=generator).masked_fill_(ranks < zeros, 0.0)


def _deprecated(new):
    def old(*args, **kwargs):
        warnings.warn(f"nn.init.{old.__name__} is the old name of nn.init.{new.__name__}", FutureWarning, stacklevel=2)
        return new(*args, **kwargs)

    old.__name__ = old.__qualname__ = new.__name__[:-1]
    old.__doc__ = f"The older name of `{new.__name__}`."
    return old


uniform, normal, constant, eye, dirac = map(_deprecated, (uniform_, normal_, constant_, eye_, dirac_))
xavier_uniform, xavier_normal = map(_deprecated, (xavier_uniform_, xavier_normal_))
kaiming_uniform, kaiming_normal = map(_deprecated, (kaiming_uniform_, kaiming_normal_))
orthogonal, sparse = map(_deprecated, (orthogonal_, sparse_))
