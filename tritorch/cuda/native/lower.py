"""TTIR to LLVM IR: what runs a kernel's programs one after the other.

A program works on tensors; here each is a loop over its elements. Operators that are elementwise wait until somebody needs what they make
(waiting.py), and then become one loop, in which values that nobody else wants stay in registers (points.py). What is cheap to compute from
scalars and ranges, as offsets and masks are, is never stored. Reductions, products and the like (reductions.py, shapes.py, products.py)
read and write buffers: memory of the thread, whose parts are used again when nobody reads them any more.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from . import accesses, elementwise, products, reductions, shapes, ttir
from .control import ENDS, MOVES, Control, blocks_of
from .emit import PROGRAMS, Buffer, Emitter, Untranslatable, llvm_type
from .loops import Group, Loops
from .points import VIEWS, Evaluator, Point, dense, flat
from .ttir import Type

FREE = ("arith.constant", "tt.make_range", "tt.splat", "ub.poison")
MOST = 16                                       # operators in what is computed again wherever it is needed
DEAR = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
STRUCTURAL = reductions.RULES | shapes.RULES | products.RULES
ORDER = ("gpu.barrier", "ttg.local_barrier", "tt.debug_barrier", "nvvm.barrier0", "rocdl.barrier")


@dataclass(frozen=True)
class Lowered:
    """`llvm` defines @kernel(arguments, scratch, first, last); see `entry`."""

    llvm: str
    scratch: int
    arguments: list[str]
    messages: list[str] = field(default_factory=list)


def lower(text: str, fused: bool = True) -> Lowered:
    """The LLVM IR of the kernel in a module of TTIR, whose products and sums are rounded once if `fused`. Raises Untranslatable."""
    try:
        functions = ttir.parse(text)
    except (ttir.Unreadable, KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise Untranslatable(f"TTIR: {error}") from error
    if len(functions) != 1:
        raise Untranslatable(f"tt.call: a kernel with {len(functions) - 1} functions that are not inlined")
    return Lowering(functions[0], fused).run()


class Lowering(Control):
    def __init__(self, function, fused):
        self.function, self.em = function, Emitter(fused)
        self.at = Evaluator(self.em)
        self.held = self.at.held
        self.groups, self.group_of = [], {}             # pending: groups in order; op -> group
        self.late, self.yielded, self.slots = [], [], {}        # values to let go; what a block ended with; arguments of blocks in memory
        self.cost = {}                                  # of values that are free: operators to compute them
        self.here = set()                               # the values of the block that is being written
        self.roots = {a: a for a in function.arguments}         # of pointers that loops carry; None where a turn may give another
        self.messages, self.made, self.moved = [], [], {}       # values that got a buffer in this region alone; those that loops move
        self.blocks = blocks_of(function.blocks)        # operator -> the block that it is in

    def run(self):
        """A function for one program, called for each: LLVM looks at a loop anew whenever one inside it changes, and there are many."""
        em, arguments = self.em, self.function.arguments
        em.lines.append("entry:")
        for i, argument in enumerate(arguments):
            self.held[argument] = self.argument(i, argument.type)
        grid = [self.slot(len(arguments) + i) for i in range(3)]
        self.errors = self.slot(len(arguments) + 3)
        row = em.set(f"udiv i64 %program, {grid[0]}")
        where = [em.set(f"urem i64 %program, {grid[0]}"), em.set(f"urem i64 {row}, {grid[1]}"), em.set(f"udiv i64 {row}, {grid[1]}")]
        self.programs = [em.set(f"trunc i64 {w} to i32") for w in where]
        self.grid = [em.set(f"trunc i64 {g} to i32") for g in grid]
        self.end = em.label()
        self.body(self.function.blocks)
        em.start(self.end)
        em.line("ret void")
        text = PROGRAMS.replace("BODY", "\n".join(em.lines))
        defined = "\n".join(em.definitions.values())
        return Lowered(f"{defined}\n{text}", em.scratch, [a.type.element for a in arguments], self.messages)

    def slot(self, index, kind="i64"):
        address = self.em.set(f"getelementptr i64, ptr %arguments, i64 {index}")
        return self.em.set(f"load {kind}, ptr {address}, align 8")

    def argument(self, index, kind):
        if kind.element == "i1":
            return self.em.set(f"trunc i8 {self.slot(index, 'i8')} to i1")
        return self.slot(index, llvm_type(kind.element))

    # operators
    def let_go(self):
        """Give back the buffers of values that nobody reads any more."""
        late, self.late = self.late, []
        for value in late:
            held = self.unheld(value)
            if isinstance(held, Buffer):
                owner = held.owner or held
                if not any(isinstance(h, Buffer) and (h.owner or h) is owner for h in self.held.values()):
                    self.em.release(held)

    def op(self, op):
        name = op.name
        method = getattr(self, name.replace(".", "_"), None)
        if method:
            method(op)
        elif name in STRUCTURAL:
            self.structural(op)
        elif name in ORDER:
            self.flush()
        elif name == "llvm.intr.assume":
            pass
        elif op.results and op.results[0].type.shape:
            self.tensor(op)
        elif elementwise.find(op) or name in FREE:
            self.scalar(op)
        else:
            elementwise.refuse(op)

    def scalar(self, op):
        """An operator on scalars: at once."""
        if op.name == "arith.constant":
            self.held[op.results[0]] = dense(op)
            return
        if op.name == "ub.poison":
            self.held[op.results[0]] = self.em.number(0, op.results[0].type.element)
            return
        registers = [self.at.scalar(operand) for operand in op.operands]
        self.held[op.results[0]] = elementwise.find(op)(self.em, op, registers, 1)

    # operators that wait
    def tensor(self, op):
        result = op.results[0]
        if op.name in FREE:
            self.cost[result] = 1
        elif op.name in VIEWS:
            if op.operands[0] in self.cost:
                self.cost[result] = self.cost[op.operands[0]]
        elif elementwise.find(op):
            cost = sum(self.cost.get(o, 0 if not o.type.shape else MOST + 1) for o in op.operands) + (MOST if self.dear(op) else 1)
            if cost <= MOST and not result.type.is_float and not op.name.startswith(("tt.extern", "tt.elementwise")):
                self.cost[result] = cost
            else:
                self.wait(op, result.type.shape)
        else:
            elementwise.refuse(op)

    def dear(self, op):
        """Divisions, unless they are of numbers that follow each other: then the first lane's tells the others (Evaluator.wrapped). Where
        the turns of a loop inside would all divide they are dear nevertheless."""
        if op.name in DEAR and self.used_inside(op):
            return True
        axis = len(op.results[0].type.shape) - 1
        return op.name in DEAR and not (op.name.endswith("si") and self.at.along(op.operands[0], axis) in (0, 1)
                                        and self.at.along(op.operands[1], axis) == 0)

    def used_inside(self, op):
        """Whether a block inside of this one computes with what is made of an operator's result; what a loop begins with does not count."""
        waiting, seen = [op], {op}
        while waiting:
            for user in (user for result in waiting.pop().results for user in result.users if user not in seen):
                if self.blocks[user] is not self.blocks[op]:
                    return True
                seen.add(user)
                waiting += [] if user.regions else [user]
        return False

    def wait(self, op, shape, axis=None, after=-1):
        """Join the first loop that has what the operator needs, none before the number `after`."""
        for operand in op.operands:
            for source in self.sources(operand):
                group = self.group_of.get(source.op)
                if group is not None:
                    place = self.groups.index(group)
                    after = max(after, place if group.takes(shape, axis) and source is operand else place + 1)
        for group in self.groups[max(after, 0):]:
            if group.takes(shape, axis):
                break
        else:
            group = Group(shape, axis)
            self.groups.append(group)
        group.axis = axis if group.axis is None else group.axis
        group.ops.append(op)
        self.group_of[op] = group

    def sources(self, value):
        """The values behind views and free operators: what has to be there."""
        op = value.op
        if op is None or op in self.group_of or value in self.held:
            return [value]
        if op.name in VIEWS or value in self.cost:
            return [s for operand in op.operands for s in self.sources(operand)]
        return [value]

    def flush(self):
        """Write all loops that wait."""
        groups, self.groups = self.groups, []
        for group in groups:
            self.emit(group)
        self.group_of = {}
        self.let_go()

    def emit(self, group):
        kept, inside = {}, set(group.ops)
        order = sorted(range(len(group.shape)), key=lambda d: d == group.axis)      # of dims in the buffers that the loop writes
        for op in group.ops:
            for result in op.results:
                if any(user not in inside for user in result.users):
                    kept[result] = self.em.allocate(Type(tuple(group.shape[d] for d in order), result.type.element, result.type.pointee))
        loops = Loops(self.em, group.shape, axis=group.axis)
        with loops.rows() as row:
            accessed = [op for op in group.ops if op.name in ("tt.load", "tt.store")]
            sure = accesses.sure(self.at, accessed, row) if loops.length > loops.lanes else None
            if sure is None:
                self.along(loops, row, None, group, kept, order, self.wanted(loops, row, group, kept))
            else:
                yes, no, end = self.em.label(), self.em.label(), self.em.label()
                self.em.branch(sure[1], yes, no)
                for label, known in ((yes, sure[0]), (no, None)):
                    self.em.start(label)
                    self.along(loops, row, known, group, kept, order, None if known else self.wanted(loops, row, group, kept))
                    self.em.jump(end)
                self.em.start(end)
        for result, buffer in kept.items():
            self.held[result] = shapes.permuted(self.em, buffer, result.type, [order.index(d) for d in range(len(order))])
            if (self.held[result].owner or self.held[result]) is not buffer:
                self.em.release(buffer)

    def wanted(self, loops, row, group, kept):
        """How far along a row something is stored, an i64; None where that is not known, or more is kept."""
        if kept or loops.length == loops.lanes:
            return None
        masks = [accesses.mask_of(self.at, op.operands[2], row, vectors=False) if len(op.operands) > 2 else None
                 for op in group.ops if op.name == "tt.store"]
        if any(mask is None or mask.count is None for mask in masks):
            return None
        end = "0"
        for mask in masks:
            end = self.em.intrinsic("smax", "i64", end, mask.count)
        return self.em.intrinsic("smin", "i64", end, str(loops.length))

    def along(self, loops, row, sure, group, kept, order, end=None):
        """The loop along a row."""
        with loops.along(row, sure, end) as point:
            place = flat(self.em, [group.shape[d] for d in order], [point.indices[d] for d in order]) if kept else ""
            for op in group.ops:
                if op.name == "tt.store":
                    accesses.store(self.at, op, point)
                elif op.name == "tt.load":
                    point.known[op.results[0], point.indices, point.lanes] = accesses.load(self.at, op, point)
                else:                                       # now, for its operands are there: a long chain is no deep recursion
                    self.at.at(op.results[0], point)
                for result in op.results:
                    if result in kept:
                        self.em.store(kept[result], place, self.at.spread(result, point), point.lanes)

    def index(self, shape, point):
        return flat(self.em, shape, point.indices)

    # memory
    def tt_load(self, op):
        pointer = op.operands[0]
        if not pointer.type.shape:
            self.flush()
            self.held[op.results[0]] = accesses.load(self.at, op, Point((), None, 1))[0]
            return
        self.keep_order(op, pointer)
        self.wait(op, pointer.type.shape, self.at.direction(pointer))

    def tt_store(self, op):
        pointer = op.operands[0]
        if not pointer.type.shape:
            self.flush()
            accesses.store(self.at, op, Point((), None, 1))
            return
        self.keep_order(op, pointer)
        accessed = [self.groups.index(group) for other, group in self.group_of.items() if other.name in ("tt.load", "tt.store")]
        self.wait(op, pointer.type.shape, self.at.direction(pointer), max(accessed, default=-1))

    def keep_order(self, op, pointer):
        """Write the loops that wait if one of them may touch the same memory, other than loads before a load, or at the same addresses
        before a store. Of pointers that perhaps are the same only a load waits: before a store to other elements a GPU has a barrier."""
        root, writes = self.root(pointer), op.name == "tt.store"
        for other in self.group_of:
            if other.name not in ("tt.load", "tt.store") or (other.name == "tt.load" and not writes):
                continue
            theirs = other.operands[0]
            found = self.root(theirs)
            same = None in (root, found) or root is found or not (writes or {root, found} <= set(self.function.arguments))
            if same and not (writes and theirs is pointer):
                return self.flush()

    def root(self, value):
        """The scalar that a pointer comes from, None where that cannot be told; two tensors of a launch that overlap otherwise than whole
        are the same race on a GPU."""
        while value not in self.roots:
            op = value.op
            if op is None or op.name not in MOVES:
                return None if value.type.shape else value
            value = op.operands[0]
        return self.roots[value]

    def tt_atomic_rmw(self, op):
        self.flush()
        result = op.results[0]
        if not result.type.shape:
            self.held[result] = accesses.atomic(self.at, op, Point((), None, 1))
            return
        target = self.em.allocate(result.type)
        with Loops(self.em, result.type.shape, lanes=1) as point:
            self.em.store(target, self.index(result.type.shape, point), accesses.atomic(self.at, op, point), 1)
        self.held[result] = target

    tt_atomic_cas = tt_atomic_rmw

    # operators on whole tensors
    def structural(self, op):
        self.flush()
        operands = [self.buffer(o) if o.type.shape else self.at.scalar(o) for o in op.operands]
        if op.name == "tt.dot" and self.own(op.operands[2], op):
            results = products.dot(self.em, op, operands, self.region, into=operands[2])
        else:
            results = STRUCTURAL[op.name](self.em, op, operands, self.region)
        self.held.update(zip(op.results, results))

    def own(self, value, op):
        """Whether an operator may write over a value of its own type: nobody else, and no other turn of a loop, reads it."""
        if value.users != [op] or value.type != op.results[0].type or value not in self.here:
            return False
        owner = self.held[value].owner or self.held[value]
        return sum(isinstance(h, Buffer) and (h.owner or h) is owner for h in self.held.values()) == 1

    def buffer(self, value):
        """A value in memory."""
        held = self.held.get(value)
        if isinstance(held, Buffer):
            return held
        target = self.em.allocate(value.type)
        self.fill(target, value)
        self.held[value] = target
        self.made.append(value)
        return target

    def fill(self, target, value):
        held = self.held.get(value)
        if isinstance(held, Buffer):
            self.em.copy(target, held)
            return
        with Loops(self.em, value.type.shape) as point:
            self.em.store(target, self.index(value.type.shape, point), self.at.spread(value, point), point.lanes)

    def region(self, blocks, inputs, lanes):
        """The body of a combine function, for registers of several lanes."""
        block, = blocks
        known = dict(zip(block.arguments, inputs))

        def read(value):
            if value in known:
                return known[value]
            return self.em.splat(self.at.scalar(value), value.type.element, lanes)

        for op in block.ops:
            if op.name in ENDS:
                return [read(operand) for operand in op.operands]
            if op.name == "arith.constant":
                known[op.results[0]] = self.em.splat(dense(op), op.results[0].type.element, lanes)
                continue
            found = elementwise.find(op)
            if found is None:
                elementwise.refuse(op, "inside of a combine function")
            known[op.results[0]] = found(self.em, op, [read(o) for o in op.operands], lanes)
        raise Untranslatable("a combine function that returns nothing")

    # programs
    def tt_get_program_id(self, op):
        self.held[op.results[0]] = self.programs["xyz".index(op.text.split()[1])]

    def tt_get_num_programs(self, op):
        self.held[op.results[0]] = self.grid["xyz".index(op.text.split()[1])]

    def tt_return(self, op):
        self.flush()
        self.em.jump(self.end)

    def tt_unsplat(self, op):
        self.flush()
        self.held[op.results[0]] = self.em.load(self.buffer(op.operands[0]), "0", 1)

    def tt_assert(self, op):
        """The number of the message goes to the cell of errors."""
        self.flush()
        self.messages.append(f"{op.attributes.get('message') or message_of(op)} ({op.where})")
        with Loops(self.em, op.operands[0].type.shape, lanes=1) as point:
            failed = self.em.value("xor", "i1", 1, self.at.at(op.operands[0], point)[0], "true")
            with self.em.when(failed):
                cell = self.em.set(f"inttoptr i64 {self.errors} to ptr")
                self.em.line(f"store i64 {len(self.messages)}, ptr {cell}, align 8")


def message_of(op):
    return op.text.partition('"')[2].rpartition('"')[0]
