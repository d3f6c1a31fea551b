"""Loads and stores at a point: wide where the lanes' addresses follow each other and no lane is masked, which most are."""
from __future__ import annotations

from . import elementwise
from .emit import llvm_type, storage, storage_bytes, suffix
from .ttir import type_of

LESS = {"slt": ("sext", 0), "sle": ("sext", 1), "ult": ("zext", 0), "ule": ("zext", 1)}
TURNED = {"sgt": "slt", "sge": "sle", "ugt": "ult", "uge": "ule"}


# masks
class Mask:
    """Which lanes are wanted: those for which all hold of `count` (an i64: the first so many), `one` (an i1 for all lanes), `vector`."""

    def __init__(self, count=None, one=None, vector=None):
        self.count, self.one, self.vector = count, one, vector

    @property
    def everything(self):
        return self.count is None and self.one is None and self.vector is None

    def full(self, em, lanes):
        """An i1: whether every lane is wanted."""
        parts = [self.one] if self.one else []
        if self.count:
            parts.append(em.set(f"icmp sge i64 {self.count}, {lanes}"))
        if self.vector:
            bits = em.set(f"bitcast {llvm_type('i1', lanes)} {self.vector} to i{lanes}")
            parts.append(em.set(f"icmp eq i{lanes} {bits}, -1"))
        return both(em, parts)

    def all_lanes(self, em, lanes):
        """The mask as a vector."""
        parts = []
        if self.one:
            parts.append(em.splat(self.one, "i1", lanes))
        if self.count:
            parts.append(em.value("icmp slt", "i64", lanes, em.iota("i64", lanes), em.splat(self.count, "i64", lanes)))
        if self.vector:
            parts.append(self.vector)
        return both(em, parts, lanes) if parts else em.number(True, "i1", lanes)


def both(em, parts, lanes=1):
    result = parts[0]
    for part in parts[1:]:
        result = em.value("and", "i1", lanes, result, part)
    return result


def mask_of(at, value, point):
    """The mask that a tensor of i1 is at a point."""
    em = at.em
    if value is None:
        return Mask()
    if point.lanes == 1:
        return Mask(one=at.at(value, point)[0])
    op = value.op
    if op is not None and value not in at.held:
        if op.name in ("tt.broadcast", "tt.expand_dims"):
            moved = at.view(op, point)
            return Mask(one=at.at(value, point)[0]) if moved.lanes == 1 else mask_of(at, op.operands[0], moved)
        if op.name == "arith.andi":
            a, b = (mask_of(at, operand, point) for operand in op.operands)
            count = a.count or b.count
            if a.count and b.count:
                count = em.intrinsic("smin", "i64", a.count, b.count)
            return Mask(count, *(both(em, [x, y], n) if x and y else x or y
                                 for x, y, n in ((a.one, b.one, 1), (a.vector, b.vector, point.lanes))))
        if op.name == "arith.cmpi":
            found = prefix(at, op, point)
            if found:
                return found
    register, lanes = at.at(value, point)
    if lanes == 1:
        return Mask() if register == "true" else Mask(one=register)
    return Mask(vector=register)


def prefix(at, op, point):
    """`first + i < end`: the first lanes, if any."""
    em, predicate = at.em, op.text.split()[1].rstrip(",")
    left, right = op.operands
    if predicate in TURNED:
        predicate, left, right = TURNED[predicate], right, left
    if predicate not in LESS or left.type.element not in ("i32", "i64"):
        return None
    a, b = at.affine(left, point), at.affine(right, point)
    if not a or not b or a[1] != 1 or b[1] != 0:
        return None
    extend, more = LESS[predicate]
    ends = [r if kind == "i64" or not r.startswith("%") else em.set(f"{extend} {kind} {r} to i64")
            for r, kind in ((b[0], left.type.element), (a[0], left.type.element))]
    count = em.set(f"sub i64 {ends[0]}, {ends[1]}")
    return Mask(count=em.set(f"add i64 {count}, {more}") if more else count)


