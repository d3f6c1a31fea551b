"""Triton compilation without torch and without a GPU: a kernel and its specialisation in, a cubin out.

Results are kept on disk under a key of everything they depend on, so that a second process does not run Triton's
frontend. Nothing here touches a device; `nvidia_function` loads what this file compiles.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import cache as triton_cache
from triton.runtime import driver as triton_driver

from tritorch.cuda import compiler_assembler, compiler_cluster, compiler_early, compiler_float8, compiler_names, driver
from tritorch.cuda.cache import cache_folder, write_atomically
from tritorch.cuda.compiler_keys import key_of, parsing
from tritorch.cuda.own_kernels import module_at, place_of

HOST = -1                           # in the place of an architecture: this machine's processor
_FORMAT = 4                         # of the files on disk; raise it when Compiled changes
_recorders: list[dict[str, Specialisation]] = []


class CompileError(RuntimeError):
    """Triton refused a kernel; the message names the kernel, its source line, the target and Triton's reason."""


class CompilerDied(CompileError):
    """The process that compiled a kernel ended."""


@dataclass(frozen=True)
class Specialisation:
    """A kernel and all that its machine code depends on but the target; the fields are those of `Driver.load`."""

    kernel: Any
    signature: dict
    constexprs: dict
    attrs: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    def key(self, arch: int) -> str:
        """A hash over the source of the kernel and of all it calls, the specialisation, the target and Triton's version."""
        parts = (
            _FORMAT, triton.__version__, arch, key_of(self.kernel), self.kernel.__name__, list(self.signature.items()),
            sorted((path, _token(value)) for path, value in self.constexprs.items()),
            sorted((path, repr(value)) for path, value in self.attrs.items()), sorted(_options(self).items()),
            *(compiler_float8.sources() if compiler_float8.appears(self) else ()),
            *((compiler_cluster.source(),) if compiler_cluster.size_of(self) > 1 else ()),
            compiler_early.INSTRUCTIONS if compiler_early.waits_first(self, arch) else "",
            *compiler_assembler.named(),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __str__(self) -> str:
        kinds = {name: kind for name, kind in self.signature.items() if kind != "constexpr"}
        names = list(self.signature)
        fixed = {names[path[0]]: value for path, value in self.constexprs.items() if len(path) == 1}
        shown = ", ".join(f"{name}={value}" for name, value in {**kinds, **fixed, **self.options}.items())
        return f"{where(self.kernel)} with {shown}"


@dataclass(frozen=True)
class Compiled:
    """Machine code and what a launch must know about it.

    `num_warps` is the total, after warp specialisation; `parameters` are the sizes of the kernel's parameters in bytes,
    `descriptors` Triton's notes on its TMA descriptors (none before sm_90). `cluster` programs along the grid's first axis start
    together, of which each has its own shared memory, other than of `num_ctas`. A kernel that `waits_first` may begin before the one in
    front of it has ended, one of `pdl` is meant to.
    """

    name: str
    arch: int
    cubin: bytes
    packed_ptx: bytes
    shared: int
    num_warps: int
    num_ctas: int
    global_scratch_size: int
    global_scratch_align: int
    cooperative: bool
    pdl: bool
    waits_first: bool
    descriptors: list
    parameters: list[int]
    cluster: int = 1                # what was kept before there were clusters has none

    @property
    def ptx(self) -> str:
        """The text that the machine code was made from."""
        return zlib.decompress(self.packed_ptx).decode()


def where(kernel: Any) -> str:
    """"name (file:line)" of a kernel."""
    code = kernel.fn.__code__
    return f"{kernel.__name__} ({code.co_filename}:{code.co_firstlineno})"


def kernel_place(kernel: Any) -> tuple[str, str, str]:
    """Where a kernel is defined: module (`own_kernels.place_of`), qualified name, file."""
    return place_of(kernel.__module__), kernel.__qualname__, kernel.fn.__code__.co_filename


def find_kernel(module: str, name: str, file: str) -> Any:
    """The kernel at a place: at the top level of a module, or of a script, which is loaded from its file under the file's name."""
    module = module_at(module)
    if module == "__main__" or (module not in sys.modules and importlib.util.find_spec(module.partition(".")[0]) is None):
        found = sys.modules.get(file)
        if found is None:
            specification = importlib.util.spec_from_file_location(file, file)
            assert specification and specification.loader
            found = sys.modules[file] = importlib.util.module_from_spec(specification)
            specification.loader.exec_module(found)
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    while not isinstance(found, triton.JITFunction) and hasattr(found, "fn"):
        found = found.fn                                         # autotune and heuristics around a kernel
    return found


def _token(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_token, value))})"
    return key_of(value) if hasattr(type(value), "cache_key") else f"{type(value).__name__}:{value!r}"


