"""Elementwise loops, one flat and one strided for each number of operands.

A loop takes the scalar function as FN (see scalar.py), so an operator is one small function there and one card. Operands may be Python
numbers (X_SCALAR …). Half types and, where asked, integers are brought to the COMPUTE type right after the load.
"""
import triton
import triton.language as tl


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
    """A block of an operand: loaded, or a number spread out."""
    if SCALAR:
        if COMPUTE == "fp64":
            return tl.full(mask.shape, x_ptr, tl.float64)
        elif COMPUTE == "fp32":
            return tl.full(mask.shape, x_ptr, tl.float32)
        else:
            return to_compute(tl.full(mask.shape, x_ptr, tl.int64), COMPUTE)
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
    if out_ptr.dtype.element_ty == tl.int1:
        tl.store(out_ptr + offsets, value != 0, mask=mask)
    else:
        tl.store(out_ptr + offsets, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def unary_flat(out_ptr, x_ptr, n, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr,
               BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = operand(x_ptr, i, mask, X_SCALAR, COMPUTE)
    store(out_ptr, i, apply1(x, a, b, FN, ATTRS), mask)


@triton.jit
def binary_flat(out_ptr, x_ptr, y_ptr, n, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = operand(x_ptr, i, mask, X_SCALAR, COMPUTE)
    y = operand(y_ptr, i, mask, Y_SCALAR, COMPUTE)
    store(out_ptr, i, apply2(x, y, a, b, FN, ATTRS), mask)


@triton.jit
def ternary_flat(out_ptr, x_ptr, y_ptr, z_ptr, n, a, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr, X_COMPUTE: tl.constexpr,
                 X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, Z_SCALAR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = operand(x_ptr, i, mask, X_SCALAR, X_COMPUTE)
    y = operand(y_ptr, i, mask, Y_SCALAR, COMPUTE)
    z = operand(z_ptr, i, mask, Z_SCALAR, COMPUTE)
    store(out_ptr, i, apply3(x, y, z, a, FN, ATTRS), mask)


@triton.jit
def tile_of(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows, columns and the outer index of this program: the innermost two dims are tiled, the others one step a program."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_m = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m = (pid // tiles_n % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    return m.to(tl.int64)[:, None], n.to(tl.int64)[None, :], pid // tiles_n // tiles_m


@triton.jit
def outer_offset(outer, shape, strides, OUTER: tl.constexpr):
    """Where the outer index points to: one division a dim and program, none an element."""
    offset = tl.zeros((), tl.int64)
    for k in tl.static_range(OUTER):
        offset += (outer % shape[OUTER - 1 - k]).to(tl.int64) * strides[OUTER - 1 - k]
        outer = outer // shape[OUTER - 1 - k]
    return offset


@triton.jit
def unary_strided(out_ptr, x_ptr, shape, so, sx, M, N, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                  X_SCALAR: tl.constexpr,
                  OUTER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N)
    mask = (m < M) & (n < N)
    x = operand(x_ptr, outer_offset(outer, shape, sx, OUTER) + m * sx[OUTER] + n * sx[OUTER + 1], mask, X_SCALAR, COMPUTE)
    store(out_ptr, outer_offset(outer, shape, so, OUTER) + m * so[OUTER] + n * so[OUTER + 1], apply1(x, a, b, FN, ATTRS), mask)


@triton.jit
def binary_strided(out_ptr, x_ptr, y_ptr, shape, so, sx, sy, M, N, a, b, FN: tl.constexpr, ATTRS: tl.constexpr, COMPUTE: tl.constexpr,
                   X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, OUTER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N)
    mask = (m < M) & (n < N)
    x = operand(x_ptr, outer_offset(outer, shape, sx, OUTER) + m * sx[OUTER] + n * sx[OUTER + 1], mask, X_SCALAR, COMPUTE)
    y = operand(y_ptr, outer_offset(outer, shape, sy, OUTER) + m * sy[OUTER] + n * sy[OUTER + 1], mask, Y_SCALAR, COMPUTE)
    store(out_ptr, outer_offset(outer, shape, so, OUTER) + m * so[OUTER] + n * so[OUTER + 1], apply2(x, y, a, b, FN, ATTRS), mask)


@triton.jit
def ternary_strided(out_ptr, x_ptr, y_ptr, z_ptr, shape, so, sx, sy, sz, M, N, a, FN: tl.constexpr, ATTRS: tl.constexpr,
                    COMPUTE: tl.constexpr,
                    X_COMPUTE: tl.constexpr, X_SCALAR: tl.constexpr, Y_SCALAR: tl.constexpr, Z_SCALAR: tl.constexpr,
                    OUTER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n, outer = tile_of(M, N, BLOCK_M, BLOCK_N)
    mask = (m < M) & (n < N)
    x = operand(x_ptr, outer_offset(outer, shape, sx, OUTER) + m * sx[OUTER] + n * sx[OUTER + 1], mask, X_SCALAR, X_COMPUTE)
    y = operand(y_ptr, outer_offset(outer, shape, sy, OUTER) + m * sy[OUTER] + n * sy[OUTER + 1], mask, Y_SCALAR, COMPUTE)
    z = operand(z_ptr, outer_offset(outer, shape, sz, OUTER) + m * sz[OUTER] + n * sz[OUTER + 1], mask, Z_SCALAR, COMPUTE)
    store(out_ptr, outer_offset(outer, shape, so, OUTER) + m * so[OUTER] + n * so[OUTER + 1], apply3(x, y, z, a, FN, ATTRS), mask)
