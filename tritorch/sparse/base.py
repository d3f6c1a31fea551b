"""Sparse: what tensors without strides have in common. They are made of dense tensors, in which all their elements and indices lie."""
from copy import deepcopy as copied

from tritorch.autograd.modes import no_grad, state
from tritorch.errors import OtherLayout, check, sentence
from tritorch.layout import others
from tritorch.ops import methods
from tritorch.shape import layout as laid
from tritorch.tensor import Leaf, Tensor, _new, swaps


class Nowhere:
    """Stands where a dense tensor has its storage: it knows the device and counts writes, and has no memory."""

    __slots__ = ("device", "version", "writer", "__weakref__")

    def __init__(self, device):
        self.device, self.version = device, 0

    def __call__(self):
        refuse("storage", "memory")

    owner = property(lambda self: self)
    nbytes = property(lambda self: refuse("storage", "memory"))
    ptr = property(lambda self: refuse("data_ptr", "an address"))
    bytes = property(lambda self: refuse("storage", "memory"))
    alias = property(lambda self: refuse("data", "memory"))


def refuse(what, wanted="strides"):
    """Raise what an operator for dense tensors finds in the place of memory or strides."""
    raise OtherLayout(sentence(what, f"a strided tensor, which has {wanted}", "a sparse one", use="x.to_dense()"))


def _missing(name):
    return property(lambda self: refuse(name), lambda self, value: refuse(name), doc="Sparse tensors have none.")


