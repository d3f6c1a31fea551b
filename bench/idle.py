"""A device on which nothing runs: memory is host memory, kernels and copies are taken and forgotten. What is left is our own Python."""
import numpy as np

from tritorch.cuda.driver import DeviceProperties


class IdleFunction:
    info = {}

    def launch(self, gx, gy, gz, stream, values):
        pass


class IdleDriver:
    """Speaks the driver protocol; calls it does not spell out do nothing."""

    name, wants_annotations = "idle", False
    total = 1 << 36

    def __init__(self):
        self.blocks, self.handles = {}, 100

    def __getattr__(self, call):
        if call.startswith("_"):
            raise AttributeError(call)
        return lambda *args: None

    def handle(self, *args):
        self.handles += 1
        return self.handles

    stream_create = event_create = capture_end = graph_instantiate = handle

    def device_count(self):
        return 1

    def device_properties(self, index):
        return DeviceProperties("idle", 9, 0, self.total, 132, 32, 1 << 17, 1 << 20, 2048, 65536)

    def memory_info(self, index):
        return self.total - sum(map(len, self.blocks.values())), self.total

    def alloc(self, nbytes):
        memory = np.empty(nbytes + 512, np.uint8)
        pointer = -(-memory.__array_interface__["data"][0] // 512) * 512
        self.blocks[pointer] = memory
        return pointer

    def free(self, pointer):
        self.blocks.pop(pointer)

    host_alloc, host_free = alloc, free

    def event_query(self, event):
        return True

    stream_query = event_query

    def capture_status(self, stream):
        return False

    def load(self, *kernel):
        return IdleFunction()
