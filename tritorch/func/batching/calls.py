"""What a rule is given, and the table of rules.

A rule is a function of a `Call`. It calls the operator, or others, with the tensors of all samples and returns the results, samples along
their first dims: a tensor, or a tuple of them.
"""
from tritorch.errors import check
from tritorch.generator import Offset
from tritorch.ops.shaping import stack
from tritorch.storage import Batched, SampleBySample
from tritorch.tensor import Tensor

rules = {}                                                               # by the names of operators
each_its_own, all_the_same = {}, {}                                      # the same of random ones: which numbers samples get


def rule(*names, table=rules):
    """Decorator: the rule of these operators."""
    def verb(fn):
        table.update(dict.fromkeys(names, fn))
        return fn

    return verb


class Call:
    """A call of `op` inside of vmap with `size` samples, as a rule sees it.

    `args` are its arguments, with tensors of all samples, along their first dims, where they differ from sample to sample: `where` says
    that of each, of each in a tuple. All others are as they are. `given` are the arguments as the function sees them, of one sample, and
    `promises` what the operator promises of one: (shape, dtype, device, …) of each result. `out` are the tensors to write if it is a
    call in place, else None; results that are others are copied there.

    >>> import tritorch as torch
    >>> @torch.dispatch.op
    ... def total(x, scale=1.0):                                           # of all elements of a tensor of any shape
    ...     return (), x.dtype, x.device
    >>> @total.impl("cpu")
    ... def total_cpu(out, x, scale):
    ...     out[...] = x.sum() * scale
    >>> @total.batch
    ... def total_batch(call):
    ...     return call["x"].flatten(1).sum(1) * call["scale"]             # of all samples at once
    >>> torch.vmap(total)(torch.ones(3, 2, 2))
    tensor([4., 4., 4.])
    >>> del torch.dispatch.registry["total"]
    """

    def __init__(self, level, op, given, promises, out=None, written=()):
        self.level, self.op, self.size, self.given, self.promises, self.out = level, op, level.size, given, promises, out
        targets = {id(o): target for o, target in written}               # what is read and written is one tensor
        self.args, self.where = [], []
        for a in given:
            differs, kind = level.has(a), type(a)
            if kind is tuple or kind is list:
                differs = [level.has(v) for v in a]
                a = kind([level.whole(v) if d else v for v, d in zip(a, differs)])
            elif kind is Offset:
                a = a.outside(level)
            elif differs:
                a = targets[id(a)] if id(a) in targets else level.whole(a)
            self.args.append(a)
            self.where.append(differs)

    def __getitem__(self, name):
        """An argument of `args` by its name."""
        return self.args[self.op.names.index(name)]

    def differs(self, name):
        """Whether this argument differs from sample to sample."""
        return self.where[self.op.names.index(name)]

    def sample(self, name):
        """An argument as the function sees it."""
        return self.given[self.op.names.index(name)]

    def put(self, **changed):
        """The arguments with others in the places of some."""
        return [changed.get(name, a) for name, a in zip(self.op.names, self.args)]

    def run(self, *args):
        """What the operator gives for these arguments, if that is the result as it stands: written where it is wanted."""
        if self.out is None:
            return self.op(*args)
        return self.op.into(self.out[0] if len(self.out) == 1 else self.out, *args)

    def composed(self, fn):
        """What `fn`, a function of the same parameters made of public operators, gives: its operators are batched by rules of their own."""
        made = self.level.remember(fn, *self.given, anyway=True)
        made = made if type(made) in (tuple, list) else (made,)
        return tuple([self.level.whole(x) if self.level.has(x) else x.expand(self.size, *x.shape) for x in made])

    def all(self, k):
        """An argument, by its place or its name, of all samples: one that is the same for all is repeated, without memory."""
        k = k if isinstance(k, int) else self.op.names.index(k)
        x = self.args[k]
        return x if self.where[k] or not isinstance(x, Tensor) else x.expand(self.size, *x.shape)

    def everything(self):
        """All arguments so."""
        return [self.all(k) if type(a) not in (tuple, list) else type(a)([v if w or not isinstance(v, Tensor) else v.expand(
            self.size, *v.shape) for v, w in zip(a, self.where[k])]) for k, a in enumerate(self.args)]


def each(call):
    """Sample after sample."""
    check(call.size, "vmap", f"a rule of {call.op.__name__} for no samples", "none")
    if call.level.draws(call.op, call.given):
        raise SampleBySample
    rows = [call.op(*[_sample(a, w, k) for a, w in zip(call.args, call.where)]) for k in range(call.size)]
    if len(call.op.returns) == 1:
        return stack(rows)
    return tuple([stack(column) for column in zip(*rows)])


def _sample(a, differs, k):
    if type(differs) is list:
        return type(a)([_sample(v, w, k) for v, w in zip(a, differs)])
    return a.select(0, k) if differs else a


def is_batched(x, level):
    """Whether x is a tensor of one of the level's samples."""
    return isinstance(x, Tensor) and type(x.storage) is Batched and x.storage.level is level
