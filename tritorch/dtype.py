"""Data types, their promotion, and the default floating type."""
import builtins
import functools
import math
import sys

import ml_dtypes
import numpy as np

from tritorch.errors import check, sentence
from tritorch.own_name import ours

_CATEGORY_BOOL, _CATEGORY_INT, _CATEGORY_FLOAT, _CATEGORY_COMPLEX = 0, 1, 2, 3
bool_, int_, float_, complex_ = builtins.bool, builtins.int, builtins.float, builtins.complex


class dtype:
    """An element type. There is one object of each, so `is` compares them.

    >>> import tritorch
    >>> tritorch.float32.itemsize, tritorch.bfloat16.is_floating_point
    (4, True)
    """

    __slots__ = ("name", "itemsize", "numpy", "triton", "category", "is_signed", "is_floating_point", "is_complex", "has_gradients",
                 "compute", "parts")

    def __init__(self, name, numpy_type, triton_name, category, is_signed=True):
        self.name, self.numpy, self.triton, self.category, self.is_signed = name, np.dtype(numpy_type), triton_name, category, is_signed
        self.itemsize = self.numpy.itemsize
        self.is_floating_point = category == _CATEGORY_FLOAT
        self.is_complex = category == _CATEGORY_COMPLEX
        self.has_gradients = category in (_CATEGORY_FLOAT, _CATEGORY_COMPLEX)
        self.compute = self.parts = self             # half and fp8 types compute in float32, parts of complex ones are real: set below

    def __repr__(self):
        return ours(self.name)

    def __reduce__(self):
        return self.name                                                 # pickles as a name of this module: still one object of each

    def to_real(self):
        """The dtype of the real and imaginary parts; a real dtype itself.

        >>> import tritorch; tritorch.complex64.to_real()
        tritorch.float32
        """
        return self.parts

    def to_complex(self):
        """The complex dtype whose parts hold the values: complex128 for float64, else complex64 (there is no complex32).

        >>> import tritorch; tritorch.float64.to_complex()
        tritorch.complex128
        """
        return self if self.is_complex else complex128 if self is float64 else complex64


float64 = dtype("float64", np.float64, "fp64", _CATEGORY_FLOAT)
float32 = dtype("float32", np.float32, "fp32", _CATEGORY_FLOAT)
float16 = dtype("float16", np.float16, "fp16", _CATEGORY_FLOAT)
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16, "bf16", _CATEGORY_FLOAT)
float8_e4m3fn = dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "fp8e4nv", _CATEGORY_FLOAT)
float8_e5m2 = dtype("float8_e5m2", ml_dtypes.float8_e5m2, "fp8e5", _CATEGORY_FLOAT)
int64 = dtype("int64", np.int64, "i64", _CATEGORY_INT)
int32 = dtype("int32", np.int32, "i32", _CATEGORY_INT)
int16 = dtype("int16", np.int16, "i16", _CATEGORY_INT)
int8 = dtype("int8", np.int8, "i8", _CATEGORY_INT)
uint8 = dtype("uint8", np.uint8, "u8", _CATEGORY_INT, is_signed=False)
bool = dtype("bool", np.bool_, "i1", _CATEGORY_BOOL, is_signed=False)
complex64 = dtype("complex64", np.complex64, "u64", _CATEGORY_COMPLEX)           # to kernels a complex64 is one word of 64 bits that holds
complex128 = dtype("complex128", np.complex128, "u64", _CATEGORY_COMPLEX)        # both parts, a complex128 two: triton_kernels/pairs.py
complex64.parts, complex128.parts = float32, float64

for _half in (float16, bfloat16, float8_e4m3fn, float8_e5m2):
    _half.compute = float32

# those that tensors cannot have: there to be named, asked for their size, and compared with
WIDE = uint16, uint32, uint64 = tuple(dtype(name, name, None, None, is_signed=False) for name in ("uint16", "uint32", "uint64"))
NARROW = [dtype(f"{kind}{bits}", f"{kind}8", None, None, kind == "int") for kind in ("uint", "int") for bits in range(1, 8)]
globals().update({kind.name: kind for kind in NARROW})                   # uint1 … int7
QUANTIZED = [dtype(name, numpy, None, None, is_signed=name[1] == "i") for name, numpy in (
    ("quint8", "uint8"), ("qint8", "int8"), ("qint32", "int32"), ("quint4x2", "uint8"), ("quint2x4", "uint8"))]
