"""Every function of CUDA's libdevice that Triton names, as LLVM IR: `tritorch.cuda.native.mathematics`."""
import platform
import re
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the code is made for Linux on x86-64", allow_module_level=True)

import triton
from native_functions import NUMPY, SPECIAL, compiled, rng, signature, ulps

from tritorch.cuda.native import libm, mathematics
from tritorch.cuda.simulated import conversions as simulated
from tritorch.cuda.simulated import libdevice
from tritorch.cuda.simulated.values import Value

TYPE = {"int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64", "fp32": "f32", "fp64": "f64"}
LINE = re.compile(r'\(((?:\s*core\.dtype\("\w+"\),?)+)\s*\):\s*\(\s*"(__nv_\w+)",\s*core\.dtype\("(\w+)"\)')


def symbols():
    """The functions of Triton's libdevice: (name there, types of the arguments, symbol, type of the result)."""
    text = (Path(triton.__file__).parent / "language/extra/cuda/libdevice.py").read_text()
    found = []
    for name, body in re.findall(r"^def (\w+)\(.*?\n(.*?)(?=^@|\Z)", text, re.M | re.S):
        for types, symbol, result in LINE.findall(body):
            found.append((name, re.findall(r'dtype\("(\w+)"\)', types), symbol, result))
    assert {symbol for *_, symbol, _ in found} == set(re.findall(r'"(__nv_\w+)"', text))
    return found


def arguments(types):
    """Numbers for a function of libdevice: small and odd ones, and integers of every length."""
    count, out = 900 + len(SPECIAL), []
    for t in types:
        if t.startswith("fp"):
            x = np.concatenate([rng.uniform(-3, 3, 300), rng.uniform(0, 1, 300), rng.uniform(-40, 40, 300), SPECIAL])
            out.append(x[rng.permutation(count)].astype(NUMPY[TYPE[t]]))
        else:
            half = 2 ** (int(t[-2:]) - 1)
            out.append((rng.integers(-half, half - 1, count) >> rng.integers(0, 31, count)).astype(t))
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
    """scipy's Bessel functions lose digits of large numbers; of NaN and infinity the interpreter does not say what CUDA says."""
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
        signs = rng.choice([-1, 1], (3, 100))
        x = [(signs[i] * 2.0 ** rng.uniform(-20, 20, 100)).astype(NUMPY[TYPE[t]]) for i, t in enumerate(types)]
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


@pytest.mark.parametrize("lanes", [1, 16])
def test_a_product_and_a_sum_that_round_each_are_not_fused(lanes):
    def rule(x, y):
        def call(symbol, *arguments):
            name, texts = mathematics.function(symbol, "f32", lanes)
            x.em.definitions |= texts
            return x.make(f"call {x.type} {name}({', '.join(f'{a.type} {a.register}' for a in arguments)})")
        return call("__nv_fmul_rn", x, x) - y + call("__nv_fadd_rn", x * y, x)
    x, y = (rng.uniform(1, 2, 500).astype(np.float32) for _ in range(2))
    separate, = compiled([("@separate", libm.define("@separate", rule, ["f32", "f32"], lanes), lanes)])
    np.testing.assert_array_equal(separate(x, y), (x * x - y) + (x * y + x))


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
