"""What Python reads in a call besides its arguments: numbers, strings, tensors and other objects, in globals, variables of enclosing
functions, attributes and containers that the code which ran names. A recording holds while they stay the same.
"""
from __future__ import annotations

import functools
import os
import sys
import weakref
from collections import ChainMap, UserDict, deque
from contextvars import ContextVar
from operator import attrgetter, is_, itemgetter, methodcaller
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import NamedTuple

from tritorch.amp import GradScaler
from tritorch.compiler.contents import (
    DRAWN,
    LONG,
    alike,
    content,
    counts,
    current,
    frozen,
    goes_on,
    is_plain,
    is_short,
    keys_and_values,
    one_by_one,
    progress,
    raw,
    same,
)
from tritorch.compiler.names import ANY, names, steering
from tritorch.compiler.watch import CONSTANTS, HOST
from tritorch.compiler.whose import is_fixed, is_installed, is_ours, is_pythons
from tritorch.distributions import Distribution
from tritorch.nn.hooks import everywhere
from tritorch.nn.module import Module
from tritorch.nn.registry import Registry
from tritorch.optim.lr_scheduler import LRScheduler
from tritorch.optim.optimizer import Optimizer, step_hooks
from tritorch.tensor import Tensor

TOLD: set = set()                                                        # attributes of modules that recordings know from being told
MANY = 20000                                                             # objects; more are data
CLOSED = Optimizer, Registry, str, bytes                                 # what is inside of them is looked at elsewhere, or not at all
OURS = Module, GradScaler, Distribution, LRScheduler                     # of this package, with numbers that their methods read
_code, _defaults, _keywords = map(attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))
ENVIRON = type(os.environ)
RUN = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
SPACES = CodeType, ModuleType, type
BOUND = MethodType, BuiltinMethodType, MethodWrapperType
DESCRIPTORS = property, staticmethod, classmethod, functools.cached_property, functools.partialmethod


@functools.lru_cache(maxsize=4096)
def built_in(kind):
    """The attributes of an object that methods from this package and from the standard library read."""
    classes = [cls for cls in kind.__mro__ if is_pythons(cls.__module__) and cls not in Module.__mro__]
    found = [f.fget if isinstance(f, property) else getattr(f, "func", f) for cls in classes for f in vars(cls).values()]
    methods = [f for f in found if isinstance(f, FunctionType)]
    return frozenset(["training", "forward"]).union(*[names(f.__code__).attributes for f in methods])


class Place(NamedTuple):
    """A container, and `values`, those of its entries that were read, by key; `getter`, itemgetter or attrgetter, makes what reads some.
    `size`: how many entries there are, if that counts. Where all are read, `getter` makes `whole`, a tuple, at once. `owner` is what a
    user calls it."""

    container: object
    getter: object
    owner: object
    values: dict
    size: int | None = None
    whole: tuple | None = None


