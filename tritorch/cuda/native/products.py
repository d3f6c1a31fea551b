"""tt.dot: products of small matrices, out of registers.

A tile of the result, some rows by some vectors of columns, stays in registers while k runs: each step loads one row of b's part and broadcasts one element
of a for each row. Types narrower than float32 are widened before, once.
"""
from __future__ import annotations

from typing import NamedTuple

from .conversions import narrow, widen
from .emit import Buffer, Untranslatable, llvm_type
from .llvm import processor
from .ttir import Type

SHAPES = {"x86-64-v4": (16, 2, 8), "x86-64-v3": (8, 2, 4), "x86-64-v2": (4, 2, 4)}     # floats in a vector; vectors and rows of a tile
STEPS = 4                                                                           # of k in a turn of the loop


class Tile(NamedTuple):
    """`rows` by `vectors` of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self):
        return self.vectors * self.lanes


def tile_of(M, N, element):
    lanes, vectors, rows = SHAPES[processor()[0]]
    registers = rows * vectors
    if element == "f64":
        lanes //= 2
    lanes = min(lanes, N)
    rows = min(rows, M)
    vectors = min(max(vectors, registers // rows), N // lanes)
    return Tile(min(max(rows, registers // vectors), M, 8), vectors, lanes)


def dot(em, op, operands, region=None, into=None):
    """c + a b, of matrices or of batches of matrices. An operand may be widened to the type that is computed in already; the result is written to `into`
    if there is one, which may be c."""
    a, b, c = operands
    out = into or em.allocate(op.results[0].type)
    element = {"f64": "f64", "i32": "i32"}.get(c.type.element, "f32")
    *batch, M, K = a.type.shape
    N = b.type.shape[-1]
    tile = tile_of(M, N, element)
    wide = [widened(em, x, element) for x in (a, b)]
    with em.loop("0", batch[0] if batch else 1) as i:
        parts = [matrix(em, x, i) if batch else x for x in (*wide, c, out)]
        tiles(em, *parts, tile, element)
    for x, y in zip((a, b), wide):
        if x is not y:
            em.release(y)
    return [out]


def matrix(em, x, i):
    """The i-th matrix of a batch."""
    kind = Type(x.type.shape[1:], x.type.element)
    return Buffer(em.set(f"getelementptr [{kind.size} x {llvm_type(kind.element)}], ptr {x.base}, i64 {i}"), kind)


def widened(em, x, element):
    """A buffer in which x has the type that is computed in: its own if it has it already."""
    if x.type.element == element:
        return x
    out = em.allocate(x.type.of(element))
    lanes = min(16, x.type.size)
    with em.loop("0", x.type.size, lanes) as i:
        em.store(out, i, widen_to(em, em.load(x, i, lanes), x.type.element, element, lanes), lanes)
    return out


def widen_to(em, register, source, element, lanes):
    if source == element:
        return register
    if element == "i32":
        return em.set(f"sext {llvm_type(source, lanes)} {register} to {llvm_type(element, lanes)}")
    if element == "f32":
        return widen(em, register, source, lanes)
    raise Untranslatable(f"tt.dot of {source} in {element}")


def narrow_to(em, register, element, target, lanes):
    return register if target == element else narrow(em, register, target, lanes)


def tiles(em, a, b, c, out, tile, element):
    M, N = c.type.shape
    with em.loop("0", N, tile.columns) as j, em.loop("0", M, tile.rows) as i:
        places = corner(em, i, j, tile, N)
        sums = [widen_to(em, em.load(c, p, tile.lanes), c.type.element, element, tile.lanes) for p in places]
        sums = accumulate(em, a, b, i, j, sums, tile, element)
        for p, s in zip(places, sums):
            em.store(out, p, narrow_to(em, s, element, out.type.element, tile.lanes), tile.lanes)


def corner(em, i, j, tile, N):
    first = em.value("add", "i64", 1, em.value("mul", "i64", 1, i, str(N)), j)
    return [em.value("add", "i64", 1, first, str(r * N + v * tile.lanes)) for r in range(tile.rows) for v in range(tile.vectors)]


def accumulate(em, a, b, i, j, sums, tile, element):
    """The sums after all k."""
    K, N = b.type.shape
    left = Buffer(em.pointer(a, em.value("mul", "i64", 1, i, str(K))), a.type)
    right = Buffer(em.pointer(b, j), b.type)
    steps = min(STEPS, K)
    if K == steps:
        return several(em, left, right, "0", "0", sums, tile, element, steps)
    head, end = em.label(), em.label()
    before, k, row, following = em.block, em.new(), em.new(), em.new()
    phis = [em.new() for _ in sums]
    em.jump(head)
    em.start(head)
    patched = len(em.lines)
    em.lines += [""] * (1 + len(sums))
    offset = em.value("mul", "i64", 1, k, str(N))
    after = several(em, left, right, k, offset, phis, tile, element, steps)
    em.line(f"{following} = add i64 {k}, {steps}")
    kind = llvm_type(element, tile.lanes)
    em.lines[patched] = f"  {k} = phi i64 [ 0, %{before} ], [ {following}, %{head} ]"
    for n, (phi, first, last) in enumerate(zip(phis, sums, after)):
        em.lines[patched + 1 + n] = f"  {phi} = phi {kind} [ {first}, %{before} ], [ {last}, %{head} ]"
    em.branch(em.set(f"icmp ult i64 {following}, {K}"), head, end)
    em.start(end)
    return after


def several(em, left, right, k, offset, sums, tile, element, steps):
    K, N = right.type.shape
    left, right = Buffer(em.pointer(left, k), left.type), Buffer(em.pointer(right, offset), right.type)
    for step in range(steps):
        rows = [em.load(right, str(step * N + v * tile.lanes), tile.lanes) for v in range(tile.vectors)]
        new = []
        for r in range(tile.rows):
            x = em.splat(em.load(left, str(r * K + step), 1), element, tile.lanes)
            new += [multiply_add(em, x, y, s, element, tile.lanes) for y, s in zip(rows, sums[r * tile.vectors:])]
        sums = new
    return sums


def multiply_add(em, x, y, s, element, lanes):
    if element == "i32":
        return em.value("add", element, lanes, em.value("mul", element, lanes, x, y), s)
    return em.intrinsic("fmuladd", llvm_type(element, lanes), x, y, s)


RULES = {"tt.dot": dot}
