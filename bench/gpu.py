"""bench gpu [FAMILY …]: every row of the table of anchors, ours and PyTorch's in turns in one process on the same inputs.

Kernels are compiled in parallel first. Then a process of its own measures, watched from here: a case that fails, hangs or
breaks the device is reported as such and the rest goes on. What is known is written after every family.
"""
import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path

from bench import ahead, aims, anchors, rows, watch

FAMILIES = {**anchors.FAMILIES, "host": "microseconds of Python per operator, captured steps, the allocator, start-up",
            "gpt2": "training GPT-2 124M"}
MORE = {"cards": "every operator's workloads as its card declares them; only when it is named"}
GEOMETRIC_AIM = {"memory": 1.6, "rows": 1.6, "matmul": 1.0, "attention": 1.0, "conv": 1.0}
OF_COPY = 0.9                                                    # of the copy's bandwidth, what memory-bound rows are meant to reach
SILENCE = 90                                                     # s: longer than the start takes


def main(args):
    families = [f for f in (*FAMILIES, *MORE) if f in args.families or f in FAMILIES and (not args.families or "all" in args.families)]
    deadline = time.monotonic() + 60 * args.minutes
    if args.out or args.rehearse:
        rows.RESULTS = Path(args.out or tempfile.mkdtemp(prefix="tritorch-rehearsal-"))
        print(f"results: {rows.RESULTS}")
    if not (args.rehearse or usable()):
        print("gpu: expected an NVIDIA GPU, got none; --rehearse runs tiny shapes on the simulated device")
        return 1
    if not args.rehearse:
        ahead.compile_all(families, minutes=args.minutes / 3)
    table = Table(args)
    start = 0
    while start is not None and time.monotonic() < deadline:
        start = table.fill(families, start, deadline)
    table.write()
    table.close()
    return 0


def usable():
    from tritorch.cuda import driver

    return driver.available() and driver.current().name == "nvidia"


class Table:
    """The rows so far; written after every family."""

    def __init__(self, args):
        self.args, self.rows, self.raw, self.failed, self.facts, self.limits = args, [], [], [], [], (0, 0)
        self.keep = bool(args.out) or not (args.only or args.quick)          # a part is no result, unless it goes elsewhere

    def fill(self, families, start, deadline):
        """Measure from case number `start` on; the number to go on with, or None at the end."""
        command = ["bench.gpu_worker", *families, "--start", str(start), *(["--only", self.args.only] if self.args.only else []),
                   *(["--rehearse"] if self.args.rehearse else [])]
        now = {"begin": start - 1, "family": "", "name": "start"}
        for message in watch.watch(command, SILENCE, deadline):
            if "limits" in message:
                self.limits, self.facts = message["limits"], message["machine"]
                print(f"limits of this run: copy {self.limits[0]:.0f} GB/s, product {self.limits[1]:.0f} TFLOP/s", flush=True)
            elif "begin" in message:
                if now["family"] not in ("", message["family"]):
                    self.write()
                now = message
            elif "row" in message:
                self.take(message)
            elif "end" in message:
                if not message["end"]:
                    return None
                self.take({"row": dataclasses.asdict(rows.row(f"{now['family']}: {now['name']}", "failed", None)), "error": message["end"]})
                if now["begin"] < start:                         # it did not even begin: another process would not either
                    return None
                return now["begin"] + 1
        return None

    def take(self, message):
        row = rows.Row(**message["row"])
        self.rows.append(row)
        self.raw.append({"name": row.name, **{k: v for k, v in message.items() if k not in ("row", "number", "family")}})
        times = ", ".join(f"{name} {us:.1f} µs" for name, us in message.get("us", {}).items())
        note = message.get("error") or ""
        if row.ours is None:
            self.failed.append(f"{row.name}: {note}")
            print(f"FAILED {row.name}: {note}", flush=True)
        else:
            print(f"{row.name:60} {rows.number(row.ours):>9} {row.unit:8} ratio {rows.number(row.ratio):>6}  of limit "
                  f"{rows.number(row.share_of_limit):>6}  {times}{' (replayed)' if message.get('replayed') else ''} {note}", flush=True)

    def write(self):
        """The rows so far in gpu.json with those of other families from before, everything known in gpu.csv."""
        families = {family(r) for r in self.rows}
        path = rows.RESULTS / "gpu.json"
        before = [rows.Row(**r) for r in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
        others = [r for r in before if family(r) not in families]
        limits = f"copy {self.limits[0]:.0f} GB/s, product {self.limits[1]:.0f} TFLOP/s"
        kept = [r for r in self.rows if r.ours is not None] + [*means(self.rows)]
        rows.RESULTS.mkdir(exist_ok=True)
        rows.record("gpu", kept, f"python -m bench gpu {' '.join(self.args.families)}".strip(), *self.facts, limits, others=others,
                    keep=self.keep, show=False)
        if self.keep:
            lines = ["case,contestant,microseconds,relative error,note"]
            for raw in self.raw:
                for name, us in (raw.get("us") or {"": math.nan}).items():
                    note = (raw.get("error") or "").replace('"', "'")
                    lines.append(f"\"{raw['name']}\",{name},{us:.2f},{raw.get('relative_error') or ''},\"{note}\"")
            rows.write(rows.RESULTS / "gpu.csv", "\n".join(lines) + "\n")
            rows.write(rows.RESULTS / "gpu_aims.md", "\n".join(aims.report(self.rows, self.raw)))

    def close(self):
        print(rows.markdown([r for r in self.rows if r.ours is not None]))
        for mean in means(self.rows):
            print(f"{mean.name}: {mean.ours:.3f}")
        meant = {raw["name"]: raw.get("aim", 1.0) for raw in self.raw}
        short = [f"{r.name}: {r.ratio:.2f} × PyTorch, meant {meant[r.name]:g}" for r in self.rows
                 if r.ratio and r.ratio < meant[r.name] and r.unit != "nats"]
        bound_by_memory = aims.of("share_of_limit", *aims.BOUND_BY_MEMORY, "optim: ", but=aims.SORTS)
        slow = [f"{name}: {share:.2f} of the copy, meant {OF_COPY}" for name, share in bound_by_memory(self.rows, self.raw)
                if share is not None and share < OF_COPY]
        for title, found in (("below PyTorch or their aim", short), ("below the memory's rate", slow), ("failed", self.failed)):
            print(f"\n{len(found)} {title}")
            print("\n".join(f"  {line}" for line in found), flush=True)
        print("\n" + "\n".join(aims.report(self.rows, self.raw)), flush=True)


def family(row):
    return row.name.partition(":")[0]


def means(table):
    """Rows with the geometric mean of each family's ratios."""
    for name, aim in GEOMETRIC_AIM.items():
        ratios = [r.ratio for r in table if family(r) == name and r.ratio and "beyond: " not in r.name]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            yield rows.row(f"{name}: geometric mean of {len(ratios)} ratios (aim {aim})", "×", mean, limit=aim)
