"""Activation layers. Each applies the function of `nn.functional` of the same meaning, elementwise unless it says otherwise."""
from tritorch.nn import functional as F
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset


class _Plain(Module):
    """An activation without arguments."""

    def forward(self, input):
        return self._function(input)


class _Inplace(Module):
    """An activation whose one argument is whether it overwrites its input."""

    def __init__(self, inplace=False):
        super().__init__()
        self.inplace = inplace

    def forward(self, input):
        return self._function(input, inplace=self.inplace)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class ReLU(_Inplace):
    """max(0, x).

    >>> import tritorch as torch
    >>> torch.nn.ReLU()(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    _function = staticmethod(F.relu)


class SELU(_Inplace):
    """scale · (max(0, x) + min(0, α (eˣ - 1))), scale = 1.0507…, α = 1.6732…. Klambauer et al. 2017.

    >>> import tritorch as torch
    >>> torch.nn.SELU()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-1.5202,  0.5254,  3.1521])
    """

    _function = staticmethod(F.selu)


class SiLU(_Inplace):
    """x · sigmoid(x). Also called swish.

    >>> import tritorch as torch
    >>> torch.nn.SiLU()(torch.tensor([0.0])).tolist()
    [0.0]
    """

    _function = staticmethod(F.silu)


class Mish(_Inplace):
    """x · tanh(softplus(x)). Misra 2019.

    >>> import tritorch as torch
    >>> torch.nn.Mish()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-0.2525,  0.3752,  2.9865])
    """

    _function = staticmethod(F.mish)


class Hardswish(_Inplace):
    """x · clamp(x + 3, 0, 6) / 6. Howard et al. 2019.

    >>> import tritorch as torch
    >>> torch.nn.Hardswish()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-0.3333,  0.2917,  3.0000])
    """

    _function = staticmethod(F.hardswish)

    def extra_repr(self):
        return ""


class Hardsigmoid(_Inplace):
    """clamp(x + 3, 0, 6) / 6."""

    _function = staticmethod(F.hardsigmoid)

    def extra_repr(self):
        return ""


class Sigmoid(_Plain):
    """1 / (1 + e⁻ˣ).

    >>> import tritorch as torch
    >>> torch.nn.Sigmoid()(torch.tensor([0.0])).tolist()
    [0.5]
    """

    _function = staticmethod(F.sigmoid)


class LogSigmoid(_Plain):
    """log(1 / (1 + e⁻ˣ))."""

    _function = staticmethod(F.logsigmoid)


class Tanh(_Plain):
    """The hyperbolic tangent.

    >>> import tritorch as torch
    >>> torch.nn.Tanh()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-0.9640,  0.4621,  0.9951])
    """

    _function = staticmethod(F.tanh)


class Softsign(_Plain):
    """x / (1 + |x|)."""

    _function = staticmethod(F.softsign)


class Tanhshrink(_Plain):
    """x - tanh(x)."""

    _function = staticmethod(F.tanhshrink)


class Softmax2d(_Plain):
    """Softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input):
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected an input of 3 or 4 dims, got {input.ndim}")
        return F.softmax(input, -3)


class Threshold(Module):
    """x where x > threshold, `value` elsewhere."""

    def __init__(self, threshold, value, inplace=False):
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self):
        return f"threshold={self.threshold}, value={self.value}" + (", inplace=True" if self.inplace else "")


class RReLU(Module):
    """x where x ≥ 0, else a · x with a from U(lower, upper) in training, their mean in evaluation. Xu et al. 2015."""

    def __init__(self, lower=1.0 / 8, upper=1.0 / 3, inplace=False):
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self):
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Hardtanh(Module):
    """x clamped to [min_val, max_val].

    >>> import tritorch as torch
    >>> torch.nn.Hardtanh()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """

    def __init__(self, min_val=-1.0, max_val=1.0, inplace=False, min_value=None, max_value=None):
        super().__init__()
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        self.inplace = inplace
        if self.max_val <= self.min_val:
            raise AssertionError(f"max_val must be larger than min_val, got {self.max_val} and {self.min_val}")

    def forward(self, input):
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self):
        return f"min_val={self.min_val}, max_val={self.max_val}" + (", inplace=True" if self.inplace else "")


