"""The numbers that stand for sizes in PyTorch's traces. There are none here: the classes are for `isinstance`, and their functions are
those of plain numbers.

>>> import tritorch as torch
>>> isinstance(3, torch.SymInt), torch.sym_int(2.5), torch.sym_max(1, 2)
(False, 2, 2)
"""
sym_int, sym_float, sym_max, sym_min = int, float, max, min


class SymInt:
    """Stands for a whole number."""


class SymFloat:
    """Stands for a floating number."""


class SymBool:
    """Stands for a bool."""


def sym_not(a):
    """not a."""
    return not a
