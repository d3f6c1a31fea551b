"""PyTorch's switches for deterministic algorithms. Here all are, unless an operator's documentation says otherwise."""
from tritorch.errors import check

_mode = [0]                                                              # 0: not asked for, 1: a warning would do, 2: an error
LEVELS = {"default": 0, "warn": 1, "error": 2}


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Ask for deterministic algorithms. No operator chooses another: no result depends on the order in which a GPU's threads run.

    >>> import tritorch as torch
    >>> torch.use_deterministic_algorithms(True); torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.use_deterministic_algorithms(False)
    """
    _mode[0] = 0 if not mode else 1 if warn_only else 2


def are_deterministic_algorithms_enabled():
    """What `use_deterministic_algorithms` was told."""
    return _mode[0] > 0


def is_deterministic_algorithms_warn_only_enabled():
    """Whether `use_deterministic_algorithms` was told that a warning would do."""
    return _mode[0] == 1


def set_deterministic_debug_mode(debug_mode):
    """`use_deterministic_algorithms` by a number or name: 0 or "default" for False, 1 or "warn" for warn_only, 2 or "error" for True.

    >>> import tritorch as torch
    >>> torch.set_deterministic_debug_mode("warn"); torch.get_deterministic_debug_mode()
    1
    >>> torch.set_deterministic_debug_mode(0)
    """
    name, wanted = "set_deterministic_debug_mode", "one of 0, 1, 2, 'default', 'warn', 'error'"
    check(isinstance(debug_mode, (int, str)), name, wanted, repr(debug_mode), error=TypeError)
    level = LEVELS.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    check(level in (0, 1, 2), name, wanted, repr(debug_mode))
    _mode[0] = int(level)


def get_deterministic_debug_mode():
    """The number of the mode that `set_deterministic_debug_mode` describes."""
    return _mode[0]
