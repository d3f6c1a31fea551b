"""Keys of kernels without parsing them.

Triton's key of a kernel is a hash over its source, over the keys of the functions that it calls, and over the constants of its module that
it names. To find these Triton parses the source, walks all of the tree, and looks up each name that is not one of the function's own. Which
names these are is a matter of the text alone: they are noted (`sources`), and a later process shows Triton a tree that has only them. Their
values Triton looks up itself, as ever. A note is made only if the key came out the same with and without it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import threading
from typing import Any

import triton
from triton.runtime import jit

from tritorch.cuda import sources

parsing = threading.RLock()
"""Held by whoever has Triton parse or compile: its frontend keeps global state, and Python 3.11 cannot parse in two threads (SystemError:
AST constructor recursion depth mismatch)."""


def key_of(function: Any) -> str:
    """`function.cache_key` of a kernel or of a function that kernels call."""
    with parsing:
        if getattr(function, "hash", "") is None:
            _settle(function, set())
            sources.keep_changes()
        return function.cache_key


def _settle(function, seen):
    """Have Triton find the key of a function, after those of the functions that it calls."""
    note = sources.note_on(function.fn.__code__.co_filename) if hasattr(function, "_src") else None
    if note is None or function.hash is not None or id(function) in seen:
        return
    seen.add(id(function))
    place = hashlib.sha256(repr((triton.__version__, function.src)).encode()).hexdigest()[:32]
    names, tree = note.names.get(place), None
    if names is None:
        tree = function.parse()
        names = _names_in(tree)
    short = _shortened(function, names, lambda callee: _settle(callee, seen))
    if tree is None:
        _key_by(function, short)
    elif _key_by(function, tree) == _key_by(function, short):
        note.names[place], note.changed = names, True
    else:
        _key_by(function, tree)


def _key_by(function, tree):
    """What Triton finds in a tree: the key, and which variables of modules it depends on."""
    with function._hash_lock:                                            # whoever else asks, or compiles, comes before or after
        function.hash, function.parse = None, lambda: tree
        try:
            return function.cache_key, list(function.used_global_vals)
        except BaseException:
            function.hash = None                                         # else the next one who asks would be given half a key
            raise
        finally:
            del function.parse


def _names_in(tree):
    """The names that a function takes from outside, in Triton's order: the different ones, each as [whether it is part of an argument's
    default, name, attribute, attribute of that, …], and the place of every mention among them."""
    finder = _names_finder()("", {}, {}, "")
    finder.visit(tree)
    different = list(dict.fromkeys(finder.mentions))
    places = {name: place for place, name in enumerate(different)}
    return [list(map(list, different)), [places[name] for name in finder.mentions]]


@functools.cache
def _names_finder():
    class Names(jit.DependenciesFinder):
        """Triton's walk, which knows the function's own names from others, without a look at what the others stand for."""

        def __init__(self, *args):
            super().__init__(*args)
            self.mentions: list[tuple] = []

        def visit_Name(self, node):
            if type(node.ctx) is ast.Store:
                return node.id
            return self.visit_chain(node, [])

        def visit_Attribute(self, node):
            attributes: list[str] = []
            while isinstance(node, ast.Attribute):
                attributes.insert(0, node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                self.visit_chain(node, attributes)
            else:
                self.visit(node)

        def visit_chain(self, node, attributes):
            if node.id not in self.local_names:
                self.mentions.append((self.visiting_arg_default_value, node.id, *attributes))

    return Names


def _shortened(function, names, called):
    """A tree with the names alone: once each, but every mention of a function, as each goes into the key; without those of Triton's own
    modules, which Triton passes over. `called` is told of the functions."""
    different, mentions = names
    passed = jit.DependenciesFinder("", {}, {}, "").supported_modules
    nonlocals = inspect.getclosurevars(function.fn).nonlocals if function.fn.__closure__ else {}
    functions, done = set(), set()
    for place, (_, name, *attributes) in enumerate(different):
        value = function.__globals__.get(name)
        value = nonlocals.get(name) if value is None else value
        if getattr(value, "__name__", "") in passed:
            done.add(place)
        for attribute in (None, *attributes):
            value = value if attribute is None else getattr(value, attribute, None)
            if getattr(value, "__name__", "") in passed:
                break
            for callee in _functions_of(value):
                functions.add(place)
                called(callee)
    shown: dict[bool, list] = {True: [], False: []}
    for place in mentions:
        if place in functions or place not in done:
            done.add(place)
            default, *chain = different[place]
            shown[default].append(_expression(chain))
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=shown[True])
    return ast.Module([ast.FunctionDef(function.__name__, arguments, shown[False], [])], [])


def _functions_of(value):
    """The functions that a value brings into a key."""
    if isinstance(value, jit.JITCallable):
        return [value]
    return value.hash_attrs if getattr(value, "__triton_aggregate__", False) else []


def _expression(chain):
    found: ast.expr = ast.Name(chain[0], ast.Load())
    for attribute in chain[1:]:
        found = ast.Attribute(found, attribute, ast.Load())
    return found
