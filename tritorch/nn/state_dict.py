"""State dicts: a module's parameters, persistent buffers and extra state by name, and the way back."""
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Mapping

from tritorch import __future__ as future
from tritorch.autograd.modes import no_grad
from tritorch.errors import check
from tritorch.nn.hooks import add_hook
from tritorch.nn.parameter import Parameter
from tritorch.tensor import Tensor
from tritorch.utils.swapping import swap_tensors

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"


class IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What `load_state_dict` returns."""

    __slots__ = ()

    def __repr__(self):
        return super().__repr__() if self.missing_keys or self.unexpected_keys else "<All keys matched successfully>"

    __str__ = __repr__


class _Plan(list):
    """The error messages of a load, and what is left to do once everything has been checked."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def carry_out(self):
        """Load what has been checked so far, unless something was wrong."""
        steps, self.steps = self.steps, []
        if not self:
            with no_grad():
                for step in steps:
                    step(self)


class _ModuleHook:
    """A hook that gets its module as the first argument. The module is held weakly, and goes along into copies and pickles."""

    def __init__(self, hook, module):
        self.hook, self.module = hook, weakref.ref(module)

    def __call__(self, *args):
        return self.hook(self.module(), *args)

    def __reduce__(self):
        return _ModuleHook, (self.hook, self.module())


