"""functionalize: a function without writes into its arguments, for tracers."""
import functools

from tritorch.errors import check


def functionalize(func, *, remove="mutations"):
    """A function that does what `func` does, writes into arguments included, as PyTorch's does to a caller. What PyTorch's changes, the
    operators that a tracer sees, is not there to be seen: `tritorch.compile` captures launches. RuntimeError unless `remove` is
    "mutations" or "mutations_and_views".

    >>> import tritorch as torch
    >>> x = torch.zeros(2)
    >>> torch.func.functionalize(lambda x: x.add_(1) * 2)(x), x
    (tensor([2., 2.]), tensor([1., 1.]))
    """
    check(remove in ("mutations", "mutations_and_views"), "functionalize", 'remove "mutations" or "mutations_and_views"', repr(remove))

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapped
