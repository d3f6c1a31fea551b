"""What Python sees of a call: calls with equal keys do the same with other numbers in their tensors."""
from __future__ import annotations

import random
import types

import numpy as np

from tritorch.amp.autocast_mode import _Caster
from tritorch.autograd.modes import state
from tritorch.compiler.checks import Checks
from tritorch.compiler.containers import flatten, is_input, parts
from tritorch.compiler.names import NONE, names
from tritorch.compiler.watch import CONSTANTS
from tritorch.cuda.device import current_device
from tritorch.device import _default
from tritorch.dtype import get_default_dtype
from tritorch.nn.module import Module
from tritorch.ops.attention_backends import backends
from tritorch.precision import get_float32_matmul_precision
from tritorch.protocol import state as seen
from tritorch.utils import _pytree

THREAD = state, seen, _default, backends                                     # what a thread may choose for itself
LONG = 256                                                               # comparisons of arguments that are written out


class Surroundings:
    """What a function itself names besides its arguments: globals, variables of enclosing functions, and plain attributes of the object
    it is a method of. Numbers and strings count by value, everything else by identity. What functions that it calls read, and what is
    further away, is left to recordings (compiler.reads)."""

    def __init__(self, function):
        method = isinstance(function, types.MethodType)
        self.object = vars(function.__self__) if method and not isinstance(function.__self__, Module) else {}
        function = function.__func__ if method else function
        code = getattr(function, "__code__", None)
        self.globals = getattr(function, "__globals__", {})
        read = names(code) if code is not None else NONE
        self.names, self.attributes = sorted(read.globals & self.globals.keys()), sorted(read.attributes & self.object.keys())
        self.cells = getattr(function, "__closure__", None) or ()

    def values(self):
        """The values themselves."""
        own = [v for v in map(self.object.get, self.attributes) if v.__class__ in CONSTANTS]
        return [*map(self.globals.get, self.names), *[_content(cell) for cell in self.cells], *own]

    def key(self, args, kwargs):
        """(the tensors among the arguments, what else a call depends on); the latter is None where another interpreter is at work, NaN is
        looked for, saved tensors pass through somebody's hooks, or a TorchFunctionMode sees calls."""
        given = []
        key = [(v.__class__, _plain(v)) if v.__class__ in CONSTANTS else id(v) for v in self.values()]
        key += state.grad, state.inference, get_default_dtype(), _default.stack, get_float32_matmul_precision(), current_device()
        key.append(backends.allowed)
        _describe(args, given, key)
        if kwargs:
            _describe((kwargs,), given, key)
        casts = _casts(state.interpreter)
        if casts is None or state.anomaly is not None or state.saved_hooks or seen.modes:
            return given, None
        return given, (*key, *casts)

    def fitting(self, args, kwargs, owner):
        """A function (args, kwargs) for other calls, quicker than the key: the tensors among the arguments of one that has this call's key
        for sure, where all else is the same object; None of one that need not have it. It does not keep its owner alive."""
        checks, given = Checks(), []
        if not (_write("args", args, checks, given) and _write("kwargs", kwargs, checks, given)):
            return _unknown
        for chosen in THREAD:
            known = {**vars(chosen)}
            if chosen is state and state.interpreter is not None:        # there is a new one for each `with autocast`
                known["interpreter"] = _Casts(state.interpreter)
            checks.terms.append(f"{checks.name(chosen)}.__dict__ == {checks.name(known)}")
        for ask in get_default_dtype, get_float32_matmul_precision, current_device:
            checks.same(f"{checks.name(ask)}()", ask())
        found = [(f"{checks.name(self.globals)}.get({name!r})", self.globals.get(name)) for name in self.names]
        for place, x in [*found, *[(f"{checks.name(cell)}.cell_contents", _content(cell)) for cell in self.cells]]:
            if x is owner:
                checks.terms.append(f"id({place}) == {id(x)}")
            else:
                checks.same(place, x)
        for name in self.attributes:
            place, x = f"{checks.name(self.object)}.get({name!r})", self.object.get(name)
            if x.__class__ in CONSTANTS:
                checks.same(place, x)
            else:
                checks.terms.append(f"{place}.__class__ not in {checks.name(CONSTANTS)}")
        return checks.function("args, kwargs", f"[{', '.join(given)}]")

    def objects(self, args, kwargs):
        """What the key knows by its id, to be kept, so that no other object gets that id."""
        return [x for x in (*self.values(), *flatten((args, kwargs))[0]) if x.__class__ not in CONSTANTS and not is_input(x)]


