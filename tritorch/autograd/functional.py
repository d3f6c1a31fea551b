"""Derivatives of functions at a point, under the names of torch.autograd.functional; `tritorch.func` composes better."""
from importlib import import_module
from math import prod

from tritorch.autograd.engine import grad
from tritorch.autograd.forward import jvp as push
from tritorch.autograd.modes import enable_grad
from tritorch.errors import check
from tritorch.tensor import Tensor


def _tuple(op, what, x):
    """(whether it is a tuple, the tensors)."""
    several = isinstance(x, tuple)
    for t in x if several else (x,):
        check(isinstance(t, Tensor), op, f"{what} as a tensor or a tuple of tensors", type(t).__name__, error=TypeError)
    return several, x if several else (x,)


def _shape_back(several, values):
    return tuple(values) if several else values[0]


def _fresh(inputs, create_graph):
    return tuple([x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in inputs])


def _call(op, func, inputs, strict):
    """(whether the output is a tuple, the outputs) of func, all tensors."""
    made = func(*inputs)
    several, outs = _tuple(op, "the function's result", made)
    for o in outs:
        check(not strict or o.requires_grad, op, "outputs that depend on the inputs in strict mode", "one that does not")
    return several, outs


def _pull(op, outs, inputs, weights, create_graph, strict):
    """The gradients of the inputs, zeros where there is no way to one."""
    pairs = [(o, w) for o, w in zip(outs, weights) if o.requires_grad]
    found = [None] * len(inputs)
    if pairs:
        found = grad([o for o, _ in pairs], inputs, [w for _, w in pairs], retain_graph=True, create_graph=create_graph, allow_unused=True)
    check(not strict or all(g is not None for g in found), op, "outputs that depend on every input in strict mode",
          "an input without an effect")
    return [x.new_zeros(x.shape) if g is None else g for g, x in zip(found, inputs)]


def _finished(values, create_graph):
    return [v if create_graph else v.detach() for v in values]


