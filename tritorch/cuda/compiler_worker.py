"""The process that compiles for `compiler.compile_many`: pickled questions on stdin, pickled answers on stdout."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import subprocess
import sys
from typing import Any

from tritorch.cuda import compiler


def start() -> subprocess.Popen:
    """Start a process that sees the modules this one sees."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "from tritorch.cuda.compiler_worker import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def ask(process: subprocess.Popen, spec: Any, arch: int) -> Any:
    """One question and its answer; EOFError or OSError when the process died."""
    message = io.BytesIO()
    _Pickler(message).dump((spec, arch))
    assert process.stdin and process.stdout
    process.stdin.write(message.getvalue())
    process.stdin.flush()
    return pickle.load(process.stdout)


def serve() -> None:
    """Answer until stdin ends."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                                                # what Triton prints must not land among the answers
    while True:
        try:
            spec, arch = pickle.load(questions)
        except EOFError:
            return
        try:
            found: Any = compiler.compile_here(spec, arch)
        except compiler.CompileError as error:
            found = compiler.CompileError(str(error))            # without its cause, which may not pickle
        answers.write(pickle.dumps(found))
        answers.flush()


class _Pickler(pickle.Pickler):
    """Kernels travel as the place where they are defined."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, compiler.triton.JITFunction):
            return _find, (value.__module__, value.__qualname__, value.fn.__code__.co_filename)
        return NotImplemented


def _find(module: str, name: str, file: str) -> Any:
    if module == "__main__" or (module not in sys.modules and importlib.util.find_spec(module.partition(".")[0]) is None):
        found = sys.modules.get(file)                            # a script: loaded from its file, under the file's name
        if found is None:
            specification = importlib.util.spec_from_file_location(file, file)
            assert specification and specification.loader
            found = sys.modules[file] = importlib.util.module_from_spec(specification)
            specification.loader.exec_module(found)
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
