"""Einstein summation, reduced to views, sums, elementwise products and matrix products."""
from functools import lru_cache
from math import prod

from tritorch.errors import check
from tritorch.ops.copy import deliver
from tritorch.ops.matmul import matmul
from tritorch.shape import wrap_dim
from tritorch.tensor import Tensor

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def einsum(*args):
    """Sums of products over named dims (Einstein's convention), with PyTorch's grammar.

    `einsum("ij,jk->ik", a, b)`: each operand has its dims named by letters; dims of one name are multiplied elementwise, and names missing
    after the arrow are summed over. Without an arrow the result has every name that occurs once, in alphabetical order. A name twice in an
    operand takes its diagonal, `...` stands for dims without names, which broadcast and come first by default. Dims of size 1 broadcast.
    `einsum(a, [0, 1], b, [1, 2], [0, 2])` says the same with numbers from 0 to 51 and Ellipsis.
    Operands are contracted in pairs, at each step the pair that leaves the smallest intermediate result.
    Raises RuntimeError when the equation is malformed or does not fit the operands.

    >>> import tritorch as torch
    >>> torch.einsum("bij,bjk->bik", torch.ones(5, 2, 3), torch.ones(5, 3, 4)).shape
    tritorch.Size([5, 2, 4])
    >>> torch.einsum("ii", torch.eye(3))
    tensor(3.)
    """
    terms, result, operands = _parse(args)
    names, output = _names(terms, result, tuple([x.shape for x in operands]))
    operands, names = map(list, zip(*[_diagonals(k, x, row) for k, (x, row) in enumerate(zip(operands, names))]))
    sizes = _sizes(tuple(names), tuple([x.shape for x in operands]))
    while len(operands) > 1:
        i, j = _next_pair(names, sizes, output) if len(names) > 2 else (0, 1)
        rest = set(output).union(*[row for k, row in enumerate(names) if k not in (i, j)])
        x, row = _contract(operands[i], names[i], operands[j], names[j], rest, sizes)
        operands = [o for k, o in enumerate(operands) if k not in (i, j)] + [x]
        names = [o for k, o in enumerate(names) if k not in (i, j)] + [row]
    x, row = _sum_out(operands[0], names[0], set(output))
    return _ordered(x, row, [*output])


def tensordot(a, b, dims=2, *, out=None):
    """Sum of products over several dims: the last `dims` of a with the first of b, or the two lists of dims given.

    >>> import tritorch as torch
    >>> torch.tensordot(torch.ones(2, 3, 4), torch.ones(4, 3, 5), dims=([1, 2], [1, 0])).shape
    tritorch.Size([2, 5])
    """
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        check(0 <= dims <= min(a.ndim, b.ndim), "tensordot", f"0 to {min(a.ndim, b.ndim)} dims", dims)
        dims = range(a.ndim - dims, a.ndim), range(dims)
    over_a, over_b = ([wrap_dim(d, x.ndim, "tensordot") for d in ([row] if isinstance(row, int) else row)] for x, row in zip((a, b), dims))
    check(len(over_a) == len(over_b), "tensordot", "as many dims of a as of b", over_a, over_b)
    for i, j in zip(over_a, over_b):
        fits = a.shape[i] == b.shape[j] or 1 in (a.shape[i], b.shape[j])
        check(fits, "tensordot", f"dim {i} of a and dim {j} of b of one size", a.shape, b.shape)
    names_a, names_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip(over_a, over_b):
        names_b[j] = names_a[i]
    output = [n for d, n in enumerate(names_a) if d not in over_a] + [n for d, n in enumerate(names_b) if d not in over_b]
    x, row = _contract(a, names_a, b, names_b, set(output), _sizes((tuple(names_a), tuple(names_b)), (a.shape, b.shape)))
    return deliver(_ordered(x, row, output), out)


# ------------------------------------------------------------------ the equation
def _parse(args):
    """(names of each operand, names of the result or None, operands); names are letters or numbers, Ellipsis among them."""
    check(len(args) > 0, "einsum", "an equation and operands", "nothing", error=ValueError)
    if isinstance(args[0], str):
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        terms, result = _read(args[0])
    else:
        operands, terms, result = args[0:len(args) - len(args) % 2:2], args[1::2], args[-1] if len(args) % 2 else None
        terms = tuple([tuple([_letter(n) for n in term]) for term in terms])
        result = None if result is None else tuple([_letter(n) for n in result])
    check(len(operands) > 0, "einsum", "an equation and at least one operand", f"{len(operands)} operands", error=ValueError)
    check(len(terms) == len(operands), "einsum", f"{len(terms)} operands, as in the equation", len(operands))
    return terms, result, list(operands)


