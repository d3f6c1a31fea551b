"""numpy without its warnings: infinities and NaN are results here, not accidents."""
import contextvars
import functools

import numpy as np

_silent = []                                                             # contexts in which numpy is silent; a call borrows one


def quietly(fn, *args, **keywords):
    """`fn(*args, **keywords)` under np.errstate(all="ignore"), at a third of its cost.

    >>> float(quietly(np.divide, 1.0, 0.0))
    inf
    """
    try:
        context = _silent.pop()                                          # atomic, so threads and calls within calls each have their own
    except IndexError:
        context = contextvars.copy_context()
        context.run(np.seterr, all="ignore")
    result = context.run(fn, *args, **keywords)
    _silent.append(context)
    return result


def quiet(fn):
    """Decorator: `quietly`, in every call."""
    return functools.wraps(fn)(functools.partial(quietly, fn))
