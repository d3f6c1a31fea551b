"""Copies of the parts of sparse tensors, as functions."""
from tritorch.errors import tensors


def _copy(name):
    def copy(input):
        tensors(name + "_copy", input=input)
        return getattr(input, name)().clone()

    copy.__name__ = copy.__qualname__ = name + "_copy"
    copy.__doc__ = f"A copy of `input.{name}()`."
    return copy


indices_copy, values_copy, crow_indices_copy, col_indices_copy, ccol_indices_copy, row_indices_copy = map(_copy, (
    "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices"))


def resize_as_sparse_(input, the_template):
    """`input.resize_as_sparse_(the_template)`."""
    return input.resize_as_sparse_(the_template)
