"""Whole steps as CUDA graphs: `tritorch.compile`, and what goes with it under the names of torch.compiler."""
from __future__ import annotations

import functools

from tritorch.compiler.function import Compiled, everyone
from tritorch.compiler.watch import Unsupported
from tritorch.cuda.watching import host_work, watched
from tritorch.errors import check

__all__ = ["Unsupported", "compile", "disable", "is_compiling", "reset"]

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OPTIONS = {"cache_size_limit": 8, "fuse": True, "inexact": False}


def compile(model=None, *, fullgraph=False, dynamic=None, backend="cudagraph", mode=None, options=None, disable=False):
    """TODO"""
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable)
    chosen = {**OPTIONS, **(options or {})}
    if disable:
        return model
    return Compiled(model, fullgraph, chosen)


def is_compiling():
    """Whether the calling function is being warmed up or captured by `compile`."""
    return watched.watcher is not None


def reset():
    """Forget all recordings and their memory: the next call of every compiled function is a first one."""
    for compiled in list(everyone):
        compiled.forget()


def disable(fn=None, recursive=True, *, reason=None):
    """Decorator: the function runs eagerly, and so do compiled functions that call it."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)

    @functools.wraps(fn)
    def eager(*args, **kwargs):
        host_work(reason or "a function that compiler.disable was applied to")
        return fn(*args, **kwargs)

    return eager
