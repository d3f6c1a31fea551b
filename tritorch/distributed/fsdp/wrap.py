"""Which modules become units of their own: policies, as programs pass them on, and what wraps the modules that they choose.

A policy is a function of (module, recurse, nonwrapped_numel), or an object that says what is to be wrapped, and with which arguments. The
function is asked twice: with `recurse`, whether to look at a module's children, which is always so but for what is too small or excluded;
and without, whether the module itself is one. The number is that of its parameters which no child has taken.
"""
import contextlib

from tritorch.errors import check
from tritorch.nn.attention.multihead import MultiheadAttention
from tritorch.nn.container import ModuleDict, ModuleList


def always_wrap_policy(*args, **kwargs):
    """Every module."""
    return True


def lambda_auto_wrap_policy(module, recurse, nonwrapped_numel, lambda_fn):
    """Modules of which lambda_fn says so."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(module, recurse, nonwrapped_numel, transformer_layer_cls):
    """Modules of the given classes.

    >>> import tritorch as torch
    >>> transformer_auto_wrap_policy(torch.nn.Linear(2, 2), False, 6, {torch.nn.Linear})
    True
    """
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def _module_wrap_policy(module, recurse, nonwrapped_numel, module_classes):
    """The same under another name of its argument."""
    return transformer_auto_wrap_policy(module, recurse, nonwrapped_numel, module_classes)


def size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=int(1e8), force_leaf_modules=None,
                                exclude_wrap_modules=None):
    """Modules of at least min_num_params elements."""
    policy = size_based_auto_wrap_policy
    given, default = (force_leaf_modules, policy.FORCE_LEAF_MODULES) if recurse else (exclude_wrap_modules, policy.EXCLUDE_WRAP_MODULES)
    return nonwrapped_numel >= min_num_params and not isinstance(module, tuple(default if given is None else given))


size_based_auto_wrap_policy.FORCE_LEAF_MODULES = {MultiheadAttention}    # type: ignore[attr-defined]  # never looked into
size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = {ModuleList, ModuleDict}                                # type: ignore[attr-defined]


def _or_policy(module, recurse, nonwrapped_numel, policies):
    """Modules that one of the policies chooses."""
    return any(policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel) for policy in policies)


class _Policy:
    """A policy that says of a whole model what is to be wrapped."""

    def _run_policy(self, root_module, ignored_modules, root_kwargs):
        """{module: arguments of its wrapper}."""
        found = {}
        for module in root_module.modules():
            chosen = module not in ignored_modules and self._choice(module)
            if chosen:
                found[module] = {**root_kwargs, **(chosen if isinstance(chosen, dict) else {})}
        return found


class ModuleWrapPolicy(_Policy):
    """Modules of the given classes.

    >>> import tritorch as torch
    >>> ModuleWrapPolicy({torch.nn.Linear})(torch.nn.Linear(2, 2), recurse=False)
    True
    """

    def __init__(self, module_classes):
        self._module_classes = set(module_classes)

    def _choice(self, module):
        return isinstance(module, tuple(self._module_classes))

    def __call__(self, module, recurse, *args, **kwargs):
        return recurse or self._choice(module)

    def __repr__(self):
        return f"{super().__repr__()}({self._module_classes})"


class CustomPolicy(_Policy):
    """Modules of which lambda_fn returns True, or a dict of arguments in which they differ from the outermost one. ValueError where it
    returns something else than a bool or a dict.

    >>> import tritorch as torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> list(CustomPolicy(lambda m: {"forward_prefetch": True} if m is model[0] else False)._run_policy(model, set(), {}).values())
    [{'forward_prefetch': True}]
    """

    def __init__(self, lambda_fn):
        self._lambda_fn = lambda_fn

    def _choice(self, module):
        chosen = self._lambda_fn(module)
        check(isinstance(chosen, (bool, dict)), "CustomPolicy", "a bool or a dict from lambda_fn", repr(chosen), error=ValueError)
        return chosen


# ------------------------------------------------------------------ wrapping
class _ConfigAutoWrap:
    """What `wrap` does: nothing but inside of `enable_wrap`."""

    in_autowrap_context, wrapper_cls, kwargs = False, None, {}           # type: ignore[var-annotated]


@contextlib.contextmanager
def enable_wrap(*, wrapper_cls, **wrapper_kwargs):
    """A context in which `wrap(module)` is `wrapper_cls(module, **wrapper_kwargs)`. NotImplementedError for one inside of another.

    >>> import tritorch as torch
    >>> with enable_wrap(wrapper_cls=torch.nn.Sequential):
    ...     type(wrap(torch.nn.ReLU())).__name__
    'Sequential'
    >>> type(wrap(torch.nn.ReLU())).__name__
    'ReLU'
    """
    config = _ConfigAutoWrap
    check(not config.in_autowrap_context, "enable_wrap", "no context inside of another", "one", error=NotImplementedError)
    config.in_autowrap_context, config.wrapper_cls, config.kwargs = True, wrapper_cls, wrapper_kwargs
    try:
        yield
    finally:
        config.in_autowrap_context, config.wrapper_cls, config.kwargs = False, None, {}


def wrap(module, **wrap_overrides):
    """The module, inside of `enable_wrap` in a wrapper with the arguments given there and here."""
    config = _ConfigAutoWrap
    return _wrap(module, config.wrapper_cls, **{**config.kwargs, **wrap_overrides}) if config.in_autowrap_context else module


def _wrap(module, wrapper_cls, **kwargs):
    """Wrap one module; what it wants to be otherwise for itself is in an attribute of it."""
    return wrapper_cls(module, **{**kwargs, **getattr(module, "_wrap_overrides", {})})


def _recursive_wrap(module, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, only_wrap_children=False, **kwargs):
    """Wrap what a function chooses, from the inside out. Returns (the module or its wrapper, how many elements are wrapped)."""
    left = sum(p.numel() for p in module.parameters() if p not in ignored_params)
    if not auto_wrap_policy(module=module, recurse=True, nonwrapped_numel=left):
        return module, 0
    taken = 0
    for name, child in list(module.named_children()):
        if child not in ignored_modules:
            made, count = _recursive_wrap(child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs)
            setattr(module, name, made)
            taken += count
    if only_wrap_children or not auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=left - taken):
        return module, taken
    return _wrap(module, wrapper_cls, **kwargs), left


def _wrap_chosen(root, chosen, wrapper_cls):
    """Wrap the modules below a root that a policy has chosen, {module: arguments}, from the inside out and each once."""
    _wrap_below(root, chosen, wrapper_cls, {root})


def _wrap_below(module, chosen, wrapper_cls, seen):
    for name, child in list(module.named_children()):
        if child not in seen:
            seen.add(child)
            _wrap_below(child, chosen, wrapper_cls, seen)
            if child in chosen:
                setattr(module, name, _wrap(child, wrapper_cls, **chosen[child]))