class ReLU6(Hardtanh):
    """min(max(0, x), 6)."""

    def __init__(self, inplace=False):
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self):
        return "inplace=True" if self.inplace else ""


class ELU(Module):
    """x where x > 0, else α (eˣ - 1). Clevert et al. 2015.

    >>> import tritorch as torch
    >>> torch.nn.ELU()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-0.8647,  0.5000,  3.0000])
    """

    def __init__(self, alpha=1.0, inplace=False):
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input):
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self):
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class CELU(ELU):
    """max(0, x) + min(0, α (e^(x/α) - 1)). Barron 2017.

    >>> import tritorch as torch
    >>> torch.nn.CELU()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-0.8647,  0.5000,  3.0000])
    """

    def forward(self, input):
        return F.celu(input, self.alpha, self.inplace)


class LeakyReLU(Module):
    """x where x ≥ 0, else negative_slope · x.

    >>> import tritorch as torch
    >>> torch.nn.LeakyReLU(0.5)(torch.tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, negative_slope=1e-2, inplace=False):
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input):
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self):
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class PReLU(Module):
    """x where x ≥ 0, else weight · x with one trained weight, or one a channel (dim 1). He et al. 2015.

    >>> import tritorch as torch
    >>> torch.nn.PReLU()(torch.tensor([-2.0, 3.0])).tolist()
    [-0.5, 3.0]
    """

    def __init__(self, num_parameters=1, init=0.25, device=None, dtype=None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(unset((num_parameters,), device, dtype))
        self.reset_parameters()

    def reset_parameters(self):
        """Set the weights to their start."""
        self.weight.detach().fill_(self.init)

    def forward(self, input):
        return F.prelu(input, self.weight)

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"


class GELU(Module):
    """x · Φ(x), Φ the normal distribution function; with approximate="tanh" a formula close to it. Hendrycks and Gimpel 2016.

    >>> import tritorch as torch
    >>> torch.nn.GELU("tanh")
    GELU(approximate='tanh')
    """

    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input):
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self):
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log(1 + e^(βx)) / β, and x itself where βx > threshold.

    >>> import tritorch as torch
    >>> torch.nn.Softplus()(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([0.1269, 0.9741, 3.0486])
    """

    def __init__(self, beta=1.0, threshold=20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input):
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self):
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardshrink(Module):
    """x where |x| > λ, else 0."""

    def __init__(self, lambd=0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input):
        return F.hardshrink(input, self.lambd)

    def extra_repr(self):
        return f"{self.lambd}"


class Softshrink(Hardshrink):
    """x moved towards 0 by λ, 0 if it is nearer than that."""

    def forward(self, input):
        return F.softshrink(input, self.lambd)


class _OverDim(Module):
    """A function over one dim. Without a dim PyTorch's guess is taken: 0 for 0, 1 and 3 dims, else 1."""

    def __init__(self, dim=None):
        super().__init__()
        self.dim = dim

    def forward(self, input):
        return self._function(input, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


class Softmax(_OverDim):
    """e^(x_i) / Σ e^(x_j) over `dim`.

    >>> import tritorch as torch
    >>> torch.nn.Softmax(dim=1)(torch.zeros(1, 2)).tolist()
    [[0.5, 0.5]]
    """

    _function = staticmethod(F.softmax)


class LogSoftmax(_OverDim):
    """x_i - log Σ e^(x_j) over `dim`.

    >>> import tritorch as torch
    >>> torch.nn.LogSoftmax(dim=0)(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """

    _function = staticmethod(F.log_softmax)


class Softmin(_OverDim):
    """Softmax of -x over `dim`."""

    _function = staticmethod(F.softmin)


class GLU(_OverDim):
    """a · sigmoid(b) for the halves a, b of `dim`. Dauphin et al. 2017.

    >>> import tritorch as torch
    >>> torch.nn.GLU()(torch.tensor([1.0, 2.0, 0.0, 0.0]))
    tensor([0.5000, 1.0000])
    """

    def __init__(self, dim=-1):
        super().__init__(dim)

    _function = staticmethod(F.glu)
