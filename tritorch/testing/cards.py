"""The checks that an operator's card gives rise to: layouts, dtypes, devices, gradients, in-place, capture, errors.

Each check is a function of (op, device): it runs every sample and raises AssertionError with the sample in its message.
"""
import math

import numpy as np

from tritorch.autograd import modes
from tritorch.autograd.engine import grad as differentiate
from tritorch.device import as_device, cpu, device, meta
from tritorch.dtype import types
from tritorch.func import jvp
from tritorch.ops import create
from tritorch.pairs import HOST, MADE
from tritorch.tensor import Tensor, empty, strided
from tritorch.testing.batches import check_batches
from tritorch.testing.compare import wide
from tritorch.testing.samples import (
    Maker,
    assert_near,
    describe,
    each_tensor,
    expanded,
    layouts,
    leaves,
    places,
    replaced,
    results,
    samples_of,
    tensors_in,
    tolerance,
)


# ------------------------------------------------------------------ the checks
def check_values(op, where):
    """The result on the device is the CPU's; the CPU's float32 is near its float64."""
    for args in samples_of(op):
        what = describe(op, args)
        with modes.no_grad():
            base = results(op(*leaves(args)))
            if where is cpu:
                if op.__name__ in REINTERPRETS:
                    continue
                exact = results(op(*leaves(args, dtype=types.float64)))
                for got, want in zip(base, exact):
                    assert_near(got, want, what, tolerance(got.dtype))
            else:
                for got, want in zip(results(op(*leaves(args, where))), base):
                    assert got.device is where and got.dtype is want.dtype, f"{what}: {got.dtype}, {got.device} for {want.dtype}, {where}"
                    assert_near(got, want, f"{what} on {where}", tolerance(got.dtype))


def check_layouts(op, where):
    """Every tensor argument transposed, offset with gaps, and with stride 0."""
    with modes.no_grad():
        for args in samples_of(op):
            args = leaves(args, where)
            want = None
            for k, j, x in places(args):
                want = results(op(*args)) if want is None else want
                for name, other in layouts(x):
                    changed = replaced(args, k, j, other)
                    _same_results(op, changed, want, name)
                if x.ndim and x.shape[0] > 1 and op.__name__ not in VALUES_DECIDE:
                    spread = expanded(x)
                    reference = results(op(*replaced(args, k, j, spread.clone())))
                    _same_results(op, replaced(args, k, j, spread), reference, "expanded")


def _same_results(op, args, want, name):
    if op.__name__ in LAYOUT_DEPENDENT:
        return
    for got, expect in zip(results(op(*args)), want):
        assert_near(got, expect, f"{describe(op, args)} {name}", tolerance(got.dtype))


REINTERPRETS = {"view_as_dtype"}                                         # the same bytes in float64 are other numbers
ON_THE_HOST = {"general_eigen", "general_eigenvalues", "ldl_factors", "ldl_solution"}     # they wait, which no graph records
VALUES_DECIDE = {"nonzero_places"}                                       # another argument counts the values: they must stay
LAYOUT_DEPENDENT = {"as_strided", "view_as_shape", "view_as_dtype", "view_as_complex"}     # they ask for the strides of the input


def differentiable(op, args):
    """(outputs that need gradients, leaves) of a call."""
    outs = [o for o in results(op(*args)) if o.dtype.has_gradients and o.requires_grad]
    return outs, [t for t in tensors_in(args) if t.requires_grad]


def check_gradients(op, where):
    """On the CPU: numeric derivatives in float64 to second order. On a device: the CPU's gradients."""
    for k, args in enumerate(samples_of(op, types.float64 if where is cpu else types.float32)):
        if where is cpu:
            _check_numeric(op, leaves(args), np.random.default_rng(k))
        else:
            _check_device_gradients(op, args, where, k)


