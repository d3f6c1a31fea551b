"""Comparisons, predicates, logic and bits; `where`, `clamp` and other choices between elements."""
import functools
import math

import numpy as np

from tritorch.autograd.modes import state
from tritorch.cuda.launch import kernels
from tritorch.dtype import promote, types
from tritorch.errors import check, refuse_misuse, tensors
from tritorch.ops import copy, create, elementwise, slopes
from tritorch.ops.arrays import either, fills, keep, number
from tritorch.ops.complex import view_as_complex, view_as_real
from tritorch.ops.elementwise import boolean, integers, numbers
from tritorch.ops.loops import launch_elementwise
from tritorch.pairs import OWN, refuse
from tritorch.tensor import Tensor

K = kernels("compare")
unary, binary, ternary = [functools.partial(family, functions=K) for family in (elementwise.unary, elementwise.binary, elementwise.ternary)]
WHOLE = {"integer": True, "low": -9, "high": 9}
SHIFTS = {"integer": True, "low": 0, "high": 7}


# ------------------------------------------------------------------ comparisons
def _comparison(name, sign, ufunc, complex=None):
    return binary(name, f"""input {sign} other, elementwise, broadcast, as bool.

    >>> import tritorch as torch; torch.tensor([1, 2, 3]).{name}(2).tolist()
    {ufunc(np.array([1, 2, 3]), 2).tolist()}
    """, ufunc, result=boolean, tensors="input", complex=complex,
                  samples=lambda make: [(make(3, 4, **WHOLE), make(4, **WHOLE)), (make(5), float("nan"))])


eq, ne = _comparison("eq", "=", np.equal, OWN), _comparison("ne", "≠", np.not_equal, OWN)
lt, le = _comparison("lt", "<", np.less), _comparison("le", "≤", np.less_equal)
gt, ge = _comparison("gt", ">", np.greater), _comparison("ge", "≥", np.greater_equal)
not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge


def equal(input, other):
    """Whether two tensors have the same shape and elements, as a Python bool."""
    tensors("equal", input=input, other=other)
    return input.shape == other.shape and bool(eq(input, other).all().item())


def _close(equal_nan):
    def cpu(x, y, rtol, atol):
        apart = np.abs(x - y)
        near = (x == y) | (apart <= np.abs(y) * y.dtype.type(rtol) + y.dtype.type(atol)) & np.isfinite(apart)
        return near | np.isnan(x) & np.isnan(y) if equal_nan else near

    return binary("close_or_nan" if equal_nan else "close_numbers", "|input - other| ≤ atol + rtol · |other|, or both equal"
                  + " or NaN." * equal_nan, cpu, attrs=(("rtol", 0.5), ("atol", 0.1)), result=boolean, tensors="input other",
                  samples=lambda make: [(create.tensor([1.0, math.nan, math.inf, -math.inf, math.inf, 0.0], device=make(1).device),
                                         create.tensor([1.5, math.nan, math.inf, math.inf, 2.0, -0.0], device=make(1).device), 0.5, 0.1)])


close_numbers, close_or_nan = _close(False), _close(True)


def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """|input - other| ≤ atol + rtol · |other|, elementwise; infinities are close to themselves."""
    for x in (input, other):
        check(isinstance(x, Tensor), "isclose", "two tensors", type(x).__name__, error=TypeError)
    check(input.dtype is other.dtype, "isclose", "two tensors of one dtype", input.dtype, other.dtype)
    check(rtol >= 0 and atol >= 0, "isclose", "tolerances that are not negative", rtol, atol)
    if input.dtype.is_floating_point:
        return (close_or_nan if equal_nan else close_numbers)(input, other, rtol, atol)
    close = eq(input, other)
    if input.dtype.is_complex:
        if equal_nan:
            close = logical_or(close, logical_and(isnan(input), isnan(other)))
        near = le((input - other).abs(), other.abs() * rtol + atol)
        close = logical_or(close, logical_and(near, isfinite(input - other)))
    elif rtol or atol:
        kind = types.float64
        close = le((input.to(kind) - other.to(kind)).abs(), other.to(kind).abs() * rtol + atol)
    return close


