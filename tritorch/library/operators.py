"""Operators written as plain functions, under the names of torch.library.

A custom operator is a Python function of tensors and numbers that is opaque to autograd: what happens inside has no history, gradients
come from the formula that is registered. Kernels of one's own start inside it by `kernel[grid](...)`. For an operator that has an
`out=`, an in-place form, forward mode and generated tests, `tritorch.op` is the way: see CONTRIBUTING.md.
"""
from __future__ import annotations

import functools
import inspect
import re
import types

from tritorch import ops
from tritorch.amp.autocast_mode import autocast, cast_floating, is_autocast_enabled
from tritorch.autograd.function import Function
from tritorch.autograd.modes import no_grad, state
from tritorch.autograd.places import user_place
from tritorch.errors import check
from tritorch.library.schema import infer_schema, kinds_of
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_leaves

_operators = {}                                                          # every custom operator by its full name


def custom_op(name, fn=None, /, *, mutates_args, device_types=None, schema=None, tags=None):
    """Make a function an operator `namespace::name`, which is also `tritorch.ops.namespace.name`.

    Its parameters are annotated (Tensor, Tensor | None, Sequence[Tensor], int, float, bool, str, dtype, device), its results new tensors,
    never an argument or a view of one. `mutates_args` names the arguments that it writes. `device_types`: where the function runs ("cpu",
    "cuda" or several; None: everywhere); others are added by `register_kernel`. Without `register_autograd` a backward pass through it
    is an error. `schema` and `tags` are accepted and change nothing. Raises ValueError for a name without `::`, for parameters without
    annotation and for names in `mutates_args` that are no parameters.

    >>> import numpy as np, tritorch as torch
    >>> @torch.library.custom_op("doc::cube", mutates_args=())
    ... def cube(x: torch.Tensor) -> torch.Tensor:
    ...     return torch.from_numpy(np.power(x.numpy(), 3))
    >>> def backward(ctx, g):
    ...     return g * 3 * ctx.x ** 2
    >>> cube.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]))
    >>> x = torch.tensor([2.0], requires_grad=True); cube(x).backward(); x.grad
    tensor([12.])
    >>> torch.ops.doc.cube is cube
    True
    """
    if fn is None:
        return functools.partial(custom_op, name, mutates_args=mutates_args, device_types=device_types, schema=schema, tags=tags)
    return CustomOpDef(name, fn, mutates_args, device_types)


def triton_op(name, fn=None, /, *, mutates_args, schema=None):
    """`custom_op`, for functions whose kernels are all Triton's: captured calls replay what they launch either way.

    >>> import tritorch as torch
    >>> @torch.library.triton_op("doc::twice", mutates_args={})
    ... def twice(x: torch.Tensor) -> torch.Tensor:
    ...     return x + x
    >>> twice(torch.ones(2))
    tensor([2., 2.])
    """
    if fn is None:
        return functools.partial(triton_op, name, mutates_args=mutates_args, schema=schema)
    return CustomOpDef(name, fn, mutates_args, None)


def wrap_triton(triton_kernel, /):
    """The kernel itself: `wrap_triton(kernel)[grid](...)` is `kernel[grid](...)`. Raises RuntimeError for what is no Triton kernel."""
    check(hasattr(triton_kernel, "run") and hasattr(triton_kernel, "fn"), "wrap_triton", "a function under triton.jit or triton.autotune",
          type(triton_kernel).__name__)
    return triton_kernel


