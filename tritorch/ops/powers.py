"""Powers with exponents that are numbers or tensors."""
import cmath
import math

import numpy as np

from tritorch.dtype import promote, types
from tritorch.errors import check
from tritorch.ops import complex_arrays, special
from tritorch.ops.elementwise import binary
from tritorch.ops.loops import COMPLEX, SCALAR, launch_elementwise
from tritorch.ops.slopes import line_slope, power_slope, square_slope
from tritorch.pairs import HOLOMORPHIC
from tritorch.tensor import Tensor

APART, WHOLE = {"low": 0.5, "high": 2.0}, {"integer": True, "low": -20, "high": 20}


def _pow_grad_input(g, input, other):
    if not isinstance(other, Tensor):
        if other in (2, 3):
            return line_slope(g, input, 2.0, 0.0) if other == 2 else square_slope(g, input, 3.0, 0.0)
        return g.new_zeros(g.shape) if other == 0 else power_slope(g, input, other + 0.0)
    return (g * (other * pow(input, other - 1))).masked_fill(other == 0, 0)


def _pow_grad_other(g, input, other, out):
    if isinstance(input, Tensor):
        log_input = (input.to(out.dtype) if out.dtype.is_complex else input).log()
    elif input and out.dtype.is_complex:
        log_input = cmath.log(input)
    elif input == 0:
        return g * (out * (other.real >= 0).to(out.dtype).log())         # 0^other · 0, and below 0 ∞ · -∞
    else:
        log_input = math.log(input) if input > 0 else math.nan
    if isinstance(input, Tensor):
        log_input = log_input.masked_fill((input == 0) & (other.real >= 0), 0)
    return g * (out * log_input)


def _power_dtype(name, x, y):
    kind = promote(x, y)
    check(kind is not types.bool or not isinstance(y, Tensor), name, "numbers", kind, use="logical operators for bools")
    check(kind.has_gradients or isinstance(y, Tensor) or y >= 0, name, "exponents that are not negative for integers", y,
          use="a floating base")
    return kind


def _power(x, y):
    below = np.less(y, 0)
    if np.result_type(x, y).kind != "i" or not np.any(below):
        return 1 / np.sqrt(x) if np.shape(y) == () and y == -0.5 else special.power(x, y)
    inverse = np.where(np.equal(x, 1), 1, np.where(np.equal(x, -1), 1 - 2 * np.remainder(y, 2), 0))       # rounded towards zero
    return np.where(below, inverse, np.power(x, np.maximum(y, 0)))


SPECIAL_POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}       # pow itself takes a hundred instructions


pow = binary("pow", """input to the power of other, elementwise, broadcast; of complex numbers e^(other · log(input)).

    >>> import tritorch as torch; torch.tensor([1.0, 2.0, 3.0]) ** 2, torch.tensor([1j]) ** 2
    (tensor([1., 4., 9.]), tensor([-1.+0.j]))
    """, _power, result=_power_dtype, domain=APART, grad_input=_pow_grad_input, grad_other=_pow_grad_other,
             complex=HOLOMORPHIC, complex_cpu=complex_arrays.power,
             samples=lambda make: [(make(6, **APART), -0.5), (make(4, **WHOLE), 2), (make(5), 0), (make(5), 1),
                                   (make(40, integer=True, low=-2, high=3), make(40, integer=True, low=-4, high=4)),
                                   (make(5), 3), (make(4, **APART), 0.5), (make(4, **APART), -1)])


@pow.impl("cuda")
def pow_cuda(out, x, y):
    name = SPECIAL_POWERS.get(y) if not isinstance(y, Tensor) and out.dtype.is_floating_point else None
    functions = COMPLEX if out.dtype.is_complex else SCALAR
    launch_elementwise(out, (x, y) if name is None else (x,), getattr(functions, name or "pow"), out.dtype.compute)
