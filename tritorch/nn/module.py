"""Module: the base class of everything with parameters. Also hooks.py, state_dict.py (saving and loading), conversion.py (moving)."""
import functools

from tritorch.errors import refuse_arguments, refuse_misuse
from tritorch.nn import hooks as _hooks
from tritorch.nn.conversion import Conversion, typename
from tritorch.nn.hooks import (  # noqa: F401  (the hooks of all modules are here in PyTorch)
    Hooks,
    call_with_hooks,
    everywhere,
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from tritorch.nn.parameter import Buffer, Parameter
from tritorch.nn.registry import Registry
from tritorch.nn.state_dict import _EXTRA_STATE_KEY_SUFFIX, StateDict  # noqa: F401  (the name is looked for here)
from tritorch.tensor import Tensor, swaps

_MEMBERS = ("_parameters", "_buffers", "_modules")
_every_forward, _every_forward_pre = everywhere._forward_hooks, everywhere._forward_pre_hooks
_every_backward, _every_backward_pre = everywhere._backward_hooks, everywhere._backward_pre_hooks


def _indent(text):
    return "\n".join(f"  {line}" if line.strip() else "" for line in text.split("\n"))


def _explained_init(init):
    """The constructor of a layer of ours, which says what argument is of the wrong kind, before anything is made of it."""

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        refuse_arguments(type(self).__name__, init, (self, *args), kwargs)
        try:
            init(self, *args, **kwargs)
        except Exception as error:
            refuse_misuse(error, type(self).__name__, init, (self, *args), kwargs)
            raise

    return __init__


class Module(Hooks, StateDict, Conversion):
    """What layers and models are: a tree of modules with parameters, buffers and a `forward`.

    A subclass makes its parameters and children in `__init__`, after `super().__init__()`, as attributes, and computes in `forward`.
    What is a `Parameter`, a `Buffer` or a `Module` is registered: listed, saved, moved and trained with the module.

    >>> import tritorch as torch
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden = torch.nn.Linear(3, 4)
    ...     def forward(self, x):
    ...         return self.hidden(x).relu()
    >>> Net()(torch.ones(2, 3)).shape
    tritorch.Size([2, 4])
    """

    training = True
    call_super_init = False

    def __init__(self, *args, **kwargs):
        if not self.call_super_init and (args or kwargs):
            got = f"an unexpected keyword argument '{next(iter(kwargs))}'" if kwargs else f"{len(args)} arguments"
            raise TypeError(f"{type(self).__name__}.__init__() expected no arguments, got {got}")
        vars(self).update(training=True, _non_persistent_buffers_set=set())
        vars(self).update({members: Registry(self) for members in _MEMBERS})
        self._init_hooks()
        self._init_state_dict()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls) and cls.__module__.startswith("tritorch."):
            cls.__init__ = _explained_init(cls.__init__)

    def forward(self, *args, **kwargs):
        """What the module computes; every subclass defines it, and callers call the module itself."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method forward, got none")

    def __call__(self, *args, **kwargs):
        try:
            if (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
                    or _every_forward or _every_forward_pre or _every_backward or _every_backward_pre):
                return call_with_hooks(self, args, kwargs)
            return self.forward(*args, **kwargs)
        except Exception as error:
            refuse_misuse(error, type(self).__name__, self.forward, args, kwargs)
            raise

    # -------------------------------------------------------------- registration
    def register_parameter(self, name, param):
        """Add a parameter (or None, which keeps the name) as an attribute."""
        self._check_name("parameter", "_parameters", name)
        if param is not None:
            if not isinstance(param, Parameter):
                raise TypeError(f"parameter '{name}': expected a Parameter or None, got {typename(param)}")
            if param.grad_fn is not None:
                raise ValueError(f"parameter '{name}': expected a leaf, got a tensor computed from others; compute it in forward()")
            param = _hooks.registered(_hooks._parameter_registration, self, name, param)
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Add a tensor that is not trained (or None) as an attribute; it is saved in the state dict if `persistent`."""
        self._check_name("buffer", "_buffers", name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"buffer '{name}': expected a Tensor or None, got {typename(tensor)}")
        self._buffers[name] = _hooks.registered(_hooks._buffer_registration, self, name, tensor)
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name, module):
        """Add a child (or None) as an attribute."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"add_module('{name}'): expected a Module or None, got {typename(module)}")
        self._check_name("module", "_modules", name)
        self._modules[name] = _hooks.registered(_hooks._module_registration, self, name, module)

    register_module = add_module

    def _check_name(self, kind, members, name):
        if members not in vars(self):
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"name of a {kind}: expected a str, got {typename(name)}")
        if "." in name:
            raise KeyError(f"name of a {kind}: expected one without '.', got '{name}'")
        if name == "":
            raise KeyError(f"name of a {kind}: expected one, got ''")
        if name not in vars(self)[members] and hasattr(self, name):
            raise KeyError(f"name of a {kind}: expected a new one, got '{name}', which {type(self).__name__} has already")

    # -------------------------------------------------------------- attributes
    def __getattr__(self, name):
        found = vars(self)
        for members in _MEMBERS:                                         # reached only where a registry is not shown in __dict__
            if name in found.get(members, ()):
                return found[members][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._assign("_parameters", "parameters", name, value)
        elif isinstance(value, Module):
            self._assign("_modules", "module", name, value)
        else:
            own = vars(self)
            if name in own.get("_parameters", ()):
                if value is not None:
                    raise TypeError(f"parameter '{name}': expected a Parameter or None, got {typename(value)}")
                self.register_parameter(name, None)
            elif name in own.get("_modules", ()):
                if value is not None:
                    raise TypeError(f"child module '{name}': expected a Module or None, got {typename(value)}")
                self._modules[name] = _hooks.registered(_hooks._module_registration, self, name, None)
            elif isinstance(value, Buffer):
                self._assign("_buffers", "buffer", name, value)
            elif name in own.get("_buffers", ()):
                if value is not None and not isinstance(value, Tensor):
                    raise TypeError(f"buffer '{name}': expected a Tensor or None, got {typename(value)}")
                self.register_buffer(name, value, name not in self._non_persistent_buffers_set)
            else:
                if name in _MEMBERS and not isinstance(value, Registry):
                    value = self._replace_members(name, value)
                object.__setattr__(self, name, value)
                swaps[0] += 1

    def _assign(self, members, what, name, value):
        own = vars(self)
        if members not in own:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        own.pop(name, None)
        if name not in own[members]:
            for others in _MEMBERS:
                own[others].pop(name, None)
            self._non_persistent_buffers_set.discard(name)
        if members == "_parameters":
            self.register_parameter(name, value)
        elif members == "_buffers":
            self.register_buffer(name, value, value.persistent)
        else:
            self._modules[name] = _hooks.registered(_hooks._module_registration, self, name, value)

    def _replace_members(self, members, entries):
        for name in vars(self).get(members, ()):
            vars(self).pop(name, None)
        return Registry(self, entries)

    def __delattr__(self, name):
        for members in _MEMBERS:
            if name in vars(self)[members]:
                del vars(self)[members][name]
                vars(self).pop(name, None)
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)
        swaps[0] += 1

    def __dir__(self):
        names = {*dir(type(self)), *vars(self), *self._parameters, *self._modules, *self._buffers}
        return sorted(name for name in names if not name[0].isdigit())

    def __getstate__(self):
        own = vars(self)
        members = {name: value for registry in _MEMBERS for name, value in own.get(registry, {}).items()}
        return {name: value for name, value in own.items() if name not in members or members[name] is not value}

    def __setstate__(self, state):
        own = vars(self)
        own.update(state)
        for members in _MEMBERS:
            own[members] = Registry(self, own.get(members, ()))

    # -------------------------------------------------------------- walking the tree
    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """This module and all below it with their dotted names; one that is used twice is listed once unless told otherwise."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            for name, module in self._modules.items():
                if module is not None:
                    yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate=True):
        """This module and all below it."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self):
        """The modules directly below, with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self):
        """The modules directly below."""
        for _, module in self.named_children():
            yield module

    def _named_members(self, get_members_fn, prefix="", recurse=True, remove_duplicate=True):
        seen = set()
        for path, module in self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]:
            for name, value in get_members_fn(module):
                if value is not None and value not in seen:
                    if remove_duplicate:
                        seen.add(value)
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """All parameters, those of the modules below too if `recurse`, with their dotted names."""
        return self._named_members(lambda module: module._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        """All parameters: what an optimizer takes."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """All buffers with their dotted names."""
        return self._named_members(lambda module: module._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """All buffers."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target):
        """The module of a dotted name; "" is this one."""
        module = self
        for name in target.split(".") if target else ():
            module = module._named(name, Module, "an nn.Module")
        return module

    def set_submodule(self, target, module, strict=False):
        """Put a module in the place of a dotted name; with `strict` there must be one already."""
        if not target:
            raise ValueError("set_submodule: expected the name of a module, got ''")
        if not isinstance(module, Module):
            raise ValueError(f"set_submodule: expected a Module, got {type(module).__name__}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict or hasattr(parent, name):
            parent._named(name, Module, "an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target):
        """The parameter of a dotted name."""
        path, _, name = target.rpartition(".")
        return self.get_submodule(path)._named(name, Parameter, "an nn.Parameter")

    def get_buffer(self, target):
        """The buffer of a dotted name."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = module._named(name, object, "")
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return found

    def _named(self, name, kind, what):
        if not hasattr(self, name):
            raise AttributeError(f"{self._get_name()} has no attribute `{name}`")
        found = getattr(self, name)
        if not isinstance(found, kind):
            raise AttributeError(f"`{name}` is not {what}")
        return found

    # -------------------------------------------------------------- changing everything below
    def apply(self, fn):
        """Call `fn(module)` for every module below, then for this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode=True):
        """Set training mode, which dropout, batch norm and their like heed, here and below."""
        if not isinstance(mode, bool):
            raise ValueError(f"train: expected True or False, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self):
        """Set evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Train the parameters, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Forget all gradients, or with `set_to_none=False` fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                grad = parameter.grad
                (grad if grad.grad_fn is None else grad.detach_()).requires_grad_(False).zero_()

    # -------------------------------------------------------------- showing
    def _get_name(self):
        return type(self).__name__

    def extra_repr(self):
        """What the repr shows in the brackets; subclasses define it."""
        return ""

    def __repr__(self):
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        if len(lines) <= 1 and not self._modules:
            return f"{self._get_name()}({extra})"
        lines += [f"({name}): {_indent(repr(module)).lstrip()}" for name, module in self._modules.items()]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"
