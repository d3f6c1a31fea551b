"""Modules that compute in float32 inside of a model that computes with fewer digits."""
import functools
import warnings

from tritorch.autograd.places import stacklevel
from tritorch.distributed.fsdp.containers import cast, mapped
from tritorch.dtype import float32


def in_float32(model, classes):
    """Let modules of some classes get float32 and give what they got; returns the classes that were found."""
    found = {}
    for module in model.modules():
        if isinstance(module, classes):
            found[type(module)] = None
            module._wrap_overrides, given = {"mixed_precision": None}, []
            module.register_forward_pre_hook(functools.partial(widen, given))
            module.register_forward_hook(functools.partial(narrow, given))
    if found:
        warnings.warn(f"FullyShardedDataParallel: modules of {[kind.__name__ for kind in found]} become units of their own, without mixed "
                      "precision", stacklevel=stacklevel())
    return list(found)


def widen(given, _, args):
    """Before forward: floating inputs in float32. Their dtype is kept in `given`."""
    given.clear()
    mapped(lambda x: given.append(x.dtype) or x if x.dtype.is_floating_point else x, args)
    return cast(float32, args)


def narrow(given, _, args, output):
    """After forward: outputs in the dtype of the inputs."""
    return cast(given[-1], output) if given else output
