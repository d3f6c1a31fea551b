"""The NVIDIA driver without a GPU: a recording stand-in for cuda.bindings shows what is called, and what is packed."""

import ast
import ctypes
import importlib
import itertools
import re
import struct
import sys
import threading
import types
from pathlib import Path

import pytest
from fake_cuda_bindings import Code, Fake

import tritorch as torch
from tritorch.cuda import driver as protocol
from tritorch.cuda.stream import captures

NAMES = ["nvidia_call", "nvidia_tensor_map", "nvidia_function", "nvidia"]
@pytest.fixture
def stub(monkeypatch):
    """(the stand-in, a fresh NvidiaDriver over it). Not called cuda: nothing here needs a GPU, and `-m gpu` leaves it out."""
    fake, bindings, package = Fake(), types.ModuleType("cuda.bindings"), types.ModuleType("cuda")
    bindings.driver, package.bindings = fake, bindings
    for name, module in (("cuda", package), ("cuda.bindings", bindings), ("cuda.bindings.driver", fake)):
        monkeypatch.setitem(sys.modules, name, module)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, f"tritorch.cuda.{name}", raising=False)
    nvidia = importlib.import_module("tritorch.cuda.nvidia")
    yield fake, nvidia.NvidiaDriver()
    for name in NAMES:
        sys.modules.pop(f"tritorch.cuda.{name}", None)
        if hasattr(sys.modules["tritorch.cuda"], name):
            delattr(sys.modules["tritorch.cuda"], name)


