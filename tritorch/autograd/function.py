"""Functions with a gradient of their own, written by the user."""
import functools
import inspect

from tritorch.autograd import graph, places, slices
from tritorch.autograd.crossing import note
from tritorch.autograd.forward import level_of
from tritorch.autograd.modes import no_grad, state
from tritorch.autograd.snapshot import pack, restore
from tritorch.cuda.watching import watched
from tritorch.errors import GradientError, check
from tritorch.storage import Batched
from tritorch.tensor import Tensor, Unfollowed, empty

_IN_FUNCTION = Unfollowed("The output of a custom Function is a view")


class FunctionCtx(graph.Node):
    """What `forward` leaves for `backward`: saved tensors and any attributes. It is the node of the graph itself."""

    __slots__ = ("saved", "function", "needs_input_grad", "frame", "__dict__")
    _to_save, _dirty, _fixed, _materialize, _for_forward, _as_output, _linked = (), (), (), True, None, None, None

    def __init__(self, function):
        self.function, self.saved, self.edges, self.needs_input_grad = function, None, (), ()
        self.hooks = self.trace = self.shapes = self.streams = None
        self.seq, self.outputs = 0, 1

    def name(self):
        return self.function.__name__ + "Backward"

    def saved_as(self, k):
        """What the k-th saved value is called, and by which function."""
        return f"saved tensor {k}", self.name()

    def save_for_backward(self, *tensors):
        """Keep inputs and outputs (None passes) for `saved_tensors` in backward."""
        for t in tensors:
            check(t is None or isinstance(t, Tensor), "save_for_backward", "tensors or None", type(t).__name__, use="attributes of ctx",
                  error=TypeError)
        self._to_save = tensors

    def save_for_forward(self, *tensors):
        """Keep tensors for a `jvp` rule."""
        self._for_forward = tensors

    def mark_dirty(self, *tensors):
        """Say which inputs forward wrote in place; they must be returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *outputs):
        """Say which outputs have no gradient."""
        self._fixed = outputs

    def set_materialize_grads(self, value):
        """Whether gradients that did not arrive come to backward as zeros (the default) or as None."""
        self._materialize = value

    @property
    def saved_tensors(self):
        """The tensors given to `save_for_backward`, with their places in the graph."""
        if self._for_forward is not None:
            return self._for_forward
        if self.saved is None:
            raise GradientError(f"{self.name()}: expected saved tensors that are still there, but backward has freed them; "
                                "use retain_graph=True to go through the graph a second time")
        values = [restore(self, v, k) for k, v in enumerate(self.saved)]
        for k, v in enumerate(values):
            if v is not None and v.node is self:
                v = v if self._linked is None else self._linked(v)
                values[k] = self._as_output(v) if self._as_output else v
        return tuple(values)

    def release(self):
        if self.saved:
            self.saved = None

    def pull(self, grads, useful=None, as_output=None):
        self._as_output = as_output
        if self._materialize:
            grads = [empty(*self.shapes[k]).zero_() if g is None and self.shapes[k] else g for k, g in enumerate(grads)]
        rule = self.function.vjp if self.function.backward is Function.backward else self.function.backward
        try:
            out = rule(self, *grads)
        finally:
            self._as_output = None
        out = out if isinstance(out, tuple) else (out,)
        count = len(self.edges)
        check(len(out) == count or len(out) > count and all(g is None for g in out[count:]), self.name(),
              f"{count} gradients from backward, one an input of forward", len(out))
        for k, (edge, g) in enumerate(zip(self.edges, out)):
            if edge and g is not None:
                check(isinstance(g, Tensor), self.name(), "gradients that are tensors or None", type(g).__name__)
                fits = len(g.shape) >= len(edge[2]) and all(n == m or n == 1 for n, m in zip(edge[2][::-1], g.shape[::-1]))
                check(fits, self.name(), f"gradient {k} of a shape that sums to {edge[2]}", g.shape)
        return [(edge, g) for edge, g in zip(self.edges, out) if edge]


class Function:
    """A differentiable function given by static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; called by `apply`.

    `forward` may leave out ctx if there is a `setup_context(ctx, inputs, output)`. A static method `jvp(ctx, *tangents)` gives
    forward mode; without it backward is transposed. Inside of `tritorch.vmap` forward and backward run once for all samples, as all
    functions do there; with `setup_context` a static method `vmap(info, in_dims, *args)` may stand in for forward.

    >>> import tritorch as torch
    >>> class Cube(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x ** 3
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x ** 2
    >>> x = torch.tensor(2.0, requires_grad=True); Cube.apply(x).backward(); x.grad
    tensor(12.)
    """

    setup_context = None
    generate_vmap_rule = False

    def __init__(self, *args, **kwargs):
        raise RuntimeError(f"{type(self).__name__}: expected a call of apply, got an instance of the class; use "
                           f"{type(self).__name__}.apply(...)")

    @staticmethod
    def forward(*args, **kwargs):
        """Compute the outputs: `forward(ctx, *inputs)`, or `forward(*inputs)` beside a `setup_context`."""
        raise NotImplementedError("Function: expected a static method forward in the subclass")

    @staticmethod
    def backward(ctx, *grad_outputs):
        """The gradients of the inputs from those of the outputs."""
        raise NotImplementedError("Function: expected a static method backward (or vjp) in the subclass")

    @staticmethod
    def jvp(ctx, *tangents):
        """The tangents of the outputs from those of the inputs (forward mode)."""
        raise NotImplementedError("Function: expected a static method jvp in the subclass")

    vjp = backward

    @staticmethod
    def vmap(info, in_dims, *args):
        """(outputs, their dims) of forward for tensors of all samples: `in_dims` says of each argument along which dim they are, None
        for what is the same for all; `info` has `batch_size` and `randomness`."""
        raise NotImplementedError("Function: expected a static method vmap in the subclass")

    @classmethod
    def apply(cls, *args, **kwargs):
        """Run forward and record the function as one node. Arguments given by name are put in their places."""
        if kwargs or cls.setup_context is not None and getattr(cls.forward, "__defaults__", None):
            bound = inspect.signature(cls.forward).bind(*((None,) if cls.setup_context is None else ()), *args, **kwargs)
            if cls.setup_context is not None:
                bound.apply_defaults()                                   # setup_context sees them, too
            check(not bound.kwargs, cls.__name__, "all arguments before those given by name", sorted(bound.kwargs), error=TypeError)
            args = bound.args[cls.setup_context is None:]
        if any(isinstance(a, Tensor) and a._tangents for a in args):
            level = level_of(args)
            if level is not None:
                return level.custom(cls, args)
        return cls.call(args)[0]

    @classmethod
    def call(cls, args):
        """(outputs, the node) of a call."""
        if watched.tracer is not None:
            watched.tracer.applied(cls)
        ctx = FunctionCtx(cls)
        ctx.needs_input_grad = tuple([isinstance(a, Tensor) and a.requires_grad for a in args])
        by_rule = Batched.forward(cls, args) if Batched.forward else None            # there where vmap is used
        with no_grad():
            if cls.setup_context is None:
                made = cls.forward(ctx, *args)
            else:
                made = cls.forward(*args) if by_rule is None else by_rule[0]
                cls.setup_context(ctx, args, made)
        outs = list(made) if isinstance(made, tuple) else [made]
        _check_dirty(ctx, args, outs)
        outs = [_as_output(ctx, o, args) for o in outs]
        if state.grad and any(ctx.needs_input_grad):
            _record(ctx, args, outs)
            if Batched.around and by_rule is None:
                Batched.around(ctx, args, outs)
        ctx._to_save = ctx._dirty = ctx._fixed = ()
        return tuple(outs) if isinstance(made, tuple) else outs[0], ctx


class InplaceFunction(Function):
    """A Function with a flag for its `forward`, as PyTorch has it for old programs."""

    def __init__(self, inplace=False):
        self.inplace = inplace


def _is_in(x, values):
    return any(x is v for v in values)


def _check_dirty(ctx, args, outs):
    name = ctx.function.__name__
    for d in ctx._dirty:
        check(_is_in(d, args), name, "mark_dirty of inputs", "another tensor")
        check(_is_in(d, outs), name, "every dirty input among the outputs of forward", "one that was not returned")
        if state.grad and any(ctx.needs_input_grad):
            slices.check_history(name, d, True)


def _as_output(ctx, out, args):
    """An input that forward returns untouched becomes a tensor of its own: the input keeps its history."""
    if not isinstance(out, Tensor) or _is_in(out, ctx._dirty):
        return out
    if _is_in(out, args):
        out, source = out.detach(), out
        out.base, out.base_node = source if source.base is None else source.base, _IN_FUNCTION
    elif type(out.base_node) is Unfollowed and any(isinstance(a, Tensor) and a.storage is out.storage for a in args):
        out.base_node = _IN_FUNCTION
    else:
        out.base = out.base_node = None                                  # a view of something that forward made
    return out


def _record(ctx, args, outs):
    """Make ctx the history of the outputs."""
    ctx.seq, ctx.outputs, ctx.frame = graph.next_seq(), len(outs), places.user_place(4)
    if state.anomaly is not None:
        ctx.trace = places.user_trace()
    ctx.edges = [(a.node, a.index, a.shape, a.dtype) if isinstance(a, Tensor) and a.requires_grad else None
                 if isinstance(a, Tensor) else False for a in args]
    ctx.shapes = [(o.shape, o.dtype, o.device) if isinstance(o, Tensor) else None for o in outs]
    for d in ctx._dirty:
        d.storage.version += 1
        d.storage.writer = ctx.frame
    at = {id(o): k for k, o in enumerate(outs)}
    ctx.saved = [pack(v, id(v) in at, at.get(id(v), 0)) if v is not None else None for v in ctx._to_save]
    note(ctx)
    for k, out in enumerate(outs):
        if isinstance(out, Tensor) and out.dtype.has_gradients and not _is_in(out, ctx._fixed):
            old = out.node, out.index
            if type(out.base_node) is Unfollowed:
                out.base_node = Unfollowed(_IN_FUNCTION.why, out.base.node)
            out.node, out.index = ctx, k
            if _is_in(out, ctx._dirty):
                slices.settle(out, ctx, k, old)


def once_differentiable(fn):
    """A backward whose result has no gradient of its own: asking for one is an error."""

    @functools.wraps(fn)
    def backward(ctx, *grads):
        with no_grad():
            made = fn(ctx, *grads)
        watched = state.grad and any(isinstance(g, Tensor) and g.requires_grad for g in (*grads, *_saved(ctx)))
        if not watched:
            return made
        several = isinstance(made, tuple)
        blocked = tuple([_Once.apply(g, _anchor(grads, ctx)) if isinstance(g, Tensor) else g for g in (made if several else (made,))])
        return blocked if several else blocked[0]

    return backward


def _saved(ctx):
    return [t for t in ctx.saved_tensors if t is not None] if ctx.saved is not None else []


def _anchor(grads, ctx):
    return next(t for t in (*grads, *_saved(ctx)) if isinstance(t, Tensor) and t.requires_grad)


class _Once(Function):
    """The gradient of a once differentiable function: it hangs on what was differentiable, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx, g, anchor):
        return g.detach()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("once_differentiable: expected no second derivative of a function that is marked so, got a call for one")
