"""bench gpu [FAMILY …]: every row of the table of anchors, ours and PyTorch's in turns in one process on the same inputs.

Kernels are compiled in parallel first. Then a process of its own measures, watched from here: a case that fails, hangs or
breaks the device is reported as such and the rest goes on. What is known is written after every family.
"""
import csv
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
MEAN = "geometric mean"
CASES = "case", "contestant", "microseconds", "relative error", "from float64", "note"
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
    if not (args.rehearse or args.ready):
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
                   "--seconds", str(self.args.seconds), "--patience", str(self.args.patience),
                   *[f"--{name}" for name in ("rehearse", "alone") if getattr(self.args, name)]]
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
        """The rows so far in gpu.json, everything known in gpu.csv, with what was known before: rows of other families, and with --only
        those of the same ones that were not measured now."""
        families, names = {family(r.name) for r in self.rows}, {r.name for r in self.rows}
        stays = lambda name: name not in names and (family(name) not in families or bool(self.args.only) and MEAN not in name)
        others = [r for r in known_rows(rows.RESULTS / "gpu.json") if stays(r.name)]
        limits = f"copy {self.limits[0]:.0f} GB/s, product {self.limits[1]:.0f} TFLOP/s"
        kept = [r for r in self.rows if r.ours is not None]
        kept += means([r for r in (*others, *kept) if family(r.name) in families])
        rows.RESULTS.mkdir(exist_ok=True)
        rows.record("gpu", kept, f"python -m bench gpu {' '.join(self.args.families)}".strip(), *self.facts, limits, others=others,
                    keep=self.keep, show=False)
        if self.keep:
            raw = [*[case for case in known_cases(rows.RESULTS / "gpu.csv") if stays(case["name"])], *self.raw]
            write_cases(rows.RESULTS / "gpu.csv", raw)
            known, failed = [*others, *kept], [r for r in self.rows if r.ours is None]
            rows.write(rows.RESULTS / "gpu_aims.md", "\n".join([*aims.runs(known), *aims.report([*known, *failed], raw)]))

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


def family(name):
    return name.partition(":")[0]


def known_rows(path):
    return [rows.Row(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def write_cases(path, raw):
    """gpu.csv: every case's microseconds by contestant, how far ours is from theirs, and for some how far each is from float64."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(CASES)
        for case in raw:
            exact = dict(zip(case.get("us") or (), case.get("exact") or ()))
            for name, us in (case.get("us") or {"": math.nan}).items():
                more = case.get("relative_error"), exact.get(name), case.get("error")
                table.writerow([case["name"], name, f"{us:.2f}", *["" if value is None else value for value in more]])


def known_cases(path):
    """What `write_cases` wrote, as it was given."""
    cases = {}
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            for name, who, us, relative, exact, note in list(csv.reader(file))[1:]:
                relative = float(relative) if relative else None
                case = cases.setdefault(name, dict(name=name, us={}, exact=[], relative_error=relative, error=note))
                if who:
                    case["us"][who] = float(us)
                    case["exact"] += [float(exact)] if exact else []
    return list(cases.values())


def means(table):
    """Rows with the geometric mean of each family's ratios."""
    for name, aim in GEOMETRIC_AIM.items():
        ratios = [r.ratio for r in table if family(r.name) == name and r.ratio and "beyond: " not in r.name]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            yield rows.row(f"{name}: {MEAN} of {len(ratios)} ratios (aim {aim})", "×", mean, limit=aim)
