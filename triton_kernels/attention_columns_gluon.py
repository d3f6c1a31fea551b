"""Heads of 80, 96, 160 or 192 numbers for the kernels of attention in Gluon, which lie in shared memory filled up to a power of two.

The matrix units need not multiply what was filled up: of BLOCK_D columns the first half are one product, and of the second half the first
REST ones, 16 or 32 or 64 of them, another. A result is a tuple of both parts. With REST 0 there is one part: all columns.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def part(buf, i: gl.constexpr, REST: gl.constexpr):
    """The ith part of the columns of a buffer."""
    if REST == 0:
        return buf
    else:
        ROWS: gl.constexpr = buf.shape[0]
        HALF: gl.constexpr = buf.shape[1] // 2
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HALF], buf.dtype)
        half = buf._reinterpret(buf.dtype, [2, ROWS, HALF], layout).index(i)
        if i == 1:
            half = half.slice(0, REST, dim=1)
        return half


@gluon.constexpr_function
def width(i, BLOCK_D, REST):
    return REST if i == 1 else BLOCK_D // 2 if REST else BLOCK_D


@gluon.constexpr_function
def layout_of(i, BLOCK_D, REST):
    """How the threads hold a part of a result."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, width(i, BLOCK_D, REST), 16])


@gluon.jit
def zeros_of(ROWS: gl.constexpr, BLOCK_D: gl.constexpr, REST: gl.constexpr):
    """A result of nothing yet."""
    first = gl.zeros((ROWS, width(0, BLOCK_D, REST)), gl.float32, layout_of(0, BLOCK_D, REST))
    if REST == 0:
        return (first, )
    else:
        return (first, gl.zeros((ROWS, REST), gl.float32, layout_of(1, BLOCK_D, REST)))


@gluon.jit
def across(a, b, zeros, REST: gl.constexpr):
    """Begin a @ bᵀ, over all columns; where there are parts it is two products, and the second one ends it."""
    s = warpgroup_mma(part(a, 0, REST), part(b, 0, REST).permute((1, 0)), zeros, use_acc=False, is_async=True)
    if REST > 0:
        s = warpgroup_mma(part(a, 1, REST), part(b, 1, REST).permute((1, 0)), s, is_async=True)
    return s


@gluon.jit
def add_product(acc, a, b, REST: gl.constexpr):
    """Begin acc + a @ b, as many products as there are parts."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc[0].type.layout, k_width=2)
    a = gl.convert_layout(a, OPERAND)
    first = warpgroup_mma(a, part(b, 0, REST), acc[0], is_async=True)
    if REST == 0:
        return (first, )
    else:
        NEXT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc[1].type.layout, k_width=2)
        return (first, warpgroup_mma(gl.convert_layout(a, NEXT, assert_trivial=True), part(b, 1, REST), acc[1], is_async=True))


@gluon.jit
def ended(acc, under_way: gl.constexpr):
    """The result when at most so many products are under way."""
    if len(acc) == 1:
        return (warpgroup_mma_wait(num_outstanding=under_way, deps=acc), )
    else:
        return warpgroup_mma_wait(num_outstanding=under_way, deps=acc)


@gluon.jit
def both_ended(x, y):
    """Two results when nothing is under way."""
    if len(x) == 1:
        first, second = warpgroup_mma_wait(num_outstanding=0, deps=(x[0], y[0]))
        return (first, ), (second, )
    else:
        first, beside, second, beside_it = warpgroup_mma_wait(num_outstanding=0, deps=(x[0], x[1], y[0], y[1]))
        return (first, beside), (second, beside_it)


@gluon.jit
def scaled(acc, factor):
    """A result times a number."""
    if len(acc) == 1:
        return (acc[0] * factor, )
    else:
        return (acc[0] * factor, acc[1] * factor)


@gluon.jit
def times(acc, factor):
    """Rows of a result, each times a number."""
    first = acc[0] * gl.convert_layout(factor, gl.SliceLayout(1, acc[0].type.layout))[:, None]
    if len(acc) == 1:
        return (first, )
    else:
        return (first, acc[1] * gl.convert_layout(factor, gl.SliceLayout(1, acc[1].type.layout))[:, None])


@gluon.jit
def put(buf, acc, REST: gl.constexpr):
    """Round a result into a buffer. What is beside its parts no tensor has."""
    part(buf, 0, REST).store(acc[0].to(buf.dtype))
    if REST > 0:
        part(buf, 1, REST).store(acc[1].to(buf.dtype))
