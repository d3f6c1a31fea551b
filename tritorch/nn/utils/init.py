"""Modules whose parameters are not to be drawn."""
import inspect

from tritorch.errors import check
from tritorch.nn.module import Module


def skip_init(module_cls, *args, **kwargs):
    """A module whose parameters are not drawn: it is made on meta, and then given memory on its `device`, the CPU unless another is
    given. Raises RuntimeError if the class takes no `device`, or is no class of modules.

    >>> import tritorch as torch
    >>> torch.nn.utils.skip_init(torch.nn.Linear, 3, 4).weight.shape
    tritorch.Size([4, 3])
    """
    known = isinstance(module_cls, type) and issubclass(module_cls, Module)
    check(known, "skip_init", "a class of modules", repr(module_cls), error=RuntimeError if isinstance(module_cls, type) else TypeError)
    check("device" in inspect.signature(module_cls).parameters, "skip_init", "a module that takes a device", module_cls.__name__)
    return module_cls(*args, **{**kwargs, "device": "meta"}).to_empty(device=kwargs.get("device", "cpu"))
