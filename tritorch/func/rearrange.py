"""rearrange: axes exchanged, split and joined as a pattern says, in the notation of einops (A. Rogozhnikov, "Einops: clear and reliable
tensor manipulations with Einstein-like notation", ICLR 2022)."""
import re
from math import prod

from tritorch.errors import check, tensors
from tritorch.ops.shaping import stack

REST = "..."
_ALONE = (REST,)                                                         # without parentheses: as many axes as there are


def rearrange(tensor, pattern, **axes_lengths):
    """A tensor whose axes are as the right side of the pattern names those of the left: "b (h w) c -> b c h w".

    Names in parentheses are one axis, of the left side split, on the right joined; the lengths of all but one of those that are split are
    given by keyword. `...` stands for any other axes, 1 or () for an axis of length 1. A list of tensors is stacked along a new first
    axis. Raises ValueError for a pattern that says nothing, or does not fit the tensor.

    >>> import tritorch as torch
    >>> x = torch.zeros(2, 12, 3)
    >>> torch.func.rearrange(x, "b (h w) c -> b c h w", h=4).shape
    tritorch.Size([2, 3, 4, 3])
    >>> torch.func.rearrange([x, x], "n ... c -> ... (n c)").shape
    tritorch.Size([2, 12, 6])
    """
    tensor = stack(list(tensor)) if isinstance(tensor, (list, tuple)) else tensor
    tensors("rearrange", tensor=tensor)
    sides = [_groups(side) for side in pattern.split("->")] if isinstance(pattern, str) else []
    check(len(sides) == 2, "rearrange", "a pattern such as 'a b -> b a'", repr(pattern), error=ValueError)
    left, right = sides
    names = [[name for group in side for name in group] for side in sides]
    for side in names:
        check(len(set(side)) == len(side), "rearrange", "each name once on a side", repr(pattern), error=ValueError)
    check(set(names[0]) == set(names[1]), "rearrange", "the same names on both sides", repr(pattern), error=ValueError)
    unknown = [*(axes_lengths.keys() - set(names[0]))]
    check(not unknown, "rearrange", f"lengths of names in {pattern!r}", *unknown, error=ValueError)
    check(all(group is _ALONE or REST not in group for group in left), "rearrange", "... without parentheses on the left", repr(pattern),
          error=ValueError)
    sizes = _sizes(tensor.shape, left, axes_lengths, pattern)
    split = tensor.reshape([n for name in names[0] for n in sizes[name]])
    places, start = {}, 0
    for name in names[0]:
        places[name] = range(start, start + len(sizes[name]))
        start += len(sizes[name])
    moved = split.permute([place for name in names[1] for place in places[name]])
    return moved.reshape([n for group in right for n in ([*sizes[REST]] if group is _ALONE else [prod(
        [n for name in group for n in sizes[name]])])])


def _groups(side):
    """A side of a pattern as lists of names, one for each axis."""
    found, inside = [], None
    for token in re.findall(r"\.\.\.|[()]|[^\s().]+|\S", side):
        if token == "(" and inside is None:
            inside = []
            found.append(inside)
        elif token == ")" and inside is not None:
            inside = None
        else:
            good = token in (REST, "1") or token.isidentifier()
            check(good, "rearrange", "names, 1, ... and parentheses that are not nested", repr(token), error=ValueError)
            if inside is not None:
                inside += [] if token == "1" else [token]
            else:
                found.append(_ALONE if token == REST else [] if token == "1" else [token])
    check(inside is None, "rearrange", "parentheses that are closed", repr(side), error=ValueError)
    return found


def _sizes(shape, groups, lengths, pattern):
    """The lengths of the axes that each name stands for; of all but `...` one."""
    rest = len(shape) - len(groups) + 1 if _ALONE in groups else 0
    check(rest >= 0 and (_ALONE in groups or len(shape) == len(groups)), "rearrange", f"a tensor with the axes of {pattern!r}",
          f"the shape {tuple(shape)}", error=ValueError)
    sizes, axis = {}, 0
    for group in groups:
        if group is _ALONE:
            sizes[REST] = shape[axis:axis + rest]
            axis += rest
            continue
        known = prod([lengths[name] for name in group if name in lengths])
        free = [name for name in group if name not in lengths]
        check(len(free) < 2, "rearrange", f"lengths of all but one of ({' '.join(group)})", lengths, error=ValueError)
        fits = shape[axis] % max(known, 1) == 0 if free else shape[axis] == known
        check(fits, "rearrange", f"an axis ({' '.join(group)}) that these lengths make", shape[axis], lengths, error=ValueError)
        sizes |= {name: (lengths[name] if name in lengths else shape[axis] // max(known, 1),) for name in group}
        axis += 1
    return sizes
