"""The host runs ahead while kernels compile.

A launch gives nothing back to the host, so it may wait: while a kernel compiles in another process, it and all that is queued after it
are kept in a list, in order, and the host goes on to the next kernel that is missing. A first step of GPT-2 meets all its kernels this
way before it asks for a number, so they compile side by side. Whoever waits for the device first waits for the kernels here, and
compiles with them.

While calls wait, those of the driver that must keep their order are replaced on the instance (nobody keeps a driver's method), and
functions that were loaded look at `waiting`; at other times nothing of this costs anything but that look. A kernel that does not compile is
an error of the call that waits; what else was queued has run. CUDA_LAUNCH_BLOCKING=1 compiles every kernel where it is launched, and so
does a program from where it shares memory or streams with another library (`driver.share`), whose calls do not wait.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from tritorch.cuda import compiler, compiler_pool, driver
from tritorch.cuda.device import current_device
from tritorch.cuda.driver import waiting
from tritorch.cuda.measuring import Measured
from tritorch.cuda.stream import captures

CALLS = 20_000                      # that may wait
_ORDERED = ("fill event_record event_destroy stream_wait_event stream_destroy graph_launch graph_destroy exec_destroy annotate").split()
_ANSWERED = ("synchronize stream_synchronize event_synchronize event_elapsed free host_free capture_begin").split()
_ASKED = ("event_query", "stream_query")

_calls: collections.deque[tuple[int, Kernel | None, Callable, tuple]] = collections.deque()
_futures: dict[Path, Future] = {}   # kernels that were missing since calls wait, by their place on disk
_failures: list[Exception] = []
_lock = threading.RLock()
_staying = _replaying = 0
_here: int | None = None            # the driver's device where it is not the program's


class Kernel:
    """`driver.Function` of a kernel that is being compiled; `finish` loads the result. `explain` says more about an error."""

    def __init__(self, device: Any, spec: compiler.Specialisation, future: Future, finish: Callable):
        self.index, self.device, self.spec, self.future, self.finish = current_device(), device, spec, future, finish
        self.function: Any = None
        self.explain: Callable[[Exception], Exception] = lambda error: error

    def launch(self, gx, gy, gz, stream, values):
        """Queue the kernel."""
        later(self.start, gx, gy, gz, stream, list(values), kernel=self)

    def start(self, *call):
        """Queue the kernel on the device."""
        if self.function is None:
            compiled = self.compiled()
            with _on(self.device, self.index):
                self.function = self.finish(compiled)
        self.function.launch(*call)

    def compiled(self):
        """The machine code, made here if no process has begun with it."""
        while not self.future.done():
            if not compiler_pool.shared().help():
                wait([self.future], timeout=0.2)
        return self.future.result()

    @property
    def info(self):
        """That of the function, once it is compiled."""
        with _lock, _on(self.device, self.index):
            return self.finish(self.compiled()).info


def load(device: Any, spec: compiler.Specialisation, arch: int, finish: Callable[[compiler.Compiled], Any]) -> Any:
    """The function that `finish` makes of a kernel's machine code, or one that stands for it until that is compiled."""
    how = compiler.maker(arch)
    path = how.path_of(spec, arch)
    found = how.read(path)
    if found is None and _may_wait(device, spec):
        with _lock:
            future = _futures.get(path)                                  # launches that are told apart may have one machine code
            if future is None:
                question = functools.partial(_compiled, spec, arch, path)
                future = _futures[path] = compiler_pool.shared().submit(question, helped=not spec.kernel.is_gluon())
            kernel = Kernel(device, spec, future, finish)
            if not waiting:
                _leave_behind(device)
        return kernel
    return finish(found or compiler_pool.compile_now(spec, arch, path))


def _may_wait(device, spec) -> bool:
    if _staying or not driver.alone or captures or os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0" or compiler_pool.cores() == 1:
        return False
    return driver.current() is device and all(map(_travels, (spec.kernel, *spec.constexprs.values())))


def _travels(value) -> bool:
    """Whether another process finds a kernel, and runs no one's program for it."""
    if isinstance(value, tuple):
        return all(map(_travels, value))
    return not isinstance(value, compiler.triton.JITFunction) or value.__module__ != "__main__" and "<locals>" not in value.__qualname__


