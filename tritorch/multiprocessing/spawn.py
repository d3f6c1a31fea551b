"""Start a function in several processes and wait for all of them: the first failure ends the others and is raised here."""
import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from multiprocessing import connection

from tritorch.errors import check

GRACE = 30.0                                                             # seconds to end after SIGTERM, as PyTorch gives


class ProcessException(Exception):
    """A process failed: number `error_index` of those that were started, with process id `pid`, and what happened."""

    def __init__(self, msg, error_index, pid):
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.pid)


class ProcessRaisedException(ProcessException):
    """A process ended by an exception; the message has its traceback."""


class ProcessExitedException(ProcessException):
    """A process ended by the signal `signal_name` or with an `exit_code` other than 0."""

    def __init__(self, msg, error_index, error_pid, exit_code, signal_name=None):
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.pid, self.exit_code, self.signal_name)


def _run(fn, i, args, errors):
    """The main function of a process."""
    _end_with_parent()
    try:
        fn(i, *args)
    except KeyboardInterrupt:                                            # Ctrl-C is the parent's: it says what there is to say
        sys.exit(128 + signal.SIGINT)
    except Exception:
        errors.send(traceback.format_exc())
        sys.exit(1)


def _end_with_parent():
    """Have this process interrupted when its parent ends without having waited for it (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGINT)                        # PR_SET_PDEATHSIG
        if not multiprocessing.parent_process().is_alive():              # it had ended before
            os.kill(os.getpid(), signal.SIGINT)


class ProcessContext:
    """The processes that `start_processes` started, and how they end."""

    def __init__(self, processes, errors):
        self.processes, self.sentinels = processes, {p.sentinel: i for i, p in enumerate(processes)}
        self._errors = {reader: i for i, reader in enumerate(errors)}
        self._texts = {}

    def pids(self):
        """The process ids, in the order of their numbers."""
        return [int(p.pid) for p in self.processes]

    def join(self, timeout=None, grace_period=None):
        """Wait for a process to end, `timeout` seconds at most (None: as long as it takes). True when all have ended well.

        When one has failed, the others are asked to end (SIGTERM) and killed after `grace_period` seconds (None: 30), and its failure is
        raised: ProcessRaisedException with its traceback, or ProcessExitedException.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.sentinels:
            ready = connection.wait([*self.sentinels, *self._errors], None if until is None else max(until - time.monotonic(), 0))
            for reader in self._errors.keys() & set(ready):              # a long traceback does not fit into a pipe that nobody reads
                self._read(reader)
            ended = [self.sentinels.pop(sentinel) for sentinel in self.sentinels.keys() & set(ready)]
            for i in ended:
                self.processes[i].join()
                if self.processes[i].exitcode:
                    self._fail(i, grace_period)
            if ended or not ready:
                break
        return not self.sentinels

    def _read(self, reader):
        with contextlib.suppress(EOFError, OSError):
            self._texts[self._errors[reader]] = reader.recv()
        del self._errors[reader]
        reader.close()

    def _fail(self, i, grace_period):
        for p in self.processes:
            if p.is_alive():
                p.terminate()
        until = time.monotonic() + (GRACE if grace_period is None else grace_period)
        for p in self.processes:
            p.join(max(until - time.monotonic(), 0))
            if p.is_alive():
                warnings.warn(f"process {p.pid} did not end within the grace period; it is killed", stacklevel=4)
                p.kill()
                p.join()
        self.sentinels.clear()
        for reader, number in list(self._errors.items()):
            if number == i and reader.poll():
                self._read(reader)
        process, code = self.processes[i], self.processes[i].exitcode
        if i in self._texts:
            text = f"\n\n-- Process {i} terminated with the following error:\n{self._texts[i]}"
            raise ProcessRaisedException(text, i, process.pid)
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"<Unknown signal {-code}>"
            raise ProcessExitedException(f"process {i} terminated with signal {name}", i, process.pid, code, name)
        raise ProcessExitedException(f"process {i} terminated with exit code {code}", i, process.pid, code)


SpawnContext = ProcessContext


def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """As `spawn`, with "fork", "forkserver" or "spawn" as the way in which processes start. A forked one cannot use its parent's GPU."""
    check(callable(fn), "start_processes", "a function", type(fn).__name__, error=TypeError)
    check(isinstance(nprocs, int) and nprocs >= 0, "start_processes", "nprocs ≥ 0", nprocs, error=ValueError)
    check(start_method in multiprocessing.get_all_start_methods(), "start_processes",
          f"a start_method of {multiprocessing.get_all_start_methods()}", repr(start_method), error=ValueError)
    context = multiprocessing.get_context(start_method)
    processes, readers = [], []
    for i in range(nprocs):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(fn, i, args, writer), daemon=daemon)
        process.start()
        writer.close()
        processes.append(process)
        readers.append(reader)
    started = ProcessContext(processes, readers)
    if not join:
        return started
    while not started.join():
        pass


def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    """Run `fn(i, *args)` in `nprocs` new processes, i = 0 … nprocs - 1, and wait for all of them.

    `fn` and `args` are sent to each process, so they have to be picklable, `fn` by its name at the top of a module. With `join=False`
    the answer comes at once and is a `ProcessContext`. When a process fails the others are ended, and ProcessRaisedException, with the
    traceback of that process, or ProcessExitedException is raised.

    >>> import tritorch as torch
    >>> torch.multiprocessing.spawn(print, args=("processes",), nprocs=0)
    """
    if start_method != "spawn":
        warnings.warn(f"spawn: start_method={start_method!r} is not looked at; use start_processes(…, start_method={start_method!r})",
                      FutureWarning, stacklevel=2)
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
