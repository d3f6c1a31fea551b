"""tritorch.cuda: devices, streams, events, memory and graphs, under the names of torch.cuda. Importing it touches no device.

`tritorch.cuda.device`, `.stream` and `.graph` are the public class or function, as in PyTorch, not the modules of that name:
code of this package imports from the modules, `from tritorch.cuda.stream import current_handle`.
"""

import importlib

from tritorch.cuda import memory
from tritorch.cuda.architectures import can_device_access_peer, get_arch_list, get_gencode_flags
from tritorch.cuda.device import (
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    mem_get_info,
    set_device,
    simulate,
)
from tritorch.cuda.event import Event
from tritorch.cuda.graph import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing
from tritorch.cuda.launch_driver import after_triton
from tritorch.cuda.memory_report import (
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from tritorch.cuda.mempool import MemPool, caching_allocator_alloc, caching_allocator_delete, use_mem_pool
from tritorch.cuda.stream import (
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
    synchronize,
)
from tritorch.cuda.sync_debug import get_sync_debug_mode, set_sync_debug_mode
from tritorch.errors import OutOfMemoryError

__all__ = [
    "CUDAGraph", "Event", "ExternalStream", "MemPool", "OutOfMemoryError", "Stream", "StreamContext", "caching_allocator_alloc",
    "caching_allocator_delete", "can_device_access_peer", "current_device", "current_stream", "default_stream", "device", "device_count",
    "device_of", "empty_cache", "get_allocator_backend", "get_arch_list", "get_device_capability", "get_device_name",
    "get_device_properties", "get_gencode_flags", "get_per_process_memory_fraction", "get_stream_from_external", "get_sync_debug_mode",
    "graph", "graph_pool_handle", "init", "ipc_collect", "is_available", "is_bf16_supported", "is_current_stream_capturing",
    "is_initialized", "is_tf32_supported", "max_memory_allocated", "max_memory_cached", "max_memory_reserved", "mem_get_info", "memory",
    "memory_allocated", "memory_cached", "memory_reserved", "memory_snapshot", "memory_stats", "memory_stats_as_nested_dict",
    "memory_summary", "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_memory_stats", "set_device", "set_per_process_memory_fraction", "set_stream", "set_sync_debug_mode", "simulate", "stream",
    "synchronize", "use_mem_pool",
]

_BOARD = "clock_rate", "device_memory_used", "list_gpu_processes", "memory_usage", "power_draw", "temperature", "utilization"

after_triton()


def __getattr__(name):
    """tritorch.cuda.amp, make_graphed_callables and the constructors FloatTensor, LongTensor, … lie above this layer, few ask for nvtx, the
    profiler, PyTorch's other names for files, and what the board says of itself: they load when they are asked for."""
    if name in ("amp", "graphs", "nccl", "nvtx", "profiler", "streams"):
        return importlib.import_module("tritorch.cuda." + name)
    if name == "_initialized":                                           # packages read it, where PyTorch says is_initialized()
        return is_initialized()
    if name == "make_graphed_callables":
        return importlib.import_module("tritorch.graphs").make_graphed_callables
    if name.endswith("Tensor") and (made := importlib.import_module("tritorch.typed").ON_CUDA.get(name)):
        return made
    if name in _BOARD:
        return getattr(importlib.import_module("tritorch.cuda.monitoring"), name)
    raise AttributeError(f"module 'tritorch.cuda' has no attribute {name!r}")