def _options(spec: Specialisation) -> dict:
    return {"enable_fp_fusion": True, **spec.options}            # explicit: Triton's default is about to change


# ------------------------------------------------------------------ one kernel
def maker(arch: int) -> Any:
    """The module whose `compile_here`, `path_of`, `read` and `write` are for an architecture: this one, or that for the HOST."""
    return importlib.import_module("tritorch.cuda.native.compiler" if arch == HOST else __name__)


def compile_kernel(kernel, signature, constexprs, attrs, options, arch: int) -> Compiled:
    """Compile for `arch` (90 is sm_90), or read the result of an earlier compilation. Raises CompileError."""
    from tritorch.cuda import compiler_pool

    spec = Specialisation(kernel, signature, constexprs, attrs, options)
    path = path_of(spec, arch)
    return read(path) or compiler_pool.compile_now(spec, arch, path)


def stages(spec: Specialisation, arch: int) -> dict:
    """All that a compilation makes on the way: ttir, ttgir, llir, ptx, cubin."""
    return dict(_compile_by_triton(spec, arch).asm)


def _compile_by_triton(spec, arch):
    target = GPUTarget("cuda", arch, 32)
    changes = compiler_float8.casts(spec, arch), compiler_early.early(spec, arch), compiler_cluster.clustered(spec)
    with parsing, _triton_apart(target), compiler_names.older(), changes[0], changes[1], changes[2]:
        try:
            source = _source(spec.kernel)(spec.kernel, spec.signature, spec.constexprs, spec.attrs)
            return triton.compile(source, target=target, options=_options(spec) | compiler_float8.options(spec, arch))
        except Exception as error:
            raise CompileError(f"{spec} does not compile for sm_{arch}: {type(error).__name__}: {error}") from error


def compile_here(spec: Specialisation, arch: int) -> Compiled:
    """Compile in this process, without the cache."""
    kernel = _compile_by_triton(spec, arch)
    data, ptx = kernel.metadata, kernel.asm["ptx"]
    return Compiled(
        data.name, arch, kernel.asm["cubin"], zlib.compress(ptx.encode(), 1), data.shared, data.num_warps, data.num_ctas,
        data.global_scratch_size, data.global_scratch_align, data.launch_cooperative_grid, data.launch_pdl,
        compiler_early.INSTRUCTIONS in ptx, list(data.tensordesc_meta or ()), _parameter_sizes(ptx), compiler_cluster.size_of(spec),
    )


