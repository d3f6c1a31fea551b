"""Number types, functions and dot products of kernels on the simulated device, held against numpy."""
import math

import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from interpreted import SQUARE, N, Probes, X, bf16, e4m3, e5m2, launch, normal, rng  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from tritorch.cuda.simulated import special  # noqa: E402

pytestmark = pytest.mark.smoke

probe = Probes()


@pytest.mark.parametrize("case", probe)
def test_probe(case):
    case.check()


# types

@probe(lambda x: x.astype(bf16), X)
@triton.jit
def bf16_store_rounds(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


B = normal(N, dtype=bf16)


@probe(lambda a, b: ((a + b).astype("f4") * a.astype("f4")).astype(bf16), B, B[::-1].copy(), tol=0)
@triton.jit
def bf16_arithmetic(o_ptr, a_ptr, b_ptr):
    i = tl.arange(0, 64)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    tl.store(o_ptr + i, (a + b) * a)


@probe(lambda a: a.view("u2"), B)
@triton.jit
def bf16_bits(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(a_ptr + i).to(tl.uint16, bitcast=True))


@probe(np.array([np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0, 3.3895e38, 1e-40], bf16), np.array(
    [np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0, 3.3895e38, 1e-40], "f4"), tol=1e-2)
@triton.jit
def bf16_specials(o_ptr, x_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.bfloat16))


@probe(lambda a: a * a + np.float16(1.5), X.astype("f2"), tol=0)
@triton.jit
def fp16_arithmetic(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    a = tl.load(a_ptr + i)
    tl.store(o_ptr + i, a * a + 1.5)


@probe(lambda a: a.astype("f4") / np.float32(3), X.astype("f2"))
@triton.jit
def fp16_division_is_fp32(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    tl.static_assert((tl.load(a_ptr + i) / 3).dtype == tl.float32)
    tl.store(o_ptr + i, tl.load(a_ptr + i) / 3)


WIDE = np.concatenate([X[:60] * 100, np.array([1e6, -1e6, np.inf, np.nan], "f4")])


@probe(lambda x: np.clip(x, -448, 448).astype(e4m3), WIDE, tol=0)
@triton.jit
def fp8_e4m3(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.float8e4nv))


@probe(lambda x: x.astype(e5m2).astype("f4"), WIDE, tol=0)
@triton.jit
def fp8_e5m2(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.float8e5).to(tl.float32))


@probe(np.array([0, 1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1, 100], "i4"),
       np.array([0.9, 1.9, -1.9, 1e20, -1e20, np.nan, np.inf, 100], "f4"))
@triton.jit
def float_to_int(o_ptr, x_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.int32))


@probe(np.array([-(2**63), 1, -1, 2**63 - 1], "i8"), np.array([np.nan, 1.9, -1.9, np.inf], "f4"))
@triton.jit
def nan_to_int64(o_ptr, x_ptr):
    i = tl.arange(0, 4)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.int64))


@probe(lambda x: x.astype("i4").astype("u1"), np.arange(-4, 4, dtype="f4") * 50)
@triton.jit
def float_to_uint8(o_ptr, x_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.int32).to(tl.uint8))


@probe(lambda x: x.view("i4") ^ 1, X)
@triton.jit
def bitcast(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(tl.int32, bitcast=True) ^ 1)


@probe(lambda a: (a.astype("i4") * 7).astype("i1"), np.arange(-32, 32, dtype="i1"))
@triton.jit
def int8_wraps(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(a_ptr + i) * 7)


@probe(lambda a: a + np.uint8(250), np.arange(64, dtype="u1"))
@triton.jit
def uint8_wraps(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(a_ptr + i) + 250)


@probe(lambda a: a * np.uint32(2654435761), np.arange(8, dtype="u4") + 2**31)
@triton.jit
def uint32_wraps(o_ptr, a_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.load(a_ptr + i) * tl.full((8,), 2654435761, tl.uint32))


INTS = np.arange(-8, 8, dtype="i8") * 7 + 3