def _check_numeric(op, args, rng):
    what = describe(op, args)
    outs, ins = differentiable(op, args)
    if not outs or any(o.dtype.to_real() is not types.float64 for o in outs):      # a cast to fewer bits has steps, not slopes
        return
    weights = [_like(o, rng) for o in outs]
    first = _gradients(outs, ins, weights, create=True)

    def weighted(*values):
        with modes.no_grad():
            now = results(op(*_substitute(args, ins, values)))
        now = [o for o in now if o.dtype.has_gradients][:len(outs)] if len(outs) == 1 else _matching(now, outs)
        return sum(_inner(o, w) for o, w in zip(now, weights))

    _check_direction(weighted, ins, first, rng, what, op)
    second_outs = [g for g in first if g is not None and g.requires_grad]
    if not second_outs or op.__name__ in FIRST_ORDER:
        return
    picks = [k for k, g in enumerate(first) if g is not None and g.requires_grad]
    seconds = [_like(g, rng) for g in second_outs]
    analytic = _gradients(second_outs, ins, seconds, create=False)

    def weighted_gradient(*values):
        fresh = [v.detach().requires_grad_() for v in values]
        moved, _ = differentiable(op, _substitute(args, ins, fresh))
        gs = _gradients(moved, fresh, weights, create=False)
        return sum(_inner(gs[k], w) for k, w in zip(picks, seconds))

    _check_direction(weighted_gradient, ins, analytic, rng, f"second order of {what}", op)


SYMMETRIC = {"cholesky_factor", "symmetric_eigen", "symmetric_eigenvalues", "hermitian"}     # of a symmetric input, changed to such ones
PHASES = {"symmetric_eigen", "svd_factors", "general_eigen"}             # of complex vectors, on whose phases no loss may depend
FIRST_ORDER = {}                                                         # operators whose second derivative is not there: name -> reason


def _matching(now, outs):
    return [o for o in now if o.dtype.has_gradients][:len(outs)]


def _substitute(args, old, new):
    table = {id(o): n for o, n in zip(old, new)}
    return each_tensor(lambda x: table.get(id(x), x), args)


def _like(x, rng):
    values = rng.standard_normal(x.shape) + (1j * rng.standard_normal(x.shape) if x.dtype.is_complex else 0)
    return create.tensor(np.asarray(values), dtype=x.dtype, device=x.device)


def _inner(x, y):
    """The inner product, of complex tensors as of twice as many real numbers."""
    return float((wide(x).conj() * wide(y)).real.sum())


def _gradients(outs, ins, weights, create):
    return differentiate(outs, ins, weights, create_graph=create, retain_graph=True, allow_unused=True)


def _check_direction(f, ins, analytic, rng, what, op, step=1e-6):
    """The derivative along a random direction, numerically and by the rules."""
    directions = [_like(x, rng) for x in ins]
    directions = [d + d.mH for d in directions] if op.__name__ in SYMMETRIC else directions
    have = sum(_inner(g, d) for g, d in zip(analytic, directions) if g is not None)
    high, low = (f(*[(x.detach() + s * d) for x, d in zip(ins, directions)]) for s in (step, -step))
    want = (high - low) / (2 * step)
    size = max(abs(want), abs(have), 1e-2)
    assert math.isclose(have, want, rel_tol=2e-4,
                        abs_tol=2e-5 * max(size, 1.0)), f"{what}: derivative {have} by the rules, {want} numerically"


def _check_device_gradients(op, args, where, seed):
    what = describe(op, args)
    here, there = leaves(args), leaves(args, where)
    outs, ins = differentiable(op, here)
    if not outs:
        return
    # not the seed of the samples: x as its own weight hides errors
    weights = [_like(o, np.random.default_rng(1000 + seed)) for o in outs]
    want = _gradients(outs, ins, weights, create=False)
    outs, ins = differentiable(op, there)
    for arrange in (lambda w: w, *_gradient_layouts(weights)):
        got = _gradients(outs, ins, [arrange(w.to(where)) for w in weights], create=False)
        for g, expect in zip(got, want):
            assert (g is None) == (expect is None), f"{what}: a gradient is missing"
            if g is not None:
                assert_near(g, expect, f"gradient of {what} on {where}", 10 * tolerance(g.dtype))


def _gradient_layouts(weights):
    """The gradient arriving transposed and with gaps."""
    if any(w.ndim >= 2 for w in weights):
        yield lambda w: w.transpose(-1, -2).clone().transpose(-1, -2) if w.ndim >= 2 else w
    if all(w.ndim >= 1 for w in weights):
        def gapped(w):
            wide_one = create.zeros((*w.shape[:-1], 2 * w.shape[-1] + 1), dtype=w.dtype, device=w.device)
            wide_one[..., 1::2] = w
            return wide_one[..., 1::2]

        yield gapped


