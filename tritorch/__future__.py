"""Switches for what `Module.to` and its like, and `load_state_dict`, do with parameters.

>>> import tritorch as torch
>>> torch.__future__.get_swap_module_params_on_conversion()
False
"""
_overwrite_module_params_on_conversion = _swap_module_params_on_conversion = False


def set_overwrite_module_params_on_conversion(value):
    """Whether `Module.to` and its like put new parameters in the place of the old ones, instead of giving these new memory. An optimizer
    knows only the old ones."""
    global _overwrite_module_params_on_conversion
    _overwrite_module_params_on_conversion = value


def get_overwrite_module_params_on_conversion():
    """Whether conversions of a module put new parameters in the place of the old ones."""
    return _overwrite_module_params_on_conversion


def set_swap_module_params_on_conversion(value):
    """Whether `Module.to` and its like, and `load_state_dict`, swap a parameter with a new one by `utils.swap_tensors`: the object stays,
    and becomes what the conversion made, of a class of its own perhaps.

    >>> import tritorch as torch
    >>> linear = torch.nn.Linear(2, 1); weight = linear.weight
    >>> torch.__future__.set_swap_module_params_on_conversion(True)
    >>> linear.double().weight is weight, weight.dtype
    (True, tritorch.float64)
    >>> torch.__future__.set_swap_module_params_on_conversion(False)
    """
    global _swap_module_params_on_conversion
    _swap_module_params_on_conversion = value


def get_swap_module_params_on_conversion():
    """Whether conversions of a module, and `load_state_dict`, swap parameters with new ones."""
    return _swap_module_params_on_conversion
