"""Tensor: storage + shape + strides + offset + dtype, and its place in the gradient graph. It knows no operator.

The operators' surface (`x + y`, `x.sum()`, …) is put on the class by `tritorch.ops.methods`.
"""
import sys
import warnings
import weakref

import numpy as np

from tritorch.device import cpu, meta
from tritorch.errors import check, refused_size, switches, whole_numbers
from tritorch.memory_format import contiguous_format, dense_strides, lies_in, preserve_format
from tritorch.shape import Size, _layouts, extent, layout, memory_order
from tritorch.storage import HostStorage, Spread, UntypedStorage, Unwritten, device_storage, host_storage, meta_storage, next_seq

_new = object.__new__
HOST = object()          # the form of tensors that are not on a CUDA device
swaps = [0, 0]           # how often [memory or requires_grad of a tensor, a module's member, a hook; a gradient] was changed: recordings


class Tensor:
    """An n-dimensional array on a device; made by `tritorch.tensor`, `tritorch.empty` and their like.

    `shape`, `strides` (in elements), `offset` (in elements) and `dtype` say how `storage` is read. `node` and `index`
    are the tensor's place in the gradient graph (None: no gradient is wanted); a view keeps its `base`. `form`, once somebody has asked,
    is the same object for all tensors whose memory and layout are of one kind (see repeat.py).
    """

    __slots__ = ("storage", "shape", "strides", "offset", "dtype", "node", "index", "base", "base_node", "_array", "form", "__dict__",
                 "__weakref__")
    _grad = None                                                         # cold attributes live in __dict__ when they are set
    _inference, _hooked = False, None                                    # _hooked: the leaf with hooks of a tensor that is frozen
    _tangents, _settled = None, frozenset()                              # forward mode: tangents by level; the levels that wrote in place
    is_sparse = is_sparse_csr = is_mkldnn = is_quantized = is_nested = is_xpu = is_mps = is_xla = False

    # -------------------------------------------------------------- what it is
    device = property(lambda self: self.storage.device, doc="Where the memory is.")
    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    is_cuda = property(lambda self: self.storage.device.type == "cuda", doc="Whether the memory is on a CUDA device.")
    is_cpu = property(lambda self: self.storage.device is cpu, doc="Whether the memory is the host's.")
    is_meta = property(lambda self: self.storage.device is meta, doc="Whether there is no memory: the device is meta.")
    itemsize = property(lambda self: self.dtype.itemsize, doc="Bytes of an element.")
    nbytes = property(lambda self: layout(self.shape)[2] * self.dtype.itemsize, doc="Bytes of all elements.")
    _base = property(lambda self: self.base)

    @property
    def _version(self):
        """How often the memory was written in place."""
        check(not self._inference, "_version", "a normal tensor", "one made in inference mode")
        next_seq()
        return self.storage.version

    @property
    def array(self):
        """The memory of a CPU tensor as a numpy array of the same shape and strides."""
        found = self._array
        if found is None:
            check(self.storage.device is cpu, "array", "a tensor on the CPU", self.storage.device, use="x.cpu()", error=TypeError)
            size = self.dtype.itemsize
            if self.storage.nbytes:
                found = np.ndarray(self.shape, self.dtype.numpy, self.storage.bytes, self.offset * size, [s * size for s in self.strides])
            else:
                found = np.empty(self.shape, self.dtype.numpy)
            self._array = found
        return found

    def data_ptr(self):
        """Address of the first element; 0 on meta."""
        return self.storage.ptr and self.storage.ptr + self.offset * self.dtype.itemsize

    def untyped_storage(self):
        """The memory that this tensor and its views share."""
        return UntypedStorage(self.storage)

    def storage_offset(self):
        """Elements between the start of the storage and the first element."""
        return self.offset

    def numel(self):
        """Number of elements."""
        return layout(self.shape)[2]

    def dim(self):
        """Number of dimensions."""
        return len(self.shape)

    nelement, ndimension = numel, dim

    def element_size(self):
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_contiguous(self, memory_format=contiguous_format):
        """Whether the elements lie without gaps in row-major order, or in that of another memory format.

        >>> import tritorch as torch; torch.empty(2, 3, 4, 4).is_contiguous(memory_format=torch.channels_last)
        False
        """
        return memory_format is preserve_format or lies_in(self.shape, self.strides, memory_format)

    def is_floating_point(self):
        """Whether the dtype is a floating one."""
        return self.dtype.is_floating_point

    def is_complex(self):
        """Whether the dtype is a complex one."""
        return self.dtype.is_complex

    def is_signed(self):
        """Whether the dtype has negative values."""
        return self.dtype.is_signed

    def is_inference(self):
        """Whether the tensor was made in inference mode."""
        return self._inference

    def get_device(self):
        """Index of the CUDA device, -1 on the CPU and on meta."""
        return -1 if (index := self.storage.device.index) is None else index

    def __len__(self):
        check(len(self.shape) > 0, "len", "a tensor of at least one dim", "0 dims", error=TypeError)
        return self.shape[0]

    def __hash__(self):
        return id(self)

    # -------------------------------------------------------------- its place in the gradient graph
    @property
    def requires_grad(self):
        """Whether gradients flow to this tensor. Settable on leaves."""
        if self.base is not None:
            refresh(self)
        return self.node is not None

    @requires_grad.setter
    def requires_grad(self, value):
        if self.grad_fn is not None:
            raise RuntimeError("requires_grad: expected a leaf (you can only change requires_grad flags of leaf variables), got the "
                               "result of an operator; use detach() to get a tensor without history")
        switches("requires_grad", RuntimeError, value=value)
        swaps[0] += 1
        if not value:
            if self.node is not None and self.node.hooks is not None:
                self._hooked = self.node
            self.node = None
        elif self.node is None:
            check(self.dtype.has_gradients, "requires_grad", "a floating or complex dtype", self.dtype)
            check(not self._inference, "requires_grad", "a normal tensor", "one made in inference mode", use="x.clone() outside of it")
            self.node, self.index = self._hooked or Leaf(self), 0

    def requires_grad_(self, requires_grad=True):
        """Set `requires_grad` and return the tensor."""
        if requires_grad is not True:
            switches("requires_grad_", requires_grad=requires_grad)
        if not requires_grad or self.grad_fn is None:
            self.requires_grad = requires_grad
        return self

    @property
    def grad(self):
        """The gradient that backward accumulated, or None."""
        if self._grad is None and self.node is not None and type(self.node) is not Leaf and not self.retains_grad:
            warnings.warn("grad: backward leaves no gradient in a tensor that is not a leaf; call retain_grad() on it before", stacklevel=2)
        return self._grad

    @grad.setter
    def grad(self, value):
        if value is not None:
            check(isinstance(value, Tensor), "grad", "a Tensor or None", type(value).__name__, error=TypeError)
            check(value is not self, "grad", "another tensor", "the tensor itself")
            check(value.shape == self.shape, "grad", f"shape {self.shape}", value.shape)
            check(value.dtype is self.dtype, "grad", f"dtype {self.dtype}", value.dtype)
            check(value.device is self.device, "grad", f"device {self.device}", value.device)
        swaps[1] += 1
        self._grad = value

    @grad.deleter
    def grad(self):
        swaps[1] += 1
        self._grad = None

    @property
    def grad_fn(self):
        """The graph node that made this tensor; None for leaves."""
        if self.base is not None:
            refresh(self)
        return None if type(self.node) is Leaf else self.node

    @property
    def is_leaf(self):
        """True unless an operator with a gradient made this tensor."""
        return self.grad_fn is None

    @property
    def data(self):
        """The same memory without history and with a version of its own; assigning swaps the memory under this tensor."""
        return strided(self.storage.alias(), self.shape, self.strides, self.offset, self.dtype)

    @data.setter
    def data(self, other):
        check(isinstance(other, Tensor), "data", "a Tensor", type(other).__name__, error=TypeError)
        check(self.node is None or other.dtype.has_gradients, "data", "a dtype that has gradients", other.dtype)
        self.storage, self.shape, self.strides, self.offset = other.storage.alias(), other.shape, other.strides, other.offset
        self.dtype, self._array, self.form = other.dtype, None, None
        swaps[0] += 1

    def detach(self):
        """The same memory without history; writes through either are seen by both and counted together."""
        return strided(self.storage, self.shape, self.strides, self.offset, self.dtype)

    def detach_(self):
        """Forget the history of this tensor."""
        check(self.base is None, "detach_", "a tensor that is not a view", "a view", use="detach()")
        swaps[0] += 1
        self.node = None
        return self


