"""Matrix products: arithmetic decides, except for the skinny ones."""
from bench.anchors import Case, Input, half, of

LINEAR = [(16384, 2304, 768), (16384, 3072, 768), (16384, 768, 3072), (16384, 50304, 768), (768, 50304, 16384), (16384, 768, 50304),
          (64, 4096, 4096), (1, 4096, 4096)]
PRECISIONS = {"bf16": ("bfloat16", "highest", None), "fp16": ("float16", "highest", None), "tf32": ("float32", "high", 2e-3),
              "fp32": ("float32", "highest", 1e-5)}

# What other programs have, counted into no aim: a vocabulary that is not padded, few rows, a small network, sides that 16 does not divide,
# rank 8.
BEYOND = [("bfloat16", 8192, 50257, 768), ("bfloat16", 16, 14336, 4096), ("float32", 8, 4096, 4096), ("float32", 512, 1024, 784),
          ("float32", 1000, 1000, 1000), ("bfloat16", 4096, 4096, 8)]

LAYOUTS = {"NT": lambda T, a, b: a @ b.t(), "TN": lambda T, a, b: a.t() @ b}


def cases(size):
    for name, (dtype, precision, tolerance) in PRECISIONS.items():
        for side in (512, 1024, 2048, 4096, 8192, *([16384] if dtype != "float32" else [])):
            n, _ = size(side, side)
            pair = [Input((n, n), dtype), Input((n, n), dtype)]
            nbytes, exact = 3 * n * n * (4 if dtype == "float32" else 2), name == "fp32"
            yield Case(f"matmul {name} {side}^3", of(lambda T, a, b: a @ b), pair, nbytes, 2 * n**3, precision=precision,
                       tolerance=tolerance, aim=2.0 if exact else 1.0, exact=exact)
            for layout, call in LAYOUTS.items() if side == 4096 and dtype != "float32" else ():
                yield Case(f"matmul {name} {side}^3 {layout}", of(call), pair, nbytes, 2 * n**3, precision=precision)
    for shape in LINEAR:
        m, n, k = size(*shape)
        yield Case(f"linear bf16 {'x'.join(map(str, shape))}", of(lambda T, a, b: T.nn.functional.linear(a, b)), [half(m, k), half(n, k)],
                   2 * (m * k + n * k + m * n), 2 * m * n * k)
    b, n, _ = size(128, 1024, 1024)
    yield Case("bmm bf16 128x1024^3", of(lambda T, a, b: a @ b), [half(b, n, n), half(b, n, n)], 6 * b * n * n, 2 * b * n**3)
    for dtype, *shape in BEYOND:
        m, n, k = size(*shape)
        yield Case(f"beyond: {dtype} {'x'.join(map(str, shape))}", of(lambda T, a, b: T.nn.functional.linear(a, b)),
                   [Input((m, k), dtype), Input((n, k), dtype)], (m * k + n * k + m * n) * (4 if dtype == "float32" else 2), 2 * m * n * k,
                   tolerance=1e-5 if dtype == "float32" else None)
    b, n, k = size(192, 197, 64)
    yield Case("beyond: float32 192x197x197x64", of(lambda T, a, b: a @ b.mT), [Input((b, n, k)), Input((b, n, k))],
               4 * (2 * b * n * k + b * n * n), 2 * b * n * n * k, tolerance=1e-5)
