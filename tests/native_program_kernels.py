"""Kernels in which the order of accesses, or what a loop hands on, matters: for test_native_programs.py."""

import triton
import triton.language as tl

SIDE = tl.constexpr(16)


# ------------------------------------------------------------------ loads and stores of the same memory
@triton.jit
def store_after_load_kernel(out_ptr, x_ptr, mask_ptr):
    """The load waits for its mask; the store, which needs nothing, is not to overtake it."""
    i = tl.arange(0, SIDE)
    place = i[:, None] * SIDE + i[None, :]
    other = tl.load(out_ptr + place)
    wanted = tl.exp(tl.load(mask_ptr + i)) > 1
    x = tl.load(x_ptr + place, mask=wanted[:, None], other=-1.0)
    tl.store(x_ptr + place, other * 2)
    tl.store(out_ptr + place, x)


@triton.jit
def chosen_pointer_kernel(x_ptr, y_ptr, out_ptr, first):
    """The pointer that is stored through is one of two, for all lanes or for each."""
    i = tl.arange(0, SIDE)
    if first:
        p = x_ptr
    else:
        p = y_ptr
    tl.store(p + i, tl.load(x_ptr + i) * 2)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 10 * tl.load(y_ptr + i))
    tl.store(tl.where(i % 2 == 0, x_ptr + i, y_ptr + i), 5.0)
    tl.store(out_ptr + SIDE + i, tl.load(x_ptr + SIDE - 1 - i) + 10 * tl.load(y_ptr + i))


@triton.jit
def addresses_kernel(table_ptr, out_ptr):
    """Both rows of the table are the same address."""
    i = tl.arange(0, SIDE)
    p = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    q = tl.load(table_ptr + 1).to(tl.pointer_type(tl.float32))
    before = tl.load(q + i)
    tl.store(p + i, before + 1)
    between = tl.load(q + SIDE - 1 - i)
    tl.store(q + i, between * 10)
    tl.store(out_ptr + i, tl.load(p + i))


@triton.jit
def ping_pong_kernel(a_ptr, b_ptr, out_ptr, turns):
    i = tl.arange(0, SIDE)
    source, target = a_ptr, b_ptr
    total = tl.zeros((SIDE,), tl.float32)
    for _ in range(turns):
        tl.store(target + i, tl.load(source + (i + 1) % SIDE) + 1)
        total += tl.load(b_ptr + i) - tl.load(a_ptr + SIDE - 1 - i)
        tl.debug_barrier()
        source, target = target, source
    tl.store(out_ptr + i, total)


@triton.jit
def scratch_kernel(out_ptr, x_ptr, scratch_ptr, n):
    """Rows are turned round by way of memory, some elements under two masks."""
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i, mask=i < n, other=-3.0)
    tl.store(scratch_ptr + i, x, mask=i % 3 == 0)
    tl.store(scratch_ptr + i, -x, mask=i % 3 != 0)
    tl.store(scratch_ptr + i, 7.0, mask=(i > 40) & (i % 2 == 0))
    tl.debug_barrier()
    turned = tl.load(scratch_ptr + 63 - i)
    tl.debug_barrier()
    tl.store(scratch_ptr + i, turned * 2)
    tl.debug_barrier()
    tl.store(out_ptr + i, tl.load(scratch_ptr + (i ^ 5)) + turned)