class Leaf:
    """The end of the graph at a tensor that collects gradients. The tensor owns it; it knows the tensor weakly, so no cycle forms."""

    __slots__ = ("ref", "hooks", "metadata", "__weakref__")
    seq, outputs, next_functions = -1, 0, ()                             # no outputs: the engine hands leaves their gradients itself

    def __init__(self, tensor):
        self.ref, self.hooks, self.metadata = weakref.ref(tensor), None, {}

    @property
    def variable(self):
        return self.ref()

    def name(self):
        return "AccumulateGrad"

    def __repr__(self):
        return f"<AccumulateGrad object at {id(self):#x}>"


class Unfollowed:
    """Stands in `base_node` of a view whose base must not get history through it: `why`, and the base's node when it was made."""

    __slots__ = ("why", "node")

    def __init__(self, why, node=None):
        self.why, self.node = why, node


def refresh(view):
    """Give a view the history that its base has got since by writes in place."""
    known, node = view.base_node, view.base.node
    if node is None or type(node) is Leaf or node is known:              # a base that became a leaf leaves its views what they are
        return
    if type(known) is Unfollowed:
        if node is not known.node:
            raise RuntimeError(f"view: {known.why}, and its base or another view of it has been modified inplace with grad mode enabled; "
                               "use a view made in grad mode, or write under no_grad()")
        return
    fresh = view.base._followed(view.shape, view.strides, view.offset, view.dtype)
    view.node, view.index, view.base_node = fresh.node, fresh.index, node


