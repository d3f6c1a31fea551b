"""Elementwise functions, reductions, scans, copies, random numbers: the bytes that must move decide."""
from bench.anchors import Case, Input, of

BYTES = 1 << 29


def cases(size):
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        n, = size(BYTES // width)
        rows, columns = size(BYTES // width // 4096, 4096)
        x, y = Input((n,), dtype), Input((n,), dtype)
        matrix, row = Input((rows, columns), dtype), Input((columns,), dtype)
        flat, square = n * width, rows * columns * width
        bits = f"{8 * width}bit"
        out = Input((n,), dtype, own=True)
        yield Case(f"copy {bits}", of(lambda T, x, out: out.copy_(x)), [x, out], 2 * flat)
        yield Case(f"add {bits}", of(lambda T, x, y, out: T.add(x, y, out=out)), [x, y, out], 3 * flat)
        yield Case(f"gelu {bits}", of(lambda T, x: T.nn.functional.gelu(x)), [x], 2 * flat)
        yield Case(f"full sum {bits}", of(lambda T, x: x.sum()), [x], flat, tolerance=1e-2 if width == 2 else 1e-3)
        yield Case(f"dropout {bits}", of(lambda T, x: T.nn.functional.dropout(x, 0.1)), [x], 2 * flat, compare=None)
        yield Case(f"randn {bits}", of(lambda T, out: out.normal_()), [out], flat, compare=None)
        yield Case(f"sum dim1 {bits}", of(lambda T, x: x.sum(1)), [matrix], square, tolerance=1e-2)
        yield Case(f"sum dim0 {bits}", of(lambda T, x: x.sum(0)), [matrix], square, tolerance=1e-2)
        yield Case(f"transpose copy {bits}", of(lambda T, x: x.t().contiguous()), [matrix], 2 * square)
        yield Case(f"cumsum dim1 {bits}", of(lambda T, x: x.cumsum(1)), [matrix], 2 * square, tolerance=2e-2 if width == 2 else 1e-4,
                   exact=width == 2)                             # PyTorch's sums are 16-bit numbers on their way, too: 0.027 from ours
        yield Case(f"add bcast row {bits}", of(lambda T, x, row: x + row), [matrix, row], 2 * square)
        yield Case(f"max dim1 {bits}", of(lambda T, x: x.max(1)), [matrix], square)
