"""Hooks: functions that run before and after a module's forward and backward passes, for one module or for all of them."""
import itertools
import warnings
from collections import OrderedDict

from tritorch.autograd.function import Function
from tritorch.autograd.modes import state
from tritorch.tensor import Tensor, swaps


class RemovableHandle:
    """Takes a hook away again: `handle.remove()`, or leaving `with handle:`."""

    _ids = itertools.count()

    def __init__(self, hooks_dict, *, extra_dict=None):
        extra = [] if extra_dict is None else extra_dict if isinstance(extra_dict, list) else [extra_dict]
        self.dicts = [hooks_dict, *extra]
        self.id = next(key for key in self._ids if key not in hooks_dict)           # unpickled hooks keep their ids

    def remove(self):
        for hooks in self.dicts:
            hooks.pop(self.id, None)
        swaps[0] += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()


def add_hook(hooks, hook, prepend=False, flags=()):
    """Put `hook` into the ordered dictionary `hooks`; `flags` are pairs of a dictionary and whether the hook's id goes into it."""
    handle = RemovableHandle(hooks, extra_dict=[ids for ids, _ in flags])
    hooks[handle.id] = hook
    swaps[0] += 1
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    for ids, wanted in flags:
        if wanted:
            ids[handle.id] = True
    return handle


class Hooks:
    """One set of hooks for the forward and backward pass: part of every module, and once for all modules together (`everywhere`)."""

    _forward_pre_hooks: OrderedDict
    _forward_hooks: OrderedDict
    _backward_pre_hooks: OrderedDict
    _backward_hooks: OrderedDict

    def _init_hooks(self):
        vars(self).update({name: OrderedDict() for name in self._HOOKS}, _is_full_backward_hook=None)

    _HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
              "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks")

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Call `hook(module, args)`, or `hook(module, args, kwargs)`, before `forward`; what it returns replaces the arguments."""
        return add_hook(self._forward_pre_hooks, hook, prepend, [(self._forward_pre_hooks_with_kwargs, with_kwargs)])

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Call `hook(module, args, output)`, or `hook(module, args, kwargs, output)`, after `forward`; what it returns replaces the output.

        With `always_call` it runs even if `forward` raises; its own errors are then warnings.
        """
        return add_hook(self._forward_hooks, hook, prepend, [(self._forward_hooks_with_kwargs, with_kwargs),
                                                            (self._forward_hooks_always_called, always_call)])

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Call `hook(module, grad_output)` when the gradients of the outputs are known; what it returns replaces them."""
        return add_hook(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are known; what it returns replaces them."""
        self._set_backward_kind(True)
        return add_hook(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook):
        """The older `register_full_backward_hook`: here it sees the same gradients."""
        self._set_backward_kind(False)
        return add_hook(self._backward_hooks, hook)

    def _set_backward_kind(self, full):
        if self._is_full_backward_hook is (not full):
            raise RuntimeError("expected one kind of backward hook on a module, got register_backward_hook and "
                               "register_full_backward_hook")
        self._is_full_backward_hook = full


everywhere = Hooks()
everywhere._init_hooks()


def call_with_hooks(module, args, kwargs):
    """`module(*args, **kwargs)` with the hooks of all modules first, then its own."""
    called = set()
    result = None
    try:
        args, kwargs = _before_forward(module, args, kwargs)
        backward = None
        if module._backward_hooks or module._backward_pre_hooks or everywhere._backward_hooks or everywhere._backward_pre_hooks:
            backward = _BackwardHooks(module)
            args = backward.enter(args)
        result = module.forward(*args, **kwargs)
        for hooks, key, hook in _forward_hooks(module):
            called.add(key)
            changed = _call_forward_hook(hooks, key, hook, module, args, kwargs, result)
            result = result if changed is None else changed
        return result if backward is None else backward.leave(result)
    except Exception:
        _call_remaining(module, args, kwargs, result, called)
        raise


