"""Processes that compile side by side, and the progress bar of those who wait for them."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tritorch.cuda import compiler

IDLE = 10.0                         # seconds after which a process without work ends: each holds some hundred MB
MOST = 16                           # processes: with more of them the longest kernel of a GPT-2 step is what one waits for
_shared: Pool | None = None
_lasting: dict[int, Pool] = {}      # by their numbers of processes
_workers: set[Worker] = set()       # that have a process
_drawing = threading.RLock()
_met = 0                            # kernels that this process had to compile while it waited


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------ processes
class Worker:
    """A process that compiles what it is asked to; when it dies, the question was at fault and the next one starts another."""

    def __init__(self):
        self.process: Any = None

    def ask(self, spec: compiler.Specialisation, arch: int) -> compiler.Compiled:
        """The answer of the process, or of this one where that one cannot import the kernel. Raises CompileError; CompilerDied where there
        is none."""
        from tritorch.cuda import compiler_worker

        if self.process is None:
            self.process = compiler_worker.start()
            _workers.add(self)
        try:
            found = compiler_worker.ask(self.process, spec, arch)
        except (EOFError, OSError, ValueError) as error:         # ValueError: closed by another thread
            code = self.close()
            raise compiler.CompilerDied(f"{spec} takes the compiler down for sm_{arch}: the process ended with {code}") from error
        if isinstance(found, compiler.CompileError):
            raise found
        return found or compiler.maker(arch).compile_here(spec, arch)

    def close(self, kill: bool = False) -> int | None:
        """End the process, at once or when it has answered; its exit status."""
        process, self.process = self.process, None
        _workers.discard(self)
        if process is None:
            return None
        if kill:
            process.kill()
        with contextlib.suppress(OSError):                       # what was not sent to a dead process
            process.stdin.close()
        code = process.wait()
        process.stdout.close()
        return code


class Pool:
    """Answers questions, which are functions of a Worker, by threads with a process each: at most `limit`, started as they are needed.
    The first question comes first, or the last one."""

    def __init__(self, limit: int, last_first: bool = False):
        self.limit, self.last_first, self.owner = limit, last_first, os.getpid()
        self.questions: collections.deque[tuple[Future, Callable[[Worker | None], Any], bool]] = collections.deque()
        self.threads = self.idle = self.unanswered = 0
        self.workers: list[Worker] = []
        self.closed, self.news = False, threading.Condition()

    def submit(self, question: Callable[[Worker | None], Any], helped: bool = False) -> Future:
        """The answer to come. `helped`: the caller will `help`, and is left a question, so that a single one needs no process."""
        future: Future = Future()
        with self.news:
            self.questions.append((future, question, helped or self.closed))
            self.unanswered += 1
            self._begin(int(helped))
            self.news.notify()
        if self.closed:
            self.begin()
        return future

    def begin(self) -> None:
        """Leave no question to the caller."""
        with self.news:
            self._begin(0)
        while self.closed and self.help():
            pass

    def _begin(self, spare):
        if not self.closed and self.threads < self.limit and self.idle < len(self.questions) - spare:
            self.threads += 1
            try:
                threading.Thread(target=self._serve, name="compiler", daemon=True).start()
            except RuntimeError:                                 # Python 3.12 starts none any more once the program ends
                self.threads -= 1
                self._leave_to_askers()

    def help(self) -> bool:
        """Answer the first question that is left to this thread too; False where there is none."""
        with self.news:
            item = next((item for item in self.questions if item[2]), None)
            if item is None:
                return False
            self.questions.remove(item)
        try:
            self._answer(*item[:2], None)
        except BaseException:                                    # Ctrl-C: whoever waits next answers it
            with self.news:
                self.questions.appendleft(item)
            raise
        return True

    def forget(self, futures: set[Future]) -> None:
        """Answer none of these that is not begun."""
        with self.news:
            kept = [item for item in self.questions if item[0] not in futures]
            self.unanswered -= len(self.questions) - len(kept)
            self.questions = collections.deque(kept)

    def close(self) -> None:
        """End all processes. The program ends: what is not answered is left to those who may still ask, such as functions of atexit."""
        with self.news:
            self._leave_to_askers()
        if self.owner == os.getpid():
            for worker in self.workers:
                worker.close(kill=True)

    def _leave_to_askers(self):
        self.closed = True
        self.questions = collections.deque((future, question, True) for future, question, _ in self.questions)
        self.news.notify_all()

    def _serve(self):
        worker = Worker()
        self.workers.append(worker)
        while (item := self._next()) is not None:
            self._answer(*item[:2], worker)
        self.workers.remove(worker)
        worker.close()

    def _next(self):
        with self.news:
            self.idle += 1
            self.news.wait_for(lambda: self.questions or self.closed, IDLE)
            self.idle -= 1
            if self.questions and not self.closed:
                return self.questions.pop() if self.last_first else self.questions.popleft()
            self.threads -= 1
            return None

    def _answer(self, future, question, worker):
        try:
            found, error = question(worker), None
        except Exception as problem:
            found, error = None, problem
        with self.news:
            self.unanswered -= 1
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)


def shared() -> Pool:
    """The pool of this process. The thread that waits compiles too, so a core is left to it. It begins with the kernels that it needs
    first, the processes with the last: those of a backward pass, which take the longest."""
    global _shared
    if _shared is None or _shared.owner != os.getpid():          # a fork must not talk on its parent's pipes
        _shared = Pool(min(max(1, cores() - 1), MOST), last_first=True)
        atexit.register(_shared.close)
    return _shared


def lasting(limit: int) -> Pool:
    """The pool of those who wait for many kernels at once, which the next of them find as it is: a process takes a second to begin."""
    pool = _lasting.get(limit)
    if pool is None or pool.owner != os.getpid():
        pool = _lasting[limit] = Pool(limit)
        atexit.register(pool.close)
    return pool


def _forget():
    """In a forked process: let go of the pipes, so that the parent's processes end with the parent."""
    for worker in _workers:
        worker.process.stdin.raw.close()
        worker.process.stdout.raw.close()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# ------------------------------------------------------------------ compiling
