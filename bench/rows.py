"""A measurement is a row; the rows of an area are `bench/results/<area>.json`; all of them are the table in its README.md."""
import datetime
import itertools
import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """`ratio`: how many times better ours is than the opponent's, above 1 we win; `share_of_limit`: ours over the limit or budget."""

    name: str
    unit: str
    ours: float | None
    opponent: float | None = None
    opponent_name: str | None = None
    ratio: float | None = None
    share_of_limit: float | None = None
    command: str = ""
    machine: str = ""
    date: str = ""
    commit: str = ""


RATES = ("GB/s", "TFLOP/s", "tokens/s")              # more is better; everything else is a cost


def asked(words, name):
    """Whether one of the words, between which | stands, is in the name; no words ask for all."""
    return any(word in name for word in words.split("|"))


def row(name, unit, ours, opponent=None, opponent_name=None, limit=None):
    ratio = None
    if ours and opponent:
        ratio = ours / opponent if unit in RATES else opponent / ours
    return Row(name, unit, significant(ours), significant(opponent), opponent_name if opponent is not None else None,
               significant(ratio), significant(ours / limit) if ours is not None and limit else None)


def significant(value):
    return None if value is None else float(f"{value:.4g}")


def machine(*more):
    """One line: processor, cores, versions, threads, and what else counts."""
    parts = [processor(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}", f"numpy {np.__version__}"]
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "all"
    return ", ".join([*parts, f"{threads} BLAS threads", *[m for m in more if m]])


def processor():
    try:
        return re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()).group(1)
    except (OSError, AttributeError):
        return platform.processor() or platform.machine()


def commit():
    """The commit measured, with a + when the sources differ from it."""
    def git(*words):
        try:
            return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
        except OSError:                                          # no git here
            return ""

    changed = git("status", "--porcelain", "--", "tritorch", "triton_kernels", "tutorials")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def record(area, rows, command, *facts, keep=True, others=(), show=True):
    """Stamp the rows; `show` prints them, `keep` writes them into the area's file, after `others`, and renews the table."""
    stamp = dict(command=command, machine=machine(*facts), date=datetime.date.today().isoformat(), commit=commit())
    for r in rows:
        for field, value in stamp.items():
            setattr(r, field, value)
    if show:
        print(markdown(rows))
    if keep:
        RESULTS.mkdir(exist_ok=True)
        write(RESULTS / f"{area}.json", json.dumps([asdict(r) for r in (*others, *rows)], indent=1, ensure_ascii=False) + "\n")
        write(RESULTS / "README.md", table())


def write(path, text):
    path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".tmp"), path)


def renew(block, text, path=ROOT / "README.md"):
    """Write what stands between `<!-- bench BLOCK -->` and `<!-- end -->` in the README anew."""
    start, end = f"<!-- bench {block} -->\n", "<!-- end -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(start)
    if found:
        write(path, before + start + text + rest[rest.index(end):])


def table():
    """Every area's newest rows as Markdown."""
    lines = ["# Results", "", "Written by `python -m bench`; do not edit. Medians of calls that take turns. `ratio`: how many times better",
             "ours is (above 1 we win). `of limit`: ours over the measured limit of the machine, or over the budget that the row names."]
    for path in sorted(RESULTS.glob("*.json")):
        rows = [Row(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]
        lines += ["", f"## {path.stem}"] if rows else []
        for how, found in itertools.groupby(rows, "`{0.command}`, {0.date}, commit {0.commit}, on {0.machine}.".format):
            lines += ["", how, "", markdown(list(found))]
    return "\n".join(lines) + "\n"


def markdown(rows):
    opponents = {r.opponent_name for r in rows if r.opponent_name}
    opponent = opponents.pop() if len(opponents) == 1 else "opponent"
    lines = [f"| what | unit | ours | {opponent} | ratio | of limit |", "|---|---|---:|---:|---:|---:|"]
    for r in rows:
        cells = [r.name, r.unit, *[number(v) for v in (r.ours, r.opponent, r.ratio, r.share_of_limit)]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value):
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
