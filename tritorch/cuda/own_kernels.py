"""Where our device code is: beside this package, in the source tree as triton_kernels, in an installation as tritorch_kernels, since the
world has another package of the first name (pyproject.toml). In the source tree, too, it goes by the second name where a program has a
module triton_kernels itself. Its files name each other relatively, so that both work. Importing this file does not import triton."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

PUBLIC, PRIVATE = "triton_kernels", "tritorch_kernels"
_HOME = Path(__file__).resolve().parents[2]
FOLDER = _HOME / (PRIVATE if (_HOME / PRIVATE).exists() else PUBLIC)


@cache
def package() -> str:
    """The name under which our package is imported, decided once. Raises ImportError where another package is in its place."""
    init = FOLDER / "__init__.py"
    if not init.exists() or 'OWNER = "tritorch"' not in init.read_text(encoding="utf-8"):
        raise ImportError(f"tritorch needs its own package {FOLDER.name}, found another at {FOLDER}; "
                          "uninstall that one and install tritorch again")
    if FOLDER.name == PUBLIC and _is_ours():
        return PUBLIC
    if PRIVATE not in sys.modules:
        specification = importlib.util.spec_from_file_location(PRIVATE, init, submodule_search_locations=[str(FOLDER)])
        assert specification and specification.loader
        sys.modules[PRIVATE] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(sys.modules[PRIVATE])
    return PRIVATE


def _is_ours() -> bool:
    """Whether `import triton_kernels` gives our package, now and for whoever asks later."""
    if PUBLIC in sys.modules:
        return getattr(sys.modules[PUBLIC], "OWNER", None) == "tritorch"
    found = importlib.util.find_spec(PUBLIC)
    return found is not None and FOLDER in [Path(place).resolve() for place in found.submodule_search_locations or ()]


def place_of(module: str) -> str:
    """The name of a module of kernels by which any process finds it: of ours it begins with tritorch_kernels."""
    family = family_of(module)
    return module if family is None else f"{PRIVATE}.{family}"


def module_at(place: str) -> str:
    """The name by which to import here what is at a `place_of` a module."""
    owner, _, family = place.partition(".")
    return f"{package()}.{family}" if owner == PRIVATE else place


def family_of(module: str) -> str | None:
    """"matmul" of the name of our module of that family, None of other modules."""
    owner, _, family = module.partition(".")
    return family if family and owner in (PUBLIC, PRIVATE) and package() == owner else None
