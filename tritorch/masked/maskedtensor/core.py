"""MaskedTensor: a tensor and which of its elements count."""
import warnings

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.layout import strided
from tritorch.masked.maskedtensor import calls
from tritorch.ops.compare import where
from tritorch.protocol import DisableTorchFunction, as_subclass, make_subclass
from tritorch.tensor import Tensor

__all__ = ["MaskedTensor", "is_masked_tensor"]

DTYPES = set(map(types.__getattribute__, "float16 float32 float64 bool int8 int16 int32 int64".split()))


def is_masked_tensor(obj, /):
    """Whether an object is a MaskedTensor.

    >>> import tritorch as torch
    >>> torch.masked.is_masked_tensor(torch.ones(2))
    False
    """
    return isinstance(obj, MaskedTensor)


class MaskedTensor(Tensor):
    """A copy of `data` with a mask of bools of its shape, True where an element counts; the others are shown as --.

    Functions of one operand keep its mask; of two, both must have the same mask, or one none (ValueError); comparisons, too. Reductions
    (sum, mean, prod, amin, amax, argmin, argmax, all, norm, var, std) are over what counts, and their results count where anything did.
    Views, indexing, cat and stack go through data and mask alike; `where` takes each element, with whether it counts, from its operand;
    softmax is over what counts. Other functions refuse a MaskedTensor (TypeError). `grad` has the mask of its tensor. TypeError for data
    or a mask that is no plain strided tensor, for a mask that is not of bools, and for dtypes other than bool, whole numbers and floats of
    16 to 64 bits; ValueError for shapes that differ.

    >>> import tritorch as torch
    >>> x = torch.masked.masked_tensor(torch.tensor([0.0, 1.0, 9.0]), torch.tensor([True, True, False]), requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.backward()
    >>> y, x.grad.get_data(), x.detach().to_tensor(-1.0)
    (MaskedTensor(  1.0000, True), tensor([0., 2., 0.]), tensor([ 0.,  1., -1.]))
    """

    def __new__(cls, data, mask, requires_grad=False):
        for name, x in (("data", data), ("mask", mask)):
            plain = isinstance(x, Tensor) and not is_masked_tensor(x)
            check(plain, "MaskedTensor", f"{name} to be a Tensor", type(x).__name__, error=TypeError)
            check(x.layout is strided, "MaskedTensor", f"{name} that is strided", x.layout, use="x.to_dense()", error=TypeError)
        check(mask.dtype is types.bool, "MaskedTensor", "a mask of bools", mask.dtype, error=TypeError)
        check(data.dtype in DTYPES, "MaskedTensor", "data of bools, whole numbers or floats", data.dtype, error=TypeError)
        check(data.shape == mask.shape, "MaskedTensor", f"a mask of shape {tuple(data.shape)}", mask.shape, error=ValueError)
        if data.requires_grad:
            warnings.warn("MaskedTensor: data that requires gradients gets none from a copy; use as_masked_tensor(data, mask), or "
                          "data.detach()", stacklevel=2)
        return make_subclass(cls, data.detach().clone(), requires_grad)

    def __init__(self, data, mask, requires_grad=False):
        self._masked_mask = mask.clone()

    @staticmethod
    def _from_values(data, mask):
        """`data` with its history; no gradient goes to what does not count."""
        made = MaskedTensor(data.detach(), mask)
        return made if not data.requires_grad else masked(where(mask, data, data.detach()), made._masked_mask)

    def get_data(self):
        """The elements, also those that do not count, with their history."""
        with DisableTorchFunction():
            return as_subclass(self, Tensor)

    def get_mask(self):
        """Which elements count."""
        return self._masked_mask

    def to_tensor(self, value):
        """The elements that count, and `value` in the place of others."""
        return self.get_data().masked_fill(~self._masked_mask, value)

    @property
    def grad(self):
        """The gradient that backward accumulated, with this tensor's mask, or None."""
        found = Tensor.grad.__get__(self)
        return None if found is None else masked(found, self._masked_mask)

    @grad.setter
    def grad(self, value):
        Tensor.grad.__set__(self, value.get_data() if is_masked_tensor(value) else value)

    @grad.deleter
    def grad(self):
        Tensor.grad.__delete__(self)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """What a function makes of data and masks (see calls.py)."""
        return calls.answer(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None):
        data, mask = self.get_data().detach(), self._masked_mask
        if not data.shape:
            return f"MaskedTensor({_shown(data.item()) if mask.item() else '--'}, {mask.item()})"
        return f"MaskedTensor(\n{_indented(_rows(data.tolist(), mask.tolist()))}\n)"


def masked(data, mask):
    """Data with its history and a mask, whose memory it may share."""
    with DisableTorchFunction():
        made = as_subclass(data, MaskedTensor)
    made._masked_mask = mask
    return made


def _shown(value):
    return f"{value:8.4f}" if isinstance(value, float) else str(value)


def _indented(text):
    return "\n".join("  " + line for line in text.split("\n"))


def _rows(values, kept):
    """Nested lists as text: the last dim in a line."""
    if values and isinstance(values[0], list):
        return "[\n" + ",\n".join(_indented(_rows(v, k)) for v, k in zip(values, kept)) + "\n]"
    shown = [_shown(v) for v in values]
    width = max([len(s) if k else 8 for s, k in zip(shown, kept)], default=0)
    return "[" + ", ".join(s if k else "--".rjust(width) for s, k in zip(shown, kept)) + "]"
