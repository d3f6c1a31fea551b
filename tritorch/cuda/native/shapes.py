"""Operators that move elements and change none: tt.reshape, tt.trans, tt.join, tt.split, tt.cat, tt.gather; and tt.histogram.

Elements are moved as integers of their width.
"""
from __future__ import annotations

from .emit import LANES, Buffer, llvm_type, storage_bytes
from .points import strides_of
from .ttir import Type

TILE = {1: (16, 16), 2: (8, 8), 4: (8, 8), 8: (8, 4)}      # columns and rows that are transposed in registers, by the bytes of an element
SHORT = 16                                      # bytes: shorter rows are not moved as rows


def place(em, *terms):
    """The sum of index × stride, an i64; an index is a register or a number."""
    number, register = 0, None
    for index, stride in terms:
        if not str(index).startswith("%"):
            number += int(index) * stride
            continue
        term = index if stride == 1 else em.set(f"mul i64 {index}, {stride}")
        register = term if register is None else em.set(f"add i64 {register}, {term}")
    if register is None:
        return str(number)
    return em.set(f"add i64 {register}, {number}") if number else register


def shuffled(em, element, lanes, value, indices, other=None):
    """The lanes `indices` of a vector, or of two, of which the second is counted on from the first. One lane alone is a scalar."""
    if len(indices) == 1:
        return em.lane(value, element, lanes, indices[0])
    if indices == list(range(lanes)):
        return value
    many = llvm_type(element, lanes)
    mask = ", ".join(f"i32 {i}" for i in indices)
    return em.set(f"shufflevector {many} {value}, {many} {other or 'poison'}, <{len(indices)} x i32> <{mask}>")


def bits_of(buffer, shape=None):
    """A buffer seen as integers."""
    kind = buffer.type
    return buffer.as_(Type(kind.shape if shape is None else shape, f"i{8 * storage_bytes(kind.element)}"))


def reshape(em, op, operands, region):
    return [operands[0].as_(op.results[0].type)]


# ------------------------------------------------------------------ permutations
def simplified(shape, order):
    """A permutation without axes of one element, and with neighbours that stay neighbours as one: its shape and order."""
    groups = []
    for axis in order:
        if shape[axis] == 1:
            continue
        if groups and all(shape[between] == 1 for between in range(groups[-1][-1] + 1, axis)) and groups[-1][-1] < axis:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_place = sorted(groups)
    sizes = []
    for group in by_place:
        size = 1
        for axis in group:
            size *= shape[axis]
        sizes.append(size)
    return sizes, [by_place.index(group) for group in groups]


def trans(em, op, operands, region):
    source, kind, order = operands[0], op.results[0].type, op.attributes["order"]
    if isinstance(source, Pairs):                                            # `join` has moved them
        return [Buffer(source.base, kind, source.owner)]
    user = only_user(op)
    if user and user.name == "tt.split" and order[:-1] == sorted(order[:-1]):
        halves = Halves(source.type, order[-1])
        if halves.wide:                                                      # `split` finds them
            return [Pairs(source.base, kind, source.owner or source, halves)]
    return [permuted(em, source, kind, order)]


def permuted(em, source, kind, order):
    """A buffer whose dim i is the source's dim order[i], of type `kind`; the source itself where no element moves."""
    shape, order = simplified(source.type.shape, order)
    if order == sorted(order):
        return source.as_(kind)
    result = em.allocate(kind)
    width = storage_bytes(kind.element)
    if order[-1] == len(order) - 1 and shape[-1] * width <= 8:               # short rows stay together: they are wider elements
        width *= shape.pop()
        order.pop()
    element = f"i{8 * width}"
    old, new = source.as_(Type(tuple(shape), element)), result.as_(Type(tuple(shape[axis] for axis in order), element))
    if order[-1] == len(order) - 1:
        move_rows(em, old, new, shape, order)
    else:
        move_tiles(em, old, new, shape, order)
    return result


def target_strides(shape, order):
    """For each axis of the source, how far its neighbours are apart in the result."""
    strides = strides_of([shape[axis] for axis in order])
    return [strides[order.index(axis)] for axis in range(len(shape))]


class Nest:
    """Loops over several axes in each other. `sides` are (size, step, stride in the source, stride in the target)."""

    def __init__(self, em, sides, body):
        self.em, self.sides, self.body = em, sides, body

    def __call__(self, *indices):
        if len(indices) == len(self.sides):
            source = place(self.em, *((i, side[2]) for i, side in zip(indices, self.sides)))
            target = place(self.em, *((i, side[3]) for i, side in zip(indices, self.sides)))
            return self.body(source, target)
        with self.em.loop(0, *self.sides[len(indices)][:2]) as i:
            self(*indices, i)


