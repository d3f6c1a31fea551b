"""`kernel[grid](...)`, as Triton programs start their kernels, on the launch path of this package.

`run` takes the place of JITFunction.run and understands our tensors: arguments in any order and by keyword, constexprs among
them, grids that are functions, autotune and heuristics around it. It queues the kernel by `launch`, on the current stream, on every
device there is, simulated ones too. Kernels that are given another library's tensors go Triton's own way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import triton

from tritorch.cuda import driver
from tritorch.cuda.device import current_device
from tritorch.cuda.launch import is_tensor, queue, specialise, tensor_types
from tritorch.cuda.launch_descriptor import TensorDescriptor
from tritorch.cuda.launch_driver import ours, torch_is_there, triton_run, yield_to_torch
from tritorch.cuda.stream import current_handle
from tritorch.device import cpu
from tritorch.dtype import REAL, dtype
from tritorch.errors import check

_IGNORED = ("debug", "instrumentation_mode", "maxnreg", "ir_override")      # options that are as good as absent when they are nothing
_NOTHING = (None, False, "")
_SIMPLE = {int, bool, str, float, type(None)}
_CHANGED = object()
_hooks = triton.knobs.runtime
_compiled: dict[Callable, Compiled] = {}
driver.watchers.append(_compiled.clear)


class Plan:
    """How a call of one form is read: so many arguments by position, these by keyword. `split(args, kwargs)` gives the values that the
    machine code takes and the constexprs and options by name; `bound(args, kwargs)` all of them by name, for a grid that is a function."""

    __slots__ = ("names", "ignored", "split", "bound")

    def __init__(self, kernel: Any, given: int, keywords: tuple[str, ...]):
        names = [p.name for p in kernel.params]
        check(given <= len(names), kernel.__name__, f"at most {len(names)} arguments", given, error=TypeError)
        at = {name: f"args[{i}]" for i, name in enumerate(names[:given])}
        for name in keywords:
            check(name not in at, kernel.__name__, f"the argument {name} once", "it by position and by keyword", error=TypeError)
            check(name in names or name in _known_options(), kernel.__name__, "parameters of the kernel and options of the compiler", name,
                  error=KeyError)
            at[name] = f"kwargs[{name!r}]"
        missing = [p.name for p in kernel.params if p.name not in at and not p.has_default]
        check(not missing, kernel.__name__, f"arguments for {', '.join(names)}", f"none for {', '.join(missing)}", error=TypeError)
        at = {p.name: f"defaults[{i}]" for i, p in enumerate(kernel.params)} | at
        self.names = [p.name for p in kernel.params if not p.is_constexpr]
        self.ignored = [name for name in _IGNORED if name in keywords and name not in names]
        fixed = [p.name for p in kernel.params if p.is_constexpr] + [name for name in keywords if name not in names]
        # written out as source, as Triton does: a loop over the parameters takes longer than the launch
        scope = {"defaults": [p.default for p in kernel.params]}
        values, constexprs, everything = ", ".join(map(at.get, self.names)), _written(fixed, at), _written(names, at)
        self.split = eval(f"lambda args, kwargs: ([{values}], {{{constexprs}}})", scope)
        self.bound = eval(f"lambda args, kwargs: {{{everything}}}", scope)


def _written(names, at):
    return ", ".join(f"{name!r}: {at[name]}" for name in names)


def _known_options():
    from triton.backends.nvidia.compiler import CUDAOptions

    return {*CUDAOptions.__dataclass_fields__, *_IGNORED}


def run(self, *args, grid, warmup=False, **kwargs):
    """JITFunction.run: start the kernel, or with `warmup` compile it alone. Returns a Compiled."""
    return _call(self, grid, warmup, args, kwargs)


def bracket(self, grid):
    """JITFunction.__getitem__: Triton's own has all arguments packed once more, for `run`."""
    if type(self).run is not run:                                # somebody has put another in its place
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)
    return lambda *args, **kwargs: _call(self, grid, False, args, kwargs)


triton.JITFunction.__getitem__ = bracket


def _call(kernel, grid, warmup, args, kwargs):
    """All of a call, therefore long."""
    if "torch" in sys.modules and torch_is_there() and not ours((*args, *kwargs.values())):
        yield_to_torch()
        return triton_run[0](kernel, *args, grid=grid, warmup=warmup, **kwargs)
    form = len(args), *kwargs
    try:
        plan = kernel._tritorch_plans[form]
    except (AttributeError, KeyError):
        plan = Plan(kernel, len(args), form[1:])
        kernel.__dict__.setdefault("_tritorch_plans", {})[form] = plan
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    values, constexprs = plan.split(args, kwargs)
    for value in values:
        kind = value.__class__
        if value.storage.device is cpu if kind in tensor_types else kind not in _SIMPLE:
            values = [_given(kernel, name, value, warmup) for name, value in zip(plan.names, values)]
            break
    key = [plan]                                                 # it knows the names of the constexprs, and their order
    for name, value in constexprs.items():
        kind = value.__class__
        if kind is int:
            key.append(value)
        else:
            if kind not in _SIMPLE:                              # a float would take a microsecond in `_constant`
                value = constexprs[name] = _constant(value)
                kind = value.__class__
            key += kind, id(value) if kind is kernel.__class__ else repr(value) if kind is float else value
    for name in plan.ignored:
        if kwargs[name] in _NOTHING:
            del constexprs[name]
    if warmup:
        return Compiled(kernel, [_Pointer(v) if isinstance(v, dtype) else v for v in values], constexprs).compiled()
    if kernel.used_global_vals:
        _check_globals(kernel)
    if callable(grid):
        grid = grid(plan.bound(args, kwargs))
    enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook
    if enter and enter.calls or leave and leave.calls:
        return _watched(kernel, grid, values, constexprs, key, plan.bound(args, kwargs))
    return _start(kernel, grid, values, constexprs, key)


