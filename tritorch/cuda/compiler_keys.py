"""Keys of kernels without parsing them.

Triton's key of a kernel is a hash over its source, over the keys of the functions that it calls, and over the constants of its module that
it names. To find these Triton parses the source, walks all of the tree, and looks up each name that is not one of the function's own. Which
names these are is a matter of the text alone: they are noted (`sources`), and a later process shows Triton a tree that has only them. Their
values Triton looks up itself, as ever. Names are noted only where the key is the same with the short tree and with the whole one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import triton
from triton.runtime import jit

from tritorch.cuda import sources

parsing = threading.RLock()
"""Held by whoever has Triton parse or compile: its frontend keeps global state, and Python 3.11 cannot parse in two threads (SystemError:
AST constructor recursion depth mismatch)."""

_KNOWN = ("hash", "src", "used_global_vals", "_hash_lock")       # what is touched here of a function of Triton's
_parse = jit.JITCallable.parse


def key_of(function: Any) -> str:
    """`function.cache_key` of a kernel or of a function that kernels call."""
    with parsing:
        if getattr(function, "hash", "") is not None:
            return function.cache_key
        asked: list[Any] = []
        unknown: list[tuple] = []
        try:
            with _parsing_by(lambda function: asked.append(function) or _tree(function, unknown)):
                return function.cache_key
        finally:
            for each in asked:
                if each.hash is not None and each.hash.startswith("recursion:"):
                    each.hash = None                             # it has no key: the next one who asks would be given this for one
            for each in unknown:
                _learn(*each)
            sources.keep_changes()


@contextlib.contextmanager
def _parsing_by(parse: Callable[[Any], ast.Module]) -> Iterator[None]:
    """In this thread Triton, which is asked for keys alone, parses by `parse`; in others as ever. And it asks a function that is called for
    its key before it takes over the constants that this one goes by, which are found on the way to it. Else a key, which has these
    constants in it, depends on whose was asked for before, and other processes do not know it."""
    before, thread = jit.JITCallable.parse, threading.get_ident()
    take_over = jit.DependenciesFinder._update_hash
    jit.JITCallable.parse = lambda function: parse(function) if threading.get_ident() == thread else _parse(function)
    jit.DependenciesFinder._update_hash = lambda finder, called: called.cache_key and take_over(finder, called)
    try:
        yield
    finally:
        jit.JITCallable.parse, jit.DependenciesFinder._update_hash = before, take_over


def _tree(function, unknown):
    """What Triton is shown of a function: its names, or all of it where they are not known, which goes to the `unknown`."""
    note = sources.note_on(function.fn.__code__.co_filename) if all(hasattr(function, name) for name in _KNOWN) else None
    if note is None:
        return _parse(function)
    place = hashlib.sha256(f"{triton.__version__} {function.src}".encode()).hexdigest()[:32]
    names = note.names_of(place)
    if names is not None:
        return _shortened(function, names)
    tree = _parse(function)
    unknown.append((function, tree, note, place))
    return tree


def _learn(function, tree, note, place):
    """Note a function's names. Those that it calls have their keys by now, on which its own may depend."""
    with function._hash_lock:
        before = function.hash, function.used_global_vals
        if function.hash is None:
            return
        try:
            names, found = _names_in(tree), []
            for shown in (tree, _shortened(function, names)):
                function.hash = None
                with _parsing_by(lambda asked, shown=shown: shown if asked is function else _parse(asked)):
                    found.append((function.cache_key, list(function.used_global_vals)))
            if found[0] == found[1]:
                note.names[place], note.changed = names, True
        finally:
            function.hash, function.used_global_vals = before


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


def _shortened(function, names):
    """A tree with the names alone: once each, but every mention of a function, as each goes into the key; without those of Triton's own
    modules, which Triton passes over."""
    different, mentions = names
    passed = jit.DependenciesFinder("", {}, {}, "").supported_modules
    nonlocals = inspect.getclosurevars(function.fn).nonlocals if function.fn.__closure__ else {}
    functions, done = set(), set()
    for place, (_, name, *attributes) in enumerate(different):
        value = function.__globals__.get(name)
        value = nonlocals.get(name) if value is None else value
        if getattr(value, "__name__", "") in passed:
            done.add(place)
            continue
        for attribute in attributes:
            if _is_function(value) or getattr(value, "__name__", "") in passed:
                break
            value = getattr(value, attribute, None)
        if _is_function(value):
            functions.add(place)
    shown: dict[bool, list] = {True: [], False: []}
    for place in mentions:
        if place in functions or place not in done:
            done.add(place)
            default, *chain = different[place]
            shown[default].append(_expression(chain))
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=shown[True])
    return ast.Module([ast.FunctionDef(function.__name__, arguments, shown[False], [])], [])


def _is_function(value):
    """Whether a value brings keys of functions into a key."""
    return isinstance(value, jit.JITCallable) or getattr(value, "__triton_aggregate__", False)


def _expression(chain):
    found: ast.expr = ast.Name(chain[0], ast.Load())
    for attribute in chain[1:]:
        found = ast.Attribute(found, attribute, ast.Load())
    return found
