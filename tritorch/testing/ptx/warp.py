"""Instructions by which the lanes of a warp look at each other."""
import numpy as np

from tritorch.testing.ptx.operands import DTYPES, Pair, Sink
from tritorch.testing.ptx.registry import instruction

U32, PRED = DTYPES["u32"], DTYPES["pred"]
LANES = np.arange(32, dtype=np.int64)


def rows(machine, value):
    """One warp a row."""
    return machine.spread(value).reshape(-1, 32)


def gathered(machine, members):
    """Executing lanes of each warp, all of which are there."""
    machine.converged(machine.read(members, U32))
    return machine.mask.reshape(-1, 32)


@instruction("shfl.sync")
def shuffle(machine, ins):
    """Every lane reads another one's value; where that lane is out of bounds its own, and the predicate is false."""
    target, value, distance, clamp, members = ins.operands
    gathered(machine, members)
    value = rows(machine, machine.read(value, U32))
    distance, clamp = (rows(machine, machine.read(operand, U32)).astype(np.int64) for operand in (distance, clamp))
    distance, limit, segment = distance & 31, clamp & 31, clamp >> 8 & 31
    last = LANES & segment | limit & ~segment & 31
    way = ins.modifiers[1]
    source = {"up": LANES - distance, "down": LANES + distance, "bfly": LANES ^ distance,
              "idx": LANES & segment | distance & ~segment}[way]
    inside = source >= last if way == "up" else source <= last
    found = np.take_along_axis(value, np.where(inside, source, LANES), axis=1).reshape(-1)
    target, predicate = (target.first, target.second) if target.__class__ is Pair else (target, Sink())
    machine.write(target, found)
    machine.write(predicate, inside.reshape(-1))


def everywhere(found):
    """One value a warp for each of its lanes."""
    return np.repeat(found, 32)


def ballot(flags):
    return (flags.astype(U32) << LANES.astype(U32)).sum(axis=1, dtype=U32)


@instruction("vote.sync")
def vote(machine, ins):
    target, predicate, members = ins.operands
    here = gathered(machine, members)
    yes = rows(machine, machine.read(predicate, PRED)) & here
    no = here & ~yes
    found = {"all": ~no.any(axis=1), "any": yes.any(axis=1), "uni": ~(no.any(axis=1) & yes.any(axis=1)),
             "ballot": ballot(yes)}[ins.modifiers[1]]
    machine.write(target, everywhere(found))


@instruction("activemask")
def active_mask(machine, ins):
    machine.write(ins.operands[0], everywhere(ballot(machine.mask.reshape(-1, 32))))


@instruction("match.any.sync")
def match(machine, ins):
    """The lanes that hold the same value."""
    target, value, members = ins.operands
    here, value = gathered(machine, members), rows(machine, machine.read(value, DTYPES[ins.types[-1]]))
    same = (value[:, :, None] == value[:, None, :]) & here[:, None, :]
    machine.write(target, (same.astype(U32) << LANES.astype(U32)).sum(axis=2, dtype=U32).reshape(-1))


_REDUCTIONS = {"add": (np.add, 0), "min": (np.minimum, None), "max": (np.maximum, None), "and": (np.bitwise_and, -1),
               "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0)}


@instruction("redux.sync")
def reduce_warp(machine, ins):
    target, value, members = ins.operands
    dtype = DTYPES[ins.types[-1]]
    function, neutral = _REDUCTIONS[ins.modifiers[1]]
    if neutral is None:
        limits = np.iinfo(dtype)
        neutral = limits.max if function is np.minimum else limits.min
    here = gathered(machine, members)
    values = np.where(here, rows(machine, machine.read(value, dtype)), np.array(neutral).astype(dtype))
    machine.write(target, everywhere(function.reduce(values, axis=1, dtype=dtype)))


@instruction("elect.sync")
def elect(machine, ins):
    """The first lane is the leader."""
    target, members = ins.operands
    here = gathered(machine, members)
    leader = here.argmax(axis=1)
    machine.write(target.first, everywhere(leader.astype(U32)))
    machine.write(target.second, everywhere(leader) == np.tile(LANES, len(here)))
