"""python -m bench.gpu_worker: the process in which `bench gpu` measures; it says what it does as JSON lines, see bench.watch."""
import argparse
import dataclasses
import gc
import importlib
import importlib.util
import math
import traceback

from bench import anchors, clock, rows
from bench.sides import Sides, apart, limit
from bench.watch import say

PROGRAMS = 3.3                                                   # of the patience for a case: for a program that PyTorch compiles
ARITHMETIC = 50                                                  # operations a byte from which on arithmetic is the limit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="+")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--seconds", type=float, default=clock.SECONDS)
    parser.add_argument("--patience", type=float, default=90)
    args = parser.parse_args()
    if args.rehearse:
        rehearsal_device()
    clock.SECONDS = args.seconds
    sides = Sides(args.alone)
    limits = (1.0, 1.0) if args.rehearse else measured_limits(sides)
    release(sides)
    say(limits=limits, machine=facts(sides))
    for number, (family, name, measure) in enumerate(work(args, sides, limits)):
        if number < args.start or not rows.asked(args.only, name):
            continue
        say(begin=number, family=family, name=name, patience=args.patience * (1 if family in anchors.FAMILIES else PROGRAMS))
        try:
            found = measure()
        except Exception as error:                               # a row that fails is a row: the others go on
            traceback.print_exc()
            found = [dict(row=dataclasses.asdict(rows.row(f"{family}: {name}", "failed", None)), error=first_line(error))]
        for row in found:
            say(number=number, family=family, **row)
        gc.collect()
        release(sides)                                           # raises where the device is broken: the next process goes on
    say(done=True)


def rehearsal_device():
    """The simulated device, with a cache so small that clearing it costs nothing."""
    from tritorch.cuda.device import simulate

    device = simulate().driver
    device.properties = [dataclasses.replace(p, L2_cache_size=1 << 10) for p in device.properties]


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:400]


def facts(sides):
    import tritorch

    return [tritorch.cuda.get_device_name(), sides.torch and f"torch {sides.torch.__version__}"]


def release(sides):
    import tritorch

    for library in (tritorch, sides.torch if sides.on_gpu else None):
        if library is not None:
            library.cuda.synchronize()
            library.cuda.empty_cache()


def work(args, sides, limits):
    """(family, name, function that measures and returns messages) of everything that was asked for.

    A family beyond those of bench.anchors is a module bench.gpu_FAMILY: its `work(sides, rehearse)` yields (name, function that
    returns rows), its `programs(sides)` functions that launch on a dry device what has to be compiled."""
    size = anchors.tiny if args.rehearse else anchors.real
    for family in args.families:
        if family in anchors.FAMILIES:
            for _, case in anchors.cases([family], size):
                yield family, case.name, lambda family=family, case=case: measured(family, case, sides, limits)
        elif importlib.util.find_spec(f"bench.gpu_{family}"):
            for name, measure in importlib.import_module(f"bench.gpu_{family}").work(sides, args.rehearse):
                yield family, name, lambda family=family, measure=measure: [
                    dict(row=dataclasses.asdict(named(family, row))) for row in measure()]


def named(family, row):
    row.name = f"{family}: {row.name}"
    return row


def measured(family, case, sides, limits):
    """The message of a case: its row, microseconds by contestant, the error of our result."""
    import tritorch

    ours, theirs = sides.inputs(case)
    calls, libraries, problems, exact = {}, {}, [], None
    with anchors.precision(tritorch, case.precision):
        calls["tritorch"] = case.build(tritorch, *ours)
        libraries["tritorch"] = tritorch
        result = calls["tritorch"]()
        error, refused, agreed = None, "", False
        if theirs is not None:
            with anchors.precision(sides.torch, case.precision):
                for name, build in (case.opponents or {"torch": case.build}).items():
                    try:
                        call = build(sides.torch, *theirs)
                        want = call()
                    except Exception as problem:
                        problems.append(f"{name}: {first_line(problem)}")
                        continue
                    calls[name], libraries[name] = call, sides.torch
                    if not agreed:                               # the first opponent that runs is the reference
                        error, refused = apart(case, result, want, sides.torch)
                        exact = from_exact(case, build, theirs, (result, want), sides.torch) if case.exact else None
                        if exact and exact[0] <= limit(case):        # theirs is the one that is far from what is right
                            refused = ""
                        agreed = True
                    del want
                del result
                us, replayed = clock.microseconds(calls, libraries, not any(i.grad for i in case.inputs))
        else:
            us, replayed = clock.microseconds(calls, libraries, not any(i.grad for i in case.inputs))
    arithmetic = case.operations > ARITHMETIC * max(case.nbytes, 1)
    amount, unit, most = (case.operations / 1e12, "TFLOP/s", limits[1]) if arithmetic else (case.nbytes / 1e9, "GB/s", limits[0])
    best = min((n for n in us if n != "tritorch"), key=us.get, default=None)
    rate = lambda name: amount / (us[name] / 1e6)
    row = rows.row(f"{family}: {case.name}", unit, None if refused else rate("tritorch"), best and rate(best), best and
                   (best if best == "torch" else f"torch {best}"), limit=most)
    return [dict(row=dataclasses.asdict(row), us=us, replayed=replayed, aim=case.aim, relative_error=error, exact=exact,
                 error="; ".join(filter(None, [refused, *problems])))]


def from_exact(case, build, theirs, results, torch):
    """How far the two results are from what PyTorch makes of the same inputs in float64: ours, its own."""
    want = build(torch, *[t.detach().double() for t in theirs])()
    return [apart(dataclasses.replace(case, tolerance=math.inf), result, want, torch)[0] for result in results]


def measured_limits(sides):
    """GB/s of a device copy, read and written, and TFLOP/s of a bf16 product of 8192³: PyTorch's, where it is installed."""
    import tritorch

    torch = sides.torch or tritorch
    x, y = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copy, product = (clock.race({"call": call})["call"] for call in (lambda: y.copy_(x), lambda: a @ a))
    return 8 * (1 << 28) / 1e3 / copy, 2 * 8192**3 / 1e6 / product


if __name__ == "__main__":
    main()
