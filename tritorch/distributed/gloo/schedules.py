"""Who sends what to whom, and in which order: the collectives as generators for the engine.

Small arrays go in one step, from each rank to each that needs them (or along a binomial tree where there are many ranks); large ones along
a ring, in blocks, so that a rank passes on the first block while the others are on their way: reduce-scatter and all-gather move
2 (n - 1) / n times the bytes of the array through each rank, which is the least there is (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms", 2009). Values are added in an order that is the same at every call, and computed once: all ranks get the same bits.

Arrays are flat and contiguous; `parts` has one for each rank, views of one array or not.
"""
import numpy as np

from tritorch.distributed.gloo.arithmetic import average, combined
from tritorch.distributed.options import ReduceOp

SMALL = 1 << 15                                                          # bytes up to which the number of steps is what counts
FEW = 8                                                                  # ranks up to which small arrays go to all at once
BLOCK = 1 << 20                                                          # bytes that go along a ring at once
NOTHING = memoryview(bytearray())


def raw(a):
    """The bytes of a flat array."""
    return memoryview(a.view(np.uint8))


def parted(a, size):
    """A flat array in as many parts as there are ranks, as even as can be."""
    ends = [len(a) * i // size for i in range(size + 1)]
    return [a[start:end] for start, end in zip(ends, ends[1:])]


def _blocks(a):
    step = max(BLOCK // a.itemsize, 1)
    return [a[start:start + step] for start in range(0, len(a), step)]


def all_reduce(engine, task, a, combine, dtype, op):
    """`a` becomes the values of all ranks as one."""
    size = engine.size
    if a.nbytes > SMALL:
        parts = parted(a, size)
        sends = yield from _ring_reduce(engine, task, parts, combine)
        mine = parts[engine.rank]
        if op is ReduceOp.AVG:
            average(mine, size)
        yield from _ring_gather(engine, task, parts)
        yield from _all(sends)
    elif size <= FEW:
        others = np.empty((size, len(a)), a.dtype)
        others[engine.rank] = a
        yield from _exchange(engine, task, others)
        a[...] = combined(list(others), combine, dtype, op)
    else:
        yield from _tree_reduce(engine, task, a, combine, 0)
        if op is ReduceOp.AVG and engine.rank == 0:
            average(a, size)
        yield from _tree_broadcast(engine, task, a, 0)


def _all(transfers):
    yield from transfers


def _exchange(engine, task, rows):
    """Each rank's row goes to all."""
    rank = engine.rank
    others = [(rank + i) % engine.size for i in range(1, engine.size)]
    out = [engine.send(task, other, raw(rows[rank])) for other in others]
    yield from _all([engine.receive(task, other, raw(rows[other])) for other in others] + out)


def _ring_reduce(engine, task, parts, combine):
    """parts[rank] becomes that part of all ranks as one; the other parts hold what was passed on. The part of rank r begins at rank r + 1:
    its values are added in the order r + 1, r + 2, …, r. Returns sends that may be under way."""
    rank, size = engine.rank, engine.size
    left, right = (rank - 1) % size, (rank + 1) % size
    sends = [engine.send(task, right, raw(block)) for block in _blocks(parts[left])]
    scratch = np.empty(min(max(BLOCK // parts[0].itemsize, 1), max(map(len, parts))), parts[0].dtype)
    for step in range(2, size + 1):
        for block in _blocks(parts[(rank - step) % size]):
            came = scratch[:len(block)]
            yield engine.receive(task, left, raw(came))
            combine(came, block, out=block)
            if step < size:
                sends.append(engine.send(task, right, raw(block)))
    return sends


def _ring_gather(engine, task, parts):
    """parts[rank] of every rank comes to all."""
    rank, size = engine.rank, engine.size
    left, right = (rank - 1) % size, (rank + 1) % size
    sends = [engine.send(task, right, raw(block)) for block in _blocks(parts[rank])]
    for step in range(1, size):
        for block in _blocks(parts[(rank - step) % size]):
            yield engine.receive(task, left, raw(block))
            if step < size - 1:
                sends.append(engine.send(task, right, raw(block)))
    yield from _all(sends)


def _tree_reduce(engine, task, a, combine, root):
    """`a` of the root becomes all as one; it is changed on other ranks, too."""
    place, mask, came = (engine.rank - root) % engine.size, 1, np.empty_like(a)
    while mask < engine.size:
        if place & mask:
            yield engine.send(task, (place - mask + root) % engine.size, raw(a))
            return
        if place + mask < engine.size:
            yield engine.receive(task, (place + mask + root) % engine.size, raw(came))
            combine(a, came, out=a)
        mask <<= 1


def _tree_broadcast(engine, task, a, root):
    place, size = (engine.rank - root) % engine.size, engine.size
    mask = 1
    while mask < size and not place & mask:
        mask <<= 1
    if place:
        yield engine.receive(task, (place - mask + root) % size, raw(a))
    sends = []
    while (mask := mask >> 1):
        if place + mask < size:
            sends.append(engine.send(task, (place + mask + root) % size, raw(a)))
    yield from _all(sends)


def broadcast(engine, task, a, root):
    """`a` of the root comes to all."""
    if a.nbytes <= SMALL:
        yield from _tree_broadcast(engine, task, a, root)
        return
    left, right, sends = (engine.rank - 1) % engine.size, (engine.rank + 1) % engine.size, []
    for block in _blocks(a):
        if engine.rank != root:
            yield engine.receive(task, left, raw(block))
        if right != root:
            sends.append(engine.send(task, right, raw(block)))
    yield from _all(sends)


def reduce(engine, task, a, combine, dtype, op, root):
    """`a` of the root becomes the values of all ranks as one; other ranks keep theirs."""
    rank, size = engine.rank, engine.size
    if a.nbytes <= SMALL and size <= FEW:
        if rank != root:
            yield engine.send(task, root, raw(a))
            return
        rows = np.empty((size, len(a)), a.dtype)
        rows[root] = a
        yield from _all([engine.receive(task, r, raw(rows[r])) for r in range(size) if r != root])
        a[...] = combined(list(rows), combine, dtype, op)
        return
    mine = a if rank == root else a.copy()
    if a.nbytes <= SMALL:
        yield from _tree_reduce(engine, task, mine, combine, root)
    else:
        left, right, sends = (rank - 1) % size, (rank + 1) % size, []
        came = np.empty(min(max(BLOCK // a.itemsize, 1), len(a)), a.dtype)
        for block in _blocks(mine):
            if left != root:
                yield engine.receive(task, left, raw(came[:len(block)]))
                combine(came[:len(block)], block, out=block)
            if rank != root:
                sends.append(engine.send(task, right, raw(block)))
        yield from _all(sends)
    if op is ReduceOp.AVG and rank == root:
        average(a, size)


def all_gather(engine, task, parts):
    """parts[rank] of every rank comes to all; they may have different sizes."""
    if max(p.nbytes for p in parts) <= SMALL and engine.size <= FEW:
        yield from _exchange(engine, task, parts)
    else:
        yield from _ring_gather(engine, task, parts)


def reduce_scatter(engine, task, out, parts, combine, dtype, op):
    """`out` becomes this rank's part of all ranks as one; `parts`, which are changed, have the size of each rank's."""
    rank, size = engine.rank, engine.size
    if max(p.nbytes for p in parts) <= SMALL and size <= FEW:
        rows = np.empty((size, len(out)), out.dtype)
        rows[rank] = parts[rank]
        others = [r for r in range(size) if r != rank]
        sends = [engine.send(task, r, raw(parts[r])) for r in others]
        yield from _all([engine.receive(task, r, raw(rows[r])) for r in others] + sends)
        out[...] = combined(list(rows), combine, dtype, op)
        return
    sends = yield from _ring_reduce(engine, task, parts, combine)
    out[...] = parts[rank]
    if op is ReduceOp.AVG:
        average(out, size)
    yield from _all(sends)


def gather(engine, task, mine, parts, root):
    """parts[r] of the root becomes `mine` of rank r."""
    if engine.rank != root:
        yield engine.send(task, root, raw(mine))
    else:
        parts[root][...] = mine
        yield from _all([engine.receive(task, r, raw(parts[r])) for r in range(engine.size) if r != root])


def scatter(engine, task, mine, parts, root):
    """`mine` of rank r becomes parts[r] of the root."""
    if engine.rank != root:
        yield engine.receive(task, root, raw(mine))
    else:
        mine[...] = parts[root]
        yield from _all([engine.send(task, r, raw(parts[r])) for r in range(engine.size) if r != root])


def all_to_all(engine, task, outs, ins):
    """outs[r] becomes ins[rank] of rank r."""
    rank, size = engine.rank, engine.size
    outs[rank][...] = ins[rank]
    sends = [engine.send(task, (rank + i) % size, raw(ins[(rank + i) % size])) for i in range(1, size)]
    yield from _all([engine.receive(task, (rank - i) % size, raw(outs[(rank - i) % size])) for i in range(1, size)] + sends)


def barrier(engine, task):
    """Nobody goes on before all have come (dissemination barrier: Hensgen, Finkel and Manber, 1988)."""
    step = 1
    while step < engine.size:
        out = engine.send(task, (engine.rank + step) % engine.size, NOTHING)
        yield engine.receive(task, (engine.rank - step) % engine.size, NOTHING)
        yield out
        step <<= 1
