"""A compiled kernel on a GPU: parameters packed into one buffer per thread, one driver call.

Measured on an H200's host: pack_into and cuLaunchKernel with the buffer's address 4.0 µs, with a tuple of parameters 5.4.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import driver as cu

from tritorch.cuda.allocator import allocate
from tritorch.cuda.driver import DeviceProperties, DriverError, leaves, waiting
from tritorch.cuda.nvidia_call import call, failure
from tritorch.cuda.nvidia_tensor_map import tensor_map
from tritorch.cuda.stream import captures, is_capturing

_FORMATS = {
    "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "fp16": "e", "bf16": "H", "fp32": "f", "f32": "f", "fp64": "d",
}
_LIMITS = {"f": 3.4028235677973366e38, "e": 65520.0}   # from here on a float is nearer to infinity
_STATIC_LIMIT = 48 << 10            # more shared memory must be asked for
_PORTABLE_CLUSTER = 8
_BLACKWELL = (10, 11, 12)
EARLY = True                        # a graph's kernels begin before the one in front of them has ended
_MOST_CONFIGS = 256                 # of launches, kept for each kernel


class Streams(dict):
    """Handle -> CUstream; a call with the object is faster than with an int."""

    def __missing__(self, handle: int) -> Any:
        stream = self[handle] = cu.CUstream(handle)
        return stream


_streams = Streams()


class Layout:
    """How Triton's kernels take their parameters: the arguments in order, then the addresses of two scratch areas.

    `struct` packs them, each at an address that suits its size, `offsets` says where; `arguments` packs all but the scratch areas.
    `expand` turns the values of a launch into what is packed; None where they are the same.
    """

    def __init__(self, signature: dict, descriptors: Sequence[dict], sizes: Sequence[int], blackwell: bool = False):
        self.blackwell = blackwell
        kinds = list(leaves(signature.values()))
        tiles = sum(kind.startswith("tensordesc") for kind in kinds)
        for flags in (1, 2) if tiles and not descriptors else (1,):    # of a descriptor before sm_90: 1 in Triton 3.6, 2 in 3.9
            self._place(kinds, descriptors, flags)
            found = [struct.calcsize(code) for code in (*self.formats, "Q", "Q")]
            if found == list(sizes):
                return
        raise DriverError(f"a kernel with parameters {kinds} takes {list(sizes)} bytes, expected {found}; use a version of triton "
                          "that tritorch was tested with")

    def _place(self, kinds: Sequence[str], descriptors: Sequence[dict], flags: int) -> None:
        formats: list[str] = []
        steps: list[Callable | None] = []
        remaining = iter(descriptors)
        for kind in kinds:
            if kind.startswith("tensordesc"):
                rank = kind.partition("]")[0].count(",") + 1
                if descriptors:
                    formats += ["128s", *"i" * rank, *"q" * rank]
                    steps.append(_mapped(next(remaining), self.blackwell))
                else:               # before sm_90 a descriptor is a pointer, shape and strides, and once more shape and strides
                    formats += ["Q", *"q" * 2 * rank, *"?" * flags, *"i" * rank, *"q" * rank]
                    steps.append(lambda d: (d.ptr, *d.shape, *d.strides, *(d.padding == "nan", d.round_f32_to_tf32)[:flags],
                                            *d.shape, *d.strides))
            else:
                formats.append("P" if kind[0] == "*" else _FORMATS[kind])     # of a Q, checks cost 0.02 µs more
                steps.append(_bfloat16 if kind == "bf16" else None)
        self.offsets, packed, end = [], "@", 0
        for place, code in enumerate((*formats, "Q", "Q")):
            if place == len(formats):
                self.arguments = struct.Struct(packed)
            size = struct.calcsize(code)
            gap = -end % min(size, 64)
            packed += f"{gap}x{code}" if gap else code
            self.offsets.append(end + gap)
            end += gap + size
        self.struct = struct.Struct(packed)
        self.formats = formats
        self.expand = self._expanding(steps) if any(steps) else None

    @staticmethod
    def _expanding(steps):
        def expand(values):
            out = []
            for step, value in zip(steps, values):
                if step is None:
                    out.append(value)
                else:
                    out.extend(step(value))
            return out

        return expand

    def saturate(self, values: Sequence[Any]) -> list:
        """Floats too large for their type become infinite, as in C; pack_into refuses them."""
        return [
            math.copysign(math.inf, value) if code in _LIMITS and abs(value) >= _LIMITS[code] else value
            for code, value in zip(self.formats, values)
        ]


def _mapped(meta: dict, blackwell: bool) -> Callable:
    return lambda d: (tensor_map(d, meta, blackwell), *d.shape, *d.strides)


def _bfloat16(value: float) -> tuple[int]:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0,)


class Buffers(threading.local):
    """Of this thread: the packed parameters, and the array of their addresses that the driver reads before a launch returns."""

    def __init__(self, layout: Layout, driver: Any):
        driver.enter()
        size = layout.struct.size
        self.memory = (ctypes.c_char * (size + 64))()
        base = -(-ctypes.addressof(self.memory) // 64) * 64
        self.addresses = (ctypes.c_void_p * len(layout.offsets))(*(base + offset for offset in layout.offsets))
        view = memoryview(self.memory).cast("B")[base - ctypes.addressof(self.memory):][:size]
        self.pair = view, ctypes.addressof(self.addresses)


class NvidiaFunction:
    """`driver.Function` on a GPU; the module stays loaded until the process ends."""

    __slots__ = ("info", "launch", "module", "handle")

    def __init__(self, driver: Any, properties: DeviceProperties, compiled: Any, signature: dict):
        if compiled.shared > properties.shared_memory_per_block_optin:
            raise DriverError(f"{compiled.name} needs {compiled.shared} bytes of shared memory, {properties.name} has "
                              f"{properties.shared_memory_per_block_optin}; use smaller blocks or fewer num_stages")
        self.module = call("cuModuleLoadData", compiled.cubin)
        self.handle = call("cuModuleGetFunction", self.module, compiled.name.encode())
        attribute = cu.CUfunction_attribute
        if compiled.shared > _STATIC_LIMIT:
            call("cuFuncSetCacheConfig", self.handle, cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED)
            call("cuFuncSetAttribute", self.handle, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, compiled.shared)
        if compiled.num_ctas > _PORTABLE_CLUSTER:
            call("cuFuncSetAttribute", self.handle, attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        self.info = {
            "registers": call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, self.handle),
            "spills": call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, self.handle),
            "shared": compiled.shared,
            "num_warps": compiled.num_warps,
            "occupancy": call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, 32 * compiled.num_warps, compiled.shared),
        }
        layout = Layout(signature, compiled.descriptors, compiled.parameters, properties.major in _BLACKWELL)
        special = compiled.global_scratch_size or compiled.num_ctas > 1 or compiled.cooperative
        able = EARLY and properties.major < 12                           # seen to be refused in captures on sm_120
        self.launch = _general(driver, self.handle, compiled, layout, compiled.pdl and able) if special else \
            _simple(driver, self.handle, compiled, layout, compiled.pdl and able, compiled.waits_first and able)


def _later(*call: Any) -> bool:
    from tritorch.cuda.ahead import launches_later

    return launches_later(*call)


def _simple(driver: Any, handle: Any, compiled: Any, layout: Layout, always: bool, in_graphs: bool) -> Callable:
    """Kernels begin early `always`, or `in_graphs`, where the host's time for it does not count."""
    device, here, buffers, streams = driver.here.device, driver.here, Buffers(layout, driver), _streams
    pack, start, threads, shared = layout.arguments.pack_into, cu.cuLaunchKernel, 32 * compiled.num_warps, compiled.shared
    expand, several = layout.expand, driver.device_count() > 1           # of one device, a thread that has buffers has the context
    captured, start_early = captures if in_graphs else (), _configured(handle, compiled, True)
    clusters = None if compiled.cluster == 1 or always else _configured(handle, compiled, False)

    def launch(gx, gy, gz, stream, values):
        if waiting and _later(launch, gx, gy, gz, stream, values):
            return
        if several and here.device != device:
            with driver.on(device):
                return launch(gx, gy, gz, stream, values)
        view, addresses = buffers.pair
        if expand is not None:
            values = expand(values)
        try:
            pack(view, 0, *values)                                       # the scratch areas stay 0
        except OverflowError:
            pack(view, 0, *layout.saturate(values))
        if always or captured and is_capturing(device, stream):
            return start_early(gx, gy, gz, stream, addresses)
        if clusters is not None:
            return clusters(gx, gy, gz, stream, addresses)
        result = start(handle, gx, gy, gz, threads, 1, 1, shared, streams[stream], addresses, 0)
        if result[0]:
            raise failure("cuLaunchKernel", result[0])

    return launch


