"""Loads and stores at a point: wide where the lanes' addresses follow each other and no lane is masked, which most are."""
from __future__ import annotations

from . import conversions, elementwise
from .constants import dense
from .emit import llvm_type, storage, storage_bytes, suffix
from .points import Point, plus, times
from .ttir import type_of

LESS = {"slt": 0, "sle": 1}                  # unsigned numbers that follow each other may begin below 0, where they are large
TURNED = {"sgt": "slt", "sge": "sle"}


# masks
class Mask:
    """Which lanes are wanted: those for which all hold of `count` (an i64: the first so many), `one` (an i1 for all lanes), `vector`."""

    def __init__(self, count=None, one=None, vector=None):
        self.count, self.one, self.vector = count, one, vector

    @property
    def everything(self):
        return self.count is None and self.one is None and self.vector is None

    @property
    def uniform(self):
        """Whether all lanes have the same answer."""
        return self.count is None and self.vector is None

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
    """All of them."""
    result, *more = dict.fromkeys(parts)
    for part in more:
        result = em.value("and", "i1", lanes, result, part)
    return result


def mask_of(at, value, point, vectors=True):
    """The mask that a tensor of i1 is at a point; without `vectors` None where it would be one."""
    em = at.em
    if value is None:
        return Mask()
    if point.lanes == 1:
        return Mask(one=at.at(value, point)[0])
    op = value.op
    if op is not None and value not in at.held:
        if op.name in ("tt.broadcast", "tt.expand_dims"):
            moved = at.view(op, point)
            return Mask(one=at.at(value, point)[0]) if moved.lanes == 1 else mask_of(at, op.operands[0], moved, vectors)
        if op.name == "arith.andi":
            a, b = (mask_of(at, operand, point, vectors) for operand in op.operands)
            if not a or not b:
                return None
            count = a.count or b.count
            if a.count and b.count:
                count = em.intrinsic("smin", "i64", a.count, b.count)
            return Mask(count, *(both(em, [x, y], n) if x and y else x or y
                                 for x, y, n in ((a.one, b.one, 1), (a.vector, b.vector, point.lanes))))
        if op.name == "arith.cmpi":
            found = prefix(at, op, point)
            if found:
                return found
        if op.name == "arith.constant" and isinstance(dense(op), str):
            return Mask(one=dense(op)) if dense(op) != "true" else Mask()
    if not vectors:
        return None
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
    if not a or not b or a[1:] != (1, ()) or b[1:] != (0, ()):
        return None
    more = LESS[predicate]
    ends = [r if kind == "i64" or not r.startswith("%") else em.set(f"sext {kind} {r} to i64")
            for r, kind in ((b[0], left.type.element), (a[0], left.type.element))]
    count = em.set(f"sub i64 {ends[0]}, {ends[1]}")
    return Mask(count=em.set(f"add i64 {count}, {more}") if more else count)


# functions for the lanes of a partial or scattered access, which are rare and long
def helper(em, name, kind, element, lanes):
    """A call of llvm.masked.load, store, gather or scatter, in a function of its own. The last two look whether the addresses follow each
    other, as those beside an edge do: lanes one by one take several times as long."""
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
    definitions = {inner: f"declare {returns} {inner}({arguments})", symbol: text}
    if pointers != "ptr" and align >= 4:
        (near, more), *_ = helper(em, "load" if name == "gather" else "store", kind, element, lanes)
        definitions |= more
        result = ("  %n = call", f"  ret {many} %n") if name == "gather" else ("  call", "  ret void")
        definitions[symbol] = f"""define internal {head} noinline {{
  %first = extractelement {address} %a, i64 0
  %start = insertelement {address} poison, i64 %first, i64 0
  %all = shufflevector {address} %start, {address} poison, <{lanes} x i32> zeroinitializer
  %expected = add {address} %all, {em.iota("i64", lanes, align)}
  %equal = icmp eq {address} %a, %expected
  %bits = bitcast {masks} %equal to i{lanes}
  %follow = icmp eq i{lanes} %bits, -1
  br i1 %follow, label %near, label %far
near:
{result[0]} {returns} {near}(i64 %first, {masks} %m, {many} %v)
{result[1]}
far:
  %p = inttoptr {address} %a to {pointers}
{body}
}}"""
    return (symbol, definitions), returns, address, masks, many


