"""make_graphed_callables: parts of a model as CUDA graphs inside of a program that stays eager.

The forward and the backward pass of each part are captured once. A call copies its inputs to where the capture read them and
replays; autograd sees one node. It lives here because the CUDA layer lies under autograd, and loads when it is asked for.
"""
import itertools
import weakref

from tritorch import cuda
from tritorch.autograd.engine import grad
from tritorch.autograd.function import Function, once_differentiable
from tritorch.autograd.modes import enable_grad, no_grad, state
from tritorch.errors import check
from tritorch.tensor import Tensor, empty_like
from tritorch.utils._pytree import tree_flatten, tree_leaves

NAME = "make_graphed_callables"


def make_graphed_callables(callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None):
    """Functions or modules that do the same by replaying a CUDA graph, forward and backward: `f = make_graphed_callables(f, (x,))`.

    `sample_args` is a tuple of arguments as the real ones will be: tensors, or lists, tuples and dicts of them, of the same shapes,
    dtypes and `requires_grad`; calls write into their memory. For a tuple of callables it is a tuple of such tuples, and a tuple is
    returned: these share memory, so they must run in this order in every step, and backward in the reverse order. Of a module
    `forward` is replaced; in the other training mode it runs as before. Results are overwritten by the next call.

    `num_warmup_iters` eager calls come before the capture, `allow_unused_input` permits inputs and parameters without influence,
    `pool` is as in `tritorch.cuda.graph`. Not possible: keyword arguments, hooks on modules (add them after), double backward,
    anything that waits for the device.

    >>> import tritorch
    >>> if tritorch.cuda.is_available():
    ...     net = tritorch.nn.Linear(4, 2).cuda()
    ...     net = tritorch.cuda.make_graphed_callables(net, (tritorch.randn(3, 4, device="cuda"),))
    ...     net(tritorch.randn(3, 4, device="cuda")).sum().backward()
    """
    from tritorch.amp import is_autocast_cache_enabled, is_autocast_enabled

    check(not (is_autocast_enabled("cuda") and is_autocast_cache_enabled()), NAME, "autocast with cache_enabled=False", "one that caches",
          use="autocast(..., cache_enabled=False)", error=RuntimeError)
    several = isinstance(callables, tuple)
    check(not several or len(callables) == len(sample_args), NAME, f"{len(callables) if several else 1} tuples of sample_args",
          len(sample_args), error=ValueError)
    taken: set = set()
    parts = [_Part(*pair, taken) for pair in (zip(callables, sample_args) if several else [(callables, sample_args)])]
    for part in parts:
        for _ in range(num_warmup_iters):
            part.gradients(part.run(), allow_unused_input)
    pool = cuda.graph_pool_handle() if pool is None else pool
    for part in parts:
        part.capture_forward(pool)
    for part in reversed(parts):                                         # the order in which they will run: memory is used again
        part.capture_backward(pool, allow_unused_input)
    made = [part.replaced() for part in parts]
    return tuple(made) if several else made[0]


