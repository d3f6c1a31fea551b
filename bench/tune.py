"""bench tune [FAMILY …]: every candidate of every kernel that the workloads launch, checked against the first and timed.

A FAMILY is a family of workloads (memory, rows, matmul, …) or of kernels (softmax, pointwise, …, as `tuner.choose` names them); default:
all. All candidates are compiled by all cores first. What is chosen goes to tritorch/cuda/tables/sm_XX.json after every workload, with a
copy to --out, where tune.csv has the time of every candidate.
With --warm launches follow each other and find in the cache what fits there, as where a graph is replayed.
With --compile-only nothing is timed and no GPU is needed: the cache is filled for --arch, failures and spills are listed.
"""
import collections
import contextlib
import csv
import json
import math
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import ahead, anchors, gpu, watch

SILENCE = 60                                                     # s: longer than all candidates of any problem take
CSV = "family", "key", "candidate", "microseconds", "chosen", "refused"
SPILLS = 64                                                      # bytes a thread from which on they are listed


def main(args):
    every = [*anchors.FAMILIES, "gpt2"]
    words = [*every, *args.families] if "all" in args.families else args.families
    workloads = [w for w in [*every, "cards", "host", "samples", "tests"] if w in words] or every
    families = [f for f in words if f not in (*workloads, "all")]
    if args.rehearse:
        workloads = [w for w in workloads if w in anchors.FAMILIES]          # the others have real sizes alone
    deadline = time.monotonic() + 60 * args.minutes
    if args.compile_only:
        left = lambda: (deadline - time.monotonic()) / 60
        others, tuned = ([w for w in workloads if (w in every) is kind] for kind in (False, True))
        if others:                                               # what tests and host launch: as they launch it, not in every way
            ahead.compile_all(others, args.only, arch_of(args.arch), minutes=left())
        return report(ahead.compile_all(tuned, args.only, arch_of(args.arch), candidates=True, minutes=left()) if tuned else [])
    if not (args.rehearse or gpu.usable()):
        print("tune: expected an NVIDIA GPU, got none; --compile-only --arch sm_90 needs none")
        return 1
    if not (args.rehearse or args.ready):
        ahead.compile_all(workloads, args.only, candidates=True, minutes=args.minutes / 2)
    state = dict(workloads=workloads, families=families, only=args.only, known={}, broken={}, unchecked=[], rehearse=args.rehearse, start=0,
                 warm=args.warm)
    path = table_path(args)
    session = Session(state, path, args.out)
    while time.monotonic() < deadline and session.go(deadline):
        pass
    session.close()
    return 0


def arch_of(text):
    return int(text.removeprefix("sm_")) if text else None


def table_path(args):
    from tritorch.cuda import driver, tuner

    if args.rehearse:
        return Path(args.out or tempfile.mkdtemp(prefix="tritorch-rehearsal-")) / "sm_90.json"
    return tuner.shipped_path(driver.current().device_properties(0))


def report(compiled):
    """Failures were listed; what spills is listed here."""
    from tritorch.cuda.compiler import CompileError, resources
    from tritorch.cuda.compiler_pool import cores

    good = {str(spec): c for spec, c in compiled if not isinstance(c, CompileError)}
    with ThreadPoolExecutor(cores()) as pool:                    # each asks a program of CUDA's, for 10 ms
        spills = zip((found["spills"] for found in pool.map(resources, good.values())), good)
        for nbytes, shown in sorted(spills, reverse=True):
            if nbytes >= SPILLS:
                print(f"{nbytes} bytes spilled: {shown[:300]}")
    return 0