def _configured(handle: Any, compiled: Any, early: bool) -> Callable:
    """How a kernel is started in clusters, or that may begin before the one in front of it has ended (`early`: PDL): a grid and a stream
    have one configuration, which is not changed, so that all threads may share it."""
    configs: dict[tuple, Any] = {}

    def start(gx, gy, gz, stream, addresses):
        config = configs.get((gx, gy, gz, stream))
        if config is None:
            if len(configs) >= _MOST_CONFIGS:
                configs.clear()
            config = _config(compiled, early)
            config.gridDimX, config.gridDimY, config.gridDimZ, config.hStream = gx, gy, gz, _streams[stream]
            configs[gx, gy, gz, stream] = config
        call("cuLaunchKernelEx", config, handle, addresses, 0)

    return start


def _general(driver: Any, handle: Any, compiled: Any, layout: Layout, early: bool) -> Callable:
    device, buffers, pack = driver.here.device, Buffers(layout, driver), layout.struct.pack_into
    expand = layout.expand or (lambda values: values)
    scratch = _Scratch(driver, compiled)

    def launch(gx, gy, gz, stream, values):
        if waiting and _later(launch, gx, gy, gz, stream, values):
            return
        with driver.on(device):
            view, addresses = buffers.pair
            values, (area, _kept) = expand(values), scratch.area(gx * gy * gz, stream)
            try:
                pack(view, 0, *values, area, 0)
            except OverflowError:
                pack(view, 0, *layout.saturate(values), area, 0)
            config = _config(compiled, early)
            config.gridDimX, config.gridDimY, config.gridDimZ, config.hStream = gx * compiled.num_ctas, gy, gz, _streams[stream]
            call("cuLaunchKernelEx", config, handle, addresses, 0)

    return launch


