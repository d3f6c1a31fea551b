"""A model made ready: configurations handed down, layers exchanged for those that train, observers hung to results."""
import copy
import inspect
import warnings

from tritorch.ao.nn.intrinsic import _FusedModule
from tritorch.ao.nn.quantized import FloatFunctional
from tritorch.ao.quantization import mappings
from tritorch.ao.quantization.qconfig import memoryless
from tritorch.ao.quantization.stubs import DeQuantStub, QuantWrapper
from tritorch.errors import check
from tritorch.nn.container import Sequential
from tritorch.nn.dropout import Dropout


def propagate_qconfig_(module, qconfig_dict=None, prepare_custom_config_dict=None):
    """Give every module inside a `qconfig`: its own, that of its name or type in `qconfig_dict`, or that of the module around it."""
    _hand_down(module, qconfig_dict or {}, None, "")


def _hand_down(module, known, outer, prefix):
    found = known.get(prefix, known.get(type(module), outer))
    module.qconfig = getattr(module, "qconfig", found)
    for name, child in module.named_children():
        _hand_down(child, known, module.qconfig, f"{prefix}.{name}" if prefix else name)


def _devices(module):
    return {x.device for x in (*module.parameters(), *module.buffers())}


def _watch_output(module, input, output):
    return module.activation_post_process(output)


def _watch_input(module, input):
    return module.activation_post_process(input[0])


def _hang(module, device, special=None):
    """Hang what watches to a module with a qconfig: to its input where results are watched anew each time."""
    if getattr(module, "qconfig", None) is None or isinstance(module, DeQuantStub):
        return
    made = (special or module.qconfig.activation)()
    module.add_module("activation_post_process", made if device is None else made.to(device))
    if memoryless(module.qconfig):
        module.register_forward_pre_hook(_watch_input, prepend=True)
    else:
        module.register_forward_hook(_watch_output, prepend=True)


def _hang_all(module, watched, around, device, custom):
    for name, child in list(module.named_children()):
        kind = type(child)
        if kind is Dropout:
            continue
        if isinstance(child, FloatFunctional):
            if getattr(child, "qconfig", None) is not None:
                made = child.qconfig.activation()
                child.activation_post_process = made if device is None else made.to(device)
        elif isinstance(child, _FusedModule) or kind in around:
            _hang(child, device)
        elif child.training and kind in mappings.KNOWN_RANGES:
            _hang(child, device, mappings.KNOWN_RANGES[kind])
        elif kind in custom and getattr(child, "qconfig", None) is not None:
            made = custom[kind].from_float(child)
            setattr(module, name, made)
            _hang(made, device)
        else:
            _hang_all(child, watched, around, device, custom)
    alone = not module._modules or hasattr(module, "weight_fake_quant")
    if alone and not isinstance(module, Sequential) and type(module) in watched:
        _hang(module, device)


def prepare(model, inplace=False, allow_list=None, observer_non_leaf_module_list=None, prepare_custom_config_dict=None):
    """A copy of the model, or itself, whose modules watch their results by what their `qconfig` names: for calibration.

    Configurations are handed down from modules to those inside. `allow_list`: the types of modules that are watched; those in
    `observer_non_leaf_module_list` are also if they have modules inside. Warns where no module has a configuration.

    >>> import tritorch as torch
    >>> q, model = torch.ao.quantization, torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> model.qconfig = q.default_qconfig
    >>> ready = q.prepare(model); _ = ready(torch.ones(1, 2))
    >>> ready[0].activation_post_process.max_val > float("-inf")
    tensor(True)
    """
    custom = (prepare_custom_config_dict or {}).get("float_to_observed_custom_module_class", {})
    model = model if inplace else copy.deepcopy(model)
    propagate_qconfig_(model)
    if not any(getattr(m, "qconfig", None) for m in model.modules()):
        warnings.warn("prepare: expected modules with a qconfig, got none", stacklevel=2)
    devices = _devices(model)
    check(len(devices) <= 1, "prepare", "a model on one device", devices, error=AssertionError)
    _hang_all(model, mappings.WATCHED if allow_list is None else allow_list, observer_non_leaf_module_list or (),
              next(iter(devices), None), custom)
    return model


def swap_module(mod, mapping, custom_module_class_mapping, use_precomputed_fake_quant=False):
    """The module that `mapping` has for the type of one with a qconfig, made by `from_float`, with its hooks; others as they are."""
    made = mapping.get(type(mod)) if getattr(mod, "qconfig", None) is not None else None
    if made is None:
        return mod
    more = "use_precomputed_fake_quant" in inspect.signature(made.from_float).parameters
    new = made.from_float(mod, **({"use_precomputed_fake_quant": use_precomputed_fake_quant} if more else {}))
    for hook in mod._forward_pre_hooks.values():
        new.register_forward_pre_hook(hook)
    for hook in mod._forward_hooks.values():
        if hook is not _watch_output:
            new.register_forward_hook(hook)
    devices = _devices(mod)
    check(len(devices) <= 1, "swap_module", "a module on one device", devices, error=AssertionError)
    return new.to(next(iter(devices))) if devices else new


def _swap_all(module, mapping):
    for name, child in list(module.named_children()):
        if not isinstance(child, _FusedModule):
            _swap_all(child, mapping)
        module._modules[name] = swap_module(child, mapping, {})


def prepare_qat(model, mapping=None, inplace=False):
    """A copy of a model that trains, or itself, whose layers fake-quantize their weights and whose results are fake-quantized, by what
    the `qconfig` of each names. `mapping`: {module: the one that takes its place}. AssertionError, as in PyTorch, unless it trains.

    >>> import tritorch as torch
    >>> q, model = torch.ao.quantization, torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> model.qconfig = q.get_default_qat_qconfig("fbgemm")
    >>> ready = q.prepare_qat(model.train())
    >>> type(ready[0]) is torch.ao.nn.qat.Linear, ready(torch.ones(1, 2)).requires_grad
    (True, True)
    """
    check(model.training, "prepare_qat", "a model in training mode", "one in evaluation mode", use="model.train()", error=AssertionError)
    mapping = mappings.QAT if mapping is None else mapping
    model = model if inplace else copy.deepcopy(model)
    propagate_qconfig_(model)
    _swap_all(model, mapping)
    return prepare(model, inplace=True, observer_non_leaf_module_list=set(mapping.values()))


def add_quant_dequant(module):
    """The module with a QuantStub before and a DeQuantStub behind every leaf that has a qconfig."""
    if not module._modules and getattr(module, "qconfig", None):
        return QuantWrapper(module)
    for name, child in list(module.named_children()):
        module._modules[name] = add_quant_dequant(child)
    return module
