"""Conditions that programs state and that raise unless they hold, under PyTorch's names: `_check` and those with other exceptions."""
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.tensor import Tensor


def _require(error, name, cond, message):
    check(not isinstance(cond, Tensor), name, "a bool", "a tensor", use="_check_tensor_all", error=TypeError)
    check(isinstance(cond, bool), name, "a bool", type(cond).__name__, error=TypeError)
    if cond:
        return
    check(message is None or callable(message), name, "a message that is a function", type(message).__name__, error=TypeError)
    raise error(f"{name}: expected the condition to hold, got False" if message is None else str(message()))


def _check(cond, message=None):
    """RuntimeError unless `cond`, a bool, holds; `message()` is what it says.

    >>> import tritorch as torch; torch._check(2 > 1, lambda: "two")
    """
    _require(RuntimeError, "_check", cond, message)


def _check_index(cond, message=None):
    """IndexError unless `cond` holds."""
    _require(IndexError, "_check_index", cond, message)


def _check_value(cond, message=None):
    """ValueError unless `cond` holds."""
    _require(ValueError, "_check_value", cond, message)


def _check_type(cond, message=None):
    """TypeError unless `cond` holds."""
    _require(TypeError, "_check_type", cond, message)


def _check_not_implemented(cond, message=None):
    """NotImplementedError unless `cond` holds."""
    _require(NotImplementedError, "_check_not_implemented", cond, message)


def _check_tensor_all(cond, message=None):
    """RuntimeError unless all elements of a tensor of bools hold."""
    _check_tensor_all_with(RuntimeError, cond, message)


def _check_tensor_all_with(error_type, cond, message=None):
    """The given exception unless all elements of a tensor of bools hold."""
    check(isinstance(cond, Tensor), "_check_tensor_all", "a tensor", type(cond).__name__, error=TypeError)
    check(cond.dtype is types.bool, "_check_tensor_all", "a tensor of bools", cond.dtype, error=TypeError)
    _require(error_type, "_check_tensor_all", bool(cond.all()), message)


def _check_with(error_type, cond, message=None):
    """The given exception unless `cond` holds.

    >>> import tritorch as torch
    >>> torch._check_with(KeyError, False, lambda: "weight")
    Traceback (most recent call last):
    KeyError: 'weight'
    """
    _require(error_type, "_check_with", cond, message)


def _check_is_size(i, message=None, *, max=None):
    """RuntimeError unless 0 ≤ i, and i ≤ max if that is given."""
    _require(RuntimeError, "_check_is_size", bool(i >= 0 and (max is None or i <= max)), message)


def _assert_async(input, assert_msg=None, /):
    """RuntimeError unless the one element of a tensor is other than 0. On a GPU the host waits for it, as PyTorch's does not.

    >>> import tritorch as torch; torch._assert_async(torch.tensor(True))
    """
    check(isinstance(input, Tensor), "_assert_async", "a tensor", type(input).__name__, error=TypeError)
    check(input.numel() == 1, "_assert_async", "one element", input.shape)
    if not input.is_meta and not input.item():
        raise RuntimeError("_assert_async: expected a value other than 0, got 0" if assert_msg is None else str(assert_msg))
