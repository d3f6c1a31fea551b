"""The process that compiles for `compiler_pool`: pickled questions on stdin, pickled answers on stdout."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
from typing import Any

from tritorch.cuda import compiler
from tritorch.cuda.compiler_keys import key_of

_LENGTH = struct.Struct("<q")           # before a question, so that one that cannot be read is left behind whole


def start() -> subprocess.Popen:
    """Start a process that sees the modules this one sees. Ctrl-C does not reach it: it ends when its stdin does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    alias = "import tritorch; tritorch.as_torch(); " if sys.modules.get("torch") is sys.modules["tritorch"] else ""
    command = [sys.executable, "-c", f"{alias}from tritorch.cuda.compiler_worker import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)


def ask(process: subprocess.Popen, spec: Any, arch: int) -> Any:
    """One question and its answer, None where the process does not find the kernel; EOFError or OSError when it died."""
    message = io.BytesIO()
    _Pickler(message).dump((spec, arch))
    assert process.stdin and process.stdout
    process.stdin.write(_LENGTH.pack(len(message.getvalue())) + message.getvalue())
    process.stdin.flush()
    return pickle.load(process.stdout)


def serve() -> None:
    """Answer until stdin ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                                                # what Triton prints must not land among the answers
    while True:
        head = questions.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return
        message = questions.read(*_LENGTH.unpack(head))
        try:
            spec, arch = pickle.loads(message)
        except Exception:                                        # a module that does not import, or not alone
            spec = None
        try:
            found: Any = spec and compiler.maker(arch).compile_here(spec, arch)
        except compiler.CompileError as error:
            found = compiler.CompileError(str(error))            # without its cause, which may not pickle
        try:
            answers.write(pickle.dumps(found))
            answers.flush()
        except BrokenPipeError:                                  # who asked is gone; a usual exit would try to write once more
            os._exit(0)


class _Pickler(pickle.Pickler):
    """Kernels travel as the place where they are defined."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, compiler.triton.JITFunction):
            return _kernel, (*compiler.kernel_place(value), value.fn.__code__.co_firstlineno, key_of(value))
        return NotImplemented


def _kernel(module: str, name: str, file: str, line: int, key: str) -> Any:
    """The kernel at a place, unless its name has come to mean another one, or constants of its module have other values where they were
    set by hand or follow from the device: who asked then compiles by itself."""
    found = compiler.find_kernel(module, name, file)
    same = isinstance(found, compiler.triton.JITFunction) and found.fn.__code__.co_firstlineno == line
    if not same or key_of(found) != key:
        raise LookupError(f"{file}:{line}: {name} is another kernel in {module}")
    return found