# functions for the lanes of a partial or scattered access, which are rare and long
def helper(em, name, kind, element, lanes):
    """A call of llvm.masked.load, store, gather or scatter, in a function of its own."""
    many, masks = llvm_type(storage(element), lanes), llvm_type("i1", lanes)
    pointers = "ptr" if name in ("load", "store") else f"<{lanes} x ptr>"
    tail = f"{suffix(many)}.{'p0' if pointers == 'ptr' else f'v{lanes}p0'}"
    inner, symbol = f"@llvm.masked.{name}.{tail}", f"@masked_{name}_{suffix(many)}"
    address = "i64" if pointers == "ptr" else llvm_type("i64", lanes)
    align = storage_bytes(element)
    if name in ("load", "gather"):
        returns, arguments = many, f"{pointers}, i32, {masks}, {many}"
        head = f"{many} {symbol}({address} %a, {masks} %m, {many} %v)"
        body = f"  %r = call {many} {inner}({pointers} %p, i32 {align}, {masks} %m, {many} %v)\n  ret {many} %r"
    else:
        returns, arguments = "void", f"{many}, {pointers}, i32, {masks}"
        head = f"void {symbol}({address} %a, {masks} %m, {many} %v)"
        body = f"  call void {inner}({many} %v, {pointers} %p, i32 {align}, {masks} %m)\n  ret void"
    text = f"define internal {head} noinline {{\n  %p = inttoptr {address} %a to {pointers}\n{body}\n}}"
    return (symbol, {inner: f"declare {returns} {inner}({arguments})", symbol: text}), returns, address, masks, many


def call_helper(em, name, element, lanes, address, mask, values):
    function, returns, *kinds = helper(em, name, None, element, lanes)
    return em.call(function, returns, *zip(kinds, (address, mask, values)))


# addresses
class Place:
    """Where the lanes of an access are: `first` (an i64) and, of several lanes that do not follow each other for sure, `vector`."""

    def __init__(self, at, pointer, point, size):
        found = at.affine(pointer, point)
        self.first = self.vector = None
        if found and found[1] in (0, 1):
            self.first, self.same = found[0], found[1] == 0
            return
        register, lanes = at.at(pointer, point)
        if lanes == 1:
            self.first, self.same = register, True
        else:
            self.vector, self.same, self.size = register, False, size
            self.first = at.em.lane(register, "ptr", lanes, 0)

    def addresses(self, em, lanes, size):
        if self.vector:
            return self.vector
        offsets = em.iota("i64", lanes, 0 if self.same else size)
        return em.value("add", "i64", lanes, em.splat(self.first, "i64", lanes), offsets)

    def follow(self, em, lanes):
        """An i1: whether the addresses follow each other; None where they do for sure."""
        if not self.vector:
            return None
        expected = em.value("add", "i64", lanes, em.splat(self.first, "i64", lanes), em.iota("i64", lanes, self.size))
        equal = em.value("icmp eq", "i64", lanes, self.vector, expected)
        return em.set(f"icmp eq i{lanes} {em.set(f'bitcast {llvm_type(chr(105) + chr(49), lanes)} {equal} to i{lanes}')}, -1")


def in_memory(em, register, element, lanes):
    """An i1 is a byte there."""
    if element != "i1":
        return register
    return em.set(f"zext {llvm_type('i1', lanes)} {register} to {llvm_type('i8', lanes)}")


def from_memory(em, register, element, lanes):
    if element != "i1":
        return register
    return em.value("icmp ne", "i8", lanes, register, em.number(0, "i8", lanes))


def load(at, op, point):
    """(register, lanes) of a tt.load."""
    em, element = at.em, op.results[0].type.element
    pointer, mask, other = (*op.operands, None, None)[:3]
    size, kept = storage_bytes(element), storage(element)
    wanted = mask_of(at, mask, point)
    place = Place(at, pointer, point, size)
    lanes = 1 if place.same and (wanted.everything or (wanted.one and not wanted.vector and not wanted.count)) else point.lanes
    if lanes > 1 and place.same and not place.vector:
        place.vector, place.size = place.addresses(em, lanes, size), size
    kind = llvm_type(kept, lanes)

    def otherwise():
        if other is None:
            return em.number(0, kept, lanes) if kept[0] == "i" or kept == "ptr" else em.number(0.0, kept, lanes)
        register, n = at.at(other, point)
        register = in_memory(em, register, element, n)
        if lanes == 1 and n > 1:
            raise AssertionError("a load of one address with several answers")
        return em.splat(register, kept, lanes) if n < lanes else register

    if lanes == 1 and other is not None and at.at(other, point)[1] > 1:
        lanes = point.lanes
        place.vector, place.size, kind = place.addresses(em, lanes, size), size, llvm_type(kept, lanes)

    def wide():
        address = em.set(f"inttoptr i64 {place.first} to ptr")
        return em.set(f"load {kind}, ptr {address}, align {size}")

    conditions = [c for c in ([] if wanted.everything else [wanted.full(em, lanes)]) + [place.follow(em, lanes)] if c]
    if not conditions:
        return from_memory(em, wide(), element, lanes), lanes
    spare = otherwise()
    yes, no, end = em.label(), em.label(), em.label()
    em.branch(both(em, conditions), yes, no)
    em.start(yes)
    found, left = wide(), em.block
    em.jump(end)
    em.start(no)
    if lanes == 1:
        partial = spare
    elif place.vector:
        partial = call_helper(em, "gather", element, lanes, place.vector, wanted.all_lanes(em, lanes), spare)
    elif wanted.one and not wanted.count and not wanted.vector:
        partial = spare
    else:
        partial = call_helper(em, "load", element, lanes, place.first, wanted.all_lanes(em, lanes), spare)
    right = em.block
    em.go_on(end)
    register = em.set(f"phi {kind} [ {found}, %{left} ], [ {partial}, %{right} ]")
    return from_memory(em, register, element, lanes), lanes


