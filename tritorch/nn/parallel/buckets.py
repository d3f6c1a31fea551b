"""Buckets: gradients of several parameters, one after the other in one piece of memory, which travels as a whole."""
from itertools import chain, repeat

from tritorch.ops.create import zeros
from tritorch.ops.shaping import cat
from tritorch.shape import is_dense, same_strides
from tritorch.tensor import strided


class Bucket:
    """The memory for the gradients of some parameters. `numbers` say which parameters of the module these are, `flat` is all of the memory
    and `views` are its parts in the parameters' shapes (and strides, where these leave no gaps)."""

    __slots__ = ("index", "numbers", "parameters", "flat", "views", "missing", "future", "__weakref__")

    def __init__(self, index, numbers, parameters):
        self.index, self.numbers, self.parameters = index, numbers, [parameters[k] for k in numbers]
        self.flat = self.views = None                                    # a process that is alone needs none
        self.missing, self.future = len(numbers), None                   # gradients still to come; what all_reduce or the hook returned

    def room(self):
        """The flat memory, made when it is first needed."""
        if self.flat is None:
            first, start = self.parameters[0], 0
            self.flat, self.views = zeros(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device), []
            for p in self.parameters:
                self.views.append(part(self.flat, start, p))
                start += p.numel()
        return self.flat

    def fill(self):
        """Bring the parameters' gradients to where they travel from; zeros where there is none, nothing where they lie there already."""
        self.room()
        moves = [(view, p._grad) for view, p in zip(self.views, self.parameters) if not is_there(p._grad, view)]
        if len(moves) == len(self.views) and all(g is not None and g.dtype is v.dtype and g.storage.device is v.storage.device
                                                 and same_strides(v.shape, v.strides, g.strides) for v, g in moves):
            cat([line(g) for _, g in moves], out=self.flat)              # on a GPU a launch for eight of them
            return
        for view, g in moves:
            view.zero_() if g is None else view.copy_(g)

    def forget(self):
        """Ready for the gradients of the next backward pass."""
        self.missing, self.future = len(self.numbers), None


def line(x):
    """The elements of a tensor without gaps, in the order of its memory."""
    return strided(x.storage, (x.numel(),), (1,), x.offset, x.dtype)


def part(flat, start, p):
    """The part of `flat` from `start` on that has room for what looks like p."""
    strides = p.strides if is_dense(p.shape, p.strides) else p.contiguous().strides
    return flat.as_strided(p.shape, strides, start)


def is_there(g, view):
    """Whether a gradient is this view, by whatever object."""
    return (g is not None and g.storage is view.storage and g.offset == view.offset and g.shape == view.shape
            and same_strides(g.shape, g.strides, view.strides))


def assign(parameters, limits):
    """Lists of numbers of parameters, one a bucket: from the last parameter, whose gradient mostly comes first, to the first one, each of
    one dtype and device. A bucket is full when it has reached its limit in bytes; the last limit is that of all others."""
    unused, filling, out = {}, {}, []
    for k in reversed(range(len(parameters))):
        p = parameters[k]
        key = p.dtype, p.device
        if key not in filling:
            if key not in unused:
                unused[key] = chain(limits, repeat(limits[-1]))
            filling[key] = [[], next(unused[key])]
            out.append(filling[key][0])
        numbers, left = filling[key]
        numbers.append(k)
        filling[key][1] = left - p.numel() * p.dtype.itemsize
        if filling[key][1] <= 0:
            del filling[key]
    return out