# ------------------------------------------------------------------ making tensors
def empty(shape, dtype, device, strides=None, rule=None):
    """A tensor whose elements are not set: every result of every operator starts here. It is contiguous, or has the given strides;
    with a `rule`, these are an operand's, and rule(shape, strides) tells the result's from them, unless they are contiguous."""
    try:
        found = _layouts.get(shape)
    except TypeError:                                                    # a list in the place of a number cannot be looked up
        shape, found = whole_numbers("empty", "sizes", shape), None
    shape, usual, count = layout(shape) if found is None else found
    if strides is not None and strides is not usual and strides != usual:
        strides = strides if rule is None else rule(shape, strides)
        if strides != usual:
            return empty_strided(shape, strides, dtype, device)
    out = _new(Tensor)                                                   # 0.1 µs less than Tensor(), which has values to look at
    if device is cpu:
        try:
            array = np.empty(shape, dtype.numpy)
        except (AttributeError, MemoryError, ValueError) as error:
            raise refused_size(error, shape, dtype) from None
        storage = HostStorage()
        storage.device, storage.nbytes, storage.owner, storage.version, storage._bytes = cpu, count * dtype.itemsize, array, 0, None
        out.storage, out._array, out.form = storage, array, HOST
    elif device is meta:
        out.storage, out._array, out.form = meta_storage(count * dtype.itemsize), None, HOST
    else:
        out.storage, out._array, out.form = device_storage(count * dtype.itemsize, device), None, None
    out.shape = shape                                                    # one by one: many at once make a tuple, 0.03 µs more
    out.strides = usual
    out.dtype = dtype
    out.offset = out.index = 0
    out.node = out.base = out.base_node = None
    return out


