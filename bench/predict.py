"""bench predict [FAMILY …]: where a GPU's time would go, worked out from the compiled kernels without one.

Each case of the table of anchors is built at its real size on the machine that executes PTX (tritorch.testing.ptx). Of every launch a few
CTAs run; their instructions and addresses go through the timetable of one multiprocessor (sm.py). What comes out is a prediction, good for
telling a kernel that waits for memory from one that computes too much or asks for too little at a time, not a measurement.

It does not know: that power takes clocks away from what is no product; how deep their queues are; in which order ptxas issues
instructions between two waits, and what it spills; how long programs wait for each other; which of what comes without TMA
CTAs read too that are not among the few just before; the last round of a trace that was cut off, what its causal blocks compute in vain,
and whether its beginning is like the rest; what is in the second cache when a launch begins; bank conflicts of products; how much more
or less the few CTAs of a sample have to do than others, where data decide (a gradient of an embedding: 74 µs of 8, 93 of 40).
"""
import contextlib
import importlib
from dataclasses import dataclass

import numpy as np

from bench import anchors, cost, left_out, rows, sass, sm, warps
from bench.gpu import OF_COPY
from bench.launches import Beside, watching
from bench.sides import Sides
from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import LaunchError
from tritorch.testing.ptx import device, trace

FAMILIES, ARITHMETIC = ("memory", "rows", "index", "optim", "matmul", "attention", "gpt2"), ("matmul", "attention", "conv")
DENSE = 989.0                                                    # TFLOP/s of 16-bit matrices that NVIDIA names, at a clock of 1.83 GHz
GAP = 1.0                                                        # µs between two launches of a graph
START = 4.0                                                      # µs of a call beside its work, by 66 rows of an H200: to begin, and to end
_TABLE = 10e6                                                    # bytes of a tensor that is in the second cache while many read it
_LONGEST = 400_000                                               # instructions of warps that one timetable takes in
STEPS = 40_000                                                  # instructions of the PTX machine until a long loop is known
_FEW = 4_000_000                                                 # instructions of warps that the PTX machine executes in about a second
_SHARES = {"matmul_exact_kernel": 6, "matmul_exact_gluon_kernel": 6, "matmul_groups_gluon_kernel": 6,
           "attention_backward_q_gluon_kernel": 3 / 5, "attention_backward_kv_gluon_kernel": 4 / 5,
           "attention_backward_wide_q_gluon_kernel": 3 / 5, "attention_backward_wide_kv_gluon_kernel": 4 / 5,
           "attention_backward_q_kernel": 3 / 5}                 # of a case's operations, 1 elsewhere
_LISTS = ("attention_blocks_kernel",)                            # what these write decides what later launches do: all of them runs


class TooLong(RuntimeError):
    """A launch that cannot be predicted from the part of it that is traced."""


@dataclass
class Prediction:
    """One launch: µs; of each resource the share of the time for which it has work; bytes moved; CTAs on one multiprocessor; cycles that
    warps wait for what came of loads, shuffles, …; operations on the matrix units, of all multiprocessors."""

    name: str
    us: float
    uses: dict
    nbytes: float
    resident: int
    waits: dict
    operations: float

    @property
    def binds(self):
        """The busiest resource, or what is waited for where none is busy."""
        most = max(self.uses, key=self.uses.get)
        if self.uses[most] > 0.85 or not self.waits:
            return most
        return f"{most}, waits for {max(self.waits, key=self.waits.get)}"


