"""A choice between two functions by a value: `tritorch.cond`."""
from tritorch.errors import check
from tritorch.tensor import Tensor


def cond(pred, true_fn, false_fn, operands=()):
    """`true_fn(*operands)` if `pred`, a bool or a tensor of one element, is true, else `false_fn(*operands)`. Waits for the device of a
    tensor; gradients are those of the function that ran.

    >>> import tritorch as torch
    >>> x = torch.tensor([1.0, -2.0])
    >>> torch.cond(x.sum() > 0, lambda x: x, lambda x: -x, (x,))
    tensor([-1.,  2.])
    """
    check(isinstance(pred, (bool, int, float, Tensor)), "cond", "a bool or a tensor as pred", repr(pred))
    check(not isinstance(pred, Tensor) or pred.numel() == 1, "cond", "a tensor of one element as pred", getattr(pred, "shape", None))
    check(callable(true_fn) and callable(false_fn), "cond", "two functions", true_fn, false_fn, error=TypeError)
    check(isinstance(operands, (tuple, list)), "cond", "a tuple of operands", type(operands).__name__, error=TypeError)
    return (true_fn if pred else false_fn)(*operands)
