"""The types of several results under PyTorch's names, torch.return_types.max and the like: named tuples that can be pickled."""
from collections import namedtuple


def result(name, fields):
    """The type of several results: a named tuple that stands here under its name, and shows itself as PyTorch's do."""
    kind = namedtuple(name, fields, module=__name__)
    kind.__repr__ = _shown
    globals()[name] = kind
    return kind


def _shown(self):
    values = ",\n".join(f"{field}={value!r}" for field, value in zip(self._fields, self))
    return f"tritorch.return_types.{type(self).__name__}(\n{values})"
