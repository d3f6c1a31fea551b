"""Elementwise operators: arithmetic, comparisons, functions, activations."""
import math

from tritorch.dtype import types
from tritorch.onnx.rules import rule, same
from tritorch.tracing.sizes import Varying
from tritorch.tracing.tracer import Value

for _kind, _names in {
        "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil",
        "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HardSwish": "hardswish", "Log": "log", "Neg": "neg",
        "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round_even", "Sigmoid": "sigmoid", "Sign": "sign sgn", "Sin": "sin",
        "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh", "Div": "div_true", "Max": "maximum",
        "Min": "minimum"}.items():
    same(_kind, *_names.split())


# ------------------------------------------------------------------ arithmetic
@rule("add", "sub")
def sum_of(g, input, other, alpha=1):
    if g.out.dtype is types.bool:
        return g.op("Or", g.like(input), g.like(other))
    right = g.like(other) if alpha == 1 else g.op("Mul", g.like(other), g.like(alpha))
    return g.op({"add": "Add", "sub": "Sub"}[g.current.name], g.like(input), right)


@rule("mul")
def mul(g, input, other):
    return g.op("And" if g.out.dtype is types.bool else "Mul", g.like(input), g.like(other))


@rule("square")
def square(g, input):
    return g.op("Mul", g.like(input), g.like(input))


@rule("pow")
def pow_(g, input, other):
    if other in (2, 2.0) and isinstance(other, (int, float)):
        return square(g, input)
    return g.op("Sqrt", g.like(input)) if other == 0.5 else g.op("Pow", g.like(input), g.like(other))


@rule("rsqrt")
def rsqrt(g, input):
    return g.op("Reciprocal", g.op("Sqrt", g.like(input)))


@rule("trunc_divide")
def trunc_divide(g, input, other):
    quotient = g.op("Div", g.like(input), g.like(other))
    return _truncated(g, quotient) if g.out.dtype.is_floating_point else quotient


@rule("trunc")
def trunc(g, input):
    return _truncated(g, g.like(input)) if g.out.dtype.is_floating_point else g.like(input)


def _truncated(g, x):
    return g.op("Mul", g.op("Sign", x), g.op("Floor", g.op("Abs", x)))


@rule("floor_divide")
def floor_divide(g, input, other):
    x, y = g.like(input), g.like(other)
    if g.out.dtype.is_floating_point:
        return g.op("Floor", g.op("Div", x, y))
    return g.op("Div", g.op("Sub", x, g.op("Mod", x, y)), y)             # Div rounds towards zero, Mod has the sign of the divisor


@rule("remainder")
def remainder(g, input, other):
    x, y = g.like(input), g.like(other)
    if not g.out.dtype.is_floating_point:
        return g.op("Mod", x, y)
    return g.op("Sub", x, g.op("Mul", y, g.op("Floor", g.op("Div", x, y))))


@rule("fmod")
def fmod(g, input, other):
    return g.op("Mod", g.like(input), g.like(other), fmod=1)


@rule("lerp")
def lerp(g, input, end, weight):
    x = g.like(input)
    return g.op("Add", x, g.op("Mul", g.like(weight), g.op("Sub", g.like(end), x)))


@rule("addcmul_value", "addcdiv_value")
def addcmul(g, input, tensor1, tensor2, value=1):
    kind = {"addcmul_value": "Mul", "addcdiv_value": "Div"}[g.current.name]
    term = g.op(kind, g.like(tensor1), g.like(tensor2))
    return g.op("Add", g.like(input), term if value == 1 else g.op("Mul", term, g.like(value)))


@rule("atan2")
def atan2(g, input, other):
    y, x = g.like(input), g.like(other)
    zero, pi = g.like(0.0), g.like(math.pi)
    left, below = g.op("Less", x, zero), g.op("Less", y, zero)
    plain = g.op("Atan", g.op("Div", y, x))
    turned = g.op("Where", left, g.op("Add", plain, g.op("Where", below, g.op("Neg", pi), pi)), plain)
    return g.op("Where", g.op("And", g.op("Equal", x, zero), g.op("Equal", y, zero)), zero, turned)


@rule("hypot")
def hypot(g, input, other):
    return g.op("Sqrt", g.op("Add", square(g, input), square(g, other)))


@rule("logaddexp")
def logaddexp(g, input, other):
    x, y = g.like(input), g.like(other)
    apart = g.op("Neg", g.op("Abs", g.op("Sub", x, y)))
    return g.op("Add", g.op("Max", x, y), g.op("Log", g.op("Add", g.op("Exp", apart), g.like(1.0))))


