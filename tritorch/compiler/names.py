"""What code reads, by its bytecode."""
from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

GETTING = {"getattr", "__getattribute__", "getattr_static"}
ASKING, BARE = {*GETTING, "hasattr", "attrgetter"}, {"vars", "__dict__", "asdict", "astuple", "fields"}
OPCODES = {"LOAD_GLOBAL": 0, "LOAD_NAME": 0, "LOAD_ATTR": 1, "LOAD_METHOD": 1, "LOAD_SUPER_ATTR": 1, "IMPORT_FROM": 1, "IMPORT_NAME": 2,
           "STORE_ATTR": 3, "STORE_GLOBAL": 4}
NUMBERS = "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"
CONSTANTS = "LOAD_CONST", *NUMBERS
READING = "LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_DEREF"
SETTING = "STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_DEREF"
WHOLES = {"update", "setdefault", "items", "values", "get"}              # methods by which a group is read or set without a key in brackets
ANY = object()                                                           # an option that is computed


class Names(NamedTuple):
    """What a code object and those inside of it read: globals by name, attributes, modules that it imports; attributes and globals that
    it sets; constants that may be keys of a container; options of optimizers that it may assign (ANY: of a name that is computed, or
    read so); attributes that there need not be; and whether it goes through attributes without naming them ({True})."""

    globals: frozenset
    attributes: frozenset
    modules: frozenset
    stored: frozenset
    rebound: frozenset
    items: frozenset
    assigned: frozenset
    asked: frozenset
    whole: frozenset


NONE = Names(*[frozenset()] * 9)


@functools.lru_cache(maxsize=4096)
def names(code):
    constants, assigned, whole, asked, key, made, before = list(_constants(code.co_consts)), [], [], 0, None, False, ""
    found: tuple = [], [], [], [], []
    for step in dis.get_instructions(code):
        if step.opname in NUMBERS and type(step.argval) is int:
            constants.append(step.argval)                                # Python 3.14 has no such numbers in co_consts
        elif step.opname in OPCODES:
            found[OPCODES[step.opname]].append(step.argval)
            asked = 1 if step.argval in GETTING else asked
        elif asked == 1 and step.opname.startswith("CALL") or asked and _is_sum(step) or step.opname == "MATCH_CLASS":
            whole.append(True)                                           # getattr(x, name), getattr(x, "beta" + k), case Config(beta)
        elif step.opname == "BUILD_STRING":
            made = True
        elif step.opname == "STORE_SUBSCR" and (key is not None or before not in CONSTANTS):
            assigned.append(ANY if key is None else key)
        key = step.argval if step.opname == "LOAD_CONST" and type(step.argval) is str else None
        before = step.opname
        asked = 0 if before.startswith("CALL") else 2 if asked and key is not None else asked
    named = {*found[0], *found[1]}
    assigned += [ANY] if named & WHOLES else []
    strings = [c for c in constants if type(c) is str] if named & ASKING else []
    found[1].extend(strings)
    if "globals" in named:
        found[0].extend([c for c in constants if type(c) is str])
    if named & BARE or made and named & GETTING:                         # getattr(x, f"beta{k}")
        whole.append(True)
    inner = [names(c) for c in code.co_consts if isinstance(c, CodeType)]
    mine = *found, constants, assigned if "param_groups" in named else (), strings, whole
    return Names(*[frozenset(own).union(*theirs) for own, *theirs in zip(mine, *inner)])


@functools.lru_cache(maxsize=4096)
def steering(code):
    """(names and keys that a line sets by what they were before, those that another line reads): what is in both is a counter by which
    calls go one way or another."""
    lines, line, starts = {}, None, dict(dis.findlinestarts(code))
    for step in dis.get_instructions(code):
        line = starts.get(step.offset, line)
        lines.setdefault(line, []).append(step)
    counted, read = set(), set()
    for steps in lines.values():
        keys = {s.argval for s in steps if s.opname in CONSTANTS and type(s.argval) in (str, int)}
        reads = {s.argval for s in steps if s.opname in READING and "NULL" not in s.argrepr}             # a method is no number
        sets = {s.argval for s in steps if s.opname in SETTING}
        reads |= keys if "getattr" in {s.argval for s in steps} or any(map(_is_item, steps)) else set()
        sets |= keys if any(s.opname == "STORE_SUBSCR" for s in steps) else set()
        counted |= reads & sets
        read |= reads - sets
    for inner in [steering(c) for c in code.co_consts if isinstance(c, CodeType)]:
        counted, read = counted | inner[0], read | inner[1]
    return counted, read


def _is_item(step):
    return step.opname == "BINARY_SUBSCR" or step.opname == "BINARY_OP" and step.argrepr == "[]"


def _is_sum(step):
    return step.opname == "BINARY_ADD" or step.opname == "BINARY_OP" and step.argrepr != "[]"       # since Python 3.14 x[k] is one too


def _constants(values):
    """Strings and numbers among constants, in tuples of them too."""
    for c in values:
        if type(c) in (str, int):
            yield c
        elif type(c) in (tuple, frozenset):
            yield from _constants(c)