def _before_forward(module, args, kwargs):
    for hooks in (everywhere, module):
        for key, hook in list(hooks._forward_pre_hooks.items()):
            if key in hooks._forward_pre_hooks_with_kwargs:
                changed = hook(module, args, kwargs)
                if changed is not None:
                    if not (isinstance(changed, tuple) and len(changed) == 2):
                        raise RuntimeError(f"forward pre-hook: expected None or (args, kwargs) as its result, got {changed}")
                    args, kwargs = changed
            else:
                changed = hook(module, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs


def _forward_hooks(module):
    return [(hooks, key, hook) for hooks in (everywhere, module) for key, hook in hooks._forward_hooks.items()]


def _call_forward_hook(hooks, key, hook, module, args, kwargs, result):
    if key in hooks._forward_hooks_with_kwargs:
        return hook(module, args, kwargs, result)
    return hook(module, args, result)


def _call_remaining(module, args, kwargs, result, called):
    for hooks, key, hook in _forward_hooks(module):
        if key in hooks._forward_hooks_always_called and key not in called:
            try:
                changed = _call_forward_hook(hooks, key, hook, module, args, kwargs, result)
                result = result if changed is None else changed
            except Exception as error:
                warnings.warn(f"a forward hook with always_call=True failed after another error, which is raised: {error}", stacklevel=2)


class _Boundary(Function):
    """The identity, which shows all gradients that pass it at once to `on_gradients` and lets it change them."""

    @staticmethod
    def forward(ctx, on_gradients, *tensors):
        ctx.on_gradients = on_gradients
        ctx.set_materialize_grads(False)                                 # hooks see None where no gradient came, as in PyTorch
        return tensors

    @staticmethod
    def backward(ctx, *gradients):
        return None, *ctx.on_gradients(gradients)


class _BackwardHooks:
    """The backward hooks of one call: a boundary around the inputs and one around the outputs."""

    def __init__(self, module):
        self.module = module
        self.pre_hooks = [*everywhere._backward_pre_hooks.values(), *module._backward_pre_hooks.values()]
        self.hooks = [*everywhere._backward_hooks.values(), *module._backward_hooks.values()]
        self.grad_outputs = None
        self.inputs, self.input_places = 0, None                        # None: no input wants a gradient

    def enter(self, args):
        self.inputs = len(args)
        args, self.input_places = _pass(args, lambda gradients, places: self._on_input_gradients(gradients))
        return args

    def leave(self, result):
        if not isinstance(result, (Tensor, tuple)):
            warnings.warn("backward hooks of a module are called where it gives a tensor or a tuple of tensors; it gave "
                          f"{type(result).__name__}", stacklevel=3)
            return result
        outputs = result if isinstance(result, tuple) else (result,)
        count = len(outputs)
        outputs, _ = _pass(outputs, lambda gradients, places: self._on_output_gradients(gradients, places, count))
        return outputs if isinstance(result, tuple) else outputs[0]

    def _on_output_gradients(self, gradients, places, count):
        grads = _spread(gradients, places, count)
        for hook in self.pre_hooks:
            grads = _changed(hook(self.module, grads), grads, "Backward pre hook", "grad_output")
        self.grad_outputs = grads
        if self.input_places is None:
            for hook in self.hooks:
                changed = hook(self.module, (None,) * self.inputs, grads)
                if changed is not None and any(g is not None for g in changed):
                    raise RuntimeError("backward hook: expected None, as no input of the module requires grad, got gradients")
            self.grad_outputs = None
        return [grads[i] for i in places]

    def _on_input_gradients(self, gradients):
        if self.grad_outputs is None:
            return gradients
        grads = _spread(gradients, self.input_places, self.inputs)
        for hook in self.hooks:
            grads = _changed(hook(self.module, grads, self.grad_outputs), grads, "Backward hook", "grad_input")
        self.grad_outputs = None
        return [grads[i] for i in self.input_places]


def _pass(values, on_gradients):
    """The values, those that want gradients led through a boundary, and their places; None if no gradient can come back."""
    places = [i for i, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    if not (state.grad and places):
        return values, None
    passed = _Boundary.apply(lambda gradients: on_gradients(gradients, places), *(values[i] for i in places))
    passed = dict(zip(places, passed, strict=True))
    values, kind = [passed.get(i, value) for i, value in enumerate(values)], type(values)
    return tuple(values) if kind is tuple else kind(*values), places


def _spread(gradients, places, count):
    found = dict(zip(places, gradients, strict=True))
    return tuple(found.get(i) for i in range(count))


def _changed(new, old, hook, what):
    if new is None:
        return old
    new = new if isinstance(new, (tuple, list)) else (new,)
    if len(new) != len(old):
        raise RuntimeError(f"{hook} returned an invalid number of {what}, got {len(new)}, but expected {len(old)}")
    return tuple(new)


_buffer_registration: OrderedDict = OrderedDict()
_module_registration: OrderedDict = OrderedDict()
_parameter_registration: OrderedDict = OrderedDict()


def registered(hooks, module, name, value):
    """What the registration hooks make of a new member."""
    for hook in hooks.values():
        changed = hook(module, name, value)
        value = value if changed is None else changed
    return value


def register_module_buffer_registration_hook(hook):
    """Call `hook(module, name, buffer)` whenever any module registers a buffer."""
    return add_hook(_buffer_registration, hook)


def register_module_module_registration_hook(hook):
    """Call `hook(module, name, submodule)` whenever any module registers a child."""
    return add_hook(_module_registration, hook)


def register_module_parameter_registration_hook(hook):
    """Call `hook(module, name, parameter)` whenever any module registers a parameter."""
    return add_hook(_parameter_registration, hook)


def register_module_forward_pre_hook(hook):
    """`Module.register_forward_pre_hook` for every module."""
    return everywhere.register_forward_pre_hook(hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    """`Module.register_forward_hook` for every module."""
    return everywhere.register_forward_hook(hook, with_kwargs=with_kwargs, always_call=always_call)


def register_module_full_backward_pre_hook(hook):
    """`Module.register_full_backward_pre_hook` for every module."""
    return everywhere.register_full_backward_pre_hook(hook)


def register_module_full_backward_hook(hook):
    """`Module.register_full_backward_hook` for every module."""
    return everywhere.register_full_backward_hook(hook)


def register_module_backward_hook(hook):
    """`Module.register_backward_hook` for every module."""
    return everywhere.register_backward_hook(hook)
