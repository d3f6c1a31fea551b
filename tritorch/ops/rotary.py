"""Rotary position embedding."""
import numpy as np

from tritorch.cuda.launch import kernels, launch, tile
from tritorch.cuda.tuner import choose
from tritorch.dispatch import op
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.ops.arrays import single
from tritorch.ops.rows import coalesce, flat, half, remember
from tritorch.ops.shaping import cat, stack
from tritorch.shape import broadcast_strides, cdiv, next_power_of_2
from tritorch.tensor import empty_strided

K = kernels("rotary")
SIZES = ((4096, 16, 4), (8192, 16, 4), (4096, 8, 4), (8192, 32, 8), (2048, 8, 4), (8192, 16, 8))
"""Elements of a program, rows that share one of the tables, warps."""
ALONG = ((4096, 1, 4), (4096, 2, 4), (2048, 1, 4), (8192, 2, 8), (8192, 4, 8), (4096, 4, 4), (8192, 1, 8), (4096, 1, 4, 2),
         (2048, 1, 4, 4))
"""Further ways where rows that follow each other in memory have different rows of the tables: tiles and programs go along those, as rows
that share one are far apart (a MiB for (batch, heads, T, D), where SIZES, tried first, all reach 0.89 of a copy's rate on an H100). A last
number: how often a program goes on to other rows with the tables that it has; else these come from the second cache as often as x."""


@op(aliasable=True)
def rotary_embedding(input, cos, sin, interleaved=False, inverse=False):
    """Turn pairs of features by angles whose cosines and sines are given: rotary position embedding.

    y_a = x_a · cos - x_b · sin and y_b = x_b · cos + x_a · sin. With P = cos.shape[-1] the pairs are (x_i, x_{i + P}), or
    (x_{2i}, x_{2i + 1}) if `interleaved`; features from 2 P on stay as they are. cos and sin broadcast to (*input.shape[:-1], P):
    (T, P) for an input (batch, heads, T, D) as attention takes it, (T, 1, P) for (batch, T, heads, D), (batch, 1, T, P) where samples
    have positions of their own. They may have another dtype; half types compute in float32. Any strides are read where they lie: parts
    of one projection to queries, keys and values need no copy. `inverse` turns back, which is also the gradient.
    Raises RuntimeError when shapes or dtypes do not fit.
    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.

    >>> import tritorch as torch
    >>> quarter = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    >>> torch.nn.functional.rotary_embedding(torch.tensor([[1.0, 0.0, 5.0]]), *quarter)
    tensor([[0., 1., 5.]])
    """
    name, shape = "rotary_embedding", tuple(input.shape)
    check(input.ndim > 0 and input.dtype.is_floating_point, name, "a floating input of at least one dim", input.dtype, shape)
    for table in (cos, sin):
        fits = 0 < table.ndim <= input.ndim and table.dtype.is_floating_point and 2 * table.shape[-1] <= shape[-1] and all(
            n in (1, want) for n, want in zip(table.shape[-2::-1], shape[-2::-1]))
        check(fits, name, f"floating cos and sin that broadcast to {shape[:-1]} and at most {shape[-1] // 2} pairs",
              None if fits else (table.dtype, tuple(table.shape)))
    check(cos.shape[-1] == sin.shape[-1], name, "as many cosines as sines", cos.shape[-1], sin.shape[-1])
    return input.shape, input.dtype, input.device


@rotary_embedding.impl("cpu")
def rotary_embedding_cpu(out, x, cos, sin, interleaved, inverse):
    pairs = cos.shape[-1]
    work = single(x)
    cos, sin = single(cos).astype(work.dtype), single(sin).astype(work.dtype)
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    a, b = work[..., first], work[..., second]
    sin = -sin if inverse else sin
    turned = a * cos - b * sin, b * cos + a * sin
    out[..., 2 * pairs:] = x[..., 2 * pairs:]
    out[..., first], out[..., second] = turned


@remember
def geometry(shape, pairs, so, sx, shape_c, sc, shape_s, ss):
    """((rows of the tables, their shape, the strides of out, x, cos and sin along them), the same of the rows of out and x that share
    a row of the tables, strides of cos and sin along the pairs)."""
    tables = [broadcast_strides(s, t, (*shape[:-1], pairs)) for s, t in ((shape_c, sc), (shape_s, ss))]
    parts = []
    for strides, shared in (((so, sx, *tables), False), ((so, sx), True)):
        dims = [d for d in range(len(shape) - 1) if (tables[0][d] == tables[1][d] == 0) == shared]
        sizes, along = coalesce([shape[d] for d in dims], *[[s[d] for d in dims] for s in strides])
        parts.append((int(np.prod(sizes)), sizes, flat(along)))
    return *parts, [t[-1] for t in tables]