@probe(lambda a: np.stack([np.trunc(a / 5), np.fmod(a, 5), a >> 2, a << 3, -a, ~a]).astype("i8"), INTS)
@triton.jit
def integer_operators(o_ptr, a_ptr):
    i = tl.arange(0, 16)
    a = tl.load(a_ptr + i)
    tl.store(o_ptr + i, a // 5)
    tl.store(o_ptr + 16 + i, a % 5)
    tl.store(o_ptr + 32 + i, a >> 2)
    tl.store(o_ptr + 48 + i, a << 3)
    tl.store(o_ptr + 64 + i, -a)
    tl.store(o_ptr + 80 + i, ~a)


@probe(lambda a: (a.astype("u8") >> 60).astype("u8"), INTS)
@triton.jit
def logical_shift(o_ptr, a_ptr):
    i = tl.arange(0, 16)
    tl.store(o_ptr + i, tl.load(a_ptr + i).to(tl.uint64, bitcast=True) >> 60)


@probe(lambda a, b: ((a.astype("u8") * b.astype("u8")) >> np.uint64(32)).astype("u4"),
       np.arange(8, dtype="u4") * 123456789, np.full(8, 4000000000, "u4"))
@triton.jit
def high_product(o_ptr, a_ptr, b_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.umulhi(tl.load(a_ptr + i), tl.load(b_ptr + i)))


BIG = rng.integers(0, 2**64, 16, dtype="u8")


@probe(np.array([int(a) * int(a) >> 64 for a in BIG], "u8"), BIG)
@triton.jit
def high_product_64(o_ptr, a_ptr):
    i = tl.arange(0, 16)
    tl.store(o_ptr + i, tl.umulhi(tl.load(a_ptr + i), tl.load(a_ptr + i)))


@probe(lambda n, m: np.array([-(-n // m)], "i4"), 17, 5)
@triton.jit
def ceiling_division(o_ptr, n, m):
    tl.store(o_ptr, tl.cdiv(n, m))


@probe(lambda x, s: x * s, X.astype("f8"), np.float64(0.1), tol=0)
@triton.jit
def fp64_scalar(o_ptr, x_ptr, s):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * s)


@probe(lambda x, s: x * np.float32(s), X, 0.1, tol=0)
@triton.jit
def fp32_scalar(o_ptr, x_ptr, s):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * s)


NUMBERS = [True, 0, 1, -1, 200, 2**31, 2**40, 2**63, 0.5, 1e40, math.inf]


@pytest.mark.parametrize("division", [False, True])
def test_types_of_operations_are_triton_s_own(division):
    from triton.language.semantic import TritonSemantic

    from tritorch.cuda.simulated.conversions import TYPES, common_type, number_type, weak_type

    def outcome(f, *args):
        try:
            return f(*args)
        except (TypeError, ValueError):
            return None

    theirs = TritonSemantic(None).computation_type_impl
    types = [t for t in TYPES.values() if not t.is_fp8()]       # versions differ on fp8, which only converts and multiplies
    for a in types:
        for b in types:
            ours = a if a is b and not division else outcome(common_type, a, b, division)
            assert ours == outcome(theirs, a, False, b, False, division), (a, b)
        for number in NUMBERS:
            expected = outcome(theirs, a, False, number_type(number), True, division)
            if expected is not None and expected.is_int():
                expected = expected if expected.get_int_min_value() <= number <= expected.get_int_max_value() else None
            assert outcome(weak_type, number, number_type(number), a, division) == expected, (a, number)


# mathematics

@probe(lambda x: np.stack([np.floor(x), np.ceil(x), np.cos(x), np.sin(x), np.exp2(x), np.log2(abs(x) + 1), 1 / np.sqrt(abs(x) + 1),
                           np.sqrt(abs(x)), x / np.float32(3), x * x + x, np.clip(x, -1, 1), special._erf(x.astype("f8"))]).astype("f4"), X)
@triton.jit
def functions(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    a = tl.abs(x)
    tl.store(o_ptr + i, tl.floor(x))
    tl.store(o_ptr + 64 + i, tl.ceil(x))
    tl.store(o_ptr + 128 + i, tl.cos(x))
    tl.store(o_ptr + 192 + i, tl.sin(x))
    tl.store(o_ptr + 256 + i, tl.exp2(x))
    tl.store(o_ptr + 320 + i, tl.log2(a + 1))
    tl.store(o_ptr + 384 + i, tl.rsqrt(a + 1))
    tl.store(o_ptr + 448 + i, tl.sqrt_rn(a))
    tl.store(o_ptr + 512 + i, tl.div_rn(x, 3.0))
    tl.store(o_ptr + 576 + i, tl.fma(x, x, x))
    tl.store(o_ptr + 640 + i, tl.clamp(x, -1.0, 1.0))
    tl.store(o_ptr + 704 + i, tl.math.erf(x))


HOLES = np.array([1, np.nan, 3, np.nan], "f4")


@probe(np.array([1, 0, 2, np.nan, np.nan, np.nan, 2, np.nan], "f4"), HOLES, np.array([0, 0, 2, np.nan], "f4"))
@triton.jit
def nan_in_minimum(o_ptr, x_ptr, y_ptr):
    i = tl.arange(0, 4)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(o_ptr + i, tl.minimum(x, y) + (i == 0))
    tl.store(o_ptr + 4 + i, tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL) / (i != 0).to(tl.float32) * (y * 0 + 1) + 0 * x / (i != 0))


LIBDEVICE = {
    "erf": special._erf, "erfc": special._erfc, "tanh": np.tanh, "sinh": np.sinh, "expm1": np.expm1, "log1p": lambda x: np.log1p(np.abs(x)),
    "tan": np.tan, "atan": np.arctan, "cbrt": np.cbrt, "rint": np.rint, "trunc": np.trunc, "asinh": np.arcsinh, "exp10": lambda x: 10.0**x,
    "lgamma": np.vectorize(math.lgamma), "round": lambda x: np.trunc(x + np.copysign(0.5, x)), "isnan": np.isnan,
    "signbit": np.signbit,
}


@triton.jit
def call_libdevice(o_ptr, x_ptr, F: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, F(tl.load(x_ptr + i)).to(tl.float64))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", sorted(LIBDEVICE))
def test_libdevice(name, dtype):
    x = X.astype(dtype)
    if name == "log1p":
        x = np.abs(x)
    out = np.empty(N)
    launch(call_libdevice, (1,), out, x, F=getattr(libdevice, name))
    np.testing.assert_allclose(out, LIBDEVICE[name](x.astype("f8")), rtol=1e-6 if dtype == "f4" else 1e-14, atol=1e-15)


@probe(lambda x: np.stack([np.abs(x) ** np.float32(1.5), np.arctan2(x, 2), np.hypot(x, 2), np.fmod(x, 0.3), np.nextafter(x, np.float32(9)),
                           np.copysign(np.abs(x), -x)]).astype("f4"), X, tol=2e-6)
@triton.jit
def libdevice_of_two(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, libdevice.pow(tl.abs(x), 1.5))
    tl.store(o_ptr + 64 + i, libdevice.atan2(x, 2.0))
    tl.store(o_ptr + 128 + i, tl.extra.cuda.libdevice.hypot(x, 2.0))
    tl.store(o_ptr + 192 + i, libdevice.fmod(x, 0.3))
    tl.store(o_ptr + 256 + i, libdevice.nextafter(x, 9.0))
    tl.store(o_ptr + 320 + i, libdevice.copysign(tl.abs(x), -x))


def counted_bits(a):
    words = [int(v) & 0xFFFFFFFF for v in a]
    return np.array([[bin(v).count("1"), 32 - v.bit_length(), (v & -v).bit_length()] for v in words], "i4").T


@probe(counted_bits, np.arange(-8, 8, dtype="i4"))
@triton.jit
def bit_counting(o_ptr, a_ptr):
    i = tl.arange(0, 16)
    a = tl.load(a_ptr + i)
    tl.store(o_ptr + i, libdevice.popc(a))
    tl.store(o_ptr + 16 + i, libdevice.clz(a))
    tl.store(o_ptr + 32 + i, libdevice.ffs(a))


@probe(lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum() + 1 / (1 + np.exp(-x)), X)
@triton.jit
def softmax_and_sigmoid(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.softmax(x) + tl.sigmoid(x))


# dot products

def cut_to_tf32(x):
    return (x.view("u4") & 0xFFFFE000).astype("u4").view("f4")


@triton.jit
def dot(o_ptr, x_ptr, PRECISION: tl.constexpr, ACC: tl.constexpr):
    i = tl.arange(0, 16)
    place = i[:, None] * 16 + i[None, :]
    x = tl.load(x_ptr + place)
    if ACC:
        acc = tl.full((16, 16), 1, o_ptr.dtype.element_ty)
        acc = tl.dot(x, tl.trans(x), acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        acc = tl.dot(x, x.T, input_precision=PRECISION, out_dtype=o_ptr.dtype.element_ty)
    tl.store(o_ptr + place, acc)


@pytest.mark.parametrize("acc", [True, False])
@pytest.mark.parametrize("precision, tol", [
    ("ieee", 1e-6), ("tf32x3", 1e-6), ("bf16x3", 1e-4), ("bf16x6", 1e-6), ("tf32", 1e-6), (None, 1e-6)])
def test_dot_precision(precision, tol, acc):
    out = np.empty((16, 16), "f4")
    launch(dot, (1,), out, SQUARE, PRECISION=precision, ACC=acc)
    x = (cut_to_tf32(SQUARE) if precision in ("tf32", None) else SQUARE).astype("f8")
    np.testing.assert_allclose(out, x @ x.T + acc, rtol=tol, atol=10 * tol)


@pytest.mark.parametrize("dtype, out", [("f2", "f4"), ("f2", "f2"), (bf16, "f4"), ("f8", "f8")])
def test_dot_types(dtype, out):
    x, result = SQUARE.astype(dtype), np.empty((16, 16), out)
    launch(dot, (1,), result, x, PRECISION="ieee", ACC=True)
    np.testing.assert_allclose(result, x.astype("f8") @ x.astype("f8").T + 1, rtol=1e-2 if out == "f2" else 1e-6, atol=1e-5)


@probe(lambda a: a.astype("i4") @ a.astype("i4").T, rng.integers(-128, 128, (32, 32)).astype("i1"))
@triton.jit
def dot_int8(o_ptr, a_ptr):
    i = tl.arange(0, 32)
    place = i[:, None] * 32 + i[None, :]
    a = tl.load(a_ptr + place)
    tl.store(o_ptr + place, tl.dot(a, a.T))


@probe(lambda a: a.astype("f4") @ a.astype("f4").T, normal(32, 32).astype(e4m3))
@triton.jit
def dot_fp8(o_ptr, a_ptr):
    i = tl.arange(0, 32)
    place = i[:, None] * 32 + i[None, :]
    a = tl.load(a_ptr + place)
    tl.store(o_ptr + place, tl.dot(a, a.T))


@probe(lambda x: x @ x, normal(2, 16, 16), tol=1e-5)
@triton.jit
def dot_batched(o_ptr, x_ptr):
    b, i = tl.arange(0, 2), tl.arange(0, 16)
    place = b[:, None, None] * 256 + i[None, :, None] * 16 + i[None, None, :]
    x = tl.load(x_ptr + place)
    tl.store(o_ptr + place, tl.dot(x, x, input_precision="ieee"))


# functions that numpy lacks, without scipy

@pytest.mark.parametrize("name", ["erf", "erfc", "erfcx", "erfinv"])
def test_special_functions_against_scipy(name):
    scipy = pytest.importorskip("scipy.special")
    x = np.concatenate([np.linspace(-6, 6, 4001), [0.46875, 4.0, 25.0, -0.0]])
    if name == "erfinv":
        x = np.concatenate([np.linspace(-1, 1, 4001), [1 - 1e-12, 1e-300]])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(getattr(special, f"_{name}")(x), getattr(scipy, name)(x), rtol=2e-14 if name != "erfinv" else 1e-12)
