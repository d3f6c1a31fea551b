"""Loads, stores and atomic operations on parameters, global, shared and local memory."""
import functools

import numpy as np

from tritorch.testing.ptx import proxies
from tritorch.testing.ptx.floats import add_bits
from tritorch.testing.ptx.operands import DTYPES, Block, Register, Sink, Vector
from tritorch.testing.ptx.registry import instruction

U32, U64 = np.dtype("u4"), np.dtype("u8")
LOCAL_WINDOW = np.uint64(1 << 60)        # generic addresses of local memory begin here
_STRONG, _ACQUIRING, _RELEASING = {"acquire", "relaxed", "volatile"}, {"acquire", "acq_rel"}, {"release", "acq_rel"}


@functools.cache
def _named(modifiers):
    return next((w.partition("::")[0] for w in modifiers if w.partition("::")[0] in ("param", "global", "shared", "local")), None)


def space(machine, ins, operand, lanes):
    """param, global, shared or local; an access without a space finds it by the address: what Triton links in has some to local memory."""
    found = _named(ins.modifiers)
    if found is None:
        if (machine.address(operand)[lanes] < LOCAL_WINDOW).any():
            raise machine.fault("a generic address that is none of local memory")
        return "local"
    return found


def _places(machine, ins, where, operand, nbytes, lanes):
    """The flat bytes that hold a space, and where the lanes' addresses lie in them. Raises where hardware would, or outside live memory."""
    if where == "param":
        offset = int(operand.read(machine, U64))
        if offset + nbytes > machine.launch.parameters.size:
            raise machine.fault("beyond the parameters")
        return machine.launch.parameters, np.array(offset)
    addresses = machine.address(operand)
    if lanes is not machine.everyone:
        addresses = addresses[lanes]
    if where == "global":
        if problem := machine.global_problem(addresses, nbytes, lanes):
            raise machine.fault(problem[1], lanes[problem[0]])
        return machine.memory.bytes, (addresses - np.uint64(machine.memory.base)).view(np.int64)
    if where == "shared":
        return machine.shared.reshape(-1), machine.shared_places(addresses, nbytes, lanes)
    addresses, size = addresses & (LOCAL_WINDOW - np.uint64(1)), machine.local.shape[1]
    wrong = (addresses % np.uint64(nbytes) != 0) | (addresses > size - nbytes)
    if wrong.any():
        raise machine.fault(f"local address {addresses[wrong.argmax()]:#x} of {size} bytes", lanes[wrong.argmax()])
    return machine.local.reshape(-1), lanes * size + addresses.astype(np.int64)