@triton.jit
def atomics_kernel(count_ptr, old_ptr, x_ptr, N: tl.constexpr):
    """Plain accesses between atomic ones."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    old = tl.atomic_add(count_ptr + x % 4, x, mask=i < N - 3)
    tl.debug_barrier()
    seen = tl.load(count_ptr + i % 4)
    highest = tl.atomic_max(count_ptr + 4 + i * 0, x)
    lowest = tl.atomic_min(count_ptr + 5 + i * 0, x)
    swapped = tl.atomic_cas(count_ptr + 6 + i % 2, i % 2, i + 10)
    tl.debug_barrier()
    tl.atomic_xchg(count_ptr + 8, tl.sum(old + seen))
    tl.atomic_or(count_ptr + 9 + i * 0, 1 << (x & 7))
    tl.store(old_ptr + tl.arange(0, 16), tl.load(count_ptr + tl.arange(0, 16)))
    tl.store(old_ptr + 16, tl.max(highest) + tl.max(lowest) + tl.sum(swapped))


# ------------------------------------------------------------------ what loops carry
@triton.jit
def swapped_kernel(out_ptr, x_ptr, turns):
    """Tensors that change places, as they are and as views of each other."""
    i = tl.arange(0, SIDE)
    a, b, c = tl.load(x_ptr + i), tl.load(x_ptr + SIDE + i), i.to(tl.float32)
    wide = tl.reshape(tl.load(x_ptr + i), (2, 8))
    tall = tl.reshape(tl.load(x_ptr + SIDE + i), (8, 2))
    flat, square = tl.load(x_ptr + 2 * SIDE + i), tl.load(x_ptr + i[:, None] * 0 + i[None, :])
    for _ in range(turns):
        a, b, c = b, c, a
        tall, wide = tl.reshape(wide, (8, 2)), tl.reshape(tall, (2, 8))
        flat, square = tl.sum(square, 0), tl.trans(square) + flat[None, :]
    tl.store(out_ptr + i, a + 2 * b + 4 * c)
    tl.store(out_ptr + SIDE + i, tl.reshape(wide, (SIDE,)) + 3 * tl.reshape(tall, (SIDE,)))
    tl.store(out_ptr + 2 * SIDE + i, flat)
    tl.store(out_ptr + 3 * SIDE + i[:, None] * SIDE + i[None, :], square)


@triton.jit
def moving_kernel(out_ptr, x_ptr, index_ptr, turns, step):
    """Pointers that loops move, one after the other, from places that were loaded; and both sides of a range."""
    i = tl.arange(0, SIDE)
    p, left, right = x_ptr + tl.load(index_ptr + i), i * 2, i + 40
    total = tl.zeros((SIDE,), tl.float32)
    for _ in range(turns):
        total += tl.load(p)
        p += 3
    for turn in range(turns):
        total += tl.load(p) * turn
        p += step
        right -= 1
        left += turn
    for _ in range(turns):
        for _ in range(2):
            total += tl.load(p)
            p += 1
        left, right = right, left
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + SIDE + i, tl.load(p) + left + 3 * right)


@triton.jit
def while_kernel(out_ptr, x_ptr, limit):
    """A loop that ends by what it carries; it may not begin."""
    i = tl.arange(0, SIDE)
    x, y, turns = tl.load(x_ptr + i), i.to(tl.float32), 0
    while tl.sum(x) < limit and turns < 9:
        x, y = y + 1, x * 1.5
        turns += 1
    tl.store(out_ptr + i, x - y)
    tl.store(out_ptr + SIDE, turns.to(tl.float32))


@triton.jit
def halves(x):
    return tl.sum(tl.reshape(x, (2, SIDE // 2)), 0)


@triton.jit
def early_kernel(out_ptr, x_ptr, way):
    """Blocks that end the program; what one of them puts into memory is not there for the others."""
    i, half = tl.arange(0, SIDE), tl.arange(0, SIDE // 2)
    x = tl.load(x_ptr + i)
    if way == 0:
        tl.store(out_ptr + half, halves(i) + halves(x))
        return
    if way == 1:
        tl.store(out_ptr + i, tl.cumsum(x * 2, 0))
        if tl.sum(x) > 0:
            return
    elif way == 2:
        x = x + tl.max(x, 0)
    y = tl.where(x > 0, x, 0.5)
    tl.store(out_ptr + SIDE + half, halves(i) + halves(y))


@triton.jit
def branches_kernel(out_ptr, x_ptr, way):
    """Branches that give tensors, pointers and numbers."""
    i = tl.arange(0, SIDE)
    x, p, k = tl.load(x_ptr + i), out_ptr + i, 2
    if way > 0:
        y = tl.cumsum(x, 0)
        if way > 1:
            y, x = x, y
            k = way * 3
        p += SIDE
    else:
        y = i.to(tl.float32)
    for turn in range(3):
        if turn == way:
            x, y = y, x
        else:
            x += y
            k += turn
    tl.store(p, x * k)
    tl.store(out_ptr + 2 * SIDE + i, y)


@triton.jit
def held_kernel(out_ptr, x_ptr, N: tl.constexpr):
    """Values that are needed again long after others of their size came and went."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    square = x * x
    view = square[:, None]
    first = tl.sum(square)
    y = tl.cumsum(tl.sort(x), 0)
    z = tl.sum(view * y[None, :], 1)
    w = tl.flip(z, 0) + tl.cumsum(tl.flip(y, 0), 0) * first
    table = tl.sum(view - w[None, :], 0)
    tl.store(out_ptr + i, tl.sort(table) + square + tl.where(x > 0, z, y))


