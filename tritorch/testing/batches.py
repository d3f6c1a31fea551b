"""The check of an operator's rule under vmap, for all samples of its card."""
import numpy as np

from tritorch.autograd import modes
from tritorch.func import vjp, vmap
from tritorch.ops import create
from tritorch.ops.shaping import stack
from tritorch.testing.samples import assert_near, describe, places, replaced, results, samples_of, tensors_in, tolerance

SIZE = 3
VALUES_DECIDE = {"nonzero_places"}                                       # operators whose results have other shapes for other values


def check_batches(op, where):
    """vmap over all tensors, and over each alone, gives what the operator gives for each sample, from one call, and so do gradients."""
    if op.__name__ in VALUES_DECIDE:
        return
    for draws in zip(*[samples_of(op, seed=seed) for seed in range(SIZE)]):
        if not tensors_in(draws[0]):
            continue
        draws = [[_moved(a, where) for a in args] for args in draws]
        spots = [(k, j) for k, j, _ in places(draws[0])]
        rows = [[x.detach() for _, _, x in places(args)] for args in draws]
        if any(x.shape != y.shape or x.dtype is not y.dtype for row in rows for x, y in zip(row, rows[0])):
            rows = [rows[0]] * SIZE
        choices = [range(len(spots))] + ([[k] for k in range(len(spots))] if len(spots) > 1 else [])
        for mapped in choices:
            _check(op, draws[0], spots, rows, mapped)


def _moved(a, where):
    """An argument of a card on a device, also the tensors in a tuple."""
    if type(a) in (tuple, list):
        return type(a)([_moved(v, where) for v in a])
    return a.to(where) if hasattr(a, "to") and hasattr(a, "shape") else a


def _check(op, args, spots, rows, mapped):
    """Over the tensors at the places `mapped`."""
    dims = tuple([0 if k in mapped else None for k in range(len(spots))])
    inputs = [stack([row[k] for row in rows]) if k in mapped else rows[0][k] for k in range(len(spots))]
    samples = [[rows[s][k] if k in mapped else rows[0][k] for k in range(len(spots))] for s in range(SIZE)]
    moving = [k for k, x in enumerate(tensors_in(args)) if x.requires_grad]
    what = f"vmap over {[op.names[spots[k][0]] for k in mapped]} of {describe(op, args)}"

    def plain(*values):
        return tuple(results(op(*_put(args, spots, values))))

    def pulled(*values):
        def of_moving(*changed):
            now = list(values)
            for k, v in zip(moving, changed):
                now[k] = v
            return tuple([o for o in plain(*now) if o.dtype.has_gradients])

        outs, pull = vjp(of_moving, *[values[k] for k in moving])
        return pull(*[_weights(o) for o in outs])

    _same(plain, dims, inputs, samples, what)
    if moving and op.rules and any(o.dtype.has_gradients for o in results(op(*args))):
        _same(pulled, dims, inputs, samples, f"gradients of {what}")


def _same(fn, dims, inputs, samples, what):
    calls = []

    def counted(*values):
        calls.append(values)
        return fn(*values)

    with modes.no_grad():
        want = [fn(*values) for values in samples]
        if not want[0]:
            return
        made = vmap(counted, dims, randomness="same")(*inputs)
    assert len(calls) == 1, f"{what}: {len(calls)} calls for one"
    for k, got in enumerate(made):
        column = [w[k] for w in want]
        assert got.dtype is column[0].dtype, f"{what}: {got.dtype} for {column[0].dtype}"
        for s, w in enumerate(column):
            assert_near(got[s], w, f"{what}, sample {s}", 4 * tolerance(w.dtype))


def _put(args, spots, values):
    for (k, j), v in zip(spots, values):
        args = replaced(args, k, j, v)
    return args


def _weights(x):
    """A cotangent that is another for each element."""
    return create.tensor(np.cos(np.arange(x.numel())).reshape(x.shape), dtype=x.dtype, device=x.device)
