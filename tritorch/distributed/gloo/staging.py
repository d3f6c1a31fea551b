"""Tensors as flat numpy arrays that sockets can read and write: their own memory where it is the host's and contiguous, else a copy."""
import numpy as np

from tritorch.autograd import no_grad
from tritorch.autograd.places import user_place
from tritorch.cuda.device import device as on_device
from tritorch.cuda.event import Event
from tritorch.cuda.stream import current_stream
from tritorch.device import cpu
from tritorch.ops.copy import pinned


class Staged:
    """A tensor and its `array`. `ready()` waits until the values are there, `deliver()` brings them back into the tensor."""

    __slots__ = ("tensor", "array", "host", "event", "back")

    def __init__(self, tensor, reads=True, writes=True):
        self.tensor, self.host, self.event, self.back = tensor, None, None, writes
        if tensor.device is not cpu:
            self._from_device(reads)
        elif tensor.is_contiguous():
            self.array, self.back = tensor.array.reshape(-1), False
        else:
            self.array = np.ascontiguousarray(tensor.array).reshape(-1) if reads else np.empty(tensor.numel(), tensor.dtype.numpy)
        if writes:                                                       # who saved the tensor for a gradient hears of it
            tensor.storage.version += 1
            tensor.storage.writer = user_place()

    def _from_device(self, reads):
        self.host = pinned(self.tensor.shape, self.tensor.dtype)
        self.array = self.host.array.reshape(-1)
        if reads:
            with no_grad(), on_device(self.tensor.device.index):
                self.host.copy_(self.tensor.detach(), non_blocking=True)
                self.event = Event()
                self.event.record()

    def ready(self):
        """Wait until the copy from the device is here."""
        if self.event is not None:
            self.event.synchronize()

    def deliver(self):
        """Write the array into the tensor; on a device, until it is there: any stream may read it then."""
        if not self.back:
            return
        if self.host is None:
            self.tensor.array[...] = self.array.reshape(self.tensor.shape)
        else:
            with no_grad(), on_device(self.tensor.device.index):
                self.tensor.detach().copy_(self.host, non_blocking=True)
                current_stream().synchronize()
