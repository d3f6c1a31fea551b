"""Mathematical functions and conversions as LLVM IR, against float64 and wider references: `tritorch.cuda.native.mathematics`, `conversions`."""
import ctypes
import math
import platform
import re
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the code is made for Linux on x86-64", allow_module_level=True)

import scipy.special
import triton
import triton.language as tl

from tritorch.cuda.native import conversions, elf, libm, llvm, mathematics
from tritorch.cuda.native.vectors import Lanes, type_name
from tritorch.cuda.simulated import conversions as simulated
from tritorch.cuda.simulated import libdevice
from tritorch.cuda.simulated.values import Value

CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
ELEMENT = {"half": "f16", "float": "f32", "double": "f64"}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}
WIDE = np.longdouble
LOOP = """define internal void @loop{k}(ptr %arguments, i64 %last) {{
  {addresses}
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %j, %loop ]
  {loads}
  %y = call {result} {symbol}({given})
  {store}
  %j = add i64 %i, {lanes}
  %more = icmp ult i64 %j, %last
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def loop(k, symbol, types, result, lanes):
    """A function of LLVM that goes over arrays whose addresses lie at %arguments, the result's last."""
    slots = [f"%s{i} = getelementptr i64, ptr %arguments, i64 {i}\n  %p{i} = load ptr, ptr %s{i}" for i in range(len(types) + 1)]
    places = [f"%q{i} = getelementptr {'i8' if t == 'i1' else type_name(t, 1)}, ptr %p{i}, i64 %i" for i, t in enumerate([*types, result])]
    loads = [f"%x{i} = load {type_name(t, lanes)}, ptr %q{i}, align 1" for i, t in enumerate(types)]
    given = ", ".join(f"{type_name(t, lanes)} %x{i}" for i, t in enumerate(types))
    byte = f"%b = zext {type_name('i1', lanes)} %y to {type_name('i8', lanes)}\n  " if result == "i1" else ""
    kind, name = (type_name("i8", lanes), "%b") if byte else (type_name(result, lanes), "%y")
    return LOOP.format(k=k, addresses="\n  ".join(slots), loads="\n  ".join(places + loads), result=type_name(result, lanes), symbol=symbol,
                       given=given, store=f"{byte}store {kind} {name}, ptr %q{len(types)}, align 1", lanes=lanes)


def signature(text):
    """The elements of the arguments and of the result of a definition."""
    match = re.match(r"define internal (.*?) @\S+?\((.*?)\) nounwind", text)
    result, *types = (re.sub(r"<\d+ x (\w+)>", r"\1", t) for t in (match[1], *(a.rsplit(" ", 1)[0] for a in match[2].split(", "))))
    return [ELEMENT.get(t, t) for t in types], ELEMENT.get(result, result)


