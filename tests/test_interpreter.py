"""Every feature of the Triton language that our kernels use, run on the simulated device and held against numpy.

A file of many small kernels, so longer than others.
"""
import math

import ml_dtypes
import numpy as np
import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from interpreted import Descriptor, launch  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from tritorch.cuda.simulated import MemoryFault, special  # noqa: E402

bf16, e4m3, e5m2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
rng = np.random.default_rng(0)
N = 64


def normal(*shape, dtype="f4"):
    return rng.standard_normal(shape).astype(dtype)


X = normal(N)
SQUARE = normal(16, 16)
CASES = []


def probe(expected, *inputs, out=None, grid=(1,), tol=1e-6, **constexprs):
    """A kernel (o_ptr, inputs…, constants…) and what it stores: `expected` is an array or a function of the inputs."""
    def register(kernel):
        value = expected(*inputs[:expected.__code__.co_argcount]) if callable(expected) else np.asarray(expected)
        CASES.append(pytest.param(kernel, inputs, value, out or value.dtype, grid, tol, constexprs, id=kernel.fn.__name__))
        return kernel
    return register


@pytest.mark.parametrize("kernel, inputs, expected, dtype, grid, tol, constexprs", CASES)
def test_probe(kernel, inputs, expected, dtype, grid, tol, constexprs):
    out = np.zeros(expected.shape, dtype)
    inputs = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in inputs)
    launch(kernel, grid, out, *inputs, **constexprs)
    if np.dtype(dtype).kind in "biu":
        np.testing.assert_array_equal(out, expected)
    else:
        np.testing.assert_allclose(out.astype("f8"), np.asarray(expected).astype("f8"), rtol=tol, atol=tol)


# control flow, constants, helpers

@triton.jit
def scaled(x, factor: tl.constexpr = 3.0):
    return x * factor


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def through_scaled(x):
    return scaled(scaled(x), factor=2.0)


FACTOR = tl.constexpr(3)


@probe(lambda x: x * 6, X)
@triton.jit
def nested_calls(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, through_scaled(tl.load(x_ptr + i)))


@probe(lambda x: np.maximum(x, 0), X, ACT=relu)
@triton.jit
def function_as_constant(o_ptr, x_ptr, ACT: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, ACT(tl.load(x_ptr + i)))


