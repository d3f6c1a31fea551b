"""What `tritorch.ops.namespace.name` is: namespaces of operators, and under a name its overloads."""
import importlib
import importlib.util
import types


class OpNamespace(types.ModuleType):
    """The operators of a namespace, by name."""

    def __init__(self, name):
        super().__init__("tritorch.ops." + name)
        self.name = name

    def __getattr__(self, name):
        raise AttributeError(f"'_OpNamespace' '{self.name}' object has no attribute '{name}'")

    def __repr__(self):
        return f"<_OpNamespace '{self.name}'>"


class OpOverload:
    """One overload of an operator: `tritorch.ops.namespace.name.overload`."""

    tags = ()

    def __init__(self, namespace, name, overload, function=None):
        self.namespace, self._opname, self._overloadname, self.function = namespace, name, overload, function
        self.__name__ = f"{name}.{overload}"

    def __repr__(self):
        return f"<OpOverload(op='{self.namespace}.{self._opname}', overload='{self._overloadname}')>"

    def __str__(self):
        return f"{self.namespace}.{self._opname}.{self._overloadname}"

    def name(self):
        """namespace::name, with .overload if it has one."""
        return f"{self.namespace}::{self._opname}" + ("" if self._overloadname == "default" else f".{self._overloadname}")

    @property
    def overloadpacket(self):
        """All overloads of the operator."""
        return getattr(namespace(self.namespace), self._opname)

    def __call__(self, /, *args, **kwargs):
        return self.function(*args, **kwargs)


class OpOverloadPacket:
    """All overloads of an operator. A call goes to the first one that takes the arguments.

    >>> import tritorch as torch
    >>> torch.ops.aten.add, torch.ops.aten.add.Tensor
    (<OpOverloadPacket(op='aten.add')>, <OpOverload(op='aten.add', overload='Tensor')>)
    """

    def __init__(self, namespace, name):
        self._qualified_op_name, self.__name__, self._namespace = f"{namespace}::{name}", name, namespace
        self._overloads = {}

    def __repr__(self):
        return f"<OpOverloadPacket(op='{self}')>"

    def __str__(self):
        return self._qualified_op_name.replace("::", ".")

    def __getattr__(self, name):
        found = None if name.startswith("__") else self.__dict__["_overloads"].get(name)
        if found is None:
            raise AttributeError(f"The underlying op of '{self}' has no overload name '{name}'")
        return found

    def __dir__(self):
        return sorted({*super().__dir__(), *self._overloads})

    def __iter__(self):
        return iter(self._overloads)

    def overloads(self):
        """The names of the overloads."""
        return list(self._overloads)

    def __call__(self, /, *args, **kwargs):
        found = list(self._overloads.values())
        for overload in found[:-1]:
            if overload.takes(args, kwargs):
                return overload(*args, **kwargs)
        return found[-1](*args, **kwargs)


def namespace(name):
    """The namespace `tritorch.ops.name`; where a family of cards has that name, its module."""
    from tritorch import ops

    found = vars(ops).get(name)
    if found is None:
        there = importlib.util.find_spec("tritorch.ops." + name) is not None
        if name == "aten":
            found = importlib.import_module("tritorch.ops.aten_names").AtenNamespace(name)
        elif name == "tritorch":
            found = importlib.import_module("tritorch.ops.card_names").CardNamespace(name)
        else:
            found = importlib.import_module("tritorch.ops." + name) if there else OpNamespace(name)
        setattr(ops, name, found)
        if name == "profiler":
            importlib.import_module("tritorch.profiler.marks")           # which puts its operators there
    return found


def add(overload, namespace_name, name, overload_name):
    """Put an overload under its name. ValueError where a family of cards has something else there."""
    space = namespace(namespace_name)
    packet = vars(space).get(name)
    if packet is None:
        packet = OpOverloadPacket(namespace_name, name)
        setattr(space, name, packet)
    elif not isinstance(packet, OpOverloadPacket):
        raise ValueError(f"{namespace_name}::{name}: expected a name that is free, got one of tritorch's own; use another namespace")
    packet._overloads[overload_name] = overload
    return packet


def remove(namespace_name, name, overload_name):
    """Take an overload away, and with the last one the name."""
    space = namespace(namespace_name)
    packet = vars(space).get(name)
    if isinstance(packet, OpOverloadPacket):
        packet._overloads.pop(overload_name, None)
        if not packet._overloads:
            delattr(space, name)
