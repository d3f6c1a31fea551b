"""Memory formats, and where PyTorch puts the results of operators: in the order of dims that their operands have.

A format is a convention on strides; a tensor remembers none. Where sizes of 1 leave open which one strides follow, the rules here decide
as PyTorch's do. Strides count elements.
"""
from functools import lru_cache

from tritorch.errors import check, sentence
from tritorch.own_name import ours
from tritorch.shape import contiguous_strides, is_contiguous, is_dense, layout, ordered_strides, same_strides

remember = lru_cache(maxsize=4096)


class memory_format:
    """An order of dims in memory: `contiguous_format`, `channels_last`, `channels_last_3d`, or `preserve_format`, that of the input."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return ours(self.name)

    def __reduce__(self):
        return self.name                                                 # the one object of that name in this module


contiguous_format, preserve_format = memory_format("contiguous_format"), memory_format("preserve_format")
channels_last, channels_last_3d = memory_format("channels_last"), memory_format("channels_last_3d")
INNERMOST_FIRST = {channels_last: (1, 3, 2, 0), channels_last_3d: (1, 4, 3, 2, 0)}


def _order(name, shape, wanted):
    check(isinstance(wanted, memory_format), name, "a memory_format", type(wanted).__name__, error=TypeError)
    check(wanted is not preserve_format, name, "a format of its own", wanted)
    order = INNERMOST_FIRST.get(wanted)
    if order is not None and len(order) != len(shape):
        raise RuntimeError(sentence(name, f"{len(order)} dims for {wanted}", tuple(shape)))
    return order


def strides_in(name, shape, wanted):
    """The strides of a tensor in a format; `name` is the function that asks."""
    order = _order(name, shape, wanted)
    return layout(shape)[1] if order is None else ordered_strides(shape, order)


def lies_in(shape, strides, wanted):
    """Whether elements lie gapless in the order of a format: `Tensor.is_contiguous`."""
    if wanted is contiguous_format:
        return is_contiguous(shape, strides)
    order = INNERMOST_FIRST.get(wanted) or _order("is_contiguous", shape, wanted)
    return len(order) == len(shape) and same_strides(shape, strides, ordered_strides(shape, order))


@remember
def suggested(shape, strides):
    """The format that strides, with gaps or without, are taken to follow: PyTorch's `suggest_memory_format`."""
    wanted = {4: channels_last, 5: channels_last_3d}.get(len(shape))
    if wanted is None or not strides[1]:
        return contiguous_format
    least = 0
    for d in INNERMOST_FIRST[wanted]:
        if not shape[d] or strides[d] < least or d == 0 and least == strides[1]:       # the last: what N111 could be is contiguous
            return contiguous_format
        least = strides[d] * shape[d]
    return wanted


# ------------------------------------------------------------------ where results lie: rules for the promises of operators
def like_image(shape, *images):
    """(strides, rule) that end the promise of an operator on images: channels last if one of the `images`, tensors of 4 or 5 dims, is."""
    for x in images:
        if x.strides is not layout(x.shape)[1] and suggested(x.shape, x.strides) is not contiguous_format:
            return strides_in("", shape, suggested(x.shape, x.strides))
    return None


@remember
def dense_strides(shape, strides):
    """Of copies and conversions, and of what is like a tensor: the strides of a dense one, else the same order of dims without gaps."""
    return strides if is_dense(shape, strides) else broadcasting(shape, strides)


@remember
def elementwise(shape, *strides):
    """Of an elementwise operator whose operands have these strides, all of the shape of the result."""
    if all(is_contiguous(shape, s) for s in strides):
        return contiguous_strides(shape)
    if all(lies_in(shape, s, channels_last) for s in strides):
        return strides_in("", shape, channels_last)
    if strides.count(strides[0]) == len(strides) and is_dense(shape, strides[0]):
        return strides[0]
    return broadcasting(shape, *strides)


@remember
def broadcasting(shape, *strides):
    """Of an elementwise operator, some of whose operands are numbers or repeated; these step by 0 where they are."""
    return ordered_strides(shape, innermost_first(shape, *strides)[0])


@remember
def picked(shape, rest, d, *indices):
    """Of x[…, indices, …], an elementwise operator on x, which is repeated along the dims of its indices, and on these, which are repeated
    along those of x. `rest` are the strides of x without the dims that are picked from, `indices` those of the index tensors, whose dims
    begin at d."""
    before, after = (0,) * d, (0,) * (len(rest) - d)
    return broadcasting(shape, (*rest[:d], *(0,) * (len(shape) - len(rest)), *rest[d:]), *[(*before, *s, *after) for s in indices])


def innermost_first(shape, *strides):
    """The dims in the order in which an elementwise operator takes them, and whether other orders would do as well."""
    order, undecided = list(range(len(shape)))[::-1], False
    for place in range(1, len(order)):
        for k in range(place - 1, -1, -1):
            later = _comes_later(order[k], order[place], shape, strides)
            if later:
                order[k], order[place], place = order[place], order[k], k
            elif later is False:
                break
            undecided = undecided or later is None
    return order, undecided


def _comes_later(a, b, shape, strides):
    """Whether dim a lies further out than b; the first operand to which it makes a difference decides. None: to none."""
    for s in strides:
        if s[a] and s[b]:
            if s[a] != s[b]:
                return s[a] > s[b]
            if shape[a] > shape[b]:
                return True
    return None
