"""Gradients of an operator from its formula: the same outputs as a composition of operators that have rules."""
from tritorch.autograd.engine import grad as differentiate
from tritorch.autograd.modes import state
from tritorch.tensor import Tensor


def formula_rule(door, inputs):
    """A gradient rule for `inputs` that recomputes the formula and differentiates it."""
    count = len(door.gnames)

    def rule(*values):
        gs, args = values[:count], list(values[count:])
        create, state.grad = state.grad, True
        try:
            places, leaves = [], []
            for k, name in enumerate(door.names):
                if name in inputs:
                    several = type(args[k]) is tuple
                    fresh = tuple(_stand_in(v, create) for v in args[k]) if several else _stand_in(args[k], create)
                    args[k] = fresh
                    places.append((several, len(leaves), len(fresh) if several else 1))
                    leaves += fresh if several else [fresh]
            outs = door.formula_body(*args)
            outs = outs if isinstance(outs, tuple) else (outs,)
            pairs = [(o, g) for o, g in zip(outs, gs) if o is not None and g is not None and o.requires_grad]
            wanted = [v for v in leaves if isinstance(v, Tensor) and v.requires_grad]
            found = iter(differentiate([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=create, allow_unused=True)
                         if pairs else [None] * len(wanted))
            flat = [next(found) if isinstance(v, Tensor) and v.requires_grad else None for v in leaves]
        finally:
            state.grad = create
        out = [tuple(flat[i:i + n]) if several else flat[i] for several, i, n in places]
        return tuple(out) if len(inputs) > 1 else out[0]

    return rule


def _stand_in(x, create):
    """An input of the formula as a leaf of its own, or, when the graph goes on through it, a node of its own on top of it."""
    if not isinstance(x, Tensor) or not x.dtype.has_gradients:
        return x
    return x.view_as(x) if create and x.requires_grad else x.detach().requires_grad_()
