"""GPU memory between processes: who has it lends it, others open it, and a file counts them, so that it is kept as long as one uses it."""
import contextlib
import math
from weakref import WeakValueDictionary

from tritorch.cuda import allocator, driver
from tritorch.cuda.device import device as on_device
from tritorch.device import device
from tritorch.errors import check
from tritorch.multiprocessing.segments import Named
from tritorch.storage import block_storage, written_unseen

_lent = {}                                                               # id of a storage → (the storage, the count of who has it)
_known = WeakValueDictionary()                                           # file of a count → the storage here


class Opened:
    """Memory of another process at `ptr`; what is queued here is waited for before it goes back."""

    def __init__(self, index, handle, offset, count):
        self.index, self.count, self.driver = index, count, driver.current()
        with on_device(index):
            self.base = self.driver.ipc_open(handle)
        self.ptr = self.base + offset

    def __del__(self):
        with contextlib.suppress(driver.DriverError):                    # at the end of the process, or when the device has failed
            self.driver.synchronize(self.index)
            with on_device(self.index):
                self.driver.ipc_close(self.base)


def reduce_storage(storage):
    """Device memory on its way to another process, all work on it done. It stays until nobody has it any more, whatever becomes of it here:
    see `ipc_collect`."""
    check(type(storage.owner) is not Opened, "multiprocessing", "memory of this process", "a CUDA tensor that came from another one",
          use="x.clone()")
    collect()
    index, here = storage.device.index, driver.current()
    here.synchronize(index)
    with on_device(index):
        handle, offset = here.ipc_handle(storage.ptr)
    written_unseen(storage, math.nan)
    if id(storage) not in _lent:
        _lent[id(storage)] = storage, Named.create(0)
        allocator.take_back = collect
    count = _lent[id(storage)][1]
    _known[count.identity] = storage
    return rebuild_storage, (index, handle, offset, storage.nbytes, *count.sent())


def rebuild_storage(index, handle, offset, nbytes, counted, sent):
    """The storage of a message: the one there is, if the memory is of this process or has come before."""
    count = counted(sent)
    found = _known.get(count.identity)
    if found is None:
        check(driver.available(), "multiprocessing", "a CUDA device for a tensor that was sent", "none")
        found = _known[count.identity] = block_storage(Opened(index, handle, offset, count), nbytes, device("cuda", index))
    return found


def collect():
    """Let go of what nobody else has."""
    for key, (_, count) in list(_lent.items()):
        if count.alone():
            _lent.pop(key, None)