class Sparse(Tensor):
    """A tensor that keeps `values`, and in `indices` where they belong; all other elements are 0. Subclasses say how, by their `layout`.

    `parts` are dense tensors without history: the values are the last of them. The history, where there is one, is the tensor's own.
    What operators of dense tensors do with one is in `tritorch/sparse/instead.py`.
    """

    strides, offset, _array, array, form = map(_missing, ("stride", "storage_offset", "array", "array", "array"))
    parts: tuple

    @classmethod
    def made(cls, shape, *parts, **more):
        """A tensor of these parts, unchecked and without history."""
        out = _new(cls)
        values = parts[-1]
        out.storage, out.shape, out.dtype, out.parts = Nowhere(values.storage.device), laid(tuple(shape))[0], values.dtype, parts
        out.node = out.base = out.base_node = None
        out.index = 0
        out.__dict__.update(more)
        if state.inference:
            out._inference = True
        return out

    def like(self, values, *, shape=None):
        """Other values at the same places."""
        return self.made(self.shape if shape is None else shape, *self.parts[:-1], values, **self.facts())

    def facts(self):
        """What else `made` has to be told."""
        return {}

    def become(self, other):
        """Take over the parts and the history of another tensor of this layout: what writing in place does."""
        if state.grad:
            check(not self.requires_grad or self.grad_fn is not None, "in-place", "a tensor that is no leaf that requires grad (a leaf "
                  "Variable that requires grad is being used in an in-place operation)", "one", use="no_grad()")
            self.node, self.index = other.node, other.index
        self.parts, self.shape, self.dtype = other.parts, other.shape, other.dtype
        self.__dict__.update(other.facts())
        self.storage.version += 1
        swaps[0] += 1
        return self

    # -------------------------------------------------------------- what it is
    def stride(self, dim=None):
        """Zeros in a COO tensor, as PyTorch says; other layouts have none."""
        zeros = (0,) * len(self.shape)
        return zeros if dim is None else zeros[dim]

    def is_contiguous(self, memory_format=None):
        """Never."""
        return False

    def contiguous(self, memory_format=None):
        """The tensor itself."""
        return self

    def _nnz(self):
        """How many values there are: elements, blocks, or slices of the dense dims; of one batch."""
        raise NotImplementedError

    nbytes = property(lambda self: refuse("nbytes", "memory"), doc="There is no one memory: ask the parts.")

    def data_ptr(self):
        """There is no address: use that of a part."""
        refuse("data_ptr", "an address")

    def untyped_storage(self):
        """There is no storage: use that of a part."""
        refuse("storage", "memory")

    def storage_offset(self):
        """Always 0."""
        return 0

    def record_stream(self, stream):
        """Keep the parts' memory from being used again before the work now queued on `stream` has run."""
        for p in self.parts:
            p.record_stream(stream)

    def numpy(self, *, force=False):
        """There is no array: use `to_dense().numpy()`."""
        raise TypeError(sentence("numpy", "a strided tensor", f"one of layout {self.layout}", use="x.to_dense()"))

    __array__ = __dlpack__ = numpy

    def type(self, dtype=None, non_blocking=False):
        """The values in another dtype, or the name of the tensor's type."""
        if dtype is not None:
            like = self.parts[-1][:0].type(dtype.replace("sparse.", "") if isinstance(dtype, str) else dtype)
            return self.to(like.device, like.dtype, non_blocking)
        head, dot, kind = Tensor.type(self).rpartition(".")
        return f"{head}.sparse{dot}{kind}"

    # -------------------------------------------------------------- history
    @property
    def data(self):
        """The same parts without history."""
        return self._again()

    @data.setter
    def data(self, other):
        check(type(other) is type(self), "data", f"a tensor of layout {self.layout}", getattr(other, "layout", other), error=TypeError)
        with no_grad():
            self.become(other)

    def _again(self):
        """Another object of the same parts, without history."""
        return self.made(self.shape, *self.parts, **self.facts())

    def detach(self):
        """The same parts without history."""
        return self._again()

    def alias(self):
        """Another object of the same parts and history: for the graph, which must not keep the object that the user has."""
        out = self._again()
        out.node, out.index = self.node, self.index
        if type(self.node) is Leaf and self.node.ref() is self:
            return self
        return out

    # -------------------------------------------------------------- copies
    def clone(self, *, memory_format=None):
        """A copy with history."""
        from tritorch.sparse.graph import straight

        return straight("Clone", self, self.made(self.shape, *[p.clone() for p in self.parts], **self.facts()))

    def to(self, *args, device=None, dtype=None, non_blocking=False, copy=False, memory_format=None):
        """The values in another dtype, or all parts on another device, or as another tensor has them. Returns the tensor itself where
        nothing changes, unless `copy`."""
        from tritorch.sparse.graph import straight

        values = self.parts[-1]
        moved = values.to(*args, device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)
        if moved is values:
            return self
        same = moved.storage.device is self.storage.device and not copy
        rest = [p if same else p.to(moved.storage.device, non_blocking=non_blocking, copy=copy) for p in self.parts[:-1]]
        made = self.made(self.shape, *rest, moved, **self.facts())
        home, kind = self.storage.device, self.dtype
        return straight("ToCopy", self, made, lambda g: g.to(home, kind))

    def cpu(self, memory_format=None):
        """All parts on the CPU."""
        return self.to("cpu")

    def cuda(self, device=None, non_blocking=False, memory_format=None):
        """All parts on a CUDA device."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def pin_memory(self, device=None):
        """A copy whose parts are in pinned memory."""
        return self.made(self.shape, *[p.pin_memory() for p in self.parts], **self.facts())

    def is_pinned(self, device=None):
        """Whether the values are in pinned memory."""
        return self.parts[-1].is_pinned()

    def share_memory_(self):
        """Move all parts to memory that processes share."""
        for p in self.parts:
            p.share_memory_()
        return self

    def is_shared(self):
        """Whether all parts are in memory that processes share."""
        return all(p.is_shared() for p in self.parts)

    def copy_(self, src, non_blocking=False):
        """Become a copy of a tensor of the same layout and shape, in this one's dtype and device."""
        if isinstance(src, Tensor) and type(src) is not type(self):
            raise RuntimeError(sentence("copy_", f"a source of layout {self.layout}", src.layout))
        check(isinstance(src, Sparse) and src.shape == self.shape, "copy_", f"a sparse source of shape {tuple(self.shape)}",
              getattr(src, "shape", src))
        return self.become(src.to(self.storage.device, self.dtype, copy=True))

    def zero_(self):
        """Become 0 everywhere."""
        return self.become(self._zeros())

    def _zeros(self):
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        return rebuilt, (type(self), tuple(self.shape), self.parts, self.facts(), self.requires_grad)

    def __copy__(self):
        return self._again().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            check(self.is_leaf, "deepcopy", "a tensor made by the user (a graph leaf)", f"the result of {self.grad_fn}",
                  use="x.detach().clone()")
            out = memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            out._grad = copied(self._grad, memo) if self._grad is not None else None
        return memo[id(self)]

    def __repr__(self):
        from tritorch.sparse.printing import sparse_repr

        return sparse_repr(self)

    def __len__(self):
        check(len(self.shape) > 0, "len", "a tensor of at least one dim", "0 dims", error=TypeError)
        return self.shape[0]

    def __hash__(self):
        return id(self)

    def __bool__(self):
        check(self.numel() == 1, "bool", "a tensor of 1 element", f"{self.numel()} elements", use="x.to_dense().any()")
        return bool(self.to_dense().item())

    def tolist(self):
        """There is no list of all elements: use `to_dense().tolist()`."""
        refuse("tolist", "memory")


def rebuilt(cls, shape, parts, facts, requires_grad):
    """A pickled tensor."""
    out = cls.made(shape, *parts, **facts)
    return out.requires_grad_() if requires_grad else out


def _cast(kind):
    def cast(self, memory_format=None):
        return self.to(kind)

    cast.__doc__ = f"The values as {kind.name}."
    return cast


for _name, _kind in methods.CASTS.items():
    setattr(Sparse, _name, _cast(_kind))
others.append(Sparse)                                                    # from now on, whoever adds gradients has to look