@probe(lambda x: np.maximum(x, 0) * 3, X, ACTS=(relu, scaled))
@triton.jit
def functions_in_a_tuple(o_ptr, x_ptr, ACTS: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    for k in tl.static_range(len(ACTS)):
        x = ACTS[k](x)
    tl.store(o_ptr + i, x)


@probe(lambda x: x * 3, X)
@triton.jit
def global_constant(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * FACTOR)


@probe(lambda x: x * 2, X, MODE="double")
@triton.jit
def string_constant(o_ptr, x_ptr, MODE: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    if MODE == "double":
        x = x * 2
    elif MODE == "triple":
        x = x * 3
    tl.store(o_ptr + i, x)


@probe(lambda x: x, X, BIAS=None)
@triton.jit
def absent_pointer(o_ptr, x_ptr, BIAS: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    if BIAS is not None:
        x += tl.load(BIAS + i)
    tl.store(o_ptr + i, x)


@probe(lambda x: x.astype("f2").astype("f4"), X, DTYPE=tl.float16)
@triton.jit
def type_as_constant(o_ptr, x_ptr, DTYPE: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i).to(DTYPE).to(o_ptr.dtype.element_ty))


@probe(lambda x, n: np.where(np.arange(N) < n, x, 0), X, 50)
@triton.jit
def while_loop(o_ptr, x_ptr, n):
    j = 0
    while j < n:
        tl.store(o_ptr + j, tl.load(x_ptr + j))
        j += 1


@probe(lambda x, n: np.where(np.arange(N) < n, x + 1, 0), X, 50)
@triton.jit
def runtime_range(o_ptr, x_ptr, n):
    for j in tl.range(0, n, num_stages=2):
        x = tl.load(x_ptr + j)
        if n > 10:
            x += 1
        tl.store(o_ptr + j, x)


@probe(lambda x, n: np.full(1, x[:n:3].sum() + sum(range(0, n, 3)), "f4"), X, 50, tol=1e-4)
@triton.jit
def plain_range(o_ptr, x_ptr, n):
    total = 0.0
    for j in range(0, n, 3):
        total += tl.load(x_ptr + j) + j.to(tl.float32)
    tl.store(o_ptr, total)


@probe(lambda x: x * 6, X)
@triton.jit
def static_range(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    total = x * 0
    for j in tl.static_range(4):
        total += x * j
    tl.store(o_ptr + i, total)


@probe(np.zeros(N, "f4"), X, 0)
@triton.jit
def early_return(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    if n == 0:
        return
    tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(lambda x, n: x * n[0] + n[1] + n[2], X, (3, 4, 2))
@triton.jit
def tuple_of_integers(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * n[0] + n[1] + n[2])


@probe(lambda pair: pair[0] + pair[1], (X, X * 2))
@triton.jit
def tuple_of_pointers(o_ptr, pair):
    i = tl.arange(0, 64)
    total = tl.zeros((64,), tl.float32)
    for k in tl.static_range(len(pair)):
        total += tl.load(pair[k] + i)
    tl.store(o_ptr + i, total)


@triton.constexpr_function
def half_of(n):
    return n // 2


@probe(lambda x: x[:32], X, SIZE=64)
@triton.jit
def constexpr_function(o_ptr, x_ptr, SIZE: tl.constexpr):
    HALF: tl.constexpr = half_of(SIZE)
    i = tl.arange(0, HALF)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(lambda n, m: np.array([n + m, n - m], "i4"), 7, 3)
@triton.jit
def several_results(o_ptr, n, m):
    a, b = n + m, n - m
    if a > b and not b == 0 or n < 0:
        tl.store(o_ptr, a)
        tl.store(o_ptr + 1, b)


@probe(lambda x: np.where((x > 0) & (x < 1) | (x < -1), 1.0, 0.0).astype("f4"), X)
@triton.jit
def logic_on_blocks(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.where((x > 0) and (x < 1) or (x < -1), 1.0, 0.0))


@probe(lambda b: ~b, np.tile([True, False, False], 3)[:8])
@triton.jit
def not_on_blocks(o_ptr, b_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, not tl.load(b_ptr + i))


@probe(lambda x, s: x, X, True)
@triton.jit
def bool_argument(o_ptr, x_ptr, s):
    i = tl.arange(0, 64)
    if s:
        tl.store(o_ptr + i, tl.load(x_ptr + i))


@probe(np.arange(24, dtype="i4").reshape(2, 3, 4).transpose(2, 1, 0).ravel() * 0 + np.arange(24), grid=(2, 3, 4), out="i4")
@triton.jit
def three_axes(o_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
    tl.store(o_ptr + place, place)


@probe(lambda x: x * x.sum(), X, 64, tol=1e-4)
@triton.jit
def hints(o_ptr, x_ptr, n):
    tl.assume(n > 0)
    tl.static_assert(1 + 1 == 2)
    tl.device_assert(n < 100)
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, 64), 64), 64)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0, eviction_policy="evict_last", cache_modifier=".cg")
    x = tl.where(i < n, x, tl.load(x_ptr + i, volatile=True))
    tl.debug_barrier()
    tl.store(o_ptr + i, x * tl.sum(x), cache_modifier=".cs")


# loads and stores

@probe(lambda x: np.where(np.arange(128) < N, np.pad(x, (0, 64)), -1), X)
@triton.jit
def masked_load(o_ptr, x_ptr):
    i = tl.arange(0, 128)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < 64, other=-1.0))


@probe(lambda x: x[::-1], X)
@triton.jit
def reversed_pointers(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + 63 - i, tl.load(x_ptr + i))


@probe(lambda x: x.T[:8], SQUARE)
@triton.jit
def two_dimensions(o_ptr, x_ptr):
    i, j = tl.arange(0, 8), tl.arange(0, 16)
    x = tl.load(x_ptr + j[None, :] * 16 + i[:, None])
    tl.store(o_ptr + i[:, None] * 16 + j[None, :], x)


@probe(lambda x: np.full(N, np.nan, "f4"), X)
@triton.jit
def masked_lanes_are_undefined(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < 0))


