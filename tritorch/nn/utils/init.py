"""Modules whose parameters are not to be drawn."""
import inspect

from tritorch.errors import check
from tritorch.nn.module import Module
from tritorch.random import fork_rng


def skip_init(module_cls, *args, **kwargs):
    """A module for whose parameters no random numbers are taken from the generators; what is in them does not count. The class takes a
    `device`, here the CPU unless another is given. Raises RuntimeError if it does not, or is no class of modules.

    >>> import tritorch as torch
    >>> torch.nn.utils.skip_init(torch.nn.Linear, 3, 4).weight.shape
    tritorch.Size([4, 3])
    """
    known = isinstance(module_cls, type) and issubclass(module_cls, Module)
    check(known, "skip_init", "a class of modules", repr(module_cls), error=RuntimeError if isinstance(module_cls, type) else TypeError)
    check("device" in inspect.signature(module_cls).parameters, "skip_init", "a module that takes a device", module_cls.__name__)
    with fork_rng():
        return module_cls(*args, **{"device": "cpu", **kwargs})
