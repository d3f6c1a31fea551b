"""A process that measures on a GPU, watched from outside: a kernel that hangs or breaks the device ends that process, not the run.

The process says what it does as JSON lines on its standard output (`say`); everything else that it prints is passed on.
"""
import contextlib
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
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})
    lines = queue.Queue()
    threading.Thread(target=lambda: [*map(lines.put, process.stdout), lines.put(None)], daemon=True).start()
    reason, last = None, []
    while reason is None:
        patience = min(silence, deadline - time.monotonic())
        try:
            line = lines.get(timeout=max(patience, 0.01))
        except queue.Empty:
            reason = "out of time" if time.monotonic() >= deadline else f"nothing heard for {silence:.0f} s: it hangs"
            process.kill()
            break
        if line is None:
            code = process.wait()
            reason = "" if code == 0 else f"its process ended with {code}: {' '.join(last[-1:])}"
        elif line.startswith("{"):
            message = json.loads(line)
            silence = message.get("patience", silence)
            yield message
        elif line.strip():
            last.append(line.strip())
            print(line, end="", flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    yield {"end": reason}
