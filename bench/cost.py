"""PTX instruction -> what it costs a multiprocessor (sm.py), by NVIDIA's throughput table for compute capability 9.0.

PTX is not machine code: what ptxas makes disappear (copies of registers, packing, parameters) costs nothing here, what it joins costs
half, and in a stretch without branches the loads that nothing holds back come first, as ptxas puts them.
"""
import collections
import re

from ptx.operands import Address, Label, Not, Number, Pair, Register, Vector
from ptx.trace import touches

from bench import sass
from bench.sm import LATENCY, Op

# opcode, pipe, cycles that a warp keeps one scheduler's share of the pipe busy, latency
_TABLE = [(re.compile(pattern), *cost) for pattern, *cost in [
    (r"mov|cvta|ld\.param|ld\.const|bfind|cvt\.u64\.u32|cvt\.s64\.s32|cvt\.u16\.u8|cvt\.u32\.u64|cvt\.u32\.u8|cvt\.u32\.u16|cvt\.u16\.u32|griddepcontrol",
     "none", 0, 0),
    (r"(add|sub|mul|fma|neg|abs|min|max)\.(\w+\.)*f64", "double", 2, 16),
    (r"div\.(\w+\.)*f64|rcp.*f64|sqrt.*f64", "double", 60, 200),
    (r"(ex2|lg2|sin|cos|tanh|rcp|rsqrt|sqrt)\.approx", "mufu", 8, 24),
    (r"div\.(full|approx)", "mufu", 8, 34),
    (r"div\.rn\.f32|sqrt\.rn\.f32|rcp\.rn\.f32", "mufu", 20, 60),
    (r"(div|rem)\.[us]32", "alu", 44, 140),
    (r"(div|rem)\.[us]64", "alu", 160, 400),
    (r"(add|sub|mul|fma)\.(\w+\.)*(f32|f16x2|bf16x2|f16|bf16)", "fma", 1, 4),
    (r"mul\.wide|mad\.wide|mul\.hi|mad\.hi", "fma", 4, 6),
    (r"(mul|mad)\.lo\.[us]64", "fma", 10, 12),
    (r"(mul|mad)\.", "fma", 2, 5),
    (r"(add|sub|min|max|setp)\.(\w+\.)*[us]64", "alu", 4, 7),
    (r"(shl|shr|and|or|xor|not)\.b64|shr\.[us]64", "alu", 3, 7),
    (r"(and|or|xor|not|lop3)\.", "alu", 1.5, 5),
    (r"cvt\.rn\.(bf16|f16)\.f32", "alu", 1, 5),
    (r"cvt\..*f64|popc|clz|brev|bfind", "mufu", 8, 20),
    (r"shfl|vote|match|redux|activemask|elect", "lsu", 1, 24),
    (r"bra|ret|exit|brx", "alu", 1, 8),
    (r"ldmatrix|stmatrix", "lsu", 4, 33),
    (r"", "alu", 2, 5),
]]


def operations(program, cubin):
    """The cost of every instruction, so that all of them together keep every pipe as busy as what ptxas made of them."""
    ops = [_op(ins) for ins in program.code]
    total, cycles = sass.busy(cubin)
    counted = collections.Counter()
    for op in ops:
        counted[op.pipe] += op.busy
    slots = total / sum(op.kind != "free" for op in ops)
    for op in ops:
        op.slots = slots
        if op.pipe in ("alu", "fma", "mufu", "double") and cycles[op.pipe]:
            op.busy *= cycles[op.pipe] / counted[op.pipe]
    return ops


def _op(ins):
    """The cost of one instruction by its name."""
    reads, writes = _registers(ins)
    name = ins.name
    if touches(ins, "global") and name != "red":
        return Op("store" if name == "st" else "load", "lsu", 1, 0, reads, writes)
    if touches(ins, "shared") or touches(ins, "global"):
        return Op("store" if name == "red" else "shared", "lsu", 1, LATENCY["shared"], reads, writes)
    if ins.opcode.startswith(("bar.sync", "barrier")):
        numbers = [o.value if isinstance(o, Number) else -1 for o in ins.operands]
        return Op("barrier", "alu", 1, 0, reads, writes, (numbers[0], numbers[1] // 32 if len(numbers) > 1 else 0))
    for pattern, pipe, busy, latency in _TABLE:
        if pattern.match(ins.opcode):
            return Op("free" if not busy else "shuffle" if pipe == "lsu" else pipe, pipe, busy, latency, reads, writes)


def _registers(ins):
    """Numbers of the registers that an instruction reads, and of those it writes."""
    reads, writes = [], []
    into = [] if ins.name in ("st", "red", "bra", "bar", "barrier", "ret") else ins.operands[:1]
    for operand in into:
        _collect(operand, reads if isinstance(operand, Address) else writes)
    for operand in ins.operands[len(into):]:
        _collect(operand, reads)
    if ins.guard is not None:
        _collect(ins.guard, reads)
        reads += writes if ins.guard else []
    return tuple(reads), tuple(writes)


def _collect(operand, found):
    kind = operand.__class__
    if kind is Register:
        found.append(operand.index)
    elif kind is Not:
        found.append(operand.register.index)
    elif kind is Address:
        _collect(operand.base, found)
        for part in operand.rest:
            _collect(part, found)
    elif kind is Vector:
        for part in operand.items:
            _collect(part, found)
    elif kind is Pair:
        _collect(operand.first, found)
        _collect(operand.second, found)


def order(program, ops):
    """(block, rank) of every place: blocks are stretches without branches or barriers; in each of them the global loads that come before
    its first store, and what they need, have the lowest ranks."""
    code, targets = program.code, set()
    for ins in code:
        for operand in ins.operands:
            if operand.__class__ is Label:
                targets |= set(operand.target) if isinstance(operand.target, list) else {operand.target}
    ranks, block, first = [None] * len(code), 0, 0
    for place, ins in enumerate(code):
        if place in targets and place > first:
            _rank(code, ops, first, place, block, ranks)
            first, block = place, block + 1
        if ins.control or ops[place].kind == "barrier":
            _rank(code, ops, first, place + 1, block, ranks)
            first, block = place + 1, block + 1
    _rank(code, ops, first, len(code), block, ranks)
    return ranks


def _rank(code, ops, first, end, block, ranks):
    last = next((p for p in range(first, end) if ops[p].kind == "store" or code[p].name in ("atom", "red", "cp")), end)
    wanted = set()
    for place in reversed(range(first, end)):
        early = ops[place].kind == "load" and place < last or wanted.intersection(ops[place].writes)
        if early:
            wanted.difference_update(ops[place].writes)
            wanted.update(ops[place].reads)
        ranks[place] = block, not early, place


def scheduled(warp, ops, ranks):
    """What one warp did as [(Op, touched)], each stretch in the order of `ranks`."""
    out, stretch, current = [], [], None
    for place, touched in warp:
        block = ranks[place][0]
        if block != current or stretch and place <= stretch[-1][0]:
            out += sorted(stretch, key=lambda entry: ranks[entry[0]])
            stretch, current = [], block
        stretch.append((place, touched))
    out += sorted(stretch, key=lambda entry: ranks[entry[0]])
    return [(ops[place], touched) for place, touched in out]
