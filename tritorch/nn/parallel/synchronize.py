"""The same tensors in all ranks: verified, and broadcast."""
from tritorch import distributed as dist
from tritorch.autograd.modes import no_grad
from tritorch.ops.shaping import cat
from tritorch.shape import contiguous_strides, is_dense
from tritorch.storage import written_unseen

MOST = 250 << 20                                                         # bytes that travel at once


def verify(name, named, group):
    """Raise the same RuntimeError in all ranks unless all have parameters of the same names, shapes, dtypes and layouts."""
    mine = [(n, tuple(p.shape), str(p.dtype), tuple(p.strides) if is_dense(p.shape, p.strides) else contiguous_strides(p.shape))
            for n, p in named]
    everyones = [None] * group.size()
    dist.all_gather_object(everyones, mine, group=group)
    first = everyones[0]
    for rank, theirs in enumerate(everyones):
        if len(first) != len(theirs):
            raise RuntimeError(f"{name}: expected the same parameters in all ranks, got {len(first)} in rank 0 and {len(theirs)} in rank "
                               f"{rank}")
        for a, b in zip(first, theirs):
            if a[1:] != b[1:]:
                raise RuntimeError(f"{name}: expected the same parameters in all ranks, got {shown(a)} in rank 0 and {shown(b)} in rank "
                                   f"{rank}")


def shown(facts):
    """A parameter in an error."""
    name, shape, dtype, strides = facts
    return f"{name} of shape {shape} ({dtype.rpartition('.')[2]}, strides {strides})"


@no_grad()
def broadcast(tensors, group, source):
    """All tensors become those of rank `source` of the group: in a few pieces, one dtype and device after the other. That they are written
    does not count for backward: what it needs of them it has."""
    mine = dist.get_rank(group) == source
    for some in pieces(tensors):
        flat = cat([t.detach().reshape(-1) for t in some])
        dist.broadcast(flat, group=group, group_src=source)
        if mine:
            continue
        start = 0
        for t in some:
            version = t.storage.version
            t.detach().copy_(flat[start:start + t.numel()].reshape(t.shape))
            t.storage.version = version
            written_unseen(t.storage)
            start += t.numel()


def pieces(tensors):
    """Lists of tensors of one dtype and device, of up to `MOST` bytes."""
    kinds = {}
    for t in tensors:
        lists = kinds.setdefault((t.dtype, t.device), [[]])
        if lists[-1] and sum(x.nbytes for x in lists[-1]) + t.nbytes > MOST:
            lists.append([])
        lists[-1].append(t)
    return [some for lists in kinds.values() for some in lists]
