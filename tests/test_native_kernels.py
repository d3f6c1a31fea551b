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
