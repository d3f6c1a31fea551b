"""Linear layers."""
import math

from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset


class Identity(Module):
    """Returns its input, whatever arguments it was made with.

    >>> import tritorch as torch
    >>> torch.nn.Identity(54, unused=True)(torch.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, input):
        return input


class Linear(Module):
    """y = x Wᵀ + b for x (..., in_features), W (out_features, in_features), b (out_features).

    W and b start from U(-k, k), k = 1 / sqrt(in_features).

    >>> import tritorch as torch
    >>> torch.nn.Linear(20, 30)(torch.ones(128, 20)).shape
    tritorch.Size([128, 30])
    """

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(unset((out_features, in_features), device, dtype))
        self.register_parameter("bias", Parameter(unset((out_features,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draw the parameters anew."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))               # U(-k, k)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input):
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """y_k = x1ᵀ W_k x2 + b_k for x1 (..., in1_features), x2 (..., in2_features), W (out_features, in1_features, in2_features).

    >>> import tritorch as torch
    >>> torch.nn.Bilinear(20, 30, 40)(torch.ones(5, 20), torch.ones(5, 30)).shape
    tritorch.Size([5, 40])
    """

    def __init__(self, in1_features, in2_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"Bilinear: expected in1_features > 0, got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(unset((out_features, in1_features, in2_features), device, dtype))
        self.register_parameter("bias", Parameter(unset((out_features,), device, dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draw the parameters anew."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1, input2):
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self):
        return (f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")
