"""Padding layers. `padding` is one number for all sides, or (left, right, top, bottom, front, back), as far as there are dims."""
from tritorch.nn import functional as F
from tritorch.nn.module import Module
from tritorch.nn.sizes import sizes


class _Pad(Module):
    """Padding by values of the input: the mode says which."""

    def __init__(self, padding):
        super().__init__()
        self.padding = sizes(padding, 2 * self._ndim)

    def forward(self, input):
        if self._mode == "circular" and input.ndim not in (self._ndim + 1, self._ndim + 2):
            raise ValueError(f"expected {self._ndim + 1}D or {self._ndim + 2}D input (got {input.ndim}D input)")
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self):
        return f"{self.padding}"


class _ConstantPad(Module):
    def __init__(self, padding, value):
        super().__init__()
        self.padding, self.value = sizes(padding, 2 * self._ndim), value

    def forward(self, input):
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self):
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Pads the last dim with a value.

    >>> import tritorch as torch
    >>> torch.nn.ConstantPad1d((1, 2), 3.5)(torch.zeros(1, 1, 1)).tolist()
    [[[3.5, 0.0, 3.5, 3.5]]]
    """

    _ndim = 1


class ConstantPad2d(_ConstantPad):
    """Pads the last two dims with a value."""

    _ndim = 2


class ConstantPad3d(_ConstantPad):
    """Pads the last three dims with a value."""

    _ndim = 3


class _ZeroPad(_ConstantPad):
    def __init__(self, padding):
        super().__init__(padding, 0.0)

    def extra_repr(self):
        return f"{self.padding}"


class ZeroPad1d(_ZeroPad):
    """Pads the last dim with zeros.

    >>> import tritorch as torch
    >>> torch.nn.ZeroPad1d((1, 2))(torch.tensor([[1.0, 2.0]]))
    tensor([[0., 1., 2., 0., 0.]])
    """

    _ndim = 1


class ZeroPad2d(_ZeroPad):
    """Pads the last two dims with zeros.

    >>> import tritorch as torch
    >>> torch.nn.ZeroPad2d(1)(torch.ones(1, 3, 3)).shape
    tritorch.Size([1, 5, 5])
    """

    _ndim = 2


class ZeroPad3d(_ZeroPad):
    """Pads the last three dims with zeros."""

    _ndim = 3


class ReflectionPad1d(_Pad):
    """Pads the last dim with its mirror image, without the edge.

    >>> import tritorch as torch
    >>> torch.nn.ReflectionPad1d(2)(torch.tensor([[0.0, 1, 2]])).tolist()
    [[2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]]
    """

    _ndim, _mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Pads the last two dims with their mirror image, without the edge.

    >>> import tritorch as torch
    >>> torch.nn.ReflectionPad2d((1, 1, 0, 0))(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[2., 1., 2., 3., 2.]]])
    """

    _ndim, _mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """Pads the last three dims with their mirror image, without the edge."""

    _ndim, _mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """Pads the last dim with its edge.

    >>> import tritorch as torch
    >>> torch.nn.ReplicationPad1d((1, 2))(torch.tensor([[1.0, 2.0]]))
    tensor([[1., 1., 2., 2., 2.]])
    """

    _ndim, _mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """Pads the last two dims with their edges."""

    _ndim, _mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """Pads the last three dims with their edges."""

    _ndim, _mode = 3, "replicate"


class CircularPad1d(_Pad):
    """Pads the last dim with the values of its other end.

    >>> import tritorch as torch
    >>> torch.nn.CircularPad1d((1, 2))(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[3., 1., 2., 3., 1., 2.]])
    """

    _ndim, _mode = 1, "circular"


class CircularPad2d(_Pad):
    """Pads the last two dims with the values of their other ends."""

    _ndim, _mode = 2, "circular"


class CircularPad3d(_Pad):
    """Pads the last three dims with the values of their other ends."""

    _ndim, _mode = 3, "circular"
