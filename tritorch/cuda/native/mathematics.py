"""Mathematical functions as LLVM IR: those of MLIR's math dialect, Triton's own and every symbol of libdevice.

`function("exp", "f32", 16)` gives the symbol to call with a <16 x float> and the texts it needs in the module. A rule is a Python function
of `Lanes` (vectors.py); which rule a name has is told by the tables here. The fast ones of float32 are in mathematics_float32.py and
mathematics_by_float64.py, rare ones in mathematics_special.py, those of integers and bits in mathematics_integers.py, the rest are LLVM's
own or the C library's (libm.py).
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from .libm import by_libm, call_by_lane, define
from .mathematics_by_float64 import BY_FLOAT64
from .mathematics_float32 import FLOAT32
from .mathematics_integers import INTEGERS, ROUNDING, conversion, stepped, to_integer
from .mathematics_special import SPECIAL, fdim


def plain(intrinsic):
    return lambda *x: x[0].intrinsic(intrinsic, *x[1:])


def flag(test):
    """libdevice's truths are an i32 of 0 or 1."""
    return lambda x: test(x).convert("zext", "i32")


def exponent(x):
    """floor(log2 |x|): infinity of infinity, -infinity of 0."""
    return by_libm("logb")(x)


def integer_exponent(x):
    """logb as an i32, by CUDA: the least i32 of 0 and of NaN, the largest of infinity."""
    e = exponent(x)
    return e.compare("uno", e).where(-(2**31), to_integer(e, "i32", True))


def scaled(x, n):
    """x 2ⁿ, rounded once."""
    return by_libm("ldexp")(x, n)


def next_after(x, y):
    return call_by_lane("nextafterf" if x.element == "f32" else "nextafter", x.element, x, y)


def saturated(x):
    """Within 0 and 1; NaN is 0."""
    return x.intrinsic("maxnum", 0.0).intrinsic("minnum", 1.0)


def whole_power(x, n):
    return by_libm("pow")(x, n.convert("sitofp", "f64"))


def rounded_to_long(intrinsic):
    return lambda x: to_integer(x.intrinsic(intrinsic), "i64", True)


LIBM = ("exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh cbrt erf erfc lgamma tgamma "
        "j0 j1 y0 y1").split()
LIBM_OF_TWO = "atan2 hypot pow fmod remainder".split()
ARGUMENTS = {"rhypot": "xx", "norm3d": "xxx", "norm4d": "xxxx", "rnorm3d": "xxx", "rnorm4d": "xxxx"}
INTRINSIC = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "roundeven", "nearbyint": "roundeven", "round": "round",
             "sqrt": "sqrt", "fabs": "fabs", "roundeven": "roundeven"}

# name: rule, its arguments (x: the element, s: i32)
FLOATING = {name: (by_libm(name), "x") for name in LIBM}
FLOATING |= {name: (by_libm(name), "xx") for name in LIBM_OF_TWO}
FLOATING |= {name: (plain(intrinsic), "x") for name, intrinsic in INTRINSIC.items()}
FLOATING |= {name: (rule, ARGUMENTS.get(name, "x")) for name, rule in SPECIAL.items()}
FLOATING |= {
    "rsqrt": (lambda x: 1.0 / x.intrinsic("sqrt"), "x"), "fma": (plain("fma"), "xxx"), "copysign": (plain("copysign"), "xx"),
    "fdim": (fdim, "xx"), "nextafter": (next_after, "xx"), "saturate": (saturated, "x"),
    "logb": (exponent, "x"), "ilogb": (integer_exponent, "x"), "ldexp": (scaled, "xs"), "scalbn": (scaled, "xs"),
    "jn": (by_libm("jn"), "sx"), "yn": (by_libm("yn"), "sx"), "powi": (whole_power, "xs"),
    "llrint": (rounded_to_long("roundeven"), "x"), "llround": (rounded_to_long("round"), "x"),
    "isnan": (flag(lambda x: x.compare("uno", x)), "x"), "isinf": (flag(lambda x: abs(x).equals(math.inf)), "x"),
    "isfinite": (flag(lambda x: abs(x) < math.inf), "x"), "signbit": (flag(lambda x: x.bits() < 0), "x"),
    "precise_sqrt": (plain("sqrt"), "x"), "precise_divf": (lambda x, y: x / y, "xx"), "fast_divide": (lambda x, y: x / y, "xx"),
}
MATH = {"absf": "fabs", "powf": "pow"}                                                 # what the math dialect calls otherwise
INTEGER = {"absi": (abs, 1), "mulhiui": (INTEGERS["umulhi"][0], 2)}                    # of the math dialect and Triton: rule, arguments

# Symbols of libdevice that are not the name, with an f behind it for float32
SPELLED = {f"{name}{suffix}": (name, element) for name in ("isnan", "isinf", "signbit") for suffix, element in (("f", "f32"), ("d", "f64"))}
SPELLED |= {"finitef": ("isfinite", "f32"), "isfinited": ("isfinite", "f64"), "fast_fdividef": ("fast_divide", "f32")}
SPELLED |= {f"fast_{name}f": (name, "f32") for name in ("sin", "cos", "tan", "tanh", "exp", "exp10", "log", "log2", "log10", "pow")}


