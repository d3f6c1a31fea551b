"""PyTorch's switch for deterministic algorithms. Here all are, unless an operator's documentation says otherwise."""
_wanted = False


def use_deterministic_algorithms(mode, *, warn_only=False):
    """Ask for deterministic algorithms. No operator chooses another: no result depends on the order in which a GPU's threads run.

    >>> import tritorch as torch
    >>> torch.use_deterministic_algorithms(True); torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.use_deterministic_algorithms(False)
    """
    global _wanted
    _wanted = bool(mode)


def are_deterministic_algorithms_enabled():
    """What `use_deterministic_algorithms` was told."""
    return _wanted
