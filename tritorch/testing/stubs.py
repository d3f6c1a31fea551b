"""Writes the type stubs of what is attached at run time: `python -m tritorch.testing.stubs` renews tritorch/__init__.pyi and tensor.pyi.

The functions of `tritorch` and the methods of Tensor come from tables, so editors and type checkers cannot see them in the source.
Operators with one output return Tensor; where a result depends on the arguments the stub says Any.
"""
import importlib
import inspect
import pkgutil
import types
from pathlib import Path

import tritorch
from tritorch import foreach
from tritorch.dispatch import registry
from tritorch.surface import EVERY

ROOT = Path(tritorch.__file__).parent
MODULES = {"__init__.pyi": "tritorch", "tensor.pyi": "tritorch.tensor"}
HEADER = '''"""Written by python -m tritorch.testing.stubs from the running package; do not edit."""
import builtins
from typing import Any
'''
PLAIN = (bool, int, float, str)
OF_EVERY_CLASS = set("""__module__ __doc__ __slots__ __dict__ __weakref__ __qualname__ __firstlineno__ __static_attributes__ __annotations__
    __annotations_cache__""".split())


def parameters(function):
    """The parameter list of a function, defaults as `...`."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return "*args: Any, **kwargs: Any"
    bare = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return text[1:-1].replace("=Ellipsis", "=...")


def function_stub(name, function, indent=""):
    tensor = registry.get(function.__name__) is function and len(function.returns) == 1
    returns = "None" if name == "__init__" else "Tensor" if tensor else "Any"
    other = name in ("__eq__", "__ne__") or name.startswith("__i")       # object's == gives bool, and x += y may take less than x + y
    manual = (inspect.getdoc(function) or "").split("\n")[0].replace("\\", "\\\\").replace('"', "'")
    ignore = "  # type: ignore" if other else ""
    return f'{indent}def {name}({parameters(function)}) -> {returns}:{ignore}\n{indent}    """{manual}"""\n{indent}    ...\n'


def value_stub(module, name, value):
    """A line for a name that is neither function nor class."""
    kind = type(value)
    if kind in PLAIN:
        return f"{name}: builtins.{kind.__name__}\n"                    # tritorch.int and its like are dtypes
    return f"{name}: {kind.__name__}\n" if getattr(module, kind.__name__, None) is kind else f"{name}: Any\n"


def class_stub(cls):
    """A class with all of its attributes, those attached later included."""
    lines = [f"class {cls.__name__}:\n"]
    for name in sorted({*vars(cls), *getattr(cls, "__slots__", ())}):
        value = vars(cls).get(name)
        if name in OF_EVERY_CLASS:
            continue
        if isinstance(value, (staticmethod, classmethod)):
            lines.append(f"    @{type(value).__name__}\n" + function_stub(name, value.__func__, "    "))
        elif inspect.isfunction(value):
            lines.append(function_stub(name, value, "    "))
        else:
            lines.append(f"    {name}: Any\n")
    return "".join(lines) + ("    ...\n" if len(lines) == 1 else "")


def stub(module):
    """The stub of a module as text."""
    parts = {"imports": [], "values": [], "functions": [], "classes": []}
    inside = {m.name for m in pkgutil.iter_modules(getattr(module, "__path__", []))}
    there = {*dir(module)}                                           # dir and getattr find what loads when first asked for
    if module is tritorch:
        there.update(name for name in dir(foreach) if name.startswith(EVERY))
    for name in sorted({*there, *inside}):
        if name.startswith("__") or name in ("Any", "annotations"):
            continue
        value = getattr(module, name) if name in there else None
        home = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType) or value is None and name in inside:
            if name in inside:
                parts["imports"].append(f"from {module.__name__} import {name} as {name}\n")
        elif inspect.isclass(value) and home == module.__name__:
            parts["classes"].append(class_stub(value))
        elif inspect.isclass(value):
            parts["imports"].append(f"from {home} import {value.__name__} as {name}\n")
        elif inspect.isfunction(value):
            parts["functions"].append(function_stub(name, value))
        else:
            parts["values"].append(value_stub(module, name, value))
    return HEADER + "\n".join("".join(lines) for lines in parts.values() if lines)


def stubs():
    """{path: text} of every stub."""
    return {ROOT / file: stub(importlib.import_module(name)) for file, name in MODULES.items()}


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
        print(path)
