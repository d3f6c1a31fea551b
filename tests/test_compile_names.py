"""tritorch.compile: what code reads without naming it where it is, in containers, through methods of classes, under made-up names."""
import array
import collections
import contextvars
import ctypes
import functools
import gc
import itertools
import operator
import os
import queue
import random
import sys
import threading
import types
import warnings
import weakref
from dataclasses import asdict, dataclass

import numpy as np
import pytest

import tritorch as torch
from tritorch import nn


class Attributes(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


class Box:
    """A number that only methods of the class read."""

    kind = 1.0

    def __init__(self):
        self.hidden, self.stored = 1.0, [1.0]

    @property
    def beta(self):
        return self.hidden

    @staticmethod
    def constant():
        return CONSTANT

    @classmethod
    def shared(cls):
        return cls.kind

    def __call__(self):
        return self.hidden

    def __getitem__(self, key):
        return self.stored[key]

    def __float__(self):
        return float(self.hidden)

    def __enter__(self):
        return self.hidden

    def __exit__(self, *error):
        pass


@dataclass
class Config:
    beta: float = 1.0


class Past(nn.Module):
    """Assigns past Module.__setattr__."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def forward(self, x):
        return x * self.z


class Twice(nn.Identity):
    def forward(self, x):
        return x * 2


class Meta(type):
    meta = 1.0


class Plain(metaclass=Meta):
    kind = 1.0


class Double(Plain):
    kind = 2.0


def hidden():
    """Objects that only closures hold."""
    values = types.SimpleNamespace(only_here=1.0, only_there=1.0)

    @functools.singledispatch
    def cases(x):
        return values.only_here

    class Missing(dict):
        def __missing__(self, key):
            return values.only_there

    return values, cases, Missing


HIDDEN, CASES, Missing = hidden()


def plain(x, k=1.0):
    return x * k


def keyword(x, *, k=1.0):
    return x * k


def other(x):
    return x * 2


def told(x):
    return x * told.scale


def called(x):
    return FUNCTION(x)


def found(x):
    try:
        return x * LATER                                                 # noqa: F821
    except NameError:
        return x * 7


def method(self, x):
    return x * 1.0


def other_method(self, x):
    return x * 2


CONSTANT, FUNCTION = 1.0, plain
told.scale = 1.0


def within(box, x):
    with box as k:
        return x * k


def matched(config, x):
    match config:
        case Config(beta):
            return x * beta


def imported(x):
    import settings_of_a_test
    return x * settings_of_a_test.value


def keys(options, names, x):
    for name in names:
        x = x * options[name + ""]
    return x


def space(**values):
    return types.SimpleNamespace(**values)


def put(key):
    return lambda holder, v: holder.__setitem__(key, v)


def attribute(name):
    return lambda holder, v: setattr(holder, name, v)


def refill(holder, v):
    holder.clear()
    holder.extend([1.0] if v == 1 else [1.0, v])


CHAINED = collections.ChainMap({}, {"c": 1.0})
WAYS = {
    "entries of a dict": ({"a": 1.0}, lambda d, x: x * sum(d.values()), put("a")),
    "a key that is put together": ({"a": 1.0}, lambda d, x: keys(d, ["a"], x), put("a")),
    "a key that is a tuple": ({("a", 1): 1.0}, lambda d, x: x * d["a", 1], put(("a", 1))),
    "a number in a large dict": (dict.fromkeys(range(-1, 99), 1.0), lambda d, x: x * (d[1] * d[7]), put(7)),
    "a negative number there": (dict.fromkeys(range(-1, 99), 1.0), lambda d, x: x * (d[1] * d[-1]), put(-1)),
    "keywords": ({"k": 1.0}, lambda d, x: plain(x, **d), put("k")),
    "a dict with attributes": (Attributes(beta=1.0), lambda d, x: x * d.beta, put("beta")),
    "a dict of a class of its own": (collections.UserDict(b=1.0), lambda d, x: x * d["b"], put("b")),
    "one dict behind another": (CHAINED, lambda d, x: x * d["c"], lambda d, v: d.maps[1].update(c=v)),
    "a view of a dict": (CHAINED.maps[1], lambda d, x: x * types.MappingProxyType(d)["c"], put("c")),
    "the length of a list": ([1.0], lambda values, x: x * len(values), refill),
    "what a list has more": ([1.0], lambda values, x: x * sum(values), refill),
    "a deque": (collections.deque([1.0]), lambda values, x: x * values[-1], refill),
    "a set": (set(), lambda names, x: x * (2 if "a" in names else 1), lambda names, v: names.add("a") if v != 1 else names.clear()),
    "a short array": (np.ones(2), lambda values, x: x * float(values[0]), put(0)),
    "bytes": (bytearray(b"\1"), lambda values, x: x * values[0], lambda values, v: values.__setitem__(0, int(v))),
    "getattr": (space(b=1.0), lambda s, x: x * getattr(s, "b", 1.0), attribute("b")),
    "getattr with a default": (space(), lambda s, x: x * getattr(s, "b", 1.0),
                               lambda s, v: setattr(s, "b", v) if v != 1 else vars(s).clear()),
    "getattr of a name that is put together": (space(b0=1.0), lambda s, x: x * getattr(s, f"b{len(x.shape) - 1}"), attribute("b0")),
    "getattr of a name that is given": (space(b0=1.0), lambda s, x: [x := x * getattr(s, name) for name in dir(s) if name[0] != "_"][-1],
                                        attribute("b0")),
    "vars": (space(b=1.0), lambda s, x: x * sum(vars(s).values()), attribute("b")),
    "all fields": (Config(), lambda c, x: x * sum(asdict(c).values()), attribute("beta")),
    "a place in a pattern": (Config(), matched, attribute("beta")),
    "a property": (Box(), lambda b, x: x * b.beta, attribute("hidden")),
    "a property behind an operator": (Box(), lambda b, x: (x + 0) * b.beta, attribute("hidden")),
    "an argument of a partial": (functools.partial(lambda s, x: x * s.b, space(b=1.0)), lambda p, x: p(x),
                                 lambda p, v: setattr(p.args[0], "b", v)),
    "a static method": (Box(), lambda b, x: x * b.constant(), lambda b, v: globals().update(CONSTANT=v)),
    "a class method": (Box(), lambda b, x: x * b.shared(), lambda b, v: setattr(Box, "kind", v)),
    "a call of an object": (Box(), lambda b, x: x * b(), attribute("hidden")),
    "an item of an object": (Box(), lambda b, x: x * b[0], lambda b, v: setattr(b, "stored", [v])),
    "a number from an object": (Box(), lambda b, x: x * float(b), attribute("hidden")),
    "a context": (Box(), within, attribute("hidden")),
    "an object behind a weak reference": (BOX := Box(), lambda b, x: x * WEAK().hidden, attribute("hidden")),
    "an attribute of a function": (told, lambda f, x: f(x), attribute("scale")),
    "a function that is defined anew": (None, lambda _, x: called(x), lambda _, v: globals().update(FUNCTION=plain if v == 1 else other)),
    "code that is loaded anew": (method, lambda f, x: f(None, x), lambda f, v: setattr(f, "__code__", (ONE if v == 1 else TWO))),
    "a method that is replaced": (Box(), lambda b, x: type(b).scaled(b, x),
                                  lambda b, v: setattr(Box, "scaled", other_method if v != 1 else lambda self, x: x * 1.0)),
    "a global that was not there": (None, lambda _, x: found(x),
                                    lambda _, v: globals().update(LATER=v) if v != 1 else globals().pop("LATER", 0)),
    "a module that is imported there": (types.ModuleType("settings_of_a_test"), lambda m, x: imported(x), attribute("value")),
    "a context variable": (contextvars.ContextVar("beta", default=1.0), lambda c, x: x * c.get(), lambda c, v: c.set(v)),
    "a default that is another": (plain, lambda f, x: f(x), lambda f, v: setattr(f, "__defaults__", (v,))),
    "a default of a keyword": (keyword, lambda f, x: f(x), lambda f, v: setattr(f, "__kwdefaults__", {"k": v})),
    "the class of an object": (Plain(), lambda p, x: x * p.kind, lambda p, v: setattr(p, "__class__", Plain if v == 1 else Double)),
    "the class of a module": (nn.Identity(), lambda m, x: m(x) * 1, lambda m, v: setattr(m, "__class__", nn.Identity if v == 1 else Twice)),
    "an attribute of a class's class": (Plain, lambda p, x: x * p.meta, lambda p, v: setattr(type(p), "meta", v)),
    "a getter of attributes": (space(a=space(b=1.0)), lambda s, x: x * GET(s), lambda s, v: setattr(s.a, "b", v)),
    "a getter of items": ({**dict.fromkeys(range(100)), "far": 1.0}, lambda d, x: x * ITEM(d), put("far")),
    "a caller of methods": (Box(), lambda b, x: x * CALLER(b), attribute("hidden")),
    "a method of a dict": (BOUND := {"a": 1.0}, lambda d, x: x * LOOKUP("a"), put("a")),
    "the environment": (os.environ, lambda e, x: x * float(os.getenv("TEST_BETA")), lambda e, v: e.update(TEST_BETA=str(v))),
    "the environment by itself": (os.environ, lambda e, x: x * float(e["TEST_BETA"]), lambda e, v: e.update(TEST_BETA=str(v))),
    "a function with cases": (space(b=1.0), lambda s, x: x * CASES(1), lambda s, v: setattr(HIDDEN, "only_here", v)),
    "an event": (threading.Event(), lambda e, x: x * (2 if e.is_set() else 1), lambda e, v: e.set() if v != 1 else e.clear()),
    "the length of a queue": (queue.Queue(), lambda q, x: x * (1 + q.qsize()), lambda q, v: q.put(1) if v != 1 else q.queue.clear()),
    "memory of ctypes": (ctypes.c_double(1.0), lambda c, x: x * c.value, attribute("value")),
    "an array of Python's": (array.array("d", [1.0]), lambda a, x: x * a[0], put(0)),
    "a longer array": (np.ones(400), lambda a, x: x * float(a[300]), put(300)),
    "globals by their names": (None, lambda _, x: x * globals()["SOMEWHERE"], lambda _, v: globals().update(SOMEWHERE=v)),
    "a name that is given to __getattribute__": (space(b=1.0), lambda s, x: x * object.__getattribute__(s, NAMES[0]), attribute("b")),
    "what a missing key gives": (Missing(), lambda d, x: x * d["q"], lambda d, v: setattr(HIDDEN, "only_there", v)),
    "a module that assigns past Module": (Past(), lambda m, x: m(x), attribute("z")),
    "the sign of zero": (space(b=1.0), lambda s, x: x * s.b, lambda s, v: setattr(s, "b", 0.0 if v == 1 else -0.0)),
}
GET, ITEM, CALLER = operator.attrgetter("a.b"), operator.itemgetter("far"), operator.methodcaller("__call__")
LOOKUP, NAMES = BOUND.get, ["b"]
ONE, TWO, WEAK = method.__code__, other_method.__code__, weakref.ref(BOX)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_without_a_name(cuda, way, monkeypatch):
    holder, function, assign = WAYS[way]
    monkeypatch.setenv("TEST_BETA", "1.0")
    if isinstance(holder, types.ModuleType):
        holder.__file__ = __file__
        monkeypatch.setitem(sys.modules, holder.__name__, holder)
    assign(holder, 1.0)
    step, x = torch.compile(lambda x: function(holder, x)), torch.ones(2, device=cuda)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 2.0, 1.0):
            assign(holder, value)
            expected = str(function(holder, x).tolist())
            assert {str(step(x).tolist()) for _ in range(5)} == {expected}
    assert "is replayed" in step.report()
    assign(holder, 1.0)


def generated():
    for k in range(100):
        yield 1.0 if k < 6 else 2.0


MOVING = {
    "random.Random": (random.Random, lambda r: r.random() < 0.2), "Generator": (np.random.default_rng, lambda r: r.random() < 0.2),
    "RandomState": (np.random.RandomState, lambda r: r.rand() < 0.2), "list": (lambda _: iter([1] * 6 + [2] * 20), next),
    "count": (lambda _: itertools.count(), lambda c: next(c) > 6), "cycle": (lambda _: itertools.cycle([1] * 6 + [2]), next),
    "generator": (lambda _: generated(), next),
}


@pytest.mark.parametrize("kind", MOVING)
def test_what_goes_on_by_itself_stays_eager(cuda, kind):
    """Random numbers of a generator of one's own, and iterators: a replay would not go on with them."""
    make, draw = MOVING[kind]

    def calls(compile):
        moving = make(0)
        step = compile(lambda x: x * (1 + draw(moving)))
        return [step(torch.ones(2, device=cuda)).tolist() for _ in range(25)]

    with pytest.warns(UserWarning, match="random numbers that Python or numpy draws|that goes on in every call"):
        assert calls(torch.compile) == calls(lambda function: function)


def test_a_number_that_the_call_changes_is_told(cuda):
    counter = space(calls=0)

    @torch.compile
    def step(x):
        counter.calls += 1
        return x * 2

    with pytest.warns(UserWarning, match="changes 'calls' of SimpleNamespace, which calls that are replayed leave as it is") as seen:
        for _ in range(8):
            step(torch.ones(2, device=cuda))
    assert len(seen) == 1 and "is replayed" in step.report()


def test_a_compiled_function_inside_of_another(cuda):
    settings = space(k=1.0)
    inner = torch.compile(lambda x: x * settings.k)
    step, x = torch.compile(lambda x: inner(x) + 1), torch.ones(2, device=cuda)
    for value in (1.0, 2.0):
        settings.k = value
        assert [step(x).tolist()[0] for _ in range(5)] == [value + 1] * 5


def test_a_profiler_keeps_its_place(cuda):
    """Where somebody else is told of calls, functions on the way to operators are looked at, and what these name."""
    settings, seen = space(k=1.0), []

    def scaled(x):
        return x * settings.k

    step, x = torch.compile(lambda x: scaled(x)), torch.ones(2, device=cuda)
    sys.setprofile(lambda frame, event, what: seen.append(event))
    try:
        found = [step(x).tolist()[0] for _ in range(5)]
        settings.k = 2.0
        found += [step(x).tolist()[0] for _ in range(5)]
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert seen and found == [1.0] * 5 + [2.0] * 5
    assert [torch.compile(scaled)(x).tolist() for _ in range(3)] and sys.getprofile() is None


collected, factor = {"count": 0}, 3.0


class Collector:
    def __call__(self, phase, info):
        collected["count"] += 1
        self.tell()

    def tell(self):
        collected[len(collected)] = "collected"


def test_what_runs_when_memory_is_collected_is_not_the_step_s(cuda, recwarn):
    gc.callbacks.append(collector := Collector())
    x = torch.ones(2, device=cuda)

    @torch.compile
    def step(x):
        gc.collect()
        return x * factor

    try:
        assert all(step(x).tolist() == [3, 3] for _ in range(5))
        assert collected["count"] > 0 and "is replayed" in step.report() and not recwarn.list
    finally:
        gc.callbacks.remove(collector)
