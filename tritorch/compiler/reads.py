"""What Python reads in a call besides its arguments: numbers, strings, tensors and other objects, in globals, variables of enclosing
functions, attributes, dicts and lists that the functions on the way to the operators name. A recording holds while they stay the same.
"""
from __future__ import annotations

import contextlib
import dis
import functools
import sysconfig
import weakref
from operator import attrgetter, is_, itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

import numpy as np

from tritorch.autograd.places import inside
from tritorch.compiler.watch import CONSTANTS
from tritorch.nn.module import Module
from tritorch.nn.registry import Registry
from tritorch.optim.optimizer import Optimizer
from tritorch.tensor import Tensor

LONG, MANY = 64, 20000                                                   # a list of more is data, and so are more objects
INSTALLED = tuple({path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_paths()[name])})
PROGRAM, SPACES = (FunctionType, BuiltinFunctionType, ModuleType, type), (CodeType, ModuleType, type)     # taken to stay what it is there
CLOSED = Tensor, Optimizer, Registry, str, bytes, np.ndarray              # what is inside of them is looked at elsewhere, or not at all


class Names(NamedTuple):
    """What a code object and those inside of it read: globals by name, attributes, and by constants what may be an item."""

    globals: frozenset
    attributes: frozenset
    items: frozenset


NONE = Names(frozenset(), frozenset(), frozenset())


