"""bench predict [FAMILY …]: where a GPU's time would go, worked out from the compiled kernels without one.

Each case of the table of anchors is built at its real size on the machine that executes PTX (tests/ptx). Of every launch a few CTAs run;
their instructions and addresses go through the timetable of one multiprocessor (sm.py). What comes out is a prediction, good for
telling a kernel that waits for memory from one that computes too much or asks for too little at a time, not a measurement.
"""
import contextlib
import sys
from dataclasses import dataclass

import numpy as np

from bench import anchors, rows
from bench.gpu import OF_COPY
from bench.sides import Sides
from tritorch.cuda import tuner
from tritorch.cuda.launch import LaunchError

sys.path.insert(0, str(rows.ROOT / "tests"))

from ptx import device, trace  # noqa: E402  the folder of the tests is no package

from bench import cost, sm  # noqa: E402

FAMILIES = ("memory", "rows", "index", "optim")
GAP = 1.0                                                        # µs between two launches of a graph
_LONGEST = 400_000                                               # instructions of warps that one timetable takes in


@dataclass
class Prediction:
    """One launch: µs; the share of the time for which memory, issue slots and the busiest pipe have work; bytes moved; CTAs on one
    multiprocessor; cycles that warps wait for what came of loads, shuffles, …"""

    name: str
    us: float
    memory: float
    issue: float
    pipe: tuple
    nbytes: float
    resident: int
    waits: dict


def predict(traced, occupancy):
    """The timetable of a launch."""
    program, total = traced.kernel.program, int(np.prod(traced.launch.grid))
    ops = cost.operations(program, traced.kernel.cubin)
    ranks = cost.order(program, ops)
    blocks = [[cost.scheduled(warp, ops, ranks) for warp in traced.of_block(i)] for i in range(len(traced.blocks))]
    each = -(-total // sm.MULTIPROCESSORS)
    resident = max(1, min(occupancy, each))
    length = np.mean([sum(map(len, warps)) for warps in blocks])
    count = int(min(each, max(6 * resident, 24), max(resident, _LONGEST // length)))
    common = sm.private(blocks)
    one = sm.Multiprocessor(resident, traced.launch.shared, min(total, sm.MULTIPROCESSORS))
    ends = one.run(lambda i: _turn(blocks[i % len(blocks)], i // len(blocks), common), count)
    last = max(ends[-1], one.dram_free)
    if each > count:                                             # the rest goes on as the middle of these did
        quarter = len(ends) // 4
        rate = (ends[-1 - quarter] - ends[quarter]) / (len(ends) - 1 - 2 * quarter) if len(ends) > 1 else last
        cycles = max(last + (each - count) * rate, one.dram_bytes / one.dram * each / count)
    else:
        cycles = last
    pipe = max(one.busy, key=lambda p: one.busy[p] / (1 if p == "lsu" else sm.SCHEDULERS))
    scale = total / count
    return Prediction(program.name, cycles / sm.CLOCK * 1e6, one.dram_bytes / one.dram / last, one.issued / sm.SCHEDULERS / last,
                      (pipe, one.busy[pipe] / (1 if pipe == "lsu" else sm.SCHEDULERS) / last), one.dram_bytes * scale, resident, one.waited)


def _turn(warps, turn, common):
    """The same work on other memory: what only this CTA touches is somewhere else in each turn."""
    if not turn:
        return warps
    moved = {}

    def place(touched):
        if not isinstance(touched, np.ndarray):
            return touched
        key = id(touched)
        if key not in moved:
            moved[key] = [s if s in common else s + (turn << 40) for s in touched.tolist()]
        return moved[key]

    return [[(op, place(touched)) for op, touched in warp] for warp in warps]


def inputs(case, fake):
    """Tensors without a launch: numbers are zeros, places are drawn on the host."""
    import tritorch

    with trace.skipping(fake):
        tensors = Sides(alone=True).inputs(case)[0]
    for wanted, x in zip(case.inputs, tensors):
        if wanted.high is not None:
            x.copy_(tritorch.from_numpy(np.random.default_rng(0).integers(0, wanted.high, wanted.shape)))
    return tensors


def launches(fake, thunk):
    """[Prediction] of what a call launches."""
    with trace.tracing(fake) as found:
        thunk()
    predictions = []
    for traced in found:
        handle = next(h for h, thing in fake.objects.items() if thing is traced.kernel)
        resident = fake.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, traced.launch.threads, traced.launch.shared)[1]
        predictions.append(predict(traced, resident))
    return predictions


def together(predictions):
    """µs of launches one after the other."""
    return sum(p.us for p in predictions) + GAP * (len(predictions) - 1)


def candidates_first(fake):
    """For `tuner.measuring`: prints what every candidate is predicted to take; the first one is what runs."""
    def measure(family, key, candidates, run, known):
        if len(candidates) > 1:
            times = []
            for candidate in candidates:
                with contextlib.suppress(Exception):             # one that does not fit the machine is no candidate
                    times.append((together(launches(fake, lambda: run(candidate))), candidate))
            print(f"  {family} {key}: " + ", ".join(f"{us:.1f} {tuner.plain(c)}" for us, c in times), flush=True)
        return candidates[0]

    return measure


def predicted(fake, case, candidates=False):
    """[Prediction] of a case; empty where its kernels go by what the CTAs left out would have written."""
    import tritorch

    with anchors.precision(tritorch, case.precision):
        with trace.skipping(fake):
            thunk = case.build(tritorch, *inputs(case, fake))
            with tuner.measuring(candidates_first(fake)) if candidates else contextlib.nullcontext():
                thunk()                                          # what comes once, such as an optimizer's state, is no part of it
        try:
            return launches(fake, thunk)
        except LaunchError as error:
            print(f"  {str(error.__cause__)[:160]}")
            return []


def show(prediction, nbytes):
    """A line about a launch of a case that has to move so many bytes."""
    p, waits = prediction, sorted(prediction.waits.items(), key=lambda w: -w[1])[:2]
    print(f"    {p.name:28} {p.us:8.1f} µs  memory {p.memory:4.0%}  issue {p.issue:4.0%}  {p.pipe[0]} {p.pipe[1]:4.0%}  "
          f"{p.nbytes / max(nbytes, 1):5.2f} of the bytes  {p.resident} CTAs  waits for {', '.join(kind for kind, _ in waits)}", flush=True)


def main(args):
    table = []
    with device.simulate(90) as fake:
        for family, case in anchors.cases(args.families or FAMILIES):
            found = predicted(fake, case, args.candidates) if args.only in case.name else []
            if found:
                us = together(found)
                table.append(rows.row(f"{family}: {case.name}", "GB/s", case.nbytes / us / 1e3, limit=sm.COPY / 1e9))
                print(f"{family}: {case.name}: {us:.1f} µs, {table[-1].share_of_limit:.2f} of the copy", flush=True)
                for prediction in found:
                    if prediction.us > us / 50:
                        show(prediction, case.nbytes)
    low = sorted((row.share_of_limit, row.name) for row in table if row.share_of_limit < OF_COPY)
    print(f"\n{len(low)} of {len(table)} below {OF_COPY} of the copy", *(f"  {share:.2f} {name}" for share, name in low), sep="\n")
    rows.record("predict", table, "python -m bench predict", "a prediction for the H200, nothing was measured", show=False,
                keep=not (args.only or args.families))
    return 0
