"""The errors and the one sentence they speak: what was expected, what came, and the way out when there is one."""


class OutOfMemoryError(RuntimeError):
    """No memory is left on the device; the sentence says who holds what."""


class GradientError(RuntimeError):
    """The gradient graph cannot do what was asked: freed, overwritten, or not differentiable."""


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


def sentence(op, rule, *got, use=None):
    """The words of a failed check."""
    text = f"{op}: expected {rule}"
    if got:
        text += ", got " + " and ".join(f"{value}" for value in got)
    return f"{text}; use {use}" if use else text
