"""What programs do with a tensor's memory itself: `x.set_(...)`, `x.untyped_storage().cpu()`, `.copy_(...)`."""
import sys

from tritorch import interop
from tritorch import tensor as tensors
from tritorch.autograd.modes import is_grad_enabled
from tritorch.device import as_device, cpu
from tritorch.dtype import uint8
from tritorch.errors import check
from tritorch.keywords import also
from tritorch.memory_format import dense_strides, preserve_format, strides_in, suggested
from tritorch.ops.view import as_sizes
from tritorch.shape import Size, extent, layout
from tritorch.storage import Storage, UntypedStorage, part
from tritorch.tensor import Tensor


def set_(self, source=None, storage_offset=0, size=None, stride=None):
    """Let the tensor show the memory of `source`, a tensor of the same dtype or a storage, and return it; nothing is copied.

    Of a storage it shows `size` elements with `stride` (contiguous if None; all there are if `size` is None), `storage_offset` elements
    after its start. Without `source` it shows nothing. Raises RuntimeError where the memory is too small, the dtypes or devices differ, or
    the tensor has a gradient to follow.

    >>> import tritorch as torch
    >>> x = torch.arange(6.)
    >>> torch.empty(0).set_(x.untyped_storage(), 1, (2, 2), (3, 1))
    tensor([[1., 2.],
            [4., 5.]])
    """
    check(self.node is None or not is_grad_enabled(), "set_", "a tensor that requires no gradient", "one that does", use="no_grad()")
    check(size is not None or not storage_offset, "set_", "a size with an offset", "an offset alone", error=TypeError)
    if source is None:
        source = tensors.empty((0,), self.dtype, self.device)
    if isinstance(source, Tensor):
        check(source.dtype is self.dtype, "set_", f"dtype {self.dtype}", source.dtype)
        storage, offset, shape, strides = source.storage, source.offset, source.shape, source.strides
        if size is not None:
            offset, shape, strides = storage_offset, Size(size), stride
    else:
        check(isinstance(source, (Storage, UntypedStorage)), "set_", "a tensor or a storage", type(source).__name__, error=TypeError)
        storage, offset, strides = getattr(source, "storage", source), storage_offset, stride
        count = storage.nbytes // self.dtype.itemsize
        shape = Size((count - offset,) if size is None else size)
    strides = dense_strides(shape, layout(shape)[1]) if strides is None else tuple(strides)
    check(storage.device is self.device, "set_", f"memory on {self.device}", storage.device)
    check(offset >= 0 and len(shape) == len(strides) and min((*shape, *strides, 0)) >= 0, "set_", "as many strides as dims, none negative",
          f"size {tuple(shape)}, stride {strides}, offset {offset}")
    need = (offset + extent(shape, strides)) * self.dtype.itemsize if layout(shape)[2] else 0
    check(need <= storage.nbytes, "set_", f"a storage of {need} bytes", storage.nbytes)
    self.storage, self.shape, self.strides, self.offset = storage, shape, strides, offset
    self._array = self.form = None
    tensors.swaps[0] += 1
    return self


def resize_(self, *sizes, size=None, memory_format=None):
    """Give the tensor other sizes, and return it: it shows its memory from the first element on, contiguous or in a memory_format, and
    moves to more if that is too small, of which the elements behind the old ones are not set. Other tensors keep the old memory then.

    A tensor of these sizes stays as it is. Raises RuntimeError for one that requires gradients.

    >>> import tritorch as torch; torch.tensor([[1, 2, 3], [4, 5, 6]]).resize_(2, 2)
    tensor([[1, 2],
            [3, 4]])
    """
    sizes = sizes if size is None else (size,)
    check(len(sizes) > 0, "resize_", "sizes", "none", error=TypeError)
    shape = layout(as_sizes(sizes))[0]
    check(not self.requires_grad, "resize_", "a tensor that requires no gradient", "one that does", use="x.detach()")
    check(min(shape, default=0) >= 0, "resize_", "sizes that are not negative", shape)
    check(memory_format is not preserve_format, "resize_", "a memory_format of its own", memory_format)
    if shape == self.shape and memory_format is None:
        return self
    strides = layout(shape)[1] if memory_format is None else strides_in("resize_", shape, memory_format)
    count = self.offset + layout(shape)[2] if layout(shape)[2] else 0
    if count * self.dtype.itemsize > self.storage.nbytes:
        fresh, kept = tensors.empty((count,), self.dtype, self.device), self.storage.nbytes // self.dtype.itemsize
        if kept:
            fresh.narrow(0, 0, kept).copy_(tensors.strided(self.storage, (kept,), (1,), 0, self.dtype))
        self.storage, self.base, self.base_node = fresh.storage, None, None
    self.shape, self.strides, self._array, self.form = shape, strides, None, None
    tensors.swaps[0] += 1
    return self