def check_destinations(op, where):
    """out= and in-place write every element of poisoned memory, through any layout, and move the version on."""
    if not op.impls:
        return
    with modes.no_grad():
        for args in samples_of(op):
            args = leaves(args, where)
            want = results(op(*args))
            what = describe(op, args)
            targets = [_poisoned(w, where) for w in want]
            versions = [t._version for t in targets]
            op.into(tuple(targets) if len(targets) > 1 else targets[0], *args)
            for t, v, expect in zip(targets, versions, want):
                assert t._version > v, f"{what}: the version of out= stands still"
                assert_near(t, expect, f"{what} into a strided out=", tolerance(t.dtype))
            _check_in_place(op, args, want, what)


def _poisoned(like, where):
    """A destination with gaps whose elements are NaN, or a large number."""
    if not like.ndim:
        out = empty((), like.dtype, where)
    else:
        storage = empty((*like.shape[:-1], 2 * like.shape[-1] + 1), like.dtype, where)
        out = strided(storage.storage, like.shape, (*storage.strides[:-1], 2), 1, like.dtype)
    out.fill_(float("nan") if like.dtype.has_gradients else True if like.dtype is types.bool else 77)
    return out


def _check_in_place(op, args, want, what):
    x = args[0] if args else None
    if len(want) == 1 and isinstance(x, Tensor) and x.shape == want[0].shape and x.dtype is want[0].dtype and 0 not in x.shape:
        target = x.detach().clone()
        op.into(target, target, *args[1:])
        assert_near(target, want[0], f"{what} in place", tolerance(x.dtype))


def check_dtypes(op, where):
    """Half types round what float32 computes: near the float64 result on the same rounded inputs."""
    if op.complex == MADE:                                               # there are no complex numbers of half precision
        return
    for kind in (types.bfloat16, types.float16):
        with modes.no_grad():
            for args in samples_of(op, kind):
                if not any(t.dtype is kind for t in tensors_in(args)):
                    continue
                exact = results(op(*leaves(args, dtype=types.float64)))
                for got, want in zip(results(op(*leaves(args, where))), exact):
                    if got.dtype.is_floating_point:
                        assert_near(got, want, f"{describe(op, args)} on {where}", tolerance(kind))


def check_forward_mode(op, where):
    """The tangent that forward mode carries is the transpose of what reverse mode gives."""
    for k, args in enumerate(samples_of(op, types.float64)):
        rng, args = np.random.default_rng(k), leaves(args)
        outs, ins = differentiable(op, args)
        if not outs or any(o.dtype.to_real() is not types.float64 for o in outs) or 0 in [n for o in outs for n in o.shape]:
            continue
        tangents = [_like(x, rng) for x in ins]
        live = [j for j, o in enumerate(results(op(*args))) if o.dtype.has_gradients and o.requires_grad]

        def outputs(*xs, args=args, ins=ins, live=live):
            made = results(op(*_substitute(args, ins, xs)))
            return tuple(made[j] for j in live)

        _, moved = jvp(outputs, tuple(x.detach() for x in ins), tuple(tangents))
        weights = [_like(o, rng) for o in outs]
        by_reverse = sum(_inner(g, t) for g, t in zip(_gradients(outs, ins, weights, False), tangents) if g is not None)
        by_forward = sum(_inner(m, w) for m, w in zip(results(moved), weights))
        assert math.isclose(by_reverse, by_forward, rel_tol=1e-7,
                            abs_tol=1e-8), f"{describe(op, args)}: {by_forward} forward, {by_reverse} reverse"


