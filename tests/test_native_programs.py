"""Programs on the native device give what the interpreter gives: order of accesses, what loops carry, masks, numbers at their limits."""
import importlib.util
import platform
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest

if sys.platform != "linux" or platform.machine() != "x86_64" or importlib.util.find_spec("triton") is None:
    pytest.skip("the native device takes Linux on x86-64, and triton", allow_module_level=True)

import interpreted
import native_program_kernels as K

import tritorch.cuda
from tritorch.cuda.native import function

S = 16

pytestmark = pytest.mark.smoke


def native(kernel, *args, grid=(1,), **constexprs):
    """Run a kernel on the native device, which compiles it; gives the arrays as they are then."""
    found = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    with warnings.catch_warnings(), tritorch.cuda.simulate(native=True) as driver:
        warnings.simplefilter("error")                                   # of kernels that the interpreter runs
        interpreted.launch(kernel, grid, *found, driver=driver, **constexprs)
    return [one for one in found if isinstance(one, np.ndarray)]


def both(kernel, *args, grid=(1,), tolerance=0.0, **constexprs):
    """Run a kernel on the native device and in the interpreter, from the same arrays: all of them must be the same afterwards."""
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    interpreted.launch(kernel, grid, *expected, **constexprs)
    found = native(kernel, *args, grid=grid, **constexprs)
    for one, other in zip(found, (e for e in expected if isinstance(e, np.ndarray)), strict=True):
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=tolerance)


def numbers(*shape, dtype="f4"):
    return np.random.default_rng(3).integers(-9, 9, shape).astype(dtype)


def empty(*shape, dtype="f4"):
    return np.full(shape, 99, dtype)


# ------------------------------------------------------------------ loads and stores of the same memory
def test_a_store_waits_for_loads():
    both(K.store_after_load_kernel, numbers(S, S), numbers(S, S), numbers(S))


@pytest.mark.parametrize("first", [0, 1])
def test_pointers_that_are_chosen(first):
    x, y = numbers(2, S)
    found = native(K.chosen_pointer_kernel, x, y, empty(2 * S), first)
    x, y = (x * 2, y) if first else (x, x * 2)
    out = x + 10 * y
    x[::2] = y[1::2] = 5
    for one, other in zip(found, (x, y, np.concatenate([out, x[::-1] + 10 * y])), strict=True):
        np.testing.assert_array_equal(one, other)


def test_addresses_from_memory():
    x, out = np.arange(S, dtype="f4"), empty(S)
    with tritorch.cuda.simulate(native=True) as driver:
        pointer = driver.alloc(x.nbytes)
        driver.copy(pointer, x.ctypes.data, x.nbytes, "h2d", 0)
        interpreted.launch(K.addresses_kernel, (1,), np.array([pointer, pointer]), out, driver=driver)
    assert (out == (x[::-1] + 1) * 10).all()


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_pointers_that_change_places(turns):
    both(K.ping_pong_kernel, numbers(S), numbers(2, S)[1], empty(S), turns)


def test_programs_that_wait_for_others(monkeypatch):
    monkeypatch.setenv("TRITORCH_NATIVE_THREADS", "2")
    monkeypatch.setattr(function, "SPLIT", 0.0)
    out, flag = native(K.waiting_kernel, empty(1001, dtype="i4"), np.zeros(1, "i4"), grid=(1000,))
    assert (out == np.arange(99, 1100)).all() and flag == 1000


@pytest.mark.parametrize("n", [64, 37])
def test_memory_between_barriers(n):
    both(K.scratch_kernel, empty(64), numbers(64), empty(64), n)


def test_atomics():
    both(K.atomics_kernel, np.arange(16, dtype="i4") % 2, empty(17, dtype="i4"), np.abs(numbers(32, dtype="i4")), N=32)


# ------------------------------------------------------------------ what loops carry
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_tensors_that_change_places(turns):
    both(K.swapped_kernel, empty(3 * S + S * S), numbers(3 * S), turns)


@pytest.mark.parametrize("turns, step", [(0, 1), (1, 1), (4, 5)])
def test_pointers_that_move(turns, step):
    both(K.moving_kernel, empty(2 * S), numbers(100), np.arange(S)[::-1].copy().astype("i4"), turns, step)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_ranges_that_move(turns):
    both(K.moving_sums_kernel, empty(3 * S, dtype="i4"), turns)


@pytest.mark.parametrize("limit", [-1e9, 100.0, 1e9])
def test_loops_that_end_by_what_they_carry(limit):
    both(K.while_kernel, empty(S + 1), numbers(S), limit)


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("sign", [1, -1])
def test_programs_that_end_early(way, sign):
    both(K.early_kernel, empty(2 * S), np.abs(numbers(S)) * np.float32(sign), way)


@pytest.mark.parametrize("way", range(3))
def test_views_for_later_blocks(way):
    both(K.blocks_kernel, empty(2 * S, dtype="i4"), numbers(S, dtype="i4"), way)


@pytest.mark.parametrize("way", range(4))
def test_branches(way):
    both(K.branches_kernel, empty(3 * S), numbers(S), way)


def test_values_that_are_held():
    both(K.held_kernel, empty(32), numbers(32), tolerance=1e-5, N=32)


# ------------------------------------------------------------------ numbers
def test_shifts_and_quotients():
    limits = np.array([0, 1, -1, 2**31 - 1, -2**31, 7, -7, 12345], "i4")
    both(K.shifts_kernel, empty(5 * S, dtype="i4"), np.tile(limits, 2), np.array([0, 1, 31, 5] * 4, "i4"))


@pytest.mark.parametrize("n", [1, 100, 511])
def test_masks(n):
    both(K.masks_kernel, empty(2560, dtype="i4"), np.arange(2048, dtype="i4"), n)


@pytest.mark.parametrize("first, divisor", [(-64, 16), (-64, 64), (-17, 5), (0, 16), (3, 100), (-128, -32)])
def test_remainders_as_addresses(first, divisor):
    both(K.remainders_kernel, empty(256, dtype="i4"), np.arange(512, dtype="i4"), first, divisor)


@pytest.mark.parametrize("n", [64, 50])
def test_what_masked_lanes_have_instead(n):
    brain = numbers(64).astype(ml_dtypes.bfloat16)
    both(K.others_kernel, empty(64), numbers(64) > 0, numbers(128, dtype="i1"), numbers(64, dtype="f2"), brain, numbers(128, dtype="f8"), n)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16])
def test_numbers_that_are_none(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 3.0], "f4").astype(dtype)
    both(K.specials_kernel, empty(128), x, x[::-1].copy(), N=8)


def test_many_operators():
    both(K.long_kernel, empty(64), numbers(64), N=200)
