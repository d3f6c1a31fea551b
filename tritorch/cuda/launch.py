"""The only place a kernel starts.

`launch(kernel, grid, *args, **constexprs)` finds the machine code for these arguments (their dtypes, alignment and the
integers Triton specialises on) in one dict, or has the driver load it, and queues it on the current stream.
Importing this file does not import triton.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tritorch.cuda import driver
from tritorch.cuda.allocator import empty_cache
from tritorch.cuda.device import current_device
from tritorch.cuda.device import device as on_device
from tritorch.cuda.launch_descriptor import TensorDescriptor, shared_layout
from tritorch.cuda.measuring import keep
from tritorch.cuda.own_kernels import FOLDER, package
from tritorch.cuda.sources import load as load_module
from tritorch.cuda.stream import current_handle
from tritorch.cuda.trace import current as current_trace
from tritorch.cuda.trace import traces
from tritorch.errors import check
from tritorch.shape import Size

_DIVISIBLE = [["tt.divisibility", 16]]
tensor_types: set[type] = set()         # Tensor and its subclasses, as they are met: this layer does not know them by name
_tuples = {tuple, Size}
_OPTIONS = ("num_ctas", "maxnreg", "launch_pdl")      # and num_warps, num_stages: a parameter of that name gets what the compiler gets
_functions = driver.functions
_kept: dict[int, Any] = {}          # kernels are in keys by id, so they must outlive them


class LaunchError(driver.DriverError):
    """A kernel could not be compiled, loaded or started; names the kernel, its source line, its arguments and the reason."""


# ------------------------------------------------------------------ starting
def launch(kernel, grid, *args, num_warps=4, num_stages=3, **constexprs):
    """Start `kernel` on `grid` (1 to 3 ints) programs, on the current stream of the first tensor's device.

    `args` are the kernel's parameters that are not constexpr, in its order: Tensor -> pointer, int -> i32 (i64 where it
    does not fit, or would not if rounded up to whole blocks; 1 and multiples of 16 are specialised), float -> fp32,
    numpy.float64 -> fp64, bool -> i1, None -> constexpr None, tuple -> tuple, TensorDescriptor -> TMA descriptor.
    Constexprs and compiler options go by keyword. Returns what was started, the same object for the same machine code on the same
    device; None for an empty grid.
    """
    if 0 in grid:
        return None
    key = [id(kernel), num_warps, num_stages]
    for item in constexprs.items():
        kind = item[1].__class__
        if kind is int:
            key.append(item)
        else:                       # 1, True and 1.0 are equal but not the same code, nor are 0.0 and -0.0; a JITFunction hashes in 0.3 µs
            key += (item[0], kind, id(item[1]) if kind is kernel.__class__ else repr(item[1]) if kind is float else item[1])
    return queue(key, kernel, grid, args, constexprs, num_warps, num_stages)


class Prepared:
    """A kernel whose constexprs and options are settled: `prepared(programs, args)` is launch(kernel, (programs,), *args, …) without
    another look at them (2 µs less for six of them)."""

    __slots__ = ("kernel", "num_warps", "num_stages", "constexprs")

    def __init__(self, kernel, num_warps=4, num_stages=3, **constexprs):
        self.kernel, self.num_warps, self.num_stages, self.constexprs = kernel, num_warps, num_stages, constexprs

    def __call__(self, programs, args):
        if programs:
            queue([self], self.kernel, (programs,), args, self.constexprs, self.num_warps, self.num_stages)


def queue(key, kernel, grid, args, constexprs, num_warps=4, num_stages=3):
    """Find or load the code for `key`, which says all about the launch but the arguments, and queue it. What `constexprs` say of warps and
    stages goes first."""
    values = []
    owner = _collect(args, key, values)
    index = current_device() if owner is None else owner.device.index
    key.append(index)
    key = tuple(key)
    start = _functions.get(key)
    try:
        if start is None:
            start = _load(kernel, grid, args, constexprs, num_warps, num_stages, index, key)
        if len(grid) == 1:
            start(grid[0], 1, 1, current_handle(index), values)
        else:
            x, y, z = (*grid, 1)[:3]
            start(x, y, z, current_handle(index), values)
    except driver.OutOfMemory:
        raise
    except Exception as error:
        raise _explained(_words(kernel, grid, args, constexprs), error) from error
    if traces and current_trace() is not None:
        current_trace().launched(start, grid, _leaves(args), values)
    return start


def _leaves(args):
    """The arguments that `_collect` makes values of, in the order of the values."""
    for a in args:
        if a.__class__ in _tuples or isinstance(a, list):
            yield from _leaves(a)
        elif a is not None and not (a.__class__ is not bool and hasattr(a, "__index__") and not hasattr(a, "storage") and a == 1):
            yield a


def _collect(args, key, values):
    """Append to `key` what the machine code depends on and to `values` what it is given; the first tensor's storage."""
    owner = None
    for a in args:
        kind = a.__class__
        if kind in tensor_types:
            storage = a.storage
            dtype = a.dtype
            pointer = storage.ptr
            if a.offset:
                pointer += a.offset * dtype.itemsize
            key.append(dtype.name if pointer & 15 else dtype)
            values.append(pointer)
            if owner is None:
                owner = storage
        elif kind is int:
            if a == 1:
                key.append(1)
            else:
                key.append((32 if a & 15 else 16) if -0x80000000 <= a < 0x7FF00000 else _wide(a))
                values.append(a)
        elif kind is float:
            key.append(float)
            values.append(a)
        elif kind in _tuples:
            key.append(~len(a))
            inner = _collect(a, key, values)
            owner = inner if owner is None else owner
        else:
            inner = _collect_other(a, key, values)
            owner = inner if owner is None else owner
    return owner