class Session:
    """What was chosen so far, over as many processes as it takes."""

    def __init__(self, state, path, out=None):
        self.state, self.path, self.out, self.at, self.cut = state, path, out and Path(out), "", False
        self.chosen, self.rows = collections.defaultdict(list), []
        self.gains, self.refused, self.failed = collections.defaultdict(list), [], []

    def go(self, deadline):
        """Run one process; whether another is to follow."""
        trying, before = None, (len(self.state["known"]), len(self.state["broken"]), self.state["start"])
        for message in watch.watch(["bench.tune_worker", json.dumps(self.state)], SILENCE, deadline):
            if "begin" in message:
                self.save()
                self.state["start"], self.at = message["begin"], message["name"]
                print(message["name"], flush=True)
            elif "trying" in message or "checking" in message:
                trying = message["problem"], message.get("trying")
            elif "chosen" in message:
                trying = None
                self.take(message)
            elif "failed" in message:
                self.failed.append(message["failed"])
                print(f"FAILED {message['failed']}", flush=True)
            elif "end" in message:
                self.save()
                return self.ended(message["end"], trying, before)
        return False

    def ended(self, reason, trying, before):
        self.cut = reason == "out of time"
        if not reason or self.cut:
            return False
        if trying and trying[1] is None:
            self.failed.append(f"{trying[0]}: the check of its candidates: {reason}")
            self.state["unchecked"].append(trying[0])
            return True
        if trying:
            self.refused.append(f"{trying[0]}: candidate {trying[1]}: {reason}")
            self.state["broken"].setdefault(trying[0], []).append(trying[1])
            return True
        self.failed.append(reason)
        self.state["start"] += 1
        return before[2] < self.state["start"] - 1 or len(self.state["known"]) > before[0]

    def take(self, message):
        family, key = json.loads(message["problem"])
        self.state["known"][message["problem"]] = message["use"]
        self.chosen[family].append({"key": key, "use": message["use"]})
        us = message["us"]
        first, best = us.get("0"), us.get(str(message["chosen"]))
        gain = first / best if first and best else math.nan
        if first and best:
            self.gains[family].append(gain)
        print(f"  {family} {key}: {message['use']}  {best or 0:.1f} µs, first {first or 0:.1f} µs, gain {gain:.2f}", flush=True)
        for place, why in message["refused"].items():
            candidate = message["candidates"][int(place)] if place != "check" else ""
            self.refused.append(f"{family} {key}: {candidate}: {why}")
            print(f"  REFUSED {self.refused[-1]}", flush=True)
        ended = dict.fromkeys(self.state["broken"].get(message["problem"], ()), "its process ended")
        for place, candidate in enumerate(message["candidates"]):
            why = message["refused"].get(str(place)) or ended.get(place, "")
            time_us = f"{us[str(place)]:.2f}" if str(place) in us else ""
            self.rows.append((family, json.dumps(key), json.dumps(candidate), time_us, int(place == message["chosen"]), why))

    def save(self):
        from tritorch.cuda import tuner

        if self.chosen:
            tuner.ship(self.path, self.chosen)
            with contextlib.suppress(OSError):                   # no room there: it is in its own place all the same
                if self.out:
                    self.out.mkdir(parents=True, exist_ok=True)
                    with (self.out / "tune.csv").open("w", newline="", encoding="utf-8") as file:
                        csv.writer(file, lineterminator="\n").writerows([CSV, *self.rows])
                    if self.out != self.path.parent:
                        shutil.copy(self.path, self.out / self.path.name)

    def close(self):
        print(f"\ntable: {self.path}")
        if self.cut:
            family, later = self.at.partition(":")[0], self.state["workloads"]
            later = later[later.index(family) + 1:] if family in later else later
            print(f"out of time at {self.at or 'the start'}; not reached: {', '.join(later) or 'the rest of it'}")
        for family, gains in sorted(self.gains.items()):
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            print(f"{family}: {len(gains)} problems, gain over the first candidate {mean:.3f} in the mean, {max(gains):.2f} at most")
        for title, found in (("candidates refused", self.refused), ("failed", self.failed)):
            print(f"\n{len(found)} {title}")
            print("\n".join(f"  {line}" for line in found), flush=True)
