"""Derivatives by the rules against derivatives by finite differences: gradcheck and gradgradcheck."""
import numpy as np

from tritorch.autograd.engine import grad as differentiate
from tritorch.autograd.for_each import stacked, vmap
from tritorch.autograd.forward import jvp
from tritorch.autograd.modes import enable_grad
from tritorch.errors import check
from tritorch.tensor import Tensor, from_array


class GradcheckError(RuntimeError):
    """The derivatives by the rules and by finite differences are not the same."""


def _flat(x):
    """The values in float64; a complex number is two of them, its parts, so that functions of complex tensors are real functions here."""
    x = x.detach().to("cpu").to_dense()
    return x.cdouble().numpy().flatten().view(np.float64) if x.dtype.is_complex else x.double().numpy().flatten()


def _size(x):
    """How many real numbers a tensor holds."""
    return 2 * x.numel() if x.dtype.is_complex else x.numel()


def _shaped(array, x):
    """The tensor of x's shape that `_flat` makes an array of."""
    return from_array((array.view(np.complex128) if x.dtype.is_complex else array).reshape(tuple(x.shape)))


def _outputs(func, inputs):
    """The outputs that a gradient can come from."""
    made = func(*inputs)
    made = made if isinstance(made, (tuple, list)) else (made,)
    return [o for o in made if isinstance(o, Tensor) and o.dtype.has_gradients]


def _differences(func, inputs, j, delta, eps):
    """(f(x + eps·delta) − f(x − eps·delta)) / 2eps of every output, flat. The input itself moves, and is put back: func may know it by
    another way than its argument, as a module knows its parameters."""
    place, start, sides = inputs[j].data, inputs[j].detach().clone(), []
    try:
        for sign in (1, -1):
            place.copy_(_shaped(_flat(start) + sign * eps * delta, start))
            sides.append([_flat(o) for o in _outputs(func, inputs)])
    finally:
        place.copy_(start)
    return [(high - low) / (2 * eps) for high, low in zip(*sides)]


def _pulled(outs, i, inputs, wanted, weight):
    """The gradients of the wanted inputs when the array `weight` arrives at output i."""
    out = outs[i]
    v = _shaped(weight, out).to(out.device).to(out.dtype)
    if not out.requires_grad:
        return [None] * len(wanted)
    return list(differentiate(out, [inputs[j] for j in wanted], v, retain_graph=True, allow_unused=True))


