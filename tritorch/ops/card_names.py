"""`tritorch.ops.tritorch`: the operators of the dispatcher under their own names, for graphs that call them.

>>> import tritorch as torch
>>> torch.ops.tritorch.mul, torch.ops.tritorch.mul.default(torch.ones(2), 3)
(<OpOverloadPacket(op='tritorch.mul')>, tensor([3., 3.]))
"""
import importlib
import pkgutil

from tritorch import ops
from tritorch.dispatch import registry
from tritorch.generator import default_generator
from tritorch.ops.create import tensor
from tritorch.ops.namespaces import OpNamespace, OpOverload, OpOverloadPacket


def card(name):
    """The operator of a name, None without one. Families that are not loaded yet are, if nobody knows it."""
    if name not in registry:
        for module in pkgutil.iter_modules(ops.__path__):
            importlib.import_module(f"{ops.__name__}.{module.name}")
    return registry.get(name)


def draw(device, counters):
    """The place of the next counters of a device's default generator, as (seed, offset, base): see `Generator.take`."""
    return default_generator(device).take(counters)


def numbers(values, dtype, device):
    """A tensor of numbers that are known when the graph runs."""
    return tensor(values, dtype=dtype, device=device)


OTHERS = {"draw": draw, "numbers": numbers}


class CardNamespace(OpNamespace):
    """Looks a name up when it is first asked for. The overload `default` is the operator, `out` writes to `out=`."""

    def __getattr__(self, name):
        found = None if name.startswith("__") else OTHERS.get(name) or card(name)
        if found is None:
            raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")
        packet = OpOverloadPacket(self.name, name)
        packet._overloads["default"] = OpOverload(self.name, name, "default", found)
        if name not in OTHERS:
            packet._overloads["out"] = OpOverload(self.name, name, "out", lambda *args, out: found.into(out, *args))
        setattr(self, name, packet)
        return packet