@lru_cache(1024)
def _read(equation):
    """(names of each operand, names of the result or None) in an equation."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    return tuple([_letters(term) for term in inputs.split(",")]), _letters(result) if arrow else None


def _letters(term):
    """The names in one term of an equation."""
    head, dots, tail = term.partition("...")
    for letter in head + tail:
        check(letter in _LETTERS, "einsum", "names a-z and A-Z and at most one ... a term", repr(term))
    return (*head, *([...] if dots else []), *tail)


def _letter(n):
    """The letter that a number of the list form stands for."""
    check(n is ... or 0 <= n < 52, "einsum", "names from 0 to 51, or Ellipsis", n)
    return n if n is ... else chr(ord("A") + n) if n < 26 else chr(ord("a") + n - 26)


@lru_cache(1024)
def _names(terms, result, shapes):
    """(a name for every dim of every operand, the names of the result)."""
    names = tuple([_named(k, term, shape) for k, (term, shape) in enumerate(zip(terms, shapes))])
    rank = max((sum(type(n) is int for n in row) for row in names), default=0)
    return names, tuple(_output(result, names, rank))


def _named(k, term, shape):
    """A name for every dim of an operand: letters, and for the dims of the ellipsis their negative position from the right."""
    check(term.count(...) <= 1, "einsum", "at most one ellipsis an operand", term)
    free = len(shape) - len(term) + (... in term)
    fits = free >= 0 if ... in term else free == 0
    check(fits, "einsum", f"as many names as dims for operand {k}", "".join("..." if n is ... else n for n in term), shape)
    return tuple([m for n in term for m in (range(-free, 0) if n is ... else [n])])


def _output(result, names, rank):
    """Names of the result, in order."""
    seen = [n for row in names for n in row]
    if result is None:
        return [*range(-rank, 0), *sorted({n for n in seen if type(n) is str and seen.count(n) == 1})]
    output = [m for n in result for m in (range(-rank, 0) if n is ... else [n])]
    for n in result:
        check(result.count(n) == 1, "einsum", "every name once in the result", n)
        check(n is ... or n in seen, "einsum", "names of operands in the result", n)
    return output


def _diagonals(k, x, row):
    """An operand with every name once."""
    if len({*row}) == len(row):
        return x, row
    row = list(row)
    for name in dict.fromkeys(row):
        while row.count(name) > 1:
            i = row.index(name)
            j = row.index(name, i + 1)
            check(x.shape[i] == x.shape[j], "einsum", f"one size for the repeated name {name} of operand {k}", x.shape[i], x.shape[j])
            x = x.diagonal(0, i, j)
            row = [n for d, n in enumerate(row) if d not in (i, j)] + [name]
    return x, tuple(row)


@lru_cache(1024)
def _sizes(names, shapes):
    """Size of every name; 1 broadcasts."""
    sizes = {}
    for k, (row, shape) in enumerate(zip(names, shapes)):
        for name, n in zip(row, shape):
            known = sizes.get(name, 1)
            check(1 in (known, n) or known == n, "einsum", f"sizes of {name} that broadcast at operand {k}", known, n)
            sizes[name] = n if known == 1 else known
    return sizes


# ------------------------------------------------------------------ the contraction
def _next_pair(names, sizes, output):
    """The two operands whose product is smallest after summing what nobody else needs."""
    def left(pair):
        i, j = pair
        rest = set(output).union(*[row for k, row in enumerate(names) if k not in pair])
        both = set(names[i]) | set(names[j])
        return prod(sizes[n] for n in both & rest), prod(sizes[n] for n in both)

    return min(((i, j) for j in range(len(names)) for i in range(j)), key=left)


def _sum_out(x, row, needed):
    """Sum over the names that nobody needs any more."""
    gone = tuple([d for d, n in enumerate(row) if n not in needed])
    return (x.sum(gone) if gone else x), [n for n in row if n in needed]


def _contract(x, row_x, y, row_y, needed, sizes):
    """Product of two operands, summed over the names they share that are not needed; (result, its names)."""
    x, row_x = _sum_out(x, row_x, needed.union(row_y))
    y, row_y = _sum_out(y, row_y, needed.union(row_x))
    shared = [n for n in row_x if n in row_y]
    x, y = _expand(x, row_x, shared, sizes), _expand(y, row_y, shared, sizes)
    larger = row_y if y.numel() > x.numel() else row_x                   # it keeps its order: what must be copied then is the smaller one
    batch, summed = [n for n in shared if n in needed], [n for n in larger if n in shared and n not in needed]
    only_x, only_y = [n for n in row_x if n not in shared], [n for n in row_y if n not in shared]
    x, y = _ordered(x, row_x, batch + only_x + summed), _ordered(y, row_y, batch + summed + only_y)
    shape = tuple(x.shape[:len(batch) + len(only_x)]) + tuple(y.shape[len(batch) + len(summed):])
    if not summed:                                                       # nothing to sum: an elementwise product
        x = x.reshape((*x.shape, *[1] * len(only_y)))
        return x * y.reshape((*y.shape[:len(batch)], *[1] * len(only_x), *y.shape[len(batch):])), batch + only_x + only_y
    lead = shape[:len(batch)]
    x, y = _merge(x, len(batch), len(only_x)), _merge(y, len(batch), len(summed))
    return _reshaped(matmul(x, y), (*lead, *shape[len(batch):])), batch + only_x + only_y


def _expand(x, row, shared, sizes):
    """Shared dims of size 1 repeated to their full size."""
    shape = tuple([sizes[n] if n in shared else size for n, size in zip(row, x.shape)])
    return x if shape == x.shape else x.expand(shape)


def _ordered(x, row, names):
    """A tensor whose dims are named by `row`, in another order of these names."""
    return x if row == names else x.permute([row.index(n) for n in names])


def _merge(x, batch, middle):
    """(batch…, first…, second…) as a batch of matrices; `first` has `middle` dims."""
    lead, first, second = x.shape[:batch], x.shape[batch:batch + middle], x.shape[batch + middle:]
    return _reshaped(x, (*lead, prod(first), prod(second)))


def _reshaped(x, shape):
    return x if x.shape == shape else x.reshape(shape)
