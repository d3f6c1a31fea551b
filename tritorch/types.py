"""What programs write for the types of arguments, under the names of torch.types.

>>> from tritorch.types import Number
>>> isinstance(2.5, Number)
True
"""
import builtins
import os
from collections.abc import Sequence
from typing import IO, TypeAlias

from tritorch.device import device as _device
from tritorch.dtype import dtype as _dtype  # noqa: F401
from tritorch.layout import layout as _layout  # noqa: F401
from tritorch.shape import Size
from tritorch.storage import UntypedStorage as Storage
from tritorch.tensor import Tensor

__all__ = ["Device", "FileLike", "Number", "Size", "Storage"]

_int, _float, _bool = builtins.int, builtins.float, builtins.bool
_size: TypeAlias = Size | list[_int] | tuple[_int, ...]
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
Number: TypeAlias = _int | _float | _bool
_Number = (_int, _float, _bool)
Device: TypeAlias = _device | str | _int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
