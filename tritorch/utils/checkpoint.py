"""Checkpointing: trade time for memory by computing a part of the program again in the backward pass (Chen et al., 2016).

Inside of a checkpoint nothing is saved for the gradient but a promise; the first rule that asks for its saved tensor runs the
function once more, which delivers the tensors of the whole part. A saved tensor goes when its node has used it.
"""
import contextlib
import warnings
import weakref

from tritorch import amp
from tritorch.autograd import backward as run_backward
from tritorch.autograd import enable_grad, is_grad_enabled
from tritorch.autograd.function import Function
from tritorch.autograd.graph import saved_tensors_hooks
from tritorch.autograd.modes import state
from tritorch.device import cpu, device
from tritorch.errors import check
from tritorch.generator import default_generator
from tritorch.random import fork_rng
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_iter
from tritorch.utils.checkpoint_policies import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

__all__ = ["CheckpointError", "CheckpointPolicy", "SelectiveCheckpointContext", "checkpoint", "checkpoint_sequential",
           "create_selective_checkpoint_contexts", "get_device_states", "noop_context_fn", "set_checkpoint_early_stop", "set_device_states"]


class CheckpointError(RuntimeError):
    """The function did something else the second time."""


class _Enough(Exception):
    """Everything that the backward pass needs has been computed again."""


_early_stop = [None]                                                     # what set_checkpoint_early_stop says, if anything


@contextlib.contextmanager
def set_checkpoint_early_stop(enable):
    """For checkpoints called within, whatever their `early_stop` says: whether their second run ends with the last tensor that is needed.

    >>> import tritorch as torch
    >>> from tritorch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
    >>> x = torch.ones(2, requires_grad=True)
    >>> with set_checkpoint_early_stop(False):
    ...     y = checkpoint(torch.sin, x, use_reentrant=False)
    """
    before = _early_stop[0]
    _early_stop[0] = enable
    try:
        yield
    finally:
        _early_stop[0] = before


def get_device_states(*args):
    """(indices of the CUDA devices of the tensors in `args`, the states of their generators); of each tensor, in order."""
    found = [a.device for a in tree_iter(args) if isinstance(a, Tensor) and a.device.type == "cuda"]
    return [d.index for d in found], [default_generator(d).get_state() for d in found]


def set_device_states(devices, states, *, device_type=None):
    """Put the generators of CUDA devices in states that `get_device_states` returned. `device_type`: "cuda", or "meta", which has none.

    >>> import tritorch as torch
    >>> set_device_states(*get_device_states(torch.ones(2)))               # the CPU is none
    """
    for index, was in zip(devices, states) if device_type != "meta" else ():
        default_generator(device("cuda", index)).set_state(was)


def noop_context_fn():
    """The contexts of the first run and of the second: none."""
    return contextlib.nullcontext(), contextlib.nullcontext()


class _Surroundings:
    """What a run of the function depends on besides its arguments: random numbers, autocast, and calls of vmap around."""

    def __init__(self, args, preserve):
        devices = {cpu, *[a.device for a in tree_iter(args) if isinstance(a, Tensor) and not a.is_meta]}
        self.states = [(default_generator(d), default_generator(d).get_state()) for d in devices] if preserve else []
        self.indices = [d.index for d in devices if d is not cpu]
        self.casts = [(kind, amp.is_autocast_enabled(kind), amp.get_autocast_dtype(kind)) for kind in ("cuda", "cpu")]
        self.caching, self.levels, at = amp.is_autocast_cache_enabled(), [], state.interpreter
        while at is not None:
            if at.of_samples:
                self.levels.insert(0, at)
            at = at.outer

    @contextlib.contextmanager
    def again(self):
        with contextlib.ExitStack() as stack:
            if self.states:
                stack.enter_context(fork_rng(self.indices))
                for generator, was in self.states:
                    generator.set_state(was)
            for kind, enabled, dtype in self.casts:
                if enabled or amp.is_autocast_enabled(kind):
                    stack.enter_context(amp.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self.caching))
            for level in self.levels:
                if not level.works:                                      # the arguments are its samples
                    stack.enter_context(level)
            yield


def checkpoint(function, *args, use_reentrant=None, context_fn=noop_context_fn, determinism_check="default", debug=False, early_stop=True,
               preserve_rng_state=True, **kwargs):
    """function(*args, **kwargs), whose intermediate results are not kept but computed again in the backward pass.

    `use_reentrant=False` (also what None means) keeps the graph and recomputes on demand; True runs without a graph and calls
    backward on a second run, which needs an input that requires grad and knows no keywords. Random numbers and autocast are the
    same in both runs. Raises CheckpointError if the second run saves other tensors (`determinism_check="none"`: only if fewer).

    >>> import tritorch as torch
    >>> from tritorch.utils.checkpoint import checkpoint
    >>> x = torch.ones(2, requires_grad=True)
    >>> checkpoint(lambda v: (v * v).sin().sum(), x, use_reentrant=False).backward(); x.grad
    tensor([1.0806, 1.0806])
    """
    if use_reentrant:
        check(not kwargs, "checkpoint", "no keyword arguments with use_reentrant=True", ", ".join(kwargs), use="use_reentrant=False",
              error=ValueError)
        check(context_fn is noop_context_fn and not debug, "checkpoint", "context_fn and debug with use_reentrant=False alone",
              "use_reentrant=True", error=ValueError)
        if is_grad_enabled() and not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            warnings.warn("checkpoint: no input requires grad, so none gets a gradient", stacklevel=2)
        return _Reentrant.apply(function, preserve_rng_state, *args)
    if not is_grad_enabled():
        return function(*args, **kwargs)
    first, second = context_fn()
    early_stop = early_stop if _early_stop[0] is None else _early_stop[0]
    part = _Part(function, args, kwargs, second, _Surroundings((args, kwargs), preserve_rng_state), early_stop, determinism_check)
    with first, saved_tensors_hooks(part.promise, _Part.deliver):
        return function(*args, **kwargs)


