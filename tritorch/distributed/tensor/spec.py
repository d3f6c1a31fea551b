"""DTensorSpec: where the parts of a tensor are. Pure functions on shapes, but for the place of this process in the mesh."""
from math import prod
from typing import NamedTuple

from tritorch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard
from tritorch.errors import check
from tritorch.shape import Size

__all__ = ["DTensorSpec", "TensorMeta"]


class TensorMeta(NamedTuple):
    """Shape, strides and dtype of a tensor as a whole."""

    shape: Size
    stride: tuple
    dtype: object


class DTensorSpec:
    """A mesh and a placement for each of its dims; `tensor_meta` is what the tensor is as a whole. It never changes."""

    __slots__ = ("mesh", "placements", "tensor_meta")

    def __init__(self, mesh, placements, tensor_meta=None):
        self.mesh, self.placements, self.tensor_meta = mesh, tuple(placements), tensor_meta

    device_mesh = property(lambda self: self.mesh)
    shape = property(lambda self: self.tensor_meta.shape)
    stride = property(lambda self: self.tensor_meta.stride)
    ndim = property(lambda self: len(self.tensor_meta.shape))

    @property
    def num_shards(self):
        """Into how many different pieces the tensor is cut."""
        return prod(self.num_shards_map)

    @property
    def num_shards_map(self):
        """Into how many pieces each dim of the tensor is cut."""
        out = [1] * self.ndim
        for n, p in zip(self.mesh.shape, self.placements):
            if type(p) is Shard:
                out[p.dim] *= n
        return out

    @property
    def dim_map(self):
        """The first mesh dim that cuts each dim of the tensor, -1 for none."""
        out = [-1] * self.ndim
        for k, p in enumerate(self.placements):
            if type(p) is Shard and out[p.dim] < 0:
                out[p.dim] = k
        return out

    @property
    def sums(self):
        """The mesh dims along which values are still to be reduced."""
        return [k for k, p in enumerate(self.placements) if type(p) is Partial]

    def is_replicated(self):
        """Whether each process has the whole tensor."""
        return all(type(p) is Replicate for p in self.placements)

    def is_sharded(self):
        """Whether a dim is cut."""
        return any(type(p) is Shard for p in self.placements)

    def __eq__(self, other):
        return isinstance(other, DTensorSpec) and (self.placements, self.tensor_meta, self.mesh) == (
            other.placements, other.tensor_meta, other.mesh)

    def __hash__(self):
        return hash((self.mesh, self.placements, self.tensor_meta))

    def __repr__(self):
        meta = self.tensor_meta
        what = "unknown" if meta is None else f"{meta.dtype}{list(meta.shape)}"
        return f"Spec({what}({''.join(map(str, self.placements))}) on {self.mesh})"


def checked(name, mesh, placements, ndim=None):
    """Placements for a mesh: as many as it has dims, negative dims of a tensor of `ndim` dims counted from the front."""
    placements = [placements] if isinstance(placements, Placement) else list(placements)
    check(len(placements) == mesh.ndim, name, f"{mesh.ndim} placements, one for each dim of the mesh", len(placements), error=ValueError)
    for k, p in enumerate(placements):
        check(isinstance(p, Placement), name, "placements: Shard, Replicate or Partial", repr(p), error=TypeError)
        if type(p) is Shard and ndim is not None:
            check(-ndim <= p.dim < ndim, name, f"a dim of a tensor of {ndim} dims in placement {k}", p)
            placements[k] = Shard(p.dim + ndim) if p.dim < 0 else p
    return tuple(placements)


def whole_on_all(mesh):
    """The placements of a tensor that each process has."""
    return (Replicate(),) * mesh.ndim


def pieces(shape, mesh, placements, coordinate=None):
    """(sizes, offsets) of the piece of a process, this one unless a place in the mesh is given. Where several mesh dims cut one dim of the
    tensor, the first of them cuts first. A process outside of the mesh has nothing."""
    place = mesh.get_coordinate() if coordinate is None else coordinate
    sizes, offsets = list(shape), [0] * len(shape)
    if place is None:
        return (0,), (0,)
    for n, p, mine in zip(mesh.shape, placements, place):
        if type(p) is Shard:
            sizes[p.dim], first = Shard.local_shard_size_and_offset(sizes[p.dim], n, mine)
            offsets[p.dim] += first
    return tuple(sizes), tuple(offsets)


def compute_local_shape_and_global_offset(global_shape, mesh, placements):
    """(sizes, offsets in the whole) of this process's piece.

    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Shard
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> compute_local_shape_and_global_offset((4, 3), mesh, [Shard(0)])
    ((4, 3), (0, 0))
    >>> dist.destroy_process_group()
    """
    return pieces(global_shape, mesh, placements)


def whole_of(shape, strides, mesh, placements):
    """(shape, strides) of the whole of which each process has a piece of this shape and strides; pieces are taken to be of equal size."""
    shape, strides = list(shape), list(strides)
    for n, p in zip(mesh.shape, placements):
        if type(p) is Shard:
            step = strides[p.dim]
            for d, s in enumerate(strides):
                if d != p.dim and s >= step and shape[p.dim] * n > 1 and not (s == step and shape[d] < 2):
                    strides[d] = s * n
            shape[p.dim] *= n
    return tuple(shape), tuple(strides)


def in_order_of(strides, shape):
    """Strides without gaps for another shape, its dims in memory in the same order; what is repeated stays so."""
    out, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        if strides[d] or shape[d] == 1:
            out[d] = step
            step *= max(shape[d], 1)
    return tuple(out)