def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close, as a Python bool; see `isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


# ------------------------------------------------------------------ predicates
def _predicate(name, doc, fn, whole, complex=None):
    """A question to floating numbers; of integers the answer is always `whole`."""

    def cpu(x):
        return fn(x) if x.dtype.kind in "fc" else np.full(x.shape, whole)

    return unary(name, doc, cpu, result=boolean, complex=complex, samples=lambda make: [
        (make(4, **WHOLE),), (create.tensor([1.0, float("nan"), float("inf"), -float("inf"), -0.0], device=make(1).device),)])


isnan = _predicate("isnan", "Whether an element is NaN.", np.isnan, False, OWN)
isinf = _predicate("isinf", "Whether an element is infinite.", np.isinf, False, OWN)
isfinite = _predicate("isfinite", "Whether an element is neither infinite nor NaN.", np.isfinite, True, OWN)
isposinf = _predicate("isposinf", "Whether an element is +∞.", np.isposinf, False)
isneginf = _predicate("isneginf", "Whether an element is -∞.", np.isneginf, False)
signbit = unary("signbit", "Whether the sign bit is set (also that of -0).", lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0,
                result=boolean)
isposinf.exact = isneginf.exact = signbit.exact = True


def is_nonzero(input):
    """Whether the one element is not zero."""
    check(input.numel() == 1, "is_nonzero", "a tensor of 1 element", f"{input.numel()} elements")
    return bool(input.item())


def isreal(input):
    """Whether the imaginary part is 0; of real tensors all true.

    >>> import tritorch as torch; torch.isreal(torch.tensor([1 + 2j, 3])).tolist()
    [False, True]
    """
    return eq(input.imag, 0) if input.dtype.is_complex else create.ones_like(input, dtype=types.bool)


# ------------------------------------------------------------------ logic and bits
logical_not = unary("logical_not", "Whether an element is zero.", np.logical_not, result=boolean, complex=OWN,
                    samples=lambda make: [(make(6, integer=True, low=0, high=2),)])


def _logic(name, doc, ufunc):
    return binary(name, doc, ufunc, result=boolean, tensors="input other", complex=OWN,
                  samples=lambda make: [(make(3, 4, integer=True, low=0, high=2), make(4, integer=True, low=0, high=2))])


logical_and = _logic("logical_and", "Whether both elements are not zero.", np.logical_and)
logical_or = _logic("logical_or", "Whether one element is not zero.", np.logical_or)
logical_xor = _logic("logical_xor", "Whether exactly one element is not zero.", np.logical_xor)


def whole_numbers(name, *operands):
    """The promoted dtype, which must be an integer one."""
    return integers(name, *operands) and numbers(name, *operands)


def _whole_workloads(made, arity):
    n = 1 << 24
    made.workloads(lambda make: [(f"{made.__name__} 16M int64", lambda: tuple([make(n, integer=True, low=1, high=9) for _ in range(arity)]),
                                  8 * n * (arity + 1), n)])


def _bits(name, doc, ufunc, second=WHOLE, result=integers, tensors=""):
    made = binary(name, doc, ufunc, result=result, tensors=tensors)

    @made.samples
    def samples(make):
        yield make(3, 4, **WHOLE), make(3, 4, **second)
        yield make(3, 4, **WHOLE), make(4, **second)
        yield make(0, **WHOLE), make(1, **second)
        if not tensors:
            yield make(5, **WHOLE), 3
        if second is WHOLE and name.startswith("bitwise"):
            yield make(4, **WHOLE) > 0, make(4, **second) > 0

    _whole_workloads(made, 2)
    return made


bitwise_and = _bits("bitwise_and", "input & other, bit by bit; on bools the logical and.", np.bitwise_and)
bitwise_or = _bits("bitwise_or", "input | other, bit by bit; on bools the logical or.", np.bitwise_or)
bitwise_xor = _bits("bitwise_xor", "input ^ other, bit by bit; on bools the exclusive or.", np.bitwise_xor)
bitwise_left_shift = _bits("bitwise_left_shift", "input · 2^other.", np.left_shift, second=SHIFTS, result=whole_numbers)
bitwise_right_shift = _bits("bitwise_right_shift", "input / 2^other rounded down.", np.right_shift, second=SHIFTS, result=whole_numbers)
bitwise_not = unary("bitwise_not", "~input, bit by bit; on bools the logical not.", np.invert, result=integers)
bitwise_not.exact = True
_whole_workloads(bitwise_not, 1)


def invert(input):
    """`~input`."""
    check(not input.dtype.has_gradients, "~", "integers or bools", input.dtype, error=TypeError)
    return bitwise_not(input)


@bitwise_not.impl("cuda")
def bitwise_not_cuda(out, input):
    fn = K.logical_not if input.dtype is types.bool else K.bitwise_not
    launch_elementwise(out, (input,), fn, input.dtype)


@bitwise_not.samples
def bitwise_not_samples(make):
    yield make(3, 4, **WHOLE),
    yield make(4, **WHOLE) > 0,
    yield make(0, **WHOLE),


gcd = _bits("gcd", "The greatest common divisor.", np.gcd, result=whole_numbers, tensors="input other")
lcm = _bits("lcm", "The least common multiple.", np.lcm, result=whole_numbers, tensors="input other")


# ------------------------------------------------------------------ choices
def _choice_samples(make):
    yield make(3, 4).real > 0, make(3, 4), make(3, 4)
    yield make(4).real > 0, make(3, 1), make(1, 4)
    yield make(3, 4).real > 0, make(3, 4), 2.5
    yield make(5).real > 0, 1.0, make(5)
    yield make().real > 0, make(), make()
    yield make(0, 3).real > 0, make(0, 3), make(3)


def _plain_zero(value):
    return not isinstance(value, np.ndarray) and value == 0 and math.copysign(1, value) > 0


@fills(passes=1)
def _choose(out, condition, x, y):
    mask = condition if condition.dtype == np.bool_ else condition != 0
    if out.dtype.kind == "f" and isinstance(x, np.ndarray) and _plain_zero(y):
        keep(out, x, mask)                                               # what gradients of choices are made of
    elif out.dtype.kind == "f" and isinstance(y, np.ndarray) and _plain_zero(x):
        keep(out, y, ~mask)
    else:
        np.copyto(out, either(mask, *[v if isinstance(v, np.ndarray) else number(out.dtype, v) for v in (x, y)]))


choose = ternary("choose", "input where the condition holds, else other.", _choose, "where", names=("condition", "input", "other"),
                 condition=True, samples=_choice_samples, complex=OWN,
                 grads={"input": lambda g, condition: choose(condition, g, 0), "other": lambda g, condition: choose(condition, 0, g)})
choose.exact = True


def where(condition, input=None, other=None, *, out=None):
    """input where the condition holds, else other, elementwise, broadcast; with the condition alone its places, as
    `nonzero(as_tuple=True)`.

    >>> import tritorch as torch; x = torch.tensor([-1.0, 2.0]); torch.where(x > 0, x, 0.0)
    tensor([0., 2.])
    """
    try:
        if input is None and other is None:
            return condition.nonzero(as_tuple=True)
        check(condition.dtype in (types.bool, types.uint8), "where", "a condition of bools", condition.dtype)
        if not isinstance(input, Tensor) and not isinstance(other, Tensor):
            input = create.full((), input, dtype=promote(input, other), device=condition.device)
        for value, x in ((input, other), (other, input)):
            if type(value) is int and x.dtype.category == 1:
                copy.check_fits("where", value, x.dtype)
        return choose(condition, input, other) if out is None else choose.into(out, condition, input, other)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


def tensor_where(input, condition, other):
    """`x.where(condition, other)`."""
    return where(condition, input, other)


@fills(passes=1)
def between(out, x, low, high):
    kind = x.dtype.type
    np.clip(x, kind(low), kind(high), out=out)


clamp_numbers = unary("clamp_numbers", "input between two numbers.", between, attrs=(("low", -0.5), ("high", 0.5)),
                      grad=lambda g, input, low, high: slopes.keep_within(g, input, low, high),
                      samples=lambda make: [(make(6), -float("inf"), 0.25), (make(7), -1.0, float("inf"))])
clamp_numbers.exact = True


at_least = elementwise.binary(
    "at_least", "The greater of input and other, NaN where one is. Of equal ones input has the gradient, beside a NaN nobody.", np.maximum,
    "maximum", tensors="input", grad_input=lambda g, input, other: choose(input >= other, g, 0),
    grad_other=lambda g, input, other: choose(input < other, g, 0))
at_most = elementwise.binary(
    "at_most", "The smaller of input and other, NaN where one is. Of equal ones input has the gradient, beside a NaN nobody.", np.minimum,
    "minimum", tensors="input", grad_input=lambda g, input, other: choose(input <= other, g, 0),
    grad_other=lambda g, input, other: choose(input > other, g, 0))


def clamp(input, min=None, max=None, *, out=None):
    """input brought between min and max (numbers or tensors; None: no bound); NaN stays NaN.

    >>> import tritorch as torch; torch.tensor([-2.0, 0.5, 3.0]).clamp(0, 1)
    tensor([0.0000, 0.5000, 1.0000])
    """
    try:
        check(min is not None or max is not None, "clamp", "at least one of min and max", "neither")
        check(not isinstance(min, complex) and not isinstance(max, complex), "clamp", "real bounds", min, max)
        plain = not isinstance(min, Tensor) and not isinstance(max, Tensor)
        if plain and not input.dtype.is_floating_point:
            given = [bound for bound in (min, max) if bound is not None]
            kind = promote(input, *given)
            if kind.is_floating_point:
                input = input.to(kind)
            for bound in given:
                if kind.category == 1:
                    copy.check_fits("clamp", bound, kind)
        plain = plain and min == min and max == max                          # NaN bounds make all NaN
        if plain and input.dtype.is_floating_point:
            bounds = -float("inf") if min is None else float(min), float("inf") if max is None else float(max)
            return clamp_numbers(input, *bounds) if out is None else clamp_numbers.into(out, input, *bounds)
        in_place = out is input
        if in_place and state.grad and any(isinstance(v, Tensor) and v.requires_grad for v in (input, min, max)):
            input = input.clone()                                        # the gradients look at what is written over
        made = input if min is None else at_least(input, min)
        made = made if max is None else at_most(made, max)
        check(out is None or in_place or not (state.grad and made.requires_grad), "clamp", "out= where nothing requires grad",
              "an argument that does", use="no_grad() or no out=")
        return copy.deliver(made, out)
    except Exception as error:
        if answer := refuse_misuse(error):
            return answer[0]
        raise


clip = clamp


def clamp_min(input, min, *, out=None):
    """input, at least min."""
    return clamp(input, min, None, out=out)


def clamp_max(input, max, *, out=None):
    """input, at most max."""
    return clamp(input, None, max, out=out)


def _made_finite(x, nan, high, low):
    kind = x.dtype.type
    return np.where(x != x, kind(nan), np.where(x == np.inf, kind(high), np.where(x == -np.inf, kind(low), x)))


made_finite = ternary("made_finite", "input with numbers for NaN, ∞ and -∞.", _made_finite, names=("input", "nan", "posinf"),
                      attrs=(("neginf", -3.0),), samples=lambda make: [
                          (make(3, 4), 0.0, 2.0, -3.0), (make(0, 2), 0.0, 2.0, -3.0),
                          (create.tensor([1.0, math.nan, math.inf, -math.inf], device=make(1).device), 0.0, 2.0, -3.0)],
                      grads={"input": lambda g, input: slopes.keep_finite(g, input)})
made_finite.exact = True


def nan_to_num(input, nan=0.0, posinf=None, neginf=None, *, out=None):
    """NaN and the infinities replaced by numbers (None: the largest and smallest of the dtype); in both parts of complex numbers."""
    if input.dtype.is_complex:
        return copy.deliver(view_as_complex(nan_to_num(view_as_real(input), nan, posinf, neginf)), out, exact=True)
    if not input.dtype.is_floating_point:
        return copy.deliver(input.clone(), out, exact=True)
    limits = types.finfo_of(input.dtype)
    values = (float(nan or 0.0), limits.max if posinf is None else float(posinf), limits.min if neginf is None else float(neginf))
    return made_finite(input, *values) if out is None else made_finite.into(out, input, *values)


def isin(elements, test_elements, *, assume_unique=False, invert=False, out=None):
    """Whether each element is among the test elements; one of the two may be a number."""
    home = (elements if isinstance(elements, Tensor) else test_elements).device
    elements, tests = [x if isinstance(x, Tensor) else create.tensor(x, device=home) for x in (elements, test_elements)]
    for x in (elements, tests):
        check(x.dtype is not types.bool, "isin", "numbers", x.dtype)
        if x.dtype.is_complex:
            refuse("isin", x)
    found = eq(elements.unsqueeze(-1), tests.reshape(-1)).any(-1) if tests.numel() else create.zeros_like(elements, dtype=types.bool)
    return copy.deliver(logical_not(found) if invert else found, out, exact=True)
