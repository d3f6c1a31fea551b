"""opcheck: whether what was registered for a custom operator fits what it does."""
from __future__ import annotations

import warnings

from tritorch.autograd.modes import enable_grad, no_grad
from tritorch.errors import sentence
from tritorch.library.operators import CustomOpDef
from tritorch.library.overload import OpOverload
from tritorch.library.registering import _known, told
from tritorch.ops.namespaces import OpOverloadPacket
from tritorch.tensor import Tensor
from tritorch.testing import assert_close
from tritorch.utils._pytree import tree_flatten, tree_leaves

TESTS = "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"


class OpCheckError(Exception):
    """An operator does something else than what was registered for it."""


def opcheck(op, args, kwargs=None, *, test_utils=TESTS, raise_exception=True, rtol=None, atol=None):
    """Hold a custom operator against what was registered for it, with these arguments: {test: "SUCCESS" or the error}.

    * test_schema: it writes the arguments in `mutates_args`, and no others; results have memory of their own.
    * test_autograd_registration: there is a formula for its gradients if arguments require grad, and it runs.
    * test_faketensor: `register_fake` tells shapes, strides, dtypes and devices of the results.
    * test_aot_dispatch_dynamic: under `tritorch.compile` results and gradients are those of the eager calls, to `rtol` and `atol`.

    With `raise_exception` the first error is raised as OpCheckError.

    >>> import tritorch as torch
    >>> @torch.library.custom_op("doc::double", mutates_args=())
    ... def double(x: torch.Tensor) -> torch.Tensor:
    ...     return x * 2
    >>> _ = double.register_fake(torch.empty_like)
    >>> torch.library.opcheck(double, (torch.ones(2),), test_utils=("test_schema", "test_faketensor"))
    {'test_schema': 'SUCCESS', 'test_faketensor': 'SUCCESS'}
    """
    if not isinstance(op, (CustomOpDef, OpOverload, OpOverloadPacket)):
        raise TypeError(sentence("opcheck", "a custom operator", type(op).__name__, use="tritorch.testing.check_op for tritorch.op"))
    op = _known(op)
    tests, results = (test_utils,) if isinstance(test_utils, str) else test_utils, {}
    odd = [t for t in tests if t not in TESTS]
    if odd:
        raise ValueError(sentence("opcheck", f"tests out of {', '.join(TESTS)}", odd))
    for test in tests:
        try:
            _RUN[test](op, tuple(args), dict(kwargs or {}), {"rtol": rtol, "atol": atol})
            results[test] = "SUCCESS"
        except Exception as error:
            if raise_exception:
                raise OpCheckError(f"{test} of {op.name()}: {error}") from error
            results[test] = error
    return results


def _copied(args, kwargs):
    leaves, form = tree_flatten((args, kwargs))
    return form.unflatten([x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in leaves])


def _results(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _schema(op, args, kwargs, near):
    args, kwargs = _copied(args, kwargs)
    named = op._signature.bind(*args, **kwargs).arguments
    before = {n: [x.detach().clone() for x in _results(v)] for n, v in named.items()}
    with no_grad():
        op(*args, **kwargs)
    for n, v in named.items():
        same = all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(_results(v), before[n]))
        if not same and n not in op._mutates:
            raise RuntimeError(sentence(op.name(), f"mutates_args to name {n}, which is written", f"{op._mutates}"))


def _gradients(op, args, kwargs):
    """(results, gradients of their sum) of a call."""
    args, kwargs = _copied(args, kwargs)
    with enable_grad():
        outs = _results(op(*args, **kwargs))
        leaves = [x for x in _results((args, kwargs)) if x.requires_grad]
        total = sum((x.sum() for x in outs if x.requires_grad), 0)
        if isinstance(total, Tensor):
            total.backward()
    return [x.detach() for x in outs], [x.grad for x in leaves]


def _registration(op, args, kwargs, near):
    _gradients(op, args, kwargs)


def _fake(op, args, kwargs, near):
    if op._fake is None:
        raise RuntimeError(sentence(op.name(), "a function that tells what the results are like", "none", use="register_fake"))
    with no_grad():
        args, kwargs = _copied(args, kwargs)
        first, other = (_results(told(op._fake, *op.bound(args, kwargs), size)) for size in (3, 5))
        real = _results(op(*args, **kwargs))
    if len(real) != len(first):
        raise RuntimeError(sentence(op.name(), f"{len(real)} results from register_fake", len(first)))
    for k, (x, y, z) in enumerate(zip(real, first, other)):
        fits = x.ndim == y.ndim and all(n == m or m != o for n, m, o in zip(x.shape, y.shape, z.shape))
        strides = y.shape != z.shape or x.stride() == y.stride()         # where a size depends on values, strides do too
        if not (fits and strides and x.dtype is y.dtype and x.device is y.device):
            facts = [(t.shape, t.stride(), t.dtype, t.device) for t in (x, y)]
            raise RuntimeError(sentence(op.name(), f"register_fake to tell of result {k} {facts[0]}", facts[1]))


def _compiled(op, args, kwargs, near):
    from tritorch.compiler import compile

    @compile
    def call(args, kwargs):
        return _gradients(op, args, kwargs)

    expected = _gradients(op, args, kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                                  # that it stays eager on the CPU is no mistake
        for _ in range(5):                                               # watched, captured, replayed
            assert_close(call(args, kwargs), expected, **near)


_RUN = dict(zip(TESTS, (_schema, _registration, _fake, _compiled)))
