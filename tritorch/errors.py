"""The errors and the one sentence they speak: what was expected, what came, and the way out when there is one."""
import functools
import inspect
import operator


class OutOfMemoryError(RuntimeError):
    """No memory is left on the device; the sentence says who holds what."""


class GradientError(RuntimeError):
    """The gradient graph cannot do what was asked: freed, overwritten, or not differentiable."""


class NoTensor(TypeError, AttributeError):
    """An argument is of another kind, mostly no tensor. PyTorch raises TypeError or, from its functions in Python, AttributeError."""


def check(ok, op, rule, *got, use=None, error=RuntimeError):
    """Raise `error` with one sentence unless `ok`.

    Values are formatted only when the check fails, so pass them as they are. A `rule` with values in it is formatted every time, for about
    1 µs: operators that cost as little raise `sentence(…)` instead.

    >>> check(2 == 3, "matmul", "a.shape[-1] == b.shape[-2]", (3, 4), (5, 6))
    Traceback (most recent call last):
    RuntimeError: matmul: expected a.shape[-1] == b.shape[-2], got (3, 4) and (5, 6)
    """
    if not ok:
        raise error(sentence(op, rule, *got, use=use))


def whole_numbers(op, what, values):
    """A tuple of ints, or a TypeError that says which argument has to be one.

    >>> whole_numbers("zeros", "sizes", (2, 1.5))
    Traceback (most recent call last):
    TypeError: zeros: expected whole numbers as sizes, got (2, 1.5)
    """
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(sentence(op, f"whole numbers as {what}", repr(values))) from None


def real_numbers(op, **options):
    """A TypeError that says which option has to be a number, and is none.

    >>> real_numbers("SGD", lr=0.1, momentum="0.9")
    Traceback (most recent call last):
    TypeError: SGD: expected a number as momentum, got '0.9'
    """
    for name, value in options.items():
        if not hasattr(type(value), "__float__"):
            raise TypeError(sentence(op, f"a number as {name}", repr(value)))


def tensors(op, **arguments):
    """A NoTensor that says which argument has to be a tensor, and is none.

    >>> tensors("cross", input=None)
    Traceback (most recent call last):
    tritorch.errors.NoTensor: cross: expected a tensor as input, got NoneType
    """
    for name, value in arguments.items():
        if not hasattr(value, "storage"):
            raise NoTensor(sentence(op, f"a tensor as {name}", type(value).__name__))


def switches(op, error=TypeError, **options):
    """An error that says which option has to be True or False, and is neither.

    >>> switches("set_grad_enabled", mode=None)
    Traceback (most recent call last):
    TypeError: set_grad_enabled: expected True or False as mode, got None
    """
    for name, value in options.items():
        if value is not True and value is not False:
            raise error(sentence(op, f"True or False as {name}", repr(value)))


def refuse_misuse(op, fn, args, kwargs, error):
    """Raise a NoTensor for an AttributeError of ours, where the argument of `fn` that has no such attribute can be named. Other errors are
    left to the caller, as they are."""
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    if error.name is None or not frame.tb_frame.f_globals.get("__name__", "").startswith("tritorch."):
        return
    try:
        named = inspect.signature(fn).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):                                      # a forward that has no signature
        return
    for name, value in named.items():
        if value is error.obj or error.obj is not None and getattr(value, "dtype", None) is error.obj:
            raise NoTensor(sentence(op, f"a tensor as {name}", type(value).__name__)) from None


def numbers_in(body):
    """The shape rule `body`, which refuses what is no number where its parameter is one by default; itself where none is."""
    found = [(place, p.name) for place, p in enumerate(inspect.signature(body).parameters.values()) if type(p.default) in (int, float)]
    if not found:
        return body

    @functools.wraps(body)
    def checked(*args):
        for place, name in found:
            if args[place].__class__ in _NO_NUMBERS:
                raise TypeError(sentence(body.__name__, f"a number as {name}", repr(args[place])))
        return body(*args)

    return checked


no_sizes = "sizes: expected at least one, got none; use () for a tensor of no dims"
_NO_NUMBERS = (type(None), str, list, dict, type)


def sentence(op, rule, *got, use=None):
    """The words of a failed check."""
    text = f"{op}: expected {rule}"
    if got:
        text += ", got " + " and ".join(f"{value}" for value in got)
    return f"{text}; use {use}" if use else text
