"""What programs tell PyTorch's loader about classes. It is noted here and never needed: files name no classes."""
import contextlib

_safe_globals: list[object] = []


def add_safe_globals(safe_globals):
    """Take note of classes that files may name in PyTorch; here they name none."""
    _safe_globals.extend(x for x in safe_globals if x not in _safe_globals)


def get_safe_globals():
    """What `add_safe_globals` took note of."""
    return list(_safe_globals)


def clear_safe_globals():
    """Forget what `add_safe_globals` took note of."""
    _safe_globals.clear()


@contextlib.contextmanager
def safe_globals(safe_globals):
    """`add_safe_globals` for a block."""
    before = get_safe_globals()
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _safe_globals[:] = before
