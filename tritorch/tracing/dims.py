"""Sizes of dynamic axes, as programs that export give them."""


class Hint:
    """How an axis without a name is to be taken: `Dim.AUTO` and `Dim.DYNAMIC` may have any size, `Dim.STATIC` has that of the sample."""

    def __init__(self, type):
        self.type = type

    def __repr__(self):
        return f"DimHint({self.type})"


class Dim:
    """The size of a dynamic axis, which may be from min to max. `k * dim` is an axis whose size is k times as large.

    Axes with one name have one size. Raises TypeError for a name that is none, ValueError for an empty range.

    >>> import tritorch as torch
    >>> 32 * torch.export.Dim("blocks", max=16)
    32*blocks
    """

    AUTO, DYNAMIC, STATIC = Hint("AUTO"), Hint("DYNAMIC"), Hint("STATIC")

    def __init__(self, name, *, min=None, max=None):
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"Dim: expected a name, got {name!r}")
        self.__name__, self.min, self.max, self.factor = name, min or 0, max, 1
        if max is not None and max < self.min:
            raise ValueError(f"Dim: expected min ≤ max, got {self.min} and {max}")

    def __mul__(self, factor):
        if not isinstance(factor, int) or factor < 1:
            raise NotImplementedError(f"Dim: expected a whole factor of at least 1, got {factor!r}")
        made = Dim(self.__name__, min=self.min, max=self.max)
        made.factor = self.factor * factor
        return made

    __rmul__ = __mul__

    def __repr__(self):
        if self.factor != 1:
            return f"{self.factor}*{self.__name__}"
        parts = [repr(self.__name__)] + [f"min={self.min}"] * (self.min > 2) + [f"max={self.max}"] * (self.max is not None)
        return f"Dim({', '.join(parts)})"


def dims(*names, min=None, max=None):
    """A Dim for each name, all of one range.

    >>> import tritorch as torch; torch.export.dims("batch", "length")
    (Dim('batch'), Dim('length'))
    """
    return tuple([Dim(name, min=min, max=max) for name in names])
