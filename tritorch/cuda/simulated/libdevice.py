"""CUDA's libdevice on numpy: computed in float64, rounded to the type of the arguments."""
from __future__ import annotations

import numpy as np

from . import special
from .conversions import CARRIER, FP32, FP64, INT1, INT32, INT64, KIND, UINT32, UINT64, converted, to_integers
from .values import Value, to_value


def _values(name, args):
    """The arguments as values of one shape and, the rule of libdevice, of one type."""
    values = [to_value(a) for a in args]
    if any(v.dtype is not values[0].dtype for v in values):
        raise ValueError(f"libdevice.{name}: input arg type does not match: {tuple(v.dtype.name for v in values)}")
    return values


def _floating(name, function, result=None):
    """float -> float, or -> `result`."""
    def call(*args):
        values = _values(name, args)
        dtype = values[0].dtype
        if dtype is not FP32 and dtype is not FP64:
            raise ValueError(f"libdevice.{name}: input arg type does not match: expected fp32 or fp64, got {dtype}")
        out = function(*(v.data.astype(np.float64) for v in values))
        target = result or dtype
        return Value(np.asarray(out).astype(CARRIER[target.name])[()], target)
    return call


def _to_integer(rounding, target):
    def call(x):
        x = to_value(x)
        return Value(to_integers(rounding(x.data.astype(np.float64)), CARRIER[target.name]), target)
    return call


def _integer(name, function, result=None):
    def call(*args):
        values = _values(name, args)
        if KIND[values[0].dtype.name] != 1:
            raise ValueError(f"libdevice.{name}: input arg type does not match: expected an integer, got {values[0].dtype}")
        target = result or values[0].dtype
        return Value(np.asarray(function(*(v.data for v in values))).astype(CARRIER[target.name])[()], target)
    return call


