"""Which modules get a group of parameters of their own: functions of (module, recurse, nonwrapped_numel), as programs pass them on.

Each is asked twice: with `recurse`, whether to look at a module's children, which is always so but for what is too small or excluded;
and without, whether the module itself is one. The number is that of its parameters which no child has taken.
"""
from tritorch.nn.attention.multihead import MultiheadAttention
from tritorch.nn.container import ModuleDict, ModuleList


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
