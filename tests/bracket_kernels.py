"""Kernels as Triton programs write them, for test_launch_bracket.py."""

import triton
import triton.language as tl

SCALE = tl.constexpr(3)


@triton.jit
def saxpy_kernel(x_ptr, y_ptr, out_ptr, n, alpha=1.0, BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, alpha * tl.load(x_ptr + i, mask=mask) + tl.load(y_ptr + i, mask=mask), mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + i, 2 * tl.load(x_ptr + i))
    else:
        tl.store(out_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_stages=9), triton.Config({"BLOCK": 32}, num_stages=2)], key=["n"],
                 reset_to_zero=["out_ptr"])
@triton.jit
def greedy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Sums of the rows of x @ x of n x n numbers: what the first configuration loads ahead does not fit into a GPU."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        total = tl.dot(tl.load(x_ptr + i[:, None] * n + i[None, :] + k), tl.load(x_ptr + (i[:, None] + k) * n + i[None, :]), total)
    tl.atomic_add(out_ptr + i, tl.sum(total, 1))


@triton.jit
def tile_kernel(source, target, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    target.store([row, 0], source.load([row, 0]) + rows)


@triton.jit
def bits_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i))


@triton.jit
def scaled_kernel(x_ptr, out_ptr, pair, BLOCK: tl.constexpr, ADD: tl.constexpr = None):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) * SCALE + pair[0] * pair[1]
    if ADD is not None:
        x += ADD
    tl.store(out_ptr + i, x)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["x_ptr"])
def shifted_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i + n, mask=i + n < BLOCK, other=0))


FACTOR: tl.constexpr = tl.constexpr(5)


@triton.jit
def factor_kernel(out_ptr):
    tl.store(out_ptr, FACTOR)


@triton.jit
def staged_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, num_stages: tl.constexpr, num_ctas: tl.constexpr = 1):
    """Its parameters have the names of options: they and the compiler are told the same."""
    for start in tl.range(0, n, BLOCK, num_stages=num_stages):
        i = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * num_stages * num_ctas, mask=i < n)


def bytes_of(grid, metadata, args):
    return {"name": f"{metadata.name} of {args['n']}", "bytes": 8 * args["n"], "programs": grid[0]}


@triton.jit(launch_metadata=bytes_of)
def told_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr = 32):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)