def _start(kernel, grid, values, constexprs, key):
    if 0 in grid:
        return Compiled(kernel, values, constexprs)
    started = queue(key, kernel, grid, values, constexprs)
    found = _compiled.get(started)
    if found is None:
        found = _compiled[started] = Compiled(kernel, values, constexprs)
    return found


def _watched(kernel, grid, values, constexprs, key, bound):
    """A launch between the hooks of triton.knobs.runtime, which are told what @triton.jit(launch_metadata=…) says of it."""
    from triton.compiler.compiler import LazyDict

    compiled = Compiled(kernel, values, constexprs)
    told = LazyDict({"name": compiled.name, "function": None, "stream": current_handle(current_device())})
    if kernel.launch_metadata is not None:
        told.add(kernel.launch_metadata, (grid, compiled.metadata, bound))
    if _hooks.launch_enter_hook:
        _hooks.launch_enter_hook(told)
    started = _start(kernel, grid, values, constexprs, key)
    if _hooks.launch_exit_hook:
        _hooks.launch_exit_hook(told)
    return started


def _given(kernel, name, value, warmup):
    """An argument as `launch` takes it, and a kernel can read it."""
    value = _plain(value)
    if is_tensor(value) and value.storage.device is cpu and not warmup and not value.is_pinned():
        raise ValueError(f"{kernel.__name__}: expected CUDA tensors, got the CPU tensor {name}; a kernel cannot read it")
    return value


def _plain(value):
    if value.__class__ in _SIMPLE or is_tensor(value):
        return value
    if isinstance(value, triton.language.constexpr):
        return _plain(value.value)
    if hasattr(value, "block_shape"):                            # triton.tools' and Gluon's TensorDescriptor
        return TensorDescriptor(value.base, value.block_shape, value.shape, value.strides, padding=value.padding,
                                          layout=getattr(value, "layout", None))
    if value.__class__.__name__ == "TensorWrapper":              # triton.reinterpret: the same bytes, another dtype
        name = value.dtype.name
        known = next((t for t in REAL if name in (t.triton, t.name)), None)
        check(known is not None, "triton.reinterpret", f"a dtype among {', '.join(t.triton for t in REAL)}", name, error=TypeError)
        return value.base.view(known)
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value


def _constant(value):
    if isinstance(value, triton.language.constexpr):
        return _constant(value.value)
    if isinstance(value, dict):                                  # extern_libs
        return tuple(value.items())
    return tuple(map(_constant, value)) if isinstance(value, list) else value


def _check_globals(kernel):
    for (name, _), (value, namespace) in kernel.used_global_vals.items():
        now = namespace.get(name, _CHANGED)
        if now is not value and now != value:
            raise RuntimeError(f"{kernel.__name__}: the global {name} has changed since the kernel was compiled, from {value} to {now}; "
                               "pass it as a constexpr")


class _Pointer:
    """An aligned pointer, as `warmup` is given one: by its dtype alone."""

    storage, offset = None, 0

    def __init__(self, dtype):
        self.dtype = dtype

    def data_ptr(self):
        return self.offset


class Compiled:
    """What `kernel[grid](...)` and `kernel.warmup(..., grid=...)` return: the machine code of that call, made when it is asked for.

    `asm` (ttir, ttgir, llir, ptx, cubin), `n_regs`, `n_spills` (bytes a thread), `metadata` (bytes of shared memory, num_warps, …) and
    `name` are Triton's; `compiled[grid](...)` starts the kernel again with the same constexprs and options.
    """

    def __init__(self, kernel: Any, values: list, constexprs: dict):
        self.fn, self._constexprs = kernel, constexprs
        self._spec = specialise(kernel, values, constexprs)[0]

    def compiled(self) -> Compiled:
        """Itself, with the machine code made or read from disk."""
        self._code  # noqa: B018
        return self

    _init_handles = compiled

    @functools.cached_property
    def _code(self):
        from tritorch.cuda import compiler

        spec = self._spec
        return compiler.compile_kernel(spec.kernel, spec.signature, spec.constexprs, spec.attrs, spec.options, _arch())

    @functools.cached_property
    def _resources(self):
        from tritorch.cuda import compiler

        return compiler.resources(self._code)

    @functools.cached_property
    def asm(self) -> dict:
        """The stages of the compilation, from Triton's first representation to machine code: compiled anew to be looked at."""
        from tritorch.cuda import compiler

        return compiler.stages(self._spec, _arch())

    name = property(lambda self: self._code.name)
    metadata = property(lambda self: self._code)
    n_regs = property(lambda self: self._resources["registers"])
    n_spills = property(lambda self: self._resources["spills"])

    def __getitem__(self, grid) -> Callable:
        def start(*args):
            given = dict(zip([p.name for p in self.fn.params], args))
            rest = {name: value for name, value in self._constexprs.items() if name not in given}
            return self.fn[grid](*args, **rest)

        return start

    def __repr__(self):
        return f"Compiled({self._spec})"


def _arch() -> int:
    properties = driver.current().device_properties(current_device())
    return 10 * properties.major + properties.minor
