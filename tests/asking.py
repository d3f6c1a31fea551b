"""Functions that do not ask any more, as in a program that has no class with a `__torch_function__` yet."""
import contextlib

from tritorch import overridable, protocol


@contextlib.contextmanager
def disarmed():
    """Inside the functions are as in the source; behind they ask again."""
    protocol.arm()
    for f, original in [pair for pairs in overridable.originals.values() for pair in pairs]:
        f.__code__, f.__defaults__, f.__kwdefaults__ = original.__code__, original.__defaults__, original.__kwdefaults__
    for table in (overridable.originals, overridable.public, protocol.fields):
        table.clear()
    protocol.armed = protocol.failed = False
    try:
        yield
    finally:
        protocol.arm()
