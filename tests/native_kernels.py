"""Kernels for the tests of the native device."""

import triton
import triton.language as tl


@triton.jit
def axpy_kernel(out_ptr, x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask) * alpha + tl.load(y_ptr + i, mask=mask), mask=mask)


@triton.jit
def count_kernel(count_ptr):
    """Every program adds one to its own place, and says where in the grid it is."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(count_ptr + place, tl.load(count_ptr + place) + 1 + 1000 * x)


@triton.jit
def scalars_kernel(out_ptr, whole, small, single, double: tl.float64, half: tl.float16, brain: tl.bfloat16, truth, pair):
    tl.store(out_ptr, whole.to(tl.float64))
    tl.store(out_ptr + 1, small.to(tl.float64))
    tl.store(out_ptr + 2, single.to(tl.float64))
    tl.store(out_ptr + 3, double)
    tl.store(out_ptr + 4, half.to(tl.float64))
    tl.store(out_ptr + 5, brain.to(tl.float32).to(tl.float64))
    tl.store(out_ptr + 6, truth.to(tl.float64))
    tl.store(out_ptr + 7, tl.load(pair[0]).to(tl.float64) + pair[1])


@triton.jit
def tile_kernel(out_descriptor, x_descriptor, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    out_descriptor.store([row, column], x_descriptor.load([row, column]) + x_descriptor.shape[0])


@triton.jit
def asserting_kernel(out_ptr, limit):
    i = tl.program_id(0)
    tl.device_assert(i < limit, "too many programs")
    tl.store(out_ptr + i, i)


@triton.jit
def views_kernel(flat_ptr, tile_ptr, low_ptr, high_ptr, turns):
    """What a loop hands on are views of what it was handed: a reshape, and halves."""
    i = tl.arange(0, 64)
    flat, tile = tl.load(flat_ptr + i), tl.reshape(tl.load(tile_ptr + i), (2, 32))
    low, high = tl.load(low_ptr + tl.arange(0, 32)), tl.load(high_ptr + tl.arange(0, 32))
    for _ in range(turns):
        halves = tl.split(tl.trans(tile))
        tile, flat = tl.reshape(flat, (2, 32)), flat * 3 + 1
        low, high = halves[1], halves[0]
    tl.store(flat_ptr + i, flat)
    tl.store(tile_ptr + i, tl.reshape(tile, (64,)))
    tl.store(low_ptr + tl.arange(0, 32), low)
    tl.store(high_ptr + tl.arange(0, 32), high)
