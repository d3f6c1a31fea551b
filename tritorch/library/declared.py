"""Schemas as text, taken apart: `name.overload(Tensor(a!) x, int[2] size, *, float scale=1.0) -> (Tensor, Tensor[])`."""
from __future__ import annotations

import ast
import inspect
import re

from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.errors import check
from tritorch.generator import Generator
from tritorch.layout import layout
from tritorch.memory_format import memory_format
from tritorch.tensor import Tensor

KINDS = {"Tensor": Tensor, "int": int, "SymInt": int, "float": (float, int), "bool": bool, "str": str, "ScalarType": dtype,
         "Layout": layout, "Device": (device, str, int), "MemoryFormat": memory_format,
         "Scalar": (int, float, complex), "Generator": Generator}
NAMED = {"None": None, "True": True, "False": False, "Mean": 1, "Sum": 2}
_NAME = re.compile(r"(?:(\w+)::)?(\w+)(?:\.(\w+))?\s*")
_TYPE = re.compile(r"([A-Za-z]\w*)(?:\(([^)]*)\))?((?:\[\d*\]|\?)*)")


class Argument:
    """An argument or a result: `name`, `kind` as in "Tensor?[]", the default, whether it is given by name only, which memory it shares.
    `fits(value)` tells whether a value is of this kind."""

    def __init__(self, kind, alias, name="", default=inspect.Parameter.empty, kwarg_only=False):
        self.kind, self.alias, self.name, self.default, self.kwarg_only = re.sub(r"\[\d+\]", "[]", kind), alias, name, default, kwarg_only
        self.sized = int(found[1]) if (found := re.search(r"\[(\d+)\]", kind)) else 0
        self.changes, self.fits = bool(self.sized) or self.kind in ("float", "float?"), _test(self.kind, bool(self.sized))

    type = property(lambda self: self.kind)
    default_value = property(lambda self: None if self.default is inspect.Parameter.empty else self.default)
    is_write = property(lambda self: bool(self.alias) and "!" in self.alias)

    def has_default_value(self):
        return self.default is not inspect.Parameter.empty

    def __str__(self):
        kind = re.sub(r"^\w+", lambda found: f"{found[0]}({self.alias})", self.kind) if self.alias else self.kind
        shown = self.default if not isinstance(self.default, str) else f'"{self.default}"'
        return f"{kind} {self.name}".strip() + ("" if self.default is inspect.Parameter.empty else f"={shown}")

    __repr__ = __str__

    def taken(self, value):
        """The value as the function gets it: whole numbers as floats, a number for a list of `sized` as all of them."""
        if self.sized and value is not None and not isinstance(value, (tuple, list)):
            return [value] * self.sized
        return float(value) if type(value) is int and self.kind in ("float", "float?") else value


def _test(kind, sized=False):
    """The function that tells whether a value is of this kind."""
    if kind.endswith("?"):
        inner = _test(kind[:-1], sized)
        return lambda value: value is None or inner(value)
    if kind.endswith("[]"):
        inner = _test(kind[:-2])
        return lambda value: all(map(inner, value)) if isinstance(value, (tuple, list)) else sized and inner(value)
    types = KINDS[kind]
    if kind == "Tensor":
        return lambda value: isinstance(value, Tensor)
    if kind in ("int", "SymInt", "float", "Scalar", "bool"):
        indexed = kind in ("int", "SymInt")

        def number(value):
            if isinstance(value, Tensor):                                # of one element
                return value.numel() == 1 and not value.requires_grad
            return isinstance(value, types) or indexed and hasattr(value, "__index__")

        return number
    return lambda value: isinstance(value, types)


class FunctionSchema:
    """A schema as PyTorch's: `name` (with its namespace), `overload_name`, `arguments` and `returns`. str() is its text."""

    def __init__(self, name, overload_name, arguments, returns):
        self.name, self.overload_name, self.arguments, self.returns = name, overload_name, arguments, returns

    def __str__(self):
        parts = [str(a) for a in self.arguments if not a.kwarg_only]
        named = [str(a) for a in self.arguments if a.kwarg_only]
        made = ", ".join(map(str, self.returns))
        overload = f".{self.overload_name}" if self.overload_name else ""
        made = made if len(self.returns) == 1 else f"({made})"
        return f"{self.name}{overload}({', '.join(parts + (['*'] if named else []) + named)}) -> {made}"

    __repr__ = __str__
    is_mutable = property(lambda self: any(a.is_write for a in self.arguments))

    def signature(self):
        """The same for Python."""
        P = inspect.Parameter
        return inspect.Signature([P(a.name, P.KEYWORD_ONLY if a.kwarg_only else P.POSITIONAL_OR_KEYWORD, default=a.default)
                                  for a in self.arguments])


def parse_schema(text):
    """A FunctionSchema of its text. RuntimeError where it cannot be read.

    >>> schema = parse_schema("doc::scale_(Tensor(a!) x, float by=2.0) -> Tensor(a!)")
    >>> schema.name, schema.arguments[0].is_write, schema.arguments[1].default, str(schema.returns[0])
    ('doc::scale_', True, 2.0, 'Tensor(a!)')
    """
    head = _NAME.match(text)
    open_, arrow = head.end() if head else -1, text.rfind("->")
    close = text.rfind(")", 0, arrow)
    check(head and text[open_:open_ + 1] == "(" and open_ < close, "schema", "name(arguments) -> results", repr(text))
    arguments, named = [], False
    for part in _parts(text[open_ + 1:close]):
        if part == "*":
            named = True
        else:
            arguments.append(_argument(part, named, text))
    made = text[arrow + 2:].strip()
    made = _parts(made[1:-1]) if made.startswith("(") else [made]
    returns = [_argument(part, False, text, result=True) for part in made]
    return FunctionSchema(f"{head[1]}::{head[2]}" if head[1] else head[2], head[3] or "", arguments, returns)


def _parts(text):
    """What commas separate, outside of brackets and quotes."""
    return [part.strip() for part in re.findall(r"""(?:[^,(\["']|\([^)]*\)|\[[^\]]*\]|"[^"]*"|'[^']*')+""", text) if part.strip()]


def _argument(part, named, text, result=False):
    found = _TYPE.match(part)
    rest = part[found.end():].strip() if found else part
    named_part = re.fullmatch(r"(\w*)\s*(?:=\s*(.*))?", rest)
    check(found and found[1] in KINDS and named_part and (result or named_part[1]), "schema",
          f"a type out of {', '.join(KINDS)}, a name and perhaps a default", part, text)
    default = inspect.Parameter.empty if named_part[2] is None else _default(named_part[2], text)
    return Argument(found[1] + found[3], found[2], named_part[1], default, named)


def _default(text, schema):
    if text in NAMED:
        return NAMED[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise RuntimeError(f"schema: expected a number, a string, a list of numbers, True, False or None as default, got {text} in {schema}"
                           ) from None