def _weights(op, v, like, optional):
    """The vector of a product, one tensor for each of `like`."""
    if v is None:
        check(len(like) == 1 and like[0].numel() == 1 and optional, op, "v given unless there is one output of one element", "None")
        return (like[0].new_ones(like[0].shape),)
    v = _tuple(op, "v", v)[1]
    check(len(v) == len(like) and all(a.shape == b.shape for a, b in zip(v, like)), op, f"v of the shapes {[tuple(x.shape) for x in like]}",
          [tuple(a.shape) for a in v])
    return v


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), vᵀJ): the gradients of the inputs when `v` arrives at the outputs.

    >>> import tritorch as torch
    >>> torch.autograd.functional.vjp(lambda x: x * x, torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        many, given = _tuple("vjp", "inputs", inputs)
        fresh = _fresh(given, create_graph)
        several, outs = _call("vjp", func, fresh, strict)
        found = _pull("vjp", outs, fresh, _weights("vjp", v, outs, True), create_graph, strict)
    return _shape_back(several, _finished(outs, create_graph)), _shape_back(many, _finished(found, create_graph))


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), Jv): the change of the outputs when the inputs move along `v`; by reverse mode twice.

    >>> import tritorch as torch
    >>> torch.autograd.functional.jvp(lambda x: x * x, torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        _, given = _tuple("jvp", "inputs", inputs)
        fresh = _fresh(given, create_graph)
        v = _weights("jvp", v, fresh, True)
        several, outs = _call("jvp", func, fresh, strict)
        probes = [o.detach().new_zeros(o.shape).requires_grad_() for o in outs]
        pulled = _pull("jvp", outs, fresh, probes, True, strict)         # linear in the probes: its own gradient is the product
        moved = _pull("jvp", list(pulled), probes, v, create_graph, False)
    return _shape_back(several, _finished(outs, create_graph)), _shape_back(several, _finished(moved, create_graph))


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """The Jacobian: for each output (if several) and each input (if several) a tensor of the output's dims, then the input's.

    `vectorize`: one pass for all elements of an output, in the memory of as many, in the place of a pass for each. `strategy` is
    "reverse-mode" or "forward-mode". Rows of complex inputs are gradients, as backward gives them; outputs may be complex in forward mode
    only, as in PyTorch. RuntimeError for `strict` with either, as there.

    >>> import tritorch as torch
    >>> torch.autograd.functional.jacobian(lambda x: x * x, torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    check(strategy in ("reverse-mode", "forward-mode"), "jacobian", "strategy 'reverse-mode' or 'forward-mode'", strategy)
    check(not strict or not vectorize and strategy == "reverse-mode", "jacobian", "strict without vectorize, in reverse mode",
          f"strict=True, vectorize={vectorize}, strategy='{strategy}'")
    many, given = _tuple("jacobian", "inputs", inputs)
    if strategy == "forward-mode":
        several, columns = (_by_columns if vectorize else _by_forward_mode)(func, given)
        return _shape_back(several, [_shape_back(many, row) for row in columns])
    with enable_grad():
        fresh = _fresh(given, create_graph)
        several, outs = _call("jacobian", func, fresh, strict)
        for out in outs:                                                 # of two real numbers that are one complex there is no one gradient
            check(not out.dtype.is_complex, "jacobian", "real outputs", out.dtype, use="strategy='forward-mode', or view_as_real")
        rows = [_shape_back(many, _finished(_row(out, fresh, create_graph, strict, vectorize), create_graph)) for out in outs]
    return _shape_back(several, rows)


def _row(out, inputs, create_graph, strict, vectorize):
    """The derivatives of one output by every input."""
    if vectorize:
        return _jacobians().by_units(lambda unit: _pull("jacobian", [out], inputs, [unit], create_graph, strict), out, inputs)
    pulled = [_pull("jacobian", [out.reshape(-1)[k]], inputs, [out.new_ones(())], create_graph, strict) for k in range(out.numel())]
    return [_stacked([p[j] for p in pulled], (*out.shape, *x.shape), x.new_zeros((*out.shape, *x.shape))) for j, x in enumerate(inputs)]


def _jacobians():
    """`tritorch.func.jacobians`, which lies above this layer."""
    return import_module("tritorch.func.jacobians")


def _by_columns(func, inputs):
    """As `_by_forward_mode`, by one pass."""
    several = []
    made = _jacobians().by_columns(lambda *values: _seen(several, func(*values)), inputs)[0]
    return several[-1], made


def _seen(several, made):
    """A result as a tuple; whether it was one is added to a list."""
    known, outs = _tuple("jacobian", "the function's result", made)
    several.append(known)
    return outs


def _stacked(parts, shape, zeros):
    """The parts one after the other, under `shape`; the zeros if there are none."""
    if not parts:
        return zeros
    flat = zeros.reshape(len(parts), -1).clone()
    for k, p in enumerate(parts):
        flat[k] = p.reshape(-1)
    return flat.reshape(shape)


def _by_forward_mode(func, inputs):
    table = []
    for j, x in enumerate(inputs):
        columns = []
        for k in range(x.numel()):
            unit = x.detach().new_zeros(x.shape).reshape(-1)
            unit[k] = 1
            made = push(lambda v, j=j: func(*inputs[:j], v, *inputs[j + 1:]), (x,), (unit.reshape(x.shape),))[1]
            several, moved = _tuple("jacobian", "the function's result", made)
            columns.append(moved)
        for i in range(len(columns[0])):
            if j == 0:
                table.append([])
            shape = columns[0][i].shape
            flat = _stacked([c[i] for c in columns], (x.numel(), prod(shape)), columns[0][i].new_zeros((x.numel(), prod(shape))))
            table[i].append(flat.t().reshape((*shape, *x.shape)))
    return several, table


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """The second derivatives of a function of one value: a tensor for each pair of inputs (if several).

    >>> import tritorch as torch
    >>> torch.autograd.functional.hessian(lambda x: (x ** 3).sum(), torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    many, given = _tuple("hessian", "inputs", inputs)

    def gradients(*xs):
        with enable_grad():
            xs = tuple([x if x.requires_grad else x.view_as(x).requires_grad_() for x in xs])    # detach() would lose a tangent
            outs = _call("hessian", func, xs, strict)[1]
            check(len(outs) == 1 and outs[0].numel() == 1, "hessian", "a function that returns one number", [tuple(o.shape) for o in outs])
            return tuple(_pull("hessian", outs, xs, [outs[0].new_ones(outs[0].shape)], True, strict))

    full = jacobian(gradients, given, create_graph, strict, vectorize, outer_jacobian_strategy)
    return full if many else full[0][0]


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), vᵀH) of a function of one value."""
    return _with_hessian("vhp", func, inputs, v, create_graph, strict)


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), Hv) of a function of one value; H is symmetric, so this is `vhp`.

    >>> import tritorch as torch
    >>> torch.autograd.functional.hvp(lambda x: (x ** 3).sum(), torch.tensor([1.0, 2.0]), torch.ones(2))
    (tensor(9.), tensor([ 6., 12.]))
    """
    return _with_hessian("hvp", func, inputs, v, create_graph, strict)


def _with_hessian(op, func, inputs, v, create_graph, strict):
    with enable_grad():
        many, given = _tuple("_with_hessian", "inputs", inputs)
        fresh = _fresh(given, create_graph)
        v = _weights(op, v, fresh, True)
        several, outs = _call(op, func, fresh, strict)
        check(len(outs) == 1 and outs[0].numel() == 1, op, "a function that returns one number", [tuple(o.shape) for o in outs])
        first = _pull(op, outs, fresh, [outs[0].new_ones(outs[0].shape)], True, strict)
        second = _pull(op, first, fresh, v, create_graph, strict)
    return _shape_back(several, _finished(outs, create_graph)), _shape_back(many, _finished(second, create_graph))