def move_rows(em, old, new, shape, order):
    """The last axis stays the last: vectors along it."""
    froms, tos = strides_of(shape), target_strides(shape, order)
    lanes = min(LANES, shape[-1])
    Nest(em, [(shape[axis], lanes if axis == len(shape) - 1 else 1, froms[axis], tos[axis]) for axis in order],
         lambda source, target: em.store(new, target, em.load(old, source, lanes), lanes))()


def move_tiles(em, old, new, shape, order):
    """The last axis is another: tiles of both axes that are the last are transposed in registers."""
    froms, tos = strides_of(shape), target_strides(shape, order)
    last, other = len(shape) - 1, order[-1]                                  # the last axes of the source and of the result
    columns, rows = tile(shape[last], shape[other], *TILE[storage_bytes(old.type.element)])
    whole_source = columns == shape[last] and froms[other] == columns       # the tile lies in one piece
    whole_target = rows == shape[other] and tos[last] == rows
    size = rows * columns
    reading, writing = size if whole_source else columns, size if whole_target else rows
    lanes = min(LANES, reading, writing)
    steps = {last: columns, other: rows}

    def body(source, target):
        pieces = range(0, size, lanes)
        vectors = [em.load(old, place(em, (source, 1), (i // reading, froms[other]), (i % reading, 1)), lanes) for i in pieces]
        vectors = transposed(em, old.type.element, lanes, vectors, rows, columns)
        for i, vector in zip(pieces, vectors):
            em.store(new, place(em, (target, 1), (i // writing, tos[last]), (i % writing, 1)), vector, lanes)

    Nest(em, [(shape[axis], steps.get(axis, 1), froms[axis], tos[axis]) for axis in order], body)()


def tile(columns, rows, wide, high):
    """How many columns and rows are moved at once: wide x high, longer along one where there is less of the other."""
    across, down = min(columns, wide), min(rows, high)
    return min(columns, LANES, wide * high // down), min(rows, LANES, wide * high // across)


def transposed(em, element, lanes, vectors, rows, columns):
    """rows x columns -> columns x rows, both row by row in vectors.

    A step turns the bits of the elements' numbers by one: the upper half goes between the elements of the lower half, or, backwards, the
    odd ones go behind the even ones.
    """
    count = len(vectors)
    if count == 1:
        indices = [row * columns + column for column in range(columns) for row in range(rows)]
        return [shuffled(em, element, lanes, vectors[0], indices)]
    forwards, backwards = rows.bit_length() - 1, columns.bit_length() - 1
    for _ in range(min(forwards, backwards)):
        if forwards <= backwards:
            vectors = [v for a, b in zip(vectors[:count // 2], vectors[count // 2:]) for v in interleaved(em, element, lanes, a, b)]
        else:
            pairs = [separated(em, element, lanes, a, b) for a, b in zip(vectors[::2], vectors[1::2])]
            vectors = [even for even, _ in pairs] + [odd for _, odd in pairs]
    return vectors


def interleaved(em, element, lanes, a, b):
    """a0 b0 a1 b1 …, in two vectors."""
    both = [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
    return [shuffled(em, element, lanes, a, half, b) for half in (both[:lanes], both[lanes:])]


def separated(em, element, lanes, a, b):
    """The elements of even and of odd numbers, of two vectors."""
    return [shuffled(em, element, lanes, a, list(range(start, 2 * lanes, 2)), b) for start in (0, 1)]


# ------------------------------------------------------------------ pairs
class Halves:
    """[outer, 2, inner]: where the two halves along an axis are."""

    def __init__(self, kind, axis):
        self.inner = strides_of(kind.shape)[axis]
        self.outer = kind.size // self.inner // 2
        self.wide = self.inner * storage_bytes(kind.element) >= SHORT

    def each(self, em, body):
        """`body(half, place in the half, place in the whole, lanes)` for every vector."""
        lanes = min(LANES, self.inner)
        with em.loop(0, self.outer) as o, em.loop(0, self.inner, lanes) as i:
            for half in (0, 1):
                body(half, place(em, (o, self.inner), (i, 1)), place(em, (o, 2 * self.inner), (i, 1), (half, self.inner)), lanes)


class Pairs(Buffer):
    """A tensor whose last axis is of two, but lies elsewhere in memory, as `halves` tells. Only a tt.trans behind its tt.join knows it, or
    a tt.split behind its tt.trans: the elements of both halves need not take turns for a moment."""

    def __init__(self, base, kind, owner, halves):
        super().__init__(base, kind, owner)
        self.halves = halves


def only_user(op):
    users = op.results[0].users
    return users[0] if len(users) == 1 else None


def join(em, op, operands, region):
    """A new last axis of two: the elements of both take turns, unless tt.trans alone wants them, which puts the axis elsewhere."""
    kind, user = op.results[0].type, only_user(op)
    order = user.attributes["order"] if user and user.name == "tt.trans" else []
    last, parts = len(kind.shape) - 1, [bits_of(operand) for operand in operands]
    if order and [axis for axis in order if axis != last] == list(range(last)):
        halves = Halves(user.results[0].type, order.index(last))
        if halves.wide:
            result = em.allocate(user.results[0].type)
            whole = bits_of(result)
            halves.each(em, lambda half, i, at, lanes: em.store(whole, at, em.load(parts[half], i, lanes), lanes))
            return [Pairs(result.base, kind, result, halves)]
    result = em.allocate(kind)
    out, size, element = bits_of(result), parts[0].type.size, parts[0].type.element
    lanes = min(LANES, size)
    with em.loop(0, size, lanes) as i:
        values = [em.load(part, i, lanes) for part in parts]
        if lanes > 1:
            values = interleaved(em, element, lanes, *values)
        at = place(em, (i, 2))
        em.store(out, at, values[0], lanes)
        em.store(out, place(em, (at, 1), (lanes, 1)), values[1], lanes)
    return [result]


def split(em, op, operands, region):
    """The opposite of join. Where the halves lie one behind the other they stay there."""
    source, kind = operands[0], op.results[0].type
    halves = source.halves if isinstance(source, Pairs) else None
    if halves and halves.outer == 1:
        return [Buffer(em.pointer(source, half * kind.size), kind, source.owner) for half in (0, 1)]
    results = [em.allocate(kind) for _ in (0, 1)]
    both, outs = bits_of(source), [bits_of(result) for result in results]
    if halves:
        halves.each(em, lambda half, i, at, lanes: em.store(outs[half], i, em.load(both, at, lanes), lanes))
        return results
    size, element = kind.size, both.type.element
    lanes = min(LANES, size)
    with em.loop(0, size, lanes) as i:
        at = place(em, (i, 2))
        values = [em.load(both, at, lanes), em.load(both, place(em, (at, 1), (lanes, 1)), lanes)]
        if lanes > 1:
            values = separated(em, element, lanes, *values)
        for out, value in zip(outs, values):
            em.store(out, i, value, lanes)
    return results


def cat(em, op, operands, region):
    """One behind the other."""
    result = em.allocate(op.results[0].type)
    out, start = bits_of(result), 0
    for part in map(bits_of, operands):
        lanes = min(LANES, part.type.size)
        with em.loop(0, part.type.size, lanes) as i:
            em.store(out, place(em, (i, 1), (start, 1)), em.load(part, i, lanes), lanes)
        start += part.type.size
    return [result]


# ------------------------------------------------------------------ by number
def gather(em, op, operands, region):
    """out[o, a, i] = source[o, index[o, a, i], i]. An index outside of the axis, of which Triton says nothing, reads some element of it."""
    source, index = operands
    axis, shape = op.attributes["axis"], source.type.shape
    result = em.allocate(op.results[0].type)
    old, new = bits_of(source), bits_of(result)
    count, inner = shape[axis], strides_of(shape)[axis]
    places, kind = index.type.shape[axis], index.type.element
    along = int(inner == 1)                                                  # the lanes are along the axis, or along inner
    lanes = min(LANES // 2, places if along else inner)
    steps = (lanes, 1) if along else (1, lanes)
    with em.loop(0, index.type.size // (places * inner)) as o, em.loop(0, places, steps[0]) as a, em.loop(0, inner, steps[1]) as i:
        at = place(em, (o, places * inner), (a, inner), (i, 1))
        numbers = em.load(index, at, lanes)
        for lane in range(lanes):
            number = em.lane(numbers, kind, lanes, lane)
            number = em.set(f"sext {kind} {number} to i64") if kind != "i64" else number
            number = em.set(f"and i64 {number}, {count - 1}")
            value = em.load(old, place(em, (o, count * inner), (number, inner), (i, 1), (lane, 1 - along)), 1)
            em.store(new, place(em, (at, 1), (lane, 1)), value, 1)
    return [result]


def histogram(em, op, operands, region):
    """How often each of 0 … bins - 1 is among the numbers (where the mask is true); others are not counted."""
    numbers, mask = operands[0], operands[1] if len(operands) > 1 else None
    result = em.allocate(op.results[0].type)
    bins, kind, counted = result.type.size, numbers.type.element, result.type.element
    lanes = min(LANES, bins)
    with em.loop(0, bins, lanes) as i:
        em.store(result, i, em.number(0, counted, lanes), lanes)
    with em.loop(0, numbers.type.size) as i:
        number = em.load(numbers, i, 1)
        number = em.set(f"sext {kind} {number} to i64") if kind != "i64" else number
        counts = em.set(f"icmp ult i64 {number}, {bins}")
        if mask:
            counts = em.set(f"and i1 {counts}, {em.load(mask, i, 1)}")
        with em.when(counts):
            em.store(result, number, em.set(f"add {counted} {em.load(result, number, 1)}, 1"), 1)
    return [result]


RULES = {"tt.reshape": reshape, "tt.trans": trans, "tt.join": join, "tt.split": split, "tt.cat": cat, "tt.gather": gather,
         "tt.histogram": histogram}
