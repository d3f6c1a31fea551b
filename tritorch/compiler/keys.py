"""What Python sees of a call: calls with equal keys do the same with other numbers in their tensors."""
from __future__ import annotations

import random
import types

import numpy as np

from tritorch.amp.autocast_mode import _Caster
from tritorch.autograd.modes import state
from tritorch.compiler.containers import flatten, is_input, parts
from tritorch.compiler.names import NONE, names
from tritorch.compiler.watch import CONSTANTS
from tritorch.cuda.device import current_device
from tritorch.device import _default
from tritorch.dtype import get_default_dtype
from tritorch.nn.module import Module
from tritorch.ops.attention_backends import backends
from tritorch.precision import get_float32_matmul_precision


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
        looked for, or saved tensors pass through somebody's hooks."""
        given = []
        key = [(v.__class__, _plain(v)) if v.__class__ in CONSTANTS else id(v) for v in self.values()]
        key += state.grad, state.inference, get_default_dtype(), _default.stack, get_float32_matmul_precision(), current_device()
        key.append(backends.allowed)
        _describe(args, given, key)
        if kwargs:
            _describe((kwargs,), given, key)
        if state.anomaly is not None or state.saved_hooks:
            return given, None
        interpreter = state.interpreter
        while interpreter is not None:
            if type(interpreter) is _Caster:
                key += interpreter.kind, interpreter.dtype, interpreter.caches, interpreter.works()
            elif not interpreter.looks_on:
                return given, None
            interpreter = interpreter.outer
        return given, tuple(key)

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
            key.append((x.shape, x.strides, x.dtype, x.storage.device, x.requires_grad))
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