def _parameter_sizes(ptx: str) -> list[int]:
    declared = re.findall(r"\.param ([^,)]*)", ptx.split(".entry")[1].split(")")[0])
    matches = [re.search(r"\.[a-z](\d+)\s.*?(?:\[(\d+)\])?\s*$", line) for line in declared]
    return [int(m[2] or 1) * int(m[1]) // 8 for m in matches if m]


def _source(kernel):
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


@contextlib.contextmanager
def _triton_apart(target: GPUTarget) -> Iterator[None]:
    """Kernels may ask Triton's active driver for the target; Triton's own driver needs torch and a GPU to answer. And Triton knows
    itself by a hash of its library, of 400 MB, which took 0.4 s of the first kernel in every process. And it keeps what it makes at
    home, where there may be no room for it: `write` keeps all that is needed."""
    before, key = getattr(triton_driver, "_active", None), getattr(triton_cache, "triton_key", None)
    triton_driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    triton_cache.triton_key = _triton_library
    try:
        with tempfile.TemporaryDirectory(prefix="tritorch-") as folder, triton.knobs.cache.scope():
            triton.knobs.cache.dir = folder
            yield
    finally:
        triton_driver.set_active(before)
        triton_cache.triton_key = key


@functools.cache
def _triton_library() -> str:
    """Which Triton this is: its version, the size and the time of its library."""
    file = os.stat(triton._C.libtriton.__file__)
    return f"{triton.__version__}-{file.st_size}-{file.st_mtime_ns}"


def resources(compiled: Compiled) -> dict[str, int]:
    """What a kernel uses: `registers` and bytes of `spills` of a thread, as `cuobjdump` reads them from the cubin, bytes of `shared`
    memory of a block; in the PTX the bits of the widest global `load` and `store`, and the numbers of `wgmma` and `tma` instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = text.split(f"Function {compiled.name}:")[1].split("Function")[0]
    usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", line)}
    ptx, widest = compiled.ptx, {"ld": 0, "st": 0}
    for way, count, bits in re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\b", ptx):
        widest[way] = max(widest[way], int(count or 1) * int(bits))
    copies = [8 * int(size, 0) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global\S* \[.*?\], \[.*?\], (\w+)", ptx)]
    return {"registers": usage["REG"], "spills": usage["STACK"] + usage["LOCAL"], "shared": compiled.shared,
            "load": max([widest["ld"], *copies]), "store": widest["st"], "wgmma": ptx.count("wgmma.mma_async"),
            "tma": ptx.count("cp.async.bulk.tensor")}


# ------------------------------------------------------------------ the cache on disk
def is_cached(spec: Specialisation, arch: int) -> bool:
    """Whether a result is on disk."""
    how = maker(arch)
    return how.read(how.path_of(spec, arch)) is not None


def path_of(spec: Specialisation, arch: int) -> Path:
    """Where the result of a compilation is kept."""
    return cache_folder() / "kernels" / f"{spec.key(arch)}.z"


def read(path: Path) -> Compiled | None:
    """A result on disk, None where there is none."""
    if triton.knobs.compilation.always_compile:
        return None
    try:
        data = path.read_bytes()
        head, _, rest = data.partition(b"\n")                    # a line of JSON, machine code, PTX: 0.07 ms; all as JSON took 0.4
        fields = json.loads(head)
        size, whole = fields.pop("cubin"), fields.pop("size")
        if len(rest) != whole:
            return None
        return Compiled(cubin=zlib.decompress(rest[:size]), packed_ptx=rest[size:], **fields)
    except (OSError, zlib.error, ValueError, TypeError, KeyError, AttributeError):       # absent, or cut off by a full disk: compile again
        return None


def write(path: Path, compiled: Compiled) -> None:
    """Keep a result on disk."""
    cubin, fields = zlib.compress(compiled.cubin, 1), asdict(compiled)
    fields |= {"cubin": len(cubin), "size": len(cubin) + len(fields.pop("packed_ptx"))}
    with contextlib.suppress(OSError):                           # a read-only home costs time, never a result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(fields).encode() + b"\n" + cubin + compiled.packed_ptx)


# ------------------------------------------------------------------ many kernels, in processes
def compile_many(specs: Iterable[Specialisation], archs: Iterable[int], workers: int | None = None) -> list[Compiled | CompileError]:
    """Compile every specialisation for every architecture in parallel processes.

    The results come in the order of `itertools.product(specs, archs)`; a kernel that does not compile, or takes its
    process down, is its CompileError. Kernels must be found at the top level of a module.
    """
    return list(compile_each(specs, archs, workers))


def compile_each(specs: Iterable[Specialisation], archs: Iterable[int], workers: int | None = None,
                 deadline: float = math.inf) -> Iterator[Compiled | CompileError]:
    """compile_many, one result after the other; what has not begun at `deadline` (of time.monotonic) is a CompileError that says so."""
    from tritorch.cuda import compiler_pool

    def one(spec, arch, path, worker):
        if time.monotonic() > deadline:
            raise CompileError(f"{spec} was not compiled for sm_{arch}: out of time")
        return compiler_pool.compiled(spec, arch, path, worker)

    pool = compiler_pool.lasting(workers or compiler_pool.cores())
    items = [(spec, arch, maker(arch).path_of(spec, arch)) for spec, arch in itertools.product(list(specs), list(archs))]
    futures = [pool.submit(functools.partial(one, *item)) for item in items]
    try:
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, CompileError):
                raise error
            yield error or future.result()
    finally:
        pool.forget(set(futures))


# ------------------------------------------------------------------ what a program compiles
@contextlib.contextmanager
def recording() -> Iterator[dict[str, Specialisation]]:
    """Collect every distinct specialisation that is launched inside, on any driver, with the block sizes of a GPU.

    Run operators on the simulated device inside, then `compile_many(record.values(), (80, 90, 100))`.
    """
    record: dict[str, Specialisation] = {}
    before, driver.hardware_tiles = driver.hardware_tiles, True
    driver.functions.clear()
    driver.forget_calls()
    _recorders.append(record)
    try:
        yield record
    finally:
        _recorders[:] = [r for r in _recorders if r is not record]       # another one may be equal, and empty
        driver.hardware_tiles = before
        driver.functions.clear()
        driver.forget_calls()


def observe(spec: Specialisation) -> None:
    """Called for every specialisation that is about to be loaded."""
    for record in _recorders:
        record.setdefault(spec.key(0), spec)