def _round(x):
    """Half away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _remainder(a, b):
    """IEEE remainder: exact, the quotient rounded to even."""
    rest = np.fmod(a, b)
    half = np.abs(rest) * 2
    odd = np.fmod(np.trunc(np.divide(a, b)), 2) != 0
    away = (half > np.abs(b)) | ((half == np.abs(b)) & odd)
    return np.where(away, rest - np.copysign(b, rest), np.where(np.isinf(b) & np.isfinite(a), a, rest))


def _sinpi(x):
    """sin πx, near whole numbers too; of those it is a 0 of their sign."""
    whole = np.rint(x)
    made = np.sin(np.pi * (x - whole)) * np.where(np.fmod(whole, 2) != 0, -1.0, 1.0)
    return np.where((x == whole) & np.isfinite(x), np.copysign(0, x), made)


def _bit_count(x):
    unsigned = x.astype(np.uint64) & np.uint64(2 ** (x.dtype.itemsize * 8) - 1)
    return sum(((unsigned >> np.uint64(i)) & np.uint64(1)) for i in range(x.dtype.itemsize * 8))


def _leading_zeros(x):
    width = x.dtype.itemsize * 8
    unsigned = x.astype(np.uint64) & np.uint64(2**width - 1)
    return sum((unsigned >> np.uint64(i)) == 0 for i in range(width))


def _first_set(x):
    lowest = x & -x
    return np.where(x == 0, 0, x.dtype.itemsize * 8 - _leading_zeros(lowest))


def _power(x, y):
    x, y = to_value(x), to_value(y)
    if KIND[y.dtype.name] == 1:
        y = Value(y.data.astype(CARRIER[x.dtype.name]), x.dtype)
    return _floating("pow", np.power)(x, y)


def _scaled(x, exponent):
    x, exponent = to_value(x), to_value(exponent)
    return Value(np.ldexp(x.data, exponent.data.astype(np.int32)), x.dtype)


def _reinterpreted(target):
    return lambda x: to_value(x).cast(target, bitcast=True)


def _half(shift):
    """32 of the bits of a double."""
    return lambda x: Value((to_value(x).cast(INT64, bitcast=True).data >> shift).astype(CARRIER[INT32.name])[()], INT32)


def _converted(target):
    def call(x):
        x = to_value(x)
        return Value(converted(x.data, x.dtype, target), target)
    return call


def _scipy(name):
    def function(*args):
        if special.scipy() is None:
            raise NotImplementedError(f"libdevice needs scipy for {name} on the simulated device; pip install scipy")
        return getattr(special.scipy(), name)(*args)
    return function


_FLOATING = dict(
    abs=np.abs, floor=np.floor, ceil=np.ceil, trunc=np.trunc, rint=np.rint, nearbyint=np.rint, round=_round, sqrt=np.sqrt,
    rsqrt=special.rsqrt,
    exp=np.exp, exp2=np.exp2, exp10=lambda x: np.power(10.0, x), expm1=np.expm1, log=np.log, log2=np.log2, log10=np.log10, log1p=np.log1p,
    sin=np.sin, cos=np.cos, tan=np.tan, asin=np.arcsin, acos=np.arccos, atan=np.arctan, atan2=np.arctan2, sinh=np.sinh, cosh=np.cosh,
    tanh=np.tanh, asinh=np.arcsinh, acosh=np.arccosh, atanh=np.arctanh, sinpi=_sinpi,
    cospi=lambda x: _sinpi(0.5 - np.abs(np.fmod(x, 2.0))) + 0.0, cbrt=np.cbrt, rcbrt=lambda x: 1 / np.cbrt(x), hypot=np.hypot,
    rhypot=lambda x, y: 1 / np.hypot(x, y), erf=special.erf, erfc=special.erfc, erfcx=special.erfcx, erfinv=special.erfinv,
    erfcinv=special.erfcinv, normcdf=special.normcdf, normcdfinv=special.normcdfinv, lgamma=special.lgamma, tgamma=special.tgamma,
    fmod=np.fmod, remainder=_remainder, copysign=np.copysign,
    fdim=lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x - y), np.nan, 0.0)),
    fma=lambda x, y, z: x * y + z, logb=lambda x: np.floor(np.log2(np.abs(x))), saturatef=lambda x: np.fmin(np.fmax(x, 0.0), 1.0),
    j0=_scipy("j0"), j1=_scipy("j1"), y0=_scipy("y0"), y1=_scipy("y1"), cyl_bessel_i0=_scipy("i0"), cyl_bessel_i1=_scipy("i1"),
    fast_sinf=np.sin, fast_cosf=np.cos, fast_tanf=np.tan, fast_tanhf=np.tanh, fast_expf=np.exp, fast_exp10f=lambda x: np.power(10.0, x),
    fast_logf=np.log, fast_log2f=np.log2, fast_log10f=np.log10, fast_powf=np.power, fast_dividef=np.divide,
    norm3d=lambda x, y, z: np.sqrt(x * x + y * y + z * z), norm4d=lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w),
    add_rn=np.add, sub_rn=np.subtract, mul_rn=np.multiply, div_rn=np.divide, sqrt_rn=np.sqrt, rsqrt_rn=special.rsqrt,
    rcp_rn=lambda x: 1 / x, fma_rn=lambda x, y, z: x * y + z)
_ROUNDINGS = dict(rn=np.rint, rz=np.trunc, rd=np.floor, ru=np.ceil)
_TARGETS = dict(int=INT32, uint=UINT32, ll=INT64, ull=UINT64)

FUNCTIONS = {name: _floating(name, function) for name, function in _FLOATING.items()}
FUNCTIONS |= {name: _floating(name, function, INT1) for name, function in (
    ("isnan", np.isnan), ("isinf", np.isinf), ("finitef", np.isfinite), ("isfinited", np.isfinite))}
FUNCTIONS["signbit"] = _floating("signbit", np.signbit, INT32)
FUNCTIONS["ilogb"] = _floating("ilogb", lambda x: np.floor(np.log2(np.abs(x))), INT32)
FUNCTIONS |= {f"{source}2{target}_{mode}": _to_integer(rounding, dtype)
              for source in ("float", "double") for target, dtype in _TARGETS.items() for mode, rounding in _ROUNDINGS.items()}
FUNCTIONS |= {"llrint": _to_integer(np.rint, INT64), "llround": _to_integer(_round, INT64)}
FUNCTIONS |= {f"{source}2{target}_rn": _converted(dtype) for source in _TARGETS for target, dtype in (("float", FP32), ("double", FP64))}
FUNCTIONS |= {"double2float_rn": _converted(FP32), "pow": _power, "ldexp": _scaled, "scalbn": _scaled}
FUNCTIONS |= {f"{kind}_as_{other}": _reinterpreted(target) for kind, other, target in (
    ("int", "float", FP32), ("uint", "float", FP32), ("float", "int", INT32), ("float", "uint", UINT32),
    ("longlong", "double", FP64), ("double", "longlong", INT64))}
FUNCTIONS |= {"double2hiint": _half(32), "double2loint": _half(0)}
FUNCTIONS |= {"popc": _integer("popc", _bit_count, INT32), "clz": _integer("clz", _leading_zeros, INT32),
              "ffs": _integer("ffs", _first_set, INT32),
              "hadd": _integer("hadd", lambda x, y: (x >> 1) + (y >> 1) + (x & y & 1)),
              "rhadd": _integer("rhadd", lambda x, y: (x >> 1) + (y >> 1) + ((x | y) & 1))}


def _nextafter(x, y):
    x, y = _values("nextafter", (x, y))
    return Value(np.nextafter(x.data, y.data), x.dtype)


FUNCTIONS["nextafter"] = _nextafter
