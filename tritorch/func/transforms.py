"""Transformations of functions: each takes a function of tensors and gives one that computes its derivative. They nest to any order."""
import functools

from tritorch.autograd import forward
from tritorch.autograd.engine import grad as differentiate
from tritorch.autograd.modes import enable_grad
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.shaping import stack
from tritorch.tensor import Tensor


def _inputs(op, args, argnums):
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    check(all(-len(args) <= k < len(args) for k in numbers), op, f"argnums below {len(args)}", argnums)
    return [k % len(args) for k in numbers]


def _tracked(args, picked):
    """args with those picked as starts of a graph, still connected to the one around."""
    fresh = list(args)
    for k in picked:
        fresh[k] = args[k].view_as(args[k]) if args[k].requires_grad else args[k].view_as(args[k]).detach().requires_grad_()
        if args[k]._tangents:
            fresh[k]._tangents = args[k]._tangents
    return fresh


def grad_and_value(func, argnums=0, has_aux=False):
    """A function that returns (gradient, value) of a scalar function with respect to its arguments `argnums`.

    >>> import tritorch as torch
    >>> torch.func.grad_and_value(lambda x: (x * x).sum())(torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]), tensor(5.))
    """

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        picked = _inputs("grad", args, argnums)
        with enable_grad():
            fresh = _tracked(args, picked)
            made = func(*fresh, **kwargs)
            value, aux = made if has_aux else (made, None)
            check(isinstance(value, Tensor) and value.numel() == 1, "grad", "a function that returns one number", getattr(value, "shape", type(value).__name__))
            outer = _outer_graph(args)
            found = differentiate(value, [fresh[k] for k in picked], create_graph=outer, materialize_grads=True) if value.requires_grad else [
                create.zeros_like(args[k]) for k in picked]
        value = value if outer else value.detach()
        gradient = found[0] if isinstance(argnums, int) else tuple(found)
        return (gradient, (value, aux)) if has_aux else (gradient, value)

    return wrapped


def _outer_graph(args):
    """Whether somebody outside differentiates these arguments as well."""
    return any(isinstance(a, Tensor) and (a.requires_grad or a._tangents) for a in args)


def grad(func, argnums=0, has_aux=False):
    """A function that returns the gradient of a scalar function with respect to its arguments `argnums`.

    >>> import tritorch as torch
    >>> torch.func.grad(torch.func.grad(lambda x: x ** 3))(torch.tensor(2.0))
    tensor(12.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args, **kwargs):
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(func, *primals, has_aux=False):
    """(func(*primals), a function that maps a cotangent of the output to those of the primals).

    >>> import tritorch as torch
    >>> y, pull = torch.func.vjp(torch.sin, torch.zeros(2)); pull(torch.ones(2))
    (tensor([1., 1.]),)
    """
    with enable_grad():
        fresh = _tracked(primals, range(len(primals)))
        made = func(*fresh)
        value, aux = made if has_aux else (made, None)
    outer = _outer_graph(primals)

    def pull(*cotangents, **kwargs):
        outs = value if isinstance(value, (tuple, list)) else (value,)
        given = cotangents[0] if len(cotangents) == 1 and isinstance(cotangents[0], (tuple, list)) else cotangents
        pairs = [(o, c) for o, c in zip(outs, given) if o.requires_grad]
        if not pairs:
            return tuple([create.zeros_like(p) for p in primals])
        with enable_grad():
            deep = outer or any(c.requires_grad or c._tangents for _, c in pairs)
            return differentiate([o for o, _ in pairs], fresh, [c for _, c in pairs], retain_graph=True, create_graph=deep, materialize_grads=True)

    shown = value if outer else type(value)(o.detach() for o in value) if isinstance(value, (tuple, list)) else value.detach()
    return (shown, pull, aux) if has_aux else (shown, pull)


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """(func(*primals), its derivative along the tangents), by forward mode.

    >>> import tritorch as torch
    >>> torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.tensor([1.0, 2.0]),))
    (tensor([0., 0.]), tensor([1., 2.]))
    """
    check(isinstance(primals, (tuple, list)) and isinstance(tangents, (tuple, list)), "jvp", "primals and tangents as tuples", type(primals).__name__)
    if not has_aux:
        return forward.jvp(func, tuple(primals), tuple(tangents))
    kept = []

    def main(*args):
        made, aux = func(*args)
        kept.append(aux)
        return made

    return (*forward.jvp(main, tuple(primals), tuple(tangents)), kept[0])


def linearize(func, *primals):
    """(func(*primals), a function that maps tangents of the primals to the tangent of the output)."""
    return func(*primals), lambda *tangents: forward.jvp(func, primals, tangents)[1]


def _basis(x):
    """The unit tensors of x's shape, one an element."""
    for k in range(x.numel()):
        unit = create.zeros_like(x.detach()).contiguous().reshape(-1)
        unit[k] = 1
        yield unit.reshape(x.shape)


