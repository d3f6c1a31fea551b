"""What losses are reduced to, as the numbers that kernels take.

>>> from tritorch.nn import _reduction
>>> [_reduction.get_enum(name) for name in ("none", "mean", "sum")]
[0, 1, 2]
"""
_NUMBERS = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}


def get_enum(reduction):
    """0 of "none", 1 of "mean", 2 of "sum". ValueError for others."""
    if reduction not in _NUMBERS:
        raise ValueError(f"reduction: expected none, mean or sum, got {reduction!r}")
    return _NUMBERS[reduction]


def legacy_get_string(size_average, reduce, emit_warning=True):
    """The reduction that two older arguments, bools or None, stand for."""
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def legacy_get_enum(size_average, reduce, emit_warning=True):
    """`get_enum` of `legacy_get_string`."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
