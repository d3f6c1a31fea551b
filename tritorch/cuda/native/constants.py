"""The numbers of `arith.constant`, as LLVM writes them."""
from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from .emit import Untranslatable, constant


def dense(op):
    """The number of an `arith.constant`; a list where the elements of a tensor differ."""
    text = op.text.partition("arith.constant ")[2]
    text = re.sub(r"^\{[^}]*\} ", "", text)
    inside = re.match(r"dense<(.*)> : ", text)
    text = inside[1] if inside else text.partition(" : ")[0]
    if text.startswith('"'):
        raise Untranslatable(f"arith.constant ({op.where}): a tensor of bytes")
    if text.startswith("["):
        return [number(part, op.results[0].type) for part in re.sub(r"[\[\]]", "", text).split(", ")]
    return number(text.strip(), op.results[0].type)


def number(text, kind):
    """A number as LLVM writes it."""
    if text in ("true", "false"):
        return text
    if not kind.is_float:
        return constant(int(text, 0), kind.element)
    if not text.startswith(("0x", "-0x")):
        return as_float(float(text), kind.element)
    return bits_of(int(text, 16), kind.element)


def as_float(value, element):
    if element.startswith("f8"):
        dtype = getattr(ml_dtypes, "float8_" + element[2:].lower())
        return str(int(np.float32(value).astype(dtype).view(np.uint8)))
    return constant(value, element)


def bits_of(bits, element):
    if element in ("f32", "f16", "f64"):
        width = {"f16": 2, "f32": 4, "f64": 8}[element]
        with np.errstate(all="ignore"):
            return constant(np.frombuffer(bits.to_bytes(width, "little"), f"f{width}")[0], element)
    return str(bits)
