"""Whose a program is: the user's, this package's, the standard library's or one that was installed."""
from __future__ import annotations

import sys
import sysconfig
from types import BuiltinFunctionType, FunctionType, ModuleType

from tritorch.autograd.places import inside

INSTALLED = tuple({path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_paths()[name])})
PYTHONS = {"tritorch", *sys.stdlib_module_names}


def is_installed(file):
    """Whether a file is not the user's: of this package, the standard library or one that was installed."""
    return file is None or inside[file] or file.startswith(INSTALLED)


def is_ours(kind):
    """Whether a class belongs to this package or is built in."""
    return str(kind.__module__).startswith(("tritorch.", "builtins"))


def is_pythons(module):
    """Whether a module, by its name, is this package's or of the standard library."""
    return str(module).partition(".")[0] in PYTHONS


def is_fixed(value):
    """Whether a program is taken to stay what it is: all but the user's functions and classes."""
    if isinstance(value, FunctionType):
        return is_installed(value.__code__.co_filename)
    if isinstance(value, type):
        return is_pythons(value.__module__) or is_installed(getattr(sys.modules.get(value.__module__), "__file__", "<notebook>"))
    return isinstance(value, (BuiltinFunctionType, ModuleType))