def call_helper(em, name, element, lanes, address, mask, values):
    function, returns, *kinds = helper(em, name, None, element, lanes)
    return em.call(function, returns, *zip(kinds, (address, mask, values)))


# addresses
class Place:
    """Where the lanes of an access are: from `first` on (an i64), one after the other, or all at the `same`, if the `conditions` hold; else
    `vector()` has the addresses."""

    def __init__(self, at, pointer, point, size):
        self.at, self.pointer, self.point, self.size = at, pointer, point, size
        found = at.affine(pointer, point)
        self.known, self.same, self.conditions = None, False, []
        if found and found[1] in (0, 1) and not (found[1] == 0 and found[2]):
            self.first, self.same, self.conditions = found[0], found[1] == 0, list(found[2])
            return
        register, lanes = at.at(pointer, point)
        if lanes == 1:
            self.first, self.same = register, True
        else:
            self.known = register
            self.first = at.em.lane(register, "ptr", lanes, 0)
            self.conditions = [self.follow(at.em, lanes)]

    def vector(self):
        """The addresses of all lanes."""
        em, lanes = self.at.em, self.point.lanes
        if self.known is None and self.same:
            return em.splat(self.first, "i64", lanes)
        if self.known is None:
            return self.at.spread(self.pointer, Point(self.point.indices, self.point.axis, lanes, dict(self.point.known)))
        return self.known

    def follow(self, em, lanes):
        """An i1: whether the addresses follow each other."""
        expected = em.value("add", "i64", lanes, em.splat(self.first, "i64", lanes), em.iota("i64", lanes, self.size))
        equal = em.value("icmp eq", "i64", lanes, self.known, expected)
        bits = em.set(f"bitcast {llvm_type('i1', lanes)} {equal} to i{lanes}")
        return em.set(f"icmp eq i{lanes} {bits}, -1")


def sure(at, ops, row):
    """({load or store: (address of the row's first element, stride)}, condition under which no lane of a row is masked and all of its
    addresses follow each other, or are the same); None where that cannot be told at the row's beginning."""
    em, found, conditions = at.em, {}, []
    if not ops:
        return None
    for op in ops:
        mask = op.operands[1 + (op.name == "tt.store"):][:1]
        wanted = mask_of(at, mask[0] if mask else None, row, vectors=False)
        place = at.affine(op.operands[0], row) if wanted else None
        if not place or place[1] not in (0, 1) or (place[1] == 0 and (place[2] or op.name == "tt.store")):
            return None
        found[op] = place[:2]
        conditions += [*place[2], *([] if wanted.everything else [wanted.full(em, row.lanes)])]
    return found, both(em, conditions) if conditions else "true"


def straight(at, op, point, size):
    """The address of a load or store of which all is sure, and of how many lanes it is."""
    first, stride = point.sure[op]
    if not stride:
        return first, 1
    return plus(at.em, first, times(at.em, point.indices[point.axis], size)), point.lanes


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
    if point.sure and op in point.sure:
        address, lanes = straight(at, op, point, size)
        return from_memory(em, wide_load(em, op, address, llvm_type(kept, lanes), size), element, lanes), lanes
    wanted, place = mask_of(at, mask, point), Place(at, pointer, point, size)
    spare, spares = at.at(other, point) if other is not None else (em.number(0, element), 1)
    alone = place.same and wanted.uniform and spares == 1               # all lanes get the same
    lanes = 1 if alone else point.lanes
    kind, spare = llvm_type(kept, lanes), in_memory(em, em.splat(spare, element, lanes) if spares < lanes else spare, element, lanes)
    conditions = place.conditions + ([] if wanted.everything else [wanted.full(em, lanes)])
    if place.same and lanes > 1:
        conditions = ["false"]                                          # an address for several lanes: as if it were several
    if not conditions:
        return from_memory(em, wide_load(em, op, place.first, kind, size), element, lanes), lanes
    yes, no, end = em.label(), em.label(), em.label()
    em.branch(both(em, conditions), yes, no)
    em.start(yes)
    found, left = wide_load(em, op, place.first, kind, size), em.block
    em.jump(end)
    em.start(no)
    if place.same or place.conditions:
        partial = spare if lanes == 1 else call_helper(em, "gather", element, lanes, place.vector(), wanted.all_lanes(em, lanes), spare)
    else:
        partial = spare if wanted.uniform else call_helper(em, "load", element, lanes, place.first, wanted.all_lanes(em, lanes), spare)
    right = em.block
    em.go_on(end)
    return from_memory(em, em.set(f"phi {kind} [ {found}, %{left} ], [ {partial}, %{right} ]"), element, lanes), lanes


