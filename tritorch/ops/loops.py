"""How elementwise kernels are started: the flat loop over what lies gapless in one order, or the strided one, with the blocks that the
tuner chose. What is settled about a loop is remembered."""
from functools import cache, partial

import numpy as np

from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import Prepared, kernels
from tritorch.cuda.own_kernels import family_of
from tritorch.cuda.trace import PassedFloat
from tritorch.dtype import types
from tritorch.ops import tiling
from tritorch.shape import broadcast_strides, cdiv, is_dense, layout, same_strides
from tritorch.tensor import Tensor, empty_like, part

K = kernels("pointwise")                                                 # the loops
SCALAR = kernels("scalar")                                               # what they run on each element
COMPLEX = kernels("complex_scalar")                                      # the same for complex numbers, by the same names


def compute_name(compute):
    """The name of a compute dtype for the kernels; bool computes in int32."""
    return "i32" if compute is types.bool else f"c{compute.itemsize * 8}" if compute.is_complex else compute.triton


def as_number(x, compute):
    """A number as a kernel argument of the compute type."""
    if compute is types.float64:
        return np.float64(x)
    if compute.is_complex:
        return as_number(x.real, compute.parts), as_number(x.imag, compute.parts)
    return x if x.__class__ is PassedFloat else float(x) if compute.is_floating_point else int(x)