def _collect_other(a, key, values):
    kind = a.__class__
    if a is None:
        key.append(None)
    elif kind is TensorDescriptor:
        key += (a.dtype, a.block, a.layout)
        values.append(a)
        return a.tensor.storage
    elif kind is bool or isinstance(a, np.float64):
        key.append(bool if kind is bool else np.float64)
        values.append(a)
    else:
        return _collect((_plain(a),), key, values)
    return None


def _wide(a):
    check(-1 << 63 <= a < 1 << 64, "launch", "integers of at most 64 bits", a, error=OverflowError)
    return a & 15 == 0, a < 1 << 63


def is_tensor(a) -> bool:
    """Whether an argument is a tensor of ours."""
    return hasattr(a, "storage") and hasattr(a, "offset")


def _plain(a):
    """An argument of a type that the fast path does not know, as one that it does."""
    if is_tensor(a):
        tensor_types.add(a.__class__)
        return a
    if isinstance(a, (bool, np.bool_)):
        return bool(a)
    if isinstance(a, (float, np.floating)):
        return float(a)
    if isinstance(a, (tuple, list)):
        return tuple(a)
    if hasattr(a, "__index__"):
        return operator.index(a)
    raise TypeError(f"expected a tensor, number, tuple, None or TensorDescriptor, got {type(a).__name__}; pass constexprs by keyword")


# ------------------------------------------------------------------ loading
def _load(kernel, grid, args, constexprs, num_warps, num_stages, index, key) -> Callable:
    from tritorch.cuda import compiler

    check(index is not None, "launch", "CUDA tensors", "a CPU tensor", error=ValueError)
    spec, ones = specialise(kernel, args, constexprs, num_warps, num_stages)
    compiler.observe(spec)
    what = spec.kernel, spec.signature, spec.constexprs, spec.attrs, spec.options
    with on_device(index):
        try:
            function = driver.current().load(*what)
        except driver.OutOfMemory:                              # machine code needs memory too, and the allocator has it all
            empty_cache()
            function = driver.current().load(*what)
    if hasattr(function, "explain"):                            # it is being compiled: an error of it comes later
        function.explain = functools.partial(_explained, _words(kernel, grid, args, constexprs))
    start = function.launch
    if ones:
        start = _with_ones(start, ones)
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        start = _blocking(start)
    _kept.update((id(a), a) for a in (kernel, *constexprs.values()) if a.__class__ is kernel.__class__)
    return keep(key, start, kernel.__name__)


def specialise(kernel, args, constexprs, num_warps=4, num_stages=3):
    """The compiler's view of a launch, and the places in `values` of ones that the kernel does not want specialised."""
    from tritorch.cuda.compiler import Specialisation

    constexprs = {"num_warps": num_warps, "num_stages": num_stages, **constexprs}
    options = {name: constexprs.pop(name) for name in ("num_warps", "num_stages")}
    names = [p.name for p in kernel.params]
    spec = Specialisation(kernel, {}, {}, {}, {**options, **{k: v for k, v in constexprs.items() if k not in names or k in _OPTIONS}})
    constexprs = {**{k: v for k, v in options.items() if k in names}, **constexprs}
    rest, ones, leaves = list(args), [], 0
    for position, param in enumerate(kernel.params):
        if param.name in constexprs or param.is_constexpr:
            given = param.name in constexprs
            check(given or param.has_default, "launch", f"the constexpr {param.name} by keyword", sorted(constexprs), error=TypeError)
            kind, spec.constexprs[position,] = "constexpr", constexprs[param.name] if given else param.default
        else:
            check(rest, "launch", f"arguments for {', '.join(names)}", f"{len(args)} and {sorted(constexprs)}", error=TypeError)
            value = rest.pop(0)
            kind = _leaf(value, (position,), spec)
            if param.do_not_specialize and not isinstance(kind, tuple) and value is not None:
                if kind == "constexpr":
                    kind = "i32"
                    ones.append(leaves)
                    del spec.constexprs[position,]
                spec.attrs.pop((position,), None)
            if param.do_not_specialize_on_alignment:
                spec.attrs.pop((position,), None)
            if param.annotation_type and kind not in ("constexpr", None) and kind[0] != "*":
                kind = param.annotation_type
                if kind[0] in "fb":
                    spec.attrs.pop((position,), None)
            leaves += _count(kind)
        spec.signature[param.name] = kind
    check(not rest, "launch", f"arguments for {', '.join(names)}", f"{len(args)} and {sorted(constexprs)}", error=TypeError)
    return spec, ones


