"""Control flow: loops, branches and blocks of TTIR as blocks of LLVM's.

What a loop carries from turn to turn is a phi where it is a scalar; a tensor has a buffer of the loop's own, into which the end of a turn
copies what the next one begins with.
"""
from __future__ import annotations

import contextlib

from .constants import dense
from .elementwise import convert_integer, pointee_bytes
from .emit import Buffer, llvm_type
from .layouts import moved
from .points import VIEWS

ENDS = ("scf.yield", "tt.return", "cf.br", "cf.cond_br", "scf.condition", "tt.reduce.return", "tt.scan.return")
MOVES = ("tt.addptr", "tt.splat", "tt.bitcast", *VIEWS)          # give pointers into the memory of their first operand's


class Control:
    """The part of lower.Lowering that knows blocks and regions."""

    # blocks
    def body(self, blocks):
        """The blocks of a function; of several each is a block of LLVM's, and what they are given goes through memory."""
        self.labels = {b.label: self.em.label() for b in blocks[1:]}
        self.arguments = {b.label: b.arguments for b in blocks}
        for block in blocks[1:]:
            for argument in block.arguments:
                self.held[argument] = self.slots[argument] = self.em.allocate(argument.type)
        for i, block in enumerate(blocks):
            if i:
                self.em.start(self.labels[block.label])
                for argument in block.arguments:
                    if not argument.type.shape:
                        self.held[argument] = self.em.load(self.slots[argument], "0", 1)
            with self.inside() if i else contextlib.nullcontext():
                self.ops(block)

    def ops(self, block):
        """Every operator of a block; gives the values whose last reader is what ends it."""
        last, self.yielded = last_uses(block), []
        outside, self.here = self.here, {*block.arguments, *(result for op in block.ops for result in op.results)}
        for op in block.ops:
            self.op(op)
            if op.name not in ENDS:
                self.late += last.pop(op, ())
                if not self.groups:
                    self.let_go()
        self.here = outside
        return [value for values in last.values() for value in values]

    @contextlib.contextmanager
    def inside(self):
        """A region, or a block: what it puts into memory is there for it alone, since it may not run."""
        before, self.made = self.made, []
        yield
        for value in self.made:
            self.forget(value)
        self.made = before

    def forget(self, value):
        """Give back the buffer of a value, unless another one is there too; what loops move is then again what it was before."""
        held = self.held.pop(value, None)
        if value in self.moved:
            self.held[value] = self.moved[value]
        if isinstance(held, Buffer):
            if not self.sharing(held):
                self.em.release(held)

    # control flow: what is carried is a phi, tensors are buffers
    def scf_for(self, op):
        self.flush()
        em, block = self.em, op.regions[0][0]
        counter, *carried = block.arguments
        low, high, step = (self.at.scalar(o) for o in op.operands[:3])
        kind = llvm_type(counter.type.element)
        ends = block.ops[-1].operands if block.ops and block.ops[-1].name == "scf.yield" else []
        steps = self.moving(carried, op.operands[3:], ends)
        initials = self.begin(op.operands[3:], carried, ends, op)
        head, body, end, before = em.label(), em.label(), em.label(), em.block
        em.jump(head)
        em.start(head)
        place = len(em.lines)
        i, following = em.new(), em.new()
        em.lines.append("")
        phis = self.phis(carried) + [(m.offset, llvm_type(m.element)) for m in steps.values()]
        compare = "ult" if op.attributes["unsigned"] else "slt"
        em.branch(em.set(f"icmp {compare} {kind} {i}, {high}"), body, end)
        em.start(body)
        self.held[counter] = i
        with self.inside():
            values = self.finish(self.ops(block), carried, steps) + [m.next(self.at) for m in steps.values()]
        em.line(f"{following} = add {kind} {i}, {step}")
        em.lines[place] = "\n".join([f"  {i} = phi {kind} [ {low}, %{before} ], [ {following}, %{em.block} ]",
                                     *self.written(phis, initials + ["0"] * len(steps), before, values, em.block)])
        em.again(head)
        em.start(end)
        for result, argument in zip(op.results, carried):
            self.held[result] = self.held.pop(argument)
            if argument in steps:
                self.moved[result] = self.held[result]
            if argument in self.cost:
                self.cost[result] = self.cost[argument]
            self.roots[result] = self.roots[argument]
            self.settle(result)

    def moving(self, carried, initials, ends):
        """Tensors that a loop moves by the same amount in all elements, as pointers often are: what they began with and a phi."""
        found = {}
        for argument, initial, value in zip(carried, initials, ends):
            step = uniform_step(value, argument)
            if step is not None:
                if initial not in self.cost:
                    self.buffer(initial)
                found[argument] = self.moved[argument] = self.held[argument] = Moving(self.em, initial, step)
                if initial in self.cost:
                    self.cost[argument] = self.cost[initial] + 1
        return found

    def begin(self, initials, carried, ends=(), loop=None):
        """What a loop begins with: registers of scalars; tensors in buffers of the loop's own, which may be those that they were in.
        Pointers have the same root in all turns if what ends a turn comes from what began it."""
        registers = []
        for i, (initial, argument) in enumerate(zip(initials, carried)):
            self.roots[argument] = argument
            same = len(ends) and self.root(ends[i]) is argument
            self.roots[argument] = self.root(initial) if same else None
            if argument in self.held:
                continue
            if argument.type.shape:
                order = self.wanted_order(argument, initial, ends[i], loop.regions[0][0]) if loop else None
                if loop and self.alone(initial, loop) and self.held[initial].order == order:
                    self.held[argument] = self.held[initial]
                    self.passed.add(initial)
                    continue
                self.held[argument] = target = self.em.allocate(argument.type)
                target.order = order
                self.fill(target, initial)
            else:
                registers.append(self.at.scalar(initial))
        return registers

    def phis(self, carried):
        """Registers of the scalars that a loop carries; their text comes when the loop is whole."""
        phis = []
        for argument in carried:
            if not argument.type.shape:
                self.held[argument] = register = self.em.new()
                phis.append((register, llvm_type(argument.type.element)))
        return phis

    @staticmethod
    def written(phis, initials, before, values, after):
        return [f"  {register} = phi {kind} [ {first}, %{before} ], [ {value}, %{after} ]"
                for (register, kind), first, value in zip(phis, initials, values)]

    def finish(self, late, carried, steps=()):
        """What a turn hands to the next one, but for what `moving` found; gives the registers of scalars. All is computed before anything
        is written."""
        self.targets = self.in_place(carried, steps)
        self.flush()
        self.targets = {}
        moves, temporaries = [], []
        for value, argument in zip(self.yielded, carried):
            if argument.type.shape and value is not argument and argument not in steps:
                source = self.held.get(value)
                if source is self.held[argument]:
                    continue
                owner = getattr(source, "owner", None) or source                # of a view it is another's memory
                carried_too = any(owner is self.held[other] for other in carried if other.type.shape)
                if not isinstance(source, Buffer) or carried_too:
                    temporary = self.em.allocate(value.type)
                    self.fill(temporary, value)
                    temporaries.append(source := temporary)
                moves.append((self.held[argument], source))
        for target, source in moves:
            moved(self.em, target, source)
        scalars = [self.at.scalar(v) for v, a in zip(self.yielded, carried) if not a.type.shape]
        for temporary in temporaries:
            self.em.release(temporary)
        self.late += late
        self.let_go()
        return scalars

    def scf_yield(self, op):
        self.yielded = op.operands

    scf_condition = scf_yield

    def scf_if(self, op):
        self.flush()
        em = self.em
        targets = {r: em.allocate(r.type) for r in op.results if r.type.shape}
        yes, no, end = em.label(), em.label(), em.label()
        em.branch(self.at.scalar(op.operands[0]), yes, no)
        ends = []
        for label, region in zip((yes, no), op.regions + [[]] * (2 - len(op.regions))):
            em.start(label)
            scalars = []
            if region:
                with self.inside():
                    late = self.ops(region[0])
                    self.flush()
                    for result, value in zip(op.results, self.yielded):
                        if result.type.shape:
                            self.fill(targets[result], value)
                        else:
                            scalars.append(self.at.scalar(value))
                    self.late += late
                    self.let_go()
            ends.append((em.block, scalars))
            em.jump(end)
        em.start(end)
        for i, result in enumerate(r for r in op.results if not r.type.shape):
            kind = llvm_type(result.type.element)
            self.held[result] = em.set(f"phi {kind} " + ", ".join(f"[ {scalars[i]}, %{label} ]" for label, scalars in ends))
        self.held.update(targets)

    def scf_while(self, op):
        self.flush()
        em, (first, second) = self.em, (region[0] for region in op.regions)
        initials = self.begin(op.operands, first.arguments)
        head, body, end, before = em.label(), em.label(), em.label(), em.block
        em.jump(head)
        em.start(head)
        place = len(em.lines)
        em.lines.append("")
        phis = self.phis(first.arguments)
        outside, self.made = self.made, []
        late = self.ops(first)
        self.flush()
        condition, *passed = self.yielded
        test = self.at.scalar(condition)
        for value, argument, result in zip(passed, second.arguments, op.results):
            self.held[argument] = self.held[result] = self.buffer(value) if value.type.shape else self.at.scalar(value)
            self.roots[argument] = self.roots[result] = self.root(value)
        em.branch(test, body, end)
        em.start(body)
        with self.inside():
            values = self.finish([*self.ops(second), *late], first.arguments)
        self.made = outside + self.made
        em.lines[place] = "\n".join(self.written(phis, initials, before, values, em.block))
        em.again(head)
        em.start(end)

    def cf_br(self, op):
        self.flush()
        self.hand_over(*op.successors[0])
        self.em.jump(self.labels[op.successors[0][0]])

    def cf_cond_br(self, op):
        self.flush()
        condition = self.at.scalar(op.operands[0])
        ways = [self.em.label() for _ in op.successors]
        self.em.branch(condition, *ways)
        for way, (label, values) in zip(ways, op.successors):
            self.em.start(way)
            self.hand_over(label, values)
            self.em.jump(self.labels[label])

    def hand_over(self, label, values):
        """Give a block its arguments; one of them may be what another one was."""
        with self.inside():
            sources = [self.apart(v) if v.type.shape else self.at.scalar(v) for v in values]
            for argument, source in zip(self.arguments[label], sources):
                if argument.type.shape:
                    self.em.copy(self.slots[argument], source)
                else:
                    self.em.store(self.slots[argument], "0", source, 1)

    def apart(self, value):
        """A value in memory that is no argument of a block."""
        held = self.buffer(value)
        if (held.owner or held) not in self.slots.values():
            return held
        temporary = self.em.allocate(value.type)
        self.em.copy(temporary, held)
        return temporary


