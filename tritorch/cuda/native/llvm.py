"""LLVM IR as text in, machine code of this processor out, by the LLVM that is inside Triton's library.

That LLVM compiles modules which come from MLIR. So a small MLIR module has the function `entry`, which calls `kernel`, and the text,
which defines `kernel`, is linked to it. A function of a few lines takes 4 to 8 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from triton._C import libtriton

TRIPLE = "x86_64-unknown-linux-gnu"
_LEVELS = (  # of x86-64: what /proc/cpuinfo must say of a processor for LLVM to compile for this level
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"}),
    ("x86-64-v3", {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"}),
    ("x86-64-v2", {"sse4_2", "popcnt", "cx16"}),
)
_EXTRAS = {"avx512_fp16": "+avx512fp16", "avx512_bf16": "+avx512bf16", "avx512_vnni": "+avx512vnni"}
_ENTRY = f"""module attributes {{llvm.target_triple = "{TRIPLE}"}} {{
  llvm.func @kernel(!llvm.ptr, !llvm.ptr, i64, i64)
  llvm.func @entry(%arguments: !llvm.ptr, %scratch: !llvm.ptr, %first: i64, %last: i64) {{
    llvm.call @kernel(%arguments, %scratch, %first, %last) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
    llvm.return
  }}
}}"""
_KERNEL = re.compile(r"^\s*define [^@\n]*@kernel\(\s*ptr\b[^,]*,\s*ptr\b[^,]*,\s*i64\b[^,]*,\s*i64\b[^,]*\)", re.M)
_JUDGE = "import sys\nfrom tritorch.cuda.native import llvm\nllvm._compiled(sys.stdin.read(), True, False)"

_lock = threading.Lock()            # of the one MLIR module; what LLVM does afterwards is in a context of its own


class AssemblyError(RuntimeError):
    """A text is not LLVM IR, or does not define the kernel; the message is LLVM's."""


def assemble(text: str, fused: bool = True) -> bytes:
    """The object file of a text that defines `void @kernel(ptr, ptr, i64, i64)`; in it `entry` has the kernel's arguments.

    `fused`: a product and a sum may become one instruction that rounds once. Raises AssemblyError. LLVM looks at the grammar and the types
    alone; a text that uses a value before it is made compiles to anything: see `complaint`.
    """
    return _compiled(_linked(text, fused), fused, True)


def assembly(text: str, fused: bool = True) -> str:
    """`assemble` as assembly language, to be read."""
    return _compiled(_linked(text, fused), fused, False)


def optimized(text: str, fused: bool = True) -> str:
    """The text after LLVM's optimizations, to be read."""
    return _linked(text, fused)


def complaint(text: str) -> str | None:
    """What is wrong with a text, by LLVM's verifier too, which ends the process that it speaks in: another one is asked, 0.3 s."""
    judged = subprocess.run([sys.executable, "-c", _JUDGE], input=_with_layout(text), capture_output=True, text=True, env=_environment())
    if judged.returncode == 0:
        return None
    said = judged.stderr.partition("\nStack dump")[0].partition("\n #0")[0]
    message, _, line = said.partition("LLVM ERROR: failed to parse IR: ")[2].rpartition("lineno: ")
    if message:
        number = int(line.split()[0]) - _lines_before(text)
        lines = text.splitlines()
        shown = f": {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
        return f"line {number}: {message}{shown}"
    return said.partition("LLVM ERROR: Broken")[0].strip() or f"the process that looked at it ended with {judged.returncode}"


@functools.cache
def processor() -> tuple[str, str]:
    """What LLVM calls this processor, and what it has besides."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        flags = next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), set())
    level = next((name for name, needed in _LEVELS if needed <= flags), "x86-64")
    return level, ",".join(feature for flag, feature in _EXTRAS.items() if flag in flags and level == "x86-64-v4")


# ------------------------------------------------------------------ LLVM
def _linked(text, fused):
    """The optimized module."""
    llvm, entry = libtriton.llvm, _entry()
    if not _KERNEL.search(text):
        raise AssemblyError("expected a text that defines void @kernel(ptr, ptr, i64, i64)")
    with _lock:
        context = llvm.context()
        module = llvm.to_module(entry, context)
    llvm.attach_datalayout(module, TRIPLE, *processor())
    with _file(_with_layout(text)) as path:
        try:
            llvm.link_extern_libs(module, [path])
        except (ValueError, RuntimeError) as error:
            raise AssemblyError(f"LLVM refuses the text: {complaint(text) or error}") from None
    llvm.optimize_module(module, llvm.OPTIMIZE_O3, *processor(), [], fused)
    return str(module)


def _compiled(text, fused, binary):
    _entry()
    more = [False] if "canonicalize_gep" in libtriton.llvm.translate_to_asm.__doc__ else []          # a parameter of Triton 3.9
    return libtriton.llvm.translate_to_asm(text, TRIPLE, *processor(), [], fused, binary, *more)


@functools.cache
def _entry() -> Any:
    """The MLIR module with the entry, made once."""
    llvm, ir = libtriton.llvm, libtriton.ir
    llvm.init_targets()
    library = ctypes.CDLL(libtriton.__file__)
    for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):      # Triton 3.9 has the host's target and does not begin it
        begin = getattr(library, f"LLVMInitializeX86{part}", None)
        if begin is not None:
            begin()
    context = ir.context()
    ir.load_dialects(context)
    with _file(_ENTRY) as path:
        module = ir.parse_mlir_module(path, context)
    module.context = context                                             # it must outlive the module
    return module


@functools.cache
def _layout() -> str:
    """How types lie in memory. A text that does not say so is read with another alignment of i64."""
    module = libtriton.llvm.to_module(_entry(), context := libtriton.llvm.context())
    libtriton.llvm.attach_datalayout(module, TRIPLE, *processor())
    found = re.search(r'^target datalayout = ".*"$', str(module), re.M)
    del module, context
    assert found
    return found[0]


def _with_layout(text):
    return text if "target datalayout" in text else f'{_layout()}\ntarget triple = "{TRIPLE}"\n{text}'


def _lines_before(text):
    return 0 if "target datalayout" in text else 2


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """A file in memory, for what takes the name of a file."""
    number = os.memfd_create("tritorch")
    try:
        with open(number, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