@probe(lambda x, n: x + 2, X, 2**33)
@triton.jit
def int64_argument(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.load(x_ptr + i) + (n // 4294967296).to(tl.float32))


@probe(lambda x: x, X)
@triton.jit
def int64_offsets(o_ptr, x_ptr):
    i = tl.arange(0, 64).to(tl.int64) + tl.program_id(0).to(tl.int64)
    far = x_ptr + 2**40
    tl.store(o_ptr + i, tl.load(far - 2**40 + i))


@probe(lambda x: x.view("i4"), X)
@triton.jit
def pointer_casts(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    again = x_ptr.to(tl.int64).to(tl.pointer_type(tl.int32))
    tl.store(o_ptr + i, tl.load(again + i))


@probe(lambda x, n: np.where(np.arange(N) < n, x, -x), X, 10)
@triton.jit
def chosen_pointers(o_ptr, x_ptr, n):
    i = tl.arange(0, 64)
    p = tl.where(i < n, o_ptr + i, o_ptr + i)
    tl.store(p, tl.where(i < n, tl.load(x_ptr + i), -tl.load(x_ptr + i)))


@probe(lambda x: x[:8] + 1, X)
@triton.jit
def methods(o_ptr, x_ptr):
    i = tl.arange(0, 8)
    (o_ptr + i).store(tl.load(x_ptr + i).cast(tl.float64).to(tl.float32) + tl.exp(tl.zeros_like(i).to(tl.float32)))


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


@probe(lambda x: np.clip(x, -57344, 57344).astype(e5m2).astype("f4"), WIDE, tol=0)
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

def tf32(x):
    return ((x.view("u4") + 0x1000) & 0xFFFFE000).astype("u4").view("f4")


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
    x = (tf32(SQUARE) if precision in ("tf32", None) else SQUARE).astype("f8")
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


# reductions, scans and moves

@triton.jit
def product(a, b):
    return a * b


@triton.jit
def welford(mean1, m1, n1, mean2, m2, n2):
    n = n1 + n2
    d = mean2 - mean1
    return mean1 + d * n2 / n, m1 + m2 + d * d * n1 * n2 / n, n


@triton.jit
def affine(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@probe(lambda x: np.array([np.prod(x[:4]), x.mean(), x.var() * 64], "f4"), X, tol=1e-5)
@triton.jit
def reduce(o_ptr, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 64))
    tl.store(o_ptr, tl.reduce(tl.load(x_ptr + tl.arange(0, 4)), 0, product))
    mean, m2, n = tl.reduce((x, tl.zeros((64,), tl.float32), tl.full((64,), 1.0, tl.float32)), 0, welford)
    tl.store(o_ptr + 1, mean)
    tl.store(o_ptr + 2, m2)


@probe(lambda x: np.concatenate([x.sum(1), x.max(0), x.min(1), [x.sum(), x.max()]]).astype("f4"), SQUARE, tol=1e-5)
@triton.jit
def reductions(o_ptr, x_ptr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i[:, None] * 16 + i[None, :])
    tl.store(o_ptr + i, tl.sum(x, 1))
    tl.store(o_ptr + 16 + i, tl.max(x, axis=0))
    tl.store(o_ptr + 32 + i[:, None], tl.min(x, 1, keep_dims=True))
    tl.store(o_ptr + 48, tl.sum(x))
    tl.store(o_ptr + 49, x.max())


@probe(lambda a: np.array([a.sum(), np.bitwise_xor.reduce(a.view("i4")), a.max()], "i4"), rng.integers(-128, 128, 64).astype("i1"))
@triton.jit
def integer_reductions(o_ptr, a_ptr):
    i = tl.arange(0, 64)
    a = tl.load(a_ptr + i)
    tl.store(o_ptr, tl.sum(a))
    tl.store(o_ptr + 1, tl.xor_sum(tl.load(a_ptr.to(tl.pointer_type(tl.int32)) + tl.arange(0, 16)), 0))
    tl.store(o_ptr + 2, tl.max(a, 0))


TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, -1, -1, 5], [7, 7, 1, 0]], "f4")


