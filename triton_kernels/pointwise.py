"""Elementwise loops, one flat and one strided for each number of operands.

A loop takes the scalar function as FN (see scalar.py), so an operator is one small function there and one card. Operands may be Python
numbers (X_SCALAR …). Half types and, where asked, integers are brought to the COMPUTE type right after the load.
"""
import triton
import triton.language as tl

from .pairs import full_pair, load_pair, store_pair
from .reduce import even


@triton.jit
def to_compute(x, COMPUTE: tl.constexpr):
    """x in the type that the operator computes in, given by name."""
    if COMPUTE == "fp32":
        return x.to(tl.float32)
    elif COMPUTE == "fp64":
        return x.to(tl.float64)
    elif COMPUTE == "i64":
        return x.to(tl.int64)
    elif COMPUTE == "i32":
        return x.to(tl.int32)
    elif COMPUTE == "i16":
        return x.to(tl.int16)
    elif COMPUTE == "i8":
        return x.to(tl.int8)
    elif COMPUTE == "u8":
        return x.to(tl.uint8)
    elif COMPUTE == "i1":
        return x.to(tl.int1)
    else:
        return x


@triton.jit
def operand(x_ptr, offsets, mask, SCALAR: tl.constexpr, COMPUTE: tl.constexpr):
    """A block of an operand: loaded, or a number spread out. Of complex ones a pair of blocks: see pairs.py."""
    if COMPUTE == "c64" or COMPUTE == "c128":
        if SCALAR:
            return full_pair(x_ptr, offsets, COMPUTE)
        else:
            return load_pair(x_ptr, offsets, mask, COMPUTE)
    elif SCALAR:
        if COMPUTE == "fp64":
            return tl.full(offsets.shape, x_ptr, tl.float64)
        elif COMPUTE == "fp32":
            return tl.full(offsets.shape, x_ptr, tl.float32)
        else:
            return to_compute(tl.full(offsets.shape, x_ptr, tl.int64), COMPUTE)
    else:
        return to_compute(tl.load(x_ptr + offsets, mask=mask), COMPUTE)


@triton.jit
def apply1(x, a, b, FN: tl.constexpr, ATTRS: tl.constexpr):
    if ATTRS == 0:
        return FN(x)
    elif ATTRS == 1:
        return FN(x, a)
    else:
        return FN(x, a, b)


@triton.jit
def apply2(x, y, a, b, FN: tl.constexpr, ATTRS: tl.constexpr):
    if ATTRS == 0:
        return FN(x, y)
    elif ATTRS == 1:
        return FN(x, y, a)
    else:
        return FN(x, y, a, b)


@triton.jit
def apply3(x, y, z, a, FN: tl.constexpr, ATTRS: tl.constexpr):
    if ATTRS == 0:
        return FN(x, y, z)
    else:
        return FN(x, y, z, a)


