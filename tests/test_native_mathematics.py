"""Mathematical functions as LLVM IR against float64 and wider references: `tritorch.cuda.native.mathematics`."""
import math
import platform
import sys

import numpy as np
import pytest
import scipy.special

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the code is made for Linux on x86-64", allow_module_level=True)

from native_functions import ANY_BITS, SPECIAL, WIDE, made, rng, ulps

from tritorch.cuda.native import mathematics


def double(function):
    return lambda *x: function(*(np.asarray(a, np.float64) for a in x))


def wide(function):
    return lambda *x: function(*(np.asarray(a, WIDE) for a in x))


RANGES = (0.01, 1.0, 4.0, 20.0, 120.0, 1e6)
UNARY = {
    "exp": wide(np.exp), "exp2": wide(np.exp2), "expm1": wide(np.expm1), "log": wide(np.log), "log2": wide(np.log2),
    "log1p": wide(np.log1p), "tanh": wide(np.tanh), "erf": double(scipy.special.erf), "sin": double(np.sin), "cos": double(np.cos),
    "sqrt": wide(np.sqrt),
    "rsqrt": wide(lambda x: 1 / np.sqrt(x)), "floor": np.floor, "ceil": np.ceil, "absf": np.abs, "trunc": np.trunc, "rint": np.rint,
    "tan": double(np.tan), "asin": double(np.arcsin), "acos": double(np.arccos), "atan": double(np.arctan), "sinh": double(np.sinh),
    "cosh": double(np.cosh), "asinh": double(np.arcsinh), "acosh": double(np.arccosh), "atanh": double(np.arctanh), "log10": wide(np.log10),
    "exp10": wide(lambda x: np.power(WIDE(10), x)), "cbrt": wide(np.cbrt), "precise_sqrt": wide(np.sqrt),
    "erfc": double(np.vectorize(math.erfc, otypes=[float])), "normcdf": double(scipy.special.ndtr),
    "sinpi": double(lambda x: np.where(x == np.trunc(x), np.copysign(0, x), np.sin(np.pi * np.fmod(x, 2))) + 0 * x),
    "cospi": double(lambda x: np.where(np.abs(np.fmod(x, 1)) == 0.5, 0, np.cos(np.pi * np.fmod(x, 2))))}
BINARY = {"pow": double(np.power), "hypot": double(np.hypot), "atan2": double(np.arctan2), "fmod": double(np.fmod),
          "precise_divf": wide(np.divide), "copysign": np.copysign}
LIMIT = dict.fromkeys("floor ceil absf trunc rint sqrt precise_sqrt precise_divf fmod copysign".split(), 0.5)              # of IEEE


def numbers():
    """Bits of any kind, and numbers of every size that functions care about."""
    return np.concatenate([SPECIAL, ANY_BITS, *(rng.uniform(-r, r, 1 << 13).astype(np.float32) for r in RANGES)])


@pytest.fixture(scope="module")
def float32():
    return made([*UNARY, *BINARY], "f32")


@pytest.mark.parametrize("name", UNARY)
@np.errstate(all="ignore")
def test_a_function_of_float32_is_within_two_ulp(float32, name):
    x = numbers()
    assert ulps(float32[name](x), UNARY[name](x)) <= LIMIT.get(name, 2)
    exact = UNARY[name](SPECIAL).astype(np.float32)
    np.testing.assert_array_equal(np.signbit(float32[name](SPECIAL))[exact == 0], np.signbit(exact)[exact == 0])


@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_a_function_of_two_float32_is_within_two_ulp(float32, name):
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32).T
    small = rng.uniform(0, 10, 1 << 14), rng.uniform(-40, 40, 1 << 14)
    for x, y in (pairs, (ANY_BITS, ANY_BITS[::-1]), [a.astype(np.float32) for a in small]):
        got, exact = float32[name](x, y), BINARY[name](x, y)
        assert ulps(got, exact) <= LIMIT.get(name, 2)
        zeros = exact.astype(np.float32) == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(exact[zeros]))


FAST = ("exp exp2 expm1 log log2 log1p tanh erf sin cos sinpi cospi tan atan asin acos sinh cosh asinh acosh atanh exp10 log10 erfc rsqrt "
        "pow hypot atan2").split()


@np.errstate(all="ignore")
def test_one_lane_two_lanes_and_sixteen_say_the_same(float32):
    x, y = numbers()[:4000], numbers()[4000:8000]
    for lanes in (1, 2):
        for name, function in made(FAST, "f32", lanes).items():
            arguments = (np.abs(x), y) if name in BINARY else (x,)
            np.testing.assert_array_equal(function(*arguments), float32[name](*arguments), name)


@np.errstate(all="ignore")
def test_fast_functions_do_not_need_products_and_sums_to_be_fused():
    x = numbers()
    names = ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos"]
    for name, function in made(names, "f32", 1, fused=False).items():
        assert ulps(function(x), UNARY[name](x)) <= 2


@np.errstate(all="ignore")
def test_float64_is_the_c_librarys():
    x = np.concatenate([SPECIAL.astype(np.float64), rng.uniform(-30, 30, 3000), np.exp(rng.uniform(-600, 600, 3000))])
    names = [n for n in UNARY if n not in ("exp10", "sinpi", "cospi", "normcdf")]             # whose references lose digits
    for name, function in made(names, "f64", 2).items():
        assert ulps(function(x), UNARY[name](x).astype(WIDE)) <= 4, name


def test_a_name_there_is_no_rule_for():
    for name, element in (("exq", "f32"), ("__nv_exq", "f32"), ("exp", "i32"), ("__nv_fsqrt_up", "f32")):
        with pytest.raises(KeyError, match=name):
            mathematics.function(name, element, 4)
