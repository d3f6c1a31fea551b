"""Names for annotations, those of torch.types."""
import os
from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from builtins import str as _str
from collections.abc import Sequence
from typing import Any

from tritorch.device import device as _device
from tritorch.shape import Size
from tritorch.storage import Storage
from tritorch.tensor import Tensor

__all__ = ["Device", "FileLike", "Number", "Storage", "Tensor"]

Number = _int | _float | _bool
Device = _device | _str | _int | None
FileLike = _str | os.PathLike | Any                                      # a path, or what reads and writes bytes
_size = Size | list[_int] | tuple[_int, ...]
_TensorOrTensors = Tensor | Sequence[Tensor]
_Number = (_int, _float, _bool)