@triton.jit
def store(out_ptr, offsets, value, mask):
    """Into the destination's type; numbers become true where they are not zero."""
    if out_ptr.dtype.element_ty == tl.uint64:
        store_pair(out_ptr, offsets, value[0], value[1], mask)
    elif out_ptr.dtype.element_ty == tl.int1:
        tl.store(out_ptr + offsets, value != 0, mask=mask)
    else:
        tl.store(out_ptr + offsets, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def unary_block(out_ptr, x_ptr, i, mask, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr):
    x = operand(x_ptr, i, mask, X_SCALAR, COMPUTE)
    store(out_ptr, i, apply1(x, a, b, FN, ATTRS), mask)


@triton.jit
def unary_flat(out_ptr, x_ptr, n, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr,
               ODD: tl.constexpr, BLOCK: tl.constexpr):
    """ODD: a mask would part what is loaded at once, so only the last block has one; so for the other flat loops."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ODD and (tl.program_id(0) + 1).to(tl.int64) * BLOCK <= n:
        unary_block(out_ptr, x_ptr, i, None, a, b, FN, ATTRS, COMPUTE, X_SCALAR)
    else:
        unary_block(out_ptr, x_ptr, i, i < n, a, b, FN, ATTRS, COMPUTE, X_SCALAR)


@triton.jit
def binary_block(out_ptr, x_ptr, y_ptr, i, mask, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                 X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr):
    x = operand(x_ptr, i, mask, X_SCALAR, COMPUTE)
    y = operand(y_ptr, i, mask, Y_SCALAR, COMPUTE)
    store(out_ptr, i, apply2(x, y, a, b, FN, ATTRS), mask)


@triton.jit
def binary_flat(out_ptr, x_ptr, y_ptr, n, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ODD and (tl.program_id(0) + 1).to(tl.int64) * BLOCK <= n:
        binary_block(out_ptr, x_ptr, y_ptr, i, None, a, b, FN, ATTRS, COMPUTE, X_SCALAR, Y_SCALAR)
    else:
        binary_block(out_ptr, x_ptr, y_ptr, i, i < n, a, b, FN, ATTRS, COMPUTE, X_SCALAR, Y_SCALAR)


@triton.jit
def ternary_block(out_ptr, x_ptr, y_ptr, z_ptr, i, mask, a, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                  X_COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, Z_SCALAR: tl.constexpr):
    x = operand(x_ptr, i, mask, X_SCALAR, X_COMPUTE)
    y = operand(y_ptr, i, mask, Y_SCALAR, COMPUTE)
    z = operand(z_ptr, i, mask, Z_SCALAR, COMPUTE)
    store(out_ptr, i, apply3(x, y, z, a, FN, ATTRS), mask)


@triton.jit
def ternary_flat(out_ptr, x_ptr, y_ptr, z_ptr, n, a, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr, X_COMPUTE: tl.constexpr,
                 X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, Z_SCALAR: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ODD and (tl.program_id(0) + 1).to(tl.int64) * BLOCK <= n:
        ternary_block(out_ptr, x_ptr, y_ptr, z_ptr, i, None, a, FN, ATTRS, COMPUTE, X_COMPUTE, X_SCALAR, Y_SCALAR, Z_SCALAR)
    else:
        ternary_block(out_ptr, x_ptr, y_ptr, z_ptr, i, i < n, a, FN, ATTRS, COMPUTE, X_COMPUTE, X_SCALAR, Y_SCALAR, Z_SCALAR)


@triton.jit
def tile_of(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr):
    """Rows and columns of this program, and its outer index: the innermost two dims are tiled, the others one step a program, or counted
    among the M rows where these few would make too small a tile. Offsets in a tile are int32 unless WIDE."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_m = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m = (pid // tiles_n % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        m, n = m.to(tl.int64), n.to(tl.int64)
    return m, n, pid // tiles_n // tiles_m


@triton.jit
def offset(outer, shape, strides, OUTER: tl.constexpr, EVEN: tl.constexpr):
    """Where the outer index points to: one division a dim and program, none an element."""
    start = tl.zeros((), tl.int64)
    for k in tl.static_range(OUTER):
        start += (outer % shape[OUTER - 1 - k]).to(tl.int64) * even(strides[OUTER - 1 - k], EVEN)
        outer = outer // shape[OUTER - 1 - k]
    return start


@triton.jit
def along(m, stride, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """Offsets along a dim; EVEN divides the stride unless it is 1."""
    if UNIT:
        return m
    else:
        return m * even(stride, EVEN)


@triton.jit
def down_rows(m, shape, strides, OUTER: tl.constexpr, EVEN: tl.constexpr, FORM: tl.constexpr):
    """Offsets of rows. Those of all outer dims too (16) cost a division a dim and row, unless they lie evenly (32)."""
    if FORM & 48 == 16:
        start = tl.zeros((), tl.int64)
        for k in tl.static_range(OUTER):
            start += (m % shape[OUTER - k]).to(tl.int64) * even(strides[OUTER - k], EVEN)
            m = m // shape[OUTER - k]
        return start + m.to(tl.int64) * even(strides[0], EVEN)
    elif FORM & 32:
        return m.to(tl.int64) * even(strides[OUTER], EVEN)
    else:
        return along(m, strides[OUTER], FORM & 4, EVEN)


@triton.jit
def spread(x, axis: tl.constexpr, COMPUTE: tl.constexpr):
    """A vector with a new axis of size 1."""
    if COMPUTE == "c64" or COMPUTE == "c128":
        return tl.expand_dims(x[0], axis), tl.expand_dims(x[1], axis)
    else:
        return tl.expand_dims(x, axis)


@triton.jit
def tiled(x, m, n, COMPUTE: tl.constexpr):
    """An operand in the shape of the tile."""
    if COMPUTE == "c64" or COMPUTE == "c128":
        return tl.broadcast_to(x[0], (m.shape[0], n.shape[0])), tl.broadcast_to(x[1], (m.shape[0], n.shape[0]))
    else:
        return tl.broadcast_to(x, (m.shape[0], n.shape[0]))


@triton.jit
def strided(x_ptr, m, n, M, N, outer, shape, strides, SCALAR: tl.constexpr, COMPUTE: tl.constexpr, OUTER: tl.constexpr,
            EVENS: tl.constexpr, FORM: tl.constexpr):
    """A tile of an operand; what does not vary along it is loaded once and spread out.

    Bits of FORM: it varies along the rows (1), the columns (2); the step along them is 1 (4, 8); rows are as in `down_rows` (16, 32).
    """
    if SCALAR:
        x = operand(x_ptr, m[:, None], None, True, COMPUTE)
    else:
        if FORM & 16 == 0:
            x_ptr += offset(outer, shape, strides, OUTER, EVENS[1])
        down, right = down_rows(m, shape, strides, OUTER, EVENS[1], FORM), along(n, strides[OUTER + 1], FORM & 8, EVENS[1])
        inside_m, inside_n = m < even(M, EVENS[0]), n < even(N, EVENS[1])
        if FORM & 3 == 3:
            x = operand(x_ptr, down[:, None] + right[None, :], inside_m[:, None] & inside_n[None, :], False, COMPUTE)
        elif FORM & 1:                                   # as a vector: of a tile of one column each thread would load all its copies
            x = spread(operand(x_ptr, down, inside_m, False, COMPUTE), 1, COMPUTE)
        elif FORM & 2:
            x = spread(operand(x_ptr, right, inside_n, False, COMPUTE), 0, COMPUTE)
        elif COMPUTE == "c64" or COMPUTE == "c128":
            x = operand(x_ptr, tl.zeros((), tl.int32), None, False, COMPUTE)
        else:
            x = to_compute(tl.load(x_ptr), COMPUTE)
    return tiled(x, m, n, COMPUTE)


@triton.jit
def store_strided(out_ptr, value, m, n, M, N, outer, shape, strides, OUTER: tl.constexpr, EVENS: tl.constexpr, FORM: tl.constexpr):
    down, right = down_rows(m, shape, strides, OUTER, EVENS[1], FORM), along(n, strides[OUTER + 1], FORM & 8, EVENS[1])
    mask = (m < even(M, EVENS[0]))[:, None] & (n < even(N, EVENS[1]))[None, :]
    if FORM & 16 == 0:
        out_ptr += offset(outer, shape, strides, OUTER, EVENS[1])
    store(out_ptr, down[:, None] + right[None, :], value, mask)


@triton.jit
def unary_strided(out_ptr, x_ptr, shape, so, sx, M, N, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                  X_SCALAR: tl.constexpr, FORMS: tl.constexpr, OUTER: tl.constexpr, EVENS: tl.constexpr, WIDE: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N, WIDE)
    x = strided(x_ptr, m, n, M, N, outer, shape, sx, X_SCALAR, COMPUTE, OUTER, EVENS, FORMS[1])
    store_strided(out_ptr, apply1(x, a, b, FN, ATTRS), m, n, M, N, outer, shape, so, OUTER, EVENS, FORMS[0])


@triton.jit
def binary_strided(out_ptr, x_ptr, y_ptr, shape, so, sx, sy, M, N, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                   X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, FORMS: tl.constexpr, OUTER: tl.constexpr, EVENS: tl.constexpr,
                   WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N, WIDE)
    x = strided(x_ptr, m, n, M, N, outer, shape, sx, X_SCALAR, COMPUTE, OUTER, EVENS, FORMS[1])
    y = strided(y_ptr, m, n, M, N, outer, shape, sy, Y_SCALAR, COMPUTE, OUTER, EVENS, FORMS[2])
    store_strided(out_ptr, apply2(x, y, a, b, FN, ATTRS), m, n, M, N, outer, shape, so, OUTER, EVENS, FORMS[0])


@triton.jit
def ternary_strided(out_ptr, x_ptr, y_ptr, z_ptr, shape, so, sx, sy, sz, M, N, a, FN: tl.constexpr, ATTRS: tl.constexpr,
                    COMPUTE: tl.constexpr, X_COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr,
                    Z_SCALAR: tl.constexpr, FORMS: tl.constexpr, OUTER: tl.constexpr, EVENS: tl.constexpr, WIDE: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N, WIDE)
    x = strided(x_ptr, m, n, M, N, outer, shape, sx, X_SCALAR, X_COMPUTE, OUTER, EVENS, FORMS[1])
    y = strided(y_ptr, m, n, M, N, outer, shape, sy, Y_SCALAR, COMPUTE, OUTER, EVENS, FORMS[2])
    z = strided(z_ptr, m, n, M, N, outer, shape, sz, Z_SCALAR, COMPUTE, OUTER, EVENS, FORMS[3])
    store_strided(out_ptr, apply3(x, y, z, a, FN, ATTRS), m, n, M, N, outer, shape, so, OUTER, EVENS, FORMS[0])
