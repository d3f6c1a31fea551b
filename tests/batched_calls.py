"""What tests of vmap check: that one call for all samples gives what a loop over them gives."""
import collections
import itertools

import numpy as np

import tritorch as torch
from tritorch.dispatch import Interpreter
from tritorch.func import vmap
from tritorch.utils._pytree import tree_flatten


def draw(*shape, seed=0, positive=False):
    values = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return torch.tensor(np.abs(values) + 0.5 if positive else values)


class Log(Interpreter):
    """How often each operator was called."""

    def __init__(self):
        self.calls = collections.Counter()

    def __call__(self, op, args, out):
        self.calls[op.__name__] += 1
        return self.proceed(op, args, out)


def looped(fn, dims, inputs, size):
    rows = [tree_flatten(fn(*[x if d is None else x.select(d, k) for x, d in zip(inputs, dims)]))[0] for k in range(size)]
    return [torch.stack(column) for column in zip(*rows)]


def check(fn, dims, *inputs, once=(), tolerance=1e-10, **kw):
    """vmap gives what a loop gives, and calls each of the operators `once` no more than once."""
    size = next(x.shape[d] for x, d in zip(inputs, dims) if d is not None)
    want, calls = looped(fn, dims, inputs, size), []

    def counted(*values):
        calls.append(values)
        return fn(*values)

    with Log() as log:
        got = tree_flatten(vmap(counted, tuple(dims), **kw)(*inputs))[0]
    assert len(calls) == 1, f"{len(calls)} calls"
    for name in once:
        assert log.calls[name] == 1, f"{name} was called {log.calls[name]} times"
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype is w.dtype
        np.testing.assert_allclose(*[x.detach().double().numpy() if not x.dtype.is_complex else x.detach().numpy() for x in (g, w)],
                                   rtol=tolerance, atol=tolerance)
    return got


def layouts(x):
    """The samples of x along other dims and with other strides: (tensor, dim)."""
    gapped = torch.full((2 * x.shape[0], *x.shape[1:-1], x.shape[-1] + 3), float("nan"), dtype=x.dtype)
    gapped[::2, ..., 1:-2] = x
    yield x.movedim(0, 1).contiguous(), 1
    yield x.movedim(0, -1).contiguous(), -1
    yield gapped[::2, ..., 1:-2], 0
    yield x[:1].expand(x.shape), 0
    yield x.mT.contiguous().mT, 0


def choices(count):
    """All ways to map some of so many arguments."""
    return [dims for dims in itertools.product((0, None), repeat=count) if any(d == 0 for d in dims)]


def of_choice(dims, tensors):
    """The tensors, those that are not mapped without samples."""
    return [x if d == 0 else x[0] for x, d in zip(tensors, dims)]
