"""What the annotations of a function say of its arguments, in the words of PyTorch's schemas."""
from __future__ import annotations

import collections.abc
import inspect
import types
import typing

from tritorch.device import device
from tritorch.dtype import dtype
from tritorch.errors import check
from tritorch.library.declared import Argument, FunctionSchema
from tritorch.tensor import Tensor

PLAIN = {Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str", dtype: "ScalarType", device: "Device"}
SEQUENCES = (list, collections.abc.Sequence)


def infer_schema(prototype_function, /, *, mutates_args, op_name=None):
    """The schema of a function by its annotations, as text. Raises ValueError where there is none, or one that an operator cannot take.

    >>> import tritorch as torch
    >>> def scaled(x: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None: ...
    >>> torch.library.infer_schema(scaled, mutates_args={"out"})
    '(Tensor x, Tensor(a0!) out, float scale=1.0) -> ()'
    """
    name = op_name or getattr(prototype_function, "__name__", "infer_schema")
    text = str(schema_of(prototype_function, mutates_args, name))
    return text if op_name else text.removeprefix(name)


def schema_of(fn, mutates_args, name):
    """The FunctionSchema of a function by its annotations."""
    signature = inspect.signature(fn, eval_str=True)
    names, kinds = list(signature.parameters), kinds_of(signature, name)
    check(mutates_args == "unknown" or not isinstance(mutates_args, str), name, 'a collection of names as mutates_args, or "unknown"',
          repr(mutates_args), error=ValueError)
    odd = [] if mutates_args == "unknown" else [n for n in mutates_args if n not in names]
    check(not odd, name, f"names of its parameters {names} in mutates_args", odd, error=ValueError)
    arguments, written = [], 0
    for parameter, kind in zip(signature.parameters.values(), kinds):
        alias = None
        if "Tensor" in kind and (mutates_args == "unknown" or parameter.name in mutates_args):
            alias, written = f"a{written}!", written + 1
        else:
            check(mutates_args == "unknown" or parameter.name not in mutates_args, name, "tensors in mutates_args", parameter.name,
                  error=ValueError)
        arguments.append(Argument(kind, alias, parameter.name, parameter.default, parameter.kind is parameter.KEYWORD_ONLY))
    return FunctionSchema(name, "", arguments, [Argument(kind, None) for kind in _returns(signature.return_annotation, name)])


def kinds_of(signature, name):
    """What each parameter is, in the words of a schema."""
    kinds = []
    for p in signature.parameters.values():
        check(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD), name, "parameters with names", f"{p}", error=ValueError)
        check(p.annotation is not p.empty, name, "a type annotation of every parameter", f"none of {p.name}", error=ValueError)
        kinds.append(_kind(p.annotation, name, p.name))
    return kinds


def _kind(annotation, name, what):
    """Tensor, Tensor[], Tensor?, Tensor?[] and the same of numbers."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in SEQUENCES and len(inner) == 1:
        return _kind(inner[0], name, what) + "[]"
    if origin in (typing.Union, types.UnionType):
        rest = [t for t in inner if t is not type(None)]
        optional = "?" if len(rest) < len(inner) else ""
        if set(rest) <= {int, float, bool} and len(rest) > 1:
            return "Scalar" + optional
        if len(rest) == 1 and optional:
            return _kind(rest[0], name, what) + optional
    raise ValueError(f"{name}: expected an annotation out of Tensor, int, float, bool, str, dtype, device, sequences of these, or one of "
                     f"them or None, got {annotation} for {what}")


def _returns(annotation, name):
    if annotation is None:
        return []
    if typing.get_origin(annotation) is tuple:
        return [_kind(t, name, "a result") for t in typing.get_args(annotation)]
    check(annotation is not inspect.Signature.empty, name, "a type annotation of the result", "none", error=ValueError)
    return [_kind(annotation, name, "the result")]
