"""Functions with a gradient of their own, written by the user."""
from tritorch.autograd import graph
from tritorch.autograd.modes import no_grad, state
from tritorch.errors import GradientError, check
from tritorch.tensor import Tensor, empty


class FunctionCtx(graph.Node):
    """What `forward` leaves for `backward`: saved tensors and any attributes. It is the node of the graph itself."""

    __slots__ = ("saved", "function", "needs_input_grad", "__dict__")
    _to_save, _dirty, _fixed, _materialize = (), (), (), True

    def __init__(self, function):
        self.function, self.saved, self.edges, self.needs_input_grad = function, None, (), ()
        self.hooks = self.pre_hooks = self.trace = self.metadata = None

    @property
    def name(self):
        return self.function.__name__ + "Backward"

    def save_for_backward(self, *tensors):
        """Keep inputs and outputs (None passes) for `saved_tensors` in backward."""
        self._to_save = tensors

    def save_for_forward(self, *tensors):
        """Keep tensors for a `jvp` rule."""
        self._to_save = self._to_save or tensors

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
        if self.saved is None:
            raise GradientError(f"{self.name}: expected saved tensors that are still there, but backward has freed them; "
                                "use retain_graph=True to go through the graph a second time")
        return tuple([graph.restore(self, v, f"saved tensor {k}", self.name) for k, v in enumerate(self.saved)])

    def release(self):
        self.saved = None

    def pull(self, grads, useful=None):
        if self._materialize:
            grads = [empty(*self.metadata[k]).zero_() if g is None and self.metadata[k] else g for k, g in enumerate(grads)]
        out = self.function.backward(self, *grads)
        out = out if isinstance(out, tuple) else (out,)
        count = len(self.edges)
        check(len(out) == count or all(g is None for g in out[count:]) and len(out) > count, self.name, f"{count} gradients from backward, one an input of forward", len(out))
        for edge, g in zip(self.edges, out):
            if edge is not None and g is not None:
                check(isinstance(g, Tensor), self.name, "gradients that are tensors or None", type(g).__name__, error=TypeError)
        return [(edge, g) for edge, g in zip(self.edges, out) if edge is not None]


class Function:
    """A differentiable function given by static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; called by `apply`.

    `forward` may leave out ctx if there is a `setup_context(ctx, inputs, output)`.

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

    @staticmethod
    def forward(*args, **kwargs):
        raise NotImplementedError("Function: expected a static method forward in the subclass")

    @staticmethod
    def backward(ctx, *grad_outputs):
        raise NotImplementedError("Function: expected a static method backward in the subclass")

    vjp = backward

    @classmethod
    def apply(cls, *args):
        """Run forward and record the function as one node."""
        ctx = FunctionCtx(cls)
        ctx.needs_input_grad = tuple([isinstance(a, Tensor) and a.requires_grad for a in args])
        with no_grad():
            if cls.setup_context is None:
                made = cls.forward(ctx, *args)
            else:
                made = cls.forward(*args)
                cls.setup_context(ctx, args, made)
        outs = list(made) if isinstance(made, tuple) else [made]
        outs = [cls._as_output(ctx, o, args) for o in outs]
        if state.grad and any(ctx.needs_input_grad):
            cls._record(ctx, args, outs)
        ctx._to_save = ctx._dirty = ctx._fixed = ()
        return tuple(outs) if isinstance(made, tuple) else outs[0]

    @staticmethod
    def _as_output(ctx, out, args):
        """An input that forward returns untouched becomes a tensor of its own: the input keeps its history."""
        if isinstance(out, Tensor) and any(out is a for a in args) and not any(out is d for d in ctx._dirty):
            return out.detach()
        return out

    @classmethod
    def _record(cls, ctx, args, outs):
        ctx.seq, ctx.outputs = graph.next_seq(), len(outs)
        ctx.edges = [(a.node, a.index, a.shape, a.dtype) if isinstance(a, Tensor) and a.requires_grad else None for a in args]
        for d in ctx._dirty:
            check(not d.requires_grad or not d.is_leaf, cls.__name__, "a dirty tensor that is not a leaf that requires grad", "one that is")
        ctx.metadata = [(o.shape, o.dtype, o.device) if isinstance(o, Tensor) else None for o in outs]
        places = {id(o): k for k, o in enumerate(outs)}
        ctx.saved = [graph.pack(v, id(v) in places, places.get(id(v), 0)) if v is not None else None for v in ctx._to_save]
        for k, out in enumerate(outs):
            if isinstance(out, Tensor) and out.dtype.is_floating_point and not any(out is f for f in ctx._fixed):
                if any(out is d for d in ctx._dirty):
                    out.storage.version += 1
                    out.base = None
                out.node, out.index = ctx, k


def once_differentiable(fn):
    """A backward whose result has no gradient of its own."""

    def backward(ctx, *grads):
        with no_grad():
            return fn(ctx, *grads)

    return backward
