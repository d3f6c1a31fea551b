"""Small kernels for the tests of compiling and launching."""

import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x + x


@triton.jit
def same(x):
    return x


@triton.jit
def square(x):
    return x * x


@triton.jit
def map_kernel(out_ptr, x_ptr, n, FN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, FN(tl.load(x_ptr + i, mask=mask)), mask=mask)


@triton.jit
def axpy_kernel(out_ptr, x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask) * alpha + tl.load(y_ptr + i, mask=mask), mask=mask)


@triton.jit
def strided_kernel(out_ptr, x_ptr, shape, x_strides, out_strides, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < shape[0] * shape[1]
    row, column = i // shape[1], i % shape[1]
    x = tl.load(x_ptr + row * x_strides[0] + column * x_strides[1], mask=mask)
    tl.store(out_ptr + row * out_strides[0] + column * out_strides[1], x, mask=mask)


@triton.jit
def types_kernel(out_ptr, small, wide, single, double, flag, nothing, pair, N: tl.constexpr):
    total = small.to(tl.float64) + wide.to(tl.float64) + single.to(tl.float64) + double + flag.to(tl.float64)
    if nothing is None:
        total += 1.0
    tl.store(out_ptr, total + pair[0] + pair[1] + N)


@triton.jit
def annotated_kernel(out_ptr, seed: tl.int64, scale: tl.float64):
    tl.store(out_ptr, seed.to(tl.float64) * scale)


@triton.jit(do_not_specialize=["n"])
def unspecialised_kernel(out_ptr, n):
    tl.store(out_ptr, n)


@triton.jit
def tile_kernel(out_ptr, x_desc, row, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], x_desc.load([row, 0]))


@triton.jit
def broken_kernel(out_ptr):
    tl.store(out_ptr, undefined_name)  # noqa: F821


@triton.jit
def heavy_kernel(out_ptr, x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i[:, None] * BLOCK + i[None, :])
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], tl.dot(x, x))


@triton.jit
def order_kernel(out_ptr, ticket_ptr):
    """Which program began first, second, …"""
    tl.store(out_ptr + tl.atomic_add(ticket_ptr, 1, sem="relaxed"), tl.program_id(0))


@triton.jit
def sum_of_products(out_ptr, a_ptr, b_ptr, steps, N: tl.constexpr):
    """The sum of `steps` products of a (128, 64) and b (64, N), which lie one behind the other."""
    i, j, k = tl.arange(0, 128), tl.arange(0, N), tl.arange(0, 64)
    acc = tl.zeros((128, N), tl.float32)
    for step in range(steps):
        a = tl.load(a_ptr + step * 128 * 64 + i[:, None] * 64 + k[None, :])
        b = tl.load(b_ptr + step * 64 * N + k[:, None] * N + j[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + i[:, None] * N + j[None, :], acc)