# ------------------------------------------------------------------ numbers
@triton.jit
def shifts_kernel(out_ptr, x_ptr, count_ptr):
    i = tl.arange(0, SIDE)
    x, count = tl.load(x_ptr + i), tl.load(count_ptr + i)
    wide = x.to(tl.int64) << 33
    tl.store(out_ptr + i, (x << count) ^ (x >> count))
    tl.store(out_ptr + SIDE + i, (x.to(tl.uint32) >> count.to(tl.uint32)).to(tl.int32) + (wide >> 40).to(tl.int32))
    tl.store(out_ptr + 2 * SIDE + i, (x * 1103515245 + 12345) // 7 + x % -5)
    tl.store(out_ptr + 3 * SIDE + i, tl.umulhi(x.to(tl.uint32), 0xDEADBEEF).to(tl.int32) ^ (-x).to(tl.int8).to(tl.int32))
    tl.store(out_ptr + 4 * SIDE + i, (x >> tl.full((SIDE,), 35, tl.int32)) + (x << tl.full((SIDE,), 32, tl.int32)))


@triton.jit
def masks_kernel(out_ptr, x_ptr, n):
    """Ranges that begin below zero, wrap, or are narrow."""
    i = tl.arange(0, 512)
    near = (i - 5).to(tl.uint32) < n
    tl.store(out_ptr + i, tl.load(x_ptr + i - 5, mask=near, other=-1))
    narrow = (i + 3).to(tl.int8).to(tl.int32)
    tl.store(out_ptr + 512 + i, tl.load(x_ptr + 128 + narrow))
    tl.store(out_ptr + 1024 + i, tl.load(x_ptr + tl.minimum(i, n), mask=(i <= n) & (i > 2) & (n != i), other=7))
    far = (i - 7).to(tl.uint32).to(tl.int64) < n
    tl.store(out_ptr + 2048 + i, tl.load(x_ptr + i, mask=far, other=-1))
    tl.store(out_ptr + 1536 + i, tl.load(x_ptr + (i * 3) % n, mask=i >= n, other=i))


@triton.jit
def others_kernel(out_ptr, truth_ptr, byte_ptr, half_ptr, brain_ptr, wide_ptr, n):
    i = tl.arange(0, 64)
    mask = (i < n) & (i != 3)
    total = tl.load(truth_ptr + i, mask=mask, other=True).to(tl.float32)
    total += tl.load(byte_ptr + i, mask=mask, other=-2).to(tl.float32) * 2
    total += tl.load(half_ptr + i, mask=mask, other=0.1).to(tl.float32) * 3
    total += tl.load(brain_ptr + i, mask=mask, other=0.1).to(tl.float32)
    total += tl.load(wide_ptr + 2 * i, mask=mask, other=0.1).to(tl.float32)
    tl.store(out_ptr + i, total)
    tl.store(truth_ptr + i, total > 5, mask=i < n + 4)
    tl.store(byte_ptr + 2 * i, total.to(tl.int8), mask=mask)
    tl.store(half_ptr + 63 - i, total.to(tl.float16), mask=mask)
    tl.store(brain_ptr + i, total.to(tl.bfloat16), mask=mask)


@triton.jit
def specials_kernel(out_ptr, x_ptr, y_ptr, N: tl.constexpr):
    """Comparisons and extremes of all pairs, with NaN, infinity and both zeros among them."""
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i)[:, None], tl.load(y_ptr + i)[None, :]
    bits = (x < y).to(tl.int32) + 2 * (x <= y) + 4 * (x == y) + 8 * (x != y) + 16 * (x > y) + 32 * (x >= y)
    nans = 64 * (tl.maximum(x, y) != tl.maximum(x, y)) + 128 * (tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL) != y)
    least = tl.minimum(x, y).to(tl.float32) + 0.0
    clamped = tl.clamp(x, y, y + 2) if x.dtype == tl.float32 else x + y
    where = tl.where(clamped == clamped, clamped, 100.0).to(tl.float32) + tl.where(least == least, least, 50.0)
    place = i[:, None] * N + i[None, :]
    tl.store(out_ptr + place, (bits + nans).to(tl.float32))
    tl.store(out_ptr + N * N + place, where)


