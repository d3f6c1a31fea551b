"""The tests that need a GPU, in several processes at once: a kernel that breaks the device or hangs ends one of them, and another takes
over its remaining tests."""
import contextlib
import itertools
import os
import queue
import re
import subprocess
import sys
import threading
import time

from bench import rows

LINE = re.compile(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
BROKEN = re.compile(r"(tests/\S+::.*) broke the device")            # what tests/conftest.py says before it ends the process
BROKE = 3                                                        # the exit code that goes with it
SILENCE = 150                                                    # s: longer than any test takes


def environment():
    """Options of the caller's own pytest, such as -n 2, are none of these processes'."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": ""}


def collect(words, seconds):
    """The ids of the tests; none where pytest does not say them in time."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    try:
        done = subprocess.run(command, cwd=rows.ROOT, capture_output=True, text=True, env=environment(), timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        return []
    return [line for line in done.stdout.splitlines() if "::" in line]


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
    """One part of the tests, run by one process after the other until none is left."""

    def __init__(self, number, tests, folder):
        self.remaining, self.file, self.log = list(tests), folder / f"part{number}.txt", folder / f"part{number}.log"
        self.results, self.lines, self.process, self.count, self.output = {}, None, None, 0, []

    def start(self):
        self.count = len(self.remaining)
        self.file.write_text("\n".join(self.remaining), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", f"@{self.file}"]
        self.process = subprocess.Popen(command, cwd=rows.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
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
                self.hear(f"\nnothing heard for {SILENCE} s\n")
                line = None
            if line is None:
                return self.ended()
            self.hear(line)
        return False

    def hear(self, line):
        self.heard = time.monotonic()
        self.output.append(line)
        with open(self.log, "a", encoding="utf-8") as log:       # now: nobody knows how long all of this may live
            log.write(line)
        match, broken = LINE.match(line), BROKEN.search(line)
        if match and match[1] in self.remaining:
            self.results[match[1]] = match[2]
            self.remaining.remove(match[1])
        elif broken and broken[1] in self.results:
            self.results[broken[1]] = "BROKE THE DEVICE"

    def ended(self):
        """The process is gone: what it left goes to another one, without the test that it died in."""
        code = self.process.wait()
        self.lines = None
        if self.remaining and code in (0, 1, 2, 4, 5):            # pytest came to its end without them
            self.results.update(dict.fromkeys(self.remaining, "NOT RUN"))
            self.remaining.clear()
        elif self.remaining and (code != BROKE or len(self.remaining) == self.count):
            last = next((line for line in reversed(self.output) if line.startswith("tests/")), "")
            begun = [test for test in self.remaining if last.startswith(f"{test} ")]
            self.results[(begun or self.remaining)[0]] = "DIED"
            self.remaining.remove((begun or self.remaining)[0])
        if self.remaining:
            self.start()
        return bool(self.remaining)

    def stop(self):
        if self.process is not None:
            self.process.kill()
        self.results.update(dict.fromkeys(self.remaining, "NOT RUN"))


def run(words, folder, count, deadline, report=lambda outcomes: None):
    """Run the tests in `count` processes until `deadline` (of time.monotonic): {test: outcome}. `report` is told of those so far."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = collect(words, deadline - time.monotonic())
    shards = [Shard(number, part, folder) for number, part in enumerate(divided(ids, count))]
    for shard in shards:
        shard.start()
    running, told = list(shards), 0.0
    while running and time.monotonic() < deadline:
        running = [shard for shard in running if shard.poll()]
        if time.monotonic() - told > 10:
            told = time.monotonic()
            outcomes = outcomes_of(shards)
            bad = sum(r not in ("PASSED", "SKIPPED", "XFAIL") for r in outcomes.values())
            print(f"{len(outcomes)} of {len(ids)} tests done, {bad} not well", flush=True)
            report(outcomes)
        time.sleep(0.05)
    for shard in shards:
        shard.stop()
    return outcomes_of(shards), shards


def outcomes_of(shards):
    return {test: outcome for shard in shards for test, outcome in shard.results.items()}