def _config(compiled: Any, early: bool) -> Any:
    config, identifier, attributes = cu.CUlaunchConfig(), cu.CUlaunchAttributeID, []

    def attribute(name):
        attributes.append(cu.CUlaunchAttribute())
        attributes[-1].id = getattr(identifier, f"CU_LAUNCH_ATTRIBUTE_{name}")
        return attributes[-1].value

    if early:
        attribute("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
    if compiled.cooperative:
        attribute("COOPERATIVE").cooperative = 1
    if compiled.cluster > 1:
        cluster = attribute("CLUSTER_DIMENSION").clusterDim
        cluster.x, cluster.y, cluster.z = compiled.cluster, 1, 1
    if compiled.num_ctas > 1:
        cluster = attribute("CLUSTER_DIMENSION").clusterDim
        cluster.x, cluster.y, cluster.z = compiled.num_ctas, 1, 1
        spread = cu.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        attribute("CLUSTER_SCHEDULING_POLICY_PREFERENCE").clusterSchedulingPolicyPreference = spread
    config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes = 32 * compiled.num_warps, 1, 1, compiled.shared
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


class _Scratch:
    """Device memory that a kernel asks for (descriptors it makes itself on sm_90): one area per stream, because launches of one
    stream follow each other. Areas that were outgrown stay: queued launches may still use them. A graph may be replayed on any stream,
    so what is captured gets memory of its graph's, for as long as the launch takes."""

    def __init__(self, driver: Any, compiled: Any):
        self.driver, self.size = driver, compiled.global_scratch_size * compiled.num_ctas
        self.areas: dict[int, tuple[int, int]] = {}
        self.lock = threading.Lock()

    def area(self, programs: int, stream: int) -> tuple[int, Any]:
        """The address, and what has to be kept until the kernel is queued. The driver's current device is that of the stream."""
        need, index = programs * self.size, self.driver.here.device
        if not need:
            return 0, None
        if is_capturing(index, stream):
            block = allocate(need, index, stream)
            return block.ptr, block
        with self.lock:
            address, size = self.areas.get(stream, (0, 0))
            if size < need:
                size = max(need, 2 * size)
                address, size = self.areas[stream] = self.driver.alloc(size), size
            return address, None
