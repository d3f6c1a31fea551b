"""Functions of torch._utils that programs call: many tensors as one row of numbers and back, and what number a device has."""
from tritorch.cuda.device import current_device
from tritorch.device import as_device, cpu
from tritorch.device import device as device_type
from tritorch.dtype import dtype as dtype_type
from tritorch.errors import check, sentence
from tritorch.ops.shaping import cat


def _flatten_dense_tensors(tensors):
    """The elements of all the tensors in one row.

    >>> import tritorch as torch
    >>> _flatten_dense_tensors([torch.ones(2, 1), torch.zeros(1)])
    tensor([1., 1., 0.])
    """
    return cat([x.contiguous().view(-1) for x in tensors])


def _unflatten_dense_tensors(flat, tensors):
    """Views of such a row with the shapes of the tensors, one after the other.

    >>> import tritorch as torch
    >>> [x.tolist() for x in _unflatten_dense_tensors(torch.arange(3), [torch.ones(2, 1), torch.zeros(1)])]
    [[[0], [1]], [2]]
    """
    parts = flat.split([x.numel() for x in tensors]) if tensors else ()
    return tuple(part.view(x.shape) for part, x in zip(parts, tensors))


def _get_device_index(device, optional=False, allow_cpu=False):
    """The number of a CUDA device that is given as number, name or device; of the current one if there is none and `optional`;
    -1 of the CPU, where that is allowed. Raises ValueError.

    >>> _get_device_index("cuda:1"), _get_device_index("cpu", allow_cpu=True)
    (1, -1)
    """
    if isinstance(device, str):
        device = as_device(device)
    if isinstance(device, device_type):
        if device is cpu and not allow_cpu:
            raise ValueError(sentence("_get_device_index", "a device that is not the CPU", device))
        return -1 if device is cpu else device.index
    if isinstance(device, int):
        return device
    check(optional, "_get_device_index", "a device with a number", device, error=ValueError)
    return current_device()


def _element_size(dtype):
    """The bytes of an element.

    >>> import tritorch as torch; _element_size(torch.float64)
    8
    """
    check(isinstance(dtype, dtype_type), "_element_size", "a dtype", type(dtype).__name__)
    return dtype.itemsize