@probe(np.stack([TIES.argmax(1), TIES.argmin(1), TIES.max(1), TIES.argmax(0)]).astype("i4"), TIES)
@triton.jit
def arg_reductions(o_ptr, x_ptr):
    i = tl.arange(0, 4)
    x = tl.load(x_ptr + i[:, None] * 4 + i[None, :])
    tl.store(o_ptr + i, tl.argmax(x, 1))
    tl.store(o_ptr + 4 + i, tl.argmin(x, 1))
    value, index = tl.max(x, 0, return_indices=True)
    tl.store(o_ptr + 8 + i, tl.max(x, 1, return_indices=True)[0].to(tl.int32))
    tl.store(o_ptr + 12 + i, index)


def affine_scan(x):
    out, b = [], np.float64(0)
    for v in x.astype("f8"):
        b = b * v + v
        out.append(b)
    return np.array(out, "f4")


@probe(lambda x: np.stack([np.cumsum(x), np.cumsum(x[::-1])[::-1], np.cumprod(x), np.maximum.accumulate(x), affine_scan(x)]), X, tol=1e-4)
@triton.jit
def scans(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.cumsum(x, 0))
    tl.store(o_ptr + 64 + i, tl.cumsum(x, 0, reverse=True))
    tl.store(o_ptr + 128 + i, tl.cumprod(x, 0))
    tl.store(o_ptr + 192 + i, tl.associative_scan(x, 0, larger))
    a, b = tl.associative_scan((x, x), 0, affine)
    tl.store(o_ptr + 256 + i, b)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@probe(lambda x: np.concatenate([np.sort(x), np.sort(x)[::-1], np.sort(x)[::-1][:8], x[::-1]]), X)
@triton.jit
def sorting(o_ptr, x_ptr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(o_ptr + i, tl.sort(x))
    tl.store(o_ptr + 64 + i, tl.sort(x, descending=True))
    tl.store(o_ptr + 128 + tl.arange(0, 8), tl.topk(x, 8))
    tl.store(o_ptr + 136 + i, tl.flip(x, 0))


@probe(lambda x: np.concatenate([np.stack([x[:32], x[32:]], -1).ravel(), x, x[0::2] - x[1::2], x.reshape(4, 16).T.ravel()]), X)
@triton.jit
def moves(o_ptr, x_ptr):
    i = tl.arange(0, 32)
    low, high = tl.load(x_ptr + i), tl.load(x_ptr + 32 + i)
    tl.store(o_ptr + tl.arange(0, 64), tl.interleave(low, high))
    tl.store(o_ptr + 64 + tl.arange(0, 64), tl.cat(low, high, can_reorder=True))
    x = tl.load(x_ptr + tl.arange(0, 64))
    even, odd = tl.split(tl.reshape(x, (32, 2)))
    tl.store(o_ptr + 128 + i, even - odd)
    again = tl.join(even, odd).reshape([4, 16])
    tl.store(o_ptr + 160 + tl.arange(0, 64), tl.ravel(tl.permute(again, (1, 0))))


@probe(lambda x: np.stack([x[:, ::-1], x + x[:1]]), SQUARE)
@triton.jit
def gather_and_broadcast(o_ptr, x_ptr):
    i = tl.arange(0, 16)
    place = i[:, None] * 16 + i[None, :]
    x = tl.load(x_ptr + place)
    tl.store(o_ptr + place, tl.gather(x, tl.broadcast_to((15 - i)[None, :], (16, 16)), 1))
    row = tl.expand_dims(tl.load(x_ptr + i), 0)
    a, b = tl.broadcast(x, row)
    tl.store(o_ptr + 256 + place, a + b)


@probe(lambda a: np.bincount(a, minlength=4).astype("i4"), np.array([0, 1, 2, 2, 3, 3, 3, 0], "i4"))
@triton.jit
def histogram(o_ptr, a_ptr):
    tl.store(o_ptr + tl.arange(0, 4), tl.histogram(tl.load(a_ptr + tl.arange(0, 8)), 4))


# random numbers

def philox4x32(key, counter):
    c0, c1, c2, c3 = (int(c) for c in counter)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@probe(np.array([philox4x32(2**40 + 7, (i, 0, 0, 0)) for i in range(32)], "u4").T, np.array([2**40 + 7]))
@triton.jit
def philox(o_ptr, seed_ptr):
    i = tl.arange(0, 32)
    zero = tl.zeros((32,), tl.uint32)
    a, b, c, d = tl.philox(tl.load(seed_ptr), i.to(tl.uint32), zero, zero, zero)
    tl.store(o_ptr + i, a)
    tl.store(o_ptr + 32 + i, b)
    tl.store(o_ptr + 64 + i, c)
    tl.store(o_ptr + 96 + i, d)


def uniform(bits):
    signed = np.asarray(bits, "u4").view("i4").astype("i8")
    return (np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10).astype("f4")


@probe(uniform([philox4x32(1234, (i, 0, 0, 0))[0] for i in range(64)]), 1234)
@triton.jit
def rand(o_ptr, seed):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.rand(seed, i))