def compiled(functions, fused=True):
    """Functions of numpy arrays, of (symbol, texts, lanes), made in one module; `%first` picks one of them."""
    texts, signatures = {}, []
    for symbol, needed, _ in functions:
        texts |= needed
        signatures.append(signature(needed[symbol]))
    loops = [loop(k, symbol, *signatures[k], lanes) for k, (symbol, _, lanes) in enumerate(functions)]
    cases = "\n".join(f"c{k}:\n  call void @loop{k}(ptr %arguments, i64 %last)\n  ret void" for k in range(len(functions)))
    switch = " ".join(f"i64 {k}, label %c{k}" for k in range(len(functions)))
    kernel = f"""define void @kernel(ptr %arguments, ptr %scratch, i64 %first, i64 %last) {{
  switch i64 %first, label %none [ {switch} ]
none:
  ret void
{cases}
}}"""
    loaded = elf.load(llvm.assemble("\n".join([*texts.values(), *loops, kernel]), fused))
    entry = CALL(loaded.address("entry"))

    def caller(k):
        types, result = signatures[k]

        def call(*arrays):
            assert loaded is not None
            size = len(arrays[0])
            padded = -(-size // 16) * 16
            arrays = [np.resize(np.asarray(a), padded).astype(NUMPY[t], copy=False) for a, t in zip(arrays, types, strict=True)]
            out = np.empty(padded, NUMPY[result])
            entry(np.array([a.ctypes.data for a in (*arrays, out)], np.int64).ctypes.data, None, k, padded)
            return out[:size]
        return call
    return [caller(k) for k in range(len(functions))]


def made(names, element, lanes=16, fused=True):
    return dict(zip(names, compiled([(*mathematics.function(name, element, lanes), lanes) for name in names], fused)))


def ulps(got, exact):
    """The largest error in units of the last place of the result's type; infinity where one is NaN or infinite and the other is not."""
    nearest = exact.astype(got.dtype)
    finite = np.isfinite(nearest) & np.isfinite(got)
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    unit = np.maximum(np.spacing(np.abs(nearest[finite])), np.finfo(got.dtype).smallest_subnormal).astype(WIDE)
    error = np.abs(got[finite].astype(WIDE) - exact[finite].astype(WIDE)) / unit
    return max(float(error.max(initial=0)), 0.0 if same[~finite].all() else math.inf)


def same(got, expected):
    """Equal, NaN to NaN and zeros of one sign."""
    zeros = expected == 0
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


def double(function):
    return lambda *x: function(*(np.asarray(a, np.float64) for a in x))


def wide(function):
    return lambda *x: function(*(np.asarray(a, WIDE) for a in x))


rng = np.random.default_rng(0)
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 1.5, -1.5, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38,
                    3.4028235e38, -3.4028235e38, 88.72283, 88.72284, -103.97208, -103.97209, 127.99999, -149, -150, 1e10, -1e10, 16777215,
                    16777217, 0.99999994, 1.0000001, 10, -20, 0.625, 0.92], np.float32)
ANY_BITS = rng.integers(0, 2**32, 1 << 14, dtype=np.uint32).view(np.float32)
RANGES = (0.01, 1.0, 4.0, 20.0, 120.0, 1e6)
UNARY = {
    "exp": wide(np.exp), "exp2": wide(np.exp2), "expm1": wide(np.expm1), "log": wide(np.log), "log2": wide(np.log2), "log1p": wide(np.log1p),
    "tanh": wide(np.tanh), "erf": double(scipy.special.erf), "sin": double(np.sin), "cos": double(np.cos), "sqrt": wide(np.sqrt),
    "rsqrt": wide(lambda x: 1 / np.sqrt(x)), "floor": np.floor, "ceil": np.ceil, "absf": np.abs, "trunc": np.trunc, "rint": np.rint,
    "tan": double(np.tan), "asin": double(np.arcsin), "acos": double(np.arccos), "atan": double(np.arctan), "sinh": double(np.sinh),
    "cosh": double(np.cosh), "asinh": double(np.arcsinh), "acosh": double(np.arccosh), "atanh": double(np.arctanh), "log10": wide(np.log10),
    "exp10": wide(lambda x: np.power(WIDE(10), x)), "erfc": double(np.vectorize(math.erfc, otypes=[float])), "cbrt": wide(np.cbrt), "precise_sqrt": wide(np.sqrt),
    "sinpi": double(lambda x: np.where(x == np.trunc(x), np.copysign(0, x), np.sin(np.pi * np.fmod(x, 2))) + 0 * x),
    "cospi": double(lambda x: np.where(np.abs(np.fmod(x, 1)) == 0.5, 0, np.cos(np.pi * np.fmod(x, 2)))), "normcdf": double(scipy.special.ndtr)}