# ------------------------------------------------------------------ comparisons, bits, choices
@rule("eq", "lt", "le", "gt", "ge", "ne")
def comparison(g, input, other):
    kind = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}[g.current.name]
    x, y = g.operands(input, other)
    if kind not in ("Equal",) and _is_bool(input) and _is_bool(other):
        x, y = g.cast(x, types.int32), g.cast(y, types.int32)
    found = g.op(kind, x, y)
    return g.op("Not", found) if g.current.name == "ne" else found


def _is_bool(v):
    return v.dtype is types.bool if isinstance(v, Value) else isinstance(v, bool)


@rule("logical_and", "logical_or", "logical_xor")
def logical(g, input, other):
    kind = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}[g.current.name]
    return g.op(kind, g.cast(input, types.bool), g.cast(other, types.bool))


@rule("logical_not")
def logical_not(g, input):
    return g.op("Not", g.cast(input, types.bool))


@rule("bitwise_and", "bitwise_or", "bitwise_xor")
def bitwise(g, input, other):
    logic, bits = {"bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"),
                   "bitwise_xor": ("Xor", "BitwiseXor")}[g.current.name]
    return g.op(logic if g.out.dtype is types.bool else bits, g.like(input), g.like(other))


@rule("bitwise_not")
def bitwise_not(g, input):
    return g.op("Not" if g.out.dtype is types.bool else "BitwiseNot", input)


@rule("isnan")
def isnan(g, input):
    return g.op("IsNaN", input) if input.dtype.is_floating_point else g.op("Not", g.op("Equal", input, input))


@rule("isinf", "isposinf", "isneginf")
def isinf(g, input):
    x = input if input.dtype.is_floating_point else g.cast(input, types.float32)
    return g.op("IsInf", x, detect_negative=int(g.current.name != "isposinf"), detect_positive=int(g.current.name != "isneginf"))


@rule("isfinite")
def isfinite(g, input):
    x = input if input.dtype.is_floating_point else g.cast(input, types.float32)
    return g.op("Not", g.op("Or", g.op("IsNaN", x), g.op("IsInf", x)))


@rule("signbit")
def signbit(g, input):
    return g.op("Less", input, g.cast(0, input.dtype))


@rule("choose")
def choose(g, condition, input, other):
    return g.op("Where", g.cast(condition, types.bool), g.like(input), g.like(other))


@rule("clamp_numbers")
def clamp_numbers(g, input, low, high):
    x = g.like(input)
    if isinstance(low, Varying) or low > -math.inf:
        x = g.op("Max", x, _bound(g, low))
    return g.op("Min", x, _bound(g, high)) if isinstance(high, Varying) or high < math.inf else x


def _bound(g, number):
    """A bound in the dtype of the result; of integers it may be a float."""
    return g.like(number if isinstance(number, Varying) or g.out.dtype.is_floating_point else round(number))


@rule("at_least")
def at_least(g, input, other):
    return g.op("Max", g.like(input), g.like(other))


@rule("at_most")
def at_most(g, input, other):
    return g.op("Min", g.like(input), g.like(other))


@rule("made_finite")
def made_finite(g, input, nan, posinf, neginf):
    x, inf = g.like(input), g.like(math.inf)
    x = g.op("Where", g.op("IsNaN", x), g.like(nan), x)
    x = g.op("Where", g.op("Equal", x, inf), g.like(posinf), x)
    return g.op("Where", g.op("Equal", x, g.op("Neg", inf)), g.like(neginf), x)


@rule("fmax", "fmin")
def fmax(g, input, other):
    x, y = g.like(input), g.like(other)
    both = g.op({"fmax": "Max", "fmin": "Min"}[g.current.name], x, y)
    if not g.out.dtype.is_floating_point:
        return both
    return g.op("Where", g.op("IsNaN", x), y, g.op("Where", g.op("IsNaN", y), x, both))


# ------------------------------------------------------------------ functions
@rule("exp2")
def exp2(g, input):
    return g.op("Pow", g.like(2.0), g.like(input))


@rule("expm1")
def expm1(g, input):                                                     # 2 · tanh(x/2) / (1 - tanh(x/2)) keeps the digits near 0
    half = g.op("Tanh", g.op("Mul", g.like(input), g.like(0.5)))
    small = g.op("Div", g.op("Mul", half, g.like(2.0)), g.op("Sub", g.like(1.0), half))
    plain = g.op("Sub", g.op("Exp", g.like(input)), g.like(1.0))
    return g.op("Where", g.op("Less", g.op("Abs", g.like(input)), g.like(0.5)), small, plain)


@rule("log1p")
def log1p(g, input):                                                     # x · log(u) / (u - 1) with u = 1 + x as it is rounded: Kahan
    x, one = g.like(input), g.like(1.0)
    u = g.op("Add", x, one)
    inside = g.op("Where", g.op("Equal", u, one), g.like(2.0), u)
    found = g.op("Div", g.op("Mul", g.op("Log", inside), x), g.op("Sub", inside, one))
    found = g.op("Where", g.op("Equal", u, g.like(math.inf)), u, found)
    return g.op("Where", g.op("Equal", u, one), x, found)


