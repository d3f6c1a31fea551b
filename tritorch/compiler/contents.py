"""What is in containers and behind iterators, in a form that tells whether it is what it was."""
from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import KeysView
from contextvars import ContextVar
from itertools import count, zip_longest
from operator import attrgetter, itemgetter, length_hint
from types import CellType, GeneratorType, MappingProxyType

import numpy as np

from tritorch.compiler.watch import CONSTANTS

LONG = 64                                                                # what has more elements is data
DRAWN = random.Random, np.random.Generator, np.random.RandomState


def keys_and_values(mapping):
    return (*mapping, *mapping.values())


def content(cell):
    try:
        return (cell.cell_contents,)
    except ValueError:                                                   # not bound yet
        return ()


def frozen(x):
    return (frozenset(x),)


def raw(x):
    return getattr(x, "dtype", None), bytes(x)


def is_short(x):
    """Whether something is a memory of numbers, such as an array, and has not many."""
    try:
        with memoryview(x) as memory:
            return memory.nbytes <= 64 * LONG
    except (TypeError, ValueError, BufferError):
        return False


def current(variable):
    return (variable.get(None),)


def goes_on(container, now, whole):
    """Whether the call leaves a container otherwise each time: with more or fewer elements, or with some in other places."""
    if isinstance(container, (dict, MappingProxyType)):
        return not alike(now[:len(now) // 2], whole[:len(whole) // 2])
    if isinstance(container, (list, deque)):
        return len(now) != len(whole) or any(a is not b and any(a is c for c in whole) for a, b in zip(now, whole))
    return not isinstance(container, (CellType, ContextVar, KeysView))


def counts(now, whole):
    """Whether only numbers and the like were put behind what was there."""
    return all(a is b or all(map(is_plain, a if type(a) is tuple else [a])) for a, b in zip_longest(now, whole))


def one_by_one(container, whole):
    """(getter, values by key) of a container in which the call changed something."""
    if isinstance(container, CellType):
        return attrgetter, dict(zip(["cell_contents"], whole))
    if isinstance(container, (dict, MappingProxyType)):
        return itemgetter, dict(zip(whole[:len(whole) // 2], whole[len(whole) // 2:]))
    return itemgetter, dict(enumerate(whole)) if isinstance(container, (list, deque)) else {}


def progress(x):
    """How far something is that moves on as it is asked: a generator of random numbers, an iterator. None where nobody can tell."""
    if isinstance(x, DRAWN):
        return pickle.dumps(x)
    if isinstance(x, GeneratorType):
        frame = x.gi_frame
        return () if frame is None else (frame.f_lasti, {n: v if is_plain(v) else id(v) for n, v in frame.f_locals.items()})
    if isinstance(x, count):
        return repr(x)
    hint = length_hint(x, -1)
    return None if hint < 0 and type(x).__module__ in ("builtins", "itertools") else hint


def is_plain(value):
    return value.__class__ in CONSTANTS or isinstance(value, (np.generic, frozenset))


def same(a, b):
    """Whether a value is what it was: 0.0 is not -0.0, nor 1."""
    return a is b or a.__class__ is b.__class__ and is_plain(a) and (a == b != 0 or repr(a) == repr(b))


def alike(now, then):
    return len(now) == len(then) and all(map(same, now, then))
