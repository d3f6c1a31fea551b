"""Elementwise arithmetic and functions."""
import numpy as np

from tritorch.dispatch import op
from tritorch.ops.elementwise import binary, floating, unary
from tritorch.tensor import Tensor

# ------------------------------------------------------------------ arithmetic
plus = binary("plus", "input + other.", np.add, grad_input=lambda g: g, grad_other=lambda g: g)
minus = binary("minus", "input - other.", np.subtract, grad_input=lambda g: g, grad_other=lambda g: -g)
mul = binary("mul", """input · other, elementwise, broadcast.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0]) * 3
    tensor([3., 6.])
    """, np.multiply, grad_input=lambda g, other: g * other, grad_other=lambda g, input: g * input)
div_true = binary("div_true", "input / other in floating point.", np.true_divide, "div", result=floating,
                  grad_input=lambda g, other: g / other, grad_other=lambda g, out, other: -g * out / other,
                  domain={"low": 0.5, "high": 2.0})
neg = unary("neg", "-input.", np.negative, grad=lambda g: -g)
exp = unary("exp", "e to the power of input.", np.exp, result=floating, grad=lambda g, out: g * out)