class CustomOpDef:
    """A custom operator: what `custom_op` makes of a function. A call of it runs the function for the device of the first tensor."""

    def __init__(self, name, fn, mutates_args, device_types):
        check(re.fullmatch(r"\w+::\w+", name), "custom_op", "a name like namespace::operator", repr(name), error=ValueError)
        functools.update_wrapper(self, fn)
        self._qualname, (self._namespace, self._name) = name, name.split("::")
        self._schema, self._signature = infer_schema(fn, mutates_args=mutates_args), inspect.signature(fn, eval_str=True)
        self._mutates = tuple([n for n in self._signature.parameters if mutates_args == "unknown" or n in mutates_args])
        self._lists = ["[]" in kind and "Tensor" in kind for kind in kinds_of(self._signature, name)]
        self._kernels, self._fake, self._backward, self._setup, self._casts = {}, None, None, None, {}
        self.register_kernel(device_types)(fn)
        self._function = type(self._name, (_Custom,), {"operator": self})
        _operators[name] = self
        space = getattr(ops, self._namespace, None)
        if space is None:
            space = types.SimpleNamespace()
            setattr(ops, self._namespace, space)
        setattr(space, self._name, self)

    def __repr__(self):
        return f"<CustomOpDef({self._qualname})>"

    @property
    def default(self):
        """The operator itself: there is one overload."""
        return self

    # -------------------------------------------------------------- what is registered
    def register_kernel(self, device_types, func=None, /):
        """Say what runs on a type of devices, or on several; None: on all that have none of their own."""
        if func is None:
            return functools.partial(self.register_kernel, device_types)
        for kind in (device_types,) if device_types is None or isinstance(device_types, str) else device_types:
            self._kernels[kind] = func
        return func

    def register_fake(self, fn, /):
        """Say what the results are like, without computing them; `opcheck` holds the two together."""
        self._fake = fn
        return fn

    def _on_meta(self):
        """What tells there, where nothing is computed, what the results are like; there is nothing to tell where none are returned."""
        nothing = self._schema.endswith("-> ()")
        fn = self._kernels.get("meta") or self._fake or (nothing and (lambda *args, **kwargs: None))
        check(fn, self._qualname, "a function that says what the results are like on meta", "none", use="register_fake",
              error=NotImplementedError)
        return fn

    def register_autograd(self, backward, /, *, setup_context=None):
        """Give the gradients: `backward(ctx, *gradients of the results)` returns one for each argument, a list where that is a list of
        tensors. `setup_context(ctx, inputs, output)` saves for it; with `keyword_only_inputs` it is given those that have a name only."""
        check(not self._mutates, self._qualname, "an operator that writes no argument, to give it gradients", f"{self._mutates}")
        self._backward, self._setup = backward, setup_context

    def register_autocast(self, device_type, cast_inputs, /):
        """Inside of autocast on `device_type`: floating tensors are cast to `cast_inputs`, and autocast is off in the function."""
        check(cast_inputs.is_floating_point, self._qualname, "a floating dtype to cast to", cast_inputs, error=ValueError)
        self._casts[device_type] = cast_inputs

    # -------------------------------------------------------------- calls
    def __call__(self, /, *args, **kwargs):
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given, named = bound.args, bound.kwargs
        kind = next((x.device.type for x in _tensors((given, named))), "cpu")
        if kind not in self._casts or not is_autocast_enabled(kind):
            return self._apply(kind, given, named)
        with autocast(kind, enabled=False):
            return self._apply(kind, cast_floating(given, kind, self._casts[kind]), cast_floating(named, kind, self._casts[kind]))

    def _apply(self, kind, given, named):
        call = Call(self, kind, given, named)
        if any(x._tangents or x.requires_grad and state.grad for x in call.tensors):
            return call.results(self._function.apply(call, *call.flat))
        with no_grad():
            return call.run(given)


class Call:
    """A call of a custom operator as `autograd.Function` knows calls: without lists among arguments and results."""

    def __init__(self, operator, kind, given, named):
        self.operator, self.kind, self.named, self.returns = operator, kind, named, None
        self.form = [len(x) if is_list and x is not None else None for x, is_list in zip(given, operator._lists)]
        self.form += [None] * (len(given) - len(self.form))
        self.flat, self.tensors = _apart(given, self.form), list(_tensors((given, named)))

    def run(self, given):
        """What the function for the device makes of the arguments."""
        operator = self.operator
        fn = operator._kernels.get(self.kind, operator._kernels.get(None)) if self.kind != "meta" else operator._on_meta()
        check(fn is not None, operator._qualname, f"a kernel for {self.kind}", ", ".join(map(str, operator._kernels)) or "none",
              use="register_kernel", error=NotImplementedError)
        values = dict(zip(operator._signature.parameters, given), **self.named)
        written = [(x.storage, x.storage.version) for n in operator._mutates for x in _tensors(values[n])]
        made = fn(*given, **self.named)
        for storage, version in written:
            if storage.version == version:                               # by a kernel, of which autograd does not know
                storage.version, storage.writer = version + 1, user_place()
        owners = {id(x.storage.owner) for x in self.tensors}
        check(not any(id(x.storage.owner) in owners for x in _tensors(made)), operator._qualname,
              "results in memory of their own", "an argument or a view of one", use="x.clone(), or return nothing")
        return made

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
        made = call.run(given)
        outs = made if isinstance(made, tuple) else (made,)
        form = [len(x) if isinstance(x, list) else None for x in outs]
        call.returns, ctx.call = (type(made) if isinstance(made, tuple) else None, form), call
        ctx.needs_input_grad = tuple(_together(ctx.needs_input_grad[1:], call.form))
        call.flat = call.tensors = ()                                    # what backward needs is what setup_context saves
        if operator._setup is not None:
            named = {"keyword_only_inputs": call.named} if call.named else {}
            operator._setup(ctx=ctx, inputs=tuple(given), output=made, **named)
        call.named = None
        return tuple(_apart(outs, form))

    @staticmethod
    def backward(ctx, *grads):
        call = ctx.call
        name, rule = call.operator._qualname, call.operator._backward
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


# ------------------------------------------------------------------ the same, by the name of an operator
def _known(op):
    found = op if isinstance(op, CustomOpDef) else _operators.get(op)
    check(found is not None, "library", "a custom operator, or the name of one", repr(op), error=ValueError)
    return found


def register_kernel(op, device_types, func=None, /, *, lib=None):
    """`op.register_kernel`, of an operator or of the name of one; so are the following."""
    return _known(op).register_kernel(device_types, func)


def register_fake(op, func=None, /, *, lib=None, _stacklevel=1, allow_override=False):
    """`op.register_fake`; without `func` a decorator."""
    return _known(op).register_fake if func is None else _known(op).register_fake(func)


def register_autograd(op, backward, /, *, setup_context=None, lib=None):
    """`op.register_autograd`."""
    _known(op).register_autograd(backward, setup_context=setup_context)


def register_autocast(op, device_type, cast_inputs, /, *, lib=None):
    """`op.register_autocast`."""
    _known(op).register_autocast(device_type, cast_inputs)
