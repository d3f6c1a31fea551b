"""Kernels for tests/test_native_layouts.py: tiles whose first dim is the one along which addresses follow each other."""
import triton
import triton.language as tl


@triton.jit
def columns(x_ptr, j, M, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Addresses of a tile (M, N) that lies column by column."""
    return x_ptr + tl.arange(0, ROWS)[:, None] + (j + tl.arange(0, COLUMNS))[None, :] * M


@triton.jit
def sums_kernel(rows_ptr, all_ptr, last_ptr, x_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What a loop carries is reduced along both dims, and stored in both orders."""
    total = tl.load(columns(x_ptr, 0, M, ROWS, COLUMNS))
    for j in range(COLUMNS, N, COLUMNS):
        total += tl.load(columns(x_ptr, j, M, ROWS, COLUMNS))
    i, k = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(rows_ptr + i, tl.sum(total, 1))
    tl.store(rows_ptr + ROWS + k, tl.sum(total, 0))
    tl.store(all_ptr + i[:, None] * COLUMNS + k[None, :], total)
    tl.store(columns(last_ptr, 0, M, ROWS, COLUMNS), total * 2)


@triton.jit
def best_kernel(out_ptr, x_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Two values are carried, of which the second depends on what the first was."""
    best = tl.load(columns(x_ptr, 0, M, ROWS, COLUMNS))
    where = tl.zeros((ROWS, COLUMNS), tl.int32)
    for j in range(COLUMNS, N, COLUMNS):
        x = tl.load(columns(x_ptr, j, M, ROWS, COLUMNS))
        where = tl.where(x > best, j, where)
        best = tl.maximum(best, x)
    i = tl.arange(0, ROWS)
    tl.store(out_ptr + i, tl.max(best, 1))
    tl.store(out_ptr + ROWS + i, tl.max(where, 1).to(tl.float32))


@triton.jit
def began_kernel(out_ptr, x_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums that begin with the same numbers in a row."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32) + tl.arange(0, COLUMNS)[None, :].to(tl.float32)
    for j in range(0, N, COLUMNS):
        total += tl.load(columns(x_ptr, j, M, ROWS, COLUMNS))
    tl.store(columns(out_ptr, 0, M, ROWS, COLUMNS), total)


@triton.jit
def turned_kernel(out_ptr, x_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The next turn begins with the other value: neither can be written where it was."""
    a, b = tl.load(columns(x_ptr, 0, M, ROWS, COLUMNS)), tl.load(columns(x_ptr, COLUMNS, M, ROWS, COLUMNS))
    for j in range(0, N, COLUMNS):
        a, b = b + tl.load(columns(x_ptr, j, M, ROWS, COLUMNS)), a
    tl.store(columns(out_ptr, 0, M, ROWS, COLUMNS), a)
    tl.store(columns(out_ptr, COLUMNS, M, ROWS, COLUMNS), b)


@triton.jit
def kept_kernel(out_ptr, x_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What a loop begins with is wanted afterwards, and what it carries is looked at as a product's operand and turned round."""
    first = tl.load(columns(x_ptr, 0, M, ROWS, COLUMNS))
    total = first
    seen = tl.zeros((ROWS, ROWS), tl.float32)
    for j in range(0, N, COLUMNS):
        seen = tl.dot(total, tl.trans(total), seen, input_precision="ieee")
        total += tl.load(columns(x_ptr, j, M, ROWS, COLUMNS))
    tl.store(columns(out_ptr, 0, M, ROWS, COLUMNS), total - first)
    i = tl.arange(0, ROWS)
    tl.store(out_ptr + M * COLUMNS + i[:, None] * ROWS + i[None, :], seen)


@triton.jit
def nested_kernel(out_ptr, x_ptr, M, N, TURNS, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A loop inside goes on with what the one around it carries, perhaps in no turn at all."""
    total = tl.load(columns(x_ptr, 0, M, ROWS, COLUMNS))
    for turn in range(TURNS):
        for j in range(turn * COLUMNS, N, COLUMNS):
            total = total * 2 + tl.load(columns(x_ptr, j, M, ROWS, COLUMNS))
    if TURNS > 2:
        total += tl.sum(total, 1, keep_dims=True)
    tl.store(columns(out_ptr, 0, M, ROWS, COLUMNS), total)


@triton.jit
def quotients_kernel(out_ptr, x_ptr, width, step, n, BLOCK: tl.constexpr):
    """Rows of any width, by the high half of a product with the reciprocal."""
    many = (tl.arange(0, BLOCK) * 0).to(tl.uint32) + (0xFFFFFFFF // tl.cast(width, tl.uint32) + 1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.umulhi(i.to(tl.uint32), many).to(tl.int32)
    x = tl.load(x_ptr + row * step + (i - row * width), mask=i < n, other=0)
    tl.store(out_ptr + i, x, mask=i < n)
