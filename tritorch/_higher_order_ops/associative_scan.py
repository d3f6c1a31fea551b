"""Running results under any associative function: state-space models compute their states so."""
import math

from tritorch.errors import check
from tritorch.func import vmap
from tritorch.ops.shaping import cat, stack
from tritorch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["associative_scan"]


def associative_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    """y[0] = x[0], y[i] = combine_fn(y[i - 1], x[i]) along `dim`, in ⌈log₂ n⌉ rounds of calls on many elements at once.

    `xs`: a tensor, or tensors of one length along `dim` in tuples, lists and dicts; `combine_fn(a, b)` takes two such and returns one, must
    be associative, and gets several places along `dim` at once, so that it has to work elementwise, unless `combine_mode` is "generic":
    then it sees one place, without `dim`. `reverse` goes from the end. Gradients flow through it. Unlike PyTorch's, "pointwise" runs on
    the CPU too. Raises ValueError for what cannot be combined.

    >>> import tritorch as torch
    >>> associative_scan(lambda a, b: a * b, torch.arange(1, 6), 0)
    tensor([  1,   2,   6,  24, 120])
    >>> decay, x = torch.full((4,), 0.5), torch.ones(4)                    # h = 0.5 h + x
    >>> associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, x), 0)[1]
    tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    leaves, tree = tree_flatten(xs)
    check(callable(combine_fn), "associative_scan", "a function as combine_fn", combine_fn, error=ValueError)
    check(isinstance(dim, int), "associative_scan", "an int as dim", repr(dim), error=ValueError)
    check(combine_mode in ("pointwise", "generic"), "associative_scan", "combine_mode 'pointwise' or 'generic'", repr(combine_mode),
          error=ValueError)
    check(len(leaves) > 0, "associative_scan", "at least one tensor in xs", "none", error=ValueError)
    rows = [x.movedim(dim, 0) for x in leaves]
    lengths = {len(x) for x in rows}
    check(len(lengths) == 1 and lengths != {0}, "associative_scan", f"one length along dim {dim}, not 0", sorted(lengths), error=ValueError)

    def combined(a, b):
        out, made = tree_flatten(combine_fn(tree_unflatten(a, tree), tree_unflatten(b, tree)))
        check(len(out) == len(leaves), "associative_scan", f"a combine_fn that returns {tree}", made, error=ValueError)
        return out

    step = vmap(combined) if combine_mode == "generic" else combined
    rows = _scan(step, [x.flip(0) for x in rows] if reverse else rows)
    return tree_unflatten([(y.flip(0) if reverse else y).movedim(0, dim) for y in rows], tree)


def _scan(step, xs):
    """The running results of lists of rows: those of pairs give every other one, and these the ones between them."""
    n = len(xs[0])
    if n < 2:
        return xs
    odd = _scan(step, step([x[0:n - 1:2] for x in xs], [x[1:n:2] for x in xs]))
    even = [x[:1] for x in xs]
    if n > 2:
        count = math.ceil(n / 2) - 1
        between = step([y[:count] for y in odd], [x[2::2] for x in xs])
        even = [cat([first, rest]) for first, rest in zip(even, between)]
    return [_alternating(a, b) for a, b in zip(even, odd)]


def _alternating(a, b):
    """Rows of a and b in turn; a, the first, may have one more."""
    n = len(b)
    out = stack([a[:n], b], 1).flatten(0, 1)
    return out if len(a) == n else cat([out, a[n:]])
