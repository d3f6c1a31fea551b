"""TTIR to LLVM IR: what runs a kernel's programs one after the other.

A program works on tensors; here each is a loop over its elements. Operators that are elementwise wait until somebody needs what they make
(waiting.py), and then become one loop, in which values that nobody else wants stay in registers (points.py). What is cheap to compute from
scalars and ranges, as offsets and masks are, is never stored. Reductions, products and the like (reductions.py, shapes.py, products.py)
read and write buffers: memory of the thread, whose parts are used again when nobody reads them any more.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from . import elementwise, products, reductions, shapes, ttir
from .constants import dense
from .control import ENDS, Control, blocks_of
from .emit import PROGRAMS, Buffer, Emitter, Untranslatable, llvm_type
from .layouts import Layouts, moved
from .loops import Loops
from .points import Evaluator
from .waiting import FREE, Waiting

STRUCTURAL = reductions.RULES | shapes.RULES | products.RULES
ORDER = ("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.debug_barrier", "nvvm.barrier0", "rocdl.barrier")


@dataclass(frozen=True)
class Lowered:
    """`llvm` defines @kernel(arguments, scratch, first, last), which runs the grid's programs from `first` to before `last`, x fastest.

    `arguments` has the element types of its slots of 8 bytes, behind which are the grid and the address of a cell for the number of a
    message that failed; `scratch` is in bytes, for each thread."""

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


class Lowering(Control, Waiting, Layouts):
    def __init__(self, function, fused):
        self.function, self.em = function, Emitter(fused)
        self.at = Evaluator(self.em)
        self.held = self.at.held
        self.groups, self.group_of = [], {}             # pending: groups in order; op -> group
        self.late, self.yielded, self.slots = [], [], {}        # values to let go; what a block ended with; arguments of blocks in memory
        self.targets = {}                               # result of a group -> buffer to be written, of a value that nobody reads any more
        self.passed = set()                             # values whose buffers loops go on with, and which have no other reader
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

    # operators; those that wait are waiting.py's
    def let_go(self):
        """Give back the buffers of values that nobody reads any more."""
        late, self.late = self.late, []
        for value in late:
            self.forget(value)

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

    # operators on whole tensors
    def structural(self, op):
        self.flush()
        operands = self.in_one_order(op) or [self.buffer(o) if o.type.shape else self.at.scalar(o) for o in op.operands]
        if op.name == "tt.dot" and self.own(op.operands[2], op):
            results = products.dot(self.em, op, operands, self.region, into=operands[2])
        else:
            results = STRUCTURAL[op.name](self.em, op, operands, self.region)
        self.held.update(zip(op.results, results))
        for result in op.results:
            self.settle(result)

    def in_one_order(self, op):
        """The operands of a reduction, if they lie in the same order; None if they do not, or row by row."""
        held = [self.held.get(o) for o in op.operands] if op.name == "tt.reduce" else []
        same = held and all(isinstance(h, Buffer) and h.order and h.order == held[0].order for h in held)
        return held if same else None

    def own(self, value, op):
        """Whether an operator may write over a value of its own type: nobody else, and no other turn of a loop, reads it."""
        if value.users != [op] or value.type != op.results[0].type or value not in self.here:
            return False
        return self.unshared(self.held[value])

    def buffer(self, value):
        """A value in memory."""
        held = self.held.get(value)
        if isinstance(held, Buffer):
            if held.order and self.rearrange(value, None) is not None:      # another block's: for this operator
                held, self.held[value] = self.held[value], held
                return held
            return self.held[value]
        target = self.em.allocate(value.type)
        self.fill(target, value)
        self.held[value] = target
        self.made.append(value)
        return target

    def fill(self, target, value):
        held = self.held.get(value)
        if isinstance(held, Buffer):
            moved(self.em, target, held)
            return
        with Loops(self.em, value.type.shape, axis=target.order[-1] if target.order else None) as point:
            self.em.store(target, self.index(target, point), self.at.spread(value, point), point.lanes)

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