def store(at, op, point):
    """A tt.store."""
    em, (pointer, value, *mask) = at.em, op.operands
    element = value.type.element
    size, lanes = storage_bytes(element), point.lanes
    wanted = mask_of(at, mask[0] if mask else None, point)
    place = Place(at, pointer, point, size)
    if lanes > 1 and place.same and not place.vector:
        place.vector, place.size = place.addresses(em, lanes, size), size
    register = in_memory(em, at.spread(value, point), element, lanes)

    def wide():
        address = em.set(f"inttoptr i64 {place.first} to ptr")
        em.line(f"store {llvm_type(storage(element), lanes)} {register}, ptr {address}, align {size}")

    conditions = [c for c in ([] if wanted.everything else [wanted.full(em, lanes)]) + [place.follow(em, lanes)] if c]
    if not conditions:
        return wide()
    yes, no, end = em.label(), em.label(), em.label()
    em.branch(both(em, conditions), yes, no)
    em.start(yes)
    wide()
    em.jump(end)
    em.start(no)
    if lanes > 1:
        if place.vector:
            call_helper(em, "scatter", element, lanes, place.vector, wanted.all_lanes(em, lanes), register)
        elif wanted.count or wanted.vector:
            call_helper(em, "store", element, lanes, place.first, wanted.all_lanes(em, lanes), register)
    em.go_on(end)


# atomics, an element at a time
KINDS = {"and": "and", "or": "or", "xor": "xor", "add": "add", "fadd": "fadd", "max": "max", "min": "min", "umax": "umax", "umin": "umin",
         "exch": "xchg"}


def atomic(at, op, point):
    """The old value of one element of a tt.atomic_rmw or tt.atomic_cas, which a lane that is masked leaves alone."""
    em = at.em
    element = type_of(op.operands[0].type.pointee).element
    kind = llvm_type(element)
    pointer, *others = (at.at(o, point)[0] for o in op.operands)
    if op.name == "tt.atomic_cas":
        address = em.set(f"inttoptr i64 {pointer} to ptr")
        return compare_and_swap(em, address, others, element, kind)
    how = op.text.split()[1].rstrip(",")
    if how not in KINDS or (how == "fadd" and element not in ("f32", "f64", "f16")):
        elementwise.refuse(op, f"the atomic {how} of {element}")
    wanted = others[1] if len(others) > 1 else "true"
    yes, end, before = em.label(), em.label(), em.block
    em.branch(wanted, yes, end)
    em.start(yes)
    address = em.set(f"inttoptr i64 {pointer} to ptr")
    old = em.set(f"atomicrmw {KINDS[how]} ptr {address}, {kind} {others[0]} seq_cst")
    left = em.block
    em.go_on(end)
    nothing = em.number(0, element) if element[0] == "i" else em.number(0.0, element)
    return em.set(f"phi {kind} [ {old}, %{left} ], [ {nothing}, %{before} ]")


def compare_and_swap(em, address, values, element, kind):
    integer = f"i{8 * storage_bytes(element)}"
    cast = [em.set(f"bitcast {kind} {v} to {integer}") if kind != integer else v for v in values]
    pair = em.set(f"cmpxchg ptr {address}, {integer} {cast[0]}, {integer} {cast[1]} seq_cst seq_cst")
    old = em.set(f"extractvalue {{ {integer}, i1 }} {pair}, 0")
    return em.set(f"bitcast {integer} {old} to {kind}") if kind != integer else old