@probe(np.array([philox4x32(5, (i & 0xFFFFFFFF, i >> 32, 0, 0))[0] for i in range(2**33, 2**33 + 64)], "u4").view("i4"), 5, 2**33)
@triton.jit
def randint_of_wide_offsets(o_ptr, seed, start):
    i = tl.arange(0, 64)
    tl.store(o_ptr + i, tl.randint(seed, start + i).to(tl.int32, bitcast=True))


def test_randn():
    @triton.jit
    def randn(o_ptr):
        i = tl.arange(0, 4096)
        tl.store(o_ptr + i, tl.randn(1, i))

    out = np.empty(4096, "f4")
    launch(randn, (1,), out)
    assert abs(out.mean()) < 0.05 and abs(out.std() - 1) < 0.05


# atomics

@triton.jit
def atomic_add(o_ptr, x_ptr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.atomic_add(o_ptr + tl.zeros((16,), tl.int32), tl.load(x_ptr + i))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", bf16, "i4", "i8"])
def test_atomic_add(dtype):
    x, out = (X * 8).astype(dtype), np.zeros(1, dtype)
    launch(atomic_add, (4,), out, x)
    tol = 1.0 if dtype is bf16 else 0.2
    np.testing.assert_allclose(out.astype("f8"), x.astype("f8").sum(), rtol=0.1 * tol, atol=tol)


@probe(np.array([4, 3, -5, 0, 6], "i4"), grid=(4,), out="i4")
@triton.jit
def atomics_on_scalars(o_ptr):
    p = tl.program_id(0)
    old = tl.load(o_ptr)
    while tl.atomic_cas(o_ptr, old, old + 1) != old:
        old = tl.load(o_ptr)
    tl.atomic_max(o_ptr + 1, p)
    tl.atomic_min(o_ptr + 2, p - 5)
    tl.atomic_and(o_ptr + 3, p)
    tl.atomic_add(o_ptr + 4, p)


@probe(np.array([0, 1, 2, 3, 4, 5, 6, 7], "i4"), np.zeros(1, "i4"))
@triton.jit
def atomics_return_what_they_found(o_ptr, count_ptr):
    i = tl.arange(0, 8)
    tl.store(o_ptr + i, tl.atomic_add(count_ptr + i * 0, 1))


@probe(lambda x: np.array([x.max(), x.min()]), X)
@triton.jit
def atomic_max_of_floats(o_ptr, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 64))
    tl.atomic_max(o_ptr + tl.zeros((64,), tl.int32), x)
    tl.atomic_min(o_ptr + 1 + tl.zeros((64,), tl.int32), x, mask=x < 10)


# tensor descriptors

@probe(lambda x: np.where((np.arange(64) < 40)[:, None], x * 2, 0), normal(64, 64))
@triton.jit
def device_descriptors(o_ptr, x_ptr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[40, 64], strides=[64, 1], block_shape=[32, 32])
    target = tl.make_tensor_descriptor(o_ptr, shape=[64, 64], strides=[64, 1], block_shape=[32, 32])
    for a in range(0, 64, 32):
        for b in range(0, 64, 32):
            target.store([a, b], source.load([a, b]) * 2)