@rule("log2", "log10")
def logarithm(g, input):
    return g.op("Mul", g.op("Log", g.like(input)), g.like(1 / math.log({"log2": 2, "log10": 10}[g.current.name])))


@rule("erfc")
def erfc(g, input):
    return g.op("Sub", g.like(1.0), g.op("Erf", g.like(input)))


@rule("xlogy")
def xlogy(g, input, other):
    x, zero = g.like(input), g.like(0.0)
    return g.op("Where", g.op("Equal", x, zero), zero, g.op("Mul", x, g.op("Log", g.like(other))))


@rule("logit_eps")
def logit_eps(g, input, eps=-1.0):
    x = g.like(input)
    x = x if eps < 0 else g.op("Clip", x, g.like(eps), g.like(1 - eps))
    return g.op("Log", g.op("Div", x, g.op("Sub", g.like(1.0), x)))


@rule("sinc")
def sinc(g, input):
    x, one = g.op("Mul", g.like(input), g.like(math.pi)), g.like(1.0)
    zero = g.op("Equal", x, g.like(0.0))
    inside = g.op("Where", zero, one, x)
    return g.op("Where", zero, one, g.op("Div", g.op("Sin", inside), inside))


# ------------------------------------------------------------------ activations
@rule("gelu_erf", "gelu_tanh")
def gelu(g, input):
    x, tanh = g.like(input), g.current.name == "gelu_tanh"
    if g.opset >= 20:
        return g.op("Gelu", x, approximate="tanh" if tanh else "none")
    if tanh:
        cube = g.op("Mul", g.op("Mul", x, g.op("Mul", x, x)), g.like(0.044715))
        inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.like(math.sqrt(2 / math.pi))))
    else:
        inner = g.op("Erf", g.op("Mul", x, g.like(math.sqrt(0.5))))
    return g.op("Mul", g.op("Mul", x, g.like(0.5)), g.op("Add", inner, g.like(1.0)))


@rule("silu")
def silu(g, input):
    x = g.like(input)
    return g.op("Mul", x, g.op("Sigmoid", x))


@rule("leaky_relu")
def leaky_relu(g, input, negative_slope=0.01):
    return g.op("LeakyRelu", g.like(input), alpha=float(negative_slope))


@rule("hardtanh_between")
def hardtanh(g, input, min_val=-1.0, max_val=1.0):
    return g.op("Clip", g.like(input), _bound(g, min_val), _bound(g, max_val))


@rule("threshold_at")
def threshold_at(g, input, threshold, value):
    x = g.like(input)
    return g.op("Where", g.op("LessOrEqual", x, g.like(threshold)), g.like(value), x)


@rule("hardshrink")
def hardshrink(g, input, lambd=0.5):
    x = g.like(input)
    return g.op("Where", g.op("LessOrEqual", g.op("Abs", x), g.like(lambd)), g.like(0.0), x)


@rule("softshrink_at")
def softshrink(g, input, lambd=0.5):
    return g.op("Shrink", g.like(input), lambd=float(lambd), bias=float(lambd))


@rule("softplus")
def softplus(g, input, beta=1.0, threshold=20.0):
    x = g.like(input)
    scaled = x if beta == 1 else g.op("Mul", x, g.like(beta))
    soft = g.op("Softplus", scaled)
    soft = soft if beta == 1 else g.op("Div", soft, g.like(beta))
    return g.op("Where", g.op("Greater", scaled, g.like(threshold)), x, soft)


@rule("logsigmoid")
def logsigmoid(g, input):
    return g.op("Neg", g.op("Softplus", g.op("Neg", g.like(input))))


@rule("mish")
def mish(g, input):
    x = g.like(input)
    return g.op("Mul", x, g.op("Tanh", g.op("Softplus", x)))


@rule("elu")
def elu(g, input, alpha=1.0):
    return g.op("Elu", g.like(input), alpha=float(alpha))


@rule("celu_of")
def celu(g, input, alpha=1.0):
    return g.op("Mul", g.op("Elu", g.op("Div", g.like(input), g.like(alpha))), g.like(alpha)) if alpha < 0 else g.op(
        "Celu", g.like(input), alpha=float(alpha))


@rule("selu")
def selu(g, input):
    return g.op("Selu", g.like(input), alpha=1.6732632423543772848170429916717, gamma=1.0507009873554804934193349852946)


@rule("hardsigmoid")
def hardsigmoid(g, input):
    return g.op("HardSigmoid", g.like(input), alpha=1 / 6, beta=0.5)


@rule("rectified")
def prelu(g, x, slope_weight):
    value = g.like(x)
    return g.op("Where", g.op("Less", value, g.like(0.0)), g.op("Mul", value, g.like(slope_weight)), value)
