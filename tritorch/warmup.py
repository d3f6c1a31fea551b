"""Compile all kernels of a program before it runs, in parallel and without a GPU: what `python -m tritorch warmup` does."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tritorch.cuda import driver
from tritorch.cuda.dry import DryDriver
from tritorch.errors import check


def kernels_of(program: Callable[[], object], arch: int | None = None) -> list:
    """The specialisations that a call of `program` launches, found by running it on a dry device of `arch` (90 is sm_90; None: the device
    of this machine; `compiler.HOST`: the native one). Its tensors have their real shapes and no values: what is read from them is zeros."""
    from tritorch.cuda import compiler

    if arch == compiler.HOST:
        from tritorch.cuda.native.driver import NativeDriver

        device = DryDriver(properties=NativeDriver().device_properties(0), on_host=True)
    elif arch is None:
        device = DryDriver(properties=driver.current().device_properties(0), on_host=driver.on_host())
    else:
        device = DryDriver(arch)
    with driver.using(device), compiler.recording() as record:
        program()
    return list(record.values())


def warm_up(specs: Sequence, arch: int, workers: int | None = None) -> dict[str, int]:
    """Compile specialisations for an architecture into the cache on disk, with a progress bar: how many were "compiled", were there
    before ("cached") and "failed", whose messages are printed."""
    from tritorch.cuda import compiler
    from tritorch.cuda.compiler_pool import progress

    missing = [spec for spec in specs if not compiler.is_cached(spec, arch)]
    failed = []
    with progress(len(missing), about=f"for {target(arch)}") as bar:
        for found in compiler.compile_each(missing, [arch], workers):
            bar.update()
            if isinstance(found, compiler.CompileError):
                failed.append(found)
    for error in failed:
        print(error, file=sys.stderr)
    return {"compiled": len(missing) - len(failed), "cached": len(specs) - len(missing), "failed": len(failed)}


def target(arch: int) -> str:
    """What an architecture is called."""
    from tritorch.cuda import compiler

    return "the host" if arch == compiler.HOST else f"sm_{arch}"


def program_of(name: str, arguments: Sequence[str] = ()) -> Callable[[], object]:
    """The function that "module:function" names, or one that runs a Python file as a program with `arguments`."""
    if name.endswith(".py"):
        check(Path(name).is_file(), "warmup", "a Python file", name, error=FileNotFoundError)
        return lambda: _run_file(name, arguments)
    module, colon, function = name.partition(":")
    check(colon, "warmup", "a Python file, module:function or a list of kernels (.json)", name, error=ValueError)
    found: object = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def _run_file(name, arguments):
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        with contextlib.suppress(SystemExit):
            runpy.run_path(name, run_name="__main__")
    finally:
        sys.argv = before
