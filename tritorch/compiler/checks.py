"""Comparisons in a row, written out as a function of Python source: what is compared before every replay is so much that a loop over it
takes as long as all the rest of the replay."""
from __future__ import annotations

import functools
import keyword
from collections import OrderedDict, deque
from operator import attrgetter
from types import CellType, MappingProxyType

from tritorch.compiler.contents import keys_and_values
from tritorch.compiler.reads import _given, _kinds, _programs

MANY = 2000                                                              # comparisons in one function: Python takes 20 µs to compile each
ABSENT = LookupError, AttributeError, ValueError
OF_ALL = {_programs: ["{}.__code__"], _given: ["{}.__defaults__", "{}.__kwdefaults__"], _kinds: ["type({})"]}


class Checks:
    """Expressions that must all be true, and the objects in them by the names that they have there."""

    def __init__(self):
        self.terms, self.names, self.objects = [], {}, []

    def name(self, x):
        """What an object is called; it lives as long as the function."""
        if id(x) not in self.names:
            self.names[id(x)] = f"_{len(self.names)}"
            self.objects.append(x)
        return self.names[id(x)]

    def same(self, expression, x):
        """It must give the object x."""
        self.terms.append(f"{expression} is {self.name(x)}")

    def function(self, arguments="", result="True"):
        """What gives `result` where everything is true, and None otherwise."""
        scope = {}
        exec(f"def make(ABSENT, {', '.join(self.names.values())}):\n"  # variables of a closure are the quickest to read
             f" def check({arguments}):\n"
             f"  try:\n   return {result} if {' and '.join(self.terms) or True} else None\n"
             f"  except ABSENT:\n   return None\n"
             f" return check", scope)
        return scope.pop("make")(ABSENT, *self.objects)


def unchanged(reads, entries):
    """A function that says of `entries` of Reads whether they hold the same objects as before. Others may be as good: `reads.changed`
    tells."""
    checks, rest = Checks(), []
    for entry in entries:
        before = len(checks.terms)
        if before > MANY or not _write(checks, *entry):
            del checks.terms[before:]
            rest.append(entry)
    if rest:
        checks.terms.append(f"not {checks.name(functools.partial(reads.changed, rest))}()")
    return checks.function()


def _write(checks, container, get, wanted, size, owner, keys):
    """Write an entry down; False where only `get` knows what to compare."""
    c, kind = checks.name(container), type(container)
    if size is not None:
        checks.terms.append(f"len({c}) == {size}")
    if keys is not None:
        if isinstance(get, attrgetter):
            if not all(key.isascii() and key.isidentifier() and not keyword.iskeyword(key) for key in keys):
                return False
            places = [f"{c}.{key}" for key in keys]
        else:
            places = [f"{c}[{repr(key) if type(key) is str else checks.name(key)}]" for key in keys]
    elif get is keys_and_values and kind in (dict, OrderedDict, MappingProxyType) and all(type(key) is str for key in container):
        names, wanted = wanted[:len(wanted) // 2], wanted[len(wanted) // 2:]
        checks.terms.append(f"[*{c}] == {checks.name([*names])}")
        places = [f"{c}[{key!r}]" for key in names]
    elif get is tuple and kind in (list, deque):
        checks.terms.append(f"len({c}) == {len(wanted)}")
        places = [f"{c}[{k}]" for k in range(len(wanted))]
    elif get in OF_ALL:
        places = [place.format(checks.name(x)) for place in OF_ALL[get] for x in container]
    elif kind is CellType and wanted:
        places = [f"{c}.cell_contents"]
    else:
        return False
    for place, x in zip(places, wanted):
        checks.same(place, x)
    return True
