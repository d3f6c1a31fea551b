"""Functions around gamma, elementwise: the incomplete ones, zeta, the derivatives of digamma, the gamma function of matrices."""
import functools
import math

from tritorch.cuda.launch import kernels
from tritorch.dtype import types
from tritorch.errors import check, sentence, tensors, underivable
from tritorch.ops import elementwise
from tritorch.ops.copy import deliver
from tritorch.ops.create import arange
from tritorch.ops.elementwise import floating, floats
from tritorch.ops.pointwise import digamma, exp, lgamma, polygamma1, xlogy
from tritorch.ops.special import from_scipy
from tritorch.ops.wide import wide_only
from tritorch.tensor import Tensor

binary = functools.partial(elementwise.binary, functions=kernels("incomplete"))
Z = kernels("zeta")
FEW = {"low": 0.3, "high": 4.0}


# ------------------------------------------------------------------ incomplete
def _density(input, other):
    """The derivative of igamma by other: otherᵃ⁻¹ e^-other / Γ(a)."""
    return exp(xlogy(input - 1, other) - other - lgamma(input))


def _incomplete(name, doc, cpu, sign, example):
    made = binary(name, f"""{doc}, for input ≥ 0 and other ≥ 0, else NaN. There is no gradient of input.

    >>> import tritorch as torch; torch.{name}(torch.tensor([4.0]), torch.tensor([3.0]))
    tensor([{example}])
    """, cpu, result=floats, tensors="input other", domain=FEW | {"grad": False}, grad_input=underivable(name, "input"),
                  grad_other=lambda g, input, other: g * _density(input, other) * sign,
                  samples=lambda make: [(make(3, 4, grad=False, **FEW), make(4, **FEW)), (make(grad=False, **FEW), make(5, **FEW))])
    return made


igamma = _incomplete("igamma", "P(input, other) = ∫₀^other t^(input-1) e⁻ᵗ dt / Γ(input)", from_scipy("gammainc"), 1, "0.3528")
igammac = _incomplete("igammac", "Q(input, other) = 1 - igamma(input, other), exact where small", from_scipy("gammaincc"), -1, "0.6472")

# ------------------------------------------------------------------ zeta and polygamma
zeta_at = elementwise.binary("zeta", """Hurwitz's zeta function: Σ (other + k)^-input over k ≥ 0, for input > 1. No gradient of input.

    >>> import tritorch as torch; torch.special.zeta(torch.tensor([2.0, 4.0]), 1)
    tensor([1.6449, 1.0823])
    """, from_scipy("zeta"), functions=Z, result=floating, domain={"low": 1.2, "high": 5.0, "grad": False},
                             grad_input=underivable("zeta", "input"),
                             grad_other=lambda g, input, other: g * (zeta_at(input + 1, other) * -input),
                             samples=lambda make: [(make(3, 4, low=1.2, high=5, grad=False), make(4, **FEW)), (2.5, make(5, **FEW))])
zeta = wide_only(zeta_at)
polygamma_at = elementwise.unary("polygamma", """The n-th derivative of digamma, n ≥ 1: (-1)ⁿ⁺¹ n! ζ(n + 1, input).""",
                                 lambda x, n: from_scipy("polygamma")(n, x).astype(x.dtype), functions=Z, result=floating,
                                 attrs=(("n", 2),), domain=FEW, grad=lambda g, input, n: g * polygamma_at(input, n + 1),
                                 samples=lambda make: [(make(5, **FEW), 5), (make(4, low=-2.7, high=-2.3), 3)])
polygamma1.grad("input")(lambda g, input: g * polygamma_at(input, 2))


def whole(name, argument, value):
    """A whole number, or PyTorch's TypeError."""
    tensor = isinstance(value, Tensor)
    if tensor and (value.shape or value.dtype.category != 1) or isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(sentence(name, f"a whole number as {argument}", "a tensor" if tensor else repr(value)))
    return value.__index__()


def polygamma(n, input, *, out=None):
    """The n-th derivative of digamma, for a whole n ≥ 0.

    >>> import tritorch as torch; torch.polygamma(2, torch.tensor([1.0, 0.5]))
    tensor([ -2.4041, -16.8288])
    """
    n = whole("polygamma", "n", n)
    check(n >= 0, "polygamma", "n ≥ 0", n)
    tensors("polygamma", input=input)
    door, *attributes = (digamma,) if n == 0 else (polygamma1,) if n == 1 else (polygamma_at, n)
    return door(input, *attributes) if out is None else door.into(out, input, *attributes)


def polygamma_of(input, n, *, out=None):
    """`polygamma` as a method: the tensor comes first."""
    return polygamma(n, input, out=out)


# ------------------------------------------------------------------ of matrices
def mvlgamma(input, p, *, out=None):
    """The logarithm of the gamma function of p × p matrices: p (p - 1)/4 log π + Σ lgamma(input - j/2), j = 0 … p - 1.

    >>> import tritorch as torch; torch.mvlgamma(torch.tensor([2.5, 4.0]), 2)
    tensor([0.8570, 3.5651])
    """
    p = whole("mvlgamma", "p", p)
    tensors("mvlgamma", input=input)
    check(input.dtype is not types.bool, "mvlgamma", "numbers", input.dtype)
    check(p >= 1, "mvlgamma", "p ≥ 1", p)
    kind = floating("mvlgamma", input)
    check(out is None or out.dtype.is_floating_point, "mvlgamma", f"a destination that {kind} can be cast to", getattr(out, "dtype", out))
    steps = arange(0, -p / 2, -0.5, dtype=kind.compute, device=input.device)
    made = lgamma(input.to(kind.compute).unsqueeze(-1) + steps).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)
    return deliver(made.to(kind), out)


gammainc, gammaincc, multigammaln = igamma, igammac, mvlgamma