def uniform_step(value, argument):
    """The scalar, or constant tensor, that `value = argument + …` adds to each element; None where it is another sum."""
    op = value.op
    if op is None or not argument.type.shape or op.name not in ("arith.addi", "tt.addptr") or argument not in op.operands:
        return None
    other = op.operands[1 - op.operands.index(argument)]
    if other.op is None or other is argument:
        return None
    if other.op.name == "tt.splat":
        return other.op.operands[0]
    return other if other.op.name == "arith.constant" and isinstance(dense(other.op), str) else None


class Moving:
    """A tensor that is what it was before a loop, and a register more."""

    def __init__(self, em, initial, step):
        self.em, self.initial, self.step, self.offset = em, initial, step, em.new()
        self.element = "i64" if initial.type.element == "ptr" else initial.type.element

    def next(self, at):
        """The offset in the next turn."""
        em, step = self.em, self.step
        register = dense(step.op) if step.type.shape else at.scalar(step)
        if self.initial.type.element == "ptr":
            register = convert_integer(em, register, step.type.element, "i64", True, 1) if register.startswith("%") else register
            register = em.value("mul", "i64", 1, register, str(pointee_bytes(self.initial.type)))
        return em.value("add", self.element, 1, self.offset, register)

    def at(self, at, point):
        """(register, lanes)"""
        register, lanes = at.at(self.initial, point)
        return self.em.value("add", self.element, lanes, register, self.em.splat(self.offset, self.element, lanes)), lanes

    def affine(self, at, point):
        found = at.affine(self.initial, point)
        return found and (self.em.value("add", self.element, 1, found[0], self.offset), *found[1:])