@also(the_template="tensor")
def resize_as_(self, tensor, memory_format=None):
    """`resize_` to the sizes of another tensor; with preserve_format also to its memory format."""
    wanted = suggested(tensor.shape, tensor.strides) if memory_format is preserve_format else memory_format
    return resize_(self, tensor.shape, memory_format=wanted)


def _flat(storage):
    return tensors.strided(storage, (storage.nbytes,), (1,), 0, uint8)


def to_device(self, device=None):
    """The bytes on another device; the storage itself where they are there."""
    device = as_device("cuda" if device is None else device)
    return self if self.device is device else UntypedStorage(_flat(self.storage).to(device).storage)


def to_cpu(self):
    """The bytes on the host; the storage itself where they are there."""
    return to_device(self, cpu)


def copy_(self, source, non_blocking=False):
    """Overwrite the bytes with those of a storage of the same size."""
    _flat(self.storage).copy_(_flat(source.storage), non_blocking)
    return self


def clone(self):
    """A copy of the bytes on the same device."""
    return UntypedStorage(_flat(self.storage).clone().storage)


def from_file(filename, shared=False, nbytes=0):
    """The memory of a file, as `tritorch.from_file` has it for tensors.

    >>> import tempfile, tritorch as torch
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"1234"), file.flush()
    ...     memory = torch.UntypedStorage.from_file(file.name, nbytes=4)
    >>> memory[0], torch.asarray(memory[2:], dtype=torch.int16)
    (49, tensor([13363], dtype=tritorch.int16))
    """
    return UntypedStorage(interop.from_file(filename, shared, nbytes, dtype=uint8).storage)


def _picked(storage, index):
    """A slice of bytes as a range; a byte as its place. IndexError where there is none, RuntimeError for steps."""
    if isinstance(index, slice):
        places = range(*index.indices(storage.nbytes))
        check(places.step == 1, "storage", "a slice with a step of 1", places.step)
        return places
    count = storage.nbytes
    check(-count <= index < count, "storage", f"a byte among {count}", index, error=IndexError)
    return index % count


def get_bytes(self, index):
    """A byte as a number, or, for a slice, a storage over those bytes."""
    places = _picked(self.storage, index)
    if isinstance(places, int):
        return _flat(self.storage)[places].item()
    return UntypedStorage(part(self.storage, places.start, len(places)))


def set_bytes(self, index, value):
    """Write a number into a byte or a slice of them."""
    places = _picked(self.storage, index)
    first, count = (places, 1) if isinstance(places, int) else (places.start, len(places))
    _flat(self.storage).narrow(0, first, count).fill_(value)


def tolist(self):
    """The bytes as numbers."""
    return _flat(self.storage).tolist()


def element_size(self):
    """1, the size of a byte."""
    return 1


def is_shared(self):
    """Whether other processes can see the memory, of a tensor or a storage: it is in shared memory, or on a GPU.

    >>> import tritorch as torch
    >>> torch.ones(2).is_shared(), torch.ones(2).share_memory_().is_shared()
    (False, True)
    """
    sharing = sys.modules.get("tritorch.multiprocessing.reductions")     # who only asks leaves Python's queues as they are
    return self.storage.device.type == "cuda" or sharing is not None and sharing.segment_of(self.storage) is not None


def share_memory_(self):
    """Move the memory to where other processes see it, with all tensors that show it, and return the tensor.

    Nothing happens to memory that is shared already, or on a GPU. Numpy arrays that were made of the tensor before keep the old memory.
    Raises RuntimeError where there is no room. See `tritorch.multiprocessing`.
    """
    from tritorch.multiprocessing.reductions import share

    share(self.storage, self)
    return self


def share_storage_(self):
    """As `Tensor.share_memory_`, of a storage."""
    from tritorch.multiprocessing.reductions import share

    share(self.storage)
    return self
