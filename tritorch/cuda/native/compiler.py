"""A kernel and its specialisation in, machine code of the host out: Triton's frontend makes TTIR, `lower` LLVM's text of that, `llvm` code.

Results are kept on disk under a key of everything they depend on, beside those for GPUs; what cannot be translated is kept too. Who
compiles, and when, is as for a GPU: `ahead`, `compiler_pool`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from tritorch.cuda import compiler, compiler_float8
from tritorch.cuda.cache import cache_folder, write_atomically
from tritorch.cuda.compiler_keys import parsing

from . import llvm

ARCH = 80                           # what the frontend takes the host for: no TMA, and floats of 8 bits by arithmetic of ours
_FORMAT = 1                         # of the files on disk; raise it when Compiled changes
_OF_A_GPU = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_CHECKED = {"debug": True, "sanitize_overflow": False}                   # device_assert asserts


@dataclass(frozen=True)
class Compiled:
    """An object file and what a launch must know: bytes of `scratch` of a thread, the types of the slots of its `arguments`, the
    `messages` of its assertions. `refusal` says why there is none."""

    code: bytes
    scratch: int = 0
    arguments: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    refusal: str = ""


def compile_here(spec: compiler.Specialisation, arch: int = compiler.HOST) -> Compiled:
    """Compile in this process, without the cache. Raises compiler.CompileError."""
    from . import lower

    if spec.kernel.is_gluon():
        return Compiled(b"", refusal="it is written in Gluon, for the parts of a GPU")
    text = ttir(spec)
    try:
        lowered = lower.lower(text, spec.options.get("enable_fp_fusion", True))
        code = llvm.assemble(lowered.llvm, fused=False)                 # `lower` has done that
    except lower.Untranslatable as error:
        return Compiled(b"", refusal=str(error))
    except Exception as error:
        raise compiler.CompileError(f"{spec} does not compile for the host: {type(error).__name__}: {error}") from error
    return Compiled(code, lowered.scratch, tuple(lowered.arguments), tuple(lowered.messages))


def ttir(spec: compiler.Specialisation) -> str:
    """What Triton's frontend makes of a kernel, with the lines of its source."""
    target = GPUTarget("cuda", ARCH, 32)
    with parsing, compiler._triton_apart(target), compiler_float8.casts(spec, ARCH):
        try:
            backend = make_backend(target)
            source = ASTSource(spec.kernel, spec.signature, spec.constexprs, spec.attrs)
            options = backend.parse_options({**compiler._options(spec), **compiler_float8.options(spec, ARCH), **_CHECKED})
            context = ir.context()
            ir.load_dialects(context)
            backend.load_dialects(context)
            module = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
            return str(backend.make_ttir(inlined(module, context), {}, options, ARCH))
        except Exception as error:
            raise compiler.CompileError(f"{spec} does not compile: {type(error).__name__}: {error}") from error


def inlined(module: Any, context: Any) -> Any:
    """A module whose functions may all be inlined, those of `triton.jit(noinline=True)`, too."""
    text = str(module)
    if "noinline = true" not in text:
        return module
    with llvm._file(text.replace("noinline = true", "noinline = false")) as path:
        module = ir.parse_mlir_module(path, context)
    module.context = context
    return module


# ------------------------------------------------------------------ the cache on disk
def path_of(spec: compiler.Specialisation, arch: int = compiler.HOST) -> Path:
    """Where the result of a compilation is kept; configurations of an autotuned kernel that differ in what only a GPU has are one."""
    options = {name: value for name, value in spec.options.items() if name not in _OF_A_GPU}
    key = hashlib.sha256(repr((_FORMAT, replace(spec, options=options).key(ARCH), llvm.processor(), _translator())).encode())
    return cache_folder() / "native" / f"{key.hexdigest()}.z"


@functools.cache
def _translator() -> str:
    """A hash over the source of this package, from which the code comes as much as from the kernel's."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def read(path: Path) -> Compiled | None:
    """A result on disk, None where there is none."""
    if triton.knobs.compilation.always_compile:
        return None
    try:
        head, _, rest = path.read_bytes().partition(b"\n")
        fields = json.loads(head)
        if fields.pop("size") != len(rest):
            return None
        return Compiled(zlib.decompress(rest), fields["scratch"], tuple(fields["arguments"]), tuple(fields["messages"]), fields["refusal"])
    except (OSError, zlib.error, ValueError, TypeError, KeyError, AttributeError):       # absent, or cut off by a full disk: compile again
        return None


def write(path: Path, compiled: Compiled) -> None:
    """Keep a result on disk."""
    fields, code = asdict(compiled), zlib.compress(compiled.code, 1)
    fields |= {"code": None, "size": len(code)}
    with contextlib.suppress(OSError):                           # a read-only home costs time, never a result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(fields).encode() + b"\n" + code)