def blocks_of(blocks):
    """operator -> its block, of all operators in blocks and in the regions of their operators."""
    found = {}
    for block in blocks:
        for op in block.ops:
            found[op] = block
            for region in op.regions:
                found |= blocks_of(region)
    return found


def last_uses(block):
    """op -> values made in this block that nobody needs after it. Uses inside of an operator's regions are uses by it."""
    owner = {}

    def inside(op, top):
        owner[op] = top
        for region in op.regions:
            for part in region:
                for inner in part.ops:
                    inside(inner, top)

    for op in block.ops:
        inside(op, op)
    order = {op: i for i, op in enumerate(block.ops)}

    def final(value):
        """The place of the last use, through what may be computed from it then; None if it is used in other blocks."""
        last = order.get(value.op, -1)
        for user in value.users:
            if user not in owner:
                return None
            last = max(last, order[owner[user]])
            later = user.results if user.name in (*VIEWS, "tt.reshape") else ()
            if user.name == "scf.for":                           # whose result may be what it began with and a register: see Moving
                later = [result for result, initial in zip(user.results, user.operands[3:]) if initial is value]
            places = [final(result) for result in later]
            if None in places:
                return None
            last = max([last, *places])
        return last

    found = {}
    for op in block.ops:
        for result in op.results:
            place = final(result) if result.type.shape else None
            if place is not None:
                found.setdefault(block.ops[place], []).append(result)
    return found
