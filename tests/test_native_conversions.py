"""Conversions between number types as LLVM IR against ml_dtypes and the interpreter's: `tritorch.cuda.native.conversions`."""
import platform
import sys

import ml_dtypes
import numpy as np
import pytest
import triton.language as tl

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("the code is made for Linux on x86-64", allow_module_level=True)

from native_functions import ANY_BITS, NUMPY, SPECIAL, compiled, rng, same

from tritorch.cuda.native import conversions, libm
from tritorch.cuda.native.vectors import Lanes
from tritorch.cuda.simulated import conversions as simulated


def conversion(write, source, result, lanes, *more, **options):
    """A function of LLVM around what conversions.`write` writes, for `compiled`."""
    def rule(x):
        return Lanes(x.em, getattr(conversions, write)(x.em, x.register, *more, lanes, **options), result, lanes)
    symbol = f"@{'_'.join([write, *map(str, more)])}x{lanes}"
    return symbol, libm.define(symbol, rule, [source], lanes), lanes


FLOAT8 = {"f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
          "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz}
NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16} | FLOAT8


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_narrow_types_widen_exactly(lanes):
    functions = compiled([conversion("widen", conversions.bits_of(e), "f32", lanes, e) for e in NARROW])
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
    functions = compiled([conversion("narrow", "f32", conversions.bits_of(e), lanes, e) for e in NARROW])
    for (element, dtype), function in zip(NARROW.items(), functions):
        x = near(element)
        expected = np.clip(x, -448, 448) if element == "f8E4M3FN" else x
        same(function(x).view(dtype).astype(np.float32), expected.astype(dtype).astype(np.float32))


@np.errstate(all="ignore")
def test_floats_narrow_towards_zero():
    functions = compiled([conversion("narrow", "f32", conversions.bits_of(e), 16, e, rounding="rtz") for e in ("f16", "bf16")])
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
        powers = np.array([s * 2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1)], dtype)
        edges = [powers, *(np.nextafter(powers, dtype(end)) for end in (-np.inf, np.inf)), [-0.5, -0.99999]]
        sizes = [rng.uniform(-1, 2, 300) * 2.0**n for n in (8, 15, 31, 63, 64)]
        x = np.concatenate([SPECIAL, ANY_BITS[:2000], *sizes, *edges]).astype(dtype)
        functions = compiled([conversion("to_integer", source, target, lanes, source, target, signed) for _, target, signed in INTEGERS])
        for (name, _, _), function in zip(INTEGERS, functions):
            expected = simulated.to_integers(x, np.dtype(f"{name[0]}{int(name[1:]) // 8}"))
            np.testing.assert_array_equal(function(x).view(expected.dtype), expected, f"{source} to {name}")


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_integers_become_floats(lanes):
    for target in ("f32", "f64"):
        functions = compiled([conversion("to_float", source, target, lanes, source, target, signed) for _, source, signed in INTEGERS])
        for (name, source, _), function in zip(INTEGERS, functions):
            x = rng.integers(-(2**63), 2**63 - 1, 2000) >> rng.integers(0, 63, 2000)
            x = np.concatenate([x, [0, -1, 2**63 - 1, -(2**63), 2**24 + 1, 2**53 + 1]]).astype(NUMPY[source])
            expected = x.view(f"{name[0]}{int(name[1:]) // 8}").astype(NUMPY[target])
            np.testing.assert_array_equal(function(x), expected, f"{name} to {target}")