SIZES = {"i1": 1, "u1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "fp16": 2, "bf16": 2, "i32": 4, "u32": 4, "fp32": 4}


def sizes(signature, descriptors=None, flags=1):
    """Bytes of every parameter of a kernel, as Triton 3.6 declares them."""
    def leaves(kinds):
        for kind in kinds:
            if isinstance(kind, tuple):
                yield from leaves(kind)
            elif kind.startswith("tensordesc"):
                yield from [128, 4, 4, 8, 8] if descriptors else [8] * 5 + [1] * flags + [4, 4, 8, 8]
            elif kind != "constexpr":
                yield SIZES.get(kind, 8)

    return [*leaves(signature.values()), 8, 8]


def function(stub, signature, major=9, **fields):
    """A loaded function of that signature on a GPU of compute capability `major`.0."""
    fake, driver = stub
    defaults = dict(name="k", cubin=b"cubin", shared=0, num_warps=4, num_ctas=1, cluster=1, global_scratch_size=0, cooperative=False,
                    pdl=False, waits_first=False, descriptors=[])
    driver.set_device(0)
    properties = protocol.DeviceProperties("Fake GPU", major, 0, 1, 1, 32, 232448, 1, 1, 1)
    module = sys.modules["tritorch.cuda.nvidia_function"]
    defaults["parameters"] = sizes(signature, fields.get("descriptors"))
    return module.NvidiaFunction(driver, properties, types.SimpleNamespace(**{**defaults, **fields}), signature)


def read(address, index, code):
    """The parameter that the driver would read."""
    pointers = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    return struct.unpack("<" + code, ctypes.string_at(pointers[index], struct.calcsize("<" + code)))[0]


# ------------------------------------------------------------------ against the real module
def test_every_name_and_number_of_arguments_is_that_of_cuda_bindings():
    real = pytest.importorskip("cuda.bindings.driver")
    folder = Path(protocol.__file__).parent
    enums = {"CU_DEVICE_ATTRIBUTE_": real.CUdevice_attribute, "CU_LAUNCH_ATTRIBUTE_": real.CUlaunchAttributeID}
    seen = set()
    for name in NAMES:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("call", "_call", "_release"):
                if node.args and isinstance(node.args[0], ast.Constant):
                    called, count = node.args[0].value, len(node.args) - 1
                    first = getattr(real, called).__doc__.strip().splitlines()[0]
                    inside = first[first.index("(") + 1:first.rindex(")")]
                    assert count == len([p for p in inside.split(",") if p.strip()]), first
                    seen.add(called)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cu":
                assert hasattr(real, node.attr), node.attr
    assert len(seen) > 25
    source = "".join((folder / f"{name}.py").read_text() for name in NAMES)
    for name in set(re.findall(r'attribute\("(\w+)"\)', source)):
        assert hasattr(enums["CU_LAUNCH_ATTRIBUTE_"], f"CU_LAUNCH_ATTRIBUTE_{name}")
    nvidia = importlib.import_module("tritorch.cuda.nvidia")
    for name in nvidia._ATTRIBUTES.values():
        assert hasattr(enums["CU_DEVICE_ATTRIBUTE_"], f"CU_DEVICE_ATTRIBUTE_{name}")
    for name in [*nvidia._FILLS.values(), *nvidia._COPIES.values()]:
        assert hasattr(real, name)
    for chain in set(re.findall(r"cu\.(CU\w+\.CU_\w+)", source)):
        kind, member = chain.split(".")
        assert hasattr(getattr(real, kind), member), chain
    for member in set(re.findall(r"attribute\.(CU_FUNC_ATTRIBUTE_\w+)", source)):
        assert hasattr(real.CUfunction_attribute, member), member
    assert bool(real.CUresult.CUDA_ERROR_UNKNOWN) and not real.CUresult.CUDA_SUCCESS


def test_error_codes_are_those_of_cuda_bindings():
    real, module = pytest.importorskip("cuda.bindings.driver").CUresult, importlib.import_module("tritorch.cuda.nvidia_call")
    assert (real.CUDA_ERROR_ILLEGAL_ADDRESS, real.CUDA_ERROR_LAUNCH_FAILED) == (700, 719) and {700, 719} <= module._LATE
    assert {real.CUDA_ERROR_ECC_UNCORRECTABLE, real.CUDA_ERROR_CONTEXT_IS_DESTROYED, real.CUDA_ERROR_UNKNOWN} <= module._BROKEN


def test_launch_attributes_reach_the_real_structure():
    real = pytest.importorskip("cuda.bindings.driver")
    module = importlib.import_module("tritorch.cuda.nvidia_function")
    assert module.cu is real
    config = module._config(types.SimpleNamespace(cooperative=True, num_ctas=4, cluster=1, num_warps=8, shared=1024), early=True)
    assert config.numAttrs == 4 and config.blockDimX == 256 and config.sharedMemBytes == 1024
    by_name = {a.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"): a.value for a in config.attrs}
    assert by_name["PROGRAMMATIC_STREAM_SERIALIZATION"].programmaticStreamSerializationAllowed == 1
    assert by_name["COOPERATIVE"].cooperative == 1
    cluster = by_name["CLUSTER_DIMENSION"].clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (4, 1, 1)
    assert by_name["CLUSTER_SCHEDULING_POLICY_PREFERENCE"].clusterSchedulingPolicyPreference.name.endswith("SPREAD")


# ------------------------------------------------------------------ calls
def test_devices(stub):
    fake, driver = stub
    assert driver.device_count() == 2
    properties = driver.device_properties(1)
    assert (properties.name, properties.major, properties.total_memory, properties.driver_version) == ("Fake GPU", 9, 1 << 34, 13000)
    assert driver.device_properties(1) is properties
    assert fake.named("cuInit") == [("cuInit", 0)]
    assert driver.memory_info(1) == (3, 4)
    assert driver.here.device == 0
    assert [c[0] for c in fake.calls[-2:]] == ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]      # back again


def test_context_is_retained_once_and_current_in_every_thread(stub):
    fake, driver = stub
    driver.alloc(16)
    driver.alloc(16)
    thread = threading.Thread(target=driver.alloc, args=(16,))
    thread.start()
    thread.join()
    names = [c[0] for c in fake.named("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc")]
    assert names == ["cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc", "cuMemAlloc", "cuCtxSetCurrent", "cuMemAlloc"]


def test_a_default_stream_is_asked_on_its_own_device(stub):
    """All default streams have the handle 0."""
    fake, driver = stub
    with protocol.using(driver):
        driver.alloc(16), torch.cuda.default_stream(1).query()
        fake.calls.clear()
        torch.cuda.default_stream(1).query(), torch.cuda.default_stream(1).synchronize()
    assert [c[0] for c in fake.calls] == [
        "cuCtxSetCurrent", "cuStreamQuery", "cuCtxSetCurrent", "cuCtxSetCurrent", "cuStreamSynchronize", "cuCtxSetCurrent"]


def test_memory_streams_and_events(stub):
    fake, driver = stub
    assert driver.alloc(100) == 0x7000 and driver.host_alloc(0) == 0x8000
    for kind in ("h2d", "d2h", "d2d", "p2p"):
        driver.copy(1, 2, 3, kind, 0x51)
    driver.copy(1, 2, 0, "h2d", 0)
    driver.fill(1, 255, 1, 10, 0)
    driver.fill(1, 2, 4, 10, 0x51)
    assert driver.stream_create(-1) == 0x51 and driver.event_create(True) == 0xE1 and driver.event_create(False) == 0xE1
    driver.event_record(0xE1, 0x51)
    driver.stream_wait_event(0, 0xE1)
    assert driver.stream_query(0x51) and driver.event_query(0xE1) and driver.event_elapsed(0xE1, 0xE1) == 1.5
    driver.synchronize(0)
    driver.free(0x7000)
    driver.host_free(0x8000)
    driver.event_destroy(0xE1)
    driver.stream_destroy(0x51)
    calls = [c for c in fake.calls if not c[0].startswith(("cuDevice", "cuCtxSet", "cuInit"))]
    assert calls == [
        ("cuMemAlloc", 100), ("cuMemHostAlloc", 1, 1),
        ("cuMemcpyHtoDAsync", 1, 2, 3, 0x51), ("cuMemcpyDtoHAsync", 1, 2, 3, 0x51), ("cuMemcpyDtoDAsync", 1, 2, 3, 0x51),
        ("cuMemcpyAsync", 1, 2, 3, 0x51),
        ("cuMemsetD8Async", 1, 255, 10, 0), ("cuMemsetD32Async", 1, 2, 10, 0x51),
        ("cuStreamCreateWithPriority", 1, -1), ("cuEventCreate", 0), ("cuEventCreate", 2),
        ("cuEventRecord", 0xE1, 0x51), ("cuStreamWaitEvent", 0, 0xE1, 0),
        ("cuStreamQuery", 0x51), ("cuEventQuery", 0xE1), ("cuEventElapsedTime", 0xE1, 0xE1), ("cuCtxSynchronize",),
        ("cuMemFree", 0x7000), ("cuMemFreeHost", 0x8000), ("cuEventDestroy", 0xE1), ("cuStreamDestroy", 0x51),
    ]


def test_graphs(stub):
    fake, driver = stub
    driver.capture_begin(0x51)
    assert driver.capture_status(0x51) and not driver.capture_status(0)
    graph = driver.capture_end(0x51)
    executable = driver.graph_instantiate(graph)
    driver.graph_launch(executable, 0x51)
    driver.graph_destroy(graph)
    driver.exec_destroy(executable)
    assert [c for c in fake.calls if "Capt" in c[0] or "Graph" in c[0]] == [
        ("cuStreamBeginCapture", 0x51, "CU_STREAM_CAPTURE_MODE_RELAXED"), ("cuStreamIsCapturing", 0x51),
        ("cuStreamEndCapture", 0x51), ("cuGraphInstantiate", 0x61, 0), ("cuGraphLaunch", 0x62, 0x51),
        ("cuGraphDestroy", 0x61), ("cuGraphExecDestroy", 0x62),
    ]


def test_errors_name_the_call_and_say_what_they_mean(stub):
    fake, driver = stub
    fake.errors = {"cuMemAlloc": Code.OUT_OF_MEMORY, "cuStreamSynchronize": Code.ILLEGAL_ADDRESS, "cuStreamQuery": Code.NOT_READY,
                   "cuEventQuery": Code.ILLEGAL_ADDRESS}
    with pytest.raises(protocol.OutOfMemory, match="cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: what it means"):
        driver.alloc(1)
    with pytest.raises(protocol.DriverError, match="cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS: .*CUDA_LAUNCH_BLOCKING=1"):
        driver.stream_synchronize(0)
    with pytest.raises(protocol.DriverError, match="cuEventQuery"):
        driver.event_query(1)
    assert driver.stream_query(0) is False
    for nobodys in (Code.DEINITIALIZED, Code.NOT_INITIALIZED, Code.ILLEGAL_ADDRESS, 214, 999):  # the process ends, is a fork, or it failed
        fake.errors = {"cuMemFree": nobodys, "cuEventDestroy": nobodys}
        driver.free(1), driver.event_destroy(2)
    fake.errors = {"cuMemFree": Code.INVALID_VALUE, "cuMemAlloc": Code.NOT_INITIALIZED}
    with pytest.raises(protocol.DriverError, match="cuMemFree"):
        driver.free(1)
    with pytest.raises(protocol.DriverError, match="NOT_INITIALIZED: .*forked process.*'spawn'"):
        driver.alloc(1)


# ------------------------------------------------------------------ parameters
EVERY = {"i1": (True, "?"), "u1": (False, "?"), "i8": (-8, "b"), "u8": (200, "B"), "i16": (-300, "h"), "u16": (40000, "H"),
         "i32": (-70000, "i"), "u32": (1 << 31, "I"), "i64": (-(1 << 40), "q"), "u64": (1 << 63, "Q"), "fp16": (1.5, "e"),
         "fp32": (2.5, "f"), "fp64": (0.1, "d"), "*fp32": (0x7F0000001234, "Q"), "*i1": (0xFFFFFFFFFFFFFFFF, "Q")}


def test_every_type_is_packed_where_its_size_wants_it(stub):
    fake, _ = stub
    signature, values = {}, []
    for i, (kind, (value, _)) in enumerate(EVERY.items()):
        signature[f"flag{i}"], signature[f"x{i}"], signature[f"C{i}"] = "i8", kind, "constexpr"
        values += [i, value]
    k = function(stub, signature)
    k.launch(2, 3, 4, 0x51, values)
    name, handle, *rest = fake.calls[-1]
    assert name == "cuLaunchKernel" and handle == 0x91
    assert rest[:8] == [2, 3, 4, 128, 1, 1, 0, ("stream", 0x51)] and rest[9] == 0
    address = fake.parameters[-1]
    pointers = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    for i, (value, code) in enumerate(EVERY.values()):
        assert read(address, 2 * i, "b") == i
        assert read(address, 2 * i + 1, code) == value
        assert pointers[2 * i + 1] % struct.calcsize("<" + code) == 0
    assert read(address, 2 * len(EVERY), "Q") == read(address, 2 * len(EVERY) + 1, "Q") == 0      # the scratch areas
    assert k.info == {"registers": 40, "spills": 40, "shared": 0, "num_warps": 4, "occupancy": 4}


def test_tuples_are_flattened_and_their_constants_skipped(stub):
    fake, _ = stub
    k = function(stub, {"x": "*fp32", "t": ("i32", "constexpr", ("i64", "fp32")), "n": "i32"})
    k.launch(1, 1, 1, 0, [16, 5, 6, 7.0, 8])
    address = fake.parameters[-1]
    assert [read(address, i, code) for i, code in enumerate("QiqfiQQ")] == [16, 5, 6, 7.0, 8, 0, 0]


def test_floats_too_large_become_infinite(stub):
    fake, _ = stub
    k = function(stub, {"a": "fp32", "b": "fp64", "n": "i32"})
    k.launch(1, 1, 1, 0, [-1e300, 1e300, 3])
    address = fake.parameters[-1]
    assert [read(address, i, code) for i, code in enumerate("fdi")] == [-float("inf"), 1e300, 3]


def test_bfloat16_rounds_to_nearest_even(stub):
    fake, _ = stub
    k = function(stub, {"a": "bf16"})
    for value, bits in ((1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (float("inf"), 0x7F80), (float("nan"), 0x7FC0)):
        k.launch(1, 1, 1, 0, [value])
        assert read(fake.parameters[-1], 0, "H") == bits


def test_each_thread_packs_into_its_own_buffer(stub):
    fake, _ = stub
    k = function(stub, {"n": "i32"})
    k.launch(1, 1, 1, 0, [1])
    thread = threading.Thread(target=k.launch, args=(1, 1, 1, 0, [2]))
    thread.start()
    thread.join()
    assert fake.parameters[0] != fake.parameters[1] and read(fake.parameters[0], 0, "i") == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_launches_first_thing_has_a_context(stub, count):
    fake, driver = stub
    driver._count = count
    k = function(stub, {"n": "i32"})
    fake.calls.clear()
    for _ in range(2):
        thread = threading.Thread(target=lambda: [k.launch(1, 1, 1, 0, [n]) for n in (2, 3)])
        thread.start()
        thread.join()
    assert [c[0] for c in fake.calls] == ["cuCtxSetCurrent", "cuLaunchKernel", "cuLaunchKernel"] * 2


def test_launch_moves_to_the_function_s_device_and_back(stub):
    fake, driver = stub
    k = function(stub, {"n": "i32"})
    driver.set_device(1)
    fake.calls.clear()
    k.launch(1, 1, 1, 0, [1])
    assert [c[0] for c in fake.calls] == ["cuCtxSetCurrent", "cuLaunchKernel", "cuCtxSetCurrent"] and driver.here.device == 1


def test_shared_memory_is_asked_for_or_refused(stub):
    fake, _ = stub
    function(stub, {}, shared=100000)
    assert ("cuFuncSetAttribute", 0x91, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 100000) in fake.calls
    with pytest.raises(protocol.DriverError, match="needs 300000 bytes of shared memory, Fake GPU has 232448; use smaller blocks"):
        function(stub, {}, shared=300000)


def test_clusters_scratch_and_failed_launches(stub):
    fake, _ = stub
    k = function(stub, {"n": "i32"}, num_ctas=2, global_scratch_size=128, pdl=True)
    k.launch(3, 2, 1, 0x51, [9])
    name, config, handle, address, extra = fake.calls[-1]
    assert (name, handle, extra) == ("cuLaunchKernelEx", 0x91, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ, config.hStream, config.numAttrs) == (6, 2, 1, ("stream", 0x51), 3)
    assert ("cuMemAlloc", 3 * 2 * 2 * 128) in fake.calls
    assert [read(address, i, c) for i, c in enumerate("iQQ")] == [9, 0x7000, 0]
    k.launch(3, 2, 1, 0x51, [9])
    assert len(fake.named("cuMemAlloc")) == 1
    fake.errors = {"cuLaunchKernel": Code.OUT_OF_RESOURCES}
    with pytest.raises(protocol.DriverError, match="cuLaunchKernel: CUDA_ERROR_OUT_OF_RESOURCES: .*fewer num_warps"):
        function(stub, {}).launch(1, 1, 1, 0, [])


def test_scratch_of_two_graphs_captured_on_one_stream_is_not_the_same(stub):
    """They may be replayed on two streams at once; inside of one, launches follow each other."""
    fake, driver = stub
    addresses = itertools.count(0x100000000, 0x10000000)
    fake.cuMemAlloc = lambda nbytes: (Code.SUCCESS, next(addresses))
    fake.cuStreamIsCapturing = lambda stream: (Code.SUCCESS, int(bool(captures)))
    with protocol.using(driver):
        k, areas, graphs = function(stub, {}, global_scratch_size=128), [], [torch.cuda.CUDAGraph() for _ in range(2)]

        def launch():
            k.launch(3, 1, 1, torch.cuda.current_stream().cuda_stream, [])
            areas.append(read(fake.parameters[-1], 0, "Q"))

        for graph in graphs:
            with torch.cuda.graph(graph):
                launch(), launch()
        with torch.cuda.stream(torch.cuda.Stream()):
            launch(), launch()
        assert areas[0] == areas[1] and areas[2] == areas[3] and areas[4] == areas[5] and len(set(areas)) == 3
        for graph, area in zip(graphs, areas[::2]):
            (pool,) = graph.private.pools.values()
            assert any(ptr <= area < ptr + (2 << 20) for ptr in pool.segments)


def descriptor(rounds=False):
    return types.SimpleNamespace(ptr=0x10000, shape=(100, 64), strides=(128, 1), block=(32, 64), padding="zero", round_f32_to_tf32=rounds)


def test_descriptors_are_maps_on_hopper(stub):
    fake, _ = stub
    meta = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [32, 64], "fp4_padded": False}
    k = function(stub, {"o": "*bf16", "d": "tensordesc<bf16[32, 64]>", "n": "i32"}, descriptors=[meta])
    for _ in range(2):
        k.launch(1, 1, 1, 0, [0x20, descriptor(), 7])
    assert fake.maps == [{"aligned": True, "kind": 9, "address": 0x10000, "rest": (0, 3, 2, 0), "shape": [64, 100], "strides": [256],
                          "box": [64, 32], "ones": [1, 1]}]
    address = fake.parameters[-1]
    pointers = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    assert pointers[1] % 64 == 0 and ctypes.string_at(pointers[1], 128) == b"\xab" * 128
    assert [read(address, i, c) for i, c in ((0, "Q"), (2, "i"), (3, "i"), (4, "q"), (5, "q"), (6, "i"))] == [0x20, 100, 64, 128, 1, 7]


def test_maps_that_round_to_tf32(stub):
    fake, _ = stub
    meta = {"swizzle": 3, "elem_size": 4, "elem_type": 7, "block_size": [32, 64], "fp4_padded": False}
    k = function(stub, {"d": "tensordesc<fp32[32, 64]>"}, descriptors=[meta])
    for rounds in (False, True, False):
        k.launch(1, 1, 1, 0, [descriptor(rounds)])
    assert [m["kind"] for m in fake.maps] == [7, 11]                               # FLOAT32, TFLOAT32


@pytest.mark.parametrize("flags", [1, 2])                                         # Triton 3.6, Triton 3.9
def test_descriptors_are_pointers_before_hopper(stub, flags):
    fake, _ = stub
    signature = {"d": "tensordesc<bf16[32, 64]>", "n": "i32"}
    k = function(stub, signature, parameters=sizes(signature, flags=flags))
    k.launch(1, 1, 1, 0, [descriptor(rounds=True), 7])
    got = [read(fake.parameters[-1], i, c) for i, c in enumerate("Qqqqq" + "?" * flags + "iiqqi")]
    assert got == [0x10000, 100, 64, 128, 1, *(False, True)[:flags], 100, 64, 128, 1, 7]


def test_parameters_that_the_kernel_declares_otherwise_are_refused(stub):
    with pytest.raises(protocol.DriverError, match=r"takes \[8, 8, 8, 8\] bytes, expected \[8, 4, 8, 8\]; use a version of triton"):
        function(stub, {"x": "*fp32", "n": "i32"}, parameters=[8, 8, 8, 8])
