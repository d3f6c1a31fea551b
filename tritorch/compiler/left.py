"""What a call leaves behind: the attributes, entries of dicts and lists, and variables that it assigned. A replay puts back there what the
captured call left, wherever somebody else has assigned them since.
"""
from __future__ import annotations

from collections import deque
from types import CellType, CodeType, FunctionType, ModuleType
from typing import NamedTuple

from tritorch.compiler.checks import MANY, Checks
from tritorch.compiler.contents import LONG, counts, is_plain, same
from tritorch.compiler.reads import CLOSED, TOLD, called, slots_of
from tritorch.compiler.whose import is_installed, is_ours, is_pythons
from tritorch.cuda.allocator import Owner
from tritorch.nn.module import Module
from tritorch.nn.registry import Registry
from tritorch.tensor import Leaf, Tensor, swaps

GONE, ALL = object(), object()                                           # nothing is there; the place is all of a container
ROWS, ENTRIES = (list, deque), (dict, list, deque)


class Place(NamedTuple):
    """`value` was left at `key` of a container, or as an attribute of a cell, a class or an object with slots. `owner` is what a user calls
    the container."""

    container: object
    key: object
    value: object
    owner: object

    def put(self, value):
        """As an assignment would, but for what the user's own `__setattr__` does besides: that has places of its own."""
        container, key = self.container, self.key
        if key is ALL:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(value)
        elif isinstance(container, ENTRIES):
            if value is not GONE:
                container[key] = value
            elif isinstance(container, dict):
                container.pop(key, None)
            if isinstance(self.owner, Module) and key in TOLD:
                swaps[0] += 1
        else:
            how = type if isinstance(container, type) else object
            how.__setattr__(container, key, value) if value is not GONE else how.__delattr__(container, key)

    def has_history(self):
        return isinstance(self.value, Tensor) and self.value.node is not None and type(self.value.node) is not Leaf

    def called(self):
        return called(self.owner, None if self.key is ALL else self.key)


class Before:
    """What was at all places, before a call, that it may assign: in everything that Reads found."""

    def __init__(self, reads):
        self.seen = reads.seen                                           # while these live their ids are theirs alone
        found = [(space, code) for code, space in reads.codes.items()] + [shelf for x in reads.seen.values() for shelf in _shelves(x)]
        unique = {id(container): (container, owner) for container, owner in found}
        self.shelves = [(container, owner, _contents(container)) for container, owner in unique.values()]

    def numbers(self):
        """The numbers and the like at these places."""
        short = [(id(c), entries) for c, _, entries in self.shelves if not isinstance(c, ROWS) or len(entries) <= LONG]
        return {(container, key): value for container, entries in short for key, value in entries.items() if is_plain(value)}

    def assigned(self, usual):
        """(places where a call left something else, lists among them with their sizes, why that cannot be repeated). A number is repeated
        where an equal call left it too, as `usual` has it: others go on from call to call."""
        places, lists = {}, {}
        for container, owner, before in self.shelves:
            now = _contents(container)
            if isinstance(container, ROWS) and len(now) != len(before):
                if not counts([*now.values()], [*before.values()]):
                    return [], [], f"a {type(container).__name__} that goes on in every call"
                continue
            for key in {**before, **now}:
                value = now.get(key, GONE)
                number = is_plain(value) and not same(value, usual.get((id(container), key), GONE))
                if value is before.get(key, GONE) or number or _is_others(container, owner, key):
                    continue
                shelf = owner._buffers if isinstance(owner, Module) and key in owner._buffers else container
                places[id(shelf), key] = Place(shelf, key, value, owner)
                self.look_inside(value, owner, places)
                if isinstance(container, ROWS):
                    lists[id(container)] = container, len(now)
        return [*places.values()], [*lists.values()], None

    def look_inside(self, value, owner, places):
        """The places in what the call made anew: they hold what it put there, and nothing else."""
        left = [value]
        while left:
            x = left.pop()
            if isinstance(x, tuple):
                left += x
            elif id(x) not in self.seen and not isinstance(x, (Tensor, Module, FunctionType, ModuleType, type)):
                for container, _ in _shelves(x):
                    entries = _contents(container)
                    whole = isinstance(container, ENTRIES)
                    now = entries if isinstance(container, dict) else [*entries.values()]
                    for key, v in [(ALL, now)] if whole else entries.items():
                        if (id(container), key) not in places:
                            places[id(container), key] = Place(container, key, v, owner)
                            left += entries.values() if whole else [v]