@rotary_embedding.impl("cuda")
def rotary_embedding_cuda(out, x, cos, sin, interleaved, inverse):
    D, pairs = x.shape[-1], cos.shape[-1]
    wide = max(D * max(out.strides[-1], x.strides[-1]), pairs * max(cos.strides[-1], sin.strides[-1])) > 0x7FF00000
    (M, *along_m), (H, *along_h), along = geometry(x.shape, pairs, out.strides, x.strides, cos.shape, cos.strides, sin.shape, sin.strides)
    block_p, rest = next_power_of_2(max(pairs, 1)), D - 2 * pairs
    target, in_line = out, M > 1 and (H == 1 or nearest(along_m, 1, 4) < nearest(along_h, 1, 2))

    def run(t):
        t = {"TURNS": 1, **t}
        launch(K.rotary_kernel, (cdiv(M, t["BLOCK_M"]) * cdiv(H, t["BLOCK_H"] * t["TURNS"]),), target, x, cos, sin, *along_m, *along_h,
               out.strides[-1], x.strides[-1], *along, M, H, pairs, D, INTERLEAVED=interleaved, INVERSE=inverse,
               ACC=getattr(K.tl, x.dtype.compute.name), WIDE=wide, BLOCK_P=block_p, REST=next_power_of_2(rest) if rest else 0, **t)

    if not M * H * D:
        return
    if tile(0, 1):
        run({"BLOCK_H": min(half(H), 16), "BLOCK_M": min(half(M), 64), "ALONG_M": in_line})
        return
    ways = row_ways(M, H, block_p, in_line)
    if out.storage is x.storage:                                         # in place: nothing may be turned twice
        target = empty_strided(out.shape, out.strides, out.dtype, out.device)
    best = choose("rotary_embedding", (x.dtype.name, interleaved, rest > 0, in_line, pairs, M, H), ways, K.rotary_kernel, run)
    target = out
    run(best)


def nearest(along, tensor, count):
    """How far apart neighbours of the rows `along` are in one of `count` tensors."""
    sizes, strides = along
    return strides[(tensor + 1) * len(strides) // count - 1]


def row_ways(M, H, block_p, in_line):
    """Candidates: rows of the tables and rows for each of them, as many as there are."""
    ways = []
    for size, heads, warps, *turns in SIZES + (ALONG if in_line else ()):
        rows = max(size // (2 * block_p), 1)
        block_m = min(max(rows // min(heads, next_power_of_2(H)), 1), next_power_of_2(M))
        way = {"BLOCK_H": min(max(rows // block_m, 1), next_power_of_2(H)), "BLOCK_M": block_m, "ALONG_M": in_line and heads <= 4,
               "num_warps": warps}
        if turns and H >= turns[0]:
            way["TURNS"] = turns[0]
        if way not in ways:
            ways.append(way)
    return ways


@rotary_embedding.grad("input")
def rotary_embedding_grad(g, cos, sin, interleaved, inverse):
    return rotary_embedding(g, cos, sin, interleaved, not inverse)


@rotary_embedding.formula
def rotary_embedding_formula(input, cos, sin, interleaved, inverse):
    pairs = cos.shape[-1]
    sin = -sin if inverse else sin
    head, rest = input[..., :2 * pairs], input[..., 2 * pairs:]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :pairs], head[..., pairs:])
    turned = a * cos - b * sin, b * cos + a * sin
    both = stack(turned, -1).reshape(head.shape) if interleaved else cat(turned, -1)
    return cat((both.to(input.dtype), rest), -1)


@rotary_embedding.samples
def rotary_embedding_samples(make):
    yield make(2, 3, 5, 8), make(5, 4), make(5, 4)
    yield make(2, 5, 3, 8), make(5, 1, 4), make(5, 1, 4), True
    yield make(2, 5, 3, 11), make(2, 5, 1, 3), make(5, 1, 3), False, True
    yield make(7, 9), make(7, 3), make(3), True
    yield make(6), make(3), make(3)
    yield make(0, 4), make(2), make(2)


@rotary_embedding.errors
def rotary_embedding_errors(make):
    yield (make(3, 4), make(3, 3), make(3, 3)), {}, RuntimeError, "at most 2 pairs"
    yield (make(3, 4), make(2, 2), make(3, 2)), {}, RuntimeError, "expected floating cos and sin that broadcast to (3,)"
    yield (make(3, 4), make(3, 2), make(3, 1)), {}, RuntimeError, "expected as many cosines as sines"


@rotary_embedding.workloads
def rotary_embedding_workloads(make):
    for label, shape, tables in (("heads outside", (4, 32, 4096, 128), (4096, 64)), ("heads inside", (4, 4096, 32, 128), (4096, 1, 64))):
        n = 4 * 32 * 4096 * 128
        yield f"4x4096 of 32x128, {label}", lambda shape=shape, tables=tables: (
            make(*shape, dtype=types.bfloat16), make(*tables), make(*tables)), 4 * n + 2 * 4 * 4096 * 64, 3 * n