class Reads:
    """Found from `codes`, {code that ran: its globals}, and from `roots`, objects that they met. To `settle` after the call: what the
    call itself changed does not count, but for `counted`, numbers of which a user must know that replays leave them alone."""

    def __init__(self, codes, roots):
        self.codes, self.attributes, self.items, self.assigned, self.whole, found = {}, {"forward"}, set(), set(), False, None
        self.asked = set()                                               # attributes that there need not be
        for code, space in codes.items():
            if not is_pythons(space.get("__name__")):
                self.add(code, space)
        while found != (now := (len(self.codes), len(self.attributes), len(self.items))):              # what was found names more
            found, self.seen, self.places, self.left, self.tensors, self.modules = now, {}, {}, list(roots), [], []
            self.functions, self.objects, self.moving = [], [], []
            self.left += hooks_in([getattr(everywhere, name) for name in RUN])
            for code, space in list(self.codes.items()):
                self.look_around(code, space)
            while self.left and len(self.seen) < MANY:
                self.visit(self.left.pop())
            with_defaults = [f for f in self.functions if f.__defaults__ or f.__kwdefaults__]
            for many, getter in (self.functions, _programs), (with_defaults, _given), (self.objects, _kinds):
                if many:
                    self.look_at_all(many, getter)

    def add(self, code, space):
        if code not in self.codes:
            read = names(code)
            self.codes[code] = space
            self.attributes |= read.attributes | read.stored             # who sets what was there already is not seen to
            self.items |= read.items
            self.assigned |= read.assigned
            self.asked |= read.asked
            self.whole |= bool(read.whole) and not is_installed(code.co_filename)

    # -------------------------------------------------------------- looking
    def look(self, container, keys, owner, getter=itemgetter, size=None):
        """The values at some keys of a container are read."""
        values = self.places.setdefault(id(container), Place(container, getter, owner, {}, size)).values
        for key in keys:
            if key not in values:
                values[key] = value = getter(key)(container)
                self.left.append(value)

    def look_at_all(self, container, getter, owner=None):
        """What is in a container is read, whatever of it."""
        found = getter(container)
        self.places[id(container)] = Place(container, getter, container if owner is None else owner, {}, None, found)
        self.left += found

    def look_around(self, code, space):
        """Globals, and modules that are imported where they are used."""
        read = names(code)
        self.look(space, (read.globals | read.rebound) & space.keys(), code)
        absent = read.globals - space.keys() - vars(sys.modules["builtins"]).keys()
        if absent:
            self.look_at_all(space.keys(), functools.partial(_lacks, absent), code)
        for name in read.modules:
            self.left += sys.modules.get(name), sys.modules.get(f"{space.get('__package__')}.{name}")

    def visit(self, x):
        """What is read of an object."""
        kind = type(x)
        if isinstance(x, Optimizer):
            self.left += hooks_in(step_hooks([x]))
        if kind in CONSTANTS or id(x) in self.seen or kind in weakref.ProxyTypes or isinstance(x, CLOSED):
            return
        self.seen[id(x)] = x
        if isinstance(x, Tensor):
            self.tensors.append(weakref.ref(x))
            self.left += hooks_in(leaf_hooks([x]))
        elif isinstance(x, FunctionType):
            self.visit_function(x)
        elif isinstance(x, type):
            if not is_pythons(x.__module__):
                own = vars(x)
                ran = [name for name, f in own.items() if isinstance(f, FunctionType) and f.__code__ in self.codes]
                self.look(own, (self.attributes & own.keys()).union(ran), x)
                self.left.append(type(x))
        elif isinstance(x, ModuleType):
            if not is_installed(getattr(x, "__file__", None)):
                self.look(vars(x), self.attributes & vars(x).keys(), x)
            elif x is os and self.attributes & {"environ", "getenv"}:
                self.left.append(os.environ)
        elif not self.visit_built_in(x, kind):
            self.visit_attributes(x, kind)

    def visit_built_in(self, x, kind):
        """What an object of one of Python's or numpy's types holds; whether it is one that has nothing else."""
        if isinstance(x, BOUND):
            self.left += x.__self__, getattr(x, "__func__", None)
        elif isinstance(x, DESCRIPTORS):
            self.left += [getattr(x, name, None) for name in ("fget", "__func__", "func")]
        elif isinstance(x, functools.partial):
            self.left += x.func, x.args, x.keywords
        elif isinstance(x, weakref.ref):
            self.left.append(x())
        elif isinstance(x, (attrgetter, itemgetter, methodcaller)):
            self.name(x)
        elif isinstance(x, ENVIRON):
            self.look_at_all(x._data, keys_and_values, x)
        elif isinstance(x, (UserDict, ChainMap)):
            self.left += vars(x).values()
        elif isinstance(x, (dict, MappingProxyType)):
            if len(x) <= LONG:
                self.look_at_all(x, keys_and_values)
            else:
                self.look(x, self.items & x.keys(), x, size=len(x))
        elif isinstance(x, (list, deque)):
            if len(x) <= LONG:
                self.look_at_all(x, tuple)
        elif isinstance(x, tuple):
            self.left += x[:LONG]
        elif isinstance(x, set):
            if len(x) <= LONG:
                self.look_at_all(x, frozen)
        elif is_short(x):
            self.look_at_all(x, raw)
        elif isinstance(x, ContextVar):
            self.look_at_all(x, current)
        elif isinstance(x, DRAWN) or hasattr(kind, "__next__"):
            self.moving.append((x, progress(x)))
        return kind.__module__ == "builtins"

    def name(self, getter):
        """What the getters of `operator` read."""
        for key in getter.__reduce__()[1]:
            self.items |= {key} if type(key) in (str, int) else set()
            self.attributes |= {*key.split(".")} if type(key) is str else set()

    def visit_function(self, function):
        code = function.__code__
        if not is_installed(code.co_filename):
            self.add(code, function.__globals__)
        if code in self.codes:
            self.functions.append(function)
            self.left += function.__defaults__, function.__kwdefaults__
            self.look(vars(function), self.attributes & vars(function).keys(), function)
            for cell in function.__closure__ or ():
                self.look_at_all(cell, content, function)
        else:                                                            # of the standard library, such as `singledispatch`
            self.left += [value for cell in function.__closure__ or () for value in content(cell)]

    def visit_attributes(self, x, kind):
        read = self.attributes | built_in(kind) if isinstance(x, OURS) or is_pythons(kind.__module__) else self.attributes
        if isinstance(x, Module):
            self.modules.append(x)
            self.left += [*x._parameters.values(), *hooks_in([getattr(x, name) for name in RUN])]
        else:
            self.objects.append(x)
        if hasattr(x, "__dict__"):
            own = vars(x)
            self.left.append(own.get("__wrapped__"))                     # of what is compiled or cached
            if isinstance(x, OURS) or not is_ours(kind):
                size = len(own) if any(n in self.asked or hasattr(kind, n) for n in read - own.keys()) else None
                self.look(own, own.keys() if self.whole and len(own) <= LONG else read & own.keys(), x, size=size)
        slots = slots_of(kind)
        self.look(x, [name for name in (slots if self.whole else slots & read) if hasattr(x, name)], x, attrgetter)
        self.left += kind.__mro__

    # -------------------------------------------------------------- what is left of it when the call is over
    def extend(self, other):
        """Look at what another found, too, but for what is known to change."""
        other.settle(self.dropped)
        self.quick += other.quick
        self.slow += other.slow

    def settle(self, dropped=frozenset(), usual=(), lists=()):
        """Keep what is as it was before the call, in a form that is quick to look at: modules tell when something is assigned. A number in
        `usual`, {(id of the container, key): what an equal call left there}, does not go on; `lists` must keep their sizes."""
        self.quick, self.slow, self.counted, self.dropped, grown, self.why = [], [], [], set(dropped), [], None
        self.quick += [(x, _nothing, (), size, x, []) for x, size in lists]
        steered = [steering(code) for code in self.codes]
        self.steering = set().union(*[counted for counted, _ in steered]) & set().union(*[read for _, read in steered])
        for container, getter, owner, values, size, whole in self.places.values():
            told = isinstance(owner, Module) and type(owner).__setattr__ is Module.__setattr__
            entries = self.slow if told else self.quick
            if whole is not None:
                now = getter(container)
                if id(container) in dropped:
                    continue
                if alike(now, whole):
                    entries.append((container, getter, now, None, owner, None))
                    continue
                if goes_on(container, now, whole):
                    if counts(now, whole):
                        self.counted.append(self.called(container))
                    else:
                        grown.append(container)
                self.dropped.add(id(container))
                getter, values = one_by_one(container, whole)
            left = [key for key in values if (id(container), key) not in dropped]
            keys = [key for key in left if self.stays(container, getter, owner, key, values[key], usual)]
            self.dropped.update([(id(container), key) for key in values.keys() - keys])
            if size != (len(container) if size is not None else None):
                size = None
            if keys or size is not None:
                get = getter(*keys, keys[0]) if keys else _nothing       # of at least two keys, so that it gives a tuple
                entries.append((container, get, get(container), size, owner, keys))
                TOLD.update(keys if told else ())
        moved = [x for x, state in self.moving if state is None or progress(x) != state] + grown
        if moved:
            self.why = HOST if isinstance(moved[0], DRAWN) else f"{self.called(moved[0])} that goes on in every call"
        self.rates = "param_groups" in self.attributes and ("lr" in self.items or ANY in self.assigned)
        del self.codes, self.seen, self.places, self.left, self.functions, self.moving
        return self

    def called(self, x):
        """What a user calls an object."""
        kind = f"a {type(x).__name__}"
        for container, _, owner, values, _, whole in self.places.values():
            if isinstance(container, CellType) and whole and whole[0] is x:
                values = {_variable(owner, container): x}
            for key in [key for key, value in values.items() if value is x]:
                return f"{called(owner, key)}, {kind}"
        return kind

    def stays(self, container, getter, owner, key, value, usual):
        """Whether an entry is to be looked at: it is what it was before the call, and may change."""
        try:
            now = getter(key)(container)
        except (LookupError, AttributeError, ValueError):
            return False
        stays = same(now, value)
        if not stays and is_plain(now) and is_plain(value):
            name = _variable(owner, container) if isinstance(container, CellType) else key
            if name in self.steering:
                self.why = f"{called(owner, name)}, which the call counts and goes by"
            if (id(container), key) not in usual or not same(now, usual[id(container), key]):
                self.counted.append(called(owner, name))
        return stays and not (isinstance(owner, SPACES) and is_fixed(value))

    def changed(self, entries):
        """The name of something that is not what it was, or None."""
        for container, get, wanted, size, owner, keys in entries:
            try:
                now = get(container)
            except (LookupError, AttributeError):
                return called(owner, keys[0])
            if len(now) != len(wanted) or not all(map(is_, now, wanted)) and not all(map(same, now, wanted)):
                return called(owner, next((key for key, a, b in zip(keys or (), now, wanted) if not same(a, b)), None))
            if size is not None and len(container) != size:
                return called(owner, None)
        return None