class Left:
    """The places that a recording's call assigned. `inputs` are the copies of arguments that the graph reads: a place that holds one is
    given the caller's own tensor. Those in `made` get a new tensor in every call."""

    def __init__(self, places, inputs):
        known, self.places = {id(x): k for k, x in enumerate(inputs)}, places
        self.given = [(place, known[id(place.value)]) for place in places if id(place.value) in known]
        self.fixed, self.made = [place for place in places if id(place.value) not in known], []
        self.holds = self._check()

    def _check(self):
        """A function that tells whether the fixed places are as they were left."""
        checks = Checks()
        for container, key, value, _ in self.fixed:
            c = checks.name(container)
            if key is ALL:
                checks.terms.append(f"len({c}) == {len(value)}")
                for k, x in value.items() if isinstance(value, dict) else enumerate(value):
                    checks.same(f"{c}[{checks.name(k)}]", x)
            elif not isinstance(container, ENTRIES):
                checks.same(f"{checks.name(_attribute)}({c}, {checks.name(key)})", value)
            elif value is GONE:
                checks.terms.append(f"{checks.name(key)} not in {c}")
            else:
                checks.same(f"{c}[{repr(key) if type(key) is str else checks.name(key)}]", value)
        return checks.function() if len(checks.terms) <= MANY else bool

    def buffers(self):
        """The names of buffers that are replaced, by the module's id."""
        found: dict = {}
        for container, key, _, owner in (*self.fixed, *[place for place, _ in self.given]):
            if isinstance(container, Registry):
                found.setdefault(id(owner), set()).add(key)
        return found

    def with_history(self, capture):
        """The tensors of the capture from which a backward pass may start: every call leaves one of its own, as it returns its results."""
        mine = {id(p) for p in self.fixed if p.has_history() and p.key is not ALL and capture.owns(p.value.storage.owner)}
        self.made = [place for place in self.fixed if id(place) in mine]
        self.fixed = [place for place in self.fixed if id(place) not in mine]
        self.holds = self._check()
        return [place.value for place in self.made]

    def put(self, given, made):
        """Leave there what the call would have."""
        if not self.holds():
            for place in self.fixed:
                place.put(place.value)
        for place, k in self.given:
            place.put(given[k])
        for place, x in zip(self.made, made):
            place.put(x)

    def save(self, other, private):
        """Before another recording is replayed, in the memory of which tensors may lie that are here: have copies in the places to which
        `other`, what that one leaves, brings nothing. `private` is the graphs' pool."""
        theirs = {(id(place.container), place.key) for place in (other.places if other is not None else ())}
        for place in self.fixed:
            if (id(place.container), place.key) not in theirs:
                parts = _contents(place.container) if place.key is ALL else {place.key: place.value}
                for key, value in parts.items():
                    copy = moved_out(value, private)
                    if copy is not value and _contents(place.container).get(key, GONE) is value:
                        Place(place.container, key, value, place.owner).put(copy)


def _shelves(x):
    """(container, what a user calls it) for all that can be assigned in an object."""
    kind = type(x)
    if isinstance(x, ENTRIES) and not isinstance(x, CLOSED):
        yield x, x
    elif isinstance(x, FunctionType):
        yield vars(x), x
        yield from [(cell, x) for cell in x.__closure__ or ()]
    elif isinstance(x, type):
        if not is_pythons(x.__module__):
            yield x, x
    elif isinstance(x, Tensor):
        yield vars(x), x
    elif isinstance(x, ModuleType):
        if not is_installed(getattr(x, "__file__", None)):
            yield vars(x), x
    elif isinstance(x, Module) or not is_ours(kind):
        if hasattr(x, "__dict__"):
            yield vars(x), x
        if slots_of(kind):
            yield x, x


def _contents(container):
    """What is in there, by key."""
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, ROWS):
        return dict(enumerate(container))
    names = vars(container) if isinstance(container, type) else ["cell_contents"] if isinstance(container, CellType) else None
    names = slots_of(type(container)) if names is None else names
    return {name: value for name in names if (value := _attribute(container, name)) is not GONE}


def moved_out(x, private):
    """A tensor in the memory of a pool, or a tuple of some, outside of it."""
    if type(x) is tuple:
        copies = tuple([moved_out(item, private) for item in x])
        return x if all(a is b for a, b in zip(copies, x)) else copies
    owner = x.storage.owner if isinstance(x, Tensor) else None
    return x.detach().clone() if isinstance(owner, Owner) and owner.span.pool.private is private else x


def _attribute(x, name):
    """One that is set on x itself."""
    if isinstance(x, type):
        return vars(x).get(name, GONE)
    try:
        return getattr(x, name)
    except (AttributeError, ValueError):                                 # a slot or a cell that is empty
        return GONE


def _is_others(container, owner, key):
    """Whether somebody else sees to a place: Python, or a look at the members of modules."""
    if isinstance(owner, Module) and (key in owner._parameters or key in owner._modules):
        return True
    if isinstance(owner, Tensor):
        return container is vars(owner) and key.startswith("_")
    named = isinstance(owner, (type, ModuleType, FunctionType, CodeType))
    return named and type(key) is str and key.startswith("__") and key.endswith("__")