class _Check:
    """One function at one point."""

    def __init__(self, func, inputs, eps, atol, rtol, nondet_tol):
        self.func, self.inputs, self.eps, self.atol, self.rtol, self.nondet_tol = func, inputs, eps, atol, rtol, nondet_tol
        self.wanted = [j for j, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
        check(self.wanted, "gradcheck", "at least one input tensor that requires grad", "none", error=ValueError)
        for j in self.wanted:
            check(0 not in [s for s, n in zip(inputs[j].strides, inputs[j].shape) if n > 1], "gradcheck",
                  f"elements of input {j} with memory of their own",
                  f"strides {inputs[j].strides}", use="x.clone()")
        self.outs = _outputs(func, inputs)

    def compare(self, analytic, numeric, what):
        if not np.allclose(analytic, numeric, self.rtol, self.atol, equal_nan=True):
            worst = np.nanargmax(np.abs(analytic - numeric)) if np.isfinite(analytic - numeric).any() else 0
            raise GradcheckError(f"gradcheck: expected the Jacobian of {what} by the rules as by finite differences, got "
                                 f"{np.ravel(analytic)[worst]:.8g} and "
                                 f"{np.ravel(numeric)[worst]:.8g} where they differ most (atol {self.atol}, rtol {self.rtol}); "
                                 f"numerical:{numeric} analytical:{analytic}")

    def slow(self, forward, backward):
        """Every entry of every Jacobian."""
        for place, j in enumerate(self.wanted):
            x = self.inputs[j]
            units = np.eye(_size(x))
            numeric = [_differences(self.func, self.inputs, j, u, self.eps) for u in units]
            for i, out in enumerate(self.outs):
                table = np.array([column[i] for column in numeric]).reshape(_size(x), _size(out))
                what = f"output {i} with respect to input {j}"
                if backward:
                    self.compare(self.by_rows(i, place, x), table, what)
                if forward and x.numel():
                    moved = [self.pushed(j, u)[i] for u in units]
                    self.compare(np.array(moved).reshape(table.shape), table, what + " in forward mode")

    def by_rows(self, i, place, x):
        """The Jacobian of output i by one backward pass for each of its elements; twice, to see that it repeats."""
        tables = []
        for _ in range(2):
            rows = []
            for unit in np.eye(_size(self.outs[i])):
                g = _pulled(self.outs, i, self.inputs, self.wanted, unit)[place]
                rows.append(np.zeros(_size(x)) if g is None else _flat(g))
            tables.append(np.array(rows).reshape(_size(self.outs[i]), _size(x)).T)
        if not np.allclose(*tables, rtol=0, atol=self.nondet_tol, equal_nan=True):
            raise GradcheckError(f"gradcheck: expected backward to give the same gradients twice, got a difference of "
                                 f"{np.abs(tables[0] - tables[1]).max():.3g}; "
                                 "Backward is not reentrant (use nondet_tol if that is meant)")
        return tables[0]

    def pushed(self, j, delta):
        """The tangents of all outputs when input j moves along delta."""
        x = self.inputs[j]
        tangent = _shaped(delta, x).to(x.device).to(x.dtype)

        def outputs(v):
            return tuple(_outputs(self.func, [*self.inputs[:j], v, *self.inputs[j + 1:]]))

        return [_flat(t) for t in jvp(outputs, (x.detach(),), (tangent,))[1]]

    def fast(self, forward, backward):
        """One number a Jacobian: both sides multiplied with random directions."""
        rng = np.random.default_rng(0)
        for place, j in enumerate(self.wanted):
            u = rng.standard_normal(_size(self.inputs[j]))
            u /= max(np.linalg.norm(u), 1e-12)
            numeric = _differences(self.func, self.inputs, j, u, self.eps)
            moved = self.pushed(j, u) if forward else None
            for i, out in enumerate(self.outs):
                v = rng.standard_normal(_size(out))
                v /= max(np.linalg.norm(v), 1e-12)
                what = f"output {i} with respect to input {j}, along random directions"
                if backward:
                    g = _pulled(self.outs, i, self.inputs, self.wanted, v)[place]
                    self.compare(np.array(0.0 if g is None else _flat(g) @ u), np.array(v @ numeric[i]), what)
                if forward:
                    self.compare(np.array(v @ moved[i]), np.array(v @ numeric[i]), what + " in forward mode")

    def batched(self, what, one, likes):
        """`one`, from a tensor like these to tensors, for two at once as for each alone."""
        for k, like in likes:
            rng = np.random.default_rng(k)
            pair = [_random_like(like, rng, False).detach() for _ in range(2)]
            alone = [one(k, v) for v in pair]
            try:
                together = vmap(lambda v, k=k: one(k, v))(stacked(pair))
            except RuntimeError as error:
                raise GradcheckError(f"gradcheck: expected {what} {k} of a batch, by vmap, got {error}") from error
            for j, (got, *want) in enumerate(zip(together, *alone)):
                for a, b in zip(got, want):
                    if not np.allclose(_flat(a), _flat(b), rtol=1e-5, atol=1e-8, equal_nan=True):
                        raise GradcheckError(f"gradcheck: expected {what} {k} of a batch as one by one, got other results (number {j})")

    def batched_backward(self):
        """Gradients of a batch of cotangents."""
        inputs = [self.inputs[j] for j in self.wanted]

        def pulled(i, v):
            found = differentiate(self.outs[i], inputs, v, retain_graph=True, allow_unused=True)
            return tuple([x.detach().new_zeros(x.shape) if g is None else g for x, g in zip(inputs, found)])

        self.batched("the gradients of output", pulled, [(i, o) for i, o in enumerate(self.outs) if o.requires_grad])

    def batched_forward(self):
        """Tangents for a batch of tangents."""
        def pushed(j, v):
            def outputs(x):
                return tuple(_outputs(self.func, [*self.inputs[:j], x, *self.inputs[j + 1:]]))

            return jvp(outputs, (self.inputs[j].detach(),), (v,))[1]

        self.batched("the tangents along input", pushed, [(j, self.inputs[j]) for j in self.wanted])

    def shapes_and_dtypes(self):
        for i, out in enumerate(self.outs):
            for j, g in zip(self.wanted, _pulled(self.outs, i, self.inputs, self.wanted, np.ones(_size(out)))):
                x = self.inputs[j]
                if g is not None and (g.shape != x.shape or g.dtype is not x.dtype):
                    raise GradcheckError(f"gradcheck: expected a gradient of shape {x.shape} and {x.dtype} for input {j}, got {g.shape} "
                                         f"and {g.dtype}")

    def undefined(self):
        """Backward through some outputs only: gradients that never arrive count as zeros."""
        if len(self.outs) < 2:
            return
        live = [o for o in self.outs if o.requires_grad]
        inputs = [self.inputs[j] for j in self.wanted]
        for i, out in enumerate(live):
            alone = differentiate(out, inputs, out.new_ones(out.shape), retain_graph=True, allow_unused=True)
            weights = [o.new_ones(o.shape) if k == i else o.new_zeros(o.shape) for k, o in enumerate(live)]
            spelled = differentiate(live, inputs, weights, retain_graph=True, allow_unused=True)
            for a, b in zip(alone, spelled):
                a, b = [0.0 if g is None else _flat(g) for g in (a, b)]
                if not np.allclose(a, b, self.rtol, self.atol, equal_nan=True):
                    raise GradcheckError("gradcheck: expected gradients that are None to count as zeros in backward, got other results")


def gradcheck(func, inputs, *, eps=1e-6, atol=1e-5, rtol=0.001, raise_exception=True, nondet_tol=0.0, check_undefined_grad=True,
              check_grad_dtypes=False,
              check_batched_grad=False, check_batched_forward_grad=False, check_forward_ad=False, check_backward_ad=True, fast_mode=False,
              masked=None):
    """Whether the gradients of `func` at `inputs` (float64 or complex128 recommended) agree with finite differences of step
    `eps`. Complex numbers are moved along both axes.

    Raises GradcheckError where they do not, or returns False with `raise_exception=False`. `fast_mode` compares random
    projections of the Jacobians instead of every entry. `check_batched_grad` and `check_batched_forward_grad` hold gradients and tangents
    of batches, by `vmap`, against those of one by one. `masked` is accepted and does nothing.

    >>> import tritorch as torch
    >>> torch.autograd.gradcheck(lambda x: x.sin().sum(), torch.randn(3, dtype=torch.float64, requires_grad=True))
    True
    """
    check(check_forward_ad or check_backward_ad, "gradcheck", "forward or backward mode to check", "neither", error=ValueError)
    check(check_backward_ad or not check_batched_grad, "gradcheck", "check_backward_ad with check_batched_grad", "False", error=ValueError)
    check(check_forward_ad or not check_batched_forward_grad, "gradcheck", "check_forward_ad with check_batched_forward_grad", "False",
          error=ValueError)
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    try:
        with enable_grad():
            one = _Check(func, inputs, eps, atol, rtol, nondet_tol)
            if check_backward_ad:
                one.shapes_and_dtypes()
                if check_undefined_grad:
                    one.undefined()
            (one.fast if fast_mode else one.slow)(check_forward_ad, check_backward_ad)
            if check_batched_forward_grad:
                one.batched_forward()
            if check_batched_grad:
                one.batched_backward()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(func, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=0.001, gen_non_contig_grad_outputs=False,
                  raise_exception=True, nondet_tol=0.0,
                  check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False, check_fwd_over_rev=False,
                  check_rev_over_rev=True,
                  fast_mode=False, masked=False):
    """Whether the second derivatives of `func` agree with finite differences of the first; `grad_outputs` are random unless given.

    >>> import tritorch as torch
    >>> torch.autograd.gradgradcheck(lambda x: (x ** 3).sum(), torch.randn(3, dtype=torch.float64, requires_grad=True))
    True
    """
    check(check_fwd_over_rev or check_rev_over_rev, "gradgradcheck", "forward or reverse over reverse to check", "neither",
          error=ValueError)
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    places = [j for j, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        with enable_grad():                                              # as func runs later, which may look
            grad_outputs = [_random_like(o, rng, gen_non_contig_grad_outputs) for o in _outputs(func, inputs)]
    weights = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    count = len(weights)

    def gradients(*values):
        given, ws = values[:-count], values[-count:]
        given = [x.requires_grad_() if j in places else x for j, x in enumerate(given)]       # what forward mode moves is no leaf yet
        outs = _outputs(func, given)
        pairs = [(o, w) for o, w in zip(outs, ws) if o.requires_grad]
        found = differentiate([o for o, _ in pairs], [given[j] for j in places], [w for _, w in pairs], create_graph=True,
                              allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(gradients, (*inputs, *weights), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception, nondet_tol=nondet_tol,
                     check_undefined_grad=check_undefined_grad, check_grad_dtypes=check_grad_dtypes,
                     check_batched_grad=check_batched_grad and check_rev_over_rev, check_forward_ad=check_fwd_over_rev,
                     check_backward_ad=check_rev_over_rev, fast_mode=fast_mode, masked=masked)


def _random_like(o, rng, gapped):
    shape = (*o.shape, 2) if gapped else tuple(o.shape)
    array = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if o.dtype.is_complex else 0)
    out = from_array(np.asarray(array)).to(o.device).to(o.dtype)
    return (out[..., 0] if gapped else out).detach().requires_grad_()