def _leaf(a, path, spec):
    """Type of an argument; what is constant or divisible in it goes into `spec`. The twin of `_collect`."""
    if a is None or (isinstance(a, int) and a.__class__ is not bool and a == 1):
        spec.constexprs[path] = a
        return "constexpr"
    if a.__class__ is TensorDescriptor:
        return f"tensordesc<{a.dtype.triton}[{', '.join(map(str, a.block))}]{shared_layout(a) if spec.kernel.is_gluon() else ''}>"
    if hasattr(a, "storage"):
        if not a.data_ptr() & 15:
            spec.attrs[path] = _DIVISIBLE
        return "*" + a.dtype.triton
    if a.__class__ is bool or a.__class__ is float:
        return "i1" if a.__class__ is bool else "fp32"
    if isinstance(a, np.float64):
        return "fp64"
    if a.__class__ in _tuples:
        return tuple(_leaf(item, (*path, i), spec) for i, item in enumerate(a))
    if a.__class__ is not int:
        return _leaf(_plain(a), path, spec)
    if not a & 15:
        spec.attrs[path] = _DIVISIBLE
    return "i32" if -0x80000000 <= a < 0x7FF00000 else "i64" if a < 1 << 63 else "u64"


def _count(kind) -> int:
    return sum(map(_count, kind)) if isinstance(kind, tuple) else kind != "constexpr"


def _with_ones(start, ones):
    def start_with_ones(x, y, z, stream, values):
        values = list(values)
        for place in ones:
            values.insert(place, 1)
        start(x, y, z, stream, values)

    return start_with_ones


def _blocking(start):
    """CUDA_LAUNCH_BLOCKING=1: wait for every kernel, so that an error is raised by the launch that caused it."""
    def start_and_wait(x, y, z, stream, values):
        start(x, y, z, stream, values)
        if not driver.current().capture_status(stream):
            driver.current().stream_synchronize(stream)

    return start_and_wait


def _words(kernel, grid, args, constexprs) -> str:
    from tritorch.cuda import compiler

    names = [p.name for p in kernel.params if p.name not in constexprs]
    shown = [f"{name}={_show(a)}" for name, a in zip(names, args)] + [f"{name}={value}" for name, value in constexprs.items()]
    return f"kernel {compiler.where(kernel)} on grid {tuple(grid)} with {', '.join(shown)}"


def _explained(words, error) -> LaunchError:
    reason = error if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
    explained = LaunchError(f"{words}: {reason}")
    explained.__cause__ = error
    return explained


def _show(a) -> str:
    if isinstance(a, tuple):
        return f"({', '.join(map(_show, a))})"
    return f"{a.dtype.name}{list(a.shape)}" if hasattr(a, "storage") else repr(a)


# ------------------------------------------------------------------ for the callers
class kernels:
    """`kernels("matmul")` stands for the module triton_kernels.matmul and imports it, and triton, at the first attribute."""

    def __init__(self, family: str):
        self._family = family

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        own = f"{package()}.{self._family}"
        try:
            module = load_module(own)
        except ModuleNotFoundError as error:
            if error.name != own:
                raise
            raise ImportError(f"tritorch needs its own package {FOLDER.name}, found {FOLDER} without {self._family}; "
                              "uninstall the other package of that name and install tritorch again") from error
        value = self.__dict__[name] = getattr(module, name)
        return value

    def __repr__(self):
        return f"kernels({self._family!r})"


def tile(hardware: int, simulated: int) -> int:
    """The block size for the driver in use: the simulator's cost is per Triton operation, so it wants few, huge blocks."""
    return simulated if driver.current().name == "simulated" and not driver.hardware_tiles else hardware


def compiled_for_host() -> bool:
    """Whether kernels are compiled for the host's processor, now or by `warmup`; it wants tiles that fit in its first cache."""
    return driver.on_host() and driver.current().name != "simulated"


def sm_count() -> int:
    """Multiprocessors of the current device."""
    return driver.current().device_properties(current_device()).multi_processor_count


def shared_memory() -> int:
    """Bytes of shared memory that a block may have on the current device."""
    return driver.current().device_properties(current_device()).shared_memory_per_block_optin
