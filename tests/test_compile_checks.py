"""What tritorch.compile looks at before a replay, written out as functions: they are never content where the general look is not."""
import contextlib
import gc
import types
import weakref
from collections import OrderedDict, deque
from operator import attrgetter, itemgetter

import pytest

import tritorch as torch
from tritorch.compiler.checks import unchanged
from tritorch.compiler.contents import content, frozen, keys_and_values
from tritorch.compiler.keys import Surroundings
from tritorch.compiler.reads import Reads, _given, _kinds, _nothing, _programs

SCALE = 2.0


def made(offset=1.0):
    def function(x, *rest, **options):
        return x * SCALE + offset

    return function


class Option:
    pass


OPTION, SHARED = Option(), torch.ones(4, 4)
CALLS = {
    "plain": lambda: ((torch.ones(2, 3),), {}),
    "other shape": lambda: ((torch.ones(3, 2),), {}),
    "other strides": lambda: ((torch.ones(3, 2).t(),), {}),
    "other dtype": lambda: ((torch.ones(2, 3, dtype=torch.float64),), {}),
    "wants a gradient": lambda: ((torch.ones(2, 3, requires_grad=True),), {}),
    "a view that wants a gradient": lambda: ((torch.ones(4, 3, requires_grad=True)[:2],), {}),
    "a view": lambda: ((torch.ones(4, 3)[:2],), {}),
    "a parameter": lambda: ((torch.nn.Parameter(SHARED),), {}),
    "two": lambda: ((torch.ones(2, 3), torch.ones(2, 3)), {}),
    "by keyword": lambda: ((torch.ones(2, 3),), {"y": torch.ones(2, 3)}),
    "by another keyword": lambda: ((torch.ones(2, 3),), {"z": torch.ones(2, 3)}),
    **{f"the constant {c!r}": lambda c=c: ((torch.ones(2, 3), c), {})
       for c in (1, True, 1.0, 0.0, -0.0, 1000, "1", b"1", None, torch.float32)},
    "a constant not a number": lambda: ((torch.ones(2, 3), float("nan")), {}),
    "an object": lambda: ((torch.ones(2, 3), OPTION), {}),
    "an object of that type": lambda: ((torch.ones(2, 3), Option()), {}),
    "a list": lambda: (([torch.ones(2, 3), 1],), {}),
    "a longer list": lambda: (([torch.ones(2, 3), 1, 1],), {}),
    "a tuple": lambda: (((torch.ones(2, 3), 1),), {}),
    "a dict": lambda: (({"a": torch.ones(2, 3), "b": 1},), {}),
    "a dict in another order": lambda: (({"b": 1, "a": torch.ones(2, 3)},), {}),
    "a dict of a class": lambda: ((OrderedDict(a=torch.ones(2, 3), b=1),), {}),
}
WRITTEN = set(CALLS) - {"a dict of a class"}


@pytest.mark.parametrize("first", CALLS)
def test_a_call_that_fits_has_the_key(first):
    surroundings = Surroundings(made())
    args, kwargs = CALLS[first]()
    given, key = surroundings.key(args, kwargs)
    fits, alike = surroundings.fitting(args, kwargs, None), 0
    found = fits(args, kwargs)
    assert first not in WRITTEN or [id(x) for x in found] == [id(x) for x in given]
    for call in CALLS.values():
        other = call()
        if fits(*other) is not None:
            alike += 1
            assert surroundings.key(*other)[1] == key
    odd = first.startswith(("a parameter", "a constant not", "an object of"))                # another object each time
    assert alike == 0 if odd or first not in WRITTEN else alike > 0


def _global(value):
    def change(function):
        globals()["SCALE"] = value
        return lambda: globals().update(SCALE=2.0)

    return change


def _mode(enter):
    def change(function):
        mode = enter()
        mode.__enter__()
        return lambda: mode.__exit__(None, None, None)

    return change


def _setting(setter, value, before):
    def change(function):
        setter(value)
        return lambda: setter(before)

    return change


@pytest.mark.parametrize("change", [
    _global(3.0), _global(2), lambda function: setattr(function.__closure__[0], "cell_contents", 2.0) or (lambda: None),
    _mode(torch.no_grad), _mode(torch.inference_mode), _mode(lambda: torch.device("cuda")), _mode(lambda: torch.autocast("cpu")),
    _mode(torch.dispatch.Interpreter), _mode(torch.autograd.detect_anomaly),
    _mode(lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)),
    _mode(lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
    _setting(torch.set_default_dtype, torch.float64, torch.float32), _setting(torch.set_float32_matmul_precision, "high", "highest")])
def test_nothing_fits_in_other_surroundings(change):
    function = made()
    surroundings, call = Surroundings(function), (torch.ones(2, 3),)
    fits = surroundings.fitting(call, {}, None)
    assert fits(call, {}) is not None
    undo = change(function)
    try:
        assert fits(call, {}) is None
    finally:
        undo()


class Onlooker(torch.dispatch.Interpreter):
    looks_on = True


def _cast(**options):
    return lambda: torch.autocast("cpu", **options)


