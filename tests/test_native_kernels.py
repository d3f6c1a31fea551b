"""Kernels as users write them, compiled for the host: none of them may need the interpreter."""
import importlib.util
import platform
import sys
import warnings

import numpy as np
import pytest

import tritorch as torch

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)

import triton
import triton.language as tl

pytestmark = pytest.mark.smoke


@pytest.fixture
def native():
    with torch.cuda.simulate(native=True) as device, warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* runs in the interpreter")
        yield device


def on_device(array):
    return torch.from_numpy(np.array(array)).cuda()


# ------------------------------------------------------------------ loops
@triton.jit
def locked_sum_kernel(x_ptr, total_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    """Programs add to the same row, one after the other."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + i, mask=i < n)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr + i, tl.load(total_ptr + i, mask=i < n) + x, mask=i < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


def test_a_lock_lets_one_program_in_at_a_time(native):
    x = np.arange(500 * 20).reshape(500, 20)
    total, lock = torch.zeros(20, dtype=torch.int64).cuda(), torch.zeros(1, dtype=torch.int32).cuda()
    locked_sum_kernel[(500,)](on_device(x), total, lock, 20, BLOCK=32)
    np.testing.assert_array_equal(total.cpu().numpy(), x.sum(0))
    assert lock.item() == 0


# ------------------------------------------------------------------ rounding
@triton.jit
def moments_kernel(out_ptr, p_ptr, v_ptr, n, a, b, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p, v = tl.load(p_ptr + i, mask=i < n), tl.load(v_ptr + i, mask=i < n)
    if FACTOR:
        p = (p * 2.0).to(tl.float32)                    # exact: the same p as is given without a factor
    tl.store(out_ptr + i, a * v + b * p * p, mask=i < n)
    tl.store(out_ptr + n + i, v - a * p, mask=i < n)
    tl.store(out_ptr + 2 * n + i, b * v - p, mask=i < n)


def test_a_formula_has_the_same_bits_in_every_kernel(native):
    """The left one of two products is not rounded before the sum is."""
    rng = np.random.default_rng(0)
    p, v, a, b = (rng.uniform(1, 2, n).astype(np.float32) for n in (1000, 1000, 1, 1))
    wide = [x.astype(np.float64) for x in (p, v, a, b)]           # of two float32s the product is exact
    expected = np.concatenate([wide[2] * wide[1] + (b * p * p), wide[1] - wide[2] * wide[0], wide[3] * wide[1] - wide[0]])
    for factor in (False, True):
        out = torch.zeros(3000, device="cuda")
        source = on_device(p / 2 if factor else p)
        moments_kernel[(1,)](out, source, on_device(v), 1000, float(a[0]), float(b[0]), FACTOR=factor, BLOCK=1024)
        np.testing.assert_array_equal(out.cpu().numpy(), expected.astype(np.float32))


def test_a_formula_is_rounded_at_every_step_if_asked_to(native):
    rng = np.random.default_rng(1)
    p, v, a, b = (rng.uniform(1, 2, n).astype(np.float32) for n in (1000, 1000, 1, 1))
    out = torch.zeros(3000, device="cuda")
    moments_kernel[(1,)](out, on_device(p), on_device(v), 1000, float(a[0]), float(b[0]), FACTOR=False, BLOCK=1024, enable_fp_fusion=False)
    np.testing.assert_array_equal(out.cpu().numpy(), np.concatenate([a * v + b * p * p, v - a * p, b * v - p]))


# ------------------------------------------------------------------ functions, atomics
@triton.jit(noinline=True)
def partial_sum(x_ptr, start, count):
    total = 0.0
    for k in range(count):
        total += tl.load(x_ptr + start + k)
    return total, start + count


@triton.jit
def calling_kernel(out_ptr, x_ptr, count):
    first, start = partial_sum(x_ptr, 0, count)
    second, start = partial_sum(x_ptr, start, count + 1)
    tl.store(out_ptr, first)
    tl.store(out_ptr + 1, second)
    tl.store(out_ptr + 2, start.to(tl.float32))


def test_functions_that_are_not_inlined_on_a_gpu(native):
    out = torch.zeros(3, device="cuda")
    calling_kernel[(1,)](out, torch.arange(20.0, device="cuda"), 4)
    assert out.tolist() == [6.0, 30.0, 9.0]


@triton.jit
def adding_kernel(out_ptr, old_ptr, x_ptr, place_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.atomic_add(out_ptr + tl.load(place_ptr + i, mask=i < n), tl.load(x_ptr + i, mask=i < n), mask=i < n)
    tl.store(old_ptr + i, old, mask=i < n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64])
def test_programs_add_to_the_same_places(native, dtype):
    """Sums that are exact, so their order does not show."""
    rng = np.random.default_rng(2)
    places, x = rng.integers(0, 5, 3000), rng.integers(0, 2, 3000)
    x[np.cumsum(np.eye(5, dtype=int)[places] * x[:, None], 0).max(1) > 250] = 0         # bfloat16 counts to 256
    out, old = torch.zeros(5, dtype=dtype, device="cuda"), torch.zeros(3000, dtype=dtype, device="cuda")
    adding_kernel[(24,)](out, old, on_device(x).to(dtype), on_device(places), 3000, BLOCK=128)
    expected = np.bincount(places, x, 5)
    np.testing.assert_array_equal(out.cpu().double().numpy(), expected)
    old = old.cpu().double().numpy()
    for k in range(5):                                                                  # each has seen what those before it left
        seen = old[(places == k) & (x == 1)]
        np.testing.assert_array_equal(np.sort(seen), np.arange(expected[k]))


# ------------------------------------------------------------------ PTX
@triton.jit
def approximate_kernel(out_ptr, x_ptr, n, ASM: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1.0)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(ASM, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1), mask=i < n)


@pytest.mark.parametrize("instruction, function", [
    ("tanh.approx.f32", np.tanh), ("ex2.approx.ftz.f32", np.exp2), ("lg2.approx.f32", np.log2), ("rcp.approx.ftz.f32", np.reciprocal),
    ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)), ("sin.approx.f32", np.sin)])
def test_functions_of_a_gpu(native, instruction, function):
    x = np.linspace(0.01, 5, 500)
    out = torch.zeros(500, device="cuda")
    approximate_kernel[(1,)](out, on_device(x.astype(np.float32)), 500, ASM=f"{instruction} $0, $1;", BLOCK=512)
    np.testing.assert_allclose(out.cpu().numpy(), function(x), rtol=2e-6, atol=2e-6)


# ------------------------------------------------------------------ dims of two elements
@triton.jit
def sorting_kernel(out_ptr, x_ptr, M: tl.constexpr, N: tl.constexpr, FALLING: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.sort(tl.load(x_ptr + i), 1, descending=FALLING))


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("shape", [(4, 2), (4, 8), (2, 64), (1, 512)], ids=str)
def test_sorted_by_comparisons_along_every_bit(native, shape, falling):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    out = torch.zeros(shape, device="cuda")
    sorting_kernel[(1,)](out, on_device(x), M=shape[0], N=shape[1], FALLING=falling)
    np.testing.assert_array_equal(out.cpu().numpy(), np.sort(x, 1)[:, ::-1 if falling else 1])


@triton.jit
def bits_kernel(out_ptr, x_ptr, a_ptr, b_ptr):
    """Operands that repeat along different dims, so that neighbours may or may not be one dim."""
    two, four = tl.arange(0, 2), tl.arange(0, 4)
    x = tl.reshape(tl.load(x_ptr + tl.arange(0, 128)), (2, 2, 4, 2, 2, 2))
    a = tl.reshape(tl.load(a_ptr + tl.arange(0, 16)), (2, 2, 4, 1, 1, 1))
    b = tl.reshape(tl.load(b_ptr + four), (1, 1, 1, 1, 2, 2)) + two[:, None, None, None, None, None] * 100
    found = x * a + b + four[None, None, :, None, None, None] + tl.sum(x, 3, keep_dims=True)
    tl.store(out_ptr + tl.arange(0, 128), tl.reshape(found, (128,)))


def test_operands_that_repeat_along_some_dims(native):
    rng = np.random.default_rng(4)
    x, a, b = (rng.integers(-50, 50, n).astype(np.int32) for n in (128, 16, 4))
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    bits_kernel[(1,)](out, on_device(x), on_device(a), on_device(b))
    x = x.reshape(2, 2, 4, 2, 2, 2)
    hundreds = 100 * np.arange(2).reshape(2, 1, 1, 1, 1, 1)
    expected = x * a.reshape(2, 2, 4, 1, 1, 1) + b.reshape(2, 2) + hundreds + np.arange(4).reshape(4, 1, 1, 1) + x.sum(3, keepdims=True)
    np.testing.assert_array_equal(out.cpu().numpy(), expected.reshape(-1))