def _compiled(spec, arch, path, worker):
    try:
        return compiler_pool.compiled(spec, arch, path, worker)
    except compiler.CompilerDied:
        if spec.kernel.is_gluon():
            raise
        return compiler_pool.compiled(spec, arch, path, None)            # somebody may have killed it


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Inside, every kernel is compiled where it is launched: for those who want to know whether it compiles."""
    global _staying
    catch_up()
    _staying += 1
    try:
        yield
    finally:
        _staying -= 1


# ------------------------------------------------------------------ calls that wait
def later(run: Callable, *args: Any, kernel: Kernel | None = None) -> None:
    """`run(*args)` when its turn comes, which is now where nothing waits."""
    with _lock:
        if not waiting:
            run(*args)
            return
        _calls.append((current_device(), kernel, run, args))
        if not _replaying and (len(_calls) >= CALLS or not compiler_pool.shared().unanswered):
            _replay()


def launches_later(launch: Callable, gx: int, gy: int, gz: int, stream: int, values: Any) -> bool:
    """Whether a launch has to wait. If so it does, if not it is for the caller to do."""
    with _lock:
        if waiting and not _replaying:
            later(launch, gx, gy, gz, stream, list(values))
            return True
    return False


def catch_up() -> None:
    """Wait for the kernels that are missing and queue what waits. Raises the first error of it."""
    with _lock:
        if waiting and not _replaying:
            _replay()
            if _failures:
                error = _failures[0]
                _go_direct(waiting[0])
                raise error


def _replay():
    """Errors are kept for those who wait: whoever only queues has nothing to do with them."""
    global _replaying
    device = waiting[0]
    _replaying += 1
    try:
        with compiler_pool.progress(len(_futures)) as bar:
            while _calls:
                index, kernel, run, args = _calls[0]
                if kernel is not None:
                    _wait_for(kernel, bar)
                _calls.popleft()                                         # after the wait, which Ctrl-C may end
                try:
                    with _on(device, index):
                        run(*args)
                except Exception as error:
                    _failures.append(error if kernel is None else kernel.explain(error))
        if not _failures:
            _go_direct(device)
    finally:
        _replaying -= 1


def _wait_for(kernel, bar):
    if not kernel.future.done():
        bar.set_postfix_str(kernel.spec.kernel.__name__, refresh=False)
        pool = compiler_pool.shared()
        while not kernel.future.done():
            bar.n = sum(future.done() for future in _futures.values())
            bar.refresh()
            if not pool.help():
                wait([kernel.future], timeout=0.2)


@contextlib.contextmanager
def _on(device, index):
    """Device `index` is the driver's inside; what the program sees as the current one stays. With the lock."""
    global _here
    outer = _here
    before = current_device() if outer is None else outer
    if index != before:
        device.set_device(index)
    _here = index
    try:
        yield
    finally:
        _here = outer
        if index != before:
            device.set_device(before)


# ------------------------------------------------------------------ the driver meanwhile
def _leave_behind(device):
    """From here on the calls of `device` wait."""
    def ordered(name, run):
        return lambda *args: later(run, *args)

    def answered(name, run):
        def call(*args):
            if not _replaying:
                catch_up()
            return run(*args)

        return call

    def asked(name, run):
        def call(handle):
            with _lock:
                if not _replaying:
                    if compiler_pool.shared().unanswered:
                        compiler_pool.shared().begin()                   # who only asks again and again does not compile meanwhile
                    else:
                        catch_up()
                return False if waiting else run(handle)

        return call

    for names, form in ((_ORDERED, ordered), (_ANSWERED, answered), (_ASKED, asked), (["copy"], _copying)):
        for name in names:
            setattr(device, name, form(name, getattr(device, name)))
    waiting.append(device)


def _copying(name, run):
    def copy(dst, src, nbytes, kind, stream):
        if kind == "d2h":
            catch_up()
            run(dst, src, nbytes, kind, stream)
        else:
            later(run, dst, src, nbytes, kind, stream)

    return copy


def _go_direct(device):
    """All has run: calls need not wait any more, nor look whether they must."""
    for key, start in list(driver.functions.items()):
        measured = type(start) is Measured
        kernel = getattr(start.start if measured else start, "__self__", None)
        if type(kernel) is Kernel and kernel.function is not None:
            driver.functions[key] = Measured(kernel.function.launch, start.name, start.index) if measured else kernel.function.launch
    driver.forget_calls()
    for name in (*_ORDERED, *_ANSWERED, *_ASKED, "copy"):
        delattr(device, name)
    while _calls:                                                        # of what died with the tables above, or in gc meanwhile
        index, _, run, args = _calls.popleft()
        with _on(device, index):
            run(*args)
    for gone in (waiting, _futures, _failures):
        gone.clear()


def _settle():
    """The driver was replaced: its memory may be used again later."""
    with _lock:
        with contextlib.suppress(Exception):
            catch_up()


driver.watchers.insert(0, _settle)


def _forget():
    """In a forked process: the parent has the GPU."""
    global _lock
    _lock = threading.RLock()
    _calls.clear()
    if waiting:
        _go_direct(waiting[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