BINARY = {"pow": double(np.power), "hypot": double(np.hypot), "atan2": double(np.arctan2), "fmod": double(np.fmod),
          "precise_divf": wide(np.divide), "copysign": np.copysign}


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
    assert ulps(float32[name](x), UNARY[name](x)) <= 2
    exact = UNARY[name](SPECIAL).astype(np.float32)
    np.testing.assert_array_equal(np.signbit(float32[name](SPECIAL))[exact == 0], np.signbit(exact)[exact == 0])


@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_a_function_of_two_float32_is_within_two_ulp(float32, name):
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32).T
    small = rng.uniform(0, 10, 1 << 14), rng.uniform(-40, 40, 1 << 14)
    for x, y in (pairs, (ANY_BITS, ANY_BITS[::-1]), [a.astype(np.float32) for a in small]):
        got, exact = float32[name](x, y), BINARY[name](x, y)
        assert ulps(got, exact) <= 2
        zeros = exact.astype(np.float32) == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(exact[zeros]))


FAST = ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "sinpi", "cospi", "tan", "atan", "asin", "acos", "sinh", "cosh",
        "asinh", "acosh", "atanh", "exp10", "log10", "erfc", "rsqrt", "pow", "hypot", "atan2"]


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


# ------------------------------------------------------------------ libdevice
TYPE = {"int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64", "fp32": "f32", "fp64": "f64"}


def symbols():
    """The functions of Triton's libdevice: (name there, types of the arguments, symbol, type of the result)."""
    text = (Path(triton.__file__).parent / "language/extra/cuda/libdevice.py").read_text()
    found = []
    for name, body in re.findall(r"^def (\w+)\(.*?\n(.*?)(?=^@|\Z)", text, re.M | re.S):
        for types, symbol, result in re.findall(r'\(((?:\s*core\.dtype\("\w+"\),?)+)\s*\):\s*\(\s*"(__nv_\w+)",\s*core\.dtype\("(\w+)"\)', body):
            found.append((name, re.findall(r'dtype\("(\w+)"\)', types), symbol, result))
    assert {symbol for *_, symbol, _ in found} == set(re.findall(r'"(__nv_\w+)"', text))
    return found


def arguments(types):
    """Numbers for a function of libdevice: small and odd ones, and bits of any kind among the integers."""
    out = []
    for t in types:
        if t.startswith("fp"):
            x = np.concatenate([rng.uniform(-3, 3, 300), rng.uniform(0, 1, 300), rng.uniform(-40, 40, 300), SPECIAL])
            out.append(x[rng.permutation(len(x))].astype(NUMPY[TYPE[t]]))
        else:
            out.append(rng.integers(-(2**31), 2**31, 900 + len(SPECIAL)) if t.endswith("32") else rng.integers(-(2**63), 2**63 - 1, 900 + len(SPECIAL)))
            out[-1] = (out[-1] >> rng.integers(0, 31, len(out[-1]))).astype(t)
    return out


@pytest.fixture(scope="module")
def device():
    """Every function of libdevice, compiled."""
    known = symbols()
    return list(zip(known, compiled([(*mathematics.function(symbol, TYPE[types[0]], 2), 2) for _, types, symbol, _ in known])))


def test_every_symbol_of_libdevice_has_the_types_that_triton_gives_it():
    for _, types, symbol, result in symbols():
        name, texts = mathematics.function(symbol, TYPE[types[0]], 4)
        assert signature(texts[name]) == ([TYPE[t] for t in types], TYPE[result]), symbol


def where_the_interpreter_is_right(name, x):
    """scipy's Bessel functions lose digits of large numbers and infinities; numpy's maximum and log2 say other things of NaN and infinity."""
    if name in ("j0", "j1", "y0", "y1", "cyl_bessel_i0", "cyl_bessel_i1"):
        return np.abs(x) < 1e6
    return np.isfinite(x) if name.startswith(("float2", "norm", "ilogb")) else np.full(x.shape, True)


