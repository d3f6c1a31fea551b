"""Operators written as plain functions, under the names of torch.library.

A custom operator is a Python function of tensors and numbers that is opaque to autograd: what happens inside has no history, gradients
come from the formula that is registered. Kernels of one's own start inside it by `kernel[grid](...)`. For an operator that has an
`out=`, an in-place form, forward mode and generated tests, `tritorch.op` is the way: see CONTRIBUTING.md.
"""
from __future__ import annotations

import functools
import re

from tritorch.errors import check
from tritorch.library.declared import parse_schema
from tritorch.library.overload import OpOverload
from tritorch.library.schema import schema_of


def custom_op(name, fn=None, /, *, mutates_args, device_types=None, schema=None, tags=None):
    """Make a function an operator `namespace::name`, which is also `tritorch.ops.namespace.name`.

    Its parameters are annotated (Tensor, Tensor | None, Sequence[Tensor], int, float, bool, str, dtype, device), its results new tensors,
    never an argument or a view of one. `mutates_args` names the arguments that it writes. `device_types`: where the function runs ("cpu",
    "cuda" or several; None: everywhere); others are added by `register_kernel`. Without `register_autograd` a backward pass through it
    is an error. `schema`, such as "(Tensor x, float scale=1.0) -> Tensor", stands in for annotations; `tags` are accepted and change
    nothing. Raises ValueError for a name without `::`, for parameters without annotation and for names in `mutates_args` that are no
    parameters, or not what the schema says.

    >>> import numpy as np, tritorch as torch
    >>> @torch.library.custom_op("doc::cube", mutates_args=())
    ... def cube(x: torch.Tensor) -> torch.Tensor:
    ...     return torch.from_numpy(np.power(x.numpy(), 3))
    >>> def backward(ctx, g):
    ...     return g * 3 * ctx.x ** 2
    >>> cube.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]))
    >>> x = torch.tensor([2.0], requires_grad=True); cube(x).backward(); x.grad
    tensor([12.])
    >>> torch.ops.doc.cube(torch.tensor([3.0])), torch.ops.doc.cube.default
    (tensor([27.]), <OpOverload(op='doc.cube', overload='default')>)
    """
    if fn is None:
        return functools.partial(custom_op, name, mutates_args=mutates_args, device_types=device_types, schema=schema, tags=tags)
    return CustomOpDef(name, fn, mutates_args, device_types, schema)


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
    return CustomOpDef(name, fn, mutates_args, None, schema)


def wrap_triton(triton_kernel, /):
    """The kernel itself: `wrap_triton(kernel)[grid](...)` is `kernel[grid](...)`. Raises RuntimeError for what is no Triton kernel."""
    check(hasattr(triton_kernel, "run") and hasattr(triton_kernel, "fn"), "wrap_triton", "a function under triton.jit or triton.autotune",
          type(triton_kernel).__name__)
    return triton_kernel


class CustomOpDef:
    """A custom operator: what `custom_op` makes of a function. A call of it runs the function for the device of the first tensor."""

    def __init__(self, name, fn, mutates_args, device_types, schema=None):
        check(re.fullmatch(r"\w+::\w+", name), "custom_op", "a name like namespace::operator", repr(name), error=ValueError)
        functools.update_wrapper(self, fn)
        self._qualname, self._init_fn = name, fn
        self._namespace, self._name = name.split("::")
        self._opoverload = OpOverload(schema_of(fn, mutates_args, name) if schema is None else _declared(name, schema, mutates_args),
                                      opaque=True)
        self._opoverload.register_kernel(device_types)(fn)
        self.off = {}                                                    # kernels that are not to be used, by the type of devices

    def __repr__(self):
        return f"<CustomOpDef({self._qualname})>"

    def __call__(self, /, *args, **kwargs):
        return self._opoverload(*args, **kwargs)

    @property
    def default(self):
        """The only overload."""
        return self._opoverload

    def register_kernel(self, device_types, fn=None, /):
        """Say what runs on a type of devices, or on several; None: on all that have none of their own."""
        return self._opoverload.register_kernel(device_types, fn)

    def register_fake(self, fn, /):
        """Say what the results are like, without computing them; `opcheck` holds the two together."""
        return self._opoverload.register_fake(fn)

    def register_autograd(self, backward, /, *, setup_context=None):
        """Give the gradients: `backward(ctx, *gradients of the results)` returns one for each argument, a list where that is a list of
        tensors. `setup_context(ctx, inputs, output)` saves for it; with `keyword_only_inputs` it is given those that have a name only."""
        self._opoverload.register_autograd(backward, setup_context=setup_context)

    def register_autocast(self, device_type, cast_inputs):
        """Inside of autocast on `device_type`: floating tensors are cast to `cast_inputs`, and autocast is off in the function."""
        self._opoverload.register_autocast(device_type, cast_inputs)

    def register_vmap(self, func=None):
        """Say what runs inside of `tritorch.vmap`: `func(info, in_dims, *args)` is given tensors of all samples, along the dims that
        in_dims says (None: the same for all), and returns (results, their dims).

        >>> import tritorch as torch
        >>> @torch.library.custom_op("docs::total", mutates_args=())
        ... def total(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.tensor(float(x.numpy().sum()))
        >>> @total.register_vmap
        ... def _(info, in_dims, x):
        ...     return x.movedim(in_dims[0], 0).flatten(1).sum(1), 0
        >>> torch.vmap(total, in_dims=1)(torch.ones(2, 3))
        tensor([2., 2., 2.])
        """
        return self._opoverload.register_vmap(func)

    def register_torch_dispatch(self, torch_dispatch_class, fn=None, /):
        """Say what runs, in the place of the function for the device, where an argument is of this class of tensors:
        `fn(operator, types, args, kwargs)`."""
        return self._opoverload.register_torch_dispatch(torch_dispatch_class, fn)

    def set_kernel_enabled(self, device_type, enabled=True):
        """Switch what `register_kernel` gave for a type of devices off, so that the function itself runs there, or on again. As a context
        manager, until its end."""
        return _Switch(self, device_type, enabled)


class _Switch:
    """What `set_kernel_enabled` has done, which the end of a `with` block takes back."""

    def __init__(self, operator, kind, enabled):
        self.operator, self.kind, self.was = operator, kind, kind not in operator.off
        self.set(enabled)

    def set(self, enabled):
        kernels, off = self.operator._opoverload._kernels, self.operator.off
        if enabled and self.kind in off:
            kernels[self.kind] = off.pop(self.kind)
        elif not enabled and self.kind in kernels:
            off[self.kind], kernels[self.kind] = kernels[self.kind], self.operator._init_fn

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.set(self.was)


def _declared(name, schema, mutates_args):
    """The schema that was given for an operator, which has to say of `mutates_args` the same."""
    found = parse_schema(name + schema)
    written = {a.name for a in found.arguments if a.is_write}
    check(mutates_args == "unknown" or written == set(mutates_args), name, f"mutates_args that are those of the schema, {sorted(written)}",
          mutates_args, error=ValueError)
    return found
