"""Import time: fresh processes, taking turns."""
import os
import statistics
import subprocess
import sys

from bench import rows

BUDGET = 0.25


def environment():
    """That of a process which imports as everyone else does, with the bytecode that the first one leaves."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(module):
    """Seconds of `import module` in a fresh process, or None where it is not installed."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", code], cwd=rows.ROOT, capture_output=True, text=True, env=environment())
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main(args):
    modules = [m for m in ("tritorch", "numpy", "torch") if seconds(m) is not None]                # also warms the disk cache
    times = {m: [] for m in modules}
    for _ in range(3 if args.quick else 11):
        for m in modules:
            times[m].append(seconds(m))
    median = {m: statistics.median(found) for m, found in times.items()}
    found = [rows.row(f"import tritorch (budget {BUDGET} s)", "s", median["tritorch"], median.get("torch"), "torch", limit=BUDGET),
             rows.row("of which import numpy", "s", median["numpy"])]
    rows.record("import", found, "python -m bench import", keep=not args.quick)