AROUND = {"nothing": [], "autocast": [_cast()], "to float16": [_cast(dtype=torch.float16)], "without a cache": [_cast(cache_enabled=False)],
          "switched off": [_cast(enabled=False)], "switched off inside": [_cast(), _cast(enabled=False)], "twice": [_cast(), _cast()],
          "with an onlooker": [_cast(), Onlooker], "of an onlooker": [Onlooker, _cast()], "an onlooker": [Onlooker],
          "without gradients": [_cast(), torch.no_grad], "another interpreter": [_cast(), torch.dispatch.Interpreter]}


@pytest.mark.parametrize("first", AROUND)
def test_under_autocast_calls_fit_where_the_keys_are_equal(first):
    """Each `with autocast` has an interpreter of its own: 0.18 of the instructions of a replay under it went into the longer look."""
    surroundings, call, fits = Surroundings(made()), (torch.ones(2, 3),), []

    def looked(name):
        with contextlib.ExitStack() as stack:
            for enter in AROUND[name]:
                stack.enter_context(enter())
            fits.append(surroundings.fitting(call, {}, None))
            return surroundings.key(call, {})[1], fits[0](call, {}) is not None

    key, fit = looked(first)
    assert fit is (key is not None)
    assert looked(first) == (key, fit)
    for other in AROUND:
        found, fit = looked(other)
        assert not fit or found == key, other


def test_what_fits_does_not_keep_its_owner():
    space = {"step": Option()}
    function = types.FunctionType(compile("lambda x: step", "user.py", "eval").co_consts[0], space)
    surroundings, alive = Surroundings(function), weakref.ref(space["step"])
    fits = surroundings.fitting((torch.ones(2),), {}, space["step"])
    assert fits((torch.ones(2),), {}) is not None
    gc.disable()
    try:
        space["step"] = None
        assert alive() is None and fits((torch.ones(2),), {}) is None
    finally:
        gc.enable()


def _cell():
    held = [0]
    return (lambda: held).__closure__[0]


def _set(name, value, place=None):
    return lambda x: setattr(x if place is None else x[place], name, value)


PLACES = [                                                               # (container, what reads it or the keys, changes)
    (lambda: {"a": 1.5, "b": 2}, ["a"], [lambda d: d.update(a=2.5), lambda d: d.pop("a"), lambda d: d.update(a=True)]),
    (lambda: {"a": 1, 3: 2}, [3], [lambda d: d.update({3: True}), lambda d: d.clear()]),
    (lambda: types.SimpleNamespace(a=1), "a", [_set("a", 2), lambda x: delattr(x, "a")]),
    (lambda: {"a": 1, "b": 2}, keys_and_values,
     [lambda d: d.update(a=3), lambda d: d.update(c=3), lambda d: d.pop("b"), lambda d: d.update(a=d.pop("a"))]),
    (lambda: {1: "a", 2: "b"}, keys_and_values, [lambda d: d.update({1: "c"}), lambda d: d.pop(1) and d.update({True: "a"})]),
    (lambda: OrderedDict(a=1, b=2), keys_and_values, [lambda d: d.move_to_end("a")]),
    (lambda: [1, 2.0], tuple, [lambda x: x.append(1), lambda x: x.pop(), lambda x: x.reverse(), lambda x: x.__setitem__(0, True)]),
    (lambda: deque([1, 2]), tuple, [lambda x: x.append(1), lambda x: x.rotate()]),
    (lambda: {1, 2}, frozen, [lambda x: x.add(3)]),
    (_cell, content, [_set("cell_contents", [0]), lambda cell: delattr(cell, "cell_contents")]),
    (lambda: [made()], _programs, [lambda fs: setattr(fs[0], "__code__", fs[0].__code__.replace(co_name="other"))]),
    (lambda: [made(), lambda x=1: x], _given, [_set("__defaults__", (2,), 1), _set("__kwdefaults__", {}, 0)]),
    (lambda: [Option(), OPTION], _kinds, [_set("__class__", type("Other", (), {}), 0)]),
]


@pytest.mark.parametrize("make, get, changes", PLACES)
def test_places_that_change(make, get, changes):
    for change in changes:
        container = make()
        if isinstance(get, (list, str)):
            keys, getter = (get, itemgetter) if isinstance(get, list) else ([get], attrgetter)
            read = getter(*keys, keys[0])
            entry = container, read, read(container), None, container, keys
        else:
            entry = container, get, get(container), None, container, None
        reads = types.SimpleNamespace(changed=lambda entries: Reads.changed(None, entries))
        holds = unchanged(reads, [entry])
        assert holds() and not Reads.changed(None, [entry])
        change(container)
        assert not holds() and Reads.changed(None, [entry])


def test_a_container_that_grows():
    container = {"a": 1}
    holds = unchanged(None, [(container, _nothing, (), 1, container, [])])
    assert holds()
    container["b"] = 2
    assert not holds()


def test_more_places_than_one_function_has():
    container = {str(k): k for k in range(5000)}
    keys = [*container]
    entries = [(container, itemgetter(key, key), (container[key],) * 2, None, container, [key]) for key in keys]
    reads = types.SimpleNamespace(changed=lambda entries: Reads.changed(None, entries))
    holds = unchanged(reads, entries)
    for key in (keys[0], keys[-1]):
        assert holds()
        container[key], before = -1.5, container[key]
        assert not holds()
        container[key] = before
