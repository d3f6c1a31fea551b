"""Elements of tensors at a place of a loop nest: what fuses elementwise operators into one loop.

A `Point` is one place in the loops over a tensor: an index for each dim (an i64 register, or a number), of which the one of dim `axis` is
the first of `lanes` neighbours. `Evaluator.at(value, point)` gives a value's elements there, as a register, and of how many lanes: 1 where
all lanes have the same element. Values that are not in memory are computed from their operands, at most once for each point.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from . import elementwise
from .constants import dense
from .emit import Buffer, Untranslatable, llvm_type, storage_bytes
from .ttir import type_of


@dataclass
class Point:
    indices: tuple
    axis: int | None
    lanes: int
    known: dict = field(default_factory=dict)
    sure: dict | None = None                # load or store -> (address of the row's first element, stride): no lane is masked

    def moved(self, indices, axis):
        return Point(tuple(indices), axis, self.lanes if axis is not None else 1, self.known)


def times(em, a, b):
    """The product of two i64s, registers or numbers."""
    a, b = sorted((str(a), str(b)), key=lambda x: x.startswith("%"), reverse=True)
    if not a.startswith("%"):
        return str(int(a) * int(b))
    if b in ("0", "1"):
        return "0" if b == "0" else a
    return em.set(f"mul nsw i64 {a}, {b}")


def plus(em, a, b):
    """The sum of two i64s."""
    a, b = str(a), str(b)
    if not a.startswith("%") and not b.startswith("%"):
        return str(int(a) + int(b))
    if "0" in (a, b):
        return b if a == "0" else a
    return em.set(f"add nsw i64 {a}, {b}")


def strides_of(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def strides_in(buffer, shape):
    """How far the neighbours along each dim are from each other."""
    if buffer.order is None:
        return strides_of(shape)
    strides = strides_of([shape[d] for d in buffer.order])
    return [strides[buffer.order.index(d)] for d in range(len(shape))]


def flat(em, strides, indices):
    """The number of an element."""
    total = "0"
    for index, stride in zip(indices, strides):
        total = plus(em, total, times(em, index, stride))
    return total


VIEWS = ("tt.expand_dims", "tt.broadcast")


class Evaluator:
    """`held` has what is known of each value: a register (scalars), a Buffer, or nothing where it is computed when it is asked for."""

    def __init__(self, em):
        self.em, self.held = em, {}

    def at(self, value, point):
        """(register, lanes) of a value at a point."""
        if not value.type.shape:
            return self.scalar(value), 1
        key = value, point.indices, point.lanes
        if key not in point.known:
            point.known[key] = self._at(value, point)
        return point.known[key]

    def spread(self, value, point):
        """As `at`, with all the point's lanes."""
        register, lanes = self.at(value, point)
        return self.em.splat(register, value.type.element, point.lanes) if lanes == 1 else register

    def scalar(self, value):
        found = self.held.get(value)
        if found is None and value.op is not None and value.op.name == "arith.constant":
            found = self.held[value] = dense(value.op)
        if not isinstance(found, str):
            raise Untranslatable(f"{value.name}: asked for before it is there")
        return found

    def _at(self, value, point):
        held, op = self.held.get(value), value.op
        if isinstance(held, Buffer):
            return self.from_buffer(held, value.type.shape, point)
        if held is not None:
            return held.at(self, point)
        if op is None:
            raise Untranslatable(f"{value.name}: asked for before it is there")
        special = getattr(self, op.name.replace(".", "_"), None)
        if special:
            return special(op, point)
        found = elementwise.find(op)
        if found is None:
            elementwise.refuse(op)
        run = self.affine(value, point) if op.name in WRAPPING and point.lanes > 1 else None
        parts = [self.at(operand, point) for operand in op.operands]
        lanes = max(n for _, n in parts) if parts else 1
        if run and run[2] and lanes > 1:
            return self.divided(op, run, [self.em.splat(r, o.type.element, lanes) if n < lanes else r
                                          for (r, n), o in zip(parts, op.operands)], lanes), lanes
        registers = [self.em.splat(r, o.type.element, lanes) if n < lanes else r for (r, n), o in zip(parts, op.operands)]
        return found(self.em, op, registers, lanes), lanes

    def from_buffer(self, buffer, shape, point):
        em, strides = self.em, strides_in(buffer, shape)
        start = flat(em, strides, point.indices)
        if point.lanes == 1 or point.axis is None:
            return em.load(buffer, start, 1), 1
        stride = strides[point.axis]
        if stride == 1:
            return em.load(buffer, start, point.lanes), point.lanes
        kind, one = llvm_type(buffer.type.element, point.lanes), llvm_type(buffer.type.element)
        register = "poison"
        for i in range(point.lanes):
            element = em.load(buffer, plus(em, start, i * stride), 1)
            register = em.set(f"insertelement {kind} {register}, {one} {element}, i64 {i}")
        return register, point.lanes

    # operators that place elements
    def arith_constant(self, op, point):
        found = dense(op)
        if isinstance(found, str):
            return found, 1
        buffer = self.em.allocate(op.results[0].type)
        for i, element in enumerate(found):
            self.em.store(buffer, i, element, 1)
        return self.from_buffer(buffer, op.results[0].type.shape, point)

    def ub_poison(self, op, point):
        return self.em.number(0, op.results[0].type.element), 1

    def tt_make_range(self, op, point):
        em, element = self.em, op.results[0].type.element
        first = plus(em, point.indices[0], op.attributes["start"])
        first = em.set(f"trunc i64 {first} to {llvm_type(element)}") if first.startswith("%") else first
        if point.axis is None or point.lanes == 1:
            return first, 1
        return em.value("add", element, point.lanes, em.splat(first, element, point.lanes), em.iota(element, point.lanes)), point.lanes

    def tt_splat(self, op, point):
        return self.scalar(op.operands[0]), 1

    def view(self, op, point):
        """The point of the operand of a view."""
        source, axis = op.operands[0], point.axis
        if op.name == "tt.expand_dims":
            new = op.attributes["axis"]
            indices = [i for d, i in enumerate(point.indices) if d != new]
            return point.moved(indices, None if axis in (None, new) else axis - (axis > new))
        indices = ["0" if size == 1 else i for size, i in zip(source.type.shape, point.indices)]
        return point.moved(indices, None if axis is None or source.type.shape[axis] == 1 else axis)

    def tt_expand_dims(self, op, point):
        return self.at(op.operands[0], self.view(op, point))

    tt_broadcast = tt_expand_dims

    # what is known of a value along the lanes
    def affine(self, value, point):
        """(first, stride, conditions): lane i has first + i * stride (of pointers: in elements), if all the conditions, i1s, hold. None
        where nothing is known."""
        if point.lanes == 1 or point.axis is None:
            return self.at(value, point)[0], 0, ()
        key = "affine", value, point.indices, point.lanes
        if key not in point.known:
            point.known[key] = self._affine(value, point)
        return point.known[key]

    def _affine(self, value, point):
        op, held = value.op, self.held.get(value)
        if isinstance(held, Buffer):
            return self.run_of(value, held, point)
        if held is not None:
            return held.affine(self, point)
        if op is None:
            return None
        if op.name in VIEWS:
            return self.affine(op.operands[0], self.view(op, point))
        if op.name in ("tt.splat", "arith.constant"):
            register, lanes = self.at(value, point)
            return (register, 0, ()) if lanes == 1 else None
        if op.name == "tt.make_range":
            first = Point(point.indices, None, 1, point.known)
            return self.tt_make_range(op, first)[0], 1, ()
        return self._affine_of(op, point) if op.name in STRIDES else None

    def along(self, value, axis):
        """The stride of `affine` along a dim, by the operators alone; None where it is not known."""
        op, held = value.op, self.held.get(value)
        if held is not None and value.type.shape:
            if not isinstance(held, Buffer):
                return self.along(held.initial, axis)
            if op is None or op.name not in WRAPPING:                       # see `run_of`
                return None
        if axis is None or value.type.shape[axis] == 1:
            return 0
        if op is None:
            return None
        if op.name == "tt.broadcast":
            return self.along(op.operands[0], axis)
        if op.name == "tt.expand_dims":
            return self.along(op.operands[0], axis - (axis > op.attributes["axis"]))
        if op.name in ("tt.splat", "arith.constant", "tt.make_range"):
            return int(op.name == "tt.make_range")
        if op.name not in STRIDES:
            return None
        parts = [(self.fixed(operand), self.along(operand, axis)) for operand in op.operands]
        if op.name in (*WRAPPING, "tt.mulhiui") and [stride for _, stride in parts] == [1, 0]:
            return int(op.name == "arith.remsi")                            # see `wrapped`, `same_half`
        return None if any(stride is None for _, stride in parts) else STRIDES[op.name](*parts)

    @staticmethod
    def fixed(value):
        """A constant's number, else a register's name."""
        while value.op is not None and value.op.name in ("tt.splat", *VIEWS):
            value = value.op.operands[0]
        found = dense(value.op) if value.op is not None and value.op.name == "arith.constant" else None
        return found if isinstance(found, str) else "%"

    def direction(self, pointer):
        """The dim along which addresses follow each other, the last where none is known to be."""
        shape = pointer.type.shape
        axes = [d for d, n in enumerate(shape) if n > 1]
        for axis in reversed(axes):
            if self.along(pointer, axis) == 1:
                return axis
        return axes[-1] if axes else None

    def _affine_of(self, op, point):
        parts = [self.affine(operand, point) for operand in op.operands]
        if None in parts:
            return None
        narrow = op.name == "arith.extui" or op.name == "arith.trunci" and op.results[0].type.bits < 32         # may wrap within the lanes
        stride, conditions = (equal if narrow else STRIDES[op.name])(*(part[:2] for part in parts)), [c for part in parts for c in part[2]]
        if stride is None:
            if op.name in WRAPPING and parts[0][1] == 1 and parts[1][1] == 0 and op.name.endswith("si"):
                return self.wrapped(op, parts, conditions, point)
            if op.name == "tt.mulhiui" and parts[0][1] == 1 and parts[1][1] == 0:
                return self.same_half(op, parts, conditions, point)
            return None
        if op.name == "tt.bitcast" and stride and pointee_size(op.operands[0].type) != pointee_size(op.results[0].type):
            return None
        first = elementwise.find(op)(self.em, op, [part[0] for part in parts], 1)
        return first, stride, tuple(conditions)

    def wrapped(self, op, parts, conditions, point):
        """Quotients and remainders of numbers that follow each other, none below 0, where none but the first may be a multiple of the
        divisor. Below 0 all remainders but that of a multiple are negative."""
        em, element = self.em, op.results[0].type.element
        (first, _, _), (divisor, _, _) = parts
        quotient, remainder = (elementwise.division(em, op, [first, divisor], 1, name) for name in ("divsi", "remsi"))
        last = em.value("add", element, 1, remainder, str(point.lanes - 1))
        conditions.append(em.value("icmp slt", element, 1, last, divisor))
        conditions.append(em.value("icmp sge", element, 1, first, "0"))
        return (quotient, 0, tuple(conditions)) if op.name == "arith.divsi" else (remainder, 1, tuple(conditions))

    def same_half(self, op, parts, conditions, point):
        """High halves of products of a factor and numbers that follow each other, none of which wraps: quotients, as kernels have them of
        a divisor's reciprocal. They are the same if the first and the last are."""
        em, element = self.em, op.results[0].type.element
        (first, _, _), (factor, _, _) = parts
        last = em.value("add", element, 1, first, str(point.lanes - 1))
        halves = [elementwise.find(op)(em, op, [number, factor], 1) for number in (first, last)]
        conditions.append(em.value("icmp ule", element, 1, first, last))
        conditions.append(em.value("icmp eq", element, 1, *halves))
        return halves[0], 0, tuple(conditions)

    def divided(self, op, run, registers, lanes):
        """Quotients or remainders of which `wrapped` knows the first: it tells the others, or all are divided."""
        em, element, (first, stride, conditions) = self.em, op.results[0].type.element, run
        all_hold = conditions[0]
        for condition in conditions[1:]:
            all_hold = em.value("and", "i1", 1, all_hold, condition)
        yes, no, end = em.label(), em.label(), em.label()
        em.branch(all_hold, yes, no)
        em.start(yes)
        known = em.splat(first, element, lanes)
        known = em.value("add", element, lanes, known, em.iota(element, lanes)) if stride else known
        em.jump(end)
        em.start(no)
        found, left = elementwise.find(op)(em, op, registers, lanes), em.block
        em.go_on(end)
        return em.set(f"phi {llvm_type(element, lanes)} [ {known}, %{yes} ], [ {found}, %{left} ]")

    def run_of(self, value, buffer, point):
        """Remainders of numbers that follow each other do so themselves if the last is as far from the first as it would be then;
        quotients are the same if the first and the last are. What is made of the same numbers is the same."""
        op = value.op
        if op is None or op.name not in WRAPPING:
            return None
        try:
            parts = [self.affine(operand, point) for operand in op.operands]
        except Untranslatable:                                          # what it was made of has been let go
            return None
        if None in parts or parts[0][1] not in (0, 1) or parts[1][1] != 0:
            return None
        em, element, stride = self.em, value.type.element, int(op.name == "arith.remsi") and parts[0][1]
        strides = strides_in(buffer, value.type.shape)
        start, step = flat(em, strides, point.indices), strides[point.axis]
        first, conditions = em.load(buffer, start, 1), [c for part in parts for c in part[2]]
        if parts[0][1]:
            last = em.load(buffer, plus(em, start, (point.lanes - 1) * step), 1)
            expected = em.value("add", element, 1, first, str(point.lanes - 1)) if stride else first
            conditions.append(em.value("icmp eq", element, 1, last, expected))
        return first, stride, tuple(conditions)


