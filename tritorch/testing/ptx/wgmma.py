"""Asynchronous matrix products of a warp group on sm_90 (wgmma), as hostile as PTX allows them to be.

A product is computed when it is issued, and its result appears at the wgmma.wait_group that covers it: until then the accumulators hold
poison. That shows a use before the wait. That an operand changes under the product shows there too: what was read is compared once more.
"""
import functools
import re
from dataclasses import dataclass, field

import numpy as np

from tritorch.testing.ptx import matrices, proxies
from tritorch.testing.ptx.matrices import WARP
from tritorch.testing.ptx.mma import active_warps, read_registers
from tritorch.testing.ptx.operands import DTYPES
from tritorch.testing.ptx.parse import SHARED_BASE
from tritorch.testing.ptx.registry import instruction
from tritorch.testing.ptx.swizzle import CHUNK, Descriptor

GROUP, POISON = 4, np.uint32(0xFFFFFFFF)
U32 = np.dtype("u4")
NUMBERS = {"f16": np.dtype("f2"), "f32": np.dtype("f4"), "s32": np.dtype("i4")}


@dataclass(slots=True)
class Flight:
    """Products under way into `registers`: 16 rows of each warp (warps, 16, columns), and to which of its groups they belong (-1: none)."""

    registers: tuple
    rows: np.ndarray
    group: np.ndarray


@dataclass(slots=True)
class Reading:
    """What a product reads: chunks of shared memory, or registers, of some warps, and what was there."""

    warps: np.ndarray
    group: np.ndarray
    open: np.ndarray
    source: object                      # numbers of chunks (warps, …) or operands
    content: np.ndarray


@dataclass(slots=True)
class State:
    committed: np.ndarray               # groups of each warp
    fenced: np.ndarray                  # whether each warp has executed a wgmma.fence
    flights: dict = field(default_factory=dict)
    readings: list = field(default_factory=list)


def state_of(machine):
    if "wgmma" not in machine.state:
        count = machine.lanes // WARP
        machine.state["wgmma"] = State(np.zeros(count, np.int64), np.zeros(count, bool))
    return machine.state["wgmma"]


@instruction("wgmma.fence.sync.aligned")
def wgmma_fence(machine, ins):
    state_of(machine).fenced[active_warps(machine)] = True


@instruction("wgmma.mma_async.sync.aligned", control=True)
def mma_async(machine, ins):
    """d = a @ b (+ d): operands d, a, b, whether to add d, the signs of a and b, and for 16-bit types whether a and b are turned."""
    if not machine.meet(GROUP):
        return
    (rows, columns, depth), (to, kind_a, kind_b) = _form(ins.opcode)
    d, a, b, add, *flags = ins.operands
    flags = [int(flag.value) for flag in flags]
    signs, turned = (flags[:2], flags[2:]) if to != "s32" else ([1, 1], [])
    turned = [0] * (2 - len(turned)) + turned                   # an A in registers has no flag
    warps, state = active_warps(machine), state_of(machine)
    groups = warps.reshape(-1, GROUP)
    left = _registers_a(machine, state, a.items, kind_a, warps) if hasattr(a, "items") else _shared(
        machine, state, a, groups, kind_a, rows, turned[0])
    right = _shared(machine, state, b, groups, kind_b, columns, turned[1]).swapaxes(1, 2)
    assert left.shape[2] == right.shape[1] == depth, f"{left.shape} by {right.shape} is not of depth {depth}"
    flight = _accumulators(machine, state, d.items, warps, NUMBERS[to])
    keep = machine.spread(machine.read(add, DTYPES["pred"])).reshape(-1, WARP)[warps, 0]
    before = np.where(keep[:, None, None], flight.rows[warps], flight.rows.dtype.type(0)).reshape(len(groups), rows, columns)
    sum_ = matrices.product(kind_a, to, left * signs[0], right * signs[1], before, matrices.units_of(kind_a, machine.program.arch, True))
    flight.rows[warps] = sum_.reshape(len(warps), 16, columns)
    flight.group[warps] = state.committed[warps]


@functools.cache
def _form(opcode):
    """Rows, columns, depth, and the types of the result and the operands."""
    return (tuple(map(int, re.search(r"m(\d+)n(\d+)k(\d+)", opcode).groups())),
            [word for word in opcode.split(".") if word in matrices.BITS])


