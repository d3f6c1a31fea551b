"""Layers that follow each other made one, before a model is prepared."""
import copy

from tritorch.ao.nn import intrinsic
from tritorch.nn.linear import Identity
from tritorch.nn.utils.fusion import fuse_conv_bn_eval

_KINDS = {tuple(kind.__name__ for kind in fused._parts): fused for fused in (getattr(intrinsic, name) for name in intrinsic.__all__)}


def fuse_known_modules(mod_list, is_qat, additional_fuser_method_mapping=None):
    """[the fused module, Identity, …] for a sequence: Conv + BatchNorm (+ ReLU), Conv + ReLU, Linear + ReLU, BatchNorm + ReLU. For
    training they are kept, in evaluation mode a batch norm is folded into its convolution. Hooks of the first and the last go along."""
    kinds = tuple(type(m) for m in mod_list)
    method = (additional_fuser_method_mapping or {}).get(kinds)
    if method is not None:
        fused = method(is_qat, *mod_list)
    else:
        fused = _fused(mod_list, kinds, is_qat)
    for hook in mod_list[0]._forward_pre_hooks.values():
        fused.register_forward_pre_hook(hook)
    mod_list[0]._forward_pre_hooks.clear()
    for hook in mod_list[-1]._forward_hooks.values():
        fused.register_forward_hook(hook)
    mod_list[-1]._forward_hooks.clear()
    return [fused, *[Identity().train(mod_list[0].training) for _ in mod_list[1:]]]


def _fused(mod_list, kinds, is_qat):
    made = _KINDS.get(tuple(kind.__name__ for kind in kinds))
    if made is None or made._parts != kinds:
        raise AssertionError(f"fuse_modules: expected layers that can be fused, got {[kind.__name__ for kind in kinds]}")
    if is_qat or "Bn" not in made.__name__:
        return made(*mod_list)
    conv = fuse_conv_bn_eval(*mod_list[:2])
    return conv if len(mod_list) == 2 else getattr(intrinsic, made.__name__.replace("Bn", ""))(conv, mod_list[2])


def _fuse(model, modules_to_fuse, inplace, fuser_func, config, is_qat):
    model = model if inplace else copy.deepcopy(model)
    lists = [modules_to_fuse] if all(isinstance(name, str) for name in modules_to_fuse) else modules_to_fuse
    for names in lists:
        new = fuser_func([model.get_submodule(name) for name in names], is_qat,
                         (config or {}).get("additional_fuser_method_mapping", {}))
        for name, module in zip(names, new):
            outer, _, last = name.rpartition(".")
            setattr(model.get_submodule(outer), last, module)
    return model


def fuse_modules(model, modules_to_fuse, inplace=False, fuser_func=fuse_known_modules, fuse_custom_config_dict=None):
    """A copy of a model in evaluation mode, or itself, in which each list of names of modules is one module: the first of them, the
    others are Identities. AssertionError, as in PyTorch, for layers that cannot be fused.

    >>> import tritorch as torch
    >>> nn = torch.nn
    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
    >>> torch.ao.quantization.fuse_modules(model, ["0", "1", "2"])[0]
    ConvReLU2d(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): ReLU()
    )
    """
    return _fuse(model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict, is_qat=False)


def fuse_modules_qat(model, modules_to_fuse, inplace=False, fuser_func=fuse_known_modules, fuse_custom_config_dict=None):
    """`fuse_modules` for a model that `prepare_qat` is to make ready: batch norms stay, and train."""
    return _fuse(model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict, is_qat=True)
