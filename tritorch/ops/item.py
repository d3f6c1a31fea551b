"""The elements of a tensor as numbers and lists of Python: what the host waits for a device for."""
import numpy as np

from tritorch.cuda import memory
from tritorch.cuda.watching import VALUE, elements_read, host_work
from tritorch.device import cpu, meta
from tritorch.errors import check, no_values


def item(input):
    """The one element as a Python number; waits for the device.

    >>> import tritorch as torch; torch.tensor([2.5]).item()
    2.5
    """
    check(input.numel() == 1, "item", "a tensor of 1 element", f"{input.numel()} elements")
    elements_read(input)
    if input.storage.device is not cpu:
        if input.storage.device is meta:
            raise no_values("item", "a device with memory")
        return memory.download(input.data_ptr(), input.dtype.itemsize, input.device.index).view(input.dtype.numpy)[0].item()
    host_work(VALUE)
    value = input.array.item()
    return value if type(value) in (float, int, bool, complex) else float(value)


def tolist(input):
    """The elements as nested Python lists (a number for 0 dims)."""
    elements_read(input)
    host_work(VALUE)
    array = input.detach().to(cpu).array
    if input.dtype.is_floating_point and array.dtype.kind != "f":
        array = array.astype(np.float32)
    return array.tolist()
