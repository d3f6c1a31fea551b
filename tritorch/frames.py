"""What frames of the interpreter tell of a call that failed: whose they are, their variables, and what they were calling."""
import builtins
import dis
import inspect

_LOADS, _ATTRIBUTES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF"), ("LOAD_ATTR", "LOAD_METHOD")


def package_of(frame):
    """The package whose code a frame runs."""
    return frame.f_globals.get("__name__", "").partition(".")[0]


def variables(frame):
    """What the variables of a frame are. Before Python 3.13 a frame keeps what was asked for: the error, and by that itself, for ever."""
    found = frame.f_locals
    values = dict(found)
    if type(found) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:               # a function's: no module's own names
        found.clear()
    return values


def callee(frame):
    """What a frame is calling, by the instructions that load it; None where these are more than names and attributes.

    >>> import sys
    >>> def found(*args):
    ...     return callee(sys._getframe(1))
    >>> found(1, 2) is found
    True
    """
    steps = [i for i in dis.get_instructions(frame.f_code) if i.offset <= frame.f_lasti]
    height = 1                                                           # of the stack, when only the result will lie on it
    while steps and height > 0:
        last = steps.pop()
        height -= dis.stack_effect(last.opcode, last.arg, jump=False)
        after = last.offset
    names = [i for i in dis.get_instructions(frame.f_code) if i.offset >= after and i.opname != "PUSH_NULL"]
    if not names or not names[0].opname.startswith(_LOADS) or not isinstance(names[0].argval, str):
        return None
    known = {**vars(builtins), **frame.f_globals, **variables(frame)}
    value = known.get(names[0].argval)
    for i in names[1:]:
        if i.opname not in _ATTRIBUTES:
            break
        value = getattr(value, i.argval, None)
    return value
