"""Families of elementwise operators: `unary`, `binary` and `ternary` make an operator from a scalar function on each device.

An operator is one call here: its name and manual, a numpy function, a Triton scalar function, a dtype rule, its gradients.
Numbers stay numbers; half types compute in float32; everything broadcasts and takes any strides. Results keep the order of dims that
their operands have in memory, as PyTorch's do: see memory_format.py.
"""
import inspect
from functools import cache, partial

import numpy as np

from tritorch.cuda import driver, tuner
from tritorch.cuda.launch import Prepared, kernels
from tritorch.cuda.trace import PassedFloat
from tritorch.dispatch import common_device, op
from tritorch.dtype import promote, promote_float, types
from tritorch.errors import check
from tritorch.memory_format import broadcasting as broadcasting_strides
from tritorch.memory_format import elementwise as elementwise_strides
from tritorch.ops import tiling
from tritorch.ops.arrays import on_arrays
from tritorch.shape import broadcast_shapes, broadcast_strides, cdiv, is_dense, layout, same_strides
from tritorch.tensor import Tensor

K = kernels("pointwise")                                                 # the loops
SCALAR = kernels("scalar")                                               # what they run on each element


# ------------------------------------------------------------------ shape and dtype rules
def same(name, *operands):
    """The promoted dtype."""
    return promote(*operands)


def floating(name, *operands):
    """The promoted dtype, integers as the default floating type."""
    return promote_float(*operands)


def boolean(name, *operands):
    """Always bool: comparisons and predicates."""
    return types.bool


def numbers(name, *operands):
    """The promoted dtype, which must not be bool."""
    kind = promote(*operands)
    check(kind is not types.bool, name, "numbers", kind, use="logical operators for bools")
    return kind


def floats(name, *operands):
    """The promoted dtype, which must be floating."""
    kind = promote(*operands)
    check(kind.is_floating_point, name, "a floating dtype", kind)
    return kind


def one_dtype(name, x, y):
    """The dtype that both tensors have."""
    check(x.dtype is y.dtype, name, "tensors of one dtype", x.dtype, y.dtype)
    return x.dtype


def no_bools(name, *operands):
    """The promoted dtype of operands none of which may be bool."""
    for x in operands:
        kind = x.dtype if isinstance(x, Tensor) else type(x)
        check(kind is not types.bool and kind is not bool, name, "numbers", kind, use="^ or logical_not() for bools")
    return promote(*operands)


def integers(name, *operands):
    """The promoted dtype, which must not be floating."""
    kind = promote(*operands)
    check(not kind.is_floating_point, name, "integers or bools", kind)
    return kind


def joined(name, x, y):
    """(shape, device) of two operands, one of which may be a number."""
    if isinstance(x, Tensor):
        if not isinstance(y, Tensor):
            return x.shape, x.storage.device
        if x.shape == y.shape and x.storage.device is y.storage.device:
            return x.shape, x.storage.device
        return broadcast_shapes(name, x.shape, y.shape), common_device(name, x, y)
    if isinstance(y, Tensor):
        return y.shape, y.storage.device
    raise TypeError(f"{name}: expected at least one tensor, got {type(x).__name__} and {type(y).__name__}")


def joined3(name, x, y, z):
    """(shape, device) of three operands, some of which may be numbers."""
    tensors = [v for v in (x, y, z) if isinstance(v, Tensor)]
    if not tensors:
        raise TypeError(f"{name}: expected at least one tensor, got {type(x).__name__}, {type(y).__name__} and {type(z).__name__}")
    return broadcast_shapes(name, *[v.shape for v in tensors]), common_device(name, *tensors)


