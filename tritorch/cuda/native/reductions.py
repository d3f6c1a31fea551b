"""tt.reduce and tt.scan: the elements along an axis combined by a region of the kernel.

A tensor is looked at as [outer, axis, inner], row by row in memory. Where inner is as long as a vector, the lanes lie along it. Where it is
shorter, a vector has several elements of the axis, and its lanes are combined with each other by shuffles.
A reduction may combine in any order, as on a GPU; this one's depends on the shape alone. A scan has the earlier elements on the left.
"""
from __future__ import annotations

from .emit import LANES, llvm_type, storage_bytes
from .shapes import place, shuffled
from .ttir import Type

CHAINS = 4                                      # accumulators that do not wait for each other


def around(shape, axis):
    """(outer, axis, inner): how many elements there are before, along and behind the axis."""
    outer = inner = 1
    for size in shape[:axis]:
        outer *= size
    for size in shape[axis + 1:]:
        inner *= size
    return outer, shape[axis], inner


class Combination:
    """The region of an operator, and what is done for each of its operands. A list has one register, or one buffer, for each."""

    def __init__(self, em, op, region):
        self.em, self.op, self.region = em, op, region
        self.elements = [value.type.element for value in op.operands]
        self.lanes = LANES // 2 if max(map(storage_bytes, self.elements)) == 8 else LANES
        self.chains = max(CHAINS // len(self.elements), 1)

    def __call__(self, left, right, lanes):
        return self.region(self.op.regions[0], [*left, *right], lanes)

    def room(self, size):
        return [self.em.allocate(Type((size,), element)) for element in self.elements]

    def load(self, parts, index, lanes):
        return [self.em.load(part, index, lanes) for part in parts]

    def store(self, parts, index, values, lanes):
        for part, value in zip(parts, values):
            self.em.store(part, index, value, lanes)

    def picked(self, values, lanes, indices, others=None):
        """The lanes of the numbers `indices`; those of `others` are counted on from the lanes of `values`."""
        others = others or [None] * len(values)
        return [shuffled(self.em, element, lanes, value, indices, other) for element, value, other in zip(self.elements, values, others)]

    def carried(self, start, stop, values, lanes, body):
        """`for i in range(start, stop): values = body(i, values)`, of at least one turn; the values are one list or more of registers."""
        if stop - start == 1:
            return body(str(start), values)
        em = self.em
        before, head, end = em.block, em.label(), em.label()
        em.go_on(head)
        i, now = em.new(), [em.new() for _ in values]
        first = len(em.lines)
        em.lines += [""] * (1 + len(values))
        following = body(i, now)
        after = em.set(f"add i64 {i}, 1")
        em.lines[first] = f"  {i} = phi i64 [ {start}, %{before} ], [ {after}, %{em.block} ]"
        for n, (register, old, new) in enumerate(zip(now, values, following)):
            kind = llvm_type(self.elements[n % len(self.elements)], lanes)
            em.lines[first + 1 + n] = f"  {register} = phi {kind} [ {old}, %{before} ], [ {new}, %{em.block} ]"
        em.again(head, em.set(f"icmp slt i64 {after}, {stop}"), end)
        em.start(end)
        return following


# ------------------------------------------------------------------ reductions
def without(order, axis):
    """The order of the dims that are left."""
    left = tuple(d - (d > axis) for d in order if d != axis)
    return None if list(left) == sorted(left) else left


def reduce(em, op, operands, region):
    """[outer, axis, inner] -> [outer, inner], in steps: to rows of one vector, and these to rows of `inner` by halves."""
    combine = Combination(em, op, region)
    shape, axis, order = op.operands[0].type.shape, op.attributes["axis"], operands[0].order
    outer, count, inner = around(*((shape, axis) if order is None else ([shape[d] for d in order], order.index(axis))))
    scalar = not op.results[0].type.shape
    if count == 1:
        results = combine.load(operands, "0", 1) if scalar else [part.as_(value.type) for part, value in zip(operands, op.results)]
    else:
        results = [] if scalar else [em.allocate(value.type) for value in op.results]
    for result in () if scalar or order is None else results:
        result.order = without(order, axis)
    if count == 1:
        return results
    width = max(min(combine.lanes, count * inner), inner)
    turns, parts, rooms = count * inner // width, operands, []

    def target(size):
        if size == inner:
            return results
        rooms.append(combine.room(outer * size))
        return rooms[-1]

    if turns > 1 and outer * width <= combine.lanes:                # a single row: it stays in registers
        values = accumulated(combine, parts, turns, width, "0", [0], width)
    else:
        if turns > 1:
            parts = rows_accumulated(combine, parts, target(width), outer, turns, width)
        while width > inner and outer * width > combine.lanes:
            parts, width = rows_halved(combine, parts, target(width // 2), outer, width), width // 2
        values = None if width == inner else combine.load(parts, "0", outer * width)
    if values:
        values = halved(combine, values, outer, width, inner)
        combine.store(results, "0", values, outer * inner)
    for room in rooms:
        for buffer in room:
            em.release(buffer)
    return results or values


def rows_accumulated(combine, parts, target, outer, turns, width):
    """[outer, turns, width] -> [outer, width]"""
    em, lanes = combine.em, min(combine.lanes, width)
    side = min(combine.chains, width // lanes)
    with em.loop(0, outer) as o, em.loop(0, width, side * lanes) as j:
        columns = [n * lanes for n in range(side)]
        values = accumulated(combine, parts, turns, width, place(em, (o, turns * width), (j, 1)), columns, lanes)
        base = place(em, (o, width), (j, 1))
        each = len(parts)
        for n, column in enumerate(columns):
            combine.store(target, place(em, (base, 1), (column, 1)), values[n * each:(n + 1) * each], lanes)
    return target


def accumulated(combine, parts, turns, width, base, columns, lanes):
    """For each column the vectors at base + column, base + column + width, … (`turns` of them) combined; the registers of all columns."""
    em, each = combine.em, len(parts)
    pieces = min(max(combine.chains // len(columns), 1), turns)
    starts = [piece * (turns // pieces) * width + column for piece in range(pieces) for column in columns]

    def step(i, values):
        at = place(em, (base, 1), (i, width))
        out = []
        for n, start in enumerate(starts):
            out += combine(values[n * each:(n + 1) * each], combine.load(parts, place(em, (at, 1), (start, 1)), lanes), lanes)
        return out

    values = [value for start in starts for value in combine.load(parts, place(em, (base, 1), (start, 1)), lanes)]
    if turns > pieces:
        values = combine.carried(1, turns // pieces, values, lanes, step)
    span = len(columns) * each                                  # registers of one piece
    while len(values) > span:
        pairs = range(0, len(values), 2 * span)
        values = [v for start in pairs for n in range(start, start + span, each)
                  for v in combine(values[n:n + each], values[n + span:n + span + each], lanes)]
    return values


def halves(lanes, width):
    """The lanes that are in the left, and those that are in the right half of their row of a width."""
    left = [row + i for row in range(0, lanes, width) for i in range(width // 2)]
    return left, [i + width // 2 for i in left]


def rows_halved(combine, parts, target, outer, width):
    """[outer, 2, width / 2] -> [outer, width / 2], of more elements than a vector has."""
    em, lanes = combine.em, combine.lanes
    left, right = halves(2 * lanes, width)
    with em.loop(0, outer * width // 2, lanes) as i:
        at = place(em, (i, 2))
        first, second = combine.load(parts, at, lanes), combine.load(parts, place(em, (at, 1), (lanes, 1)), lanes)
        values = combine(combine.picked(first, lanes, left, second), combine.picked(first, lanes, right, second), lanes)
        combine.store(target, i, values, lanes)
    return target


def halved(combine, values, outer, width, inner):
    """The same in registers, until the rows of the one vector are `inner` wide."""
    while width > inner:
        lanes = outer * width
        left, right = halves(lanes, width)
        values = combine(combine.picked(values, lanes, left), combine.picked(values, lanes, right), lanes // 2)
        width //= 2
    return values


# ------------------------------------------------------------------ scans
def scan(em, op, operands, region):
    """Each element combined with all before it along the axis; behind it, of a scan in reverse."""
    combine = Combination(em, op, region)
    outer, count, inner = around(op.operands[0].type.shape, op.attributes["axis"])
    reverse = bool(op.attributes.get("reverse"))
    if count == 1:
        return [part.as_(value.type) for part, value in zip(operands, op.results)]
    results = [em.allocate(value.type) for value in op.results]
    lanes = min(combine.lanes, outer * count * inner)
    if inner >= combine.lanes:
        scan_columns(combine, operands, results, outer, count, inner, reverse)
    elif count * inner > lanes:
        scan_rows(combine, operands, results, outer, count * inner, inner, reverse)
    else:
        with em.loop(0, outer * count * inner, lanes) as i:
            values = scanned(combine, combine.load(operands, i, lanes), lanes, count * inner, inner, reverse)
            combine.store(results, i, values, lanes)
    return results


def scan_columns(combine, parts, results, outer, count, inner, reverse):
    """Vectors along inner, one after the other along the axis."""
    em, lanes, each = combine.em, combine.lanes, len(parts)
    side = min(combine.chains, inner // lanes)
    with em.loop(0, outer) as o, em.loop(0, inner, side * lanes) as j:
        base = place(em, (o, count * inner), (j, 1), (count - 1 if reverse else 0, inner))

        def at(i, n):
            return place(em, (base, 1), (i, -inner if reverse else inner), (n, lanes))

        def step(i, values):
            out = []
            for n in range(side):
                index = at(i, n)
                out += combine(values[n * each:(n + 1) * each], combine.load(parts, index, lanes), lanes)
                combine.store(results, index, out[-each:], lanes)
            return out

        values = []
        for n in range(side):
            values += combine.load(parts, at("0", n), lanes)
            combine.store(results, at("0", n), values[-each:], lanes)
        combine.carried(1, count, values, lanes, step)


def scan_rows(combine, parts, results, outer, size, inner, reverse):
    """Rows of several vectors: each vector is scanned, and combined with the last elements of the one before."""
    em, lanes = combine.em, combine.lanes
    last = [i % inner + (0 if reverse else lanes - inner) for i in range(lanes)]
    with em.loop(0, outer) as o:
        base = place(em, (o, size), (size - lanes if reverse else 0, 1))

        def step(i, before):
            index = place(em, (base, 1), (i, -lanes if reverse else lanes))
            values = scanned(combine, combine.load(parts, index, lanes), lanes, lanes, inner, reverse)
            if before:
                values = combine(combine.picked(before, lanes, last), values, lanes)
            combine.store(results, index, values, lanes)
            return values

        combine.carried(1, size // lanes, step("0", []), lanes, step)


def scanned(combine, values, lanes, width, inner, reverse):
    """The scan of a vector that has rows of a width, whose neighbours along the axis are `inner` lanes from each other."""
    shift = inner
    while shift < width:
        has = [i % width + shift < width if reverse else i % width >= shift for i in range(lanes)]
        before = combine.picked(values, lanes, [i + (shift if reverse else -shift) if has[i] else i for i in range(lanes)])
        combined = combine(before, values, lanes)
        values = combine.picked(combined, lanes, [i if has[i] else lanes + i for i in range(lanes)], values)
        shift *= 2
    return values


RULES = {"tt.reduce": reduce, "tt.scan": scan}
