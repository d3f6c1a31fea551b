"""Parts of numbers: mantissa and exponent, and what a real number has of a complex one."""
import math

from tritorch.autograd.modes import no_grad
from tritorch.dtype import types
from tritorch.errors import check, explained
from tritorch.ops import compare, copy, create, view
from tritorch.ops.complex import angle_of
from tritorch.ops.destinations import deliver_all
from tritorch.return_types import result

frexp_result = result("frexp", "mantissa exponent")
BITS = {types.float32: (types.int32, 23, 0xFF, 126, 64), types.float64: (types.int64, 52, 0x7FF, 1022, 100)}
"""Of a floating dtype the integers of its size, the bits of the fraction, the mask of the exponent, what it is of 0.5, and the power of two
by which the numbers below the normal ones become normal."""


def exponents(x):
    """The e of x = m · 2^e with ½ ≤ |m| < 1, as int32; 0 for 0, infinities and NaN."""
    kind, fraction, mask, half, lift = BITS[x.dtype]
    tiny = x.abs() < 2.0 ** (1 - half)
    bits = view.view((x * (tiny.to(x.dtype) * (2.0 ** lift - 1) + 1)).contiguous(), kind)
    found = ((bits >> fraction) & mask).to(types.int32) - half - tiny.to(types.int32) * lift
    return found.masked_fill((x == 0) | ~x.isfinite(), 0)


@explained
def frexp(input, *, out=None):
    """(mantissa, exponent) with input = mantissa · 2^exponent, ½ ≤ |mantissa| < 1, the exponent of int32; 0, infinities and NaN are their
    own mantissas, with exponent 0.

    >>> import tritorch as torch; mantissa, exponent = torch.frexp(torch.tensor([6.0, -0.5])); mantissa, exponent
    (tensor([ 0.7500, -0.5000]), tensor([3, 0], dtype=tritorch.int32))
    """
    check(input.dtype.is_floating_point, "frexp", "a floating tensor", input.dtype)
    x = input.to(input.dtype.compute)
    with no_grad():
        exponent = exponents(x)
        first = exponent // 2                                            # 2^-e itself may be too large
    mantissa = (x * _power(-first, x.dtype) * _power(first - exponent, x.dtype)).to(input.dtype)
    return deliver_all(frexp_result, (mantissa, exponent), out)


def _power(n, dtype):
    """2^n, exactly, for n within the exponents of normal numbers."""
    kind, fraction, _, half, _ = BITS[dtype]
    return view.view((n.to(kind) + (half + 1)) << fraction, dtype)


@explained
def angle(input, *, out=None):
    """The angle of a number in the plane: of a real one 0, π for one below 0, NaN for NaN. Integers give the default dtype.

    >>> import tritorch as torch; torch.angle(torch.tensor([2.0, -1.0])), torch.angle(torch.tensor([1j]))
    (tensor([0.0000, 3.1416]), tensor([1.5708]))
    """
    if input.dtype.is_complex:
        return angle_of(input) if out is None else angle_of.into(out, input)
    dtype = input.dtype if input.dtype.is_floating_point else types.get_default_dtype()
    made = compare.where(input < 0, create.full((), math.pi, dtype=dtype, device=input.device), 0.0)
    if input.dtype.is_floating_point:
        made = compare.where(input.isnan(), input, made)
    return copy.deliver(made.to(dtype), out)