class _Part:
    """One callable: where its capture reads (`inputs`: arguments, then parameters) and writes (`outputs`, `found`)."""

    def __init__(self, callable, args, taken):
        from tritorch.nn import Module

        given, self.form = tree_flatten(args)
        bad = [x.device if isinstance(x, Tensor) else type(x).__name__ for x in given if not (isinstance(x, Tensor) and x.is_cuda)]
        check(not bad, NAME, "sample_args of CUDA tensors", *bad, error=TypeError)
        self.callable, self.inputs = callable, [_place(x, taken) for x in given]
        self.args, self.count = self.form.unflatten(self.inputs), len(self.inputs)
        self.module = callable if isinstance(callable, Module) else None
        if self.module is not None:
            hooks = "_backward_hooks", "_forward_hooks", "_forward_pre_hooks"
            check(not any(getattr(m, name) for m in callable.modules() for name in hooks), NAME, "modules without hooks",
                  "a module that has some", use=f"register_…_hook after {NAME}")
            check(not any(b.requires_grad for b in callable.buffers()), NAME, "buffers that need no gradient", "one that requires grad")
            self.inputs += callable.parameters()
        self.wanted = [x for x in self.inputs if x.requires_grad]
        self.forward, self.backward = cuda.CUDAGraph(), cuda.CUDAGraph()

    def run(self):
        with enable_grad():
            return self.callable(*self.args)

    def gradients(self, made, allow_unused, seeds=None):
        """The gradients of the inputs that want one, from those of the outputs that have one."""
        outs = [o for o in tree_leaves(made) if o.requires_grad]
        seeds = [empty_like(o) for o in outs] if seeds is None else seeds
        return grad(outs, self.wanted, seeds, allow_unused=allow_unused) if outs and self.wanted else [None] * len(self.wanted)

    def capture_forward(self, pool):
        with cuda.graph(self.forward, pool=pool):
            self.made = self.run()

    def capture_backward(self, pool, allow_unused):
        outs, form = tree_flatten(self.made)
        self.seeds = [empty_like(o) if o.requires_grad else None for o in outs]
        with cuda.graph(self.backward, pool=pool):
            found = iter(self.gradients(self.made, allow_unused, [s for s in self.seeds if s is not None]))
        self.found = [next(found) if x.requires_grad else None for x in self.inputs]
        self.outputs, self.made = [o.detach() for o in outs], form

    def __call__(self, *args):
        given, form = tree_flatten(args)
        check(form == self.form, "graphed", f"arguments as captured, {self.form.unflatten(['tensor'] * self.count)}",
              form.unflatten(["tensor"] * len(given)), error=TypeError)
        lost = state.grad and any(x.requires_grad and not mine.requires_grad for x, mine in zip(given, self.inputs))
        check(not lost, "graphed", "requires_grad as captured", "a tensor that requires grad where the sample did not")
        return self.made.unflatten(_Replay.apply(self, *given, *self.inputs[self.count:]))

    def replaced(self):
        """What the user calls in place of the callable."""
        module, self.callable, self.module = self.module, None, None     # the module will own this object: no cycle
        if module is None:
            return self
        own, cls, training, there = vars(module).get("forward"), type(module), module.training, weakref.ref(module)

        def forward(*args, **kw):
            if there().training == training:
                return self(*args, **kw)
            return cls.forward(there(), *args, **kw) if own is None else own(*args, **kw)

        module.forward = forward
        return module


class _Replay(Function):
    """The node of a replayed part: forward(part, arguments, parameters)."""

    @staticmethod
    def forward(ctx, part, *inputs):
        ctx.part = part
        for mine, given in zip(part.inputs[:part.count], inputs):
            _copy(mine, given)
        part.forward.replay()
        outs = tuple([o.detach() for o in part.outputs])
        ctx.mark_non_differentiable(*itertools.compress(outs, [s is None for s in part.seeds]))
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        for mine, given in zip(ctx.part.seeds, grads):
            if mine is not None:
                _copy(mine, given)
        ctx.part.backward.replay()
        return None, *[None if g is None else g.detach() for g in ctx.part.found]


def _place(x, taken):
    """Where a capture reads an argument: in the sample itself, unless something else does so already."""
    if x.storage in taken:
        x = x.detach().clone().requires_grad_(x.requires_grad)
    taken.add(x.storage)
    return x


@no_grad()
def _copy(mine, given):
    """Bring an argument to where the capture reads it."""
    fits = given.shape == mine.shape and given.dtype is mine.dtype
    check(fits, "graphed", f"a tensor as captured, {mine.dtype} {tuple(mine.shape)}", f"{given.dtype} {tuple(given.shape)}")
    if given.data_ptr() != mine.data_ptr() or given.strides != mine.strides:
        mine.detach().copy_(given)