def _numbers(memory, dtype):
    """Bytes as whole numbers of a type."""
    return memory[:memory.size // dtype.itemsize * dtype.itemsize].view(dtype)


def _items(operand):
    return operand.items if operand.__class__ is Vector else (operand,)


def _passed(place, dtype, k):
    """The registers that hold item k of what a function takes or gives."""
    if place.base.__class__ is Register:
        return (place.base,)
    start, size = place.offset + k * dtype.itemsize, max(dtype.itemsize, 4)
    assert start % size == 0 and dtype.itemsize >= 4, f"{dtype} at byte {start} of a parameter"
    return place.base.words[start // 4:(start + size) // 4]


def _load_passed(machine, items, place, dtype):
    for k, item in enumerate(items):
        words = _passed(place, dtype, k)
        if len(words) == 1:
            machine.write(item, machine.read(words[0], dtype))
        else:
            low, high = (machine.spread(machine.read(word, U32)).astype(U64) for word in words)
            machine.write(item, low | high << np.uint64(32))


def _store_passed(machine, items, place, dtype):
    for k, item in enumerate(items):
        value, words = machine.spread(machine.read(item, dtype)), _passed(place, dtype, k)
        halves = value.view(U32).reshape(-1, 2).T if len(words) == 2 else [value]
        for word, part in zip(words, halves):
            machine.write(word, np.ascontiguousarray(part))


@instruction("ld", "ldu")
def ld(machine, ins):
    """A vector of n numbers is one access: its address is aligned to all of it."""
    items, dtype, lanes = _items(ins.operands[0]), DTYPES[ins.types[-1]], machine.active()
    where = space(machine, ins, ins.operands[1], lanes)
    if where == "param" and ins.operands[1].base.__class__ in (Register, Block):         # of a function that was called
        return _load_passed(machine, items, ins.operands[1], dtype)
    memory, places = _places(machine, ins, where, ins.operands[1], len(items) * dtype.itemsize, lanes)
    if where == "global" and machine.races is not None and _STRONG.isdisjoint(ins.modifiers):
        machine.races.read(machine, places, len(items) * dtype.itemsize, lanes, still="nc" in ins.modifiers)
    numbers, first = _numbers(memory, dtype), places >> dtype.itemsize.bit_length() - 1
    for k, item in enumerate(items):
        found = numbers.take(first + k if k else first)
        if found.ndim:
            machine.write_lanes(item, lanes, found)
        else:
            machine.write(item, found)


@instruction("ld.acquire", "ld.global.gpu.acquire", control=True)
def ld_acquire(machine, ins):
    """Who acquires may be waiting for what it reads: others go first."""
    ld(machine, ins)
    if machine.races is not None:
        lanes = machine.active()
        _ordered(machine, ins, lanes, machine.address(ins.operands[1])[lanes] - np.uint64(machine.memory.base))
    machine.give_way(machine.chosen)


@instruction("st")
def st(machine, ins):
    items, dtype, lanes = _items(ins.operands[1]), DTYPES[ins.types[-1]], machine.active()
    if ins.operands[0].base.__class__ in (Register, Block) and "param" in ins.modifiers:
        return _store_passed(machine, items, ins.operands[0], dtype)
    where = space(machine, ins, ins.operands[0], lanes)
    memory, places = _places(machine, ins, where, ins.operands[0], len(items) * dtype.itemsize, lanes)
    if where == "shared" and machine.unfenced is not None:
        proxies.written(machine, places, lanes)
    numbers, first = _numbers(memory, dtype), places >> dtype.itemsize.bit_length() - 1
    values = [machine.spread(item.read(machine, dtype)) for item in items]
    if lanes is not machine.everyone:
        values = [value[lanes] for value in values]
    targets = [first + k if k else first for k in range(len(items))]
    if where == "global" and machine.races is not None:
        changed = functools.reduce(np.logical_or, [numbers.take(target) != value for target, value in zip(targets, values)])
        machine.races.write(machine, places, len(items) * dtype.itemsize, lanes, changed)
    for target, value in zip(targets, values):
        numbers[target] = value
    for target, value in zip(targets, values):
        lost = numbers.take(target) != value                         # of two stores to one place hardware keeps either
        if not np.count_nonzero(lost):
            continue
        if where == "shared":
            lost = _lost_to_others(lost, target, lanes)
        if lost.any():
            raise machine.fault("another thread stores another value to the same address", lanes[lost.argmax()])
    machine.progress()


def _lost_to_others(lost, target, lanes):
    """Whose values other warps replaced. Lanes of one warp may differ: Triton lets all lanes store what each of them has summed up, and
    fused multiply-adds on the way round differently in each. Hardware keeps the value of one lane of the warp, always the same one."""
    place = target * (lanes[-1] // 32 + 1) + lanes // 32
    return lost & ~np.isin(place, place[~lost])


# ------------------------------------------------------------------ atomic operations
_ATOMIC = {
    "add": lambda old, b, kind: add_bits(old, b, kind), "min": lambda old, b, kind: np.minimum(old, b),
    "max": lambda old, b, kind: np.maximum(old, b), "and": lambda old, b, kind: old & b, "or": lambda old, b, kind: old | b,
    "xor": lambda old, b, kind: old ^ b, "exch": lambda old, b, kind: b,
    "inc": lambda old, b, kind: np.where(old >= b, 0, old + 1).astype(old.dtype),
    "dec": lambda old, b, kind: np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype),
}


@instruction("atom", "red", control=True)
def atom(machine, ins):
    """Each number of a vector is an operation of its own. A thread that acquires and changes nothing waits for others, and lets them go."""
    result, place, *rest = ins.operands if ins.name == "atom" else (Sink(), *ins.operands)
    kind = ins.types[-1]
    dtype, lanes, vectors = DTYPES[kind], machine.active(), [_items(operand) for operand in rest]
    width = len(vectors[0])
    memory, places = _places(machine, ins, space(machine, ins, place, lanes), place, width * dtype.itemsize, lanes)
    operation = next(w for w in ins.modifiers if w in _ATOMIC or w == "cas")
    numbers, changed = memory.view(dtype), False
    for k, target in enumerate(_items(result) if result.__class__ is Vector else [result] * width):
        values = [machine.spread(machine.read(vector[k], dtype))[lanes] for vector in vectors]
        first = places // dtype.itemsize + np.asarray(k).astype(places.dtype)
        before = np.zeros(machine.lanes, dtype)
        before[lanes], here = _in_turn(numbers, first, values, lambda *args: _ATOMIC[operation](*args, kind), operation == "cas")
        changed = changed or here
        machine.write(target, before)
    if machine.races is not None and memory is machine.memory.bytes:
        if changed:
            machine.races.write(machine, places, width * dtype.itemsize, lanes, np.ones(len(lanes), bool), atomic=True)
        _ordered(machine, ins, lanes, places)
    if changed or "acquire" not in ins.modifiers:
        machine.progress()
    else:
        machine.give_way(machine.chosen)                        # with the rest of their warps


def _ordered(machine, ins, lanes, places):
    """Tell races.py who acquires and releases what."""
    if not machine.races.warps:
        return
    first = np.unique(np.stack([machine.party[lanes], places.astype(np.int64)]), axis=1, return_index=True)[1]
    for i in sorted(first.tolist()):                            # as they took their turns
        if not _ACQUIRING.isdisjoint(ins.modifiers):
            machine.races.acquire(machine, lanes[i], int(places[i]))
        if not _RELEASING.isdisjoint(ins.modifiers):
            machine.races.release(machine, lanes[i], int(places[i]))


def _in_turn(numbers, places, values, function, compare):
    """(what was there before each lane's operation, whether anything changed). Lanes that name the same address take turns, in their order;
    hardware promises none."""
    before, changed, left = np.zeros(places.size, numbers.dtype), False, np.arange(places.size)
    while left.size:
        _, first = np.unique(places[left], return_index=True)
        turn = left[first]
        before[turn] = old = numbers[places[turn]]
        new = np.where(old == values[0][turn], values[1][turn], old) if compare else function(old, values[0][turn])
        numbers[places[turn]] = new
        changed = changed or bool((new != old).any())
        left = np.delete(left, first)
    return before, changed


@instruction("cvta")
def cvta(machine, ins):
    """Addresses are the same in every space here, but for those of local memory, which is every thread's own."""
    value = machine.read(ins.operands[1], U64)
    if "local" in ins.modifiers:
        value = value - LOCAL_WINDOW if "to" in ins.modifiers else value + LOCAL_WINDOW
    machine.write(ins.operands[0], value)
