"""Which dtypes elementwise operators compute and return, for packages that bring operators of their own.

>>> import tritorch as torch
>>> from tritorch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND, elementwise_dtypes
>>> elementwise_dtypes(torch.ones(2, dtype=torch.bfloat16), 1, type_promotion_kind=KIND.DEFAULT)
(tritorch.float32, tritorch.bfloat16)
>>> elementwise_dtypes(torch.tensor([1, 2]), type_promotion_kind=KIND.INT_TO_FLOAT)
(tritorch.float32, tritorch.float32)
"""
import enum
import warnings

from tritorch.determinism import are_deterministic_algorithms_enabled, is_deterministic_algorithms_warn_only_enabled
from tritorch.dtype import get_default_dtype, promote, types
from tritorch.errors import check, sentence
from tritorch.tensor import Tensor


class ELEMENTWISE_TYPE_PROMOTION_KIND(enum.Enum):
    """How a result's dtype follows from that of the operands: as it is (in float32 for half types), integers as floats, without that
    computation in float32, always bool, complex numbers as their real parts, bools as int64."""

    DEFAULT = (0,)
    NO_OPMATH = (1,)
    INT_TO_FLOAT = (2,)
    ALWAYS_BOOL = (3,)
    COMPLEX_TO_FLOAT = (4,)
    BOOL_TO_LONG = (5,)


def is_boolean_dtype(dtype):
    """Whether a dtype is bool."""
    return dtype is types.bool


def is_integer_dtype(dtype):
    """Whether a dtype is one of integers."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype is types.bool)


def is_float_dtype(dtype):
    """Whether a dtype is a floating one."""
    return dtype.is_floating_point


def is_complex_dtype(dtype):
    """Whether a dtype is a complex one."""
    return dtype.is_complex


def corresponding_real_dtype(dtype):
    """The dtype of the parts of complex numbers."""
    return dtype.to_real()


def get_computation_dtype(dtype):
    """float32 for half types, others as they are."""
    return dtype.compute if dtype.is_floating_point else dtype


def elementwise_dtypes(*_args, type_promotion_kind):
    """(the dtype to compute in, the dtype of the result) of an elementwise operator with these operands, tensors, numbers or None.
    ValueError where there is none, TypeError for others."""
    args = [x for x in _args if x is not None]
    for x in args:
        check(isinstance(x, (Tensor, int, float, complex)), "elementwise_dtypes", "tensors, numbers or None", type(x).__name__,
              error=TypeError)
    check(args, "elementwise_dtypes", "at least one operand", "none", error=ValueError)
    kind, KIND = promote(*args, args[0]), ELEMENTWISE_TYPE_PROMOTION_KIND                  # of one operand, too
    if type_promotion_kind is KIND.INT_TO_FLOAT and not (kind.is_floating_point or kind.is_complex):
        kind = get_default_dtype()
    if type_promotion_kind is KIND.NO_OPMATH:
        return kind, kind
    if type_promotion_kind is KIND.BOOL_TO_LONG and kind is types.bool:
        return types.int64, types.int64
    computed = get_computation_dtype(kind)
    if type_promotion_kind is KIND.COMPLEX_TO_FLOAT and kind.is_complex:
        return computed, kind.to_real()
    return computed, types.bool if type_promotion_kind is KIND.ALWAYS_BOOL else kind


def alert_not_deterministic(caller):
    """What an operator does that has no deterministic algorithm: RuntimeError, or a warning, if programs asked for such alone."""
    if are_deterministic_algorithms_enabled():
        found = sentence(caller, "an operator with a deterministic algorithm", "one without", use="use_deterministic_algorithms(False)")
        if not is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(found)
        warnings.warn(found, stacklevel=2)