def _accumulators(machine, state, operands, warps, dtype):
    """The flight of these registers; where none is under way, what the registers hold enters it, and they hold poison."""
    names = tuple(operand.index for operand in operands)
    flight = state.flights.get(names)
    if flight is None:
        for other in state.flights.values():
            if set(names) & set(other.registers) and (other.group[warps] >= 0).any():
                raise machine.fault("accumulators of a product that is under way", warps[0] * WARP)
        count = machine.lanes // WARP
        flight = state.flights[names] = Flight(names, np.zeros((count, 16, 8 * len(names) // dtype.itemsize), dtype), np.full(count, -1))
    resting = warps[flight.group[warps] < 0]
    if len(resting):
        _fenced(machine, state, resting)
        values = read_registers(machine, operands, resting)
        flight.rows[resting] = _rows(values, dtype)
        _write_whole(machine, names, resting, np.full(values.shape, POISON))
    return flight


def _rows(bits, dtype):
    """(warps, registers, lanes) -> the 16 rows of each warp."""
    values = bits[..., None].view(dtype).swapaxes(2, 3).reshape(len(bits), -1, WARP)
    return matrices.gathered(matrices.d_places(values.shape[1]), values)


def _bits(rows):
    """The way back of _rows."""
    i, j = matrices.d_places(rows.shape[2] // 2)
    values = rows[:, i, j].reshape(len(rows), -1, 4 // rows.itemsize, WARP).swapaxes(2, 3)
    return np.ascontiguousarray(values).view(U32)[..., 0]


def _write_whole(machine, names, warps, bits, expected=None):
    """Set registers of whole warps from (warps, registers, lanes); whether all of them hold what is `expected`."""
    before = np.concatenate([machine.registers[name] for name in names]).reshape(len(names), -1, WARP)
    same = expected is None or (before[:, warps] == expected).all()
    before[:, warps] = bits.swapaxes(0, 1)
    for name, row in zip(names, before.reshape(len(names), -1)):
        machine.registers[name] = row
    return same


def _fenced(machine, state, warps):
    """Raise where no wgmma.fence came before. (Whether registers were written after it is not looked at: LLVM moves such writes across the
    fence, and ptxas, which knows who writes what, then waits for each product by itself.)"""
    if not state.fenced[warps].all():
        raise machine.fault("no wgmma.fence before it", int(warps[~state.fenced[warps]][0]) * WARP)


def _registers_a(machine, state, operands, kind, warps):
    """A from registers: each warp holds 16 of the 64 rows."""
    _fenced(machine, state, warps)
    bits = read_registers(machine, operands, warps)
    state.readings.append(Reading(warps, state.committed[warps], np.ones(len(warps), bool), operands, bits))
    fragment = matrices.unpack(kind, bits)
    matrix = matrices.gathered(matrices.a_places(*fragment.shape[1::2]), fragment)
    return matrix.reshape(len(warps) // GROUP, GROUP * 16, -1)


def _shared(machine, state, operand, groups, kind, extent, turned):
    """(groups, extent, K): an operand that a descriptor places in shared memory."""
    bits = machine.spread(machine.read(operand, DTYPES["u64"])).reshape(-1, WARP)[groups[:, 0]]
    if np.count_nonzero(bits != bits[:, :1]):
        raise machine.fault("the lanes of a warp group have different descriptors", int(machine.active()[0]))
    width = matrices.BITS[kind] // 8
    found, lanes = {}, groups[:, 0] * WARP
    for value in set(bits[:, 0].tolist()):
        try:
            found[value] = chunks = _chunks(value, extent, width, turned)
        except AssertionError as error:
            raise machine.fault(str(error), lanes[0]) from error
        ends = np.array([chunks.min(), chunks.max()], np.uint64) * np.uint64(CHUNK) + np.uint64(SHARED_BASE)
        machine.shared_places(ends, CHUNK, lanes[:1].repeat(2))
    chunks = np.stack([found[value] for value in bits[:, 0].tolist()]) + (machine.shared_start[lanes] // CHUNK)[:, None, None]
    proxies.check_async(machine, chunks * CHUNK, lanes)
    content = machine.shared.reshape(-1).view(_CHUNK)[chunks]
    state.readings.append(Reading(groups[:, 0], state.committed[groups[:, 0]], np.ones(len(groups), bool), chunks, content))
    numbers = matrices.decode(kind, content.view(f"u{width}"))
    return numbers.swapaxes(1, 2) if turned else numbers


_CHUNK = np.dtype(f"V{CHUNK}")


@functools.lru_cache(512)
def _chunks(bits, extent, width, turned):
    """Which chunks of shared memory hold a matrix, (extent, chunks of K), or (K, chunks of the extent) where it is turned: a swizzle takes
    none of them apart."""
    places = Descriptor(bits).places(extent, width, turned) - SHARED_BASE
    return np.ascontiguousarray((places.T if turned else places)[:, ::CHUNK // width] // CHUNK)


@instruction("wgmma.commit_group.sync.aligned")
def commit_group(machine, ins):
    state_of(machine).committed[active_warps(machine)] += 1


@instruction("wgmma.wait_group.sync.aligned")
def wait_group(machine, ins):
    """All but the last groups of products are finished: results appear, and operands must be what they were."""
    state, warps = state_of(machine), active_warps(machine)
    limit = np.full(len(state.committed), -1)
    limit[warps] = state.committed[warps] - ins.operands[0].value
    for reading in state.readings:
        done = reading.open & (reading.group < limit[reading.warps])
        if np.count_nonzero(done):
            _unchanged(machine, reading, done)
            reading.open &= ~done
    state.readings = [reading for reading in state.readings if reading.open.any()]
    for names, flight in list(state.flights.items()):
        done = np.flatnonzero((flight.group >= 0) & (flight.group < limit))
        if len(done):
            _land(machine, flight, done)
        if (flight.group < 0).all():
            del state.flights[names]


def _unchanged(machine, reading, done):
    warps, content = reading.warps[done], reading.content[done]
    if isinstance(reading.source, np.ndarray):
        now, what = machine.shared.reshape(-1).view(_CHUNK)[reading.source[done]], "shared memory"
    else:
        now, what = read_registers(machine, reading.source, warps), "a register"
    if now.tobytes() != content.tobytes():
        raise machine.fault(f"{what} that a product reads was written before the wait", int(warps[0]) * WARP)


def _land(machine, flight, warps):
    """Results reach their registers, which nobody may have written in the meantime."""
    if not _write_whole(machine, flight.registers, warps, _bits(flight.rows[warps]), POISON):
        raise machine.fault("an accumulator is written while its product is under way", int(warps[0]) * WARP)
    flight.group[warps] = -1
