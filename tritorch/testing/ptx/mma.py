"""Matrix products of a warp (mma.sync), and the loads and stores that fit their fragments (ldmatrix, stmatrix)."""
import re

import numpy as np

from tritorch.testing.ptx import matrices
from tritorch.testing.ptx.matrices import WARP
from tritorch.testing.ptx.registry import instruction

U32 = np.dtype("u4")


def active_warps(machine):
    """The numbers of the warps that execute this, which have to be there with all their lanes."""
    warps, whole = machine.warps()
    if not whole:
        raise machine.fault("a part of a warp executes what needs all of its lanes", int(machine.active()[0]))
    return warps


def read_registers(machine, operands, warps, bits=32):
    """(warps, registers, lanes) of a vector of registers."""
    dtype = np.dtype(f"u{bits // 8}")
    found = np.concatenate([machine.spread(o.read(machine, dtype)) for o in operands]).reshape(len(operands), -1, WARP)
    return np.ascontiguousarray(found[:, warps].swapaxes(0, 1))


def write_registers(machine, operands, warps, values):
    """Set registers from (warps, registers, lanes)."""
    for i, operand in enumerate(operands):
        lanes = np.zeros((machine.lanes // WARP, WARP), values.dtype)
        lanes[warps] = values[:, i]
        machine.write(operand, lanes.reshape(-1))


def read_accumulators(machine, kind, operands, warps):
    """(warps, values, lanes); an accumulator of float16 has two values in a register, the first in the low half."""
    found = read_registers(machine, operands, warps, 64 if kind == "f64" else 32)
    if kind == "f16":
        return found[..., None].view(np.float16).transpose(0, 1, 3, 2).reshape(len(warps), -1, WARP)
    return found.view({"f32": "f4", "f64": "f8", "s32": "i4"}[kind])


def write_accumulators(machine, kind, operands, warps, values):
    if kind == "f16":
        pairs = values.reshape(len(warps), -1, 2, WARP).transpose(0, 1, 3, 2)
        values = np.ascontiguousarray(pairs).view(U32)[..., 0]
    write_registers(machine, operands, warps, values)


@instruction("mma.sync.aligned")
def mma(machine, ins):
    """d = a @ b + c, (16 or 8, K) by (K, 8)."""
    words = ins.opcode.split(".")
    to, kind_a, kind_b, _ = (word for word in words if word in matrices.BITS)
    depth = int(re.search(r"k(\d+)", ins.opcode)[1])
    d, a, b, c = (operand.items for operand in ins.operands)
    warps, bits = active_warps(machine), max(matrices.BITS[kind_a], 32)
    a = matrices.unpack(kind_a, read_registers(machine, a, warps, bits))
    b = matrices.unpack(kind_b, read_registers(machine, b, warps, bits))
    a = matrices.gathered(matrices.a_places(*a.shape[1::2]), a)
    b = matrices.gathered(matrices.b_places(*b.shape[1::2]), b)
    assert a.shape[2] == b.shape[1] == depth, f"{a.shape} by {b.shape} is not of depth {depth}"
    c = read_accumulators(machine, to, c, warps)
    places = matrices.d_places(c.shape[1])
    units = matrices.units_of(kind_a, machine.program.arch, False)
    result = matrices.product(kind_a, to, a, b, matrices.gathered(places, c), units, "satfinite" in words)
    write_accumulators(machine, to, d, warps, result[:, places[0], places[1]])


def row_places(machine, address, count, warps):
    """(warps, count, 8) places of the 16-byte rows of 8 × 8 matrices: lanes 0 to 7 name those of the first, 8 to 15 of the second, …"""
    lanes = (warps[:, None] * WARP + np.arange(8 * count)).reshape(-1)
    places = machine.shared_places(machine.address(address)[lanes], 16, lanes)
    return places.reshape(len(warps), count, 8)


@instruction("ldmatrix.sync.aligned.m8n8")
def ldmatrix(machine, ins):
    """8 × 8 matrices of 16-bit elements: lane 4g + t gets elements 2t and 2t + 1 of row g, or of column g with .trans."""
    registers, address = ins.operands[0].items, ins.operands[1]
    warps = active_warps(machine)
    rows = row_places(machine, address, len(registers), warps)
    matrix = machine.shared.reshape(-1)[rows[..., None] + np.arange(16)].view(np.uint16)
    if "trans" in ins.modifiers:
        matrix = matrix.swapaxes(2, 3)
    pairs = np.ascontiguousarray(matrix).view(U32)                                   # (warps, matrices, g, t)
    write_registers(machine, registers, warps, pairs.reshape(len(warps), len(registers), WARP))


@instruction("stmatrix.sync.aligned.m8n8")
def stmatrix(machine, ins):
    """The way back of ldmatrix."""
    address, registers = ins.operands[0], ins.operands[1].items
    warps = active_warps(machine)
    pairs = read_registers(machine, registers, warps).reshape(len(warps), len(registers), 8, 4)
    matrix = pairs.view(np.uint16)
    if "trans" in ins.modifiers:
        matrix = np.ascontiguousarray(matrix.swapaxes(2, 3))
    lanes = (warps[:, None] * WARP + np.arange(8 * len(registers))).reshape(-1)
    machine.store_shared(machine.address(address)[lanes], matrix.view("V16").reshape(-1), lanes)