class _Promise:
    """Stands for one saved tensor."""

    __slots__ = ("part", "facts", "__weakref__")

    def __init__(self, part, x):
        self.part, self.facts = part, (tuple(x.shape), x.dtype, x.device)


class _Part:
    """A checkpointed call: its promises in the order of their making, and the tensors of those that were computed again."""

    def __init__(self, function, args, kwargs, context, surroundings, early_stop, determinism_check):
        self.function, self.args, self.kwargs, self.context, self.surroundings = function, args, kwargs, context, surroundings
        self.early_stop, self.strict = early_stop, determinism_check != "none"
        self.promises, self.kept = [], weakref.WeakKeyDictionary()

    def promise(self, x):
        made = _Promise(self, x)
        self.promises.append(weakref.ref(made))
        return made

    @staticmethod
    def deliver(promise):
        part = promise.part
        if promise not in part.kept:
            part.run_again()
            if promise not in part.kept:
                raise CheckpointError(f"checkpoint: expected {len(part.promises)} tensors to be saved again in the second run, got fewer; "
                                      "use a function that does the same each time")
        return part.kept[promise]

    def run_again(self):
        promises, count = self.promises, 0

        def keep(x):
            nonlocal count
            promise = promises[count]() if count < len(promises) else None
            count += 1
            if promise is not None:
                facts = tuple(x.shape), x.dtype, x.device
                if self.strict and facts != promise.facts:
                    raise CheckpointError(f"checkpoint: expected tensor {count - 1} to be saved again as {promise.facts}, got {facts}; "
                                          "use a function that does the same each time")
                self.kept[promise] = x
            if count == len(promises) and self.early_stop:
                raise _Enough
            return x

        args = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) and a.dtype.is_floating_point else a for a in self.args]
        with contextlib.suppress(_Enough), self.context, self.surroundings.again(), enable_grad(), saved_tensors_hooks(keep, lambda x: x):
            self.function(*args, **self.kwargs)
        if self.strict and count > len(promises):
            raise CheckpointError(f"checkpoint: expected {len(promises)} tensors to be saved again in the second run, got {count}; "
                                  "use a function that does the same each time")


class _Reentrant(Function):
    """The first run without a graph, the second in backward with one of its own."""

    @staticmethod
    def forward(ctx, function, preserve, *args):
        ctx.function_again, ctx.surroundings = function, _Surroundings(args, preserve)
        ctx.places = [k for k, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.rest = [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*[args[k] for k in ctx.places])
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        args = list(ctx.rest)
        for k, x in zip(ctx.places, ctx.saved_tensors):
            args[k] = x.detach().requires_grad_(x.requires_grad)
        with ctx.surroundings.again(), enable_grad():
            made = ctx.function_again(*args)
        made = made if isinstance(made, tuple) else (made,)
        pairs = [(o, g) for o, g in zip(made, gradients) if isinstance(o, Tensor) and o.requires_grad]
        check(pairs, "checkpoint", "an output that requires grad",
              "none that does")
        run_backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *[a.grad if isinstance(a, Tensor) else None for a in args])


def checkpoint_sequential(functions, segments, input, use_reentrant=None, **kwargs):
    """A Sequential (or a list of functions) in `segments` checkpointed parts; the last one is kept as it is.

    >>> import tritorch as torch
    >>> from tritorch.utils.checkpoint import checkpoint_sequential
    >>> x = torch.ones(1, requires_grad=True)
    >>> checkpoint_sequential([torch.sin, torch.cos, torch.exp], 2, x).backward(); x.grad
    tensor([-0.7844])
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    check(not kwargs, "checkpoint_sequential", "no other keyword arguments", ", ".join(kwargs), error=ValueError)
    functions = list(functions.children()) if hasattr(functions, "children") else list(functions)
    check(1 <= segments <= max(len(functions), 1), "checkpoint_sequential", f"1 to {len(functions)} segments", segments, error=ValueError)
    size = len(functions) // segments

    def chain(part):
        def run(x):
            for f in part:
                x = f(x)
            return x

        return run

    last = size * (segments - 1)
    for start in range(0, last, size):
        input = checkpoint(chain(functions[start:start + size]), input, use_reentrant=bool(use_reentrant), preserve_rng_state=preserve)
    return chain(functions[last:])(input)
