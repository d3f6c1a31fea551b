"""gradcheck of functions with sparse arguments and results, whose values stand for them."""
import functools

from tritorch.dtype import types
from tritorch.ops import create
from tritorch.sparse.base import Sparse
from tritorch.sparse.compressed import BLOCKED
from tritorch.sparse.coo import Coo, with_values


class _Places:
    """A sparse tensor among the arguments whose values, the argument behind it, are differentiated."""

    def __init__(self, x):
        self.x = x


def as_sparse_gradcheck(gradcheck):
    """A gradcheck such as `tritorch.autograd.gradcheck`, for functions of sparse tensors too. Sparse arguments that require a gradient are
    given all their zeros, unless it is called with `masked=True`; sparse results are made strided.

    >>> import tritorch as torch
    >>> gradcheck = torch.sparse.as_sparse_gradcheck(torch.autograd.gradcheck)
    >>> x = torch.eye(2, dtype=torch.float64).to_sparse().requires_grad_()
    >>> gradcheck(lambda x: torch.sparse.mm(x, torch.ones(2, 2, dtype=torch.float64)), x, masked=True)
    True
    """

    @functools.wraps(gradcheck)
    def checked(func, inputs, **kwargs):
        masked = kwargs.pop("masked", False)
        inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)

        def on_strided(*args):
            made = func(*_restored(args))
            return tuple([_strided(o, masked) for o in made]) if isinstance(made, (tuple, list)) else _strided(made, masked)

        return gradcheck(on_strided, _spread(inputs, masked), **kwargs)

    return checked


def _strided(x, masked):
    return x.to_dense(masked_grad=masked) if isinstance(x, Sparse) and x.requires_grad else x


def _spread(inputs, masked):
    out = []
    for x in inputs:
        if isinstance(x, Sparse) and x.requires_grad:
            x = x.detach() if masked else _whole(x.detach())
            out += [_Places(x), x.parts[-1].detach().clone().requires_grad_()]
        else:
            out.append(x)
    return tuple(out)


def _restored(args):
    out, args = [], [*args]
    while args:
        x = args.pop(0)
        out.append(with_values(x.x, args.pop(0)) if isinstance(x, _Places) else x)
    return out


def _whole(x):
    """The tensor with a value at every place."""
    ones = create.ones(tuple(x.shape), dtype=types.bool, device=x.device)
    block = x.block() if not isinstance(x, Coo) and x.layout in BLOCKED else None
    if isinstance(x, Coo):
        places = ones.to_sparse(x.sparse_dim())
    else:
        places = ones.to_sparse(layout=x.layout, blocksize=block, dense_dim=x.dense_dim())
    return x.to_dense().sparse_mask(places)
