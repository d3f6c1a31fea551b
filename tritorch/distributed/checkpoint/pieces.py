"""The pieces of tensors that a process has, and what two pieces have in common."""
from tritorch.distributed.tensor import DTensor
from tritorch.distributed.tensor.spec import pieces
from tritorch.shape import Size


def piece_of(x):
    """(offsets in the whole, this process's piece) of a tensor; the whole of one that is not spread. None where it has nothing."""
    if not isinstance(x, DTensor):
        return Size((0,) * x.ndim), x.detach()
    if x.device_mesh.get_coordinate() is None:
        return None
    _, offsets = pieces(tuple(x.shape), x.device_mesh, x.placements)
    local = x.to_local().detach()
    return (Size(offsets), local) if local.numel() else None


def common(offsets, sizes, other_offsets, other_sizes):
    """Where two pieces of a tensor overlap: (first index in each, sizes), dim by dim, or None."""
    mine, theirs, shape = [], [], []
    for a, n, b, m in zip(offsets, sizes, other_offsets, other_sizes):
        start, end = max(a, b), min(a + n, b + m)
        if start >= end:
            return None
        mine.append(start - a)
        theirs.append(start - b)
        shape.append(end - start)
    return mine, theirs, shape


def cut(x, starts, shape):
    """A part of a tensor."""
    for dim, (start, n) in enumerate(zip(starts, shape)):
        x = x.narrow(dim, start, n)
    return x
