"""How long statements take: Timer, Measurement and Compare under the names of torch.utils.benchmark.

Work on a GPU is waited for before a clock is read; numbers are medians with their interquartile range; a run is many calls, so that the
clock costs nothing.
"""
import math
import statistics
import sys
import textwrap
import timeit
from dataclasses import dataclass, field
from time import perf_counter

from tritorch import cuda, threads
from tritorch.errors import check

__all__ = ["Compare", "Measurement", "TaskSpec", "Timer", "timer"]

UNITS = (1e-9, "ns", "nanoseconds"), (1e-6, "us", "microseconds"), (1e-3, "ms", "milliseconds"), (1.0, "s", "seconds")
NOISY, WIDE = 0.1, 0.25                                                  # interquartile range over the median: of note; too much
FEWEST, HIGHEST = 4, 5                                                   # runs that an interquartile range wants; digits that are shown
WARM = 0.1                                                               # part of min_run_time that one run may take at most


def timer():
    """Seconds, once the current GPU has done what is queued."""
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
    return perf_counter()


def _unit(seconds):
    """The (size, short name, name) of the unit in which so much time is written."""
    return next((u for u in reversed(UNITS) if seconds >= u[0]), UNITS[0])


def _rounded(x, digits):
    """x with so many significant digits."""
    return x if not x or not math.isfinite(x) else round(x, digits - 1 - math.floor(math.log10(abs(x))))


@dataclass(frozen=True)
class TaskSpec:
    """What was timed."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self):
        """The label and what follows it, or the statement."""
        if self.label is not None:
            return self.label + (f": {self.sub_label}" if self.sub_label else "")
        return self.stmt if "\n" not in self.stmt else self.stmt.split("\n")[0] + " …"

    def summarize(self):
        """Title, description and setup, as text."""
        setup = f"setup:\n{textwrap.indent(self.setup, '  ')}" if "\n" in self.setup else f"setup: {self.setup}"
        return "\n".join(filter(None, [self.title, self.description, setup if self.setup not in ("", "pass") else ""]))


@dataclass
class Measurement:
    """The times of some runs, each of `number_per_run` calls; `times` and what follows from them are seconds a call.

    >>> m = Measurement(100, [1.0, 1.1, 0.9, 1.0], TaskSpec("f()", "pass"))
    >>> round(m.median, 6), round(m.mean, 6), m.significant_figures
    (0.01, 0.01, 2)
    """

    number_per_run: int
    raw_times: list
    task_spec: TaskSpec
    metadata: dict | None = field(default=None)

    @property
    def times(self):
        """Seconds a call of each run."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self):
        """The median."""
        return statistics.median(self.times) if self.raw_times else math.nan

    @property
    def mean(self):
        """The mean."""
        return statistics.fmean(self.times) if self.raw_times else math.nan

    @property
    def iqr(self):
        """The interquartile range."""
        low, high = self._quartiles()
        return high - low

    def _quartiles(self):
        times = sorted(self.times)
        if len(times) < 2:
            return (times[0],) * 2 if times else (math.nan,) * 2
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return low, high

    @property
    def significant_figures(self):
        """How many digits of the median are worth writing: those that 95 % of medians of so many runs, if they were spread normally, have
        in common."""
        if len(self.raw_times) < 2 or not self.iqr:
            return HIGHEST if len(self.raw_times) > 1 else 1
        spread = 1.645 * 2 * 1.2533 * (self.iqr / 1.349) / math.sqrt(len(self.raw_times))         # of the median of a normal distribution
        return min(max(math.ceil(math.log10(self.median / spread)), 1), HIGHEST)

    @property
    def has_warnings(self):
        """Whether the runs were too few or differ too much."""
        return bool(self._warning())

    def meets_confidence(self, threshold=NOISY):
        """Whether the interquartile range is below this part of the median."""
        return len(self.raw_times) >= FEWEST and self.iqr < threshold * self.median

    def _warning(self):
        if len(self.raw_times) < FEWEST:
            return ""
        share = self.iqr / self.median if self.median else 0.0
        if share < NOISY:
            return ""
        much = "is too large to trust the median" if share > WIDE else "could hide a real difference"
        return f"WARNING: the interquartile range is {100 * share:.0f}% of the median, which {much}"

    @property
    def title(self):
        """What was timed."""
        return self.task_spec.title

    @property
    def env(self):
        """The environment that the Timer was told of."""
        return self.task_spec.env or "Unspecified env"

    @property
    def as_row_name(self):
        """How Compare names the row."""
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def __repr__(self):
        size, name, _ = _unit(self.median)
        digits, (low, high) = self.significant_figures, self._quartiles()
        kind = "Median" if len(self.raw_times) > 1 else "Time"
        lines = [self.task_spec.summarize(), f"  {kind}: {_rounded(self.median / size, digits):g} {name}"]
        if len(self.raw_times) >= FEWEST:
            lines.append(f"  IQR:    {_rounded((high - low) / size, 2):g} {name} ({_rounded(low / size, digits + 1):g} to "
                         f"{_rounded(high / size, digits + 1):g})")
        runs, calls = len(self.raw_times), self.number_per_run
        threads_used = self.task_spec.num_threads
        lines.append(f"  {runs} measurement{'s' * (runs > 1)}, {calls} run{'s' * (calls > 1)} per measurement, {threads_used} "
                     f"thread{'s' * (threads_used > 1)}")
        return "\n".join([*lines, *filter(None, [self._warning()])])

    @staticmethod
    def merge(measurements):
        """One Measurement for all of each task."""
        by_task = {}
        for m in measurements:
            by_task.setdefault(m.task_spec, []).append(m)
        return [Measurement(1, [t for m in group for t in m.times], task) for task, group in by_task.items()]


