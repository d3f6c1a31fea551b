"""Lists of specialisations as JSON: which kernels a program needs, to compile them elsewhere or later."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tritorch.cuda.compiler import Specialisation, find_kernel, kernel_place, triton
from tritorch.errors import check

_FORMAT = 1


def save(path: Path, specs: Iterable[Specialisation]) -> None:
    """Write a list, one kernel a line. Kernels are named by where they are defined, so the list outlives a change of their source."""
    lines = [json.dumps({
        "kernel": _place(spec.kernel), "signature": [[name, _encoded(kind)] for name, kind in spec.signature.items()],
        "constexprs": [[list(path), _encoded(value)] for path, value in spec.constexprs.items()],
        "attrs": [[list(path), value] for path, value in spec.attrs.items()], "options": spec.options}) for spec in specs]
    path.write_text(f'{{"format": {_FORMAT}, "kernels": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


def load(path: Path) -> list[Specialisation]:
    """The specialisations of a list. Raises ValueError for another kind of file, ImportError or AttributeError where a kernel is gone."""
    found = json.loads(path.read_text(encoding="utf-8"))
    check(isinstance(found, dict) and found.get("format") == _FORMAT, "load", f"a list of kernels of format {_FORMAT}", path.name,
          error=ValueError)
    return [Specialisation(
        find_kernel(*entry["kernel"]), {name: _decoded(kind) for name, kind in entry["signature"]},
        {tuple(path): _decoded(value) for path, value in entry["constexprs"]}, {tuple(path): value for path, value in entry["attrs"]},
        entry["options"]) for entry in found["kernels"]]


def _place(kernel: Any) -> tuple[str, str, str]:
    module, name, file = kernel_place(kernel)
    return module, name, file if module == "__main__" else ""


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [_encoded(v) for v in value]}
    if isinstance(value, triton.JITFunction):
        return {"kernel": _place(value)}
    if isinstance(value, triton.language.dtype):
        return {"dtype": value.name}
    check(value is None or isinstance(value, (bool, int, float, str)), "save", "constexprs that JSON can hold, dtypes or kernels", value,
          error=TypeError)
    return value


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(map(_decoded, content))
    return find_kernel(*content) if kind == "kernel" else triton.language.dtype(content)