def wide_load(em, op, address, kind, size):
    """A loop may wait for what another thread stores: where the kernel says so, every turn loads."""
    word = "load volatile" if "isVolatile = true" in op.text else "load"
    return em.set(f"{word} {kind}, ptr {em.set(f'inttoptr i64 {address} to ptr')}, align {size}")


def wide_store(em, address, kind, size, register):
    em.line(f"store {kind} {register}, ptr {em.set(f'inttoptr i64 {address} to ptr')}, align {size}")


def store(at, op, point):
    """A tt.store."""
    em, (pointer, value, *mask) = at.em, op.operands
    element, lanes = value.type.element, point.lanes
    size, kind = storage_bytes(element), llvm_type(storage(element), lanes)
    if point.sure and op in point.sure:
        register = in_memory(em, at.spread(value, point), element, lanes)
        return wide_store(em, straight(at, op, point, size)[0], kind, size, register)
    wanted, place = mask_of(at, mask[0] if mask else None, point), Place(at, pointer, point, size)
    register = in_memory(em, at.spread(value, point), element, lanes)
    conditions = place.conditions + ([] if wanted.everything else [wanted.full(em, lanes)])
    if place.same and lanes > 1:
        conditions = ["false"]

    if not conditions:
        return wide_store(em, place.first, kind, size, register)
    yes, no, end = em.label(), em.label(), em.label()
    em.branch(both(em, conditions), yes, no)
    em.start(yes)
    wide_store(em, place.first, kind, size, register)
    em.jump(end)
    em.start(no)
    if lanes > 1 and (place.same or place.conditions):
        call_helper(em, "scatter", element, lanes, place.vector(), wanted.all_lanes(em, lanes), register)
    elif lanes > 1 and not wanted.uniform:
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
    if how not in KINDS or (how == "fadd" and element not in ("f32", "f64", "f16", "bf16")):
        elementwise.refuse(op, f"the atomic {how} of {element}")
    wanted = others[1] if len(others) > 1 else "true"
    yes, end, before = em.label(), em.label(), em.block
    em.branch(wanted, yes, end)
    em.start(yes)
    address = em.set(f"inttoptr i64 {pointer} to ptr")
    if element == "bf16" and how == "fadd":
        old = add_bfloat16(em, address, others[0])
    else:
        old = em.set(f"atomicrmw {KINDS[how]} ptr {address}, {kind} {others[0]} seq_cst")
    left = em.block
    em.go_on(end)
    nothing = em.number(0, element) if element[0] == "i" else em.number(0.0, element)
    return em.set(f"phi {kind} [ {old}, %{left} ], [ {nothing}, %{before} ]")


def add_bfloat16(em, address, value):
    """A sum in float32, made again until nobody else has written in between."""
    first, before, again, end = em.set(f"load atomic i16, ptr {address} monotonic, align 2"), em.block, em.label(), em.label()
    em.go_on(again)
    old, place = em.new(), len(em.lines)
    em.lines.append("")
    total = em.value("fadd", "f32", 1, *(conversions.widen(em, register, "bf16", 1) for register in (old, value)))
    pair = em.set(f"cmpxchg ptr {address}, i16 {old}, i16 {conversions.narrow(em, total, 'bf16', 1)} seq_cst seq_cst")
    there = em.set(f"extractvalue {{ i16, i1 }} {pair}, 0")
    em.lines[place] = f"  {old} = phi i16 [ {first}, %{before} ], [ {there}, %{em.block} ]"
    em.branch(em.set(f"extractvalue {{ i16, i1 }} {pair}, 1"), end, again)
    em.start(end)
    return old


def compare_and_swap(em, address, values, element, kind):
    integer = f"i{8 * storage_bytes(element)}"
    cast = [em.set(f"bitcast {kind} {v} to {integer}") if kind != integer else v for v in values]
    pair = em.set(f"cmpxchg ptr {address}, {integer} {cast[0]}, {integer} {cast[1]} seq_cst seq_cst")
    old = em.set(f"extractvalue {{ {integer}, i1 }} {pair}, 0")
    return em.set(f"bitcast {integer} {old} to {kind}") if kind != integer else old