@np.errstate(all="ignore")
def test_libdevice_agrees_with_the_interpreters(device):
    checked = 0
    for (name, types, symbol, _), function in device:
        if name not in libdevice.FUNCTIONS or symbol in ("__nv_abs", "__nv_llabs") or symbol.startswith("__nv_powi"):
            continue
        given = arguments(types)
        if name in ("ldexp", "scalbn"):
            given[1] = (given[1] % 300 - 150).astype(np.int32)
        known = where_the_interpreter_is_right(name, given[0])
        given = [x[known] for x in given]
        want = np.asarray(libdevice.FUNCTIONS[name](*(Value(x, simulated.TYPES[t]) for x, t in zip(given, types))).data)
        got = function(*given)
        if want.dtype == np.float32:
            assert ulps(got, want) <= 2, symbol
        elif want.dtype == np.float64:
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14, err_msg=symbol)
        else:
            np.testing.assert_array_equal(got, want.astype(got.dtype), symbol)
        checked += 1
    assert checked > 220


def named(device, symbol):
    return next(function for (*_, s, _), function in device if s == symbol)


def bits32(x):
    return np.asarray(x).astype(np.uint32)


def test_integer_functions_of_libdevice(device):
    x, y = arguments(["int32", "int32"])
    z, w = arguments(["int64", "int64"])
    a, b, c, d = ([int(n) for n in v] for v in (x, y, z, w))
    unsigned = [[n % 2**width for n in v] for v, width in ((a, 32), (b, 32), (c, 64), (d, 64))]
    low = [[((n + 2**23) % 2**24) - 2**23 for n in v] for v in (a, b)]
    expected = {
        "__nv_mulhi": ((x, y), [p * q >> 32 for p, q in zip(a, b)]),
        "__nv_umulhi": ((x, y), [p * q >> 32 for p, q in zip(*unsigned[:2])]),
        "__nv_mul64hi": ((z, w), [p * q >> 64 for p, q in zip(c, d)]),
        "__nv_umul64hi": ((z, w), [p * q >> 64 for p, q in zip(*unsigned[2:])]),
        "__nv_mul24": ((x, y), [p * q for p, q in zip(*low)]),
        "__nv_umul24": ((x, y), [(p % 2**24) * (q % 2**24) for p, q in zip(a, b)]),
        "__nv_sad": ((x, y, y), [abs(p - q) + q for p, q in zip(a, b)]),
        "__nv_usad": ((x, y, y), [abs(p - q) + q for p, q in zip(*unsigned[:2])]),
        "__nv_brev": ((x,), [int(f"{n:032b}"[::-1], 2) for n in unsigned[0]]),
        "__nv_brevll": ((z,), [int(f"{n:064b}"[::-1], 2) for n in unsigned[2]]),
        "__nv_abs": ((x,), [abs(n) for n in a]), "__nv_llabs": ((z,), [abs(n) for n in c]),
    }
    for symbol, (given, want) in expected.items():
        got = named(device, symbol)(*given)
        width = got.dtype.itemsize * 8
        np.testing.assert_array_equal(got.view(f"u{width // 8}"), np.array([n % 2**width for n in want], f"u{width // 8}"), symbol)


def test_bytes_and_halves_of_doubles(device):
    permute = named(device, "__nv_byte_perm")
    x, y, s = (np.array([n], np.int32) for n in (0x33221100, -0x77AABBCC, 0x5C41))          # the bytes of y: 34 44 55 88
    assert bits32(permute(x, y, s)) == [0x44003411] and bits32(permute(x, y, np.array([0x3F7C], np.int32))) == [0x33FF8800]
    numbers = rng.normal(size=64)
    high, low = (named(device, f"__nv_double2{part}int")(numbers) for part in ("hi", "lo"))
    np.testing.assert_array_equal(named(device, "__nv_hiloint2double")(high, low), numbers)
    assert np.abs(named(device, "__nv_rcp64h")(numbers) * numbers - 1).max() < 2**-18