# ------------------------------------------------------------------ what is called by itself
def leaf_hooks(tensors):
    """The hooks of gradients, as dicts."""
    nodes = [x.node.hooks for x in tensors if x.node is not None and x.node.hooks is not None]
    return [hooks for n in nodes for hooks in (n.tensor, n.before, n.after, n.accumulated)]


def hooks_in(dicts):
    return [hook for hooks in dicts for hook in hooks.values()]


# ------------------------------------------------------------------ what is read of many at once
def _programs(functions):
    """Their code, which may be loaded anew."""
    return tuple(map(_code, functions))


def _given(functions):
    """What they take for arguments that are left out."""
    return *map(_defaults, functions), *map(_keywords, functions)


def _kinds(objects):
    return tuple(map(type, objects))


def _lacks(absent, keys):
    return (keys.isdisjoint(absent),)


def _nothing(container):
    return ()


# ------------------------------------------------------------------ what a user calls it
def _variable(function, cell):
    """What a function calls a variable of an enclosing one."""
    return function.__code__.co_freevars[[*map(id, function.__closure__)].index(id(cell))]


def slots_of(kind):
    """The names of attributes in slots."""
    return set().union(*[getattr(cls, "__slots__", ()) for cls in kind.__mro__ if not isinstance(getattr(cls, "__slots__", ()), str)])


def called(owner, key):
    """What a user calls an entry, or, where it has no key, all of them."""
    named = isinstance(owner, (FunctionType, ModuleType, type))
    name = owner.co_name if isinstance(owner, CodeType) else owner.__name__ if named else type(owner).__name__
    return f"{key!r} of {name}" if key is not None else f"what is in a {name}"
