"""PTX instruction -> what it costs a multiprocessor (sm.py), by NVIDIA's throughput table for compute capability 9.0.

PTX is not machine code: what ptxas makes disappear (copies of registers, packing, parameters) costs nothing here, what it joins costs
half, and a stretch without branches is put into an order in which little is waited for.
"""
import collections
import heapq
import re

from bench import sass
from bench.sm import LATENCY, Op
from tritorch.testing.ptx.operands import Address, Label, Not, Pair, Register, Vector
from tritorch.testing.ptx.trace import touches

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
    (r"bra|brx", "alu", 1, 8),
    (r"ldmatrix|stmatrix", "lsu", 4, 33),
    (r"wgmma.fence|setmaxnreg|fence.proxy|bar.warp", "none", 0.5, 0),
    (r"", "alu", 2, 5),
]]


def operations(program, cubin):
    """The cost of every instruction, so that all of them together keep every pipe as busy as what ptxas made of them."""
    ops = [_op(ins) for ins in program.code]
    total, cycles = sass.busy(cubin, sass.copies(program, cubin))
    counted = collections.Counter()
    for op in ops:
        counted[op.pipe] += op.busy
    slots = total / sum(op.kind != "free" for op in ops)
    for op in ops:
        op.slots = 1.0 if op.kind == "product" else slots
        if op.pipe in ("alu", "fma", "mufu", "double") and cycles[op.pipe]:
            op.busy *= cycles[op.pipe] / counted[op.pipe]
    return ops


# beginnings of opcodes, kind
_ASYNCHRONOUS = [("wgmma.mma_async", "product"), ("wgmma.commit_group", "commit"), ("wgmma.wait_group", "products"),
                 ("cp.async.bulk.tensor", "copy"), ("cp.async.bulk.commit_group", "commit copies"), ("cp.async.bulk.wait_group", "copies"),
                 ("cp.async.commit_group", "commit copies"), ("cp.async.wait_group", "copies"), ("mbarrier.init", "init"),
                 ("mbarrier.arrive.expect_tx", "expect"), ("mbarrier.arrive", "arrive"), ("mbarrier.try_wait", "await"),
                 ("bar.sync", "barrier"), ("barrier.cluster", "free"), ("barrier", "barrier"), ("ret", "end"), ("exit", "end")]
_MMA_SYNC = 0.63                                                 # of wgmma's rate, by Luo et al., "Benchmarking and Dissecting the Nvidia
                                                                 # Hopper GPU Architecture via Microbenchmarking" (2024)
_WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


def _op(ins):
    """The cost of one instruction by its name."""
    reads, writes = _registers(ins)
    name, opcode = ins.name, ins.opcode
    kind = next((kind for start, kind in _ASYNCHRONOUS if opcode.startswith(start)), None)
    if kind == "product":
        return _product(ins, reads)
    if kind:
        number = ins.operands[-1].value if kind in ("products", "copies") else 0
        return Op(kind, "lsu" if name == "mbarrier" else "none", 1, 0, reads, writes, number=number)
    if opcode.startswith("mma.sync"):
        rows, columns, depth = map(int, re.search(r"m(\d+)n(\d+)k(\d+)", opcode).groups())
        width = next((_WIDTHS[word] for word in opcode.split(".")[::-1] if word in _WIDTHS), None)
        rate = 512 * 16 / width * _MMA_SYNC if width else 32     # of float64
        return Op("mma", "tensor", rows * columns * depth / rate, 33, reads, writes, operations=2 * rows * columns * depth)
    if touches(ins, "global") and name != "red":
        return Op("store" if name == "st" else "load", "lsu", 1, 0, reads, writes, number=opcode.startswith("cp.async.cg"))
    if touches(ins, "shared") or touches(ins, "global"):
        return Op("add" if name == "red" and touches(ins, "global") else "shared", "lsu", 1, LATENCY["shared"], reads, writes)
    for pattern, pipe, busy, latency in _TABLE:
        if pattern.match(opcode):
            return Op("free" if not busy else "shuffle" if pipe == "lsu" else pipe, pipe, busy, latency, reads, writes)


