"""An operator of one's own as the dispatcher knows it: its schema, what runs where, and what autograd and autocast do around it."""
from __future__ import annotations

import functools
import threading

from tritorch.amp.autocast_mode import autocast, cast_floating, is_autocast_enabled
from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad, state
from tritorch.autograd.places import user_place
from tritorch.cuda.watching import watched
from tritorch.device import as_device
from tritorch.errors import check, sentence
from tritorch.ops import namespaces
from tritorch.storage import Batched
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_leaves

operators = {}                                                           # every overload by its full name, ns::name or ns::name.overload
_place = threading.local()                                               # whether calls go past what stands under "Autograd"


class below_autograd:
    """Inside, an operator runs the function for its device, without what was registered for autograd, and nothing is recorded."""

    def __enter__(self):
        self.before, _place.below = getattr(_place, "below", False), True
        self.quiet = no_grad()
        self.quiet.__enter__()

    def __exit__(self, *exception):
        _place.below = self.before
        self.quiet.__exit__(*exception)


class OpOverload(namespaces.OpOverload):
    """One overload of an operator: `tritorch.ops.namespace.name.overload`. A call of it runs the function for the device of the first
    tensor, `_schema` says what it takes and returns. `opaque`: what happens inside has no history, whatever it is made of.
    """

    def __init__(self, schema, opaque):
        super().__init__(*schema.name.split("::"), schema.overload_name or "default")
        self._schema, self._signature, self._opaque = schema, schema.signature(), opaque
        self._mutates = tuple([a.name for a in schema.arguments if a.is_write])
        self._aliases = any(r.alias for r in schema.returns)
        self._lists = ["Tensor" in a.kind and "[]" in a.kind for a in schema.arguments]
        self._arguments = {a.name: a for a in schema.arguments}
        self._places = [a for a in schema.arguments if not a.kwarg_only]
        self._tails = {k: tuple([a.default for a in self._places[k:]]) for k in range(len(self._places) + 1)
                       if len(self._places) == len(schema.arguments) and all(a.has_default_value() for a in self._places[k:])}
        self._kernels, self._fake, self._backward, self._setup, self._casts, self._classes = {}, None, None, None, {}, {}
        self._vmap, self._implicit, self._around = None, None, {}        # made of operators; by "AutogradCUDA", "AutocastCPU"…
        self._function = type(self._opname, (_Custom,), {"operator": self})
        operators[self.name()] = self
        namespaces.add(self, self.namespace, self._opname, self._overloadname)

    def forget(self):
        """No longer be an operator."""
        if operators.get(self.name()) is self:
            del operators[self.name()]
            namespaces.remove(self.namespace, self._opname, self._overloadname)

    # -------------------------------------------------------------- what is registered
    def kernel(self, kind):
        """The function for a type of devices."""
        fn = self._kernels.get(kind, self._kernels.get(None))
        if kind == "meta":                                               # where nothing is computed, only told what the results are like
            nothing = None if self._schema.returns else lambda *args, **kwargs: None
            fn = self._kernels.get("meta") or self._fake or nothing or (None if self._opaque else fn)
            check(fn, self.name(), "a function that says what the results are like on meta", "none", use="register_fake",
                  error=NotImplementedError)
        if fn is None:
            raise NotImplementedError(sentence(self.name(), f"a kernel for {kind}", ", ".join(map(str, self._kernels)) or "none",
                                               use="register_kernel"))
        return fn

    def register_kernel(self, device_types, func=None, /):
        """Say what runs on a type of devices, or on several; None: on all that have none of their own."""
        if func is None:
            return functools.partial(self.register_kernel, device_types)
        for kind in (device_types,) if device_types is None or isinstance(device_types, str) else device_types:
            self._kernels[kind if kind is None else as_device_type(kind)] = func
        return func

    def register_fake(self, fn, /):
        """Say what the results are like, without computing them; `opcheck` holds the two together."""
        self._fake = fn
        return fn

    def register_autograd(self, backward, /, *, setup_context=None):
        """Give the gradients: `backward(ctx, *gradients of the results)` returns one for each argument, a list where that is a list of
        tensors. `setup_context(ctx, inputs, output)` saves for it; with `keyword_only_inputs` it is given those that have a name only."""
        check(not self._mutates, self.name(), "an operator that writes no argument, to give it gradients", f"{self._mutates}")
        check(not self._aliases, self.name(), "an operator that returns no view, to give it gradients", f"{self._schema}")
        self._backward, self._setup = backward, setup_context

    def register_autocast(self, device_type, cast_inputs, /):
        """Inside of autocast on `device_type`: floating tensors are cast to `cast_inputs`, and autocast is off in the function."""
        check(isinstance(device_type, str), self.name(), "a type of devices as text", type(device_type).__name__, error=ValueError)
        check(cast_inputs.is_floating_point, self.name(), "a floating dtype to cast to", cast_inputs, error=ValueError)
        self._casts[device_type] = cast_inputs

    def register_torch_dispatch(self, torch_dispatch_class, fn=None, /):
        """Say what runs, in the place of the function for the device, where an argument is of this class of tensors:
        `fn(operator, types, args, kwargs)`. Classes of modes are never on here, so what is registered for them is not asked."""
        if fn is None:
            return functools.partial(self.register_torch_dispatch, torch_dispatch_class)
        check(isinstance(torch_dispatch_class, type), self.name(), "a class of tensors or modes", repr(torch_dispatch_class),
              error=TypeError)
        self._classes[torch_dispatch_class] = fn
        return fn

    def register_vmap(self, func=None, /):
        """Say what runs inside of `tritorch.vmap` in the place of the function for the device: `func(info, in_dims, *args)`, which is given
        tensors of all samples, along the dims that in_dims says (None: the same for all), returns (results, their dims); `info` has
        `batch_size` and `randomness`. Without it the function is run on tensors of samples, or for each sample if it looks at memory."""
        if func is None:
            return self.register_vmap
        check(callable(func), self.name(), "a function", type(func).__name__, error=TypeError)
        self._vmap = func
        return func

    # -------------------------------------------------------------- calls
    def takes(self, args, kwargs):
        """Whether the arguments are what the schema asks for."""
        try:
            self.bound(args, kwargs)
        except RuntimeError:
            return False
        return True

    def bound(self, args, kwargs):
        """(positional, named) arguments with the defaults; RuntimeError for those that the schema does not take."""
        if not kwargs and len(args) in self._tails:                      # as most calls are: inspect takes 10 µs
            taken = [self._taken(argument, value) for argument, value in zip(self._places, args)]
            return (*taken, *self._tails[len(args)]), {}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise RuntimeError(f"{self.name()}: expected the arguments of {self._schema}, got others: {error}") from None
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._taken(self._arguments[name], value)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _taken(self, argument, value):
        if not argument.fits(value):
            raise RuntimeError(sentence(self.name(), f"{argument.kind} as {argument.name}", type(value).__name__))
        return argument.taken(value) if argument.changes else value

    def __call__(self, /, *args, **kwargs):
        given, named = self.bound(args, kwargs)
        if watched.tracer is not None:
            return watched.tracer.whole(self, given, named, lambda: self._run(given, named))
        return self._run(given, named)

    def _run(self, given, named):
        kind = self._kind(given, named)
        if self._casts or self._around:
            around = self._around.get("Autocast" + kind.upper())
            if (around or kind in self._casts) and is_autocast_enabled(kind):
                with autocast(kind, enabled=False):
                    if around:
                        return around(*given, **named)
                    given, named = (cast_floating(x, kind, self._casts[kind]) for x in (given, named))
                    return self._apply(kind, given, named)
        return self._apply(kind, given, named)

    def _kind(self, given, named):
        """The type of the device to run on: of the first tensor, else of an argument that names one."""
        for x in _tensors((given, named)):
            return x.device.type
        for argument, x in zip(self._schema.arguments, [*given, *named.values()]):
            if x is not None and argument.kind in ("Device", "Device?"):
                return as_device(x).type
        return "cpu"

    def _apply(self, kind, given, named):
        if getattr(_place, "below", False):
            return Call(self, kind, given, named).run(given)
        around = self._around.get("Autograd" + kind.upper(), self._around.get("Autograd"))
        if around is not None:
            return around(*given, **named)
        if self._implicit is not None and kind not in self._kernels:
            return self._implicit(*given, **named)
        call = Call(self, kind, given, named)
        followed = any(x._tangents or x.requires_grad and state.grad for x in call.tensors)
        if not followed:
            with no_grad():
                return call.run(given)
        if not self._opaque and self._backward is None:                  # what it is made of may have gradients
            made = call.run(given)
            if self._aliases or any(x.requires_grad for x in _tensors(made)) or not any(x.dtype.is_floating_point for x in _tensors(made)):
                return made
            call = Call(self, kind, given, named, made)
        return call.results(self._function.apply(call, *call.flat))


