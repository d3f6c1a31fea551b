"""The mark of torch.fx that programs put on functions. There is no tracer here: marked functions run as they are."""

__all__ = ["wrap"]


def wrap(fn_or_name):
    """fn_or_name itself: a function as `@torch.fx.wrap`, or the name of one.

    >>> import tritorch as torch
    >>> @torch.fx.wrap
    ... def doubled(x):
    ...     return 2 * x
    >>> doubled(torch.tensor(3))
    tensor(6)
    """
    return fn_or_name