# ------------------------------------------------------------------ rounding in a direction
EXACT = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "rcp": lambda x: 1 / x,
         "fma": lambda x, y, z: x * y + z, "sqrt": None}


def operation_of(symbol):
    match = re.fullmatch(r"__nv_[fd]?(add|sub|mul|div|rcp|sqrt|fma)f?_(rz|rd|ru)", symbol)
    return match and (match[1], match[2])


def test_directed_rounding_brackets_the_exact_result(device):
    checked = 0
    for (_, types, symbol, _), function in device:
        if not operation_of(symbol):
            continue
        operation, mode = operation_of(symbol)
        x = [(rng.uniform(0.5, 2, 100) * 2.0 ** rng.integers(-20, 20, 100) * rng.choice([-1, 1], 100)).astype(NUMPY[TYPE[t]]) for t in types]
        x = [np.abs(a) for a in x] if operation == "sqrt" else x
        got = function(*x)
        for r, *given in zip(got, *x):
            root = operation == "sqrt"
            exact = Fraction(float(given[0])) if root else EXACT[operation](*map(Fraction, map(float, given)))
            down = mode == "rd" or (mode == "rz" and exact >= 0)
            after = np.nextafter(r, r.dtype.type(np.inf if down else -np.inf))
            here, there = (Fraction(float(a)) ** (2 if root else 1) - exact for a in (r, after))
            assert here <= 0 < there if down else there < 0 <= here, (symbol, r, given)
        checked += 1
    assert checked == 42


def test_directed_rounding_stops_at_the_largest_number(device):
    largest = np.array([np.finfo(np.float32).max], np.float32)
    assert named(device, "__nv_fadd_rd")(largest, largest) == largest and named(device, "__nv_fmul_ru")(-largest, largest) == -largest
    assert named(device, "__nv_fadd_ru")(largest, largest) == np.inf and named(device, "__nv_fadd_rz")(-largest, -largest) == -largest


def test_integers_to_floats_in_a_direction(device):
    checked = 0
    for (_, types, symbol, result), function in device:
        match = re.fullmatch(r"__nv_(int|uint|ll|ull|double)2(float|double)_(rz|rd|ru)", symbol)
        if not match or types[0] == "fp64":
            continue
        x = arguments(types)[0].astype(np.dtype(types[0]))
        got, infinity = function(x), NUMPY[TYPE[result]](np.inf)
        for n, r, above, less in zip(*(a.tolist() for a in (x, got, np.nextafter(got, infinity), np.nextafter(got, -infinity)))):
            down = match[3] == "rd" or (match[3] == "rz" and n >= 0)
            assert r <= n < above if down else less < n <= r, (symbol, n)
        checked += 1
    assert checked == 18


# ------------------------------------------------------------------ conversions
def converting(name, build, types, result, lanes):
    """A function of LLVM around what a conversion writes, for `compiled`."""
    def rule(x):
        return Lanes(x.em, build(x.em, x.register), result, lanes)
    return f"@{name}", libm.define(f"@{name}", rule, types, lanes), lanes


FLOAT8 = {"f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
          "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz}
NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16} | FLOAT8


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_narrow_types_widen_exactly(lanes):
    functions = compiled([converting(f"widen_{e}", lambda em, r, e=e: conversions.widen(em, r, e, lanes), [conversions.bits_of(e)], "f32", lanes)
                          for e in NARROW])
    for (element, dtype), function in zip(NARROW.items(), functions):
        width = np.dtype(dtype).itemsize
        every = np.arange(2 ** (8 * width)).astype(f"u{width}")
        same(function(every.view(NUMPY[conversions.bits_of(element)])), every.view(dtype).astype(np.float32))


def near(element):
    """Every number of a narrow type, the middles between neighbours, and the floats next to both."""
    dtype = np.dtype(NARROW[element])
    every = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    both = np.concatenate([every, (every[1:] + every[:-1]) / 2])
    return np.concatenate([both, np.nextafter(both, np.float32(np.inf)), np.nextafter(both, np.float32(-np.inf)), SPECIAL, ANY_BITS])


@pytest.mark.parametrize("lanes", [1, 2, 16])
@np.errstate(all="ignore")
def test_floats_narrow_to_nearest_even(lanes):
    functions = compiled([converting(f"narrow_{e}", lambda em, r, e=e: conversions.narrow(em, r, e, lanes), ["f32"], conversions.bits_of(e), lanes)
                          for e in NARROW])
    for (element, dtype), function in zip(NARROW.items(), functions):
        x = near(element)
        expected = np.clip(x, -448, 448) if element == "f8E4M3FN" else x
        same(function(x).view(dtype).astype(np.float32), expected.astype(dtype).astype(np.float32))


@np.errstate(all="ignore")
def test_floats_narrow_towards_zero():
    functions = compiled([converting(f"cut_{e}", lambda em, r, e=e: conversions.narrow(em, r, e, 16, "rtz"), ["f32"], conversions.bits_of(e), 16)
                          for e in ("f16", "bf16")])
    for element, target, function in zip(("f16", "bf16"), (tl.float16, tl.bfloat16), functions):
        x = near(element)
        same(function(x).view(NARROW[element]).astype(np.float32), simulated.towards_zero(x, target).astype(np.float32))
    with pytest.raises(KeyError, match="rtz to f8E5M2"):
        conversions.narrow(None, "%x", "f8E5M2", 1, "rtz")


INTEGERS = [(f"{kind}{width}", f"i{width}", kind == "i") for kind in "iu" for width in (8, 16, 32, 64)]


@pytest.mark.parametrize("lanes", [1, 2, 16])
@np.errstate(all="ignore")
def test_floats_become_integers_as_on_a_gpu(lanes):
    for source in ("f32", "f64"):
        dtype = NUMPY[source]
        x = np.concatenate([SPECIAL, ANY_BITS[:2000], rng.uniform(-300, 300, 500), *(rng.uniform(-1, 2, 300) * 2.0**n for n in (15, 31, 63, 64))])
        edges = [np.nextafter(dtype(s * 2.0**n), dtype(d)) for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1) for d in (-np.inf, 0, np.inf)]
        x = np.concatenate([x, edges, [-0.5, -0.99999]]).astype(dtype)
        functions = compiled([converting(f"to_{name}", lambda em, r, t=target, s=signed: conversions.to_integer(em, r, source, t, s, lanes),
                                         [source], target, lanes) for name, target, signed in INTEGERS])
        for (name, _, _), function in zip(INTEGERS, functions):
            expected = simulated.to_integers(x, np.dtype(f"{name[0]}{int(name[1:]) // 8}"))
            np.testing.assert_array_equal(function(x).view(expected.dtype), expected, f"{source} to {name}")


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_integers_become_floats(lanes):
    for target in ("f32", "f64"):
        functions = compiled([converting(f"of_{name}", lambda em, r, e=source, s=signed: conversions.to_float(em, r, e, target, s, lanes),
                                         [source], target, lanes) for name, source, signed in INTEGERS])
        for (name, source, _), function in zip(INTEGERS, functions):
            x = rng.integers(-(2**63), 2**63 - 1, 2000) >> rng.integers(0, 63, 2000)
            x = np.concatenate([x, [0, -1, 2**63 - 1, -(2**63), 2**24 + 1, 2**53 + 1]]).astype(NUMPY[source])
            np.testing.assert_array_equal(function(x), x.view(f"{name[0]}{int(name[1:]) // 8}").astype(NUMPY[target]), f"{name} to {target}")


def test_a_name_there_is_no_rule_for():
    for name, element in (("exq", "f32"), ("__nv_exq", "f32"), ("exp", "i32"), ("__nv_fsqrt_up", "f32")):
        with pytest.raises(KeyError, match=name):
            mathematics.function(name, element, 4)
