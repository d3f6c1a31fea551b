"""Special functions around the normal distribution, and those made of x log y, elementwise."""
import functools
import math

from tritorch.cuda.launch import kernels
from tritorch.ops import elementwise
from tritorch.ops.elementwise import floating
from tritorch.ops.pointwise import exp, log, log1p
from tritorch.ops.special import from_scipy
from tritorch.ops.wide import wide_only
from tritorch.tensor import Tensor

K = kernels("normal")
unary, binary = (functools.partial(family, functions=K, result=floating) for family in (elementwise.unary, elementwise.binary))
AROUND = {"low": -3.0, "high": 3.0}

ndtr = unary("ndtr", """The area under the normal distribution to the left of input: ½ erfc(-input/√2).

    >>> import tritorch as torch; torch.special.ndtr(torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """, from_scipy("ndtr"), domain=AROUND, grad=lambda g, input: g * (exp(input * input * -0.5) * 0.3989422804014327))
erfcx_of = unary("erfcx", """exp(input²) · erfc(input), which is neither 0 nor infinite where its factors are.

    >>> import tritorch as torch; torch.special.erfcx(torch.tensor([0.0, 1.0, 1000.0]))
    tensor([1.0000e+00, 4.2758e-01, 5.6419e-04])
    """, from_scipy("erfcx"), domain=AROUND, grad=lambda g, input, out: g * (input * 2 * out - 1.1283791670955126))
erfcx = wide_only(erfcx_of)
log_ndtr = wide_only(unary("log_ndtr", """log(ndtr(input)), exact far out on both sides.

    >>> import tritorch as torch; torch.special.log_ndtr(torch.tensor([0.0, -10.0]))
    tensor([ -0.6931, -53.2313])
    """, from_scipy("log_ndtr"), domain=AROUND, grad=lambda g, input: g * 0.7978845608028654 / erfcx_of(input * -0.7071067811865476)))
ndtri = wide_only(unary("ndtri", """The inverse of ndtr: the x to whose left the normal distribution has the area input; NaN outside [0, 1].

    >>> import tritorch as torch; torch.special.ndtri(torch.tensor([0.5, 0.975, 1.0]))
    tensor([0.0000, 1.9600,    inf])
    """, from_scipy("ndtri"), domain={"low": 0.05, "high": 0.95}, grad=lambda g, out: g * (exp(out * out * 0.5) * 2.5066282746310002)))
entr = unary("entr", """-input · log(input), 0 at 0 and -inf below it.

    >>> import tritorch as torch; torch.special.entr(torch.tensor([0.0, 0.5, -1.0]))
    tensor([0.0000, 0.3466,   -inf])
    """, from_scipy("entr"), domain={"low": 0.1, "high": 2.0}, grad=lambda g, input: g * (-1 - log(input)))


def _xlog1py_grad(g, input, other):
    if not isinstance(other, Tensor):
        return g * math.log1p(other) if other > -1 else g * (log1p(input * 0 + other)).masked_fill(input == 0, 0)
    return xlog1py(g, other).masked_fill((input == 0) & (other <= -1), 0)       # 0 where g is 0, whatever the logarithm


xlog1py = binary("xlog1py", """input · log(1 + other), 0 where input is 0 and other is not NaN.

    >>> import tritorch as torch; torch.special.xlog1py(torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 1.0]))
    tensor([0.0000, 1.3863])
    """, from_scipy("xlog1py"), domain={"low": 0.3, "high": 2.0}, grad_input=_xlog1py_grad,
                 grad_other=lambda g, input, other: g * input / (other + 1))
