"""Saved tensors: what a node keeps of a tensor, and how the tensor comes back."""
import sys

from tritorch.autograd import places
from tritorch.autograd.modes import state
from tritorch.errors import GradientError, check
from tritorch.layout import others
from tritorch.layout import strided as strided_layout
from tritorch.storage import Batched, DeviceStorage, HostStorage, Shared, Spread, Storage, Unwritten
from tritorch.tensor import Leaf, Tensor, alias, strided


class _Output:
    """Stands in a snapshot for the node that the snapshot itself lives in: a reference would be a cycle."""


_OUTPUT = _Output()
_STORAGES = (DeviceStorage, HostStorage, Shared, Storage, Unwritten, Spread, Batched)


def pack(x, is_output=False, index=None):
    """What a node keeps of a value: a snapshot of a tensor, anything else as it is."""
    if isinstance(x, Tensor):
        if x._inference:
            raise GradientError("autograd: expected a normal tensor to save for the gradient, got one made in inference mode; use "
                                "x.clone() outside of it")
        if others and x.layout is not strided_layout:                    # it keeps its parts, and another object of them its history
            return x.detach() if is_output else x.alias()
        storage = x.storage
        if state.saved_hooks:
            return _Hooked(x, _OUTPUT if is_output else x.node, x.index if index is None else index)
        return (storage, x.shape, x.strides, x.offset, x.dtype, _OUTPUT if is_output else x.node, x.index if index is None else index,
                storage.version, x.form, x._tangents)
    for v in x if type(x) is tuple else ():
        if isinstance(v, Tensor):
            return [pack(v) for v in x]
    return x


def restore(node, packed, k):
    """What was packed as the k-th of a node, tensors with their place in the graph; one written in place since then is an error that
    names both sides."""
    kind = type(packed)
    if kind is not tuple or not packed or (home := type(packed[0])) not in _STORAGES:
        if kind is list:
            return tuple([restore(node, v, k) for v in packed])
        return packed.restore(node) if kind is _Hooked else packed
    storage, shape, strides, offset, dtype, past, index, version, form, tangents = packed
    if storage.version != version:
        raise GradientError(_overwritten(node, packed, *node.saved_as(k)))
    if type(past) is Leaf:
        leaf = past.ref()
        if leaf is not None and leaf.storage is storage and leaf.node is past and leaf.shape is shape and leaf._tangents is tangents:
            return leaf
    out = strided(storage, shape, strides, offset, dtype)
    if home is Spread:
        out = alias(out, Tensor)
    out.node, out.index, out.form = node if past is _OUTPUT else past, index, form
    if tangents is not None:
        out._tangents = tangents
    return out


def carrying(packed, index, tangents):
    """The snapshot with tangents, if it is one of the output `index` of its node: it was saved before the output had them."""
    ours = type(packed) is tuple and packed and type(packed[0]) in _STORAGES and packed[5] is _OUTPUT and packed[6] == index
    return (*packed[:-1], tangents) if ours else packed


def _overwritten(node, packed, name, op):
    """The two-sided sentence: who saved the tensor, who wrote it since."""
    storage, shape, version = packed[0], packed[1], packed[7]
    frame, writer = getattr(node, "frame", None), getattr(storage, "writer", None)
    saver = f" at {places.place(*frame)}" if frame else ""
    wrote = f", last at {places.place(*writer)}" if writer else ""
    return (f"{op}: expected '{name}' of shape {shape} as it was when it was saved for the gradient{saver} (version {version}), "
            f"but it was modified by an inplace operation{wrote} (now at version {storage.version}); "
            f"use an out-of-place operator there, or x.clone() before it")


def expendable(x):
    """Whether a rule may overwrite the saved tensor x that it was given: the graph is being freed, and no one else knows the memory.
    Never on the CPU, where numpy arrays look at memory in ways that no count tells."""
    run, storage = state.run, x.storage
    if type(storage) is not DeviceStorage or run is None or run.keep or state.grad or x._tangents is not None or "_unpacked" in x.__dict__:
        return False
    return type(x.node) not in (Leaf, type(None)) and sys.getrefcount(storage) <= _SAVED


def _references():
    """What getrefcount says of the storage of a snapshot that came back."""
    memory = Storage()
    _kept, back = (memory,), strided(memory, (), (), 0, None)
    del memory
    storage = back.storage
    return sys.getrefcount(storage)


_SAVED = _references()


class _Hooked:
    """A saved tensor in the form that a pack hook gave it."""

    __slots__ = ("value", "unpacker", "node", "index")

    def __init__(self, x, node, index):
        packer, self.unpacker = state.saved_hooks[-1]
        version = x.storage.version
        self.value, self.node, self.index = packer(x.detach()), node, index
        check(x.storage.version == version, "saved_tensors_hooks", "a pack hook that leaves its input alone", "one that writes it in place")

    def restore(self, node):
        out = self.unpacker(self.value)
        check(isinstance(out, Tensor), "saved_tensors_hooks", "an unpack hook that returns a Tensor", type(out).__name__, error=TypeError)
        out = out.detach()
        out._unpacked = True                                             # the hooks may still have the memory
        out.node, out.index = node if self.node is _OUTPUT else self.node, self.index
        return out


PACKED = {tuple, list, _Hooked}                                          # of what `pack` makes, what `restore` may have to change


def holds_memory(packed):
    """Whether a packed value keeps a tensor alive."""
    kind = type(packed)
    return kind is tuple and packed and type(packed[0]) in _STORAGES or kind is list or kind is _Hooked


def as_it_was(x):
    """A copy of what is about to be written, tangents included."""
    out = x.clone()
    if x._tangents is not None:
        out._tangents = {level: as_it_was(t) for level, t in x._tangents.items()}
    return out