@functools.lru_cache(maxsize=4096)
def names(code):
    found = [], [], [c for c in code.co_consts if type(c) in (str, int)]
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found[0].append(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            found[1].append(step.argval)
    inner = [names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return Names(*[frozenset(mine).union(*theirs) for mine, *theirs in zip(found, *inner)])


@functools.lru_cache(maxsize=4096)
def built_in(kind):
    """The attributes of a module that methods from this package read."""
    classes = [cls for cls in kind.__mro__ if _is_ours(cls) and cls not in Module.__mro__]
    methods = [f for cls in classes for f in vars(cls).values() if isinstance(f, FunctionType)]
    return frozenset(["training", "forward"]).union(*[names(f.__code__).attributes for f in methods])


class Place(NamedTuple):
    """A container whose entries `values` were read by `getter`, itemgetter or attrgetter, and where those of the names in `absent` were
    looked for; `owner` is what a user calls it."""

    container: object
    getter: object
    owner: object
    values: dict
    absent: set


class Reads:
    """Found from `codes`, {code of a function that ran: its globals}, and from `roots`, objects that they met. To `settle` after the
    call: what the call itself changed does not count."""

    def __init__(self, codes, roots):
        self.codes, self.attributes, self.items, count = {}, set(), set(), None
        for code, space in codes.items():
            self.add(code, space)
        while count != len(self.codes):                                  # functions that were found name more
            count = len(self.codes)
            self.seen, self.places, self.left = {}, {}, list(roots)
            for code, space in list(self.codes.items()):
                self.look(space, names(code).globals & space.keys(), code)
            while self.left and len(self.seen) < MANY:
                self.visit(self.left.pop())

    def add(self, code, space):
        if code not in self.codes:
            self.codes[code] = space
            self.attributes |= names(code).attributes
            self.items |= names(code).items

    def look(self, container, keys, owner, getter=itemgetter, absent=()):
        """The values at some keys of a container are read."""
        *_, values, without = self.places.setdefault(id(container), Place(container, getter, owner, {}, set()))
        without.update(absent)
        for key in keys:
            if key not in values:
                values[key] = value = getter(key)(container)
                self.left.append(value)

    def visit(self, x):
        """What is read of an object."""
        if type(x) in CONSTANTS or id(x) in self.seen or type(x) in weakref.ProxyTypes or isinstance(x, CLOSED):
            return
        self.seen[id(x)] = x
        if isinstance(x, MethodType):
            self.left += x.__self__, x.__func__
        elif isinstance(x, functools.partial):
            self.left.append(x.func)
        elif isinstance(x, FunctionType):
            self.visit_function(x)
        elif isinstance(x, dict):
            self.look(x, self.items & x.keys(), x, absent=self.items - x.keys())
        elif isinstance(x, list) and len(x) <= LONG:
            self.look(x, range(len(x)), x)
        elif isinstance(x, tuple):
            self.left += x[:LONG]
        elif isinstance(x, ModuleType):
            if not _is_installed(getattr(x, "__file__", None)):
                self.look(vars(x), self.attributes & vars(x).keys(), x)
        elif not isinstance(x, type):
            self.visit_attributes(x)
        elif not _is_ours(x):
            self.look(vars(x), self.attributes & vars(x).keys(), x)

    def visit_function(self, function):
        code = function.__code__
        if not _is_installed(code.co_filename):
            self.add(code, function.__globals__)
        if code in self.codes:
            self.left += function.__defaults__, function.__kwdefaults__
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):                    # not bound yet
                    self.look(cell, ("cell_contents",), function, attrgetter)

    def visit_attributes(self, x):
        kind = type(x)
        read = self.attributes | built_in(kind) if isinstance(x, Module) else self.attributes
        if hasattr(x, "__dict__") and (isinstance(x, Module) or not _is_ours(kind)):
            self.look(vars(x), read & vars(x).keys(), x, absent=[n for n in read - vars(x).keys() if hasattr(kind, n)])
        self.look(x, [name for name in read & set(getattr(kind, "__slots__", ())) if hasattr(x, name)], x, attrgetter)
        self.left += kind.__mro__

    # -------------------------------------------------------------- what is left of it when the call is over
    def settle(self):
        """Keep what is as it was before the call, in a form that is quick to look at: modules tell when something is assigned."""
        self.quick, self.slow = [], []
        for container, getter, owner, values, absent in self.places.values():
            constant, others, entries = [], [], self.slow if isinstance(owner, Module) else self.quick
            if absent and (absent := frozenset(absent - container.keys())):
                entries.append((container, functools.partial(_lacks, absent), (True,), None, owner, [*absent]))
            for key, value in values.items():
                try:
                    now = getter(key)(container)
                except (LookupError, AttributeError, ValueError):
                    continue
                plain = _is_plain(value)
                if isinstance(value, PROGRAM) and isinstance(owner, SPACES):
                    continue
                if now is value or plain and type(now) is type(value) and now == value:
                    (constant if plain else others).append(key)
            for keys, plain in (constant, True), (others, False):
                if keys:
                    get = getter(*keys, keys[0])                         # of at least two keys, so that it gives a tuple
                    wanted = get(container)
                    kinds = tuple(map(type, wanted)) if plain else None
                    entries.append((container, get, wanted, kinds, owner, keys))
        del self.codes, self.attributes, self.items, self.seen, self.places
        return self

    def changed(self, entries):
        """The name of something that is not what it was, or None."""
        for container, get, wanted, kinds, owner, keys in entries:
            try:
                now = get(container)
            except (LookupError, AttributeError, ValueError):
                return _told(owner, keys[0])
            if not (all(map(is_, now, wanted)) or kinds is not None and now == wanted and tuple(map(type, now)) == kinds):
                return _told(owner, next(key for key, a, b in zip(keys, now, wanted) if a is not b))
        return None


def _is_installed(file):
    """Whether a file is not the user's: of this package, the standard library or one that was installed."""
    return file is None or inside[file] or file.startswith(INSTALLED)


def _is_ours(kind):
    """Whether a class belongs to this package or to Python."""
    return str(kind.__module__).startswith(("tritorch.", "builtins"))


def _lacks(names, container):
    return (container.keys().isdisjoint(names),)


def _is_plain(value):
    return value.__class__ in CONSTANTS or isinstance(value, np.generic)


def _told(owner, key):
    """What a user calls an entry."""
    name = getattr(owner, "co_name", None) or getattr(owner, "__name__", None) or type(owner).__name__
    return f"{key!r} of {name}"
