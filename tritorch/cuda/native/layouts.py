"""The order of a tensor's dims in memory. A tile that is loaded along its first dim, since there the addresses follow each other, is kept
in that order for elementwise operators, loops and reductions, and need not be transposed."""
from __future__ import annotations

from . import elementwise, shapes
from .emit import Buffer
from .points import VIEWS
from .ttir import Type

EASY = ("scf.for", "scf.yield", "tt.reduce", "tt.store")        # operators, besides elementwise ones, that take any order


def order_of(shape, axis):
    """The dims, outermost first, where those along `axis` are neighbours; None for row by row."""
    if axis is None or all(size == 1 for size in shape[axis + 1:]):
        return None
    return (*(d for d in range(len(shape)) if d != axis), axis)


def ordered(shape, order):
    """The shape as it is in memory."""
    return shape if order is None else tuple(shape[d] for d in order)


def arranged(em, buffer, order):
    """A buffer's elements in another order; the buffer itself where it has that."""
    if buffer.order == order:
        return buffer
    kind, rows = buffer.type, tuple(range(len(buffer.type.shape)))
    old, new = buffer.order or rows, order or rows
    source = Buffer(buffer.base, Type(ordered(kind.shape, old), kind.element, kind.pointee), buffer.owner or buffer)
    result = shapes.permuted(em, source, Type(ordered(kind.shape, new), kind.element, kind.pointee), [old.index(d) for d in new])
    result.type, result.order = kind, order
    return result


def moved(em, target, source):
    """All elements of a buffer into another, each in its own order."""
    there = arranged(em, source, target.order)
    em.copy(target, there)
    if there is not source and there.owner is None:             # else it is the source's memory
        em.release(there)


class Layouts:
    """The part of lower.Lowering that decides about orders."""

    def easy(self, value, block):
        """Whether all who read a value take any order, and do it in this block."""
        return all(self.blocks[user] is block and (user.name in EASY or elementwise.find(user)) for user in value.users)

    def settle(self, value):
        """Have a value row by row at once if somebody will want it so."""
        held = self.held.get(value)
        if isinstance(held, Buffer) and held.order and not self.easy(value, self.blocks[value.op]):
            self.rearrange(value, None)

    def wanted_order(self, argument, initial, end, block):
        """The order of what a loop carries: that of what it begins with, or of what a turn loads and adds to it."""
        held = self.held.get(initial)
        if not self.easy(argument, block) or not self.easy(end, block):
            return None
        if isinstance(held, Buffer) and held.order:
            return held.order
        return order_of(argument.type.shape, self.direction_of(end, argument.type.shape, set()))

    def direction_of(self, value, shape, seen):
        """The dim along which the loads follow each other that a value is made of."""
        op = value.op
        if op is None or value.type.shape != shape or op in seen:
            return None
        seen.add(op)
        if op.name == "tt.load":
            return self.at.direction(op.operands[0])
        found = [self.direction_of(operand, shape, seen) for operand in op.operands] if elementwise.find(op) else []
        return next((axis for axis in found if axis is not None), None)

    def alone(self, value, op):
        """Whether nobody but this operator reads a value that this block has made, and its buffer is of no other value."""
        held = self.held.get(value)
        if not isinstance(held, Buffer) or value.users != [op] or value not in self.here:
            return False
        return self.unshared(held) and (held.owner or held) not in self.slots.values()

    def sharing(self, buffer):
        """The values that are in a buffer."""
        owner = buffer.owner or buffer
        return [value for value, held in self.held.items() if isinstance(held, Buffer) and (held.owner or held) is owner]

    def unshared(self, buffer):
        """Whether one value alone is in a buffer, but for those that nobody reads any more since a loop began with them."""
        return len([value for value in self.sharing(buffer) if value not in self.passed]) == 1

    def rearrange(self, value, order):
        """Have a value in another order: for good, if this block has made it. Gives what was there if it has to be put back."""
        before = self.held[value]
        self.held[value] = arranged(self.em, before, order)
        if self.held[value] is before:
            return None
        if value.op is None or value not in self.here:
            return before
        if not self.sharing(before):
            self.em.release(before)
        return None

    def arrange(self, group):
        """Have what the operators of a group read in the order of its loop, and what they look at in another way row by row; gives
        {value: buffer to be put back}."""
        order, back = order_of(group.shape, group.axis), {}
        for op in group.ops:
            for operand in op.operands:
                for value in self.sources(operand):
                    held = self.held.get(value)
                    wanted = order if value is operand and value.type.shape == group.shape else None
                    if isinstance(held, Buffer) and held.order != wanted and value not in back:
                        before = self.rearrange(value, wanted)
                        if before is not None:
                            back[value] = before
        return back

    def put_back(self, back):
        for value, before in back.items():
            copy, self.held[value] = self.held[value], before
            if not self.sharing(copy):
                self.em.release(copy)

    # results that are written where a loop carries them
    def in_place(self, carried, steps):
        """{what a turn ends with: the buffer of what it began with}, where the loop that computes the one is the last to read the other."""
        found = {}
        for value, argument in zip(self.yielded, carried):
            group, target = self.group_of.get(value.op), self.held.get(argument)
            if group is None or not argument.type.shape or argument in steps or self.yielded.count(value) > 1:
                continue
            if order_of(group.shape, group.axis) == target.order and self.unshared(target) and self.last_reader(group, argument):
                found[value] = target
                group.early.append(argument)
        return found

    def last_reader(self, group, argument):
        """Whether no operator after a group's reads an argument, and the group's only at the places that they write."""
        for user in argument.users:
            other = self.group_of.get(user)
            if other is None and (user.name in ("scf.yield", *VIEWS) or any(result in self.cost for result in user.results)):
                return False
            if other is not None and self.groups.index(other) > self.groups.index(group):
                return False
        return True