def check_capture(op, where):
    """Captured into a graph and replayed on new values, the result is the eager one."""
    if where is cpu or op.__name__ in VALUES_DECIDE | ON_THE_HOST:
        return
    import tritorch.cuda as cuda

    for args, others in list(zip(samples_of(op), samples_of(op, seed=1)))[:2]:
        what, args = describe(op, args), leaves(args, where)
        with modes.no_grad():
            op(*args)                                                    # warmed up: kernels compiled, tables made
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                outs = results(op(*args))
            for t, other in zip(tensors_in(args), tensors_in(others)):
                t.detach().copy_(other.detach())
            graph.replay()
            for got, want in zip(outs, results(op(*[cpu if isinstance(a, device) else a for a in leaves(args, cpu)]))):
                assert_near(got, want, f"{what} replayed", tolerance(got.dtype))


def check_repeated(op, where):
    """A second call of the same kind, which repeats the first one's launches, is right for its own values, whatever lies where."""
    if where is cpu:
        return
    for args, others in zip(samples_of(op), samples_of(op, seed=1)):
        what = describe(op, others)
        with modes.no_grad():
            there = leaves(args, where)
            kept = [results(op(*there)), results(op(*there))]
            want = results(op(*leaves(others)))
            for got, expect in zip(results(op(*leaves(others, where))), want):
                assert_near(got, expect, f"{what} repeated", tolerance(got.dtype))
            for first, second in zip(*kept):
                assert_near(second, first, f"{describe(op, args)} repeated", 0.0)


def check_promises(op, where):
    """On meta, where only shape rules run, results and gradients have the shapes, dtypes, strides and devices that they have here."""
    if where is cpu:
        for args in samples_of(op):
            have, want = [_facts(op, leaves(args, place)) for place in (meta, cpu)]
            assert have == want, f"{describe(op, args)}: {have} on meta for {want}"


def _facts(op, args):
    """Of the results of a call, and of their gradients: all but the values, and how many are on the device of the arguments."""
    outs, ins = differentiable(op, args)
    found = [*results(op(*args)), *_gradients(outs, ins, [create.ones_like(o) for o in outs], create=False)] if outs else results(op(*args))
    device = next(x.device for x in (*tensors_in(args), *found) if x is not None)
    return [x if x is None else (tuple(x.shape), x.dtype, x.strides, x.requires_grad, x.device is device) for x in found]


class Complex:
    """An operator whose samples are drawn complex."""

    def __init__(self, op):
        self.op = op

    def __getattr__(self, name):
        return getattr(self.op, name)

    def __call__(self, *args):
        return self.op(*args)

    def samples_body(self, make):
        make.dtype = make.dtype.to_complex()
        return self.op.samples_body(make)


def check_complex(op, where):
    """The other checks with complex samples, where the operator takes them."""
    if op.complex and op.complex != MADE and not (op.complex == HOST and where.type != "cpu"):
        for check in (check_values, check_layouts, check_gradients, check_destinations, check_forward_mode, check_promises, check_capture,
                      check_repeated):
            if op.__name__ not in PHASES or check not in (check_gradients, check_forward_mode, check_promises):
                check(Complex(op), where)


def check_errors(op, where):
    """Every bad call gets its sentence and exception type."""
    if op.errors_body is None:
        return
    for args, keywords, kind, words in op.errors_body(Maker()):
        try:
            op(*leaves(list(args), where), **keywords)
        except kind as error:
            assert words in str(error), f"{op.__name__}: the sentence {str(error)!r} does not say {words!r}"
        else:
            raise AssertionError(f"{describe(op, list(args))}: expected {kind.__name__}, nothing was raised")


CHECKS = {f.__name__.removeprefix("check_"): f for f in (
    check_values, check_layouts, check_gradients, check_destinations, check_dtypes, check_forward_mode, check_promises, check_capture,
    check_repeated, check_complex, check_errors, check_batches)}


def check_op(op, device="cpu", checks=None):
    """Run the checks of an operator's card (all, or those named) on a device."""
    for name in checks or CHECKS:
        CHECKS[name](op, as_device(device))


def problems(op):
    """What a card lacks: an implementation, samples, a manual, workloads."""
    out = []
    if op.impls:
        out += [f"no implementation for {kind}" for kind in ("cpu", "cuda") if kind not in op.impls]
        out += [] if op.workloads_body else ["no workloads"]
    out += [] if op.samples_body else ["no samples"]
    out += [] if (op.__doc__ or "").strip() else ["no docstring"]
    return out
