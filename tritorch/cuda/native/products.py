"""tt.dot: products of small matrices, out of registers.

A tile of the result, some rows by some vectors of columns, stays in registers while k runs: each step loads vectors of a row of b, and one
element of a for each row, which all lanes get. Types narrower than float32 are widened once, before, b into the tiles' own order, and so
is float32 cut to TF32 where a kernel asks for that: its numbers may count on it that the last bits are not looked at.
"""
from __future__ import annotations

import itertools
from typing import NamedTuple

from .conversions import narrow, widen
from .emit import Buffer, Emitter, Untranslatable, llvm_type
from .llvm import processor
from .ttir import Type
from .vectors import Lanes

SHAPES = {"x86-64-v4": (64, 8, 2), "x86-64-v3": (32, 4, 2)}     # bytes of a vector; rows, vectors of a tile: half of the registers
NARROWEST = (16, 4, 2)                                          # of older processors
STEPS = 4                                                       # of k in a turn of a loop
WIDE, LARGE, TALL = 128, 8192, 32                               # b's columns and elements, a's rows from which a new layout pays: 128 × 64
                                                                # by 64 × 256 has 96 instead of 74 GFLOP/s then, on one core of Zen 3


class Tile(NamedTuple):
    """`rows` by `vectors` of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self):
        return self.vectors * self.lanes


def tile_of(M, N, element):
    """Few rows get more vectors, few columns more rows: a sum waits for the one before, so that about eight must be under way."""
    size, rows, vectors = SHAPES.get(processor()[0], NARROWEST)
    sums = rows * vectors
    lanes = min(size // (8 if element == "f64" else 4), N)
    vectors = min(max(vectors, sums // min(rows, M)), N // lanes)
    return Tile(min(sums // vectors, M, 8), vectors, lanes)


def dot(em, op, operands, region=None, into=None):
    """c + a b, of matrices or of batches of them, in float32, or in the type of c if that is float64 or int32 (see `computed_in`).

    An operand's buffer may have that type already, whatever the operator says. The sum is written to `into` if it is given; that may be c.
    """
    a, b, c = operands
    out = into or em.allocate(op.results[0].type)
    element, cut = computed_in(a, c), is_cut(op)
    tile = tile_of(*c.type.shape[-2:], element)
    spare = [em.allocate(kind) for kind in (widened(a, element, cut), columns_together(a, b, tile, element, cut)) if kind]
    buffers = [a, b, c, out, *spare]
    em.call(function(em, buffers, tile, element, cut), "void", *(("ptr", x.base) for x in buffers))
    for x in spare:
        em.release(x)
    return [out]


def computed_in(a, c):
    """The type of products and sums. A sum of products of int8 is exact in float32 up to 2^24, and has one instruction there, not two."""
    if c.type.element == "i32" and a.type.element == "i8" and a.type.shape[-1] << 14 <= 1 << 24:
        return "f32"
    return c.type.element if c.type.element in ("f64", "i32") else "f32"


def is_cut(op):
    """Whether the operands are float32 of which only the bits of TF32 count."""
    return op.attributes.get("inputPrecision") == "tf32" and op.operands[0].type.element == "f32"


def function(em, buffers, tile, element, cut):
    """(symbol, definitions) of the product of such matrices: a kernel often has several of a kind, and LLVM's time is the user's."""
    kinds = [x.type for x in buffers[:4]]
    symbol = "@dot_" + "_".join("x".join(map(str, (*kind.shape, kind.element))) for kind in kinds) + "_tf32" * cut
    if symbol in em.definitions:
        return symbol, {}
    inner = Emitter()
    inner.count = em.count                                      # so that names are of one function alone
    a, b, c, out, *spare = (Buffer(f"%p{i}", x.type) for i, x in enumerate(buffers))
    left = widen_all(inner, a, spare.pop(0), element, cut) if widened(a, element, cut) else a
    right = put_together(inner, b, spare.pop(0), element, cut) if spare else b
    with inner.loop("0", batches(c)) as i:
        product(inner, *(matrix(inner, x, i) for x in (left, right, c, out)), tile, element)
    arguments = ", ".join(f"ptr %p{i}" for i in range(len(buffers)))
    em.count = inner.count
    text = "\n".join([f"define internal void {symbol}({arguments}) noinline {{", "entry:", *inner.lines, "  ret void", "}"])
    return symbol, inner.definitions | {symbol: text}


def batches(x):
    return x.type.size // (x.type.shape[-2] * x.type.shape[-1])


def matrix(em, x, i):
    """The i-th matrix of a batch."""
    kind = Type(x.type.shape[-2:], x.type.element)
    return Buffer(em.set(f"getelementptr [{kind.size} x {llvm_type(kind.element)}], ptr {x.base}, i64 {i}"), kind)


# operands
def widened(x, element, cut):
    """The type of a in the type that is computed in; None if it has it, and is not cut."""
    return None if x.type.element == element and not cut else x.type.of(element)


def widen_all(em, x, out, element, cut):
    lanes, several = min(16, x.type.size), min(STEPS * 16, x.type.size)
    with em.loop("0", x.type.size, several) as first:
        for v in range(0, several, lanes):
            i = linear(em, first, 1, v)
            em.store(out, i, as_operand(em, em.load(x, i, lanes), x.type.element, element, lanes, cut), lanes)
    return out


def columns_together(a, b, tile, element, cut):
    """The type of b in the type that is computed in, and in another order: the first columns, as many as a tile has, of all rows, then the
    next ones: (N / columns · K, columns). None if b is best read as it is. Rows that are 512 bytes apart share few places of a cache."""
    *batch, K, N = b.type.shape
    if b.type.element == element and not cut and (N < WIDE or K * N < LARGE or a.type.shape[-2] < TALL):
        return None
    return Type((*batch, N // tile.columns * K, tile.columns), element)


def put_together(em, b, out, element, cut):
    """Write b into a buffer of the type of `columns_together`."""
    (K, N), columns = b.type.shape[-2:], out.type.shape[-1]
    lanes = min(columns, 16)
    with em.loop("0", batches(b)) as i:
        source, target = matrix(em, b, i), matrix(em, out, i)
        with em.loop("0", N, columns) as j, em.loop("0", K, min(STEPS, K)) as k:
            first, place = linear(em, k, N, j), linear(em, j, K, em.value("mul", "i64", 1, k, str(columns)))
            for step, v in itertools.product(range(min(STEPS, K)), range(0, columns, lanes)):
                x = em.load(source, linear(em, first, 1, step * N + v), lanes)
                em.store(target, linear(em, place, 1, step * columns + v), as_operand(em, x, b.type.element, element, lanes, cut), lanes)
    return out


def linear(em, x, factor, y):
    """x · factor + y"""
    return em.value("add", "i64", 1, em.value("mul", "i64", 1, x, str(factor)), str(y))


def as_operand(em, register, source, element, lanes, cut):
    """Matrix units do not look at the last 13 bits of float32."""
    if cut:
        return (Lanes(em, register, "f32", lanes).bits() & 0xFFFFE000).as_float().register
    return widen_to(em, register, source, element, lanes)


def widen_to(em, register, source, element, lanes):
    if source == element:
        return register
    if element == "i32":
        return em.set(f"sext {llvm_type(source, lanes)} {register} to {llvm_type(element, lanes)}")
    if element == "f32" and source == "i8":
        return em.set(f"sitofp {llvm_type(source, lanes)} {register} to {llvm_type(element, lanes)}")
    if element == "f32":
        return widen(em, register, source, lanes)
    raise Untranslatable(f"tt.dot of {source} in {element}")


def narrow_to(em, register, element, target, lanes):
    return register if target == element else narrow(em, register, target, lanes)


# the product
def product(em, a, b, c, out, tile, element):
    """out = c + a b, tile by tile: the columns of b that a tile needs stay in the first cache while the rows of a pass by."""
    (M, N), K = c.type.shape, a.type.shape[1]
    lanes = tile.lanes
    with em.loop("0", N, tile.columns) as j:
        right = Buffer(em.pointer(b, j if b.type.shape == (K, N) else em.value("mul", "i64", 1, j, str(K))), b.type)
        with em.loop("0", M, tile.rows) as i:
            left = Buffer(em.pointer(a, em.value("mul", "i64", 1, i, str(K))), a.type)
            corner = linear(em, i, N, j)
            places = [linear(em, corner, 1, r * N + v * lanes) for r in range(tile.rows) for v in range(tile.vectors)]
            before = [em.load(c, p, lanes) for p in places]
            whole = element == "f32" and c.type.element == "i32"
            sums = [em.number(0.0, element, lanes) if whole else widen_to(em, x, c.type.element, element, lanes) for x in before]
            sums = accumulate(em, left, right, sums, tile, element)
            for place, x, total in zip(places, before, sums):
                made = add_whole(em, x, total, lanes) if whole else narrow_to(em, total, element, out.type.element, lanes)
                em.store(out, place, made, lanes)


def add_whole(em, x, total, lanes):
    """An int32 and a float32 that is a whole number."""
    return em.value("add", "i32", lanes, x, em.set(f"fptosi {llvm_type('f32', lanes)} {total} to {llvm_type('i32', lanes)}"))


def accumulate(em, left, right, sums, tile, element):
    """The sums of a tile after all k: they are phis of a loop, as LLVM does not see what memory holds."""
    K, N = left.type.shape[1], right.type.shape[1]
    steps = min(STEPS, K)
    if K == steps:
        return several(em, left, right, sums, tile, element, steps)
    body, end, before = em.label(), em.label(), em.block
    k, following, kind = em.new(), em.new(), llvm_type(element, tile.lanes)
    phis = [em.new() for _ in sums]
    em.go_on(body)
    patched = len(em.lines)
    row = em.value("mul", "i64", 1, k, str(N))
    ahead = Buffer(em.pointer(left, k), left.type), Buffer(em.pointer(right, row), right.type)
    after = several(em, *ahead, phis, tile, element, steps)
    em.line(f"{following} = add i64 {k}, {steps}")
    em.again(body, em.set(f"icmp ult i64 {following}, {K}"), end)
    carried = [(k, "i64", "0", following), *((phi, kind, first, last) for phi, first, last in zip(phis, sums, after))]
    em.lines[patched:patched] = [f"  {phi} = phi {kind} [ {first}, %{before} ], [ {last}, %{body} ]" for phi, kind, first, last in carried]
    em.start(end)
    return after


def several(em, left, right, sums, tile, element, steps):
    """The sums after some steps of k, from the places that `left` and `right` point to."""
    K, N = left.type.shape[1], right.type.shape[1]
    for step in range(steps):
        across = [em.load(right, step * N + v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
        down = [em.splat(em.load(left, r * K + step, 1), element, tile.lanes) for r in range(tile.rows)]
        pairs = [(x, y) for x in down for y in across]
        sums = [multiply_add(em, x, y, total, element, tile.lanes) for (x, y), total in zip(pairs, sums)]
    return sums


def multiply_add(em, x, y, total, element, lanes):
    if element == "i32":
        return em.value("add", element, lanes, em.value("mul", element, lanes, x, y), total)
    return em.intrinsic("fmuladd", llvm_type(element, lanes), x, y, total)


RULES = {"tt.dot": dot}
