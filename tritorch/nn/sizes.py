"""Sizes given as one number for all spatial dims or as one number each."""
from collections.abc import Iterable


def sizes(value, ndim):
    """`value` as a tuple, repeated `ndim` times if it is one number."""
    return tuple(value) if isinstance(value, Iterable) else (value,) * ndim


def _single(value):
    return sizes(value, 1)


def _pair(value):
    return sizes(value, 2)


def _triple(value):
    return sizes(value, 3)