class StateDict:
    """The part of `Module` that saves and loads."""

    _version = 1
    _STATE_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")

    def _init_state_dict(self):
        vars(self).update({name: OrderedDict() for name in self._STATE_HOOKS})

    def get_extra_state(self):
        """State besides tensors, for the state dict: define it together with `set_extra_state`."""
        raise RuntimeError("get_extra_state: expected a subclass to define it")

    def set_extra_state(self, state):
        """Take back what `get_extra_state` returned."""
        raise RuntimeError("set_extra_state: expected a subclass to define it")

    def register_state_dict_pre_hook(self, hook):
        """Call `hook(module, prefix, keep_vars)` before the module is saved."""
        return add_hook(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """Call `hook(module, state_dict, prefix, local_metadata)`, which may change the state dict in place, after the module is saved."""
        hook._from_public_api = True
        return add_hook(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook):
        return add_hook(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)` before loading."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        return add_hook(self._load_state_dict_pre_hooks, _ModuleHook(hook, self) if with_module else hook)

    def register_load_state_dict_post_hook(self, hook):
        """Call `hook(module, incompatible_keys)` after loading; it may change the lists of keys in place."""
        return add_hook(self._load_state_dict_post_hooks, hook)

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """All parameters and persistent buffers by name, detached unless `keep_vars`; they share memory with the module.

        >>> import tritorch as torch
        >>> list(torch.nn.Linear(3, 2).state_dict())
        ['weight', 'bias']
        """
        if args:
            warnings.warn("state_dict: positional arguments are deprecated; use keywords", FutureWarning, stacklevel=2)
            destination, prefix, keep_vars = args + (destination, prefix, keep_vars)[len(args):]
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local_metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local_metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            result = hook(self, destination, prefix, local_metadata)
            if result is not None:
                if getattr(hook, "_from_public_api", False):
                    raise RuntimeError("state_dict post-hook must return None")
                destination = result
        return destination

    def _own_state(self):
        """The parameters and persistent buffers of this module alone."""
        persistent = {name: b for name, b in self._buffers.items() if name not in self._non_persistent_buffers_set}
        return {name: tensor for name, tensor in {**self._parameters, **persistent}.items() if tensor is not None}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, tensor in self._own_state().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if type(self).get_extra_state is not StateDict.get_extra_state:
            destination[prefix + _EXTRA_STATE_KEY_SUFFIX] = self.get_extra_state()

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copy a state dict into the parameters and buffers, or with `assign` put its tensors in their place.

        Everything is checked before anything is copied: the one RuntimeError lists all that is wrong, and the module is what it was.
        (Modules that redefine `_load_from_state_dict` and those with post hooks load at their turn, as they may read what they loaded.)
        With `strict=False` missing and unexpected keys are no errors; they are in the result.

        >>> import tritorch as torch
        >>> torch.nn.Linear(3, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict())
        <All keys matched successfully>
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict: expected a mapping, got {type(state_dict).__name__}")
        keys, plan = IncompatibleKeys([], []), _Plan()
        metadata = getattr(state_dict, "_metadata", None) or {}
        _load(self, OrderedDict(state_dict), "", metadata, assign, keys, plan)
        for title, wrong in (("Unexpected", keys.unexpected_keys), ("Missing", keys.missing_keys)):
            if strict and wrong:
                plan.insert(0, f"{title} key(s) in state_dict: " + ", ".join(f'"{key}"' for key in wrong) + ". ")
        plan.carry_out()
        if plan:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(plan))
        return keys

    def _upgrade_state_dict(self, state_dict, prefix, version):
        """Bring the entries of an older version of this class up to date."""

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        self._upgrade_state_dict(state_dict, prefix, local_metadata.get("version"))
        plan = error_msgs if isinstance(error_msgs, _Plan) else _Plan()
        own = self._own_state()
        for name, tensor in own.items():
            if prefix + name in state_dict:
                self._plan_tensor(plan, name, prefix + name, tensor, state_dict[prefix + name], local_metadata)
            elif strict:
                missing_keys.append(prefix + name)
        if type(self).set_extra_state is not StateDict.set_extra_state:
            own[_EXTRA_STATE_KEY_SUFFIX] = None
            if prefix + _EXTRA_STATE_KEY_SUFFIX in state_dict:
                plan.steps.append(lambda _: self.set_extra_state(state_dict[prefix + _EXTRA_STATE_KEY_SUFFIX]))
            elif strict:
                missing_keys.append(prefix + _EXTRA_STATE_KEY_SUFFIX)
        if strict:
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix) and not self._expects(key[len(prefix):], own))
        if plan is not error_msgs:
            plan.carry_out()
            error_msgs.extend(plan)

    def _expects(self, key, own):
        child, dot, _ = key.partition(".")
        return child in (self._modules if dot else own)

    def _plan_tensor(self, plan, name, key, tensor, new, local_metadata):
        if not isinstance(new, Tensor):
            plan.append(f"{key}: expected a tensor, got {type(new).__name__}")
            return
        if tensor.ndim == 0 and tuple(new.shape) == (1,):                # scalars were saved with one dimension once
            new = new[0]
        if new.shape != tensor.shape:
            plan.append(f"size mismatch for {key}: expected {tuple(tensor.shape)}, got {tuple(new.shape)}")
            return
        assign = local_metadata.get("assign_to_params_buffers", False)
        plan.steps.append(lambda errors: self._load_tensor(errors, name, key, tensor, new, assign))

    def _load_tensor(self, errors, name, key, tensor, new, assign):
        try:
            if future.get_swap_module_params_on_conversion():
                _swap(tensor, new, assign)
            elif not assign:
                if tensor.is_meta and not new.is_meta:
                    warnings.warn(f"load_state_dict: {key} is on meta, where nothing can be copied to; use assign=True",
                                  stacklevel=5)
                tensor.copy_(new)
            elif not isinstance(tensor, Parameter):
                setattr(self, name, new)
            elif isinstance(new, Parameter):
                setattr(self, name, new.requires_grad_(tensor.requires_grad))
            else:
                setattr(self, name, Parameter(new, tensor.requires_grad))
        except Exception as error:
            errors.append(f"{key}: {tuple(new.shape)} could not be copied into {tuple(tensor.shape)}: {error}")


def _swap(tensor, new, assign):
    """Let a module's tensor become what its `module_load` makes of the one loaded."""
    made = tensor.module_load(new, assign=assign)
    check(made is not new and made is not tensor, "load_state_dict", "a new tensor from module_load", "one of the two", use="x.detach()")
    if isinstance(tensor, Parameter):
        made = made.requires_grad_(tensor.requires_grad) if isinstance(made, Parameter) else Parameter(made, tensor.requires_grad)
    swap_tensors(tensor, made)


def _load(module, state_dict, prefix, metadata, assign, keys, plan):
    """Plan the loading of a module and all below it. The arguments of `_load_from_state_dict` are PyTorch's, as people redefine it."""
    local_metadata = metadata.get(prefix[:-1], {})
    if assign:
        local_metadata = {**local_metadata, "assign_to_params_buffers": True}
    errors = plan if type(module)._load_from_state_dict is StateDict._load_from_state_dict else []
    module._load_from_state_dict(state_dict, prefix, local_metadata, True, keys.missing_keys, keys.unexpected_keys, errors)
    if errors is not plan:
        plan.extend(errors)
    for name, child in module._modules.items():
        if child is not None:
            below = f"{prefix}{name}."
            _load(child, {key: value for key, value in state_dict.items() if key.startswith(below)}, below, metadata, assign, keys, plan)
    if module._load_state_dict_post_hooks:
        plan.carry_out()
    for hook in module._load_state_dict_post_hooks.values():
        if hook(module, keys) is not None:
            raise AssertionError("load_state_dict post-hook: expected None as its result; change the lists of incompatible_keys in place")


def consume_prefix_in_state_dict_if_present(state_dict, prefix):
    """Take `prefix` off the names in a state dict and its metadata that begin with it, in place.

    >>> import tritorch as torch
    >>> state = {"module.weight": torch.ones(1), "module.bias": torch.ones(1)}
    >>> torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module."); list(state)
    ['weight', 'bias']
    """
    for names in (state_dict, getattr(state_dict, "_metadata", {})):
        for name in list(names):
            if name.startswith(prefix) or names is not state_dict and name + "." == prefix:
                names[name[len(prefix):]] = names.pop(name)
