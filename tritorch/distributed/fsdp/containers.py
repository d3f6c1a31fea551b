"""Tensors in what modules take and return: in lists, tuples, dictionaries and dataclasses, at any depth."""
from dataclasses import fields, is_dataclass, replace

from tritorch.tensor import Tensor


def mapped(fn, x):
    """The same containers with `fn` of each tensor. Those in which nothing changes stay the same objects."""
    if isinstance(x, Tensor):
        return fn(x)
    if isinstance(x, dict):
        made = {key: mapped(fn, value) for key, value in x.items()}
        if all(made[key] is value for key, value in x.items()):
            return x
        return made if type(x) is dict else type(x)(made.items())
    if isinstance(x, (list, tuple)):
        values = [mapped(fn, value) for value in x]
        if all(a is b for a, b in zip(values, x)):
            return x
        return type(x)(*values) if hasattr(x, "_fields") else type(x)(values)
    if is_dataclass(x) and not isinstance(x, type):
        made = {f.name: mapped(fn, getattr(x, f.name)) for f in fields(x) if f.init}
        return x if all(made[name] is getattr(x, name) for name in made) else replace(x, **made)
    return x


def tensors_with_gradients(x):
    """The tensors in containers that require gradients, each once."""
    found = {}
    mapped(lambda t: found.setdefault(id(t), t) if t.requires_grad else t, x)
    return list(found.values())


def cast(dtype, x):
    """The same containers with floating tensors cast."""
    return mapped(lambda t: t.to(dtype) if t.dtype.is_floating_point and t.dtype is not dtype else t, x)
