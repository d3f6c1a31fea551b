"""Sizes to call a program with, to see what depends on them, and inputs of those sizes."""
import numpy as np

from tritorch.errors import sentence
from tritorch.tensor import from_array
from tritorch.tracing.tracer import Untraceable

# Sizes of three more calls, by the one of the sample. Odd and even ones, and one far away, where roundings show; smaller ones for programs
# with a largest size; multiples for those that want them.
WAYS = (lambda n, k: (n + 1 + k, 2 * n + 3 + k, n + 4 + 3 * k), lambda n, k: (n + 1 + k, 2 * n + 3 + k, n + 6 + 4 * k),
        lambda n, k: (n - 1 - k, (n - 1) // 2 - k, n - 4 - 3 * k),
        lambda n, k: (2 * n, (5 + k) * n, (3 + 2 * k) * n), lambda n, k: (n + 1 + k, n + 2 + k, n + 3 + k),
        lambda n, k: (n // 2 + k, n // 4 + k, 3 * n // 4 + k))
# and of more, where a number is no plain size: consecutive ones, to see how it is rounded, and some that are far away
MORE = (lambda n, k: n + 2 + k, lambda n, k: n + 3 + 2 * k, lambda n, k: n + 5 + k, lambda n, k: n + 6 - k, lambda n, k: n + 7 + k,
        lambda n, k: n - 1 - k, lambda n, k: 3 * n + 5 + k, lambda n, k: 5 * n + 2 + 3 * k, lambda n, k: n + 40 + 7 * k)


class Axis:
    """A dynamic axis: its name, its size in the sample and the sizes it may have; `places` are (input, dim, factor) where it is, that many
    times as large. `automatic`: nobody gave it the name; `optional`: it may as well be static. `values`: its sizes in the calls."""

    optional = False

    def __init__(self, name, size, low=0, high=None, automatic=False):
        self.name, self.size, self.low, self.high, self.automatic, self.places, self.values = name, size, low, high, automatic, [], ()

    def first(self):
        """The size of the first call: 0 and 1 are special, so what a program does with them tells nothing of others."""
        return self.size if self.size > 1 else max(2, self.low)

    def sizes(self, way, k):
        """Three more sizes, or None if they are not all allowed and different."""
        found = way(self.first(), k)
        if self.high is not None and self.first() < self.high <= 64 * self.first() and self.high not in found:
            found = (found[0], self.high, found[2])                      # to the end of the range
        fits = all(n >= max(2, self.low) and (self.high is None or n <= self.high) for n in found)
        return found if fits and len({*found, self.first()}) == 4 else None


class Fixed(Untraceable):
    """The program takes no other sizes of an axis."""

    def __init__(self, axis, why):
        super().__init__(why)
        self.axis = axis


def resized(x, changes):
    """A tensor like x with other sizes, {dim: size}: its elements again and again."""
    array = x.detach().cpu().array
    for dim, size in changes.items():
        array = np.take(array, np.arange(size) % max(array.shape[dim], 1), axis=dim) if array.shape[dim] else np.zeros(
            (*array.shape[:dim], size, *array.shape[dim + 1:]), array.dtype)
    return from_array(np.ascontiguousarray(array)).to(x.dtype).to(x.device)


def probe(axes, call, affordable, more=False):
    """[what `call(sizes)` gives] for sizes, {axis: size}, of some calls; the first has those of the sample, the next three other sizes of
    all axes. Then each axis by itself is as small as it may be, and 64 larger if inputs of these sizes are `affordable`: there limits show.
    With `more`, the sizes of MORE follow. What the program does not take of these is left out."""
    base = {axis: axis.first() for axis in axes}
    found = [call(base)]
    if not axes:
        return found
    ways = _together(axes, base, call, found) or _one_by_one(axes, base, call)
    if len(found) == 1:
        found += [call({axis: ways[axis][k] for axis in axes}) for k in range(3)]
    alone = [{**base, axis: n} for k, axis in enumerate(axes) for n in (max(2, axis.low), axis.first() + 64 + 7 * k)]
    wide = [{axis: way(axis.first(), k) for k, axis in enumerate(axes)} for way in MORE] if more else []
    for sizes in [sizes for sizes in alone if sizes != base and affordable(sizes)] + wide:
        if all(n >= max(2, axis.low) and (axis.high is None or n <= axis.high) for axis, n in sizes.items()):
            try:
                found.append(call(sizes))
            except Untraceable:
                raise
            except Exception:                                            # as in `_together`
                continue
    return found


def _together(axes, base, call, found):
    """All axes at once; what works is appended to `found`."""
    for way in WAYS:
        sizes = {axis: axis.sizes(way, k) for k, axis in enumerate(axes)}
        if None in sizes.values() or len({(axis.first(), *found) for axis, found in sizes.items()}) < len(axes):
            continue                                                     # two axes of the same sizes could not be told apart
        try:
            more = [call({axis: sizes[axis][k] for axis in axes}) for k in range(3)]
        except Untraceable:
            raise
        except Exception:                                                # whatever a program says to sizes that it cannot take
            continue
        found += more
        return sizes
    return None


def _one_by_one(axes, base, call):
    """For each axis sizes that the program takes, or an error that names it."""
    ways = {}
    for k, axis in enumerate(axes):
        why = "no other size allowed"
        for way in WAYS:
            sizes = axis.sizes(way, k)
            if sizes is None or any((other.first(), *known) == (axis.first(), *sizes) for other, known in ways.items()):
                continue
            try:
                for n in sizes:
                    call({**base, axis: n})
                ways[axis] = sizes
                break
            except Untraceable:
                raise
            except Exception as error:
                why = f"{type(error).__name__} for {sizes}: {error}"
        else:
            raise Fixed(axis, sentence("export", f"a program that takes other sizes than {axis.first()} for the dynamic axis {axis.name!r}",
                                       why, use="a static axis, Dim(min=, max=) or the same name for axes of one size"))
    return ways