class Timer:
    """Times a statement.

    stmt, setup, global_setup: Python code; setup runs before each measurement. globals: what it sees. label, sub_label, description: what
    Compare makes tables, rows and columns of. env: a name of this environment. num_threads: threads of the CPU while it runs (1, so that
    numbers can be compared). timer: seconds so far.

    >>> import tritorch as torch
    >>> x = torch.ones(8)
    >>> m = Timer("x + 1", globals={"x": x}).timeit(100)
    >>> m.number_per_run, m.median > 0
    (100, True)
    """

    def __init__(self, stmt="pass", setup="pass", global_setup="", timer=timer, globals=None, label=None, sub_label=None, description=None,
                 env=None, num_threads=1, language="py"):
        check(isinstance(stmt, str) and isinstance(setup, str), "Timer", "code as text", stmt, setup, error=TypeError)
        check(str(language).lower() in ("py", "python"), "Timer", "language 'py': there is no C++ here", language, error=ValueError)
        stmt, setup = textwrap.dedent(stmt).strip(), textwrap.dedent(setup).strip() or "pass"
        names = dict(globals or {})
        if "torch" not in names:
            names["torch"] = sys.modules["tritorch"]
        exec(textwrap.dedent(global_setup), names)
        self._task_spec = TaskSpec(stmt, setup, global_setup, label, sub_label, description, env, num_threads)
        self._timer = timeit.Timer(stmt, setup, timer=timer, globals=names)

    def _with_threads(self, f):
        before = threads.get_num_threads()
        threads.set_num_threads(self._task_spec.num_threads)
        try:
            return f()
        finally:
            threads.set_num_threads(before)

    def timeit(self, number=1000000):
        """One run of `number` calls, after a few that warm up."""
        def run():
            self._timer.timeit(max(number // 100, 2))
            return Measurement(number, [self._timer.timeit(number)], self._task_spec)

        return self._with_threads(run)

    def repeat(self, repeat=-1, number=-1):
        """Not there, as in PyTorch: see `blocked_autorange`."""
        raise NotImplementedError("repeat: expected blocked_autorange or timeit, got repeat; use Timer.blocked_autorange()")

    def autorange(self, callback=None):
        """Not there, as in PyTorch: see `blocked_autorange`."""
        raise NotImplementedError("autorange: expected blocked_autorange or timeit, got autorange; use Timer.blocked_autorange()")

    def _calls(self, min_run_time):
        """How many calls make a run that is long beside the clock, and short beside all runs."""
        overhead, number = statistics.median(timeit.Timer("pass", timer=self._timer.timer).timeit(0) for _ in range(5)), 1
        while True:
            taken = self._timer.timeit(number)
            if overhead <= 1e-4 * taken and taken >= min_run_time / 1000 or taken > WARM * min_run_time:
                return number
            number *= 10

    def blocked_autorange(self, callback=None, min_run_time=0.2):
        """Runs of as many calls as make them long beside the clock, until they have taken `min_run_time` seconds; `callback(calls,
        seconds)` is told of each."""
        return self._with_threads(lambda: self._runs(callback, min_run_time, lambda m, taken: taken >= min_run_time))

    def adaptive_autorange(self, threshold=0.1, *, min_run_time=0.01, max_run_time=10.0, callback=None):
        """As `blocked_autorange`, until the interquartile range is below `threshold` of the median, or `max_run_time` is over."""
        return self._with_threads(lambda: self._runs(callback, min_run_time, lambda m, taken: taken >= max_run_time or (
            taken >= min_run_time and m.meets_confidence(threshold))))

    def _runs(self, callback, min_run_time, enough):
        number, times = self._calls(min_run_time), []
        while True:
            times.append(self._timer.timeit(number))
            if callback is not None:
                callback(number, times[-1])
            made = Measurement(number, times, self._task_spec)
            if enough(made, sum(times)):
                return made


class Compare:
    """Measurements as tables: one for each label, rows by sub_label (or statement) and number of threads, columns by description.

    >>> spec = dict(stmt="f(x)", setup="pass", label="f", sub_label="8")
    >>> c = Compare([Measurement(1, [2e-6, 2.1e-6], TaskSpec(description="ours", **spec)),
    ...              Measurement(1, [3e-6, 3.1e-6], TaskSpec(description="theirs", **spec))])
    >>> print(c)                                                         # doctest: +NORMALIZE_WHITESPACE
    [------------- f --------------]
                |  ours  |  theirs
    1 thread: ----------------------
          8     |  2.05  |    3.05
    <BLANKLINE>
    Times are in microseconds (us).
    """

    def __init__(self, results):
        self._results, self._trim, self._best = [], False, False
        self.extend_results(results)

    def extend_results(self, results):
        """Add Measurements."""
        results = list(results)
        for r in results:
            check(isinstance(r, Measurement), "Compare", "Measurements", type(r).__name__, error=ValueError)
        self._results += results

    def trim_significant_figures(self):
        """Write only the digits that are sure."""
        self._trim = True

    def colorize(self, rowwise=False):
        """Mark the best of each row by an asterisk; tables have no colors."""
        self._best = True

    def highlight_warnings(self):
        """Nothing more: what differs too much is marked by an exclamation mark always."""

    def print(self):
        """Print the tables."""
        print(self)

    def __str__(self):
        merged, labels = Measurement.merge(self._results), {}
        for m in merged:
            labels.setdefault(m.task_spec.label or m.task_spec.stmt, []).append(m)
        return "\n\n".join(self._table(label, group) for label, group in labels.items())

    def _table(self, label, group):
        columns = list(dict.fromkeys(m.task_spec.description or m.task_spec.env or "" for m in group))
        size, short, name = _unit(min(m.median for m in group))
        rows = {}
        for m in group:
            row = rows.setdefault((m.task_spec.num_threads, m.as_row_name), {})
            row[m.task_spec.description or m.task_spec.env or ""] = m
        cells = {key: [self._cell(row, row.get(c), size) for c in columns] for key, row in rows.items()}
        widths = [max(len(c), *(len(row[k]) for row in cells.values())) for k, c in enumerate(columns)]
        first = max(12, *(len(key[1]) + 6 for key in rows))
        lines = [" " * first + "".join(f"|  {c.rjust(w)}  " for c, w in zip(columns, widths))]
        for threads_used in sorted({key[0] for key in rows}):
            lines.append(f"{threads_used} thread{'s' * (threads_used > 1)}: ".ljust(len(lines[0]), "-"))
            lines += [("      " + key[1]).ljust(first) + "".join(f"|  {c.rjust(w)}  " for c, w in zip(row, widths))
                      for key, row in cells.items() if key[0] == threads_used]
        return "\n".join([f"[{(' ' + label + ' ').center(len(lines[0]) - 2, '-')}]", *lines, "", f"Times are in {name} ({short})."])

    def _cell(self, row, m, size):
        if m is None:
            return ""
        digits = m.significant_figures if self._trim else 3
        best = self._best and m is min(row.values(), key=lambda other: other.median)
        return f"{_rounded(m.median / size, digits):g}" + "*" * best + "!" * (len(m.raw_times) >= FEWEST and not m.meets_confidence(WIDE))