def predict(traced, occupancy, operations=0, busy=1.0, memory=None):
    """The timetable of a launch. Where its trace is not whole: `operations` on the matrix units all of it has, `busy` is the share of the
    multiprocessors that have a tile, over all waves of them. The `memory` of the device tells what a tensor is."""
    program, total = traced.kernel.program, int(np.prod(traced.launch.grid))
    ops = cost.operations(program, traced.kernel.cubin)
    ranks = cost.order(program, ops)
    blocks = [[cost.scheduled(warp, ops, ranks) for warp in traced.of_block(i)] for i in range(len(traced.blocks))]
    each = -(-total // sm.MULTIPROCESSORS)
    resident = max(1, min(occupancy, each))
    length = np.mean([sum(map(len, warps)) for warps in blocks])
    count = int(min(each, max(6 * resident, 24), max(resident, _LONGEST // length)))
    common = warps.private(blocks)
    active = min(total, sm.MULTIPROCESSORS)
    programs = total / len(blocks)
    near = traced.near if memory is None else [n | more for n, more in zip(traced.near, tables(blocks, programs, memory))]
    done = sum(op.operations for block in blocks for warp in block for op, _ in warp) * programs
    if not traced.whole and not done:
        raise TooLong(f"{program.name} does more than is traced, and nothing tells how much more")
    reads = programs if traced.whole else programs * operations / done
    one = sm.Multiprocessor(resident, traced.launch.shared, active, sharers(traced, active, reads))
    ends = one.run(lambda i: _turn(blocks[i % len(blocks)], i // len(blocks), common, near[i % len(blocks)]), count)
    last = max(ends[-1], one.dram_free)
    cycles, scale = last, total / count
    if not traced.whole:
        scale = operations / one.operations
        cycles = last * scale / active / busy
    elif each > count:                                           # the others go on as these did
        cycles = last + (each - count) * pace(ends, resident)
    uses = {pipe: busy / (1 if pipe == "lsu" else sm.SCHEDULERS) / last for pipe, busy in one.busy.items() if pipe != "none"}
    uses |= {"memory": one.dram_bytes / one.dram / last, "second cache": one.second_bytes / sm.L2 / last,
             "issue": one.issued / sm.SCHEDULERS / last, "shared": one.shared_used / last}
    if traced.whole:
        cycles = max(cycles, max(uses.values()) * last * each / count)
    cycles *= max(1.0, uses.get("tensor", 0.0) * sm.CLOCK / sm.POWERED)
    return Prediction(program.name, cycles / sm.CLOCK * 1e6, uses, one.dram_bytes * scale, resident, one.waited, one.operations * scale)


def tables(blocks, programs, memory):
    """Of each CTA of the sample the sectors of small tensors that all of it reads, and of which all `programs` such samples read every byte
    twice and more. (Of many parameters each CTA has another.)"""
    starts, ends = np.array(memory.starts), np.array(memory.ends)
    loaded, owners = [], []
    for block in blocks:
        found = [touched for warp in block for op, touched in warp if op.kind == "load" and isinstance(touched, np.ndarray)]
        sectors = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        loaded.append(sectors[sectors * 32 >= starts[0]])                # below it are tensors that are gone
        owners.append(np.searchsorted(starts, loaded[-1] * 32, "right") - 1)
    sizes = ends - starts
    reads = np.bincount(np.concatenate(owners), minlength=len(starts)) * 32 * programs
    readers = np.bincount(np.concatenate([np.unique(owner) for owner in owners]), minlength=len(starts))
    often = (sizes <= _TABLE) & (reads >= 2 * sizes) & (readers == len(blocks))
    return [set(sectors[often[owner]].tolist()) for sectors, owner in zip(loaded, owners)]


def pace(ends, resident):
    """Cycles from the end of a CTA to that of the next one, once the first quarter of them has ended. CTAs that began together end
    together: as many as are resident make a round, and only whole rounds tell how long one takes; the mean over all of the longest such
    stretches, as one may begin or end late by chance."""
    if len(ends) == 1:
        return ends[0]
    first = len(ends) // 4
    rest = len(ends) - 1 - first
    rest = rest // resident * resident or rest
    return float(np.mean([ends[i + rest] - ends[i] for i in range(first, len(ends) - rest)])) / rest


def sharers(traced, active, reads):
    """Of each tensor that is read by TMA, how many multiprocessors get a byte for each time that it comes from memory: all who read it if
    the tensors stay in the second cache, else those of a wave of tiles at best, which lies as a square. The whole launch reads `reads`
    times what is traced."""
    read, whole = {}, {}
    for warp in traced.warps:
        for _, touched in warp:
            if touched.__class__ is trace.Copy and touched.barrier is not None:
                read[touched.tensor] = read.get(touched.tensor, 0) + touched.there
                whole[touched.tensor] = touched.whole
    most = np.inf if sum(whole.values()) < sm.SECOND_CACHE else active ** 0.5
    return {tensor: max(1, min(most, nbytes * reads / whole[tensor])) for tensor, nbytes in read.items()}


def _turn(warps, turn, common, near):
    """The same work on other memory: what only this CTA touches is somewhere else in each turn. What those `near` it touch too is in the
    second cache."""
    moved = {}

    def place(touched):
        if not isinstance(touched, np.ndarray):
            return touched
        key = id(touched)
        if key not in moved:
            moved[key] = [s if s in common else s + (turn << 40) + (sm.CACHED if s in near else 0) for s in touched.tolist()]
        return moved[key]

    return [[(op, place(touched)) for op, touched in warp] for warp in warps]


def inputs(case, fake):
    """Tensors without a launch: numbers are zeros, places and masks are made on the host."""
    import tritorch

    with trace.skipping(fake):
        tensors = Sides(alone=True).inputs(case)[0]
    for wanted, x in zip(case.inputs, tensors):
        if wanted.high is not None:
            x.copy_(tritorch.from_numpy(np.random.default_rng(0).integers(0, wanted.high, wanted.shape)))
    return tensors


def seeing(fake, operations):
    """Inside, launches of a call of so many `operations` on matrix units are traced."""
    return trace.tracing(fake, whole=_LISTS, **({"limit": STEPS} if operations else {"near": trace.NEAR, "few": _FEW}))


@contextlib.contextmanager
def completing(account, memory):
    """Inside, the account watches, and what CTAs left out would have written is made where others decide by it."""
    account.then = lambda launch, given: left_out.complete(given, memory)
    try:
        with watching(account):
            yield
    finally:
        account.then = None


def launches(fake, thunk, operations=0, account=None):
    """[Prediction] of what a call of so many `operations` on matrix units launches; as much of each is traced as tells its speed. An
    `account` (launches.Beside) tells what a part of a trace does not: how many multiprocessors have a tile in the last wave, and how many
    blocks are on the lists that a launch goes by."""
    with seeing(fake, operations) as found, completing(account, fake.memory) if account else contextlib.nullcontext():
        first = len(account.launches) if account else 0
        thunk()
    predictions = []
    for i, traced in enumerate(found):
        if differs := sass.waits(traced.kernel.program, traced.kernel.cubin):
            print(f"    ptxas waits otherwise in {traced.kernel.program.name}: {differs}", flush=True)
        some, busy = operations * _SHARES.get(traced.kernel.program.name, 1), 1.0
        if account:
            launch = account.launches[first + i]
            some, busy = launch.flops if launch.listed else some, launch.busy
        predictions.append(predict(traced, resident(fake, traced), some, busy, fake.memory))
    return predictions


def resident(fake, traced):
    """CTAs of a launch that fit one multiprocessor."""
    handle = next(h for h, thing in fake.objects.items() if thing is traced.kernel)
    return fake.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, traced.launch.threads, traced.launch.shared)[1]


def together(predictions):
    """µs of a call that launches these one after the other."""
    return START + sum(p.us for p in predictions) + GAP * (len(predictions) - 1)


def candidates_first(fake, operations, account=None):
    """For `tuner.measuring`: prints what every candidate is predicted to take; the first one is what runs."""
    def measure(family, key, candidates, run, known):
        if len(candidates) > 1:
            times = []
            for candidate in candidates:
                with contextlib.suppress(Exception):             # one that does not fit the machine is no candidate
                    times.append((together(launches(fake, lambda: run(candidate), operations, account)), candidate))
            print(f"  {family} {key}: " + ", ".join(f"{us:.1f} {tuner.plain(c)}" for us, c in times), flush=True)
        return candidates[0]

    return measure


def predicted(fake, family, case, candidates=False, account=None):
    """[Prediction] of a case; empty where its kernels go by what the CTAs left out would have written, and nobody makes it for them."""
    import tritorch

    operations = case.operations / case.full if family in ARITHMETIC else 0
    tritorch.cuda.empty_cache()
    fake.memory.clear_free()                                     # or CTAs left out seem to have written what an earlier case did
    with anchors.precision(tritorch, case.precision):
        with trace.skipping(fake):
            thunk = case.build(tritorch, *inputs(case, fake))
            if not candidates:
                thunk()                                          # what comes once, such as an optimizer's state, is no part of it
        try:
            if candidates:                                       # they may go by what launches before them write
                with seeing(fake, operations), tuner.measuring(candidates_first(fake, operations, account)):
                    thunk()
            return launches(fake, thunk, operations, account)
        except (LaunchError, TooLong) as error:
            print(f"  {family}: {case.name}: {str(error.__cause__ or error)[:160]}")
            return []


def show(prediction, nbytes):
    """A line about a launch of a case that has to move so many bytes."""
    p = prediction
    uses = sorted(p.uses.items(), key=lambda use: -use[1])[:4]
    waits = sorted(p.waits.items(), key=lambda wait: -wait[1])[:2]
    print(f"    {p.name:28} {p.us:8.1f} µs  {', '.join(f'{name} {share:.0%}' for name, share in uses)}; "
          f"{p.nbytes / max(nbytes, 1):.2f} of the bytes, {p.resident} CTAs, waits for {', '.join(kind for kind, _ in waits)}", flush=True)


def row_of(family, case, us):
    if family in ARITHMETIC:
        return rows.row(f"{family}: {case.name}", "TFLOP/s", case.operations / us / 1e6, limit=DENSE)
    return rows.row(f"{family}: {case.name}", "GB/s", case.nbytes / us / 1e3, limit=sm.COPY / 1e9)


def main(args):
    families, table = args.families or FAMILIES, []
    with device.simulate(90) as fake:
        account = Beside(driver.current())
        for family, case in anchors.cases([f for f in families if f != "gpt2"]):
            found = predicted(fake, family, case, args.candidates, account) if rows.asked(args.only, case.name) else []
            if found:
                us = together(found)
                table.append(row_of(family, case, us))
                binds = max(found, key=lambda p: p.us).binds
                print(f"{family}: {case.name}: {us:.1f} µs, {table[-1].ours:.0f} {table[-1].unit}, {table[-1].share_of_limit:.2f} of "
                      f"{'the units' if family in ARITHMETIC else 'the copy'}: {binds}", flush=True)
                for prediction in found:
                    if prediction.us > us / 50:
                        show(prediction, case.nbytes)
        if "gpt2" in families and not args.only:
            table += importlib.import_module("bench.predict_step").table(fake, account)
    low = sorted((row.share_of_limit, row.name) for row in table if row.unit == "GB/s" and row.share_of_limit < OF_COPY)
    print(f"\n{len(low)} below {OF_COPY} of the copy", *(f"  {share:.2f} {name}" for share, name in low), sep="\n")
    rows.record("predict", table, "python -m bench predict", "a prediction for the H200, nothing was measured", show=False,
                keep=not (args.only or args.families))
    return 0
