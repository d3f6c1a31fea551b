"""The word of a device where kernels report values that they cannot use; the host reads it where it waits: see tritorch/cuda/faults.py."""
from tritorch.cuda import driver, faults
from tritorch.cuda.stream import captures
from tritorch.cuda.trace import spoil
from tritorch.dtype import types
from tritorch.storage import block_storage
from tritorch.tensor import strided


class _Word:
    """Memory straight from the driver: every stream of the device may write it, so it belongs to none."""

    def __init__(self, index):
        self.ptr = driver.current().alloc(16)
        driver.current().fill(self.ptr, 0, 4, 4, 0)
        driver.current().synchronize(index)


def fault_word(device, name, expected="indices inside the dim", error=IndexError):
    """(the word of a device, the number under which this operator reports that it did not find what it expected); (None, 0) if a first
    call is captured."""
    word = faults.words.get(device.index)
    if word is None:
        if device.index in captures:
            spoil()
            return None, 0
        word = faults.words[device.index] = strided(block_storage(_Word(device.index), 16, device), (2,), (1,), 0, types.int64)
    faults.unread.add(device.index)
    return word, faults.number(name, expected, error)