def _product(ins, reads):
    """One warp's quarter of a wgmma of 64 rows. 32 bytes of each row and column are multiplied in a clock for two columns, 64 · 16 · 2
    products of 16 bits. Shared memory gives 128 bytes a clock: the columns once for the group, and the rows that are not in registers. So
    Luo et al. found 18 clocks for 8 columns, 24 for 32, 32 for 64 and 128 for 256, and from registers the rate alone."""
    columns, depth = map(int, re.search(r"m64n(\d+)k(\d+)", ins.opcode).groups())
    rows = 0 if ins.operands[1].__class__ is Vector else 16
    return Op("product", "none", columns / 2, 0, reads, (), shared=(columns / 4 + rows) / 4, operations=2 * 16 * columns * depth)


def _registers(ins):
    """Numbers of the registers that an instruction reads, and of those it writes."""
    reads, writes = [], []
    into = [] if ins.name in ("st", "red", "bra", "bar", "barrier", "ret", "wgmma", "cp") else ins.operands[:1]
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


_FROM_MEMORY = 600                                               # cycles: loads are wanted early
_APART = {kind for _, kind in _ASYNCHRONOUS} - {"commit copies"}


def order(program, ops):
    """(block, rank) of every place, about as ptxas puts them: blocks are stretches without branches or barriers."""
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
        if ins.control or ops[place].kind in _APART:
            _rank(code, ops, first, place + 1, block, ranks)
            first, block = place + 1, block + 1
    _rank(code, ops, first, len(code), block, ranks)
    return ranks


def _rank(code, ops, first, end, block, ranks):
    """Issue in each cycle what the longest way to the end of the stretch depends on, of what is ready and has a free pipe."""
    after, missing = _dependencies(code, ops, first, end)
    delay = {place: _FROM_MEMORY if ops[place].kind == "load" else ops[place].latency for place in missing}
    height = {}
    for place in reversed(range(first, end)):
        height[place] = max([height[p] + delay[place] * value for p, value in after[place]], default=0.0)
    coming, ready, free, now = [(0.0, place) for place in missing if not missing[place]], {}, {}, 0.0
    times = dict.fromkeys(missing, 0.0)
    for rank in range(end - first):
        while True:
            while coming and coming[0][0] <= now:
                _, place = heapq.heappop(coming)
                heapq.heappush(ready.setdefault(ops[place].pipe, []), (-height[place], place))
            open_pipes = [pipe for pipe in ready if ready[pipe] and free.get(pipe, 0.0) <= now]
            if open_pipes:
                break
            now = min([time for time, _ in coming[:1]] + [free[pipe] for pipe in ready if ready[pipe]])
        pipe = min(open_pipes, key=lambda pipe: ready[pipe][0])
        _, place = heapq.heappop(ready[pipe])
        ranks[place], free[pipe] = (block, rank), now + ops[place].busy
        for other, value in after[place]:
            times[other] = max(times[other], now + delay[place] * value)
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(coming, (times[other], other))
        now += ops[place].kind != "free"


def _dependencies(code, ops, first, end):
    """(for each place those that come after it and whether they take its value, for each place how many must come before it). Shared memory
    is accessed in order, as is global memory from the first store on; what ends a stretch is its last instruction."""
    store = next((p for p in range(first, end) if ops[p].kind == "store" or code[p].name in ("atom", "red", "cp")), end)
    after, missing = collections.defaultdict(list), dict.fromkeys(range(first, end), 0)
    writer, readers, access = {}, collections.defaultdict(list), None
    for place in range(first, end):
        op = ops[place]
        needs = {(other, False) for r in op.writes for other in (*readers[r], writer.get(r, place))}
        needs |= {(writer[r], True) for r in op.reads if r in writer}
        if op.kind in ("store", "add", "shared") or place >= store and op.kind == "load":
            needs |= {(access, False)} if access is not None else set()
            access = place
        if place == end - 1 and (code[place].control or op.kind in _APART):
            needs |= {(other, False) for other in range(first, place)}
        for other, value in needs:
            if other != place:
                after[other].append((place, value))
                missing[place] += 1
        for r in op.reads:
            readers[r].append(place)
        for r in op.writes:
            writer[r], readers[r] = place, []
    return after, missing


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