def compiled(spec: compiler.Specialisation, arch: int, path: Path, worker: Worker | None) -> compiler.Compiled:
    """Compile by a process, or in this one, and keep the result on disk, unless another program did so meanwhile. Gluon code for another
    architecture aborts inside LLVM, so it compiles in this process only where no other one can import it."""
    how = compiler.maker(arch)
    found = how.read(path)
    if found is not None:
        return found
    found = how.compile_here(spec, arch) if worker is None else worker.ask(spec, arch)
    how.write(path, found)
    return found


def compile_now(spec: compiler.Specialisation, arch: int, path: Path) -> compiler.Compiled:
    """Compile while the caller waits."""
    global _met
    _met += 1
    with progress(initial=_met, about=spec.kernel.__name__):
        if spec.kernel.is_gluon():
            return shared().submit(functools.partial(compiled, spec, arch, path)).result()
        return compiled(spec, arch, path, None)


@contextlib.contextmanager
def progress(total: int | None = None, initial: int = 0, about: str = "kernels") -> Iterator[Any]:
    """A progress bar, which is gone at the end; only on a terminal, and not with TRITORCH_PROGRESS=0."""
    from tqdm import tqdm

    class Bar(tqdm):
        _lock = getattr(tqdm, "_lock", _drawing)                 # tqdm would make one for processes too, for which Python may start one
        monitor_interval = 0                                     # no thread of its own, which cannot begin while the program ends

    hidden = sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TRITORCH_PROGRESS", "1") == "0"
    with Bar(total=total, initial=initial, desc=f"compiling {about}", disable=hidden, leave=False, unit=" kernels",
              dynamic_ncols=True, file=sys.stderr) as bar:
        yield bar
