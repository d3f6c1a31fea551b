"""Whole steps as CUDA graphs: `tritorch.compile`, and what belongs to it under the names of torch.compiler."""
from __future__ import annotations

import functools

from tritorch.compiler.function import Compiled, everyone
from tritorch.compiler.module import OptimizedModule
from tritorch.compiler.stance import set_stance
from tritorch.compiler.watch import Unsupported
from tritorch.cuda.watching import host_work, watched
from tritorch.errors import check
from tritorch.nn.module import Module

__all__ = ["Unsupported", "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling",
           "is_dynamo_compiling", "is_exporting", "list_backends", "reset", "set_stance"]

MODES = None, "default", "reduce-overhead", "max-autotune"
OPTIONS = {"cache_size_limit": 8, "fuse": True, "inexact": False}


def compile(model=None, *, fullgraph=False, dynamic=None, backend="cudagraph", mode=None, options=None, disable=False):
    """A function or module that does the same by replaying a CUDA graph: a training step, an inference function, a forward pass.

    Calls are told apart by shapes, strides, dtypes and `requires_grad` of tensors among the arguments (also in lists, tuples, dicts,
    classes made of these, dataclasses and what `utils._pytree` knows), by all other arguments, by the globals and variables of enclosing
    functions that the code names, by modes such as `no_grad` and `autocast`. The first calls of a kind run eagerly, as the real calls
    that they are, and are watched; when two in a row did the same the next one is captured, mostly the third or fourth. Every call is
    one call: nothing is run twice or lost, and parameters, optimizer state, random numbers, learning rates set by a schedule between
    calls, gradient scales and gradients are bit for bit what they would be without `compile`.

    * Python runs only in calls that are watched or captured: prints, counters, lists of numbers, times do not go on. A
      counter that the function also goes by (`self.n += 1`, `if self.n % 4 == 0:`) keeps its calls eager.
    * Arguments are copied to where the graph reads them; results are copies of the caller's own, which share no memory with one
      another or with arguments. Gradients left in `.grad`, and tensors left in attributes, dicts, lists and variables, are in memory that
      the next call which leaves one there overwrites: clone those that are to be kept.
    * A replay puts the tensors and objects that the call leaves in attributes, dicts, lists and variables where the call puts them,
      whoever has assigned or deleted these since; so it does with numbers that equal calls set to the same. A dict, list or object that
      the call makes is the same one each time. Tensors with a history that are left so by a function which runs no backward pass are
      the caller's own, as results are, where a result requires grad too.
    * Results that require grad, of a function that runs no backward pass itself, can be differentiated (once): the backward pass is a
      second graph. Until it has run, or the results are gone, other calls run eagerly. Other results have no history.
      Its gradients are added to what `.grad` holds already after they are rounded: in half types one rounding more than eagerly.
    * Optimizers get `capturable=True` (Adagrad, which has none, `fused=True`), so that they count their steps on the device; SGD counts
      none. Those that compute on the host (Adafactor, LBFGS, Muon) run eagerly.
    * What no CUDA graph can hold (a value that the host waits for, shapes that depend on values, random numbers or schedules of the
      host, a list or dict among the arguments that the function changes, a list elsewhere that every call appends a tensor to, values
      of CPU tensors) keeps that kind of calls eager, with one warning that names it and the line, unless only the first call does: it
      may set up what the others use. `fullgraph=True` raises `compiler.Unsupported` instead, at once. Without a CUDA device, and for
      arguments on the CPU, everything runs eagerly.
    * Before every replay a look is taken at parameters, buffers and modes of modules, at optimizers, their options and state, and at what
      the functions that ran name: numbers, strings, tensors, functions and other objects in globals, variables of enclosing functions,
      attributes (`args.beta`, `self.mask`), the environment, and all of dicts, lists, sets of up to 64 elements and arrays of up to 4096
      bytes, as far as they can be reached from globals, arguments and modules. Where one differs the call is watched anew. What the call
      itself assigns does not count; a warning names numbers that it counts with. Not looked at are files and clocks; longer containers,
      but for entries that the code names; attributes of modules that are set past `Module.__setattr__`; attributes whose names are
      only in data, as in `"{0.beta}".format(args)`; a tensor of an optimizer's state, of a parameter that is neither its first nor
      its last, that is replaced while the program keeps the old one; options of an optimizer's group that a function sets by a computed
      name without naming `param_groups`; and numbers that only a backward pass reads, between a compiled module's forward and its backward.
    * Arguments that share memory with one another, or with what the call writes, run eagerly where that makes a difference.
    * A graph has memory of its own, beside what eager calls hold. A call that does not fit there while it is captured is run eagerly, and
      so are others of its kind, with a warning; what Python itself did in the attempt (a counter, a list) is then done twice.
    * Calls of compiled functions run one at a time, whatever threads they are made in; while one is captured, other threads must not
      wait for the device.

    Chains of operators for which there is one kernel (`compiler.patterns.PATTERNS`) are replaced where nobody else looks at what is in
    between, after one more warm-up call; and where the optimizer's step is all that reads clipped gradients, and `zero_grad` follows in the
    same call, the step clips as it reads. Where nothing but steps of optimizers writes weights that `autocast` casts, these write the casts
    too, and the next call finds them there; if anything else has written one since (in place, by `.data`, a checkpoint, another graph),
    all are cast before it. Who writes a weight by its address alone, in a kernel that no operator starts, has to say so, by
    `autograd.graph.increment_version`. By default only those that change no bit; `mode="max-autotune"` adds those that round in
    another way, and computes a last layer and its cross entropy as `F.linear_cross_entropy` does, without the logits. `report()` of the
    result tells what became of the calls, what was replaced and how it rounds.

    `options`: "cache_size_limit", how many kinds of calls and how many recordings of each are kept (8); "fuse", whether chains are
    replaced at all (True); "inexact", also where the last bits change (False). `dynamic`, other modes and `backend` are accepted and
    change nothing: every shape has a recording of its own. Raises ValueError for other modes and options, TypeError for a `model` that
    cannot be called. A class, an autograd.Function mostly, is returned as it is: what calls it is what is compiled.

    >>> import tritorch as torch
    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = torch.optim.SGD([weight], lr=0.5)
    >>> @torch.compile
    ... def step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = ((weight * x).sum() - y) ** 2
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss.detach()
    >>> [step(torch.ones(2), 1.0).item() for _ in range(3)]
    [1.0, 1.0, 1.0]
    """
    check(mode in MODES, "compile", f"mode {', '.join(map(repr, MODES))}", repr(mode), error=ValueError)
    odd = (options or {}).keys() - OPTIONS.keys()
    check(not odd, "compile", f"options among {sorted(OPTIONS)}", sorted(odd), error=ValueError)
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
                                 disable=disable)
    check(callable(model), "compile", "a function or a module", type(model).__name__, error=TypeError)
    if disable or isinstance(model, type):
        return model
    chosen = {**OPTIONS, "inexact": mode == "max-autotune", **(options or {})}
    return (OptimizedModule if isinstance(model, Module) else Compiled)(model, fullgraph, chosen)


