"""A process that measures on a GPU, watched from outside: a kernel that hangs or breaks the device ends that process, not the run.

The process says what it does as JSON lines on its standard output (`say`); everything else that it prints is passed on.
"""
import json
import os
import queue
import subprocess
import sys
import threading
import time


def say(**message):
    print(json.dumps(message), flush=True)


def watch(arguments, silence, deadline):
    """Start `python -m …` and yield what it says; the last message is {"end": sentence}, empty when all went well.

    It is killed after `silence` seconds without a word, and at `deadline` (of time.monotonic). A message may ask for more "patience".
    """
    process, last = Heard(["-m", *arguments], silence, deadline), []
    for line in process:
        if line.startswith("{"):
            message = json.loads(line)
            process.silence = message.get("patience", process.silence)
            yield message
        elif line.strip():
            last.append(line.strip())
            print(line, end="", flush=True)
    yield {"end": process.why or (f"its process ended with {process.code}: {' '.join(last[-1:])}" if process.code else "")}


class Heard:
    """A process `python …`: what is iterated over are the lines that it prints. It is killed after `silence` seconds without one and at
    `deadline`; `why` says so afterwards, `code` is its exit code, None where even killing it did not help in time."""

    def __init__(self, command, silence, deadline, folder=None, **environment):
        self.silence, self.deadline, self.why, self.code = silence, deadline, "", None
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                                        errors="replace", cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment})

    def __iter__(self):
        lines = queue.Queue()                                    # a thread reads: processes that it started may keep the pipe open
        threading.Thread(target=lambda: [*map(lines.put, self.process.stdout), lines.put(None)], daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=max(min(self.silence, self.deadline - time.monotonic()), 0.01))
                except queue.Empty:
                    self.why = "out of time" if time.monotonic() >= self.deadline else f"nothing heard for {self.silence:.0f} s: it hangs"
                    return
                if line is None:
                    self.code = self.process.wait()
                    return
                if time.monotonic() >= self.deadline:            # of one that never stops talking, too
                    self.why = "out of time"
                yield line
                if self.why:
                    return
        finally:
            self.process.kill()
            self.code = ended(self.process)


def ended(process):
    """The exit code of a process that has ended or was killed; None where a hanging device keeps it."""
    try:
        return process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        return None