@triton.jit
def host_descriptors(o_desc, x_desc, ADD: tl.constexpr):
    for a in range(-32, 64, 32):
        x = x_desc.load([a + 16, 8])
        if ADD:
            o_desc.atomic_add([a + 16, 8], x)
        else:
            o_desc.store([a + 16, 8], x)


@pytest.mark.parametrize("dtype", ["f4", "f2", bf16])
@pytest.mark.parametrize("add", [True, False])
def test_host_descriptors(dtype, add):
    x, out = normal(48, 40).astype(dtype), np.ones((48, 40), dtype)
    launch(host_descriptors, (1,), Descriptor(out, (32, 32)), Descriptor(x, (32, 32)), ADD=add)
    expected = np.ones((48, 40), dtype)
    expected[:, 8:40] = expected[:, 8:40] * add + x[:, 8:40]
    np.testing.assert_array_equal(out, expected)


# what a kernel may not do

@triton.jit
def block_as_condition(o_ptr):
    i = tl.arange(0, 4)
    if i > 2:
        tl.store(o_ptr + i, i)


@triton.jit
def runtime_block_size(o_ptr):
    n = 64
    tl.store(o_ptr + tl.arange(0, n), 0)


@triton.jit
def half_exponential(o_ptr):
    tl.store(o_ptr, tl.exp(tl.load(o_ptr).to(tl.float16)))


@triton.jit
def odd_block(o_ptr):
    tl.store(o_ptr + tl.arange(0, 3), 0)


@pytest.mark.parametrize("kernel, sentence", [
    (block_as_condition, "a block of shape (4,) has no single truth value"), (runtime_block_size, "must be of type tl.constexpr"),
    (half_exponential, "Expected dtype ['fp32', 'fp64'] but got fp16"), (odd_block, "must be a power of 2")],
    ids=lambda k: getattr(k, "__name__", ""))
def test_refused(kernel, sentence):
    with pytest.raises(RuntimeError) as error:
        launch(kernel, (1,), np.zeros(64, "f4"))
    assert sentence in str(error.value) and kernel.__name__ in str(error.value) and "test_interpreter.py:" in str(error.value)


@triton.jit
def waits_for_another_program(o_ptr):
    while tl.load(o_ptr) == 0:
        tl.debug_barrier()


def test_an_endless_loop_ends(monkeypatch):
    from tritorch.cuda.simulated import interpreter

    monkeypatch.setattr(interpreter, "MANY_TURNS", 1000)
    with pytest.raises(RuntimeError, match="a while loop has not ended after 1000 turns"):
        launch(waits_for_another_program, (1,), np.zeros(1, "f4"))


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


def test_fault_names_the_line_of_a_helper():
    with pytest.raises(MemoryFault) as error:
        launch(calls_a_bad_helper, (1,), np.zeros(8, "f4"))
    line = bad_helper.fn.__code__.co_firstlineno + 3
    assert f"test_interpreter.py:{line}" in str(error.value)
    assert "load through o_ptr is out of bounds: 4 bytes past the end" in str(error.value)


@triton.jit
def bad_helper(p):
    if True:
        x = tl.load(p + 1)
    return x


@triton.jit
def calls_a_bad_helper(o_ptr):
    tl.store(o_ptr, bad_helper(o_ptr + 8))


def test_the_same_kernel_compiles_afterwards():
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch(nested_calls, (1,), np.empty(N, "f4"), X)
    kernel = triton.compile(ASTSource(nested_calls, {"o_ptr": "*fp32", "x_ptr": "*fp32"}), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in kernel.asm
    launch(nested_calls, (1,), np.empty(N, "f4"), X)


# functions that numpy lacks, without scipy

@pytest.mark.parametrize("name", ["erf", "erfc", "erfcx", "erfinv"])
def test_special_functions_against_scipy(name):
    scipy = pytest.importorskip("scipy.special")
    x = np.concatenate([np.linspace(-6, 6, 4001), [0.46875, 4.0, 25.0, -0.0]])
    if name == "erfinv":
        x = np.concatenate([np.linspace(-1, 1, 4001), [1 - 1e-12, 1e-300]])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(getattr(special, f"_{name}")(x), getattr(scipy, name)(x), rtol=2e-14 if name != "erfinv" else 1e-12)
