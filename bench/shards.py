"""The tests that need a GPU, in several processes at once: a kernel that breaks the device or hangs ends one of them, and another takes
over its remaining tests."""
import collections
import contextlib
import itertools
import os
import queue
import re
import subprocess
import sys
import threading
import time

from bench import rows, watch

LINE = re.compile(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
REASON = re.compile(r"^E\s+(\S.*)")                                # of a traceback, which tests/conftest.py prints when a test has failed
BROKEN = re.compile(r"(tests/\S+::.*) broke the device")            # what tests/conftest.py says before it ends the process
BROKE = 3                                                        # the exit code that goes with it
WELL = "PASSED", "SKIPPED", "XFAIL"
SILENCE = 150                                                    # s: longer than any test takes


def environment():
    """Options of the caller's own pytest, such as -n 2, are none of these processes'."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": ""}


def collect(words, seconds):
    """The ids of the tests; none where pytest does not say them in time. What went wrong is printed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    try:
        done = subprocess.run(command, cwd=rows.ROOT, capture_output=True, text=True, env=environment(), timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        print(f"pytest did not say in {seconds:.0f} s which tests there are", flush=True)
        return []
    if done.returncode:
        print(done.stdout[-3000:] + done.stderr[-3000:], flush=True)
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def divided(ids, count):
    """Parts of about the same length; tests of one function and first parameter stay together, because they share kernels. In each part the
    first test of every group comes first, then the second, so that a part that time cuts off has tried something of all."""
    groups = {}
    for test in ids:
        groups.setdefault(test.split("-")[0], []).append(test)
    parts = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(group)
    return [[test for turn in itertools.zip_longest(*part) for test in turn if test] for part in parts if part]


class Shard:
    """One part of the tests, run by one process after the other until none is left. What it says goes to `log`, each line after the
    part's number."""

    def __init__(self, number, tests, log):
        self.number, self.remaining, self.log, self.results, self.reasons = number, list(tests), log, {}, {}
        self.lines, self.process, self.count, self.last, self.failing, self.why = None, None, 0, "", "", ""

    def start(self):
        self.count, self.last, self.why = len(self.remaining), "", ""
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--no-summary", "-p", "no:cacheprovider"]
        self.process = subprocess.Popen([*command, *self.remaining], cwd=rows.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        encoding="utf-8", errors="replace", env=environment())
        self.lines, self.heard = queue.Queue(), time.monotonic()
        threading.Thread(target=lambda p=self.process, q=self.lines: [*map(q.put, p.stdout), q.put(None)], daemon=True).start()

    def poll(self):
        """Take what was said; False when nothing is left to run."""
        while self.lines is not None:
            try:
                line = self.lines.get_nowait()
            except queue.Empty:
                if time.monotonic() - self.heard < SILENCE:
                    return True
                self.process.kill()
                with contextlib.suppress(queue.Empty):           # a line that has no end yet says what it was at
                    while (line := self.lines.get(timeout=5)) is not None:
                        self.hear(line)
                self.why = f"nothing heard for {SILENCE} s"
                self.hear(f"{self.why}\n")
                line = None
            if line is None:
                return self.ended()
            self.hear(line)
        return False

    def hear(self, line):
        self.heard = time.monotonic()
        self.log(f"{self.number:2}| {line.rstrip()}\n")
        match, broken, reason = LINE.match(line), BROKEN.search(line), REASON.match(line)
        if line.startswith("tests/"):
            self.last = line
        if match and (match[1] in self.remaining or match[2] == "ERROR" and match[1] in self.results):       # after a test that passed
            self.results[match[1]], self.failing = match[2], match[1]
            self.remaining[:] = [test for test in self.remaining if test != match[1]]
        elif broken and broken[1] in self.results:
            self.results[broken[1]], self.reasons[broken[1]] = "BROKE THE DEVICE", line[broken.end():].strip(" :!\n")
        elif reason:
            self.reasons.setdefault(self.failing, reason[1])

    def ended(self):
        """The process is gone: what it left goes to another one, without the test that it died in."""
        code = watch.ended(self.process)
        self.lines = None
        if self.remaining and code in (0, 1, 2, 4, 5):            # pytest came to its end without them
            self.results.update(dict.fromkeys(self.remaining, "NOT RUN"))
            self.remaining.clear()
        elif self.remaining and (code != BROKE or len(self.remaining) == self.count):
            begun = next((test for test in self.remaining if self.last.startswith(f"{test} ")), self.remaining[0])
            self.results[begun], self.reasons[begun] = "DIED", self.why or f"its process ended with {code}"
            self.remaining.remove(begun)
        if self.remaining:
            self.start()
        return bool(self.remaining)

    def stop(self):
        if self.process is not None:
            self.process.kill()
        self.results.update(dict.fromkeys(self.remaining, "NOT RUN"))


def run(words, log, count, deadline, report=lambda outcomes: None):
    """Run the tests in `count` processes until `deadline` (of time.monotonic): {test: (outcome, why)}. `report` is told of those so far;
    `log(line)` of all that pytest says."""
    ids = collect(words, deadline - time.monotonic())
    shards = [Shard(number, part, log) for number, part in enumerate(divided(ids, count))]
    for shard in shards:
        shard.start()
    running, told = list(shards), 0.0
    while running and time.monotonic() < deadline:
        running = [shard for shard in running if shard.poll()]
        if time.monotonic() - told > 10:
            told = time.monotonic()
            outcomes = outcomes_of(shards)
            bad = sum(outcome not in WELL for outcome, _ in outcomes.values())
            print(f"{len(outcomes)} of {len(ids)} tests done, {bad} not well", flush=True)
            report(outcomes)
        time.sleep(0.05)
    for shard in shards:
        shard.stop()
    return outcomes_of(shards)


def outcomes_of(shards):
    return {test: (outcome, shard.reasons.get(test, "")) for shard in shards for test, outcome in shard.results.items()}


def summary(outcomes):
    """Lines that say how it went: first what failed and why, then where tests were not run."""
    passed, skipped = (sum(outcome == kind for outcome, _ in outcomes.values()) for kind in ("PASSED", "SKIPPED"))
    bad = sorted((outcome, test, why) for test, (outcome, why) in outcomes.items() if outcome not in (*WELL, "NOT RUN"))
    files = collections.Counter(test.partition("::")[0] for test, (outcome, _) in outcomes.items() if outcome == "NOT RUN")
    return [f"{passed} of {len(outcomes)} tests passed, {skipped} skipped, {len(bad)} not well, {files.total()} not run",
            *[f"{outcome} {test}: {why[:300]}" for outcome, test, why in bad],
            *[f"NOT RUN {count} tests of {file}" for file, count in sorted(files.items())]]
