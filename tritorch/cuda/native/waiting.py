"""Elementwise operators that wait, until somebody needs what they make, and then become loops; the order of loads and stores.

A `Group` becomes one loop, in which values that nobody else wants stay in registers. What is cheap to compute from scalars and ranges, as
offsets and masks are, is computed again wherever it is needed (`cost`). Loads and stores wait, too: a load does not overtake a store that
may write what it reads, nor a store a load or another store.
"""
from __future__ import annotations

from . import accesses, elementwise
from .control import MOVES
from .emit import Buffer
from .layouts import order_of
from .loops import Group, Loops
from .merging import merged
from .points import VIEWS, Point, flat, strides_in

FREE = ("arith.constant", "tt.make_range", "tt.splat", "ub.poison")
MOST = 16                                       # operators in what is computed again wherever it is needed; along lanes whose numbers
                                                # follow each other it is for the first of them alone: three times as many
NEVER = 1000
DEAR = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")


class Waiting:
    """The part of lower.Lowering that knows which operators wait."""

    # operators that wait
    def tensor(self, op):
        result = op.results[0]
        if op.name in FREE:
            self.cost[result] = 1
        elif op.name in VIEWS:
            if op.operands[0] in self.cost:
                self.cost[result] = self.cost[op.operands[0]]
        elif elementwise.find(op):
            cost = sum(self.cost.get(o, 0 if not o.type.shape else NEVER) for o in op.operands) + (MOST if self.dear(op) else 1)
            steady = self.at.along(result, len(result.type.shape) - 1) is not None
            if cost <= MOST * (1 + 2 * steady) and not result.type.is_float and not op.name.startswith(("tt.extern", "tt.elementwise")):
                self.cost[result] = cost
            else:
                self.wait(op, result.type.shape, self.axis_of(op))
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

    def axis_of(self, op):
        """The dim along which what an operator reads lies in memory, if it is not the last."""
        orders = [held.order for held in map(self.held.get, op.operands) if isinstance(held, Buffer) and held.order]
        return orders[0][-1] if orders else None

    def room_of(self, group):
        """Buffers of the results that others want, in the order of the group's loop; in others' memory what may be written there."""
        kept, inside = {}, set(group.ops)
        for result in (result for op in group.ops for result in op.results):
            if any(user not in inside for user in result.users):
                kept[result] = self.targets.get(result) or self.em.allocate(result.type)
                kept[result].order = order_of(group.shape, group.axis)
        return kept

    def emit(self, group):
        back, kept = self.arrange(group), self.room_of(group)
        shape = merged(self.at, group.ops, group.shape) if group.axis is None else group.shape
        loops = Loops(self.em, shape, axis=group.axis)
        with loops.rows() as row:
            accessed = [op for op in group.ops if op.name in ("tt.load", "tt.store")]
            sure = accesses.sure(self.at, accessed, row) if loops.length > loops.lanes else None
            if sure is None:
                self.along(loops, row, None, group, kept, self.wanted(loops, row, group, kept))
            else:
                yes, no, end = self.em.label(), self.em.label(), self.em.label()
                self.em.branch(sure[1], yes, no)
                for label, known in ((yes, sure[0]), (no, None)):
                    self.em.start(label)
                    self.along(loops, row, known, group, kept, None if known else self.wanted(loops, row, group, kept))
                    self.em.jump(end)
                self.em.start(end)
        self.held.update(kept)
        self.put_back(back)
        for result in kept:
            self.settle(result)

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

    def along(self, loops, row, sure, group, kept, end=None):
        """The loop along a row."""
        with loops.along(row, sure, end) as point:
            place = flat(self.em, strides_in(next(iter(kept.values())), group.shape), point.indices) if kept else ""
            for argument in group.early:
                self.at.at(argument, point)
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

    def index(self, buffer, point):
        return flat(self.em, strides_in(buffer, buffer.type.shape), point.indices)

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
            self.em.store(target, self.index(target, point), accesses.atomic(self.at, op, point), 1)
        self.held[result] = target

    tt_atomic_cas = tt_atomic_rmw