def empty_strided(shape, strides, dtype, device):
    """An unset tensor with strides of its own (in elements, not negative)."""
    flat = empty((extent(shape, strides),), dtype, device)
    return strided(flat.storage, shape, strides, 0, dtype)


def empty_like(x, dtype=None):
    """An unset tensor of the same shape and device, and of the same order of dims in memory."""
    return empty(x.shape, dtype or x.dtype, x.device, x.strides, dense_strides)


def strided(storage, shape, strides, offset, dtype):
    """A tensor that reads `storage` under the given layout; the caller vouches that it fits."""
    out = _new(Tensor)
    out.shape = shape if shape.__class__ is Size else layout(shape)[0]
    out.storage = storage
    out.strides = strides
    out.offset = offset
    out.dtype = dtype
    out.index = 0
    out.node = out.base = out.base_node = out._array = out.form = None
    return out


def part(x, which):
    """The real (0) or imaginary (1) parts of a complex tensor in its memory, without history."""
    return strided(x.storage, x.shape, tuple([2 * s for s in x.strides]), 2 * x.offset + which, x.dtype.parts)


def own(out):
    """A view of memory that nothing else shows, as a tensor of its own, as in PyTorch: `detach_` may cut it off its history."""
    out.base = out.base_node = None
    return out


def in_order(x, strides):
    """The same memory, without history, its dims in the order of `strides`, outermost first."""
    dims = memory_order(strides)
    return strided(x.storage, tuple([x.shape[d] for d in dims]), tuple([x.strides[d] for d in dims]), x.offset, x.dtype)


def alias(x, cls):
    """The same memory and version as an object of `cls`, without history."""
    out = _new(cls if type(x.storage) is not Spread else Spread.kind(cls))
    out.storage = x.storage
    out.shape = x.shape
    out.strides = x.strides
    out.offset = x.offset
    out.dtype = x.dtype
    out._array = x._array
    out.form = x.form
    out.index = 0
    out.node = out.base = out.base_node = None
    return out


def put_off(x, fill):
    """Have `fill(array)` called for the memory of a CPU tensor when somebody looks at it. Returns False where somebody may already: the
    memory is known as a numpy array or by its address, or x is not all there is in it."""
    storage = x.storage
    if x.nbytes < LARGE or x.nbytes != storage.nbytes or not x.is_contiguous():
        return False
    if type(storage) is HostStorage:
        own = x._array is storage.owner
        if not (sys.getrefcount(storage.owner) == ALONE + own and storage.owner.flags.owndata):
            return False
        x._array = None
        storage.__class__ = Unwritten
    storage._bytes = fill
    return True


def overwritten(x):
    """All elements of x are about to be written, whatever they are: what was put off need not be done."""
    if type(x.storage) is Unwritten and x.nbytes == x.storage.nbytes and x.is_contiguous():
        x.storage.written()


def _alone():
    """What getrefcount says of the owner of a storage that no one else knows."""
    storage = HostStorage()
    storage.owner = object()
    return sys.getrefcount(storage.owner)


LARGE, ALONE = 1 << 16, _alone()                # bytes; references to the owner of a storage that no one else knows


def from_array(array):
    """A CPU tensor over the memory of a numpy array; strides must be multiples of the item size and not negative."""
    from tritorch.dtype import from_numpy_dtype

    kind = from_numpy_dtype(array.dtype)
    if array.flags.c_contiguous:
        strides = layout(array.shape)[1]
    else:
        strides = tuple([s // array.itemsize for s in array.strides])
        check(min(strides) >= 0, "from_numpy", "strides that are not negative", array.strides, use="array.copy()", error=ValueError)
        check(all(s % array.itemsize == 0 for s in array.strides), "from_numpy", "strides in whole elements", array.strides,
              use="array.copy()", error=ValueError)
    out = strided(host_storage(array), array.shape, strides, 0, kind)
    out._array = array
    return out
