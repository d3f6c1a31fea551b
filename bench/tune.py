"""bench tune [FAMILY …]: every candidate of every kernel that the workloads launch, checked against the first and timed.

A FAMILY is a family of workloads (memory, rows, matmul, …) or of kernels (softmax, pointwise, …, as `tuner.choose` names them); default:
all. All candidates are compiled by all cores first. What is chosen goes to tritorch/cuda/tables/sm_XX.json after every workload, with a
copy to --out, where tune.csv has the time of every candidate and the clock that told it:
  cold  every launch finds an empty L2 cache on a GPU that has its full clock
  warm  with --warm launches follow each other and find in the cache what fits there, as where a graph is replayed
  hot   between heavy products, which hold the GPU at its power limit: its clock is lower there, and other candidates win (bench/hot.py).
        A few rounds of the cold clock tell which candidates are worth it. So the workload gpt2 is timed, first of all; --hot has all others
        timed so too, --no-hot none. A problem takes about a second of heavy work and what the check takes.
The table's entry of a problem that was timed hot is marked. A later run by another clock takes it as it is, unless --no-hot asks
for its time or it is no candidate any more.
With --in-step, after 0.6 of --minutes at most, the captured step of GPT-2 itself decides about its largest problems, in the rest of them:
bench/in_step.py says how. The hot clock's times are not taken again where tune.csv in --out has them.
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

from bench import ahead, anchors, gpu, in_step, watch

SILENCE = 60                                                     # s: longer than all candidates of any problem take
CSV = "family", "key", "candidate", "microseconds", "chosen", "refused", "clock"
SPILLS = 64                                                      # bytes a thread from which on they are listed
TIMED = 0.6                                                      # of the minutes with --in-step, which has the others


def main(args):
    every = ["gpt2", *anchors.FAMILIES]                          # what is hot first: where others meet its problems, they are settled
    words = [*every, *args.families] if "all" in args.families else args.families
    workloads = [w for w in [*every, "cards", "host", "samples", "tests"] if w in words] or every
    families = [f for f in words if f not in (*workloads, "all")]
    if args.rehearse:
        workloads = [w for w in workloads if w in every]         # the others have real sizes alone
    if args.warm and args.hot or args.in_step and ("gpt2" not in workloads or args.warm or args.hot is False):
        print("tune: expected one clock, and --in-step with the workload gpt2 and the hot one")
        return 2
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
    path = table_path(args)
    state = dict(workloads=workloads, families=families, only=args.only, known={}, kept=kept(path) if args.hot is None else {}, broken={},
                 unchecked=[], rehearse=args.rehearse, start=0, warm=args.warm, hot=args.hot)
    session = Session(state, path, args.out)
    timed = deadline
    if args.in_step:
        session.resume()
        timed = time.monotonic() + TIMED * (deadline - time.monotonic())
    while time.monotonic() < timed and session.go(timed):
        pass
    session.close()
    return in_step.judge(session, deadline) if args.in_step else 0


def kept(path):
    """{problem: choice} of what a table has from the hot clock."""
    from tritorch.cuda import tuner

    return {json.dumps([family, key]): use for family, key, use in tuner.hot_entries(path)}


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
        self.chosen, self.rows, self.heated = collections.defaultdict(list), [], {}      # {problem: [(µs of the hot clock, candidate)]}
        self.gains, self.refused, self.failed = collections.defaultdict(list), [], []

    def resume(self):
        """Take what an earlier command left in tune.csv from the hot clock; of the table's choices those that it made since stay."""
        found = []
        with contextlib.suppress(OSError, TypeError):            # no such folder; none was named
            with open(self.out / "tune.csv", newline="", encoding="utf-8") as file:
                found = [row for row in csv.DictReader(file) if row.get("clock") == "hot"]
        since = kept(self.path)
        for row in found:
            family, key, candidate = row["family"], json.loads(row["key"]), json.loads(row["candidate"])
            problem = json.dumps([family, key])
            self.heated.setdefault(problem, []).append((float(row["microseconds"]), candidate))
            self.rows.append(tuple(row[name] for name in CSV))
            if row["chosen"] == "1":
                self.state["known"][problem] = since.get(problem, candidate)
                if problem not in since:
                    self.chosen[family].append({"key": key, "use": candidate, "hot": True})

    def go(self, deadline):
        """Run one process; whether another is to follow."""
        trying, before = None, (len(self.state["known"]), len(self.state["broken"]), self.state["start"])
        for message in watch.watch(["bench.tune_worker", json.dumps(self.state)], SILENCE, deadline):
            if "begin" in message:
                self.save()
                self.state["start"], self.at = message["begin"], message["name"]
                print(message["name"], flush=True)
            elif "plan" in message:
                print(f"  {message['plan']}", flush=True)
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
        us, heated = message["us"], message["hot"]
        self.chosen[family].append({"key": key, "use": message["use"], **({"hot": True} if heated else {})})
        if heated:
            self.heated[message["problem"]] = [(us[str(place)], message["candidates"][place]) for place in heated]
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
            clock = "hot" if place in heated else "warm" if self.state["warm"] else "cold"
            self.rows.append((family, json.dumps(key), json.dumps(candidate), time_us, int(place == message["chosen"]), why,
                              clock if time_us else ""))

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