def pointee_size(kind):
    return storage_bytes(type_of(kind.pointee).element) if kind.pointee else 0


def product_stride(a, b):
    (first_a, stride_a), (first_b, stride_b) = a, b
    if not stride_a and not stride_b:
        return 0
    if stride_a and stride_b:
        return None
    factor, stride = (first_b, stride_a) if stride_a else (first_a, stride_b)
    return None if factor.startswith("%") else int(factor) * stride


def equal(*parts):
    """Where no lane differs, any operator keeps it so."""
    return None if any(stride for _, stride in parts) else 0


WRAPPING = ("arith.divsi", "arith.remsi")
STRIDES = {
    "arith.addi": lambda a, b: a[1] + b[1],
    "arith.subi": lambda a, b: a[1] - b[1],
    "arith.muli": product_stride,
    "tt.addptr": lambda a, b: a[1] + b[1],
    "arith.extsi": lambda a: a[1],
    "arith.extui": lambda a: a[1],
    "arith.trunci": lambda a: a[1],
    "tt.bitcast": lambda a: a[1],
} | dict.fromkeys([*(f"arith.{name}" for name in "divsi remsi divui remui andi ori xori minsi maxsi minui maxui shli shrsi shrui".split()),
                   "tt.int_to_ptr", "tt.ptr_to_int", "tt.mulhiui"], equal)