def directed(operation, mode):
    """add, sub, mul, div, sqrt, rcp, rsqrt or fma of IEEE, rounded in a direction: the nearest result and the sign of what it misses."""
    def rule(*x):
        nearest, error = EXACT[operation](*map(apart, x))
        if mode == "rn":
            return apart(nearest)
        finite = functools.reduce(lambda a, b: a & b, [abs(a) < math.inf for a in x])
        overflowed = finite & abs(nearest).equals(math.inf)
        return stepped(nearest, overflowed.where(-nearest, error), mode)
    return rule


def apart(x):
    """The same number; LLVM makes no fused product and sum across it, as NVIDIA's compiler makes none of these functions."""
    return x.intrinsic("arithmetic.fence")


def exact_sum(x, y):
    """Knuth's sum: x + y rounded, and what rounding lost."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def exact_fma(x, y, z):
    """S. Boldo and J.-M. Muller, "Exact and approximated error of the FMA", IEEE Trans. Computers 60 (2011)."""
    nearest, product = x.fma(y, z), apart(x * y)
    low = x.fma(y, -product)
    total, rest = exact_sum(z, low)
    head, tail = exact_sum(product, total)
    return nearest, ((head - nearest) + tail) + rest


def exact_product(x, y):
    product = x * y
    return product, x.fma(y, -product)


def exact_quotient(x, y):
    quotient = x / y
    return quotient, (-quotient).fma(y, x) * y.constant(1.0).copysign(y)


def exact_root(x):
    root = x.intrinsic("sqrt")
    return root, (-root).fma(root, x)


EXACT = {"add": exact_sum, "sub": lambda x, y: exact_sum(x, -y), "mul": exact_product, "div": exact_quotient, "sqrt": exact_root,
         "rcp": lambda x: exact_quotient(x.constant(1.0), x), "rsqrt": lambda x: (1.0 / x.intrinsic("sqrt"), None), "fma": exact_fma}


class Function(NamedTuple):
    """What a name stands for: its rule and the types of its arguments; `symbol` says the same of two names for one function."""
    symbol: str
    rule: Callable
    types: list[str]


def _typed(name, element):
    """A function of FLOATING for one element type."""
    rule, arguments = FLOATING[name]
    if element == "f32":
        rule = FLOAT32.get(name) or BY_FLOAT64.get(name) or rule
    return Function(f"{name}_{element}", rule, [{"x": element, "s": "i32"}[a] for a in arguments])


def _directed_symbol(name):
    """__nv_fadd_rz, __nv_dsqrt_rn, __nv_fmaf_rd, __nv_fma_rd, ..."""
    stem, _, mode = name.rpartition("_")
    element, operation = {"fma": ("f64", "fma"), "fmaf": ("f32", "fma")}.get(stem, ({"f": "f32", "d": "f64"}.get(stem[:1]), stem[1:]))
    if mode not in ROUNDING or element is None or operation not in EXACT or (operation == "rsqrt" and mode != "rn"):
        raise KeyError(f"__nv_{name}")
    return Function(f"nv_{name}", directed(operation, mode), [element] * {"sqrt": 1, "rcp": 1, "rsqrt": 1, "fma": 3}.get(operation, 2))


def _libdevice(name):
    """The function that __nv_`name` is."""
    if name in INTEGERS or conversion(name):
        rule, arguments = INTEGERS.get(name) or conversion(name)
        return Function(f"nv_{name}", rule, [{"s": "i32", "l": "i64", "f": "f32", "d": "f64"}[a] for a in arguments])
    if name in SPELLED:
        return _typed(*SPELLED[name])
    if name in FLOATING:
        return _typed(name, "f64")
    return _typed(name[:-1], "f32") if name.endswith("f") and name[:-1] in FLOATING else _directed_symbol(name)


@functools.cache
def _definition(name, element, lanes):
    if name.startswith("__nv_"):
        found = _libdevice(name[5:])
    elif element in ("f32", "f64"):
        found = _typed(MATH.get(name, name), element)
    else:
        rule, arguments = INTEGER[name]
        found = Function(f"{name}_{element}", rule, [element] * arguments)
    symbol = f"@{found.symbol}x{lanes}"
    return symbol, define(symbol, found.rule, found.types, lanes)


def function(name: str, element: str, lanes: int) -> tuple[str, dict[str, str]]:
    """The symbol of a mathematical function of registers of `lanes` elements, and the texts of LLVM IR that a module needs, by symbol.

    `name` is one of the math dialect without "math." ("exp", "absf", "fma"), of Triton without "tt." ("precise_sqrt", "mulhiui") or a
    symbol of libdevice ("__nv_tanhf"), whose types are its own, whatever `element` ("f32", "f64", or an integer's for integers) says.
    Arguments and result have the types of its declaration in Triton, `lanes` of each; truths are i32. KeyError: a name without a rule.

    >>> symbol, texts = function("sqrt", "f32", 4)
    >>> symbol
    '@sqrt_f32x4'
    >>> print(texts[symbol])
    define internal <4 x float> @sqrt_f32x4(<4 x float> %x0) nounwind willreturn memory(none) {
    entry:
      %v1 = call <4 x float> @llvm.sqrt.v4f32(<4 x float> %x0)
      ret <4 x float> %v1
    }
    """
    symbol, texts = _definition(name, element, lanes)
    return symbol, dict(texts)
