"""Samples as part of another dim, and what else rules do with tensors of all samples. Dims are those of a sample."""


def padded(x, rank):
    """All samples of a tensor, with dims of length 1 in front of a sample's so that it has `rank` of them."""
    return x if x.ndim > rank else x.reshape(x.shape[0], *[1] * (rank + 1 - x.ndim), *x.shape[1:])


def aligned(call, *names):
    """These arguments so that the dims of samples broadcast as those of one do; what is the same for all samples stays as it is."""
    rank = max([len(x.shape) for x in map(call.sample, names) if x is not None])
    return [padded(call[name], rank) if call.differs(name) else call[name] for name in names]


def fold(x, dim=0):
    """All samples in one dim of a sample's, the sample counting first: (size, a, n, b) as (a, size · n, b)."""
    x = x.movedim(0, dim) if dim else x
    return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2:])


def unfold(x, size, shape, dim=0):
    """The opposite, where `shape` is that of a sample."""
    x = x.reshape(*shape[:dim], size, *shape[dim:])
    return x.movedim(dim, 0) if dim else x


def repeated(x, size):
    """All samples of what is the same for all."""
    return x.expand(size, *x.shape)