def _plain(x):
    """A constant as part of a key: nan is equal to itself there, and 0.0 is not -0.0."""
    return x if x.__class__ is not float or x == x != 0 else repr(x)


def _describe(values, given, key):
    for x in values:
        kind = x.__class__
        if kind in CONSTANTS:
            key += kind, _plain(x)
        elif is_input(x):
            given.append(x)
            key.append((kind, x.shape, x.strides, x.dtype, x.storage.device, x.requires_grad, x._inference))
        elif kind is tuple or kind is list:
            key += kind, len(x)
            _describe(x, given, key)
        elif kind is dict:
            key += kind, tuple(x)
            _describe(x.values(), given, key)
        elif (found := parts(x)) is not None:
            children, facts = found
            key += kind, len(children), _Facts(facts)
            _describe(children, given, key)
        else:
            key += kind, id(x)


def _write(place, x, checks, given):
    """Write down what an argument is, found at `place`; False where that is not so simple. `given` are the names of the tensors."""
    kind, terms = x.__class__, checks.terms
    if len(terms) > LONG:
        return False
    if kind is tuple or kind is list or kind is dict:
        name = f"t{len(terms)}"
        terms.append(f"({name} := {place}).__class__ is {checks.name(kind)}")
        terms.append(f"[*{name}] == {checks.name([*x])}" if kind is dict else f"len({name}) == {len(x)}")
        items = x.items() if kind is dict else enumerate(x)
        return all(_write(f"{name}[{checks.name(k)}]", item, checks, given) for k, item in items)
    if is_input(x):
        name = f"x{len(given)}"
        given.append(name)
        checks.same(f"({name} := {place}).__class__", kind)
        terms += [f"({name}.{what} is {known} or {name}.{what} == {known})"
                  for what, known in (("shape", checks.name(x.shape)), ("strides", checks.name(x.strides)))]
        checks.same(f"{name}.dtype", x.dtype)
        checks.same(f"{name}.storage.device", x.storage.device)
        terms.append(f"{name}._inference" if x._inference else f"not {name}._inference")
        asks = f"{name}.requires_grad"
        terms.append(asks if x.requires_grad else f"({name}.node is None if {name}.base is None else not {asks})")
    elif kind in (int, str) or kind is float and x == x != 0:
        terms.append(f"({place}.__class__ is {kind.__name__} and {place} == {checks.name(x)})")
    elif kind in CONSTANTS or parts(x) is None and not hasattr(kind, "__dataclass_fields__"):
        checks.same(place, x)                                            # what is registered as a tree later is none
        terms.append(f"len({checks.name(_pytree._nodes)}) == {len(_pytree._nodes)}")
    else:
        return False
    return True


def _unknown(args, kwargs):
    """Stands for a function that `fitting` cannot write."""
    return None


def _casts(interpreter):
    """What the autocasts around a call do, as part of a key; None where another interpreter is at work."""
    found = []
    while interpreter is not None:
        if type(interpreter) is _Caster:
            found += interpreter.kind, interpreter.dtype, interpreter.caches, interpreter.works()
        elif not interpreter.looks_on:
            return None
        interpreter = interpreter.outer
    return found


class _Casts:
    """Equal to every interpreter around which and inside of which the same is cast as by this one."""

    __slots__ = ("casts",)

    def __init__(self, interpreter):
        self.casts = _casts(interpreter)

    def __eq__(self, other):
        return other is not None and self.casts is not None and _casts(other) == self.casts


class _Facts:
    """What makes a container besides its children, of any type, as part of a key."""

    __slots__ = ("facts",)

    def __init__(self, facts):
        self.facts = facts

    def __eq__(self, other):
        return type(other) is _Facts and self.facts == other.facts

    def __hash__(self):
        return 0


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:                                                   # not bound yet
        return None


def host_draws():
    """The place of the host's own random number generators."""
    kind, numbers, *place = np.random.get_state()
    return random.getstate(), kind, numbers.tobytes(), place