def as_device_type(kind):
    """The name of a type of devices, as PyTorch knows them. RuntimeError for others."""
    known = "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia privateuseone"
    check(isinstance(kind, str) and kind.lower() in known.split(), "library", f"a type of devices out of {known}", repr(kind))
    return kind.lower()


class Call:
    """A call of a custom operator as `autograd.Function` knows calls: without lists among arguments and results."""

    def __init__(self, operator, kind, given, named, made=None):
        self.operator, self.kind, self.named, self.returns, self.made = operator, kind, named, None, made
        self.form = [len(x) if is_list and x is not None else None for x, is_list in zip(given, operator._lists)]
        self.flat, self.tensors = _apart(given, self.form), list(_tensors((given, named)))

    def run(self, given):
        """What the function for the device makes of the arguments."""
        operator = self.operator
        fn = self.rule() or operator.kernel(self.kind)
        values = dict(zip(operator._signature.parameters, given), **self.named)
        written = [(x.storage, x.storage.version) for n in operator._mutates for x in _tensors(values[n])]
        made = fn(*given, **self.named)
        for storage, version in written:
            if storage.version == version:                               # by a kernel, of which autograd does not know
                storage.version, storage.writer = version + 1, user_place()
        many = len(operator._schema.returns)
        check(many < 2 or isinstance(made, (tuple, list)) and len(made) == many, operator.name(), f"{many} results", type(made).__name__,
              error=TypeError)
        if not operator._aliases:
            owners = {id(x.storage.owner) for x in self.tensors}
            check(not any(id(x.storage.owner) in owners for x in _tensors(made)), operator.name(),
                  "results in memory of their own", "an argument or a view of one", use="x.clone(), or return nothing")
        return made if many else None

    def rule(self):
        """What was registered for a class of tensors that is among the arguments, or for vmap, as a function of the arguments; None without
        one."""
        operator = self.operator
        if operator._vmap is not None and any(type(x.storage) is Batched for x in self.tensors):
            return lambda *args, **kwargs: Batched.by_rule(operator.name(), operator._vmap, args, kwargs)
        for cls, fn in operator._classes.items():
            if any(isinstance(x, cls) for x in self.tensors):
                kinds = tuple({type(x) for x in self.tensors})
                return lambda *args, **kwargs: fn(operator, kinds, args, kwargs)

    def results(self, flat):
        """The results as the function returned them."""
        made = _together(flat, self.returns[1])
        return self.returns[0](made) if self.returns[0] else made[0]


