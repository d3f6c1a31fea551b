"""Memory by hand: private pools chosen in a `with`, and raw pointers for code that is not ours."""

from __future__ import annotations

import contextlib
import threading

from tritorch.cuda import allocator, driver
from tritorch.cuda.device import index_of
from tritorch.cuda.graph import graph_pool_handle
from tritorch.cuda.memory_report import memory_snapshot
from tritorch.cuda.stream import current_handle
from tritorch.errors import check

_raw: dict[int, allocator.Block] = {}


class MemPool:
    """A private pool of device memory. What it holds goes back to the driver only after it died and its tensors too."""

    def __init__(self):
        self.id = graph_pool_handle()
        self.privates: dict[int, allocator.Private] = {}

    def use_count(self) -> int:
        """How many graphs and pools hold its memory."""
        return max((private.users for private in self.privates.values()), default=1)

    def snapshot(self) -> list[dict]:
        """memory_snapshot() of this pool alone."""
        return memory_snapshot(self.id)

    def __del__(self):
        for private in self.privates.values():
            private.users -= 1


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device=None):
    """Serve allocations of this thread from `pool` inside; slower than the ordinary pools (5 µs each)."""
    index, thread = index_of(device), threading.get_ident()
    memory = allocator.memory_of(index)
    check((index, thread) not in allocator.routes, "use_mem_pool", "no other pool in use on the device", "one")
    with allocator.lock, allocator.still:
        if index not in pool.privates:
            pool.privates[index] = memory.private(pool.id)
            pool.privates[index].users += 1
        allocator.routes[index, thread] = pool.id
        allocator.fronts.clear()
    try:
        yield
    finally:
        with allocator.lock, allocator.still:
            allocator.routes.pop((index, thread), None)
            allocator.fronts.clear()


def caching_allocator_alloc(size: int, device=None, stream=None) -> int:
    """Address of `size` bytes from the caching allocator; give it back with caching_allocator_delete."""
    index = index_of(device)
    handle = current_handle(index) if stream is None else getattr(stream, "cuda_stream", stream)
    driver.share()
    block = allocator.allocate(size, index, handle)
    _raw[block.ptr] = block
    return block.ptr


def caching_allocator_delete(mem_ptr: int) -> None:
    """Give memory from caching_allocator_alloc back."""
    check(mem_ptr in _raw, "caching_allocator_delete", "an address from caching_allocator_alloc", mem_ptr)
    del _raw[mem_ptr]