def launch_elementwise(out, operands, fn, compute, attrs=(), first_compute=None):
    """Start the flat loop when the output is gapless and every operand lies in its order, else the strided one.

    `first_compute` is the type of the first of three operands if it is not the common one (the condition of `where`).
    """
    shape, strides, count = layout(out.shape)
    if count == 0:
        return
    if compute.is_complex:
        operands = [widened(x, compute) for x in operands]
    args, scalars, flat, widths = [out], 0, out.strides == strides or is_dense(shape, out.strides), out.dtype.itemsize
    strides = out.strides
    for x in operands:
        if isinstance(x, Tensor):
            if x.shape != shape or x.strides != strides and not same_strides(shape, x.strides, strides):
                flat = False
            widths |= x.dtype.itemsize << 8 * len(args)
        else:
            scalars |= 1 << len(args)
            x = as_number(x, compute if first_compute is None or len(args) > 1 else first_compute)
        args.append(x)
    how = id(fn), compute, scalars, first_compute, widths, driver.hardware_tiles
    numbers = [as_number(a, compute) for a in attrs]
    if flat:
        args += [count, *numbers]
        how += count % 16 != 0 and count > TILED,
        start, block = _loops.get(how) or _flat_loop(how, fn, len(operands), len(attrs), args, count)
        start(-(-count // block), args)
        return
    key = (*how, shape, out.strides, *[(x.shape, x.strides) if isinstance(x, Tensor) else None for x in operands])
    start, programs, sizes = _tilings.get(key) or _strided_loop(key, fn, out, operands, args, numbers)
    start(programs, [*args, *sizes, *numbers])


def widened(x, compute):
    """An operand for loops that compute in a complex dtype: they take real ones, but complex ones of their own dtype only."""
    if not isinstance(x, Tensor) or not x.dtype.is_complex or x.dtype is compute:
        return x
    out = empty_like(x, compute)
    convert(out, x)
    return out


def convert(out, x):
    """out = x, both on one device, of any dtypes. Of complex numbers real ones keep the real part, bools whether they are 0."""
    if x.dtype.is_complex and out.dtype is not x.dtype:
        if out.dtype is types.bool:
            launch_elementwise(out, (x, 0), COMPLEX.ne, x.dtype)
        elif out.dtype.is_complex:
            for which in (0, 1):
                convert(part(out, which), part(x, which))
        else:
            convert(out, part(x, 0))
    else:
        launch_elementwise(out, (x,), SCALAR.identity, out.dtype if out.dtype.is_complex else _exact(x.dtype, out.dtype))


def _exact(source, target):
    """The type to go through from source to target: the wider one, so that nothing is rounded twice."""
    if source is types.bool or target is types.bool:
        return source.compute if target is types.bool else target.compute
    return source.compute if source.is_floating_point or source.itemsize >= target.itemsize else target.compute


_loops: dict = {}                                                        # flat loops with their constexprs settled, and their block sizes
_tilings: dict = {}                                                      # the same for strided ones, and what follows from the strides
for _table in (_loops, _tilings):
    driver.watchers.append(_table.clear)                                 # another driver, other blocks
    tuner.changed.append(_table.clear)
KEPT = 4096
# functions that compute long and in many registers, and the warps for 512 elements with which they spill none: nothing to be tuned
LABORIOUS = {"gamma": 4, "bessel": 4, "incomplete": 8, "zeta": 16, "polynomials": 16}
TILED = 1 << 16                                                          # elements from which it pays to have loops for odd numbers of them


def _loop(how, fn, arity, attrs, kind):
    """How to prepare the loop of a scalar function for given blocks; `how` begins with what decides about it. Callers remember it: a loop
    that is prepared anew finds its code anew, which the tuner's clock, on an H100, saw as 70 to 400 µs of a copy that takes 360."""
    _, compute, scalars, first_compute, *_ = how
    flags = {f"{letter}_SCALAR": bool(scalars >> k & 1) for k, letter in enumerate("XYZ"[:arity], 1)}
    flags.update(dict.fromkeys("ab"[attrs:1 if arity == 3 else 2]))      # attributes that it does not have
    if arity == 3:
        flags["X_COMPUTE"] = compute_name(first_compute or compute)
    kernel = getattr(K, f"{('unary', 'binary', 'ternary')[arity - 1]}_{kind}")
    return partial(Prepared, kernel, FN=fn, ATTRS=attrs, COMPUTE=compute_name(compute), **flags)


def _sizes(widths):
    """Bytes of an element of the destination and of each operand that is a tensor; launch_elementwise packs them into one number."""
    return [n for n in widths.to_bytes(4, "little") if n]


def _named(sizes):
    """`sizes` in a tuner's key, in which whole numbers would stand for others nearby: "4 from 4 2"."""
    return f"{sizes[0]} from {' '.join(map(str, sizes[1:]))}"


def _again(args, run):
    """`run`, which the tuner may call often; None where that would change the result, because an operand is the destination too."""
    return None if any(isinstance(x, Tensor) and x.storage is args[0].storage for x in args[1:]) else run


def _flat_loop(how, fn, arity, attrs, args, count):
    """(the prepared loop, its block) for contiguous operands; remembered."""
    prepare, sizes = cache(partial(_loop(how, fn, arity, attrs, "flat"), ODD=how[-1])), _sizes(how[4])
    warps = LABORIOUS.get(family_of(fn.__module__))
    chosen = tiling.flat_candidates(8)[0] | {"num_warps": warps} if warps else tuner.choose(
        "pointwise", (_named(sizes),), tiling.flat_candidates(max(sizes)), None,
        _again(args, lambda blocks: prepare(**blocks)(cdiv(count, blocks["BLOCK"]), args)))
    _loops[how] = prepare(**chosen), chosen["BLOCK"]
    return _loops[how]


def _strided_loop(key, fn, out, operands, args, numbers):
    """(the prepared loop, how many programs, shape and strides as arguments) for operands of any strides; remembered."""
    still = (0,) * len(out.shape)
    strides = [broadcast_strides(x.shape, x.strides, out.shape) if isinstance(x, Tensor) else still for x in (out, *operands)]
    way = tiling.walk(out.shape, *strides)
    area = way.rows, way.shape[-1]
    sizes = [way.shape, *way.strides, *area]
    prepare = cache(partial(_loop(key, fn, len(operands), len(numbers), "strided"), FORMS=way.forms, OUTER=len(way.shape) - 2,
                            EVENS=way.even, WIDE=way.wide))
    widths = _sizes(key[4])
    warps = LABORIOUS.get(family_of(fn.__module__))
    chosen = tiling.tile_candidates(way, 8)[0] | {"num_warps": warps} if warps else tuner.choose(
        "strided", (_named(widths), *tiling.kind(way), *area), tiling.tile_candidates(way, max(widths)), None,
        _again(args, lambda blocks: prepare(**blocks)(tiling.programs(way, blocks), [*args, *sizes, *numbers])))
    if len(_tilings) >= KEPT:
        _tilings.clear()
    _tilings[key] = prepare(**chosen), tiling.programs(way, chosen), sizes
    return _tilings[key]