def is_compiling():
    """Whether this thread is inside of a call that `compile` watches or captures, or that an exporter traces.

    >>> import tritorch; tritorch.compiler.is_compiling()
    False
    """
    return watched.watcher is not None or watched.tracer is not None


def is_dynamo_compiling():
    """`is_compiling()`: there is no other compiler."""
    return is_compiling()


def is_exporting():
    """Whether this thread is inside of a call that an exporter traces: what looks at elements of tensors has to be left out.

    >>> import tritorch; tritorch.compiler.is_exporting()
    False
    """
    return watched.tracer is not None


def allow_in_graph(fn):
    """fn itself: a graph holds what functions do, whatever functions they are."""
    return fn


def assume_constant_result(fn):
    """fn itself: a replay calls no function."""
    return fn


def cudagraph_mark_step_begin():
    """Nothing: results of replays are copies of the caller's own."""


def reset():
    """Forget all recordings and give their memory back: the next call of every compiled function is a first one."""
    for compiled in list(everyone):
        compiled.forget()


def list_backends():
    """The backends of `compile`."""
    return ["cudagraph"]


def disable(fn=None, recursive=True, *, reason=None):
    """Decorator: the function runs eagerly, and so do compiled functions that call it; `reason` is told by their warning."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)

    @functools.wraps(fn)
    def eager(*args, **kwargs):
        host_work(reason or f"{fn.__name__}, which compiler.disable keeps out,")
        return fn(*args, **kwargs)

    return eager


_disable_dynamo = disable
