"""Families of elementwise operators: `unary`, `binary` and `ternary` make an operator from a scalar function on each device.

An operator is one call here: its name and manual, a numpy function, a Triton scalar function, a dtype rule, its gradients.
Numbers stay numbers; half types compute in float32; everything broadcasts and takes any strides. Results keep the order of dims that
their operands have in memory, as PyTorch's do: see memory_format.py.
"""
import inspect

from tritorch.dispatch import common_device, op
from tritorch.dtype import promote, promote_float, types
from tritorch.errors import check
from tritorch.memory_format import broadcasting as broadcasting_strides
from tritorch.memory_format import elementwise as elementwise_strides
from tritorch.ops import tiling
from tritorch.ops.arrays import on_arrays
from tritorch.ops.loops import COMPLEX, SCALAR, launch_elementwise
from tritorch.pairs import refuse
from tritorch.shape import broadcast_shapes, broadcast_strides, layout
from tritorch.tensor import Tensor


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
    if kind.is_complex:
        refuse(name, *operands)
    check(kind.is_floating_point, name, "a floating dtype", kind)
    return kind


def floats_or_complex(name, *operands):
    """The promoted dtype, which must be floating or complex."""
    kind = promote(*operands)
    check(kind.has_gradients, name, "a floating or complex dtype", kind)
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
    if kind.is_complex:
        refuse(name, *operands)
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


FLOATS_STAY = (same, floating, numbers, floats, floats_or_complex, no_bools)                # two operands of one floating dtype keep it


def _array(x):
    return x.array if isinstance(x, Tensor) else x


# ------------------------------------------------------------------ the families
def _finish(made, name, doc, grads, workload_arity, condition=False, complex=False):
    made.__doc__ = doc
    for target, rule in (grads or {}).items():
        made.grad(*target.split())(rule)

    @made.workloads
    def workloads(make):
        n = 1 << 24
        first, *others = [make(n, positive=True, grad=False, complex=complex) for _ in range(workload_arity)]
        operands = (first > 1 if condition else first, *others)
        size = 8 if complex else 4
        yield f"{name} 16M {'c64' if complex else 'fp32'}", lambda: operands, n * (size * (workload_arity + 1) - 3 * condition), n

    return made


def unary(name, doc, cpu, fn=None, *, functions=SCALAR, result=same, grad=None, attrs=(), domain=None, samples=None, complex=None,
          complex_cpu=None, **options):
    """An operator of one tensor and the number attributes in `attrs` ((name, default), …).

    `cpu` is a numpy function of (x, *attributes), `fn` the scalar function among the kernels of `functions` (default: of the same
    name), `result` the dtype rule, `grad` the gradient rule of the input, `domain` how samples are drawn. `complex` says that it takes
    complex tensors, too, and whether its rule is that of a HOLOMORPHIC function or complete (OWN): see tritorch/pairs.py. `cpu` does so
    as well then, unless `complex_cpu` does it, and `fn` is also the name of a scalar function in triton_kernels/complex_scalar.py.
    """
    fn = fn or name
    names = [a for a, _ in attrs]

    def rule(input, *values):
        try:
            return input.shape, result(name, input), input.storage.device, input.strides, elementwise_strides
        except AttributeError:
            raise TypeError(f"{name}: expected a tensor, got {type(input).__name__}") from None

    made = op(_signed(rule, name, ["input", *names], dict(attrs)), aliasable=True, **options)
    made.complex = complex

    def compute_type(x, out):
        if x.dtype.is_complex:
            return x.dtype if complex else refuse(name, x)
        return (promote_float(x) if result is floating else x.dtype).compute if out.dtype is types.bool else out.dtype.compute

    @made.impl("cpu", raw=True)
    def on_cpu(out, input, *values):
        compute = compute_type(input, out)
        on_arrays(complex_cpu if complex_cpu and compute.is_complex else cpu, out.array, compute, input.array, attrs=values)

    @made.impl("cuda")
    def on_cuda(out, input, *values):
        compute = compute_type(input, out)
        launch_elementwise(out, (input,), _function(functions, fn, compute), compute, values)

    @made.samples
    def default_samples(make):
        draw = domain or {}
        for shape in ((3, 4), (7,), (), (2, 0, 3)):
            yield (make(*shape, **draw), *[v for _, v in attrs])
        if samples is not None:
            yield from samples(make)

    return _finish(made, name, doc, {"input": grad} if grad else None, 1, complex=(domain or {}).get("complex", False))


def binary(name, doc, cpu, fn=None, *, functions=SCALAR, result=same, grad_input=None, grad_other=None, attrs=(), domain=None, samples=None,
           names=("input", "other"), compute=None, tensors="", complex=None, complex_cpu=None, **options):
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
    made.complex = complex

    def compute_type(x, y, out):
        kind = compute(name, x, y) if compute else promote(x, y) if out.dtype is types.bool else out.dtype
        return kind.compute if complex or not kind.is_complex else refuse(name, x, y)

    @made.impl("cpu", raw=True)
    def on_cpu(out, x, y, *values):
        kind = compute_type(x, y, out)
        on_arrays(complex_cpu if complex_cpu and kind.is_complex else cpu, out.array, kind, _array(x), _array(y), attrs=values)

    @made.impl("cuda", passes={y_name: float})
    def on_cuda(out, x, y, *values):
        compute = compute_type(x, y, out)
        launch_elementwise(out, (x, y), _function(functions, fn, compute), compute, values)

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
            names=("input", "other", "third"), condition=False, complex=None, **options):
    """An operator of three operands that broadcast; with `condition` the first is a bool tensor that has no part in the dtype."""
    fn = fn or name

    def rule(x, y, z, *values):
        shape, device = joined3(name, x, y, z)
        return shape, result(name, y, z) if condition else result(name, x, y, z), device, *strides_of(shape, x, y, z)

    made = op(_signed(rule, name, [*names, *[a for a, _ in attrs]], dict(attrs)), aliasable=True, **options)
    made.complex = complex

    @made.impl("cpu", raw=True)
    def on_cpu(out, x, y, z, *values):
        if out.dtype.is_complex and not complex:
            refuse(name, x, y, z)
        if condition:
            on_arrays(cpu, out.array, out.dtype.compute, _array(y), _array(z), attrs=values, condition=_array(x))
        else:
            on_arrays(cpu, out.array, out.dtype.compute, _array(x), _array(y), _array(z), attrs=values)

    @made.impl("cuda")
    def on_cuda(out, x, y, z, *values):
        kernel = _function(functions, fn, out.dtype)
        launch_elementwise(out, (x, y, z), kernel, out.dtype.compute, values, types.bool if condition else None)

    if samples is not None:
        made.samples(samples)
    return _finish(made, name, doc, grads, 3, condition)


def _function(functions, fn, compute):
    """The scalar function of a name, real or complex."""
    return getattr(COMPLEX if compute.is_complex else functions, fn)


def _signed(rule, name, names, defaults):
    """The shape rule under the operator's name and signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    rule.__signature__ = inspect.Signature([inspect.Parameter(n, kind, default=defaults.get(n, inspect.Parameter.empty)) for n in names])
    rule.__name__ = rule.__qualname__ = name
    return rule
