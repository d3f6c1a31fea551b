"""Rows that are looked up, added and joined; sorting."""
import numpy as np

from bench.anchors import Case, Input, backward, half, of


def normal(shape):
    """Numbers that are the same for all: how far a sort sends its neighbours depends on them, in a prediction too."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def cases(size):
    tokens, vocabulary, width = size(64 * 1024, 50304, 1024)
    places, table = Input((tokens,), "int64", high=vocabulary), half(vocabulary, width)
    look = lambda T, places, table: T.nn.functional.embedding(places, table)
    yield Case(f"embedding fwd bf16 {tokens}x{width}", of(look), [places, table], 2 * tokens * width * 2)
    yield Case(f"embedding bwd bf16 {tokens}x{width}", backward(look, [1]),
               [half(tokens, width), places, half(vocabulary, width, grad=True)], 2 * tokens * width + 4 * vocabulary * width)
    n, = size(1 << 26)
    rows, columns = size((1 << 26) // 4096, 4096)
    flat, matrix, total = Input((n,), values=normal), Input((rows, columns)), 4 * rows * columns
    yield Case("sort 1-D f32 64M", of(lambda T, x: T.sort(x)), [flat], 12 * n, aim=0.7)
    yield Case("sort rows of 4096 f32", of(lambda T, x: T.sort(x, 1)), [matrix], 16 * rows * columns)
    yield Case("topk 64 of 4096 f32", of(lambda T, x: T.topk(x, min(64, x.shape[1]))), [matrix], total, aim=3.0)
    chosen = Input((rows,), "int64", high=rows)
    yield Case("index_select rows f32", of(lambda T, x, i: x.index_select(0, i)), [matrix, chosen], 2 * total)
    yield Case("cat f32", of(lambda T, x: T.cat([x, x], 1)), [matrix], 4 * total)
    yield Case("index_add rows f32", of(lambda T, z, i, x: z.index_add_(0, i, x)), [Input((rows, columns), own=True), chosen, matrix],
               3 * total, compare=None)