SELDOM = [dtype(name, numpy, None, category) for name, numpy, category in (
    ("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz, _CATEGORY_FLOAT), ("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz, _CATEGORY_FLOAT),
    ("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, _CATEGORY_FLOAT), ("float4_e2m1fn_x2", "V1", _CATEGORY_FLOAT),
    ("complex32", "V4", _CATEGORY_COMPLEX))]
globals().update({kind.name: kind for kind in (*QUANTIZED, *SELDOM)})
ELSEWHERE = (*WIDE, *NARROW, *QUANTIZED, *SELDOM)
chalf = SELDOM[-1]
chalf.parts = float16

double, float, half, long, int, short, cfloat, cdouble = float64, float32, float16, int64, int32, int16, complex64, complex128

REAL = (float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool, float8_e4m3fn, float8_e5m2)
ALL = (*REAL, complex64, complex128)
_BY_NUMPY = {t.numpy: t for t in ALL}
_PYTHON_TYPES = {bool_: bool, int_: int64, float_: float64}


def from_numpy_dtype(numpy_type):
    """The dtype of a numpy array, or a TypeError that lists what there is."""
    found = _BY_NUMPY.get(numpy_type)
    if found is None:
        raise TypeError(sentence("from_numpy", f"a numpy dtype among {', '.join(t.name for t in ALL)}", numpy_type))
    return found


def as_dtype(value):
    """A dtype from a dtype or a Python type (`float`, `int`, `bool`, `complex`)."""
    if isinstance(value, dtype):
        if value in ELSEWHERE:
            raise NotImplementedError(sentence("dtype", f"a dtype that tensors have, among {', '.join(t.name for t in ALL)}", value))
        return value
    if value is complex_:
        return complex128
    if isinstance(value, type) and value in _PYTHON_TYPES:
        return _PYTHON_TYPES[value]
    raise TypeError(f"dtype: expected a tritorch.dtype, got {value!r}")


def chosen(dtype, usual):
    """The dtype that an argument asks for, `usual` where it is None."""
    return usual if dtype is None else as_dtype(dtype)


# ------------------------------------------------------------------ the default floating type
_default = [float32]
default_changed: list = []                                               # called when it does


def get_default_dtype():
    """The floating type of tensors made from Python floats.

    >>> import tritorch; tritorch.get_default_dtype()
    tritorch.float32
    """
    return _default[0]


def set_default_dtype(d):
    """Make `d` the floating type of tensors made from Python floats.

    >>> import tritorch as torch
    >>> torch.set_default_dtype(torch.float64)
    >>> torch.tensor([0.5]).dtype
    tritorch.float64
    >>> torch.set_default_dtype(torch.float32)
    """
    check(isinstance(d, dtype) and d.is_floating_point and d.itemsize > 1, "set_default_dtype", "a floating dtype", d, error=TypeError)
    _default[0] = d
    for forget in default_changed:
        forget()


# ------------------------------------------------------------------ promotion
def _above(higher, lower):
    """The dtype of a higher category, wide enough for the parts of one of a lower."""
    return complex128 if higher.is_complex and lower is float64 else higher


def _make_promotion():
    ladder = {int8: 1, int16: 2, int32: 3, int64: 4}
    table = {}
    for a in ALL:
        for b in ALL:
            if a is b:
                out = a
            elif a.category != b.category:
                out = _above(a, b) if a.category > b.category else _above(b, a)
            elif a.is_complex:
                out = complex128
            elif a.category == _CATEGORY_INT:
                if uint8 in (a, b):
                    other = b if a is uint8 else a
                    out = int16 if other is int8 else other
                else:
                    out = a if ladder[a] > ladder[b] else b
            elif 1 in (a.itemsize, b.itemsize):
                out = None if a.itemsize == b.itemsize else (a if a.itemsize > b.itemsize else b)   # two different fp8: no rule
            elif a.itemsize == b.itemsize:
                out = float32                                            # float16 with bfloat16
            else:
                out = a if a.itemsize > b.itemsize else b
            table[a, b] = out
    return table


_PROMOTION = _make_promotion()


def promote_types(type1, type2):
    """The smallest dtype that both promote to.

    >>> import tritorch; tritorch.promote_types(tritorch.int32, tritorch.float16)
    tritorch.float16
    """
    out = _PROMOTION[as_dtype(type1), as_dtype(type2)]
    check(out is not None, "promote_types", "dtypes that promote", type1, type2)
    return out


def promote(*operands):
    """The result dtype of an operator on tensors and Python numbers.

    Tensors with dimensions outrank 0-dim tensors, which outrank Python numbers: a lower
    rank changes the dtype only if its category (bool < int < float < complex) is higher.

    >>> import tritorch; from tritorch.dtype import promote
    >>> promote(tritorch.ones(2, dtype=tritorch.float16), 2.5)
    tritorch.float16
    """
    if len(operands) == 2:                                               # the common cases, decided without a loop
        x, y = operands
        a, b = getattr(x, "dtype", None), getattr(y, "dtype", None)
        if a is not None:
            if a is b:
                return a
            if b is None and type(y) in _PYTHON_TYPES and (a.has_gradients
                                                           or type(y) is int_ and a.category == _CATEGORY_INT):
                return a
    best = [None, None, None]                                            # by rank: dimensioned, 0-dim, number
    for value in operands:
        kind = getattr(value, "dtype", None)
        if kind is None or isinstance(value, np.generic):                # numpy's numbers have a dtype of numpy's
            rank, kind = 2, _number_dtype(value)
        else:
            check(kind.__class__ is dtype, "promote", "tensors and numbers", type(value).__name__, use="tritorch.from_numpy(array)",
                  error=TypeError)
            rank = 0 if value.shape else 1
        best[rank] = kind if best[rank] is None else promote_types(best[rank], kind)
    out = best[0]
    for lower in best[1:]:
        if lower is not None and (out is None or lower.category > out.category):
            out = out.to_complex() if out is not None and out.is_floating_point else lower
    return out


result_type = promote


def _number_dtype(value):
    if isinstance(value, (bool_, np.bool_)):
        return bool
    if isinstance(value, (int_, np.integer)):
        return int64
    if isinstance(value, (float_, np.floating)):
        return _default[0]
    if isinstance(value, (complex_, np.complexfloating)):
        return _default[0].to_complex()
    raise TypeError(f"promote: expected tensors and numbers, got {type(value).__name__}")


def promote_float(*operands):
    """As promote, but integers become the default floating type: for operators whose result is never whole."""
    out = promote(*operands)
    return out if out.has_gradients else _default[0]


def check_beside(name, what, dtype, *tensors):
    """Raise RuntimeError unless the tensors beside an input of this dtype, if any, have it too, or that in which half types compute."""
    for x in tensors:
        if x is not None and x.dtype is not dtype and x.dtype is not dtype.compute:
            raise RuntimeError(sentence(name, f"{what} of {dtype}", x.dtype))


def can_cast(from_, to):
    """Whether a result of dtype `from_` may be stored in a tensor of dtype `to` (not float into int, nor int into bool).

    >>> import tritorch; tritorch.can_cast(tritorch.float32, tritorch.int64)
    False
    """
    return as_dtype(from_).category <= as_dtype(to).category


class finfo:
    """Limits of a floating dtype, or of the parts of a complex one: bits, eps, max, min, tiny, smallest_normal, resolution.

    >>> import tritorch; tritorch.finfo(tritorch.float16).max
    65504.0
    """

    def __init__(self, type=None):
        type = _default[0] if type is None else as_dtype(type).to_real()
        check(type.is_floating_point, "finfo", "a floating dtype", type, use="iinfo for integers", error=TypeError)
        info = ml_dtypes.finfo(type.numpy)
        self.bits, self.dtype = info.bits, type.name
        self.eps, self.max, self.min = float_(info.eps), float_(info.max), float_(info.min)
        self.tiny = self.smallest_normal = float_(info.smallest_normal)
        self.resolution = 10.0 ** -math.floor(-math.log10(self.eps)) if self.eps < 1 else 1.0

    def __repr__(self):
        names = "resolution", "min", "max", "eps", "smallest_normal", "tiny"
        return f"finfo({', '.join(f'{name}={getattr(self, name):g}' for name in names)}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype: bits, min, max.

    >>> import tritorch; tritorch.iinfo(tritorch.int8).max
    127
    """

    def __init__(self, type):
        type = type if type in ELSEWHERE else as_dtype(type)
        whole = type in WIDE or type in QUANTIZED or type.category == _CATEGORY_INT
        check(whole, "iinfo", "an integer dtype", type, use="finfo for floating types", error=TypeError)
        info = np.iinfo(type.numpy)
        self.bits, self.dtype, self.min, self.max = info.bits, type.name, int_(info.min), int_(info.max)

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


finfo_of, iinfo_of = functools.cache(finfo), functools.cache(iinfo)      # for operators: numpy takes 3 µs to tell


types = sys.modules[__name__]                                         # this module: the name `tritorch.dtype` is the class, as in PyTorch