def strides_of(shape, *operands):
    """How the promise of an elementwise operator ends: (strides, rule), as PyTorch lays out its result."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if len(tensors) == 1:
        return tensors[0].strides, elementwise_strides if len(operands) == 1 else broadcasting_strides
    first, usual = tensors[0], layout(shape)[1]
    if first.strides is usual and first.shape == shape and 1 not in shape or all(x.strides is usual or not x.shape for x in tensors):
        return None, None                                                # the common cases, at once
    return _strides_of(shape, len(operands), *[(x.shape, x.strides) for x in tensors]), None


@tiling.remember
def _strides_of(shape, count, *tensors):
    whole = len(tensors) == count and all(size == shape for size, _ in tensors)
    return (elementwise_strides if whole else broadcasting_strides)(shape, *[broadcast_strides(*x, shape) for x in tensors])


FLOATS_STAY = (same, floating, numbers, floats, no_bools)                # two operands of one floating dtype keep it


def _array(x):
    return x.array if isinstance(x, Tensor) else x


# ------------------------------------------------------------------ on CUDA
def compute_name(compute):
    """The name of a compute dtype for the kernels; bool computes in int32."""
    return "i32" if compute is types.bool else compute.triton


def as_number(x, compute):
    """A number as a kernel argument of the compute type."""
    if compute is types.float64:
        return np.float64(x)
    return x if x.__class__ is PassedFloat else float(x) if compute.is_floating_point else int(x)


def launch_elementwise(out, operands, fn, compute, attrs=(), first_compute=None):
    """Start the flat loop when the output is gapless and every operand lies in its order, else the strided one.

    `first_compute` is the type of the first of three operands if it is not the common one (the condition of `where`).
    """
    shape, strides, count = layout(out.shape)
    if count == 0:
        return
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


_loops: dict = {}                                                        # flat loops with their constexprs settled, and their block sizes
_tilings: dict = {}                                                      # the same for strided ones, and what follows from the strides
for _table in (_loops, _tilings):
    driver.watchers.append(_table.clear)                                 # another driver, other blocks
    tuner.changed.append(_table.clear)
KEPT = 4096
# functions that compute long and in many registers, and the warps for 512 elements with which they spill none: nothing to be tuned
LABORIOUS = {"triton_kernels.gamma": 4, "triton_kernels.bessel": 4, "triton_kernels.incomplete": 8, "triton_kernels.zeta": 16,
             "triton_kernels.polynomials": 16}
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
    warps = LABORIOUS.get(fn.__module__)
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
    warps = LABORIOUS.get(fn.__module__)
    chosen = tiling.tile_candidates(way, 8)[0] | {"num_warps": warps} if warps else tuner.choose(
        "strided", (_named(widths), *tiling.kind(way), *area), tiling.tile_candidates(way, max(widths)), None,
        _again(args, lambda blocks: prepare(**blocks)(tiling.programs(way, blocks), [*args, *sizes, *numbers])))
    if len(_tilings) >= KEPT:
        _tilings.clear()
    _tilings[key] = prepare(**chosen), tiling.programs(way, chosen), sizes
    return _tilings[key]


# ------------------------------------------------------------------ the families
def _finish(made, name, doc, grads, workload_arity, condition=False):
    made.__doc__ = doc
    for target, rule in (grads or {}).items():
        made.grad(*target.split())(rule)

    @made.workloads
    def workloads(make):
        n = 1 << 24
        first, *others = [make(n, positive=True, grad=False) for _ in range(workload_arity)]
        operands = (first > 1 if condition else first, *others)
        yield f"{name} 16M fp32", lambda: operands, n * (4 * (workload_arity + 1) - 3 * condition), n

    return made


def unary(name, doc, cpu, fn=None, *, functions=SCALAR, result=same, grad=None, attrs=(), domain=None, samples=None, **options):
    """An operator of one tensor and the number attributes in `attrs` ((name, default), …).

    `cpu` is a numpy function of (x, *attributes), `fn` the scalar function among the kernels of `functions` (default: of the same
    name), `result` the dtype rule, `grad` the gradient rule of the input, `domain` how samples are drawn.
    """
    fn = fn or name
    names = [a for a, _ in attrs]

    def rule(input, *values):
        try:
            return input.shape, result(name, input), input.storage.device, input.strides, elementwise_strides
        except AttributeError:
            raise TypeError(f"{name}: expected a tensor, got {type(input).__name__}") from None

    made = op(_signed(rule, name, ["input", *names], dict(attrs)), aliasable=True, **options)

    def compute_type(x, out):
        return (promote_float(x) if result is floating else x.dtype).compute if out.dtype is types.bool else out.dtype.compute

    @made.impl("cpu", raw=True)
    def on_cpu(out, input, *values):
        on_arrays(cpu, out.array, compute_type(input, out), input.array, attrs=values)

    @made.impl("cuda")
    def on_cuda(out, input, *values):
        launch_elementwise(out, (input,), getattr(functions, fn), compute_type(input, out), values)

    @made.samples
    def default_samples(make):
        draw = domain or {}
        for shape in ((3, 4), (7,), (), (2, 0, 3)):
            yield (make(*shape, **draw), *[v for _, v in attrs])
        if samples is not None:
            yield from samples(make)

    return _finish(made, name, doc, {"input": grad} if grad else None, 1)


def binary(name, doc, cpu, fn=None, *, functions=SCALAR, result=same, grad_input=None, grad_other=None, attrs=(), domain=None, samples=None,
           names=("input", "other"), compute=None, tensors="", **options):
    """An operator of two operands that broadcast, either of which may be a number, but for those in `tensors`. Arguments as in `unary`.
    Long, because all parts of a card are made here."""
    fn = fn or name
    x_name, y_name = names

    keeps, no_input, no_other = result in FLOATS_STAY, "input" in tensors, "other" in tensors

    def rule(x, y, *values):
        if (keeps and isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.dtype is y.dtype
                and x.dtype.is_floating_point):
            device = x.storage.device                                    # the common case, without three more calls
            if device is y.storage.device and x.strides == y.strides:
                return x.shape, x.dtype, device, x.strides, elementwise_strides
        elif isinstance(x, Tensor) and not isinstance(y, Tensor):
            if no_other:
                raise TypeError(f"{name}: expected a tensor as other, got {type(y).__name__}")
            return x.shape, result(name, x, y), x.storage.device, x.strides, broadcasting_strides
        elif no_input and not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor as input, got {type(x).__name__}")
        shape, device = joined(name, x, y)
        kind = result(name, x, y)
        if isinstance(x, Tensor) and x.shape == shape and x.strides is layout(shape)[1] and 1 not in shape:
            return shape, kind, device                                   # the first operand decides
        return shape, kind, device, *strides_of(shape, x, y)

    made = op(_signed(rule, name, [x_name, y_name, *[a for a, _ in attrs]], dict(attrs)), aliasable=True, **options)

    def compute_type(x, y, out):
        kind = compute(name, x, y) if compute else promote(x, y) if out.dtype is types.bool else out.dtype
        return kind.compute

    @made.impl("cpu", raw=True)
    def on_cpu(out, x, y, *values):
        on_arrays(cpu, out.array, compute_type(x, y, out), _array(x), _array(y), attrs=values)

    @made.impl("cuda", passes={y_name: float})
    def on_cuda(out, x, y, *values):
        launch_elementwise(out, (x, y), getattr(functions, fn), compute_type(x, y, out), values)

    @made.samples
    def default_samples(make):
        draw = domain or {}
        rest = [v for _, v in attrs]
        for a, b in (((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (5,)), ((0, 3), (3,))):
            yield (make(*a, **draw), make(*b, **draw), *rest)
        if names == ("input", "other"):
            if "other" not in tensors:
                yield (make(3, 5, **draw), 2, *rest)
            if "input" not in tensors:
                yield (1.5 if result is not boolean else 1, make(4, **draw), *rest)
        if samples is not None:
            yield from samples(make)

    return _finish(made, name, doc, {k: v for k, v in ((x_name, grad_input), (y_name, grad_other)) if v}, 2)


def ternary(name, doc, cpu, fn=None, *, functions=SCALAR, result=same, grads=None, attrs=(), samples=None,
            names=("input", "other", "third"), condition=False, **options):
    """An operator of three operands that broadcast; with `condition` the first is a bool tensor that has no part in the dtype."""
    fn = fn or name

    def rule(x, y, z, *values):
        shape, device = joined3(name, x, y, z)
        return shape, result(name, y, z) if condition else result(name, x, y, z), device, *strides_of(shape, x, y, z)

    made = op(_signed(rule, name, [*names, *[a for a, _ in attrs]], dict(attrs)), aliasable=True, **options)

    @made.impl("cpu", raw=True)
    def on_cpu(out, x, y, z, *values):
        if condition:
            on_arrays(cpu, out.array, out.dtype.compute, _array(y), _array(z), attrs=values, condition=_array(x))
        else:
            on_arrays(cpu, out.array, out.dtype.compute, _array(x), _array(y), _array(z), attrs=values)

    @made.impl("cuda")
    def on_cuda(out, x, y, z, *values):
        launch_elementwise(out, (x, y, z), getattr(functions, fn), out.dtype.compute, values, types.bool if condition else None)

    if samples is not None:
        made.samples(samples)
    return _finish(made, name, doc, grads, 3, condition)


def _signed(rule, name, names, defaults):
    """The shape rule under the operator's name and signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    rule.__signature__ = inspect.Signature([inspect.Parameter(n, kind, default=defaults.get(n, inspect.Parameter.empty)) for n in names])
    rule.__name__ = rule.__qualname__ = name
    return rule