class _Custom(Function):
    """The node of a custom operator; subclasses name the operator."""

    operator = None

    @staticmethod
    def forward(ctx, call, *flat):
        given, operator = _together(flat, call.form), call.operator
        made = call.run(given) if call.made is None else call.made
        outs = made if isinstance(made, tuple) else (made,)
        form = [len(x) if isinstance(x, list) else None for x in outs]
        call.returns, ctx.call = (type(made) if isinstance(made, tuple) else None, form), call
        ctx.needs_input_grad = tuple(_together(ctx.needs_input_grad[1:], call.form))
        call.flat = call.tensors = ()                                    # what backward needs is what setup_context saves
        if operator._setup is not None:
            named = {"keyword_only_inputs": call.named} if call.named else {}
            operator._setup(ctx=ctx, inputs=tuple(given), output=made, **named)
        call.named = call.made = None
        return tuple(_apart(outs, form))

    @staticmethod
    def backward(ctx, *grads):
        call = ctx.call
        name, rule = call.operator.name(), call.operator._backward
        check(rule is not None, name, "a formula for its gradients", "none", use="register_autograd")
        made = rule(ctx, *_together(grads, call.returns[1]))
        made = list(made) if isinstance(made, (tuple, list)) and (len(call.form) != 1 or call.form[0] is None) else [made]
        if len(call.form) == 1 and call.form[0] is not None and made and isinstance(made[0], tuple) and len(made[0]) == 1:
            made = list(made[0])                                         # (list of gradients,)
        check(len(made) == len(call.form), name, f"{len(call.form)} gradients from backward, one an argument", len(made))
        made = [[None] * n if n is not None and g is None else g for g, n in zip(made, call.form)]
        return None, *_apart(made, call.form)


def _tensors(tree):
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor))


def _apart(values, form):
    """The values, those that are lists in the place of the lists."""
    return [x for v, n in zip(values, form) for x in ([v] if n is None else v)]


def _together(flat, form):
    """What `_apart` took apart."""
    rest = iter(flat)
    return [next(rest) if n is None else [next(rest) for _ in range(n)] for n in form]