def jacrev(func, argnums=0, *, has_aux=False, chunk_size=None):
    """A function that returns the Jacobian, output dims first, by one reverse pass for each element of the output.

    >>> import tritorch as torch
    >>> torch.func.jacrev(lambda x: x * x)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @functools.wraps(func)
    def wrapped(*args):
        picked = _inputs("jacrev", args, argnums)

        def of_picked(*values):
            full = list(args)
            for k, v in zip(picked, values):
                full[k] = v
            return func(*full)

        made, pull, *aux = vjp(of_picked, *[args[k] for k in picked], has_aux=has_aux)
        rows = [pull(unit) for unit in _basis(made)]
        out = []
        for j, k in enumerate(picked):
            column = [r[j] for r in rows]
            out.append(stack(column).reshape(*made.shape, *args[k].shape) if column else create.zeros(*made.shape, *args[k].shape, device=made.device))
        out = out[0] if isinstance(argnums, int) else tuple(out)
        return (out, aux[0]) if has_aux else out

    return wrapped


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error"):
    """A function that returns the Jacobian, output dims first, by one forward pass for each element of the input."""

    @functools.wraps(func)
    def wrapped(*args):
        out, aux = [], None
        for k in _inputs("jacfwd", args, argnums):
            columns = []
            for unit in _basis(args[k]):
                made = jvp(lambda v, k=k: func(*args[:k], v, *args[k + 1:]), (args[k],), (unit,), has_aux=has_aux)
                columns.append(made[1])
                aux = made[2] if has_aux else None
            value = columns[0]
            out.append(stack(columns, -1).reshape(*value.shape, *args[k].shape))
        out = out[0] if isinstance(argnums, int) else tuple(out)
        return (out, aux) if has_aux else out

    return wrapped


def hessian(func, argnums=0):
    """A function that returns the second derivatives of a scalar function: forward over reverse.

    >>> import tritorch as torch
    >>> torch.func.hessian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Call a module with other tensors in the place of its parameters and buffers, by name."""
    dicts = parameter_and_buffer_dicts if isinstance(parameter_and_buffer_dicts, (tuple, list)) else (parameter_and_buffer_dicts,)
    given = {name: t for d in dicts for name, t in d.items()}
    owners = {}
    for prefix, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for name in table:
                owners[f"{prefix}.{name}" if prefix else name] = table, name
    unknown = sorted(given.keys() - owners.keys())
    check(not unknown or not strict, "functional_call", "names of the module's parameters and buffers", ", ".join(unknown))
    shared = {}
    if tie_weights:                                                      # a tensor under several names is replaced under all of them
        for name, (table, key) in owners.items():
            if name in given and table[key] is not None:
                shared[id(table[key])] = given[name]
    before = [(table, key, table[key]) for table, key in owners.values()]
    try:
        for name, (table, key) in owners.items():
            if name in given or id(table[key]) in shared:
                table[key] = given.get(name, shared.get(id(table[key])))
        args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*args, **(kwargs or {}))
    finally:
        for table, key, value in before:
            table[key] = value