@triton.jit
def long_kernel(out_ptr, x_ptr, N: tl.constexpr):
    """Many operators, each of which needs the one before."""
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    for j in tl.static_range(N):
        x = tl.where(x > j, x - 2.5, x + 1.5)
    tl.store(out_ptr + i, x)


@triton.jit
def moving_sums_kernel(out_ptr, turns):
    """Ranges that loops move and of which all elements are wanted, in the loop, in another one inside of it and after it."""
    i = tl.arange(0, SIDE)
    moved, total = i * 3, tl.zeros((SIDE,), tl.int32)
    for turn in range(turns):
        if turn > 0:
            total += tl.cumsum(moved, 0)
        inner = moved
        for _ in range(2):
            total += tl.flip(inner, 0) * tl.sum(moved)
            inner += 5
        total += tl.sum(inner) - moved
        moved += 2
    tl.store(out_ptr + i, total + moved)
    tl.store(out_ptr + SIDE + i, tl.cumsum(moved, 0))
    tl.store(out_ptr + 2 * SIDE + i, tl.flip(moved + 7, 0))


@triton.jit
def remainders_kernel(out_ptr, x_ptr, first, divisor):
    """Quotients and remainders of ranges that begin below zero, as addresses."""
    i = first + tl.arange(0, 128)
    place = 128 + i % divisor
    tl.store(out_ptr + tl.arange(0, 128), tl.load(x_ptr + place) + tl.load(x_ptr + 128 + i // divisor))
    tl.store(out_ptr + 128 + tl.arange(0, 128), tl.load(x_ptr + place + i // divisor, mask=i % divisor < 7, other=-5))


@triton.jit
def waiting_kernel(out_ptr, flag_ptr):
    """Every program but the first waits for the one before."""
    i = tl.program_id(0)
    while tl.load(flag_ptr, volatile=True) < i:
        pass
    x = tl.load(out_ptr + i, volatile=True)
    tl.store(out_ptr + i + 1, x + 1)
    tl.atomic_add(flag_ptr, 1)


@triton.jit
def blocks_kernel(out_ptr, x_ptr, way):
    """What a block makes of a range is another view of it, and wanted by the blocks that follow."""
    i = tl.arange(0, SIDE)
    x = tl.load(x_ptr + i)
    if way == 0:
        return
    line = tl.max(tl.reshape(i, (1, SIDE)), 0)
    tl.store(out_ptr + i, line + tl.sum(tl.cumsum(x, 0)))
    if way == 1:
        return
    y = tl.cumsum(tl.flip(x, 0), 0)
    tl.store(out_ptr + SIDE + i, tl.flip(tl.cumsum(y, 0), 0) + line)
